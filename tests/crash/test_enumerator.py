"""Every state that a power cut may leave, at every write and sync point, keeps every promise of the log."""

import pytest

from logstore.testing.crash import CrashPlan, Enumerator, Workload
from logstore.testing.simdisk import CrashBounds
from logstore.testing.world import Setup
from tests.crash import workloads

pytestmark = pytest.mark.crash

STATES = 8
"""Combinations of files and names per point; --long tries 1024. Torn tails come on top, with --long at every byte."""
FILE_STATES = 8
UNITS = (64, 512)
"""Granularity at which un-synced data survives; small, so that a few hundred bytes are many units."""


def plan_for(workload: Workload, unit_bytes: int, config: pytest.Config) -> CrashPlan:
    """Bounds: a choice in the short run, nearly everything in the long one."""
    if config.getoption("--long"):
        return CrashPlan(bounds=CrashBounds(states=1024, file_states=256), recovery_share=20, unit_bytes=unit_bytes)
    # Where a write is torn does not depend on the unit, so one of the two does it at more bytes; short stories are torn
    # at every byte below. Commit records are JSON and long, with many points: torn at few bytes, and fewer combinations
    # per point. So is cleaning.
    # A kill costs most, as power is cut at every call behind it: the calls at neighbouring points are nearly the same.
    # Each point is tried with one of the two units, and of the long stories of quiet streams each second of these.
    commits = workload in (workloads.commits, workloads.cleans)
    torn_bytes = 8 if commits else 64 if unit_bytes == UNITS[0] else 32
    share = len(UNITS) * (2 if workload in (workloads.quiets, workloads.quiet_trims) else 1)
    states, file_states = (STATES // 3, FILE_STATES // 3) if commits else (STATES, FILE_STATES)
    return CrashPlan(
        bounds=CrashBounds(states=states, file_states=file_states, torn_bytes=torn_bytes),
        second_share=24,
        recovery_share=150,
        kill_share=4,
        unit_bytes=unit_bytes,
        point_share=share,
        point_rest=UNITS.index(unit_bytes),
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("unit_bytes", UNITS)
@pytest.mark.parametrize("workload", workloads.WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_crash_state_breaks_a_promise(
    workload: Workload, unit_bytes: int, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever subset of un-synced units, sizes and names survives: acked is there, groups are whole, nothing else."""
    report = Enumerator(workload, Setup(seed=1), plan_for(workload, unit_bytes, pytestconfig)).run()
    with capsys.disabled():
        print(f"\n  {workload.__name__}, units of {unit_bytes} B: {report}")
    assert report.coverage.states > 100


@pytest.mark.parametrize("unit_bytes", UNITS)
@pytest.mark.parametrize(
    "workload", [workloads.large_batch, workloads.trim_all, workloads.ledgers], ids=lambda workload: workload.__name__
)
def test_all_states_of_a_short_story(workload: Workload, unit_bytes: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Short enough to leave nothing out: every point exhaustively, from the founding of the directory on."""
    plan = CrashPlan(bounds=CrashBounds(states=1 << 16, file_states=1 << 12), second_share=1, unit_bytes=unit_bytes)
    report = Enumerator(workload, Setup(), plan).run()
    with capsys.disabled():
        print(f"\n  {workload.__name__}, units of {unit_bytes} B: {report}")
    assert report.coverage.complete_points == report.coverage.points

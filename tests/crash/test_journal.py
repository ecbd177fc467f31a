"""The shared journal under every crash: the stories of the other crash tests, with small appends in the journal."""

import pytest

from logstore.testing.crash import CrashPlan, Enumerator, Workload
from logstore.testing.simdisk import CrashBounds
from logstore.testing.world import Setup, journaled
from tests.crash import workloads
from tests.crash.test_enumerator import UNITS, plan_for
from tests.support.examples import is_long

pytestmark = pytest.mark.crash

SHORT: tuple[Workload, ...] = (
    workloads.appends,
    workloads.trims,
    workloads.groups,
    workloads.commits,
    workloads.restarts,
    workloads.expires,
    workloads.journal,
)
"""Stories whose small appends reach the journal; what the others do does not depend on it."""
SHARES: dict[Workload, int] = {workloads.commits: 5, workloads.journal: 10}
"""Stories with many points: so many of them share a look."""


def journal_plan(workload: Workload, unit_bytes: int, config: pytest.Config) -> CrashPlan:
    """Bounds: a choice in the short run, nearly everything in the long one."""
    if is_long():
        return plan_for(workload, unit_bytes, config)
    return CrashPlan(
        bounds=CrashBounds(states=8, file_states=8, torn_bytes=16),
        second_share=40,
        recovery_share=500,
        kill_share=6,
        unit_bytes=unit_bytes,
        point_share=SHARES.get(workload, 1),
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("unit_bytes", UNITS if is_long() else UNITS[:1])
@pytest.mark.parametrize(
    "workload",
    [*workloads.WORKLOADS, workloads.journal] if is_long() else SHORT,
    ids=lambda workload: workload.__name__,
)
def test_no_crash_state_breaks_a_promise(
    workload: Workload, unit_bytes: int, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """With small appends in the journal: acked is there, groups are whole, nothing else, whatever a power cut keeps."""
    report = Enumerator(workload, journaled(Setup(seed=1)), journal_plan(workload, unit_bytes, pytestconfig)).run()
    with capsys.disabled():
        print(f"\n  {workload.__name__}, journaled, units of {unit_bytes} B: {report}")
    assert report.coverage.states > 100

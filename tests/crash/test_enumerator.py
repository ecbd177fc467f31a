"""Every state that a power cut may leave, at every write and sync point, keeps every promise of the log."""

import pytest

from logstore.testing.crash import Enumerator, Plan, Workload
from logstore.testing.simdisk import Bounds
from logstore.testing.world import Setup
from tests.crash.workloads import WORKLOADS

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("unit_bytes", [64, 512])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_crash_state_breaks_a_promise(
    workload: Workload, unit_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever subset of un-synced units, sizes and names survives: acked is there, groups are whole, nothing else."""
    plan = Plan(bounds=Bounds(states=96, file_states=48, torn_bytes=2048), unit_bytes=unit_bytes)
    report = Enumerator(workload, Setup(seed=1), plan).run()
    with capsys.disabled():
        print(f"\n  {workload.__name__}, units of {unit_bytes} B: {report}")
    assert report.coverage.states > 100

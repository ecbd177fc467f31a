"""Every I/O call fails in turn, in every way: nothing acknowledged is lost, and the store goes on or refuses."""

import errno

import pytest

from logstore.errors import CairnError, StorageFailed
from logstore.testing.crash import Workload
from logstore.testing.faults import EIO, ENOSPC, FALSE_ALARM, SHORT_WRITE, Fault, FileCall
from logstore.testing.history import History
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore, journaled
from tests.crash import workloads
from tests.crash.workloads import WORKLOADS
from tests.support.examples import is_long

pytestmark = pytest.mark.crash

FAULTS = {"EIO": EIO, "ENOSPC": ENOSPC, "short write": SHORT_WRITE, "false alarm": FALSE_ALARM}
SETUP = Setup(seed=3)
FEW = (
    CrashBounds(states=4, file_states=4, torn_bytes=2)
    if is_long()
    else CrashBounds(states=2, file_states=2, torn_bytes=1)
)


SHARES: dict[Workload, int] = {
    workloads.journal: 15,
    **dict.fromkeys((workloads.quiets, workloads.quiet_trims, workloads.expires), 5),
    workloads.commits: 3,
    workloads.topics: 2,
}
"""Of the calls of long stories, so many share a failure in the short run; in the long one each fails."""
WAYS = 2
"""In the short run each of the remaining calls fails in so many of the four ways; in the long one in all."""
RUNS = [
    *((workload, SETUP) for workload in WORKLOADS),
    *((workload, journaled(SETUP)) for workload in (workloads.appends, workloads.groups, workloads.journal)),
]
NAMES = [f"{workload.__name__}{' journaled' if setup.settings.journal.file_bytes else ''}" for workload, setup in RUNS]


def count_calls(workload: Workload, setup: Setup = SETUP) -> int:
    """How many I/O calls the workload makes when nothing fails."""
    disk = SimDisk(unit_bytes=64)
    world = SimulatedStore(disk, History(), setup)
    workload(world)
    return world.disk.calls


def run_with_fault(workload: Workload, number: int, fault: Fault, setup: Setup = SETUP) -> None:
    """Let call `number` fail; then look at the living store, at a restart, and at a few power cuts."""
    disk = SimDisk(unit_bytes=64)
    disk.fail_at(number, fault)
    history = History()
    world: SimulatedStore | None = None
    try:
        world = SimulatedStore(disk, history, setup)
        workload(world)
        world.run()
        disk = world.disk
    except (OSError, CairnError):
        # It refused: to open, or a client's call. What was acknowledged before must be there.
        if world is not None:
            disk = world.disk
            if world.is_open:
                world.run()
    else:
        world.check(epochs=False)
        for stream in world.store.streams():
            for _ in range(2):
                ticket = world.append(stream.topic, stream.partition)
                world.run()
            assert ticket.error is None, "the disk works again, the stream does not"
        world.check(epochs=False)
    for state in [disk.kill_state(), *disk.crash_states(FEW)]:
        after = SimulatedStore(state, history.fork(), setup)
        after.check()


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize(("workload", "setup"), RUNS, ids=NAMES)
def test_every_call_fails_in_turn(
    workload: Workload, setup: Setup, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One call fails, all others work: acked records survive, the stream takes appends again, a restart finds all."""
    calls = count_calls(workload, setup)
    share = SHARES.get(workload, 1)
    turn = share * (list(FAULTS).index(name) % WAYS)
    numbers = range(calls) if is_long() else range(turn, calls, share * WAYS)
    for number in numbers:
        try:
            run_with_fault(workload, number, FAULTS[name], setup)
        except (AssertionError, CairnError, OSError) as error:
            raise AssertionError(f"call {number} of {calls} fails with {name}: {error!r}") from error
    with capsys.disabled():
        print(f"\n  {workload.__name__}: {len(numbers)} of {calls} calls failed with {name}")


def test_full_disk_refuses_then_goes_on() -> None:
    """No room: appends fail with an error, reads and trims work; room again: appends work without a restart."""
    disk = SimDisk(unit_bytes=64)
    world = SimulatedStore(disk, History(), SETUP)
    world.create_topic("t", 1)
    world.run()
    world.append("t")
    world.run()
    disk.capacity_bytes = 0
    refused = world.append("t")
    world.run()
    assert isinstance(refused.error, StorageFailed)
    world.check()
    disk.capacity_bytes = None
    accepted = world.append("t")
    world.run()
    accepted.result()
    world.check()
    SimulatedStore(disk.kill_state(), world.history, SETUP).check()


def test_a_failed_sync_is_never_repeated() -> None:
    """After a failed sync no further sync of that file is believed: its chunk is left for a new one."""
    disk = SimDisk(unit_bytes=64)
    world = SimulatedStore(disk, History(), SETUP)
    world.create_topic("t", 1)
    world.run()
    world.append("t")
    world.run()
    failed: list[str] = []

    def fail_first_log_sync(call: FileCall) -> Fault | None:
        if call.kind == "sync" and call.path.endswith(".log") and not failed:
            failed.append(call.path)
            return Fault(errno.EIO)
        return None

    disk.fault_for = fail_first_log_sync
    world.append("t")
    world.run()
    before = disk.calls
    accepted = world.append("t")
    world.run()
    accepted.result()
    assert failed
    assert not [call for call in disk.log[before:] if call.path == failed[0] and call.kind in ("write", "sync")]
    for state in disk.crash_states(CrashBounds()):
        SimulatedStore(state, world.history.fork(), SETUP).check()

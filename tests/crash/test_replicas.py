"""Every crash of a host's replicas leaves what the protocol may find: all that was confirmed, and no damage."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

import logstore.log.replica_chunk
from logstore.testing.crash import CrashPlan, CrashReport, digest
from logstore.testing.faults import FileCall
from logstore.testing.history import PromiseBroken
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, journaled
from tests.cluster.batches import STREAM, TOPIC_ID
from tests.crash.replica_world import ReplicaHistory, ReplicaWorld
from tests.support.examples import is_long

pytestmark = pytest.mark.crash

OTHER = f"{TOPIC_ID}/1"
FIRST, SECOND, THIRD = (STREAM, 1), (OTHER, 1), (STREAM, 2)
Workload = Callable[[ReplicaWorld], None]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logstore.log.replica_chunk, "KNOWN_INTERVAL_BYTES", 300)


def appends(world: ReplicaWorld) -> None:
    """Two chunks that take small and large writes, several at once; a fence, a rest, and a write behind it."""
    world.write(FIRST, 2)
    world.write(FIRST)
    world.write(SECOND)
    world.run()
    world.write(FIRST)
    world.write(SECOND, 2)
    world.fence(STREAM, 2)
    world.run()
    world.write(SECOND, 2, value_bytes=400)
    world.tick()
    world.run()
    world.tick()
    world.rest()
    world.run()
    world.write(FIRST)
    world.run()


def seals(world: ReplicaWorld) -> None:
    """Chunks that are sealed where they end, one of them at rest; the next one of the stream."""
    world.write(FIRST, 2)
    world.write(FIRST, 2)
    world.write(SECOND)
    world.run()
    world.rest()
    world.run()
    world.cut(FIRST, 4)
    world.cut(SECOND, 1)
    world.run()
    world.write(THIRD)
    world.rest()
    world.run()


def cuts(world: ReplicaWorld) -> None:
    """Chunks that are longer than what their registration says: in the journal, in the file, and at rest."""
    world.write(FIRST, 3)
    world.run()
    world.write(FIRST, 2)
    world.write(FIRST)
    world.run()
    world.tick()
    world.cut(FIRST, 4)
    world.tick()
    world.run()
    world.write(SECOND, 4, value_bytes=150)
    world.run()
    world.rest()
    world.run()
    world.cut(SECOND, 1)
    world.write(THIRD, 2)
    world.run()


def removals(world: ReplicaWorld) -> None:
    """A chunk that is removed and copied anew, with another content; a sealed one at rest; one in its first write; a
    fence.
    """
    world.write(FIRST, 2)
    world.write(FIRST)
    world.fence(STREAM, 2)
    world.run()
    world.write(FIRST)
    world.remove(FIRST, comes_back_other=True)
    world.run()
    world.write(FIRST)
    world.run()
    world.write(FIRST)
    world.cut(FIRST, 2)
    world.run()
    world.rest()
    world.run()
    world.remove(FIRST)
    world.write(SECOND)
    world.remove(SECOND)
    world.forget_fence(STREAM)
    world.run()


def lives(world: ReplicaWorld) -> None:
    """A kill, a clean stop, and what goes on behind them."""
    world.write(FIRST, 2)
    world.run()
    world.write(FIRST)
    world.write(SECOND)
    world.run()
    world.restart(clean=False)
    world.write(FIRST)
    world.run()
    world.restart(clean=True)
    world.write(FIRST)
    world.run()
    world.cut(FIRST, 3)
    world.run()


def groups(world: ReplicaWorld) -> None:
    """Append groups, small and large, between batches and as a chunk's first entry; a cut in front of some."""
    world.write(FIRST, group_batches=2)
    world.write(FIRST)
    world.run()
    world.write(FIRST, group_batches=3, value_bytes=150)
    world.write(FIRST, 2, group_batches=0)
    world.run()
    world.tick()
    world.write(FIRST, group_batches=4)
    world.write(FIRST)
    world.cut(FIRST, 5)
    world.run()
    world.write(SECOND)
    world.run()
    world.rest()
    world.run()
    world.write(SECOND, group_batches=3, value_bytes=400)
    world.run()


def copies(world: ReplicaWorld) -> None:
    """Copies in pieces: one that is sealed, one that is begun when the host is killed, and goes on behind that; one
    that rests on its way, and one that is removed.
    """
    world.write(FIRST, 2, is_copy=True)
    world.run()
    world.write(FIRST, 2, value_bytes=400, is_copy=True)
    world.write(SECOND, is_copy=True)
    world.run()
    world.cut(FIRST, 4)
    world.write(THIRD, is_copy=True)
    world.run()
    world.rest()
    world.run()
    world.restart(clean=False)
    world.write(SECOND, 2, is_copy=True)
    world.write(THIRD, is_copy=True)
    world.tick()
    world.run()
    world.tick()
    world.run()
    world.cut(SECOND, 3)
    world.remove(THIRD, comes_back_other=True)
    world.run()
    world.write(THIRD, 2, is_copy=True)
    world.run()
    world.cut(THIRD, 2)
    world.run()


WORKLOADS = (appends, seals, cuts, removals, lives, groups, copies)


class Enumerator:
    """Runs a workload, and every crash of it within the bounds; see `logstore.testing.crash`."""

    def __init__(self, workload: Workload, setup: Setup, plan: CrashPlan) -> None:
        self._workload, self._setup, self._plan = workload, setup, plan
        self._random = Random(plan.bounds.seed)
        self._seen: set[tuple[bytes, int]] = set()
        self._history = ReplicaHistory()
        self._world: ReplicaWorld | None = None
        self._disk = SimDisk(unit_bytes=plan.unit_bytes)
        self._point = 0
        self.report = CrashReport()

    def run(self) -> CrashReport:
        """Try all points. Raises PromiseBroken."""
        self._disk.before_call = self._before
        self._world = ReplicaWorld(self._disk, self._history, self._setup)
        self._workload(self._world)
        self._world.run()
        self._disk = self._world.disk
        self._disk.before_call = None
        self._explore("the end")
        return self.report

    def _before(self, call: FileCall) -> None:
        if not call.changes_disk:
            return
        self._point += 1
        if self._world is not None:
            self._disk = self._world.disk
        if self._point % self._plan.point_share == self._plan.point_rest:
            self._explore(f"call {call.number}, {call.kind} {call.path}")

    def _explore(self, where: str) -> None:
        for state in self._disk.crash_states(self._plan.bounds, self.report.coverage):
            key = (digest(state), self._history.version)
            if key in self._seen:
                self.report.known += 1
                continue
            self._seen.add(key)
            self.report.opened += 1
            origin = f"power cut before {where}: {state.origin}"
            if self._random.random() * self._plan.recovery_share < 1:
                self._crash_recovery(state, origin)
            self._open(state, origin, again=self._random.random() * self._plan.second_share < 1)
        if self._point % self._plan.kill_share:
            return
        self.report.kills += 1
        self._crash_recovery(self._disk.kill_state(), f"kill before {where}")

    def _open(self, disk: SimDisk, origin: str, *, again: bool) -> None:
        try:
            history = self._history.fork()
            world = ReplicaWorld(disk, history, self._setup)
            if again:
                self.report.second += 1
                use(world)
                ReplicaWorld(world.disk.crash(self._random), history, self._setup)
        except PromiseBroken as error:
            raise PromiseBroken(f"{error}\n  {origin}") from error
        except Exception as error:
            raise PromiseBroken(f"the store does not open or work: {error!r}\n  {origin}") from error

    def _crash_recovery(self, state: SimDisk, origin: str) -> None:
        """Open the store on a state, use it, and lose power at every point of both."""
        copy = state.kill_state()
        left: list[tuple[SimDisk, ReplicaHistory]] = []
        history = self._history.fork()

        def before(call: FileCall) -> None:
            if call.changes_disk:
                left.append((copy.crash(self._random), history.fork()))

        copy.before_call = before
        opened = 0
        try:
            use(ReplicaWorld(copy, history, self._setup))
            copy.before_call = None
            for disk, known in left:
                opened += 1
                ReplicaWorld(disk, known, self._setup)
        except PromiseBroken as error:
            raise PromiseBroken(f"{error}\n  {origin}, then power cut {opened} of {len(left)}") from error
        except Exception as error:
            raise PromiseBroken(f"the store does not open or work: {error!r}\n  {origin}, then power cut") from error
        self.report.in_recovery += opened


def use(world: ReplicaWorld) -> None:
    """Append to every open chunk, seal each second one, remove the sealed ones that there were."""
    for number, (key, chunk) in enumerate(sorted(world.history.chunks.items())):
        found = world.asked(chunk)
        if found is not None and found.is_sealed:
            world.remove(key, comes_back_other=True)
        tickets = [world.write(key), world.write(key, 2)]
        world.run()
        for ticket in tickets:
            ticket.result()
        asked = world.asked(chunk)
        if number % 2 and asked is not None:
            cut = world.cut(key, asked.length - 1)
            world.run()
            cut.result()
    world.run()


def plan(**changes: int) -> CrashPlan:
    """What to try at each point."""
    bounds = CrashBounds(states=24, file_states=8, torn_bytes=30, name_changes=4)
    shares = {"second_share": 8, "recovery_share": 60, "point_share": 8, "kill_share": 2}
    if is_long():
        bounds = CrashBounds(states=512, file_states=64, torn_bytes=1000)
        shares = {"second_share": 4, "recovery_share": 40}
    return CrashPlan(bounds, **(shares | changes))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.__name__)
def test_every_crash_leaves_what_the_protocol_may_find(workload: Workload, *, has_journal: bool) -> None:
    """All that was confirmed, whole, with its checksum, its producers and its fence; a cut or a removal done or not."""
    setup = journaled() if has_journal else Setup()
    report = Enumerator(workload, setup, plan()).run()
    print(report)
    assert report.opened > 50

"""The crash-state enumerator: stops a workload at every write and sync point, tries all states that a crash may leave.

At each point, the enumerator opens every disk state within the bounds and checks the promises of `history`. A share of
the states then takes another append on every stream, loses power again and is checked again. Another share is crashed
at every point of the recovery itself. A kill of the process (nothing lost, not all synced), followed by a power cut
after the restart, is tried at every point too.

Invariants: deterministic, given the seed; `CrashReport` counts the visited states and shows the counts in one line.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from logstore.events import OFFSETS_LOST, QUIET_STREAM_DIFFERS, QUIET_TABLE_DAMAGED
from logstore.testing.faults import FileCall
from logstore.testing.history import History, PromiseBroken
from logstore.testing.simdisk import Coverage, CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore

Workload = Callable[[SimulatedStore], None]


@dataclass(frozen=True)
class CrashPlan:
    """What to try at each point. One of `second_share` states is crashed again after an append, one of `recovery_share`
    during its recovery; one of `kill_share` points is also tried with a kill. Of the points, those count whose number
    leaves `point_rest` when it is divided by `point_share`.
    """

    bounds: CrashBounds = field(default_factory=lambda: CrashBounds(states=256, file_states=64))
    second_share: int = 4
    recovery_share: int = 40
    kill_share: int = 1
    unit_bytes: int = 64
    first_point: int = 0
    point_share: int = 1
    point_rest: int = 0


@dataclass
class CrashReport:
    """Counts of the visited states."""

    coverage: Coverage = field(default_factory=Coverage)
    opened: int = 0
    known: int = 0
    second: int = 0
    in_recovery: int = 0
    kills: int = 0

    def __str__(self) -> str:
        return (
            f"{self.coverage}; {self.opened} opened ({self.known} equal to one before), {self.second} crashed again "
            f"after an append, {self.in_recovery} new ones from crashes during recovery, {self.kills} kills "
            "followed by a power cut"
        )


class Enumerator:
    """Runs one workload and every crash of it within the bounds."""

    def __init__(self, workload: Workload, setup: Setup | None = None, plan: CrashPlan | None = None) -> None:
        self._workload = workload
        self._setup = setup or Setup()
        self._plan = plan or CrashPlan()
        self._random = Random(self._plan.bounds.seed)
        self._seen: set[tuple[bytes, int]] = set()
        self._seen_recovering: set[tuple[bytes, int]] = set()
        """Of crashes during recovery. They are apart: elsewhere a state may be crashed again after an append."""
        self._world: SimulatedStore | None = None
        self._history = History()
        self._disk = SimDisk(unit_bytes=self._plan.unit_bytes)
        self._point = self._tried = 0
        self.report = CrashReport()

    def run(self) -> CrashReport:
        """Try all points. Raises PromiseBroken with the point and the state that broke a promise."""
        self._disk.before_call = self._before
        self._world = SimulatedStore(self._disk, self._history, self._setup)
        self._workload(self._world)
        self._world.run()
        self._disk = self._world.disk
        self._disk.before_call = None
        self._world.check()
        self._explore("the end")
        return self.report

    def _before(self, call: FileCall) -> None:
        if not call.changes_disk:
            return
        self._point += 1
        if self._world is not None:
            self._disk = self._world.disk
        is_tried = self._point % self._plan.point_share == self._plan.point_rest
        if self._point >= self._plan.first_point and is_tried:
            self._tried += 1
            self._explore(f"call {call.number}, {call.kind} {call.path}")

    def _explore(self, where: str) -> None:
        for state in self._disk.crash_states(self._plan.bounds, self.report.coverage):
            self._try(state, f"power cut before {where}: {state.origin}")
        if self._tried % self._plan.kill_share == 0:
            self.report.kills += 1
            self._try_kill(f"kill before {where}")

    def _try(self, state: SimDisk, origin: str) -> None:
        key = (digest(state), self._history.version)
        if key in self._seen:
            self.report.known += 1
            return
        self._seen.add(key)
        self.report.opened += 1
        pick = self._random.random()
        if pick * self._plan.recovery_share < 1:
            self._crash_recovery(state, origin)
        again = self._random.random() * self._plan.second_share < 1
        self._open(state, origin, again=again)

    def _open(self, state: SimDisk, origin: str, *, again: bool) -> None:
        history = self._history.fork()
        try:
            world = self._reopen(state, history)
            if again:
                self.report.second += 1
                self._use(world)
                world.check()
                self._reopen(state.crash(self._random), history)
        except PromiseBroken as error:
            raise PromiseBroken(f"{error}\n  {origin}") from error
        except Exception as error:
            raise PromiseBroken(f"the store does not open or work: {error!r}\n  {origin}") from error

    def _reopen(self, disk: SimDisk, history: History) -> SimulatedStore:
        """Open a store on what a crash has left, and check it."""
        world = SimulatedStore(disk, history, self._setup)
        _check_reports(world)
        world.check()
        return world

    @staticmethod
    def _use(world: SimulatedStore) -> None:
        tickets = [world.append(stream.topic, stream.partition) for stream in world.store.streams()]
        world.put()
        world.allocate()
        world.run()
        for ticket in tickets:
            ticket.result()
        if world.tier is not None:
            world.tier.settle(world.run)

    def _crash_recovery(self, state: SimDisk, origin: str) -> None:
        """Lose power at every point of a recovery, and recover again."""
        copy = state.kill_state()
        left: list[SimDisk] = []

        def before(call: FileCall) -> None:
            if call.changes_disk:
                left.append(copy.crash(self._random))

        copy.before_call = before
        self._open(copy, origin, again=False)
        for number, disk in enumerate(left):
            key = (digest(disk), self._history.version)
            if key in self._seen or key in self._seen_recovering:
                continue  # the same disk, and the client knew as much: nothing new comes of it
            self._seen_recovering.add(key)
            self.report.in_recovery += 1
            self._open(disk, f"{origin}; then power cut at point {number} of the recovery", again=False)

    def _try_kill(self, origin: str) -> None:
        """Kill the process, restart, use the store, lose power, restart."""
        killed = self._disk.kill_state()
        history = self._history.fork()
        left: list[tuple[SimDisk, History]] = []

        def before(call: FileCall) -> None:
            if call.changes_disk:
                left.append((killed.crash(self._random), history.fork()))

        try:
            killed.before_call = before
            world = self._reopen(killed, history)
            self._use(world)
            world.check()
            killed.before_call = None
            left.append((killed.crash(self._random), history))
            opened = set[tuple[bytes, int]]()  # of this kill: what its client did, no other has done
            for disk, known in left:
                if (key := (digest(disk), known.version)) not in opened:
                    opened.add(key)
                    self._reopen(disk, known)
        except PromiseBroken as error:
            raise PromiseBroken(f"{error}\n  {origin}, then power cut") from error
        except Exception as error:
            raise PromiseBroken(f"the store does not open or work: {error!r}\n  {origin}") from error


def _check_reports(world: SimulatedStore) -> None:
    """What no crash may leave. It loses no chunk: an operator who is told of missing ones would look for a backup of
    trimmed records. The table of quiet streams says what the files say: others make them differ.
    """
    for event in (OFFSETS_LOST, QUIET_STREAM_DIFFERS, QUIET_TABLE_DAMAGED):
        if found := world.reports.of(event):
            raise PromiseBroken(f"{event.name}: {found[0]}")


def digest(disk: SimDisk) -> bytes:
    """A hash of the names and contents on a disk."""
    summary = hashlib.sha256()
    for path, content in disk.files():
        summary.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        summary.update(content or b"")
    return summary.digest()

"""TIMESTEPS mode, after the paper (SGuard, end of section 5, section 6.2): all waiting chunks are planned together.

A timestep begins with a plan over the whole queue, on what the last timestep's unfinished chunks leave of the graph
(`Stragglers.COUNTED`), or on the full graph (`Stragglers.IGNORED`). The second is one reading of the paper, which does
not say how unfinished chunks affect the next timestep; in this reading overlapping timesteps, with their stragglers and
new chunks, may each use a capacity in full. A request that arrives later joins the running timestep as far as the
residual graph still has a path for it: Algorithm 1 takes and returns the residual graph "for the current timestep".
Chunks that failed or lost a host join in the same way. The next timestep begins as soon as `finish_fraction` of the
timestep's chunks are done, or none of it is in flight.

The plan of the whole queue may leave out its first request: by chance (a random dead end), because a planner that
maximizes the number of chunks serves any request, or because stragglers block it. Then the first chunk of that request
is planned first, alone. If that fails because of stragglers, the timestep does not begin until more of them are done.

Invariants:
* In a timestep that has begun, the first request of the queue got a chunk, unless no path for it exists at all.
* The chains of one timestep that were not revoked fit into the graph that it was planned on. With stragglers counted,
  all chains in flight fit into the network together, except after a restart on a smaller one.
"""

from itertools import islice
from random import Random

from scheduler.errors import PlanInvalid
from scheduler.peace.online.jobs import ChunkAttempt, ChunkUnit, TransferJob
from scheduler.peace.online.joint_planner import JointPlanner
from scheduler.peace.online.ranked_queue import RankedQueue
from scheduler.peace.online.records import Settings, Stragglers
from scheduler.peace.online.unreachable import TRIES, Launch, UnreachableUnits, find
from scheduler.peace.plan import HostChain, Planner, Request, Residual, TransferKind, demands
from scheduler.topology import Topology, disk_capacity

_ROUNDING = 1e-9


class Timesteps:
    """The policy of timesteps: plan all waiting chunks together, one timestep after the other."""

    def __init__(
        self, topology: Topology, planner: Planner, settings: Settings, random: Random, queue: RankedQueue
    ) -> None:
        self.step = 0
        self._planner = planner
        self._settings = settings
        self._random = random
        self._queue = queue
        self._whole = Residual.full(topology)
        """The graph without lost hosts."""
        self._left: Residual | None = None
        """The capacity that the running timestep leaves; None: it must be computed again."""
        self._open: set[ChunkAttempt] = set()
        """The timestep's chunks in flight."""
        self._done: list[ChunkAttempt] = []
        """The timestep's chunks that are done."""
        self._older: set[ChunkAttempt] = set()
        """Stragglers: in flight since an earlier timestep."""
        self._joining: dict[TransferJob, None] = {}
        self._unreachable = UnreachableUnits(queue, planner, random, self._whole)
        self._joint = JointPlanner.of(topology, planner, random, self._whole)

    # ---- events

    def enter(self, unit: ChunkUnit) -> None:
        """Note that the unit has a chunk waiting (again): it may join the running timestep."""
        self._joining[unit.job] = None

    def leave(self, job: TransferJob) -> None:
        """Note that none of the job's units waits any more."""
        self._joining.pop(job, None)
        self._unreachable.leave(job.units)

    def ended(self, flight: ChunkAttempt, *, done: bool) -> None:
        """Note that a chunk is no longer in flight. A chunk that is not done gives its timestep's capacity back."""
        self._older.discard(flight)
        if flight in self._open:
            self._open.discard(flight)
            if done:
                self._done.append(flight)
            else:
                self._left = None

    def started(self, flight: ChunkAttempt) -> None:
        """Note that a chunk was launched in the running timestep."""
        self._open.add(flight)

    def unreachable_jobs(self) -> set[TransferJob]:
        """The jobs with unreachable units."""
        return self._unreachable.jobs()

    def counted_done(self) -> list[ChunkAttempt]:
        """Chunks that are done and still count: those of the running timestep."""
        return self._done

    def resume_at(self, step: int) -> None:
        """The scheduler is being restored, in this timestep."""
        self.step = step

    def resume(self, flight: ChunkAttempt, *, done: bool) -> None:
        """Note that a chunk was in flight, or done, when the scheduler was restored."""
        self._left = None
        if flight.step < self.step:
            if not done:
                self._older.add(flight)
        elif done:
            self._done.append(flight)
        else:
            self._open.add(flight)

    def lose(self, host: int) -> None:
        """Note that a host is lost; its chunks in flight end next."""
        self._whole.without(host)
        self._left = None

    def regain(self, host: int) -> None:
        """Note that a lost host is back."""
        server = self._whole.topology.servers[host]
        self._whole.send[host], self._whole.receive[host] = server.send, server.receive
        self._whole.disk[host] = disk_capacity(server)
        self._left = None
        self._unreachable.retry_all()

    # ---- starting chunks

    def advance(self, launch: Launch, events: int) -> None:
        """Let new requests join the timestep, or begin the next one if it is over."""
        self._unreachable.retry_some(idle=not self._open and not self._older)
        if not self._over():
            for job in sorted(self._joining, key=lambda job: job.rank):
                self._join(job, launch)
        self._joining.clear()
        while self._over() and self._begin(launch):
            pass

    @property
    def reservation(self) -> tuple[str, HostChain | None] | None:
        """Timesteps reserve nothing."""
        return None

    def _over(self) -> bool:
        scheduled = len(self._done) + len(self._open)
        return not self._open or len(self._done) >= self._settings.finish_fraction * scheduled - _ROUNDING

    def _join(self, job: TransferJob, launch: Launch) -> None:
        """Plan those chunks of the job that fit into the rest of the running timestep."""
        if not job.waiting:
            return
        if self._left is None:
            self._left = self._graph([*self._open, *self._done, *self._counted()])
        plan = self._planner.plan([self._ask(job)], self._left, self._random)
        for chain in plan.chains:
            launch(job.unit_of(chain.chunk), chain)

    def _begin(self, launch: Launch) -> bool:
        """Begin the next timestep; False: it cannot begin yet, or nothing waits."""
        first = self._queue.first
        unit = None if first is None else first.next_unit()
        if first is None or unit is None:
            return False
        jobs = {job.name: job for job in self._queue}
        stragglers = self._counted() | (self._open if self._settings.stragglers is Stragglers.COUNTED else set())
        left = self._graph(list(stragglers))
        chains = self._plan(list(jobs.values()), left)
        if not any(chain.request == first.name for chain in chains):
            left = self._graph(list(stragglers))
            chain = find(self._planner, unit, left, self._random, TRIES)
            if chain is None:
                if stragglers and find(self._planner, unit, self._whole.copy(), self._random, TRIES):
                    return False
                self._unreachable.add(unit)
                return True
            chains = [chain, *self._plan(list(jobs.values()), left, excluded=unit)]
        self.step += 1
        self._left = left
        self._older |= self._open
        self._open, self._done = set(), []
        for chain in chains:
            launch(jobs[chain.request].unit_of(chain.chunk), chain)
        return True

    def _plan(self, jobs: list[TransferJob], left: Residual, excluded: ChunkUnit | None = None) -> list[HostChain]:
        """The plan of all waiting chunks, without the next chunk of `excluded`, a unit of the first job."""
        if self._joint is not None:
            self._joint.invalidate()
            units = [unit for job in jobs for unit in job.units if unit.waiting]
            candidates = [(unit, min(unit.waiting - (unit is excluded), self._max_chunks(unit.job))) for unit in units]
            planned = self._joint.plan(candidates, jobs, left)
            return [chain._replace(chunk=unit.first) for unit, chain in planned]
        chunk = None if excluded is None else next(excluded.numbers())
        requests = [self._ask(jobs[0], chunk), *map(self._ask, jobs[1:])]
        return list(self._planner.plan([each for each in requests if each.chunks], left, self._random).chains)

    def _ask(self, job: TransferJob, excluded: int | None = None) -> Request:
        """The job's waiting chunks as one request, at most as many as its own host can move at once."""
        limit = self._max_chunks(job)
        numbers, units = list[int](), list[ChunkUnit]()
        for unit in job.units:
            chosen = list(islice((n for n in unit.numbers() if n != excluded), limit - len(numbers)))
            numbers += chosen
            units += [unit] * len(chosen)
        # A suspect that is the only source of one chunk is allowed as a source of all its chunks. Otherwise it would
        # count as a host without them, and could get a second copy.
        avoid = frozenset(job.avoid).difference(*(unit.sources for unit in units))
        sources: tuple[tuple[int, ...], ...] = ()
        if job.kind is not TransferKind.WRITE:
            sources = tuple(tuple(host for host in unit.left if host not in avoid) for unit in units)
        avoid |= job.others
        writer, count = job.planned_writer, len(numbers)
        return Request(job.name, writer, count, job.placement, job.kind, sources, tuple(numbers), avoid)

    def _max_chunks(self, job: TransferJob) -> int:
        """The number of the job's chunks that can start in one timestep at most."""
        own = job.units[0].own if len(job.units) == 1 else None
        return job.waiting if own is None else int(self._whole.counts(own[0])[own[1]])

    def _counted(self) -> set[ChunkAttempt]:
        return set(self._older) if self._settings.stragglers is Stragglers.COUNTED else set()

    def _graph(self, flights: list[ChunkAttempt]) -> Residual:
        """The graph without the units that these chunks use."""
        left = self._whole.copy()
        for flight in flights:
            try:
                left.take(flight.chain)
            except PlanInvalid:  # restored on a smaller network
                _take_rest(left, flight.chain)
        return left


def _take_rest(left: Residual, chain: HostChain) -> None:
    """Take those resources of a chain that are left."""
    for resource, number in demands(chain):
        counts = left.counts(resource)
        counts[number] = max(0, counts[number] - 1)

"""What the simulator asks of a policy, and the writer with threads that HDFS's clients are.

Invariants: a chunk is started again only after it was broken off; a policy never starts more than was asked for.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import Cluster
from scheduler.simulation.fairness import Floats
from scheduler.simulation.scenario import SimulatedJob


class Start(NamedTuple):
    """Move this chunk now: a WRITE from `hosts[0]` through the others, a READ or COPY from `hosts[0]` to `hosts[1]`."""

    request: str
    chunk: int
    hosts: tuple[int, ...]
    kind: TransferKind = TransferKind.WRITE
    attempt: int = 0


class Orders(NamedTuple):
    """What a policy wants now: chunks to start, chunks under way to stop, requests that it gives up."""

    start: tuple[Start, ...] = ()
    stop: tuple[Start, ...] = ()
    gave_up: tuple[str, ...] = ()


class ClusterView(NamedTuple):
    """What can be measured in a cluster: each resource's current rate, and the chunks that each host has open."""

    now_s: float
    rates: Floats
    open_chunks: Sequence[int]


class SchedulingPolicy(Protocol):
    """Decides; the simulator calls. Times are seconds of the simulation."""

    sample_s: float | None
    """How often `observe` is called; None: never."""

    @property
    def plan_at_s(self) -> float | None:
        """When `plan` is to be called next; None: not before something else happens."""
        ...

    def plan(self, now_s: float) -> Orders:
        """What was put off until now."""
        ...

    def submit(self, job: SimulatedJob, now_s: float) -> Orders:
        """A new job."""
        ...

    def done(self, start: Start, now_s: float) -> Orders:
        """A chunk was acknowledged."""
        ...

    def host_lost(self, host: int, broken: Sequence[Start], now_s: float) -> Orders:
        """A host is gone; these chunks were broken off."""
        ...

    def observe(self, view: ClusterView) -> None:
        """The cluster as measured."""
        ...


class AtOnce:
    """A policy that puts nothing off."""

    plan_at_s: float | None = None

    def plan(self, now_s: float) -> Orders:
        """Never called."""
        return Orders()


class PolicyMaker(NamedTuple):
    """A policy's name, and what makes a new one for a run."""

    name: str
    make: Callable[[Cluster, Random], SchedulingPolicy]


READING_THREADS = 4
"""With so many the paper's client reads 95 MB/s (table 8), and recovers its checkpoint."""


class ThreadedClients(AtOnce):
    """Clients as the paper's IOService: each job's chunks in one file per thread, a file's chunks one after the other.

    `place` picks a chunk's way when its turn comes. `threads` are for writing; reads and copies have their own number.
    """

    sample_s: float | None = None

    def __init__(self, cluster: Cluster, threads: int) -> None:
        self.cluster = cluster
        self.lost: set[int] = set()
        self._threads = threads
        self._jobs: dict[str, SimulatedJob] = {}

    def _threads_of(self, job: SimulatedJob) -> int:
        return self._threads if job.kind is TransferKind.WRITE else READING_THREADS

    def place(self, job: SimulatedJob, chunk: int) -> tuple[int, ...]:
        """The way for a chunk; every policy has its own."""
        raise NotImplementedError

    def submit(self, job: SimulatedJob, now_s: float) -> Orders:
        """All threads begin at once."""
        if job.host in self.lost:
            return Orders(gave_up=(job.name,))
        self._jobs[job.name] = job
        return Orders(tuple(self._start(job, chunk) for chunk in range(min(self._threads_of(job), job.chunks))))

    def done(self, start: Start, now_s: float) -> Orders:
        """The thread goes on with its next chunk: files are dealt out like cards."""
        job = self._jobs[start.request]
        chunk = start.chunk + self._threads_of(job)
        return Orders((self._start(job, chunk),) if chunk < job.chunks else ())

    def host_lost(self, host: int, broken: Sequence[Start], now_s: float) -> Orders:
        """What was broken off is written again, elsewhere; a lost writer's job is given up."""
        self.lost.add(host)
        again = tuple(
            self._start(self._jobs[start.request], start.chunk, start.attempt + 1)
            for start in broken
            if self._jobs[start.request].host != host
        )
        return Orders(again, gave_up=tuple(job.name for job in self._jobs.values() if job.host == host))

    def observe(self, view: ClusterView) -> None:
        """Nothing is measured."""

    def _start(self, job: SimulatedJob, chunk: int, attempt: int = 0) -> Start:
        return Start(job.name, chunk, self.place(job, chunk), job.kind, attempt)

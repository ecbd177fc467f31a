"""The interface between simulator and policy, and the multi-threaded client of HDFS.

Invariants: a chunk is started again only after it was interrupted; a policy starts only chunks of submitted jobs.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
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
    """The orders of a policy: chunks to start, chunks in flight to stop, requests that it gives up."""

    start: tuple[Start, ...] = ()
    stop: tuple[Start, ...] = ()
    gave_up: tuple[str, ...] = ()


class ClusterLoad(NamedTuple):
    """The measurable state of a cluster: each resource's current rate, and the number of open chunks of each host."""

    now_s: float
    rates: Floats
    open_chunks: Sequence[int]


class SchedulingPolicy(Protocol):
    """A policy; the simulator calls it. Times are seconds of the simulation."""

    sample_s: float | None
    """The interval of calls of `observe`; None: no calls."""

    @property
    def plan_at_s(self) -> float | None:
        """The time of the next call of `plan`; None: not before the next event."""
        ...

    def plan(self, now_s: float) -> Orders:
        """Plan the postponed events."""
        ...

    def submit(self, job: SimulatedJob, now_s: float) -> Orders:
        """Take a new job."""
        ...

    def done(self, start: Start, now_s: float) -> Orders:
        """Take the ack of a chunk."""
        ...

    def host_lost(self, host: int, broken: Sequence[Start], now_s: float) -> Orders:
        """Take the loss of a host, which interrupted these chunks."""
        ...

    def observe(self, view: ClusterLoad) -> None:
        """Take a measurement of the cluster."""
        ...


class AtOnce:
    """A policy that postpones nothing."""

    plan_at_s: float | None = None

    def plan(self, now_s: float) -> Orders:
        """Never called."""
        return Orders()


class PolicyMaker(NamedTuple):
    """The name of a policy, and the function that makes a new one for a run."""

    name: str
    make: Callable[[SimulatedCluster, Random], SchedulingPolicy]


READING_THREADS = 4
"""With this many threads the paper's client reads 95 MB/s (table 8)."""


class ThreadedClients(AtOnce):
    """Clients like the paper's IOService: one file per thread for a job's chunks, a file's chunks one after the other.

    `place` picks the hosts of a chunk when it starts. `threads`: for writes; reads and copies have READING_THREADS.
    """

    sample_s: float | None = None

    def __init__(self, cluster: SimulatedCluster, threads: int) -> None:
        self.cluster = cluster
        self.lost: set[int] = set()
        self._threads = threads
        self._jobs: dict[str, SimulatedJob] = {}

    def _threads_of(self, job: SimulatedJob) -> int:
        return self._threads if job.kind is TransferKind.WRITE else READING_THREADS

    def place(self, job: SimulatedJob, chunk: int) -> tuple[int, ...]:
        """The hosts of a chunk; defined by each policy."""
        raise NotImplementedError

    def submit(self, job: SimulatedJob, now_s: float) -> Orders:
        """Start the first chunk of each thread."""
        if job.host in self.lost:
            return Orders(gave_up=(job.name,))
        self._jobs[job.name] = job
        return Orders(tuple(self._start(job, chunk) for chunk in range(min(self._threads_of(job), job.chunks))))

    def done(self, start: Start, now_s: float) -> Orders:
        """Start the next chunk of the thread; chunks are dealt to the threads in turn."""
        job = self._jobs[start.request]
        chunk = start.chunk + self._threads_of(job)
        return Orders((self._start(job, chunk),) if chunk < job.chunks else ())

    def host_lost(self, host: int, broken: Sequence[Start], now_s: float) -> Orders:
        """Start the interrupted chunks again on other hosts; give up the jobs of a lost writer."""
        self.lost.add(host)
        again = tuple(
            self._start(self._jobs[start.request], start.chunk, start.attempt + 1)
            for start in broken
            if self._jobs[start.request].host != host
        )
        return Orders(again, gave_up=tuple(job.name for job in self._jobs.values() if job.host == host))

    def observe(self, view: ClusterLoad) -> None:
        """Ignore measurements."""

    def _start(self, job: SimulatedJob, chunk: int, attempt: int = 0) -> Start:
        return Start(job.name, chunk, self.place(job, chunk), job.kind, attempt)

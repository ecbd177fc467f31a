"""The input of a simulation: jobs with their hosts, sizes and times, and the hosts that fail.

Invariants: names of jobs are unique; a job's chunks are all of the topology's chunk size; times are seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scheduler.errors import RequestError
from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A checkpoint to write, to read back (`sources[i]`: hosts that have chunk i), or chunks to copy elsewhere.

    `host` writes or reads; for a copy it is -1.
    """

    name: str
    host: int
    chunks: int
    at_s: float = 0.0
    replicas: int = 3
    kind: TransferKind = TransferKind.WRITE
    sources: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Loss:
    """A host is lost at `at_s`; the scheduler is notified `notice_s` later and writes the host's chunks again."""

    host: int
    at_s: float
    notice_s: float = 3.0


@dataclass(frozen=True)
class Scenario:
    """A cluster, jobs, and hosts that fail.

    `memory_full`: every host's memory for written data is full from the start. `trace`: keep every change of rates.
    """

    cluster: SimulatedCluster
    jobs: tuple[SimulatedJob, ...]
    losses: tuple[Loss, ...] = ()
    memory_full: bool = False
    trace: bool = False

    def __post_init__(self) -> None:
        names = [job.name for job in self.jobs]
        if len(set(names)) != len(names):
            raise RequestError("jobs", "two have the same name: names must be unique")
        for job in self.jobs:
            lowest = -1 if job.kind is TransferKind.COPY else 0
            if not lowest <= job.host < self.cluster.hosts:
                raise RequestError("host", f"{job.host} of job {job.name!r}: hosts are 0 to {self.cluster.hosts - 1}")
            if job.chunks < 1:
                raise RequestError("chunks", f"{job.chunks} of job {job.name!r}: must be 1 or more")
            if job.kind is not TransferKind.WRITE and len(job.sources) != job.chunks:
                raise RequestError("sources", f"job {job.name!r}: {job.chunks} chunks, {len(job.sources)} sources")


def spread_writers(cluster: SimulatedCluster, writers: int, random: Random) -> list[int]:
    """Draw hosts in random order, spread over the racks as evenly as their sizes allow. Raises RequestError."""
    queues = [list(members) for members in cluster.topology.members if members]
    for queue in queues:
        random.shuffle(queue)
    chosen: list[int] = []
    while len(chosen) < writers:
        before = len(chosen)
        for queue in queues:
            if queue and len(chosen) < writers:
                chosen.append(queue.pop())
        if len(chosen) == before:
            raise RequestError("writers", f"{writers} of {before} hosts: one checkpoint per host at a time")
    random.shuffle(chosen)
    return chosen


def checkpoints(
    cluster: SimulatedCluster,
    hosts: Sequence[int],
    chunks: int,
    *,
    replicas: int = 3,
    at_s: Sequence[float] | None = None,
) -> tuple[SimulatedJob, ...]:
    """One checkpoint of `chunks` chunks per host, all at the same time or at the given times."""
    times = [0.0] * len(hosts) if at_s is None else at_s
    servers = cluster.topology.servers
    return tuple(
        SimulatedJob(f"checkpoint {number} of {servers[host].name}", host, chunks, time, replicas)
        for number, (host, time) in enumerate(zip(hosts, times, strict=True), 1)
    )

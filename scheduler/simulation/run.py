"""The result of a simulated run: the times of each chunk and request, and the bytes over each resource.

Invariants: IO is the time from a request's first "go" to its last ack, which is our reading of the paper; the time from
the submission is always given too. COMP is the time from the first submission to the last ack.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.fairness import Floats


class ChunkRun(NamedTuple):
    """One attempt to move a chunk: its hosts and times. `acked` False: it was interrupted at `end_s`."""

    request: str
    chunk: int
    hosts: tuple[int, ...]
    kind: TransferKind
    start_s: float
    end_s: float
    acked: bool = True


class RequestRun(NamedTuple):
    """A request's times: submission, first go, last ack."""

    name: str
    host: int
    kind: TransferKind
    submitted_s: float
    go_s: float
    last_ack_s: float

    @property
    def io_s(self) -> float:
        """The time from the first go to the last ack."""
        return self.last_ack_s - self.go_s

    @property
    def response_s(self) -> float:
        """The time from the submission to the last ack."""
        return self.last_ack_s - self.submitted_s


class TracePoint(NamedTuple):
    """The rate of each resource from this time on, and the written data in each host's memory."""

    time_s: float
    rates: Floats
    cached: Floats


@dataclass(frozen=True)
class SimulatedRun:
    """A finished run. `carried`: bytes over each resource."""

    policy: str
    seed: int
    requests: tuple[RequestRun, ...]
    chunks: tuple[ChunkRun, ...]
    carried: Floats
    trace: tuple[TracePoint, ...] = ()
    gave_up: tuple[str, ...] = ()

    def of(self, kind: TransferKind) -> list[RequestRun]:
        """The requests of one kind."""
        return [request for request in self.requests if request.kind is kind]

    def io_s(self, kind: TransferKind = TransferKind.WRITE) -> float:
        """The mean time of a request from its first go."""
        return fmean(request.io_s for request in self.of(kind))

    def response_s(self, kind: TransferKind = TransferKind.WRITE) -> float:
        """The mean time of a request from its submission."""
        return fmean(request.response_s for request in self.of(kind))

    def comp_s(self, kind: TransferKind = TransferKind.WRITE) -> float:
        """The time from the first submission to the last ack."""
        requests = self.of(kind)
        return max(request.last_ack_s for request in requests) - min(request.submitted_s for request in requests)


class LowerBounds(NamedTuple):
    """Lower bounds for every scheduler, in seconds: for all requests (disks, racks, writers), and for a single one."""

    disks_s: float
    racks_s: float
    writers_s: float
    request_s: float

    @property
    def comp_s(self) -> float:
        """The largest of the three for all requests."""
        return max(self.disks_s, self.racks_s, self.writers_s)


def bounds(cluster: SimulatedCluster, writers: list[int], chunks: int, replicas: int = 3) -> LowerBounds:
    """Lower bounds for `writers` that write `chunks` chunks each at once, at least one replica in another rack.

    Disks: all disks at the best total of table 8 for any number of writers; filling the caches takes no time. Racks:
    the bytes that must leave the writers' racks, over the links out of them. Writers: the slower of their link and
    client. A single request: the bound of its writer.
    """
    size = cluster.topology.chunk_bytes
    physics = cluster.physics
    total = len(writers) * chunks * replicas * size
    best = float(physics.disk_write.totals.max()) * float(cluster.disk_factor.sum())
    racks = cluster.topology.racks
    out = dict.fromkeys(racks, 0.0)
    if replicas > 1 and len(racks) > 1:
        for writer in writers:
            out[cluster.topology.rack_of[writer]] += chunks * size
    leaving = {
        rack: sum(float(cluster.capacity[cluster.link(hop.link)]) for hop in cluster.topology.hops[rack])
        for rack in racks
    }
    racks_s = max((out[rack] / leaving[rack] for rack in racks if out[rack]), default=0.0)
    client = float(physics.client_write.totals.max())
    writers_s = max(chunks * size / min(client, float(cluster.capacity[cluster.up(writer)])) for writer in writers)
    disks_s = max(0.0, total - cluster.hosts * physics.cache_bytes) / best
    return LowerBounds(disks_s, racks_s, writers_s, writers_s)

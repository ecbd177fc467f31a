"""What a simulated run leaves: when each chunk and each request went and was acknowledged, and what each part carried.

Invariants: IO counts from a request's first "go" to its last ack, the paper's as we read it; the time from its
submission is always beside it. COMP is from the first submission to the last ack.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import Cluster
from scheduler.simulation.fairness import Floats


class ChunkRun(NamedTuple):
    """One attempt to move a chunk: the way it took and when. `acked` False: it was broken off, at `end_s`."""

    request: str
    chunk: int
    hosts: tuple[int, ...]
    kind: TransferKind
    start_s: float
    end_s: float
    acked: bool = True


class RequestRun(NamedTuple):
    """A request's times: submitted, first chunk on its way, last ack."""

    name: str
    host: int
    kind: TransferKind
    submitted_s: float
    go_s: float
    last_ack_s: float

    @property
    def io_s(self) -> float:
        """From "go" to the last ack."""
        return self.last_ack_s - self.go_s

    @property
    def response_s(self) -> float:
        """From the submission to the last ack."""
        return self.last_ack_s - self.submitted_s


class TracePoint(NamedTuple):
    """From this time on, what each resource carries, and the written data that each host's memory holds."""

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
        """The mean time of a request, from "go"."""
        return fmean(request.io_s for request in self.of(kind))

    def response_s(self, kind: TransferKind = TransferKind.WRITE) -> float:
        """The mean time of a request, from its submission."""
        return fmean(request.response_s for request in self.of(kind))

    def comp_s(self, kind: TransferKind = TransferKind.WRITE) -> float:
        """From the first submission to the last ack."""
        requests = self.of(kind)
        return max(request.last_ack_s for request in requests) - min(request.submitted_s for request in requests)


class LowerBounds(NamedTuple):
    """What no scheduler can beat, in seconds: for all requests (disks, racks, writers), and for one alone (request)."""

    disks_s: float
    racks_s: float
    writers_s: float
    request_s: float

    @property
    def comp_s(self) -> float:
        """The largest of the three for all requests."""
        return max(self.disks_s, self.racks_s, self.writers_s)


def bounds(cluster: Cluster, writers: list[int], chunks: int, replicas: int = 3) -> LowerBounds:
    """Lower bounds for `writers` that write `chunks` chunks each at once, at least one replica in another rack.

    Disks: all at the best total that table 8 has for any number of writers, their caches filled for nothing. Racks:
    what leaves the writers' racks at least, over the links out of them. Writers: their link or client, whichever is
    slower. A request alone: the same, by its writer.
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

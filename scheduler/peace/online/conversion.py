"""Conversion of jobs and chains to records and back: hosts and links have numbers inside, names outside.

Invariants:
* `chain_of(chunk_record(flight))` is the flight's chain, as long as the topology still has its hosts and links where
  they were.
"""

from itertools import pairwise

from scheduler.peace.online.jobs import ChunkAttempt, TransferJob
from scheduler.peace.online.records import ChunkRecord, ChunkStart, RequestRecord
from scheduler.peace.placement import placement_texts
from scheduler.peace.plan import HostChain, TransferKind
from scheduler.topology import Topology


def request_record(topology: Topology, job: TransferJob) -> RequestRecord:
    """The current record of a request."""
    names = topology.servers
    return RequestRecord(
        name=job.name,
        sequence=job.sequence,
        submitted_ms=job.submitted_ms,
        writer=job.writer_name,
        chunks=job.chunks,
        placement=tuple(placement_texts(job.placement)),
        priority=job.priority,
        kind=job.kind.value,
        sources=job.source_names,
        state=job.state.value,
        reason=job.reason,
        avoid=tuple(names[host].name for host in sorted(job.avoid)),
    )


def chunk_record(topology: Topology, flight: ChunkAttempt, since_ms: int) -> ChunkRecord:
    """The record of the flight's chunk, which has been in its state since `since_ms`."""
    links = topology.links
    return ChunkRecord(
        request=flight.job.name,
        chunk=flight.chunk,
        attempt=flight.attempt,
        state=flight.state.value,
        hosts=tuple(topology.servers[host].name for host in flight.chain.hosts),
        routes=tuple(tuple((links[n].source, links[n].target) for n in route) for route in flight.chain.routes),
        since_ms=since_ms,
        step=flight.step,
    )


def go_of(topology: Topology, flight: ChunkAttempt) -> ChunkStart:
    """The start, with names, for the writer."""
    hosts = tuple(topology.servers[host].name for host in flight.chain.hosts)
    return ChunkStart(flight.job.name, flight.chunk, flight.attempt, hosts, flight.chain.kind)


def chain_of(topology: Topology, record: ChunkRecord, kind: TransferKind) -> HostChain | None:
    """The chain of a stored chunk; None if a host or link of it is no longer in the topology, or a host is in another
    rack than its routes lead to.
    """
    hosts = [topology.index.get(name, -1) for name in record.hosts]
    routes = [[topology.link_index.get((source, target), -1) for source, target in route] for route in record.routes]
    if -1 in hosts or any(-1 in route for route in routes):
        return None
    ways = [(route[0][0], route[-1][1]) if route else None for route in record.routes]
    racks = [topology.servers[host].rack for host in hosts]
    if [None if left == entered else (left, entered) for left, entered in pairwise(racks)] != ways:
        return None
    return HostChain(record.request, record.chunk, tuple(hosts), tuple(map(tuple, routes)), kind)

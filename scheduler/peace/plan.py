"""Requests, chains, plans, and the capacity that is left: what all planners share.

Invariants:
* A chain takes one unit of every resource on its way, and gives back exactly what it took.
* Hosts, switches and links are the topology's numbers.
* `Residual` never goes below zero: taking what is not there raises PlanInvalid and takes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from scheduler.errors import PlacementError, PlanInvalid, RequestError
from scheduler.peace.placement import Placement, Relation, check_placement
from scheduler.topology import Topology, disk_capacity

Counts = npt.NDArray[np.int32]


class TransferKind(StrEnum):
    """What a chain moves."""

    WRITE = "write"  # from the writer through all replicas
    READ = "read"  # recovery: from a host that has the chunk to the one that asks
    COPY = "copy"  # re-replication: from a host that has the chunk to a new one


@dataclass(frozen=True, slots=True)
class Request:
    """(w, r, k) of Algorithm 1: `writer` wants `chunks` chunks on as many replicas as `placement` has entries.

    READ: `writer` is the reader, `sources[i]` the hosts that have chunk i, `placement` is empty. COPY: `writer` is not
    used (-1), `sources[i]` the hosts that still have chunk i, `placement` has one entry, whose rules speak of
    position 0, the source; the new host is never one of the sources. `numbers` are the chunks' own numbers, if they
    are not 0 … chunks-1; `avoid` are hosts that shall not be chosen.
    """

    name: str
    writer: int
    chunks: int
    placement: Placement
    kind: TransferKind = TransferKind.WRITE
    sources: tuple[tuple[int, ...], ...] = ()
    numbers: tuple[int, ...] = ()
    avoid: frozenset[int] = frozenset()

    def number(self, chunk: int) -> int:
        """The own number of the request's chunk at place `chunk`."""
        return self.numbers[chunk] if self.numbers else chunk

    def rest(self, done: int) -> "Request":
        """What is left after the first `done` chunks."""
        left = range(done, self.chunks)
        return replace(
            self,
            chunks=self.chunks - done,
            sources=self.sources[done:],
            numbers=tuple(self.number(chunk) for chunk in left),
        )


def check_request(topology: Topology, request: Request) -> None:
    """Raise RequestError, naming the field, for what the topology does not have or what contradicts itself."""
    hosts, sources = range(len(topology.servers)), request.sources
    if request.chunks < 0:
        raise RequestError("chunks", f"{request.chunks} of {request.name!r}: must be 0 or more")
    if request.writer not in hosts and (request.kind is not TransferKind.COPY or request.writer != -1):
        raise RequestError("writer", f"{request.writer} of {request.name!r}: hosts are 0 to {hosts[-1]}")
    if request.numbers and len(set(request.numbers)) != request.chunks:
        raise RequestError("numbers", f"{request.name!r} needs {request.chunks} different ones, or none at all")
    if request.kind is TransferKind.WRITE:
        if sources:
            raise RequestError("sources", f"{request.name!r} writes: what it writes comes from the writer")
    elif len(sources) != request.chunks or not all(sources):
        raise RequestError("sources", f"{request.name!r} needs one or more hosts for each of {request.chunks} chunks")
    for host in (*(host for those in sources for host in those), *request.avoid):
        if host not in hosts:
            field = "avoid" if host in request.avoid else "sources"
            raise RequestError(field, f"{host} of {request.name!r}: hosts are 0 to {hosts[-1]}")
    wanted = {TransferKind.READ: (0, "none"), TransferKind.COPY: (1, "one entry")}.get(request.kind)
    if wanted is not None and len(request.placement) != wanted[0]:
        raise RequestError("placement", f"a {request.kind} needs {wanted[1]}, {request.name!r} has {request.placement}")
    if request.placement or request.kind is TransferKind.WRITE:
        if request.kind is TransferKind.COPY and any(rule.relation is Relation.SAME_HOST for rule in request.placement[0]):
            raise RequestError("placement", f"a copy goes to another host, {request.name!r} says same-host")
        try:
            check_placement(request.placement)
        except PlacementError as error:
            raise RequestError("placement", f"of {request.name!r}: {error}") from error


class Chain(NamedTuple):
    """How one chunk travels: `hosts[0]` sends to `hosts[1]`, which forwards to `hosts[2]`, and so on.

    `routes[i]` are the links between switches from `hosts[i]` to `hosts[i + 1]`, in order.
    """

    request: str
    chunk: int
    hosts: tuple[int, ...]
    routes: tuple[tuple[int, ...], ...]
    kind: TransferKind = TransferKind.WRITE


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Who writes what where in one timestep, and what must wait (requests with the chunks left over)."""

    chains: tuple[Chain, ...] = ()
    waiting: tuple[Request, ...] = field(default=())


class Resource(StrEnum):
    """What a chain uses one unit of."""

    SEND = "send"
    RECEIVE = "receive"
    DISK = "disk"
    LINK = "link"


def demands(chain: Chain) -> Iterator[tuple[Resource, int]]:
    """Every unit that a chain takes: (resource, number of the host or link)."""
    hosts = chain.hosts
    if chain.kind is not TransferKind.WRITE:
        yield Resource.DISK, hosts[0]  # the chunk is read there
    for place, (source, target) in enumerate(pairwise(hosts)):
        if source != target:
            yield Resource.SEND, source
            for link in chain.routes[place]:
                yield Resource.LINK, link
            yield Resource.RECEIVE, target
        if chain.kind is not TransferKind.READ:
            yield Resource.DISK, target


class Residual:
    """Remaining capacity, without reverse arcs: a later path never undoes a chain that is already planned."""

    __slots__ = ("disk", "link", "receive", "send", "topology")

    def __init__(self, topology: Topology, send: Counts, receive: Counts, disk: Counts, link: Counts) -> None:
        self.topology = topology
        self.send = send
        self.receive = receive
        self.disk = disk
        self.link = link

    @classmethod
    def full(cls, topology: Topology) -> "Residual":
        """All capacity of a network."""
        servers = topology.servers
        return cls(
            topology,
            np.array([server.send for server in servers], np.int32),
            np.array([server.receive for server in servers], np.int32),
            np.array([disk_capacity(server) for server in servers], np.int32),
            np.array([link.capacity for link in topology.links], np.int32),
        )

    def copy(self) -> "Residual":
        """An independent copy."""
        return Residual(self.topology, self.send.copy(), self.receive.copy(), self.disk.copy(), self.link.copy())

    def become(self, other: "Residual") -> None:
        """Have the same left as another of this network, in place: what shares arrays with this one sees it too."""
        self.send[:], self.receive[:] = other.send, other.receive
        self.disk[:], self.link[:] = other.disk, other.link

    def counts(self, resource: Resource) -> Counts:
        """What is left of one kind of resource, by number."""
        match resource:
            case Resource.SEND:
                return self.send
            case Resource.RECEIVE:
                return self.receive
            case Resource.DISK:
                return self.disk
            case Resource.LINK:
                return self.link

    def take(self, chain: Chain) -> None:
        """Use what a chain needs. Raises PlanInvalid, and takes nothing, if something of it is not there."""
        taken: list[tuple[Counts, int]] = []
        for resource, number in demands(chain):
            counts = self.counts(resource)
            if counts[number] < 1:
                for back, place in taken:
                    back[place] += 1
                raise PlanInvalid(f"chain {chain.hosts} of {chain.request!r}: no {resource} left at {number}")
            counts[number] -= 1
            taken.append((counts, number))

    def give(self, chain: Chain) -> None:
        """Give back what a chain took."""
        for resource, number in demands(chain):
            self.counts(resource)[number] += 1

    def without(self, host: int) -> None:
        """A host is gone: nothing is sent from it or to it any more."""
        self.send[host] = self.receive[host] = self.disk[host] = 0


class Planner(Protocol):
    """One way to plan. Planners hold what they prepared for one topology, and no state between calls."""

    name: str

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> TransferPlan:
        """Plan as much as fits into `residual`, first come first served, and take it from there."""
        ...

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> Chain | None:
        """One chunk's chain if there is one, taken from `residual`; else None and nothing is taken."""
        ...

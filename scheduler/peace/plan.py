"""Requests, chains, plans and residual capacity: the data that all planners share.

Invariants:
* A chain takes one unit of every resource on its way, and gives back exactly what it took.
* Hosts, switches and links are the topology's numbers.
* `Residual` never goes below zero: a chain that does not fit raises PlanInvalid, and nothing is taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from scheduler.errors import PlacementError, PlanInvalid, RequestError
from scheduler.peace.placement import Placement, Relation, check_placement
from scheduler.topology import Topology, disk_capacity

Counts = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]


class TransferKind(StrEnum):
    """The purpose of a transfer."""

    WRITE = "write"  # from the writer through all replicas
    READ = "read"  # recovery: from a host that has the chunk to the reader
    COPY = "copy"  # re-replication: from a host that has the chunk to a new one


@dataclass(frozen=True, slots=True)
class Request:
    """(w, r, k) of Algorithm 1: `writer` writes `chunks` chunks; `placement` has one entry for each replica.

    READ: `writer` is the reader, `sources[i]` the hosts that have chunk i, `placement` is empty. COPY: `writer` is not
    used (-1), `sources[i]` the hosts that still have chunk i, `placement` has one entry, whose rules refer to
    position 0, the source; the new host is never one of the sources. `numbers` are the numbers of the chunks, if they
    are not 0 … chunks-1; hosts in `avoid` are not chosen.
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
        """The number of the chunk at position `chunk` of the request."""
        return self.numbers[chunk] if self.numbers else chunk

    def rest(self, done: int) -> "Request":
        """The request without its first `done` chunks."""
        left = range(done, self.chunks)
        return replace(
            self,
            chunks=self.chunks - done,
            sources=self.sources[done:],
            numbers=tuple(self.number(chunk) for chunk in left),
        )


def check_request(topology: Topology, request: Request) -> None:
    """Raise RequestError, naming the field, if the request contradicts itself or the topology."""
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
        if request.kind is TransferKind.COPY and any(
            rule.relation is Relation.SAME_HOST for rule in request.placement[0]
        ):
            raise RequestError("placement", f"a copy goes to another host, {request.name!r} says same-host")
        try:
            check_placement(request.placement)
        except PlacementError as error:
            raise RequestError("placement", f"of {request.name!r}: {error}") from error


class HostChain(NamedTuple):
    """The path of one chunk: `hosts[0]` sends to `hosts[1]`, which forwards to `hosts[2]`, and so on.

    `routes[i]` are the links between switches from `hosts[i]` to `hosts[i + 1]`, in order.
    """

    request: str
    chunk: int
    hosts: tuple[int, ...]
    routes: tuple[tuple[int, ...], ...]
    kind: TransferKind = TransferKind.WRITE


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The chains of one timestep, and the requests that must wait, each with its remaining chunks."""

    chains: tuple[HostChain, ...] = ()
    waiting: tuple[Request, ...] = field(default=())


class Resource(StrEnum):
    """A kind of capacity; a chain uses units of it."""

    SEND = "send"
    RECEIVE = "receive"
    DISK = "disk"
    LINK = "link"


def demands(chain: HostChain) -> Iterator[tuple[Resource, int]]:
    """Every unit that a chain takes, as (resource, number of the host or link)."""
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
    """Remaining capacity. It has no reverse arcs: a later path never undoes a chain that is already planned."""

    __slots__ = ("disk", "link", "receive", "send", "topology")

    def __init__(self, topology: Topology, send: Counts, receive: Counts, disk: Counts, link: Counts) -> None:
        self.topology = topology
        self.send = send
        self.receive = receive
        self.disk = disk
        self.link = link

    @classmethod
    def full(cls, topology: Topology) -> "Residual":
        """The whole capacity of a network."""
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
        """Copy the numbers of another residual of this network, in place: objects that share the arrays see them."""
        self.send[:], self.receive[:] = other.send, other.receive
        self.disk[:], self.link[:] = other.disk, other.link

    def counts(self, resource: Resource) -> Counts:
        """The remaining units of one kind of resource, by number."""
        match resource:
            case Resource.SEND:
                return self.send
            case Resource.RECEIVE:
                return self.receive
            case Resource.DISK:
                return self.disk
            case Resource.LINK:
                return self.link

    def take(self, chain: HostChain) -> None:
        """Take the units of a chain. Raises PlanInvalid, and takes nothing, if a unit is missing."""
        taken: list[tuple[Counts, int]] = []
        for resource, number in demands(chain):
            counts = self.counts(resource)
            if counts[number] < 1:
                for back, place in taken:
                    back[place] += 1
                raise PlanInvalid(f"chain {chain.hosts} of {chain.request!r}: no {resource} left at {number}")
            counts[number] -= 1
            taken.append((counts, number))

    def give(self, chain: HostChain) -> None:
        """Give the units of a chain back."""
        for resource, number in demands(chain):
            self.counts(resource)[number] += 1

    def without(self, host: int) -> None:
        """Take all capacity of a host that is lost."""
        self.send[host] = self.receive[host] = self.disk[host] = 0


class Planner(Protocol):
    """A planning algorithm, prepared for one topology. A plan depends on the arguments of the call alone."""

    name: str

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> TransferPlan:
        """Plan as much as fits into `residual`, first come first served, and take it from there."""
        ...

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> HostChain | None:
        """The chain of one chunk, taken from `residual`; None, and nothing taken, if there is none."""
        ...


@runtime_checkable
class JointPlanning(Planner, Protocol):
    """A planner that sees all waiting chunks at once, and a model of how many of them fit into some timesteps.

    What `demand` returns is the planner's own, and goes to its other methods only.
    """

    def demand(self, requests: Sequence[Request]) -> Any | None:
        """The requests for `max_chunks` and `begins`; None if the model does not cover them all."""
        ...

    def max_chunks(self, demand: Any, whole: Residual, timesteps: int) -> int:
        """The largest number of chunks that the model allows in `timesteps` timesteps together."""
        ...

    def begins(self, demand: Any, whole: Residual) -> Numbers:
        """For each switch, how many chunks its hosts can begin in one timestep if no other hosts begin any."""
        ...

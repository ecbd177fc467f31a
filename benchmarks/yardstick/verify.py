"""The one verifier: whether a plan keeps every promise that a plan makes, whoever made it.

Invariants:
* Independent of the planners: units are counted anew from chains and routes, placement rules are read anew.
* The first broken promise is reported, with the chain that breaks it, by name.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NoReturn

from scheduler.errors import PlanInvalid, RequestError
from scheduler.peace.placement import PlacementRule, Relation
from scheduler.peace.plan import Counts, HostChain, Request, Residual, TransferKind, TransferPlan
from scheduler.topology import Topology


class Promise(StrEnum):
    """What holds for every plan; messages of PlanInvalid begin with one of these."""

    KNOWN_REQUEST = "known request"  # every chain belongs to a request, and moves what that asks for
    OWN_CHUNK = "own chunk"  # the chunk's number is one of its request's
    CHUNK_ONCE = "chunk once"  # no chunk is planned twice
    ALL_REPLICAS = "all replicas"  # a chunk is planned with all its replicas or not at all
    WRITER = "writer"  # a chain starts at the writer; a read ends at the reader
    SOURCE = "source"  # what is read or copied lies on the host that it is taken from
    DISTINCT_HOSTS = "distinct hosts"  # no host holds a chunk twice
    PLACEMENT = "placement"  # every rule of every replica
    AVOIDED = "avoided hosts"  # hosts that the request wants avoided are not chosen
    ROUTE = "route"  # links lead from each host's switch to the next host's, no link twice
    CAPACITY = "capacity"  # nothing is used beyond what was left before
    COMPLETE = "complete"  # what is planned and what waits is what was asked for


def verify(topology: Topology, requests: Sequence[Request], plan: TransferPlan, before: Residual) -> None:
    """Check `plan` for `requests` against the capacity `before` it. Raises PlanInvalid that names chain and promise.

    Promises: the members of `Promise`. Source: SGuard, section 5.
    """
    by_name = {request.name: request for request in requests}
    if len(by_name) != len(requests):
        twice = next(name for name, count in Counter(request.name for request in requests).items() if count > 1)
        raise RequestError("name", f"{twice!r} appears twice: requests that are planned together need unique names")
    places = {request.name: {request.number(chunk): chunk for chunk in range(request.chunks)} for request in requests}
    planned: set[tuple[str, int]] = set()
    for chain in plan.chains:
        _check_chain(topology, by_name, places, planned, chain)
    _check_capacity(topology, plan.chains, before)
    _check_complete(by_name, places, planned, plan.waiting)


def _check_chain(
    topology: Topology,
    by_name: dict[str, Request],
    places: dict[str, dict[int, int]],
    planned: set[tuple[str, int]],
    chain: HostChain,
) -> None:
    request = by_name.get(chain.request)
    if request is None:
        _broken(topology, Promise.KNOWN_REQUEST, chain, "no request has that name")
    if chain.kind is not request.kind:
        _broken(topology, Promise.KNOWN_REQUEST, chain, f"a {chain.kind}, but the request is a {request.kind}")
    chunk = places[chain.request].get(chain.chunk)
    if chunk is None:
        _broken(topology, Promise.OWN_CHUNK, chain, f"the request's {request.chunks} chunks have other numbers")
    if (chain.request, chain.chunk) in planned:
        _broken(topology, Promise.CHUNK_ONCE, chain, "another chain has this chunk")
    planned.add((chain.request, chain.chunk))
    wanted = 2 if request.kind is TransferKind.READ else 1 + len(request.placement)
    if len(chain.hosts) != wanted or len(chain.routes) != wanted - 1:
        _broken(
            topology,
            Promise.ALL_REPLICAS,
            chain,
            f"{len(chain.hosts)} hosts and {len(chain.routes)} routes where {wanted} and {wanted - 1} belong",
        )
    for host in chain.hosts:
        if not 0 <= host < len(topology.servers):
            _broken(topology, Promise.ROUTE, chain, f"there is no host {host}")
    _check_ends(topology, request, chunk, chain)
    _check_distinct(topology, request, chunk, chain)
    _check_placement(topology, request, chain)
    _check_avoided(topology, request, chain)
    for place in range(len(chain.hosts) - 1):
        _check_route(topology, chain, place)


def _check_ends(topology: Topology, request: Request, chunk: int, chain: HostChain) -> None:
    """The writer writes, the reader reads, and a source has what it gives."""
    if request.kind is TransferKind.WRITE and chain.hosts[0] != request.writer:
        _broken(topology, Promise.WRITER, chain, f"the writer is {_host(topology, request.writer)}")
    if request.kind is TransferKind.READ and chain.hosts[-1] != request.writer:
        _broken(topology, Promise.WRITER, chain, f"the reader is {_host(topology, request.writer)}")
    if request.kind is not TransferKind.WRITE and chain.hosts[0] not in request.sources[chunk]:
        _broken(topology, Promise.SOURCE, chain, f"{_host(topology, chain.hosts[0])} does not have the chunk")


def _check_distinct(topology: Topology, request: Request, chunk: int, chain: HostChain) -> None:
    """No host twice; only a replica that must be on the writer, and a reader's own copy, are on the host before."""
    hosts = chain.hosts
    if request.kind is TransferKind.COPY:
        if hosts[1] in request.sources[chunk]:
            _broken(topology, Promise.DISTINCT_HOSTS, chain, f"{_host(topology, hosts[1])} has the chunk already")
        return
    if request.kind is TransferKind.READ:
        return  # a reader may have the chunk itself
    local = any(rule.relation is Relation.SAME_HOST for rule in request.placement[0]) if request.placement else False
    counted = hosts[1:] if local and hosts[0] == hosts[1] else hosts
    for host, times in Counter(counted).items():
        if times > 1:
            _broken(topology, Promise.DISTINCT_HOSTS, chain, f"{_host(topology, host)} is in it {times} times")


def _check_placement(topology: Topology, request: Request, chain: HostChain) -> None:
    for replica, rules in enumerate(request.placement, 1):
        for rule in rules:
            if not _holds(topology, rule, chain.hosts, chain.hosts[replica]):
                name = _host(topology, chain.hosts[replica])
                _broken(topology, Promise.PLACEMENT, chain, f"replica {replica} on {name} must be {rule}")


def _holds(topology: Topology, rule: PlacementRule, hosts: tuple[int, ...], host: int) -> bool:
    other = hosts[rule.of]
    same_rack = topology.servers[host].rack == topology.servers[other].rack
    match rule.relation:
        case Relation.SAME_HOST:
            return host == other
        case Relation.OTHER_HOST:
            return host != other
        case Relation.SAME_RACK:
            return same_rack
        case Relation.OTHER_RACK:
            return not same_rack


def _check_avoided(topology: Topology, request: Request, chain: HostChain) -> None:
    """What was chosen: replicas of a write, the source of a read, both ends of a copy."""
    chosen = {TransferKind.WRITE: chain.hosts[1:], TransferKind.READ: chain.hosts[:1], TransferKind.COPY: chain.hosts}[
        request.kind
    ]
    for host in chosen:
        if host in request.avoid:
            _broken(topology, Promise.AVOIDED, chain, f"{_host(topology, host)} was to be avoided")


def _check_route(topology: Topology, chain: HostChain, place: int) -> None:
    """The links from one host of the chain to the next connect their switches, one after the other."""
    source, target = (topology.servers[host] for host in chain.hosts[place : place + 2])
    here, step = source.rack, f"from {source.name!r} to {target.name!r}"
    route = chain.routes[place]
    if len(set(route)) != len(route):
        _broken(topology, Promise.ROUTE, chain, f"{step}: a link twice")
    if source is target and route:
        _broken(topology, Promise.ROUTE, chain, f"{step}: links, but it is one host")
    for number in route:
        if not 0 <= number < len(topology.links):
            _broken(topology, Promise.ROUTE, chain, f"{step}: there is no link {number}")
        link = topology.links[number]
        if link.source != here:
            _broken(topology, Promise.ROUTE, chain, f"{step}: the link {link.source!r} to {link.target!r} at {here!r}")
        here = link.target
    if here != target.rack:
        _broken(topology, Promise.ROUTE, chain, f"{step}: ends at {here!r}, not at {target.rack!r}")


def _check_capacity(topology: Topology, chains: Sequence[HostChain], before: Residual) -> None:
    """Units of every send, receive, disk and link, counted chain by chain."""
    send: Counter[int] = Counter()
    receive: Counter[int] = Counter()
    disk: Counter[int] = Counter()
    link: Counter[int] = Counter()
    for chain in chains:
        if chain.kind in (TransferKind.READ, TransferKind.COPY):
            disk[chain.hosts[0]] += 1
        for (source, target), route in zip(pairwise(chain.hosts), chain.routes, strict=True):
            if source != target:
                send[source] += 1
                receive[target] += 1
                link.update(route)
            if chain.kind in (TransferKind.WRITE, TransferKind.COPY):
                disk[target] += 1
        for host in chain.hosts:
            for name, used, left in (
                ("send", send, before.send),
                ("receive", receive, before.receive),
                ("disk", disk, before.disk),
            ):
                _check_within(topology, chain, f"{name} of {_host(topology, host)}", used[host], left, host)
        for route in chain.routes:
            for number in route:
                ends = topology.links[number]
                what = f"link {ends.source!r} to {ends.target!r}"
                _check_within(topology, chain, what, link[number], before.link, number)


def _check_within(topology: Topology, chain: HostChain, what: str, used: int, left: Counts, number: int) -> None:
    if used > left[number]:
        _broken(topology, Promise.CAPACITY, chain, f"{what}: {used} used, {left[number]} left before")


def _check_complete(
    by_name: dict[str, Request],
    places: dict[str, dict[int, int]],
    planned: set[tuple[str, int]],
    waiting: Sequence[Request],
) -> None:
    """Planned and waiting chunks together are the requested ones, and what waits is otherwise unchanged."""
    seen = set(planned)
    for rest in waiting:
        request = by_name.get(rest.name)
        if request is None:
            raise PlanInvalid(f"{Promise.COMPLETE}: {rest.name!r} waits, but was not requested")
        same = ("writer", "placement", "kind", "avoid")
        changed = [field for field in same if getattr(rest, field) != getattr(request, field)]
        if changed:
            raise PlanInvalid(f"{Promise.COMPLETE}: {rest.name!r} waits with another {changed[0]} than requested")
        for chunk in range(rest.chunks):
            number = rest.number(chunk)
            place = places[rest.name].get(number)
            if place is None or (rest.name, number) in seen:
                why = "is planned or waits twice" if place is not None else "is none of the request's"
                raise PlanInvalid(f"{Promise.COMPLETE}: chunk {number} of {rest.name!r} waits and {why}")
            if request.sources and (len(rest.sources) <= chunk or rest.sources[chunk] != request.sources[place]):
                raise PlanInvalid(f"{Promise.COMPLETE}: chunk {number} of {rest.name!r} waits with other sources")
            seen.add((rest.name, number))
    for name, numbers in places.items():
        for number in numbers:
            if (name, number) not in seen:
                raise PlanInvalid(f"{Promise.COMPLETE}: chunk {number} of {name!r} is neither planned nor waits")


def _host(topology: Topology, host: int) -> str:
    return repr(topology.servers[host].name) if 0 <= host < len(topology.servers) else f"host {host}"


def _broken(topology: Topology, promise: Promise, chain: HostChain, why: str) -> NoReturn:
    hosts = " → ".join(_host(topology, host) for host in chain.hosts)
    raise PlanInvalid(f"{promise}: chain {hosts}, chunk {chain.chunk} of {chain.request!r}: {why}")

"""The exact optimum for any placement, any network, reads and copies: one count per pattern of racks.

A pattern says in which rack each position of a chain lies. For each pattern the program counts its chains and how often
each host has each position in them; hosts of a chain differ if and only if no host has more positions than there are
chains of the pattern (König). Patterns multiply with racks and replicas, so this is for small networks.

Invariants: an optimal solution of the program is as good as the best plan, and can be dealt out as a plan.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from benchmarks.yardstick.decompose import deal
from benchmarks.yardstick.flows import Flows, check_size
from benchmarks.yardstick.program import Program, Solution, Term
from scheduler.peace.placement import Relation
from scheduler.peace.plan import HostChain, Request, Residual, Resource, TransferKind
from scheduler.topology import Topology

Hosts = dict[int, list[int]]
"""By rack, the hosts that may have a position."""


class _Pattern(NamedTuple):
    """Chains that lie in the same racks: how many, and for each position the column of each host."""

    racks: tuple[int, ...]
    chains: int
    at: list[dict[int, int]]


class _Alike(NamedTuple):
    """Chunks that may be placed in the same ways, for writes also of different writers: (request, its chunks)."""

    members: list[tuple[int, list[int]]]
    columns: dict[int, int]  # for each request, how many of these chunks are planned
    patterns: list[_Pattern]


class Patterns:
    """Any requests on a small network."""

    def __init__(self, topology: Topology, requests: Sequence[Request], residual: Residual) -> None:
        self.program = Program()
        self._topology = topology
        self._requests = requests
        self._residual = residual
        self._use: dict[tuple[Resource, int], list[Term]] = {}
        self._pairs: dict[tuple[int, int], list[Term]] = {}
        self.taken: list[tuple[int, int]] = []
        """Columns that say how many chunks are planned, each with the place of its request."""
        self._alike = [self._alike_from(members) for members in self._groups()]
        for (resource, number), terms in self._use.items():
            self.program.at_most(terms, int(residual.counts(resource)[number]))
        self._flows = Flows(self.program, topology, residual, self._pairs)

    def _groups(self) -> list[list[tuple[int, list[int]]]]:
        groups: dict[object, dict[int, list[int]]] = {}
        for number, request in enumerate(self._requests):
            for chunk in range(request.chunks):
                key: object = (request.placement, request.avoid)
                if request.kind is not TransferKind.WRITE:
                    key = (request.kind, request.writer, frozenset(request.sources[chunk]), key)
                groups.setdefault(key, {}).setdefault(number, []).append(chunk)
        return [list(members.items()) for members in groups.values()]

    def _alike_from(self, members: list[tuple[int, list[int]]]) -> _Alike:
        """Columns and rows of chunks that may be placed alike."""
        request, program = self._requests[members[0][0]], self.program
        columns = {number: program.column(len(chunks)) for number, chunks in members}
        for number, column in columns.items():
            self.taken.append((column, number))
        patterns = [
            self._pattern(request, racks, places)
            for places in self._places(request, members)
            for racks in self._racks(request, places, ())
        ]
        if request.kind is TransferKind.WRITE:
            for writer in {self._requests[number].writer for number, _ in members}:
                own = [(columns[number], 1) for number, _ in members if self._requests[number].writer == writer]
                program.equal([(pattern.at[0][writer], 1) for pattern in patterns if writer in pattern.at[0]], own)
        else:
            program.equal([(pattern.chains, 1) for pattern in patterns], [(column, 1) for column in columns.values()])
        return _Alike(members, columns, patterns)

    def _places(self, request: Request, members: list[tuple[int, list[int]]]) -> Iterator[list[Hosts]]:
        """For each position, the hosts that may have it, by rack. A read has a second form: from the own disk."""
        topology, residual = self._topology, self._residual

        def by_rack(hosts: Sequence[int]) -> Hosts:
            found: Hosts = {}
            for host in hosts:
                found.setdefault(topology.rack_of[host], []).append(host)
            return found

        takers = [
            host
            for host in range(len(topology.servers))
            if residual.receive[host] > 0 and residual.disk[host] > 0 and host not in request.avoid
        ]
        if request.kind is TransferKind.WRITE:
            writers = sorted({self._requests[number].writer for number, _ in members})
            first = by_rack([host for host in writers if host not in request.avoid]) if _local(request) else None
            if first is None:
                yield [by_rack(writers), *[by_rack(takers)] * len(request.placement)]
            else:
                yield [first, first, *[by_rack(takers)] * (len(request.placement) - 1)]
            return
        has = request.sources[members[0][1][0]]
        sources = [host for host in sorted(set(has)) if host not in request.avoid and residual.disk[host] > 0]
        if request.kind is TransferKind.COPY:
            yield [by_rack(sources), by_rack([host for host in takers if host not in has])]
            return
        if request.writer in sources:
            yield [by_rack([request.writer])]
        if residual.receive[request.writer] > 0:
            yield [by_rack([host for host in sources if host != request.writer]), by_rack([request.writer])]

    def _racks(self, request: Request, places: list[Hosts], racks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """All patterns of racks that the rules allow and that have hosts."""
        if len(racks) == len(places):
            yield racks
            return
        rules = request.placement[len(racks) - 1] if racks and request.placement else ()
        if _local(request) and len(racks) == 1:
            if any(rule.relation in (Relation.OTHER_RACK, Relation.OTHER_HOST) for rule in rules):
                return
            yield from self._racks(request, places, (*racks, racks[0]))
            return
        for rack in places[len(racks)]:
            if all(_allows(rule.relation, rack, racks[rule.of]) for rule in rules):
                yield from self._racks(request, places, (*racks, rack))

    def _pattern(self, request: Request, racks: tuple[int, ...], places: list[Hosts]) -> _Pattern:
        program, local = self.program, _local(request)
        check_size(program, 1 + sum(len(places[position][rack]) for position, rack in enumerate(racks)))
        chains = program.column()
        at: list[dict[int, int]] = []
        for position, rack in enumerate(racks):
            if local and position == 1:
                at.append(at[0])
            else:
                at.append({host: program.column() for host in places[position][rack]})
                program.equal([(column, 1) for column in at[-1].values()], [(chains, 1)])
            for host, column in at[-1].items():
                for resource in _uses(request.kind, position, len(racks), local):
                    self._use.setdefault((resource, host), []).append((column, 1))
        distinct = at[1:] if local else at
        for host in {host for columns in distinct for host in columns}:
            columns = [(hosts[host], 1) for hosts in distinct if host in hosts]
            if len(columns) > 1:
                program.at_most([*columns, (chains, -1)], 0)
        for a, b in pairwise(racks):
            if a != b:
                self._pairs.setdefault((a, b), []).append((chains, 1))
        return _Pattern(racks, chains, at)

    def chains(self, solution: Solution) -> list[list[HostChain]]:
        """For each request, its chains."""
        values = solution.values
        ways = self._flows.ways(values)
        routes: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for (start, _), terms in self._pairs.items():
            for _ in range(sum(values[column] * times for column, times in terms)):
                end, route = ways.take(start)
                routes.setdefault((start, end), []).append(route)
        chains: list[list[HostChain]] = [[] for _ in self._requests]
        for alike in self._alike:
            kind = self._requests[alike.members[0][0]].kind
            dealt: dict[int, list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]] = {}
            for pattern in alike.patterns:
                local = len(pattern.at) > 1 and pattern.at[0] is pattern.at[1]
                counted = [{host: values[column] for host, column in hosts.items()} for hosts in pattern.at[local:]]
                for hosts in deal(counted):
                    hosts = hosts[:1] * (1 + local) + hosts[1:]
                    if len(hosts) == 1:
                        hosts = hosts * 2  # a reader's own disk
                    racks = [self._topology.rack_of[host] for host in hosts]
                    way = tuple(routes[a, b].pop() if a != b else () for a, b in pairwise(racks))
                    dealt.setdefault(hosts[0] if kind is TransferKind.WRITE else -1, []).append((hosts, way))
            for number, chunks in alike.members:
                request = self._requests[number]
                of_writer = dealt.get(request.writer if kind is TransferKind.WRITE else -1, [])
                for chunk in chunks[: values[alike.columns[number]]]:
                    chains[number].append(HostChain(request.name, request.number(chunk), *of_writer.pop(), kind))
        return chains


def _local(request: Request) -> bool:
    return any(rule.relation is Relation.SAME_HOST for rules in request.placement for rule in rules)


def _allows(relation: Relation, rack: int, other: int) -> bool:
    return {Relation.SAME_RACK: rack == other, Relation.OTHER_RACK: rack != other}.get(relation, True)


def _uses(kind: TransferKind, position: int, length: int, local: bool) -> Iterator[Resource]:
    """What the host at a position uses; `local`: the first replica lies on the writer itself."""
    if kind is not TransferKind.WRITE:
        if position == 0:
            yield Resource.DISK
            if length > 1:
                yield Resource.SEND
        else:
            yield Resource.RECEIVE
            if kind is TransferKind.COPY:
                yield Resource.DISK
        return
    if position < length - 1 and not (local and position == 0):
        yield Resource.SEND
    if position > 0:
        yield Resource.DISK
        if not (local and position == 1):
            yield Resource.RECEIVE

"""Exhaustive search for the most chunks that fit into one timestep: a yardstick for tiny networks.

Invariants:
* Complete: every host for every replica, every simple route between them, every choice of chunks is considered.
* No planner is involved, and no cost: a plan may take detours if that lets more chunks through.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product

from scheduler.errors import RequestError
from scheduler.peace.placement import Relation
from scheduler.peace.plan import Request, Residual, Resource, TransferKind, check_request
from scheduler.topology import Topology

MAX_OPTIONS = 5_000
"""Ways to write one chunk that are looked at; more, and the network is not tiny."""
MAX_STATES = 1_000_000

Units = tuple[tuple[int, int], ...]
"""What a chain takes: (place of the resource, units)."""
Use = tuple[Resource, int]


def max_chunks(topology: Topology, requests: Sequence[Request], residual: Residual | None = None) -> int:
    """The greatest number of chunks of `requests` that any plan can hold within `residual` (None: all capacity).

    Raises RequestError (`requests`) if there is too much to try.
    """
    left = Residual.full(topology) if residual is None else residual
    capacity: dict[Use, int] = {
        (resource, number): int(count)
        for resource in Resource
        for number, count in enumerate(left.counts(resource).tolist())
    }
    search = _Search(capacity)
    for request in requests:
        check_request(topology, request)
        if request.kind is TransferKind.WRITE:
            search.add(_options(topology, request, 0), request.chunks)
        else:
            for chunk in range(request.chunks):
                search.add(_options(topology, request, chunk), 1)
    return search.best(0, 0, search.items[0][1] if search.items else 0, search.start)


class _Search:
    """Items, each some equal chunks with the ways to write one, are taken one after the other; what is left decides."""

    def __init__(self, capacity: dict[Use, int]) -> None:
        self._place = {use: place for place, use in enumerate(capacity)}
        self.start = tuple(capacity.values())
        self.items: list[tuple[list[Units], int]] = []
        self._known: dict[tuple[int, int, int, tuple[int, ...]], int] = {}

    def add(self, options: Iterator[Counter[Use]], chunks: int) -> None:
        """Add equal chunks; of their options those that fit at all, and need no more than another."""
        found: set[Units] = set()
        for number, option in enumerate(options):
            if number >= MAX_OPTIONS:
                raise RequestError("requests", f"more than {MAX_OPTIONS} ways for a chunk: this is for tiny networks")
            units = tuple(sorted((self._place[use], count) for use, count in option.items()))
            if _fits(units, self.start):
                found.add(units)
        sets = {units: dict(units) for units in found}
        needed = [
            units
            for units in found
            if not any(
                other != units and all(sets[units].get(place, 0) >= count for place, count in other) for other in found
            )
        ]
        if chunks:
            self.items.append((sorted(needed), chunks))

    def best(self, item: int, option: int, chunks: int, left: tuple[int, ...]) -> int:
        """The most chunks from here on: `chunks` more of this item, by its options from `option` on, then the rest."""
        if item == len(self.items):
            return 0
        state = (item, option, chunks, left)
        if state in self._known:
            return self._known[state]
        if len(self._known) >= MAX_STATES:
            raise RequestError("requests", f"more than {MAX_STATES} states to try: this is for tiny networks")
        options, hopes = self.items[item][0], sum(count for _, count in self.items[item + 1 :])
        following = self.items[item + 1][1] if item + 1 < len(self.items) else 0
        most = self.best(item + 1, 0, following, left)
        if chunks:
            for number in range(option, len(options)):
                if most == chunks + hopes:
                    break
                if _fits(options[number], left):
                    after = list(left)
                    for place, count in options[number]:
                        after[place] -= count
                    most = max(most, 1 + self.best(item, number, chunks - 1, tuple(after)))
        self._known[state] = most
        return most


def _fits(units: Units, left: tuple[int, ...]) -> bool:
    return all(left[place] >= count for place, count in units)


def _options(topology: Topology, request: Request, chunk: int) -> Iterator[Counter[Use]]:
    """What each possible chain of the chunk takes."""
    for hosts in _hosts(topology, request, chunk):
        hops = [(a, b) for a, b in pairwise(hosts) if a != b]
        ends = [(topology.rack_of[a], topology.rack_of[b]) for a, b in hops]
        fixed: Counter[Use] = Counter()
        for source, target in hops:
            fixed[Resource.SEND, source] += 1
            fixed[Resource.RECEIVE, target] += 1
        written = (
            hosts[1:]
            if request.kind is TransferKind.WRITE
            else hosts[:1]
            if request.kind is TransferKind.READ
            else hosts
        )
        fixed.update((Resource.DISK, host) for host in written)
        for routes in product(*(list(_routes(topology, start, end, frozenset())) for start, end in ends)):
            yield fixed + Counter((Resource.LINK, link) for route in routes for link in route)


def _hosts(topology: Topology, request: Request, chunk: int) -> Iterator[tuple[int, ...]]:
    """All chains of hosts that the request allows."""
    everyone = range(len(topology.servers))
    if request.kind is TransferKind.READ:
        yield from ((host, request.writer) for host in request.sources[chunk] if host not in request.avoid)
        return
    if request.kind is TransferKind.COPY:
        sources = set(request.sources[chunk])
        targets = [host for host in everyone if host not in sources | request.avoid]
        chains: Iterator[tuple[int, ...]] = product(sorted(sources - request.avoid), targets)
    else:
        local = any(rule.relation is Relation.SAME_HOST for rule in request.placement[0])
        others = [host for host in everyone if host != request.writer and host not in request.avoid]
        start = (request.writer, request.writer) if local else (request.writer,)
        if local and request.writer in request.avoid:
            return
        chains = ((*start, *rest) for rest in permutations(others, len(request.placement) + 1 - len(start)))
    yield from (hosts for hosts in chains if _obeys(topology, request, hosts))


def _obeys(topology: Topology, request: Request, hosts: tuple[int, ...]) -> bool:
    for replica, rules in enumerate(request.placement, 1):
        for relation, of in rules:
            same_host = hosts[replica] == hosts[of]
            same_rack = topology.rack_of[hosts[replica]] == topology.rack_of[hosts[of]]
            holds = {
                Relation.SAME_HOST: same_host,
                Relation.OTHER_HOST: not same_host,
                Relation.SAME_RACK: same_rack,
                Relation.OTHER_RACK: not same_rack,
            }
            if not holds[relation]:
                return False
    return True


def _routes(topology: Topology, start: int, end: int, passed: frozenset[int]) -> Iterator[tuple[int, ...]]:
    """All simple ways from one switch to another."""
    if start == end:
        yield ()
        return
    for hop in topology.hops[start]:
        if hop.target not in passed:
            for rest in _routes(topology, hop.target, end, passed | {start}):
                yield (hop.link, *rest)

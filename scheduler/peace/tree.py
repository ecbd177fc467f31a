"""Planner `tree`: Algorithm 1 of SGuard (section 5) on rack trees, without a search, thousands of times faster.

The plans have the same distribution as those of `paper`, whose docstring defines which path is picked. On a tree there
is one path between two switches, so a randomized shortest path leads to one of the nearest racks with a free host; at
each switch on the way there the next hop is picked uniformly. `scheduler.peace.tree_kernels` keeps the distances up to
date while capacity is used up.

**State between calls.** A planner keeps a copy of the last `Residual`'s numbers, with the counts and distances that
follow from them. At the beginning of each call the copy is compared with the arrays and corrected where they changed
(three numbers per host, in wide registers: 10,000 hosts take a few microseconds, less than the call costs in Python).
So this state makes a call faster and never changes its result: a plan depends on requests, residual capacity and the
seed alone.

Invariants:
* One 64-bit seed is drawn from `random` per call; it seeds the kernels' generator, which makes all picks.
* A planner is used by one thread at a time.
* `plan` and `chain` take from the `Residual`'s own arrays exactly the units that the returned chains use.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from itertools import chain as joined
from itertools import pairwise, repeat
from operator import attrgetter
from random import Random
from typing import NamedTuple

import numpy as np

from scheduler.errors import PlacementError, RequestError, TopologyError
from scheduler.peace import tree_kernels as kernels
from scheduler.peace.placement import Placement, Relation, check_placement
from scheduler.peace.plan import Counts, HostChain, Request, Residual, TransferKind, TransferPlan, check_request
from scheduler.peace.tree_kernels import Numbers, Rows
from scheduler.topology import Topology, Tree

KINDS = {TransferKind.WRITE: kernels.WRITE, TransferKind.READ: kernels.READ, TransferKind.COPY: kernels.COPY}
FIELDS = 8
"""Numbers per request for the kernel: see `tree_kernels.plan_all`."""
RULES = 3
"""Numbers per replica: see `tree_kernels.write`."""
MAX_PLACEMENTS = 256
"""The number of placements that are kept in the kernel's form; a cluster uses a handful."""
ROWS_AT_A_TIME = 1 << 16
"""The number of chains that one call of the kernel can return; a plan may need several calls."""

FEW = 256
"""For requests of up to this many chunks, the tuple of waiting chunk numbers is reused for the next request."""

MAX_ROUTES = 1 << 17
"""The number of pairs of racks whose routes are kept: some 20 MB."""

Routes = tuple[tuple[int, ...], ...]


class EncodedRequests(NamedTuple):
    """Requests in the kernel's form."""

    fields: Numbers
    rules: Counts
    sources: Counts
    sources_at: Numbers
    avoid: Counts
    width: int  # hosts of the longest chain


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector: a plan makes thousands of tuples without cycles, and to scan them is wasted."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class TreePlanner:
    """Algorithm 1 on a tree of racks of any depth. Raises TopologyError for any other network."""

    name = "tree"

    def __init__(self, topology: Topology) -> None:
        if topology.tree is None:
            raise TopologyError(
                f"network {topology.name!r} is not a tree: switches must be connected by one link each way and without "
                "rings; use the planner `paper`"
            )
        self.topology = topology
        self.tree, self.pool = _tables(topology, topology.tree)
        self._ways = Ways(topology.tree)
        self._compiled: dict[int, tuple[Placement, Counts]] = {}

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> TransferPlan:
        """Plan as much as fits into `residual`, first come first served, and take it from there."""
        with collector_paused():
            planned = np.zeros(len(requests), np.int64)
            encoded = self.encode(requests)
            return self.decode(requests, encoded, planned, self.run(encoded, residual, random.getrandbits(64), planned))

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> HostChain | None:
        """The chain of one chunk, taken from `residual`; None, and nothing taken, if there is none."""
        rows = self.run(self.encode_one(request, chunk), residual, random.getrandbits(64), np.zeros(1, np.int64))
        if not len(rows):
            return None
        hosts = tuple(rows[0].tolist())
        return HostChain(request.name, request.number(chunk), hosts, self.routes(hosts), request.kind)

    # ---- shared with `repaired`

    def encode(self, requests: Sequence[Request]) -> EncodedRequests:
        """Requests in the kernel's form. Raises RequestError for an invalid request."""
        table = np.zeros((len(requests), FIELDS), np.int64)
        kinds = [request.kind for request in requests]
        if kinds.count(TransferKind.WRITE) < len(kinds):
            table[:, 0] = [KINDS[kind] for kind in kinds]
        table[:, 1] = [request.writer for request in requests]
        table[:, 2] = [request.chunks for request in requests]
        placements = [requests[0].placement] if requests else []
        if not all(request.placement is placements[0] for request in requests):
            placements = list({id(request.placement): request.placement for request in requests}.values())
        lengths = [len(placement) for placement in placements]
        if len(placements) > 1:
            place_of = {id(placement): place for place, placement in enumerate(placements)}
            table[:, 3] = [place_of[id(request.placement)] for request in requests]
        if placements:
            table[:, 4] = np.array(lengths, np.int64)[table[:, 3]]
        most = max((1, *lengths))
        rules = np.zeros((max(len(placements), 1), most, RULES), np.int32)
        for place, placement in enumerate(placements):
            rules[place, : len(placement)] = self.compiled(placement)
        avoid: list[int] = []
        sources: list[tuple[int, ...]] = []
        if any(map(attrgetter("avoid"), requests)) or any(map(attrgetter("sources"), requests)):
            for place, request in enumerate(requests):
                table[place, 5] = len(avoid)
                avoid += sorted(request.avoid)
                table[place, 6] = len(avoid)
                table[place, 7] = len(sources)
                sources += request.sources
        encoded = EncodedRequests(table, rules, *_flat(sources), np.array(avoid, np.int32), 1 + most)
        numbered = any(map(attrgetter("numbers"), requests))
        if not self._plain(encoded) or (numbered and not all(len(r.numbers) in (0, r.chunks) for r in requests)):
            for request in requests:
                check_request(self.topology, request)
        return encoded

    def _plain(self, encoded: EncodedRequests) -> bool:
        """Whether all are valid writes: one check of all is cheaper than a check of each request."""
        kind, writer, chunks, _, replicas = encoded.fields[:, :5].T
        return not len(encoded.fields) or bool(
            not encoded.sources.size
            and not encoded.avoid.size
            and kind.max() == kernels.WRITE
            and writer.min() >= 0
            and writer.max() < len(self.topology.servers)
            and chunks.min() >= 0
            and replicas.min() > 0
        )

    def encode_one(self, request: Request, chunk: int) -> EncodedRequests:
        """One chunk of one request in the kernel's form. Raises RequestError as `encode`."""
        check_request(self.topology, request)
        replicas = len(request.placement)
        rules = self.compiled(request.placement)[np.newaxis]
        table = np.array([[KINDS[request.kind], request.writer, 1, 0, replicas, 0, len(request.avoid), 0]], np.int64)
        sources, sources_at = _flat(request.sources[chunk : chunk + 1]) if request.sources else _NO_SOURCES
        avoid = np.array(sorted(request.avoid), np.int32) if request.avoid else _NO_HOSTS
        return EncodedRequests(table, rules, sources, sources_at, avoid, 1 + max(replicas, 1))

    def seed(self, seed: int) -> None:
        """The seed of the kernels' random numbers (64 bits)."""
        self.tree[kernels.SEED, 0] = seed - (1 << 63)

    def run(self, encoded: EncodedRequests, residual: Residual, seed: int, planned: Numbers) -> Rows:
        """Plan as much as fits, and take it. Rows of hosts are in the requests' order, `planned[q]` for request q."""
        self.seed(seed)
        if len(residual.send) != self.pool.shape[1] or len(residual.link) != len(self.topology.links):
            raise TopologyError(f"capacity of {residual.topology.name!r}, planner of {self.topology.name!r}")
        parts, first = [], 0
        while first < len(encoded.fields):
            left = int((encoded.fields[:, 2] - planned).sum())
            rows = np.empty((min(left, ROWS_AT_A_TIME), encoded.width), np.int32)
            first, used = kernels.plan_all(
                *(
                    self.tree,
                    self.pool,
                    encoded.fields,
                    encoded.rules,
                    encoded.sources,
                    encoded.sources_at,
                    encoded.avoid,
                ),
                *(first, planned, rows, residual.send, residual.receive, residual.disk, residual.link),
            )
            parts.append(rows[:used])
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, encoded.width), np.int32)

    def decode(
        self, requests: Sequence[Request], encoded: EncodedRequests, planned: Numbers, rows: Rows
    ) -> TransferPlan:
        """The plan of the kernel's rows, which are in the requests' order, `planned[q]` for request q."""
        ends = np.cumsum(planned)
        owner = np.repeat(np.arange(len(planned)), planned)
        owners, places = owner.tolist(), (np.arange(len(owner)) - (ends - planned)[owner]).tolist()
        names = [request.name for request in requests]
        kinds = encoded.fields[:, 0]
        lengths = np.where(kinds == kernels.READ, 2, 1 + encoded.fields[:, 4])[owner]
        if len(lengths) and lengths.min() == lengths.max():
            rows = rows[:, : lengths[0]]
            hosts = list(zip(*rows.T.tolist(), strict=True))
            routes = self._ways.of_all(self.pool[kernels.RACK, rows])
        else:
            hosts = [tuple(row[:length]) for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)]
            routes = [self.routes(row) for row in hosts]
        if any(map(attrgetter("numbers"), requests)):
            places = [requests[q].number(place) for q, place in zip(owners, places, strict=True)]
        each = repeat(TransferKind.WRITE, len(owners)) if not kinds.any() else (requests[q].kind for q in owners)
        chains = map(HostChain._make, zip(map(names.__getitem__, owners), places, hosts, routes, each, strict=True))
        left = np.flatnonzero(planned < encoded.fields[:, 2])
        pairs = zip(left.tolist(), planned[left].tolist(), strict=True)
        return TransferPlan(
            tuple(chains), tuple([_rest(requests[q], done) if done else requests[q] for q, done in pairs])
        )

    def routes(self, hosts: Sequence[int]) -> Routes:
        """The links from each host of a chain to the next."""
        racks = self.topology.rack_of
        return tuple(self._ways.one(racks[source], racks[target]) for source, target in pairwise(hosts))

    def compiled(self, placement: Placement) -> Counts:
        """A placement in the kernel's form: one row per replica."""
        known = self._compiled.get(id(placement))
        if known is not None and known[0] is placement:
            return known[1]
        if len(self._compiled) >= MAX_PLACEMENTS:
            self._compiled.clear()
        try:
            check_placement(placement or ((),))  # a read has no placement
        except PlacementError as error:
            raise RequestError("placement", str(error)) from error
        rules = np.array([_rules(placement, replica) for replica in range(len(placement))], np.int32)
        rules = rules.reshape(len(placement), RULES)
        self._compiled[id(placement)] = placement, rules  # the reference keeps the id from being reused
        return rules


class Ways:
    """The links from one switch to another, joined from tuples that are built once per switch and ancestor."""

    def __init__(self, tree: Tree) -> None:
        self._up: list[list[tuple[int, ...]]] = [[] for _ in tree.parent]  # [switch][depth of the ancestor]
        self._down: list[list[tuple[int, ...]]] = [[] for _ in tree.parent]
        self._above = np.full((1 + max(tree.depth), len(tree.parent)), -1, np.int64)  # [depth, switch]: the ancestor
        for switch in tree.order:
            parent, depth = tree.parent[switch], tree.depth[switch]
            if parent >= 0:
                self._up[switch] = [(tree.up[switch], *rest) for rest in self._up[parent]]
                self._down[switch] = [(*rest, tree.down[switch]) for rest in self._down[parent]]
                self._above[:, switch] = self._above[:, parent]
            self._up[switch].append(())
            self._down[switch].append(())
            self._above[depth, switch] = switch
        self._parent, self._depth = tree.parent, tree.depth
        self._known: dict[tuple[int, int], dict[int, Routes]] = {}

    def one(self, source: int, target: int) -> tuple[int, ...]:
        """The links from one switch to another."""
        a, b = source, target
        while a != b:
            if self._depth[a] >= self._depth[b]:
                a = self._parent[a]
            else:
                b = self._parent[b]
        return self._up[source][self._depth[a]] + self._down[target][self._depth[a]]

    def of_all(self, racks: Numbers) -> list[Routes]:
        """For each row of racks, the links between consecutive racks."""
        hops = range(racks.shape[1] - 1)
        moving = [hop for hop in hops if (racks[:, hop] != racks[:, hop + 1]).any()]
        if len(moving) == 1:  # usually one replica leaves the rack: few routes
            return self._of_one(racks[:, moving[0]], racks[:, moving[0] + 1], moving[0], len(hops) - 1 - moving[0])
        columns: list[Iterable[tuple[int, ...]]] = []
        for hop in hops:
            if hop not in moving:
                columns.append(repeat((), len(racks)))
                continue
            source, target = racks[:, hop], racks[:, hop + 1]
            above = self._above[:, source]
            meet = ((above == self._above[:, target]) & (above >= 0)).sum(axis=0) - 1  # of the lowest common one
            ends = zip(source.tolist(), target.tolist(), meet.tolist(), strict=True)
            columns.append([self._up[a][depth] + self._down[b][depth] for a, b, depth in ends])
        return list(zip(*columns, strict=True))

    def _of_one(self, source: Numbers, target: Numbers, before: int, behind: int) -> list[Routes]:
        """The same for rows in which one hop leaves a rack; `before` and `behind` count the hops on its two sides."""
        known = self._known.setdefault((before, behind), {})
        if len(known) > MAX_ROUTES:
            known.clear()
        switches = len(self._up)
        pairs = (source.astype(np.int64) * switches + target).tolist()
        routes = list(map(known.get, pairs))
        for place, pair in enumerate(pairs):
            if routes[place] is None:
                way = self.one(*divmod(pair, switches))
                routes[place] = known[pair] = ((),) * before + (way,) + ((),) * behind
        return routes  # type: ignore[return-value]  # none is None any more


_NO_HOSTS: Counts = np.empty(0, np.int32)
_NO_SOURCES: tuple[Counts, Numbers] = np.empty(0, np.int32), np.zeros(2, np.int64)


def _flat(sources: Sequence[tuple[int, ...]]) -> tuple[Counts, Numbers]:
    """Lists of hosts as one array, and the begin and end of each list."""
    if not sources:
        return _NO_SOURCES
    each = [tuple(dict.fromkeys(hosts)) for hosts in sources]
    return np.array(list(joined(*each)), np.int32), np.cumsum([0, *map(len, each)]).astype(np.int64)


_set_name, _set_writer, _set_chunks, _set_placement, _set_kind, _set_sources, _set_numbers, _set_avoid = (
    vars(Request)[field.name].__set__ for field in fields(Request)
)


@lru_cache(maxsize=1024)
def _few_behind(done: int, chunks: int) -> tuple[int, ...]:
    return tuple(range(done, chunks))


def _behind(done: int, chunks: int) -> tuple[int, ...]:
    """The positions after `done`. Small tuples are shared between requests."""
    return _few_behind(done, chunks) if chunks <= FEW else tuple(range(done, chunks))


def _rest(request: Request, done: int) -> Request:
    """`Request.rest` in a tenth of the time: a timestep of 10,000 hosts calls it thousands of times.

    The slots are set as the constructor of the frozen class sets them, without its attribute look-ups.
    """
    rest: Request = object.__new__(Request)
    _set_name(rest, request.name)
    _set_writer(rest, request.writer)
    _set_chunks(rest, request.chunks - done)
    _set_placement(rest, request.placement)
    _set_kind(rest, request.kind)
    _set_sources(rest, request.sources[done:])
    _set_numbers(rest, request.numbers[done:] or _behind(done, request.chunks))
    _set_avoid(rest, request.avoid)
    return rest


def _rules(placement: Placement, replica: int) -> tuple[int, int, int]:
    """One replica's rules, encoded for `tree_kernels.write`."""
    masks = {Relation.SAME_RACK: 0, Relation.OTHER_RACK: 0, Relation.SAME_HOST: 0, Relation.OTHER_HOST: 0}
    for rule in placement[replica]:
        masks[rule.relation] |= 1 << rule.of
    writer = kernels.ANYWHERE
    if masks[Relation.SAME_HOST]:  # allowed for the first replica only, whose rules all refer to the writer
        never = masks[Relation.OTHER_RACK] or masks[Relation.OTHER_HOST]
        writer = kernels.NOWHERE if never else kernels.ON_WRITER
    return masks[Relation.SAME_RACK], masks[Relation.OTHER_RACK], writer


def _tables(topology: Topology, tree: Tree) -> tuple[Numbers, Counts]:
    """The kernel's tables, without free capacity: the first call compares them with a residual and corrects them."""
    table = np.zeros((kernels.TREE_ROWS, len(tree.parent)), np.int64)
    pool = np.zeros((kernels.POOL_ROWS, len(topology.servers)), np.int32)
    kids: list[list[int]] = [[] for _ in tree.parent]
    for switch in tree.order:
        if tree.parent[switch] >= 0:
            kids[tree.parent[switch]].append(switch)
    costs = [link.cost for link in topology.links]
    table[kernels.PARENT], table[kernels.DEPTH] = tree.parent, tree.depth
    for links, cost, which in ((kernels.UP, kernels.UP_COST, tree.up), (kernels.DOWN, kernels.DOWN_COST, tree.down)):
        table[links], table[cost] = which, [costs[link] if link >= 0 else 0 for link in which]
    for begin, end, lists in (
        (kernels.KIDS_FROM, kernels.KIDS_TO, kids),
        (kernels.MEMBERS_FROM, kernels.MEMBERS_TO, topology.members),
    ):
        ends = np.cumsum([len(part) for part in lists])
        table[begin], table[end] = ends - [len(part) for part in lists], ends
    table[kernels.KIDS, : len(tree.parent) - 1] = list(joined(*kids))
    table[kernels.VALUE] = table[kernels.BEST] = kernels.FAR
    pool[kernels.RACK], pool[kernels.MEMBERS] = topology.rack_of, list(joined(*topology.members))
    return table, pool

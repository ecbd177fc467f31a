"""Planner `paper`: Algorithm 1 of SGuard (section 5), on any network, for any number of replicas.

Requests are served first come first served, chunk by chunk, replica by replica. Each replica takes a randomized
shortest path of the network of figure 5 from the host before it in the chain; the path's capacity is then used up.
If a replica finds no path, its chunk takes no capacity, and the request waits with its remaining chunks (line 22).

**The choice of a path** (every planner with "the same distribution" must reproduce it). A path may use resources with
capacity left: the sender, each link, the receiver, its disk. It ends at a *candidate*: a host that the placement's
rules allow, that is neither in the chain nor to be avoided, and that has a unit of receive and of disk left. Of all
paths to candidates the cheapest are feasible (by the sum of the links' costs; all other edges cost every path the
same). One of them is walked from the source:
**at each vertex the next vertex is picked uniformly among those that continue some cheapest path.** So

* at a switch, every link that continues a cheapest path counts once, however many candidates lie behind it. If the path
  may end at this switch, every candidate on it counts once (both can tie only over links that cost nothing);
* on a tree of racks with costs of 1, the nearest candidates win. The walk goes up only as far as necessary. At each
  switch it picks uniformly among the neighbours behind which a nearest candidate lies, over links with capacity left,
  and in the last rack uniformly among its candidates. A rack is not weighted by its number of candidates;
* a path visits no switch twice (this matters only where links that cost nothing form a ring);
* `same-host:0` ends on the writer itself: there is no path, and the replica takes a unit of the writer's disk;
* READ and COPY start at a vertex above all hosts that have the chunk, have capacity to send and to read, and are not to
  be avoided. The source is picked uniformly among those with a cheapest path of their own (rules refer to the source,
  so each source has its own candidates); then the path is walked from the source. If the reader itself has the chunk,
  it reads its own disk, which is the cheapest path.

Invariants:
* The plan depends on requests, residual capacity and the random numbers alone; between calls a planner keeps only
  values that follow from the topology.
* A chunk without a chain leaves the residual as it was.

**Speed.** Searches go over switches; hosts are examined only in the racks where a path may end. Where every link has a
cost, most picks need no search: hops are tried in random order within the distance at which the nearest allowed rack
lies in the idle network, and the first hop that succeeds is a uniform pick among all hops that would succeed.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from scheduler.errors import PlanInvalid
from scheduler.peace.placement import MAX_REPLICAS, PlacementRule, Relation
from scheduler.peace.plan import HostChain, Request, Residual, TransferKind, TransferPlan, check_request
from scheduler.topology import Hop, Topology

NEAR = 8
"""The distance up to which hops are tried without a search; for larger distances the search is as fast."""
TRIES = 4
"""The number of random picks to try before all elements are tried in random order."""

Step = tuple[int, int]
"""(switch, link): the next switch of a path and the link to it."""


class PaperPlanner:
    """Algorithm 1 as in the paper: greedy, randomized, on any network. Source: SGuard, section 5, algorithm 1."""

    name = "paper"

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._nearest: dict[int, tuple[Step, ...]] = {}
        self._all_cost = all(link.cost > 0 for link in topology.links)

    def plan(self, requests: Sequence[Request], residual: Residual, random: Random) -> TransferPlan:
        """Plan as much as fits, first come first served, and take it from `residual`.

        Raises RequestError for a request that contradicts itself or the topology.
        """
        chains: list[HostChain] = []
        waiting: list[Request] = []
        left = _Left.of(residual)
        for request in requests:
            check_request(self._topology, request)
            for chunk in range(request.chunks):
                chain = self._chain(request, chunk, left, random)
                if chain is None:
                    waiting.append(request.rest(chunk))
                    break
                chains.append(chain)
        return TransferPlan(tuple(chains), tuple(waiting))

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> HostChain | None:
        """The chain of the chunk at position `chunk`, taken from `residual`; None, taking nothing, if there is none."""
        return self._chain(request, chunk, _Left.of(residual), random)

    def _chain(self, request: Request, chunk: int, left: "_Left", random: Random) -> HostChain | None:
        taken: list[tuple[memoryview, int]] = []
        if request.kind is TransferKind.WRITE:
            way = self._write(request, left, random, taken)
        else:
            way = self._fetch(request, chunk, left, random, taken)
        if way is None:
            for counts, number in taken:
                counts[number] += 1
            return None
        hosts, routes = way
        return HostChain(request.name, request.number(chunk), tuple(hosts), tuple(routes), request.kind)

    def _write(
        self, request: Request, left: "_Left", random: Random, taken: list[tuple[memoryview, int]]
    ) -> tuple[list[int], list[tuple[int, ...]]] | None:
        """Hosts and routes of a pipeline from the writer through all replicas; `taken` collects the units taken."""
        host: int
        route: tuple[int, ...]
        hosts, routes = [request.writer], list[tuple[int, ...]]()
        closed = {request.writer, *request.avoid}
        for rules in request.placement:
            source = hosts[-1]
            ends = _Ends.by_rules(self._topology, left, rules, hosts, closed)
            host, route = source, ()  # a replica on the writer itself
            if any(rule.relation is Relation.SAME_HOST for rule in rules):
                other = any(rule.relation is Relation.OTHER_HOST for rule in rules)
                allowed = ends.allows(self._topology.rack_of[source]) and source not in request.avoid
                if other or not allowed or left.disk[source] < 1:
                    return None
            elif left.send[source] < 1:
                return None
            else:
                path = self._path(source, ends, left, random)
                if path is None:
                    return None
                host, route = path
                _take(left.send, source, taken)
                for link in route:
                    _take(left.link, link, taken)
                _take(left.receive, host, taken)
            _take(left.disk, host, taken)
            hosts.append(host)
            routes.append(route)
            closed.add(host)
        return hosts, routes

    def _fetch(
        self, request: Request, chunk: int, left: "_Left", random: Random, taken: list[tuple[memoryview, int]]
    ) -> tuple[list[int], list[tuple[int, ...]]] | None:
        """Hosts and route from a host that has the chunk to the reader, or to a new host."""
        topology, reader = self._topology, request.writer
        if any(rule.relation is Relation.SAME_HOST for rules in request.placement for rule in rules):
            return None
        sources = [
            host for host in sorted(set(request.sources[chunk])) if host not in request.avoid and left.disk[host] > 0
        ]
        if request.kind is TransferKind.READ and reader in sources:
            _take(left.disk, reader, taken)
            return [reader, reader], [()]
        found: list[tuple[int, _Ends, _CheapestPaths]] = []
        for source in sources:
            if left.send[source] < 1:
                continue
            if request.kind is TransferKind.READ:
                ends = _Ends(topology, left, frozenset(), only=reader)
            else:
                closed = {*request.sources[chunk], *request.avoid}
                ends = _Ends.by_rules(topology, left, request.placement[0], [source], closed)
            search = self._search(topology.rack_of[source], ends, left)
            if search is not None:
                found.append((source, ends, search))
        if not found:
            return None
        least = min(search.cost for _, _, search in found)
        cheapest = [one for one in found if one[2].cost == least]
        source, ends, search = cheapest[int(random.random() * len(cheapest))]
        host, route = self._walk(search, ends, left, random)
        _take(left.disk, source, taken)
        _take(left.send, source, taken)
        for link in route:
            _take(left.link, link, taken)
        _take(left.receive, host, taken)
        if request.kind is TransferKind.COPY:
            _take(left.disk, host, taken)
        return [source, host], [route]

    # ---- randomized shortest path

    def _path(self, source: int, ends: "_Ends", left: "_Left", random: Random) -> tuple[int, tuple[int, ...]] | None:
        """A host and the links to it, along a randomized shortest path; None if there is no path."""
        start = self._topology.rack_of[source]
        if self._all_cost:
            if ends.allows(start):
                host = ends.pick(start, random)
                if host >= 0:
                    return host, ()
            if ends.rack >= 0:
                if ends.rack == start or not ends.hosts(ends.rack):
                    return None
            else:
                near = next((cost for rack, cost in self._near(start) if rack != start and ends.allows(rack)), -1)
                if near < 0:
                    return None
                if near <= NEAR:
                    route: list[int] = []
                    host = self._dive(start, near, ends, left, random, route, set())
                    if host >= 0:
                        return host, tuple(reversed(route))
        found = self._search(start, ends, left)
        return None if found is None else self._walk(found, ends, left, random)

    def _near(self, start: int) -> tuple[Step, ...]:
        """The nearest racks in the idle network with their distances: more racks than rules can forbid."""
        if start not in self._nearest:
            enough = MAX_REPLICAS + 2
            near: list[Step] = []
            heap, done = [(0, start)], set[int]()
            while heap and len(near) < enough:
                cost, switch = heappop(heap)
                if switch in done:
                    continue
                done.add(switch)
                if self._topology.members[switch]:
                    near.append((switch, cost))
                for hop in self._topology.hops[switch]:
                    if hop.target not in done:
                        heappush(heap, (cost + hop.cost, hop.target))
            self._nearest[start] = tuple(near)
        return self._nearest[start]

    def _dive(
        self,
        switch: int,
        budget: int,
        ends: "_Ends",
        left: "_Left",
        random: Random,
        route: list[int],
        dead: set[tuple[int, int]],
    ) -> int:
        """A candidate at exactly this distance; -1 if there is none. Its links are added to `route`, last link first.

        `dead` are pairs of switch and remaining distance from which no candidate is reached. No allowed rack lies
        nearer, so every path of this length is a cheapest path, and visits no switch twice.
        """
        if budget == 0:
            host = ends.pick(switch, random) if ends.allows(switch) else -1
            if host < 0:
                dead.add((switch, 0))
            return host
        for hop in _random_order(self._topology.hops[switch], random):
            rest = budget - hop.cost
            if rest < 0 or left.link[hop.link] < 1 or (hop.target, rest) in dead:
                continue
            host = self._dive(hop.target, rest, ends, left, random, route, dead)
            if host >= 0:
                route.append(hop.link)
                return host
        dead.add((switch, budget))
        return -1

    def _search(
        self, start: int, ends: "_Ends", left: "_Left", passed: frozenset[int] = frozenset()
    ) -> "_CheapestPaths | None":
        """All cheapest paths from a switch to candidates, over links with capacity left and not through `passed`."""
        distance = {start: 0}
        into: dict[int, list[Step]] = {start: []}
        heap, done, found, best = [(0, start)], set[int](), list[int](), -1
        while heap:
            cost, switch = heappop(heap)
            if 0 <= best < cost:
                break
            if switch in done:
                continue
            done.add(switch)
            if ends.allows(switch) and ends.hosts(switch):
                best = cost
                found.append(switch)
            for target, link, hop_cost in self._topology.hops[switch]:
                reach = cost + hop_cost
                if target == start or target in passed or left.link[link] < 1 or 0 <= best < reach:
                    continue
                known = distance.get(target, -1)
                if known < 0 or reach < known:
                    distance[target], into[target] = reach, [(switch, link)]
                    heappush(heap, (reach, target))
                elif reach == known:
                    into[target].append((switch, link))
        if not found:
            return None
        onward: dict[int, list[Step]] = {}
        marked, stack = set(found), list(found)
        while stack:
            target = stack.pop()
            for switch, link in into[target]:
                onward.setdefault(switch, []).append((target, link))
                if switch not in marked:
                    marked.add(switch)
                    stack.append(switch)
        return _CheapestPaths(start, best, frozenset(found), onward)

    def _walk(
        self, found: "_CheapestPaths", ends: "_Ends", left: "_Left", random: Random
    ) -> tuple[int, tuple[int, ...]]:
        """A cheapest path: at each switch a uniform pick among the links and hosts that continue such a path."""
        switch, route, passed = found.start, list[int](), set[int]()
        while True:
            hosts = ends.hosts(switch) if switch in found.ends else ()
            steps = found.onward.get(switch, ())
            pick = int(random.random() * (len(hosts) + len(steps)))
            if pick < len(hosts):
                return hosts[pick], tuple(route)
            passed.add(switch)
            switch, link = steps[pick - len(hosts)]
            route.append(link)
            if not self._all_cost:  # a ring of links without cost must not lead back: search again from here
                again = self._search(switch, ends, left, frozenset(passed))
                if again is None:
                    raise PlanInvalid(f"a cheapest path ended at switch {self._topology.switches[switch]!r}")
                found = again


class _Left(NamedTuple):
    """The remaining units of each resource: views of the arrays of a Residual that are faster to index by element."""

    send: memoryview
    receive: memoryview
    disk: memoryview
    link: memoryview

    @classmethod
    def of(cls, residual: Residual) -> "_Left":
        """The views of a residual."""
        return cls(residual.send.data, residual.receive.data, residual.disk.data, residual.link.data)


def _take(counts: memoryview, number: int, taken: list[tuple[memoryview, int]]) -> None:
    counts[number] -= 1
    taken.append((counts, number))


class _CheapestPaths(NamedTuple):
    """The cheapest paths from `start`: their cost, the switches where they end, and the next steps on them."""

    start: int
    cost: int
    ends: frozenset[int]
    onward: dict[int, list[Step]]


class _Ends:
    """The candidates of one replica: where its path may end."""

    __slots__ = ("_barred", "_closed", "_disk", "_found", "_members", "_only", "_receive", "rack")

    def __init__(
        self,
        topology: Topology,
        left: _Left,
        closed: AbstractSet[int],
        *,
        rack: int = -1,
        barred: Sequence[int] = (),
        only: int = -1,
    ) -> None:
        """Hosts not in `closed`, in `rack` (-1: any), not in the racks `barred`; or `only` this host, a reader."""
        self._members = topology.members
        self._receive = left.receive
        self._disk = left.disk
        self._closed = closed
        self.rack = rack if only < 0 else topology.rack_of[only]
        self._barred = barred
        self._only = only
        self._found: dict[int, list[int]] = {}

    @classmethod
    def by_rules(
        cls,
        topology: Topology,
        left: _Left,
        rules: Sequence[PlacementRule],
        hosts: Sequence[int],
        closed: AbstractSet[int],
    ) -> "_Ends":
        """The candidates that `rules` allow for the next replica of a chain of `hosts`."""
        rack, barred = -1, list[int]()
        for rule in rules:
            other = topology.rack_of[hosts[rule.of]]
            if rule.relation is Relation.OTHER_RACK:
                barred.append(other)
            elif rule.relation is not Relation.OTHER_HOST:
                if rack not in (-1, other):
                    barred.append(other)  # in two racks at once: no candidate
                    barred.append(rack)
                rack = other
        return cls(topology, left, closed, rack=rack, barred=barred)

    def allows(self, switch: int) -> bool:
        """Whether the rules allow hosts of this switch."""
        return self.rack in (-1, switch) and switch not in self._barred

    def pick(self, switch: int, random: Random) -> int:
        """A uniformly random candidate on this switch; -1 if there is none."""
        members = self._members[switch]
        count = len(members)
        if self._only < 0:
            for _ in range(min(TRIES + count // 32, count)):  # a list of all hosts costs more
                host = members[int(random.random() * count)]
                if self._receive[host] > 0 and self._disk[host] > 0 and host not in self._closed:
                    return host
        hosts = self.hosts(switch)
        return hosts[int(random.random() * len(hosts))] if hosts else -1

    def hosts(self, switch: int) -> list[int]:
        """All candidates on this switch."""
        if switch not in self._found:
            self._found[switch] = self._look(self._members[switch])
        return self._found[switch]

    def _look(self, members: Sequence[int]) -> list[int]:
        if self._only >= 0:
            return [self._only] if self._receive[self._only] > 0 else []
        receive, disk, closed = self._receive, self._disk, self._closed
        return [host for host in members if receive[host] > 0 and disk[host] > 0 and host not in closed]


def _random_order(hops: Sequence[Hop], random: Random) -> Iterator[Hop]:
    """A few random picks, then all in random order: the first that succeeds is uniform among those that would."""
    count = len(hops)
    if count == 1:
        yield hops[0]
        return
    if count > TRIES:
        for _ in range(TRIES):
            yield hops[int(random.random() * count)]
    yield from random.sample(hops, count)

"""Where the replicas of a log chunk go: a min-cost flow over hosts and fault domains, with capacities as rates.

A chunk of a log fills for minutes or for days: it cannot hold a token of a disk for so long, as a chunk of a checkpoint
does (`scheduler.peace.online`). What it takes of a disk is a part of its rate, bytes per second. The flow: one unit for
each replica runs from the chunk over fault domains (zone, rack) to a host. A host takes one unit, a domain as many as
keep the replicas as far apart as there are domains; a unit costs what it adds to the sum of load² ÷ capacity over disks
and domains' links. That sum is least when all loads are in proportion to the capacities.

The members of a set form a chain: bytes go from each to the next. They enter a domain once, with its first member, and
not at all if the chain begins there; the link into the domain is charged for that, and not for members that get their
bytes within it.

Domains lie within each other, so the network is a tree, and costs are convex where each domain gets one member: the
cheapest path is never taken back (the sets that fit are the independent sets of a laminar matroid, and what they cost
is M♮-convex). So the flow is found by cheapest paths alone, one for each replica; `tests/peace` compares it with
networkx's and with all sets. Where a domain gets several members, and its link is known, the second one is cheaper than
the first; then the set found is not always the cheapest, though it lies as far apart.

Invariants:
* Members of a set are different hosts. Domains at a level have as equal a share of a set as their hosts allow; so no
  two members share a domain while there is another one.
* Members come in the order of the chain: each domain's next to each other, so that none is entered twice.
* Nothing is kept between calls: loads come in, sets go out. Ties go to the candidate that comes first.
* With held members that lie too close together, the others are chosen as far apart as they can be.

Costs: a pass over the candidates for each replica; 100 hosts and three replicas take less than a millisecond.

Sources: SGuard, section 5 (min-cost flow; replicas on different racks; its costs are hops, here they are loads);
Groenevelt, Two algorithms for maximizing a separable concave function over a polymatroid feasible region (1991).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.errors import PlacementError

Domain = tuple[str, ...]
"""A fault domain by the names on the way to it, from the widest: `("zone1", "rack3")`."""


Place = tuple[Domain, float]
"""Where a host is, and the bytes per second that its disk takes."""


class ReplicaSets:
    """See the module. `links`: bytes per second into domains, where they are known."""

    def __init__(self, places: Mapping[str, Place], links: Mapping[Domain, float] | None = None) -> None:
        for host, (_, bytes_s) in places.items():
            if not bytes_s > 0:
                raise PlacementError(f"host {host!r}: a disk of {bytes_s} bytes a second; must be above 0")
        for domain, bytes_s in (links or {}).items():
            if not bytes_s > 0:
                raise PlacementError(f"domain {'/'.join(domain)!r}: {bytes_s} bytes a second; must be above 0")
        self._links = dict(links or {})
        self._disks = {host: bytes_s for host, (_, bytes_s) in places.items()}
        self._ways = {host: _way(domain) for host, (domain, _) in places.items()}
        """The domains of each host, from the widest one."""
        self._linked = {host: [domain for domain in way if domain in self._links] for host, way in self._ways.items()}

    def choose(
        self,
        candidates: Sequence[str],
        held: Sequence[str],
        count: int,
        bytes_s: float,
        loads: Mapping[str, float],
        entering: Mapping[Domain, float],
    ) -> tuple[str, ...]:
        """Hosts among the candidates that join `held` as members of a set, `count` of them or all.

        `bytes_s`: of the chunk; `loads`: of all hosts, `entering`: over the links into domains, both in bytes per
        second, without the chunk. The chain begins at the first of `held`. Hosts without a place are ignored. Raises
        PlacementError for a negative rate.
        """
        if bytes_s < 0:
            raise PlacementError(f"a chunk of {bytes_s} bytes a second; must not be negative")
        own = [host for host in held if host in self._disks]
        left = [host for host in dict.fromkeys(candidates) if host in self._disks and host not in own]
        room = self._room([*own, *left], len(own) + min(count, len(left)))
        taken = Counter(domain for host in own for domain in self._ways[host])
        costs = {host: (loads.get(host, 0.0) + bytes_s / 2) / self._disks[host] for host in left}
        chosen: list[str] = []
        slack = 0
        while left and len(chosen) < count:
            fitting = [host for host in left if all(taken[way] < room[way] + slack for way in self._ways[host])]
            if not fitting:
                slack += 1  # held members lie too close together for the rest to make up for it
                continue
            best = min(fitting, key=lambda host: costs[host] + self._link_cost(host, taken, entering, bytes_s))
            chosen.append(best)
            left.remove(best)
            taken.update(self._ways[best])
        return tuple(self._chain(own, chosen))

    def crowding(self, hosts: Iterable[str], total: int) -> Callable[[Iterable[str]], int]:
        """How crowded sets of `total` members are that may lie on these hosts: the members that domains have beyond
        their share, over all domains. 0 for the sets that `choose` makes of them. Hosts without a place count for
        nothing.
        """
        room, ways = self._room([host for host in dict.fromkeys(hosts) if host in self._disks], total), self._ways

        def crowded(members: Iterable[str]) -> int:
            taken = Counter(domain for host in members for domain in ways.get(host, ()))
            return sum(max(0, count - room.get(domain, 0)) for domain, count in taken.items())

        return crowded

    def _chain(self, held: Sequence[str], chosen: Sequence[str]) -> list[str]:
        """The chosen hosts, each behind the nearest one: so each domain is entered once."""
        last, left, chain = (held or chosen)[:1], list(chosen), list[str]()
        while left:
            following = min(left, key=lambda host: -_shared(self._ways[host], self._ways[last[0]]))
            left.remove(following)
            chain.append(following)
            last = [following]
        return chain

    def _room(self, hosts: Iterable[str], total: int) -> dict[Domain, int]:
        """How many members of a set of `total` may lie in each domain: equal shares, as far as there are hosts."""
        sizes: Counter[Domain] = Counter({(): 0})
        children: dict[Domain, dict[Domain, None]] = {(): {}}
        alone: Counter[Domain] = Counter()
        for host in hosts:
            above: Domain = ()
            sizes[above] += 1
            for domain in self._ways[host]:
                sizes[domain] += 1
                children[above].setdefault(domain)
                children.setdefault(domain, {})
                above = domain
            alone[above] += 1
        room: dict[Domain, int] = {(): total}
        for domain, below in children.items():  # a domain comes before those in it
            parts = [*(sizes[child] for child in below), *[1] * alone[domain]]  # who lies in none below, lies alone
            share = _share(parts, min(room[domain], sizes[domain]))
            room.update(dict.fromkeys(below, share))
        return room

    def _link_cost(
        self, host: str, taken: Mapping[Domain, int], entering: Mapping[Domain, float], bytes_s: float
    ) -> float:
        """What a host adds to the links into domains that no member is in yet."""
        return sum(
            (entering.get(domain, 0.0) + bytes_s / 2) / self._links[domain]
            for domain in self._linked[host]
            if not taken[domain]
        )


def _way(domain: Domain) -> list[Domain]:
    return [domain[: depth + 1] for depth in range(len(domain))]


def _shared(one: Sequence[Domain], other: Sequence[Domain]) -> int:
    """How many domains two hosts share."""
    return sum(mine == theirs for mine, theirs in zip(one, other, strict=False))


def _share(sizes: Sequence[int], wanted: int) -> int:
    """The least share such that parts of these sizes, each with at most that, have as many as wanted."""
    share = 0
    while sum(min(share, size) for size in sizes) < wanted:
        share += 1
    return share

"""From counts to chains: what an integer program counted is dealt out to single chunks.

Invariants:
* Everything that was counted is dealt out, nothing else.
* No chunk gets an item twice (hosts of a chunk differ; a way does not lead back through the port it came by).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from scheduler.errors import PlanInvalid
from scheduler.topology import Topology

Item = TypeVar("Item", bound=Hashable)


def deal(counts: Sequence[Mapping[Item, int]]) -> list[tuple[Item, ...]]:
    """Tuples with `counts[p][item]` times `item` at place p, and no item twice in one tuple.

    All places have the same sum n, and no item more than n over all places: then it can be done (König: the bipartite
    multigraph of places and items has an edge colouring with n colours; each colour is a tuple). Raises PlanInvalid if
    the counts are not so.
    """
    left = [{item: count for item, count in place.items() if count > 0} for place in counts]
    sums = {sum(place.values()) for place in left}
    if len(sums) > 1:
        raise PlanInvalid(f"places with different sums {sorted(sums)} cannot be dealt out")
    number = sums.pop() if sums else 0
    load: dict[Item, int] = {}
    for items in left:
        for item, count in items.items():
            load[item] = load.get(item, 0) + count
    by_load: dict[int, set[Item]] = {}
    for item, count in load.items():
        by_load.setdefault(count, set()).add(item)
    if by_load and max(by_load) > number:
        raise PlanInvalid(f"{sorted(map(str, by_load[max(by_load)]))} more than {number} times in {number} tuples")
    tuples = []
    for rest in range(number, 0, -1):
        chosen = _matching(left, by_load.get(rest, set()))
        for place, item in enumerate(chosen):
            left[place][item] -= 1
            if not left[place][item]:
                del left[place][item]
            by_load[load[item]].discard(item)
            load[item] -= 1
            by_load.setdefault(load[item], set()).add(item)
        tuples.append(tuple(chosen))
    return tuples


def _matching(places: Sequence[Mapping[Item, int]], must: Iterable[Item]) -> list[Item]:
    """An item for each place, all different, the items in `must` among them: those with no tuple to spare.

    First each of these finds a place, then each other place an item: augmenting paths keep what is matched.
    """
    place_of: dict[Item, int] = {}
    item_at: dict[int, Item] = {}

    def seat(item: Item, seen: set[int]) -> bool:
        for place, items in enumerate(places):
            if item in items and place not in seen:
                seen.add(place)
                if place not in item_at or seat(item_at[place], seen):
                    item_at[place], place_of[item] = item, place
                    return True
        return False

    def fill(place: int, seen: set[Item]) -> bool:
        for item in places[place]:
            if item not in place_of:
                item_at[place], place_of[item] = item, place
                return True
        for item in places[place]:
            if item not in seen:
                seen.add(item)
                if fill(place_of[item], seen):
                    item_at[place], place_of[item] = item, place
                    return True
        return False

    for item in must:
        if not seat(item, set()):
            raise PlanInvalid(f"{item} must be in every tuple that is left, and cannot")
    for place in range(len(places)):
        if place not in item_at and not fill(place, set()):
            raise PlanInvalid(f"nothing is left for place {place}")
    return [item_at[place] for place in range(len(places))]


class Ways(Protocol):
    """Routes that were counted and are now taken one by one."""

    def take(self, start: int) -> tuple[int, tuple[int, ...]]:
        """A rack where a route from the rack `start` ends, and its links."""
        ...


class TreeWays:
    """Routes on a tree: at each switch what comes in is dealt out to what goes out, and nothing turns back.

    `starts[v]`, `ends[v]`: routes that start and end at switch v; `up[v]`, `down[v]`: how many use the link from v to
    its parent, and back.
    """

    HERE = -1  # the port by which a route starts or ends

    def __init__(
        self, topology: Topology, starts: Sequence[int], ends: Sequence[int], up: Sequence[int], down: Sequence[int]
    ) -> None:
        if topology.tree is None:
            raise PlanInvalid("routes of a tree on a network that is none")
        self._tree = topology.tree
        comes: list[dict[int, int]] = [{self.HERE: starts[v]} for v in range(len(starts))]
        goes: list[dict[int, int]] = [{self.HERE: ends[v]} for v in range(len(ends))]
        for v, parent in enumerate(self._tree.parent):
            if parent >= 0:  # ports are named after the switch at their other end
                goes[v][parent], comes[v][parent] = up[v], down[v]
                comes[parent][v], goes[parent][v] = up[v], down[v]
        self._next: list[dict[int, list[int]]] = []
        for v in range(len(starts)):
            onward: dict[int, list[int]] = {}
            for source, target in deal([comes[v], goes[v]]):
                onward.setdefault(source, []).append(target)
            self._next.append(onward)

    def take(self, start: int) -> tuple[int, tuple[int, ...]]:
        """A rack where a route from the rack `start` ends, and its links."""
        at, port, links = start, self.HERE, list[int]()
        while True:
            target = self._next[at][port].pop()
            if target == self.HERE:
                return at, tuple(links)
            links.append(self._tree.up[at] if target == self._tree.parent[at] else self._tree.down[target])
            at, port = target, at


class FlowWays:
    """Routes on any network, from flows of one commodity per start: `flows[start][link]`, `ends[start][rack]`.

    Rings in a flow are left out of the routes.
    """

    def __init__(self, topology: Topology, flows: dict[int, dict[int, int]], ends: dict[int, dict[int, int]]) -> None:
        self._topology = topology
        self._flows = flows
        self._ends = ends

    def take(self, start: int) -> tuple[int, tuple[int, ...]]:
        """A rack where a route from the rack `start` ends, and its links."""
        flows, ends = self._flows[start], self._ends[start]
        at, links, passed = start, list[int](), [start]
        while ends.get(at, 0) < 1:
            hop = next((hop for hop in self._topology.hops[at] if flows.get(hop.link, 0) > 0), None)
            if hop is None:
                raise PlanInvalid(f"a flow from switch {start} ends at switch {at}, where nothing is due")
            flows[hop.link] -= 1
            at = hop.target
            if at in passed:
                keep = passed.index(at)
                del passed[keep + 1 :], links[keep:]
            else:
                passed.append(at)
                links.append(hop.link)
        ends[at] -= 1
        return at, tuple(links)

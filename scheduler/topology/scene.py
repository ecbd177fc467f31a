"""The content of a network's picture: boxes for switches and racks, connections between them, and their layers.

Invariants: every server is in exactly one box; boxes keep the order of the switches. Hosts of a small network are
named, hosts of a larger one are squares or only a number; many like racks below the same switches are one stack, whose
values are ranges.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import networkx as nx

from scheduler.topology.model import Link, Server, Topology
from scheduler.topology.quantities import rate_for_people

MAX_NAMED_HOSTS: Final = 120
"""Hosts of a network up to which the picture names each."""
MAX_SQUARES: Final = 300
"""Hosts of a rack that are shown as squares; more are a number."""
MAX_RACKS: Final = 40
"""Racks up to which each has a box of its own."""

Layers = tuple[tuple[int, ...], ...]


class Range(NamedTuple):
    """The values of a property over the servers or links that a picture puts together."""

    min: float
    max: float

    @classmethod
    def over(cls, values: Iterable[float | None]) -> "Range | None":
        """The range of the values that are known; None without any."""
        known = [value for value in values if value is not None]
        return cls(min(known), max(known)) if known else None

    def count_text(self) -> str:
        """The range as whole numbers."""
        return f"{self.min:g}" if self.min == self.max else f"{self.min:g}–{self.max:g}"

    def rate_text(self) -> str:
        """The range as rates."""
        low, high = rate_for_people(self.min), rate_for_people(self.max)
        return low if low == high else f"{low} – {high}"


@dataclass(frozen=True, slots=True)
class Box:
    """A switch; a rack, if servers hang on it; a stack of like racks, if it has several names."""

    names: tuple[str, ...]
    servers: tuple[Server, ...]
    names_hosts: bool = False

    @property
    def title(self) -> str:
        """The name of the switch, or the first and the last name of a stack."""
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} … {self.names[-1]}"

    @property
    def summary(self) -> tuple[str, ...]:
        """The number of hosts, then the ranges of their capacities and rates; empty for a switch without servers."""
        if not self.servers:
            return ()
        hosts = f"{len(self.servers):,} host{'' if len(self.servers) == 1 else 's'}"
        if len(self.names) > 1:
            sizes = Range.over(Counter(server.rack for server in self.servers).values())
            hosts = f"{len(self.names):,} racks of {sizes.count_text() if sizes else 0} hosts"
        counts = {
            "send": Range.over(server.send for server in self.servers),
            "receive": Range.over(server.receive for server in self.servers),
            "disk": Range.over(server.disk for server in self.servers),
        }
        rates = {
            "link": Range.over(server.link_bytes_s for server in self.servers),
            "a disk's writer": Range.over(server.disk_bytes_s for server in self.servers),
        }
        return (
            hosts,
            *(f"{word} {known.count_text()}" for word, known in counts.items() if known is not None),
            *(f"{word} {known.rate_text()}" for word, known in rates.items() if known is not None),
        )

    @property
    def hosts_differ(self) -> bool:
        """Whether the hosts of the box have different capacities."""
        return len({(server.send, server.receive, server.disk) for server in self.servers}) > 1


class Direction(NamedTuple):
    """One direction of a connection: the ranges over all links that it stands for."""

    capacity: Range
    bytes_s: Range | None
    cost: Range

    @property
    def text(self) -> str:
        """The capacity, the rate if it is known, and the cost unless it is 1."""
        rate = [] if self.bytes_s is None else [self.bytes_s.rate_text()]
        cost = [] if self.cost == Range(1, 1) else [f"cost {self.cost.count_text()}"]
        return " · ".join([self.capacity.count_text(), *rate, *cost])


class Cable(NamedTuple):
    """All links between two boxes, which are given by number: `there` from a to b, `back` from b to a."""

    a: int
    b: int
    there: Direction | None
    back: Direction | None

    @property
    def is_symmetric(self) -> bool:
        """Whether both directions carry the same."""
        return self.there == self.back

    @property
    def max_capacity(self) -> float:
        """The largest capacity of a link of either direction."""
        return max(way.capacity.max for way in (self.there, self.back) if way is not None)


class Scene(NamedTuple):
    """Boxes, cables, and the layers of boxes from left to right; None: no layers, so the boxes form a circle.

    With layers, every cable leads to the right: `a` is in a layer before that of `b`.
    """

    boxes: tuple[Box, ...]
    cables: tuple[Cable, ...]
    layers: Layers | None

    def graph(self) -> "nx.Graph[int]":
        """The drawing as a graph: boxes are nodes, cables are edges."""
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(len(self.boxes)))
        graph.add_edges_from((cable.a, cable.b) for cable in self.cables)
        return graph


def scene_of(topology: Topology) -> Scene:
    """The content of a network's picture."""
    groups = _groups(topology)
    names_hosts = len(topology.servers) <= MAX_NAMED_HOSTS
    boxes = tuple(
        Box(
            tuple(topology.switches[switch] for switch in group),
            tuple(topology.servers[server] for switch in group for server in topology.members[switch]),
            names_hosts,
        )
        for group in groups
    )
    box_of = {topology.switches[switch]: number for number, group in enumerate(groups) for switch in group}
    scene = Scene(boxes, _cables(topology.links, box_of), None)
    depth = _depths(boxes, scene.graph())
    if any(depth[cable.a] == depth[cable.b] for cable in scene.cables):
        return scene
    order = sorted(depth, key=lambda box: depth[box])
    layers = tuple(tuple(layer) for _, layer in groupby(order, key=lambda box: depth[box]))
    rightwards = (
        cable if depth[cable.a] < depth[cable.b] else Cable(cable.b, cable.a, cable.back, cable.there)
        for cable in scene.cables
    )
    return Scene(boxes, tuple(rightwards), layers)


# ---- boxes and cables


def _groups(topology: Topology) -> list[list[int]]:
    """The switches of each box: one, unless there are too many racks."""
    if len(topology.racks) <= MAX_RACKS:
        return [[switch] for switch in range(len(topology.switches))]
    groups = _stacks(topology, exactly=True)
    if sum(bool(topology.members[group[0]]) for group in groups) > MAX_RACKS:
        groups = _stacks(topology, exactly=False)
    return groups


def _stacks(topology: Topology, *, exactly: bool) -> list[list[int]]:
    """Racks with the same neighbours together; `exactly`: only if their hosts and links are alike, too."""
    links: dict[int, list[tuple[object, ...]]] = {switch: [] for switch in range(len(topology.switches))}
    for link in topology.links:
        source, target = topology.switch_index[link.source], topology.switch_index[link.target]
        values = (link.capacity, link.cost, link.bytes_s) if exactly else ()
        links[source].append(("to", target, *values))
        links[target].append(("from", source, *values))
    groups: dict[object, list[int]] = {}
    for switch, ends in links.items():
        servers = [topology.servers[server] for server in topology.members[switch]]
        hosts = sorted(map(_traits, servers)) if exactly else []
        # Racks that are linked to each other have different neighbours, so they never share a stack.
        key = (frozenset(ends), tuple(hosts)) if servers else switch
        groups.setdefault(key, []).append(switch)
    return list(groups.values())


def _traits(server: Server) -> tuple[float, ...]:
    values = (server.send, server.receive, server.disk, server.link_bytes_s, server.disk_bytes_s)
    return tuple(-1.0 if value is None else float(value) for value in values)


def _cables(links: Sequence[Link], box_of: Mapping[str, int]) -> tuple[Cable, ...]:
    ways: dict[tuple[int, int], list[Link]] = {}
    for link in links:
        ways.setdefault((box_of[link.source], box_of[link.target]), []).append(link)
    pairs = dict.fromkeys((min(way), max(way)) for way in ways)
    return tuple(Cable(a, b, _direction(ways.get((a, b))), _direction(ways.get((b, a)))) for a, b in pairs)


def _direction(links: Sequence[Link] | None) -> Direction | None:
    if not links:
        return None
    capacity = Range.over(link.capacity for link in links) or Range(0, 0)
    cost = Range.over(link.cost for link in links) or Range(1, 1)
    return Direction(capacity, Range.over(link.bytes_s for link in links), cost)


# ---- layers


def _depths(boxes: Sequence[Box], graph: "nx.Graph[int]") -> Mapping[int, int]:
    """The layer of each box: in a tree the distance from its middle, else from the switches farthest from all racks.

    The order is that of a walk through the tree, so that lines do not cross.
    """
    racks = {number for number, box in enumerate(boxes) if box.servers}
    if nx.is_tree(graph):
        root = min(nx.center(graph), key=lambda box: (box in racks, box))
        depth = nx.single_source_shortest_path_length(graph, root)
        return {box: depth[box] for box in nx.dfs_preorder_nodes(graph, root)}
    distance = nx.multi_source_dijkstra_path_length(graph, racks, weight=None)
    deepest = max(distance.values())
    return {box: deepest - distance.get(box, deepest) for box in graph}

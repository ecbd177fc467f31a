"""What a picture of a network shows: boxes for switches and racks, connections between them, few enough to look at.

Invariants: every server is in exactly one box; boxes stand in the switches' order. Few hosts are shown one by one, many
as dots, very many as a number; many like racks below the same switches as one stack, whose values are ranges.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import networkx as nx

from scheduler.topology.model import Link, Server, Topology
from scheduler.topology.quantities import rate_for_people

MOST_HOSTS_SHOWN: Final = 120
"""Hosts in a picture in which each has a cell with its name."""
MOST_DOTS: Final = 300
"""Hosts of a rack that are dots; more are a number."""
MOST_RACKS: Final = 40
"""Boxes of racks below which none are put in stacks."""


class Span(NamedTuple):
    """The values that something has over the parts of a box: from the least to the most; None: some have none."""

    least: float
    most: float

    @classmethod
    def over(cls, values: Iterable[float | None]) -> "Span | None":
        """The span of some values; None without any."""
        known = [value for value in values if value is not None]
        return cls(min(known), max(known)) if known else None

    def whole(self) -> str:
        """As whole numbers."""
        return f"{self.least:g}" if self.least == self.most else f"{self.least:g}–{self.most:g}"

    def rate(self) -> str:
        """As rates."""
        least, most = rate_for_people(self.least), rate_for_people(self.most)
        return least if least == most else f"{least} – {most}"


@dataclass(frozen=True, slots=True)
class Box:
    """A switch; with hosts a rack; with several names a stack of like racks."""

    names: tuple[str, ...]
    servers: tuple[Server, ...]
    cells: bool = False  # hosts one by one

    @property
    def title(self) -> str:
        """What stands on top."""
        if len(self.names) == 1:
            return self.names[0]
        return f"{self.names[0]} … {self.names[-1]}"

    @property
    def summary(self) -> str:
        """How many hosts, and what they have in common."""
        if not self.servers:
            return ""
        many = len(self.servers)
        hosts = f"{many:,} host{'' if many == 1 else 's'}"
        if len(self.names) > 1:
            sizes = Span.over(Counter(server.rack for server in self.servers).values())
            hosts = f"{len(self.names):,} racks of {sizes.whole() if sizes else 0} hosts"
        return " · ".join([hosts, *self.traits()])

    def traits(self) -> list[str]:
        """Capacities and rates over all hosts of the box."""
        traits = []
        for word, values in (
            ("send", [server.send for server in self.servers]),
            ("receive", [server.receive for server in self.servers]),
            ("disk", [server.disk for server in self.servers]),
        ):
            if (span := Span.over(values)) is not None:
                traits.append(f"{word} {span.whole()}")
        for word, rates in (
            ("link", [server.link_bytes_s for server in self.servers]),
            ("a disk's writer", [server.disk_bytes_s for server in self.servers]),
        ):
            if (span := Span.over(rates)) is not None:
                traits.append(f"{word} {span.rate()}")
        return traits


class Direction(NamedTuple):
    """What goes one way over a connection: capacities and rates of all links that it stands for."""

    capacity: Span
    bytes_s: Span | None
    cost: Span

    @property
    def text(self) -> str:
        """Capacity, rate if known, cost if unusual."""
        parts = [self.capacity.whole()]
        if self.bytes_s is not None:
            parts.append(self.bytes_s.rate())
        if self.cost != Span(1, 1):
            parts.append(f"cost {self.cost.whole()}")
        return " · ".join(parts)


class Connection(NamedTuple):
    """Links between two boxes, by number: `there` from a to b, `back` from b to a."""

    a: int
    b: int
    there: Direction | None
    back: Direction | None


class Picture(NamedTuple):
    """Boxes and connections, each in its column, columns from left to right and from top to bottom.

    `parent[i]` is the box to the left that box i hangs on, if the boxes are a tree in columns; else all are None.
    """

    boxes: tuple[Box, ...]
    connections: tuple[Connection, ...]
    columns: tuple[tuple[int, ...], ...]
    parent: tuple[int | None, ...]


def picture(topology: Topology) -> Picture:
    """Boxes and connections of a network, and where they stand."""
    boxes, box_of = _boxes(topology)
    connections = _connections(topology.links, box_of)
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(boxes)))
    graph.add_edges_from((one.a, one.b) for one in connections)
    columns, parent = _columns(boxes, graph)
    return Picture(boxes, connections, columns, parent)


def _boxes(topology: Topology) -> tuple[tuple[Box, ...], Mapping[str, int]]:
    """All boxes, and which box a switch is in."""
    cells = len(topology.servers) <= MOST_HOSTS_SHOWN
    groups: list[list[int]] = [[switch] for switch in range(len(topology.switches))]
    if len(topology.racks) > MOST_RACKS:
        groups = _stacks(topology, exactly=True)
        if sum(bool(topology.members[group[0]]) for group in groups) > MOST_RACKS:
            groups = _stacks(topology, exactly=False)
    boxes = tuple(
        Box(
            tuple(topology.switches[switch] for switch in group),
            tuple(topology.servers[server] for switch in group for server in topology.members[switch]),
            cells,
        )
        for group in groups
    )
    return boxes, {topology.switches[switch]: number for number, group in enumerate(groups) for switch in group}


def _stacks(topology: Topology, *, exactly: bool) -> list[list[int]]:
    """Switches put together: racks with the same neighbours; `exactly`: whose hosts and links are alike, too."""
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


def _connections(links: Sequence[Link], box_of: Mapping[str, int]) -> tuple[Connection, ...]:
    ways: dict[tuple[int, int], list[Link]] = {}
    for link in links:
        ways.setdefault((box_of[link.source], box_of[link.target]), []).append(link)
    pairs = dict.fromkeys((min(way), max(way)) for way in ways)
    return tuple(Connection(a, b, _direction(ways.get((a, b))), _direction(ways.get((b, a)))) for a, b in pairs)


def _direction(links: Sequence[Link] | None) -> Direction | None:
    if not links:
        return None
    capacity, cost = (Span.over(values) for values in ([x.capacity for x in links], [x.cost for x in links]))
    return Direction(capacity or Span(0, 0), Span.over(link.bytes_s for link in links), cost or Span(1, 1))


def _columns(
    boxes: Sequence[Box], graph: "nx.Graph[int]"
) -> tuple[tuple[tuple[int, ...], ...], tuple[int | None, ...]]:
    """Which box stands in which column; and, for trees, below which box."""
    none: tuple[int | None, ...] = (None,) * len(boxes)
    racks = [number for number, box in enumerate(boxes) if box.servers]
    if nx.is_tree(graph):
        if len(racks) == len(boxes) and max(degree for _, degree in graph.degree) <= 2:
            end = next(box for box in graph if graph.degree(box) <= 1)
            return (tuple(nx.dfs_preorder_nodes(graph, end)),), none  # racks in a row
        root = min(nx.center(graph), key=lambda box: (bool(boxes[box].servers), box))
        parent = list(none)
        for above, below in nx.bfs_edges(graph, root):
            parent[below] = above
        depth = nx.single_source_shortest_path_length(graph, root)
        order = list(nx.dfs_preorder_nodes(graph, root))
        columns = [[box for box in order if depth[box] == level] for level in range(max(depth.values()) + 1)]
        return tuple(map(tuple, columns)), tuple(parent)
    if len(racks) == len(boxes):
        return (tuple(nx.dfs_preorder_nodes(graph)),), none  # for a ring: its order
    level = nx.multi_source_dijkstra_path_length(graph, set(racks), weight=None)
    most = max(level.values())
    rows = [[box for box in graph if level.get(box, most) == most - column] for column in range(most + 1)]
    return tuple(map(tuple, _untangled(rows, graph))), none


def _untangled(columns: list[list[int]], graph: "nx.Graph[int]") -> list[list[int]]:
    """The boxes of each column ordered by where their neighbours stand (the barycentre heuristic, a few sweeps)."""
    for _ in range(4):
        place = {box: row / len(column) for column in columns for row, box in enumerate(column)}
        for number, column in enumerate(columns):
            middle = {box: _mean([place[other] for other in graph[box]], place[box]) for box in column}
            columns[number] = sorted(column, key=lambda box, middle=middle: (middle[box], box))  # type: ignore[misc]
            place.update({box: row / len(column) for row, box in enumerate(columns[number])})
    return columns


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise

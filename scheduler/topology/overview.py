"""Sums over a network: for each rack, the capacities of its servers and of the links of its switch.

Invariant: reads a topology and changes nothing. Sums are in chunks per timestep.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

from scheduler.topology.model import Topology


@dataclass(frozen=True, slots=True)
class RackOverview:
    """A rack: sums over its servers, and over the links between its switch and others.

    `disk` is None if no server limits it. `over_out` and `over_in` are the oversubscription: how many times more its
    servers could send, or receive, than its links carry; 0 where there are no links.
    """

    name: str
    servers: int
    send: int
    receive: int
    disk: int | None
    out: int
    into: int
    over_out: float
    over_in: float


class Overview(NamedTuple):
    """The whole network. `levels`: of switches, if they are a tree; `why_no_tree`: else the reason."""

    racks: tuple[RackOverview, ...]
    is_tree: bool
    levels: int
    why_no_tree: str
    warnings: tuple[str, ...]

    def values(self) -> dict[str, object]:
        """The overview as plain values, ready for JSON."""
        return self._asdict() | {"racks": [asdict(rack) for rack in self.racks], "warnings": list(self.warnings)}


def overview(topology: Topology) -> Overview:
    """The sums over a network, its shape, and warnings about it."""
    tree = topology.tree
    racks = tuple(_rack(topology, rack) for rack in topology.racks)
    return Overview(
        racks,
        tree is not None,
        0 if tree is None else max(tree.depth) + 1,
        "" if tree is not None else _why_no_tree(topology),
        tuple(_warnings(topology)),
    )


def _rack(topology: Topology, rack: int) -> RackOverview:
    servers = [topology.servers[server] for server in topology.members[rack]]
    name = topology.switches[rack]
    out = sum(topology.links[hop.link].capacity for hop in topology.hops[rack])
    into = sum(link.capacity for link in topology.links if link.target == name)
    send, receive = sum(server.send for server in servers), sum(server.receive for server in servers)
    disks = [server.disk for server in servers if server.disk is not None]
    return RackOverview(
        name, len(servers), send, receive, sum(disks) if disks else None, out, into,
        send / out if out else 0.0, receive / into if into else 0.0,
    )  # fmt: skip


def _why_no_tree(topology: Topology) -> str:
    ways = Counter((link.source, link.target) for link in topology.links)
    for source, target in ways:
        if (target, source) not in ways:
            return f"the link from {source!r} to {target!r} has none back"
    connections, needed = len(ways) // 2, len(topology.switches) - 1
    if connections > needed:
        return f"it has rings: {connections} connections between {len(topology.switches)} switches"
    return f"not all switches are connected: {connections} connections between {len(topology.switches)} switches"


def _warnings(topology: Topology) -> Iterator[str]:
    """Warnings about values that are allowed, but probably mistakes."""
    closed = [link for link in topology.links if link.capacity == 0]
    if closed:
        others = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
        first = f"link from {closed[0].source!r} to {closed[0].target!r}"
        yield f"{first}{others}: capacity is 0, so nothing is planned there"
    for what, values in (
        ("send", [server.send for server in topology.servers]),
        ("receive", [server.receive for server in topology.servers]),
        ("disk", [1 if server.disk is None else server.disk for server in topology.servers]),
    ):
        zero = [server.name for server, value in zip(topology.servers, values, strict=True) if value == 0]
        if zero:
            others = f" and {len(zero) - 1} more" if len(zero) > 1 else ""
            yield f"server {zero[0]!r}{others}: {what} is 0, so nothing is planned there"
    if len(topology.racks) < 2 < len(topology.servers):
        yield "only one rack: replicas cannot be spread over racks"

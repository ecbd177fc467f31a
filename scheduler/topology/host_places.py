"""Where the servers of a description are, as a host of a cluster asks.

Invariant: a server's domains are the switches above it but for the topmost, the widest first; in a network that is no
tree, its rack alone.
"""

from pathlib import Path

from logstore.base.racks import HostPlace
from scheduler.topology.description import load_topology
from scheduler.topology.model import Topology, disk_capacity


def places(path: Path) -> dict[str, HostPlace]:
    """Where the servers of a description are, by name and by address. Raises TopologyError, OSError."""
    topology = load_topology(path)
    found: dict[str, HostPlace] = {}
    for number, server in enumerate(topology.servers):
        way = _way(topology, topology.rack_of[number])
        rates = tuple(int(_rate_into(topology, switch)) for switch in way)
        writers = disk_capacity(server)
        disk = 0 if server.disk_bytes_s is None else int(server.disk_bytes_s * max(1, min(writers, server.receive)))
        rack = "".join("/" + topology.switches[switch].strip("/").replace("/", ".") for switch in way)
        place = HostPlace(rack, disk, rates)
        found.update(dict.fromkeys([server.name, *([server.address] if server.address else [])], place))
    return found


def _way(topology: Topology, rack: int) -> list[int]:
    """The switches above a server, the widest first, without the topmost of a tree."""
    if topology.tree is None:
        return [rack]
    way = [rack]
    while (parent := topology.tree.parent[way[-1]]) >= 0:
        way.append(parent)
    return way[::-1][1:] or ([] if len(topology.switches) == 1 else [rack])


def _rate_into(topology: Topology, switch: int) -> float:
    """Bytes per second of the link from the parent; 0: not known, or there is none."""
    if topology.tree is None or topology.tree.down[switch] < 0:
        return 0.0
    return topology.links[topology.tree.down[switch]].bytes_s or 0.0

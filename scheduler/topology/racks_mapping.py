"""Racks that operators have written down elsewhere (`logstore.base.racks`), as a description of a network.

Invariants:
* A switch for each domain, named by its path, below one switch, NETWORK, which holds the hosts without a rack.
* Nothing is known of links and disks, so no link is a narrow place: each carries what all servers below it send and
  receive at the default capacity. Whoever knows better writes the description out (`--toml`) and edits it.
"""

from collections import Counter
from typing import Final

from logstore.base.racks import Racks, domains
from scheduler.topology.model import DEFAULT_CAPACITY

NETWORK: Final = "network"


def racks_mapping(racks: Racks) -> dict[str, object]:
    """The description of a network with these hosts, as `parse_network` takes it."""
    below: Counter[str] = Counter()
    for host in racks.hosts:
        below.update(_paths(host.path))
    switches: list[dict[str, object]] = [{"name": NETWORK}]
    for path, servers in below.items():
        parent = path.rpartition("/")[0] or NETWORK
        switches.append({"name": path, "parent": parent, "capacity": DEFAULT_CAPACITY * servers})
    rows: list[dict[str, object]] = []
    for host in racks.hosts:
        address = {"address": host.aliases[0]} if host.aliases else {}
        rows.append({"name": host.name, "rack": host.path or NETWORK, **address})
    return {"switch": switches, "server": rows}


def _paths(path: str) -> list[str]:
    """The paths of all domains of a host, the widest first."""
    parts = domains(path)
    return ["".join(f"/{part}" for part in parts[: depth + 1]) for depth in range(len(parts))]

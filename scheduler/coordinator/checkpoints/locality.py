"""Which host loads a unit's state best: the host that has most of the files, else the host that is nearest to them.

Distances are those of Peace's network model (SGuard, section 5): every physical connection costs 1, two servers of a
rack are two connections apart.

Invariants: sans-I/O. The order is total, so that equal questions get equal answers. The work is bounded by the racks
times the different sets of racks that have a file, and by MAX_SETS of these.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from scheduler.coordinator.checkpoints.registry import RegisteredFile
from scheduler.topology import Topology

UP_AND_DOWN = 2
"""The connections between a server, its switch, and another server of the switch."""
MAX_SETS = 1024
"""Different sets of racks that count for the distance; the sets with the fewest bytes beyond are left out."""


class HostChoice(NamedTuple):
    """A host, the bytes that it has itself, and the mean distance of a byte in connections; None: not known."""

    host: str
    bytes: int
    distance: float | None


class RackDistances:
    """The shortest ways between the racks of a network; each rack's are computed once."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._from: dict[int, dict[int, int]] = {}

    def between(self, source: int, target: int) -> int | None:
        """The connections from one switch to another; None if no way leads there."""
        if source not in self._from:
            self._from[source] = self._shortest(source)
        return self._from[source].get(target)

    def _shortest(self, source: int) -> dict[int, int]:
        """Dijkstra's algorithm over the links' costs; the distances to the racks, not to every switch, are kept."""
        found: dict[int, int] = {}
        waiting = [(0, source)]
        while waiting:
            distance, switch = heapq.heappop(waiting)
            if switch not in found:
                found[switch] = distance
                for hop in self.topology.hops[switch]:
                    if hop.target not in found:
                        heapq.heappush(waiting, (distance + hop.cost, hop.target))
        return {rack: found[rack] for rack in self.topology.racks if rack in found}


def hosts_by_nearness(
    files: Iterable[RegisteredFile],
    topology: Topology,
    distances: RackDistances,
    is_lost: Callable[[str], bool],
    name_of: Callable[[str], str] = str,
) -> list[HostChoice]:
    """All hosts that are not lost, the best to load these files first. `name_of`: the host's name for an address.

    The order: most bytes of its own first; then by the mean distance of a byte from its nearest replica,
    hosts without a known distance last; then by name. Hosts outside the topology count if they have a file.
    """
    own: Counter[str] = Counter()
    by_hosts: Counter[tuple[str, ...]] = Counter()
    for file in files:
        by_hosts[tuple(sorted({name_of(host) for host in file.hosts}))] += file.bytes
    for holders, file_bytes in by_hosts.items():
        for host in holders:
            own[host] += file_bytes
    by_racks: Counter[frozenset[int]] = Counter()
    for holders, file_bytes in by_hosts.items():
        racks = frozenset(_rack(topology, host) for host in holders if host in topology.index and not is_lost(host))
        if racks:
            by_racks[racks] += file_bytes
    sets = by_racks.most_common(MAX_SETS)
    of_rack = {rack: _mean_distance(rack, sets, distances) for rack in topology.racks}
    names = [server.name for server in topology.servers] + [host for host in own if host not in topology.index]
    found = [
        HostChoice(name, own[name], of_rack[_rack(topology, name)] if name in topology.index else None)
        for name in names
        if not is_lost(name)
    ]
    return sorted(found, key=_order)


def _rack(topology: Topology, host: str) -> int:
    return topology.rack_of[topology.index[host]]


def _mean_distance(rack: int, sets: Collection[tuple[frozenset[int], int]], distances: RackDistances) -> float | None:
    """The mean over all bytes of the connections to the nearest rack that has them; None without known ways."""
    total = weight = 0
    for racks, file_bytes in sets:
        ways = [way for source in racks if (way := distances.between(source, rack)) is not None]
        if ways:
            total += (UP_AND_DOWN + min(ways)) * file_bytes
            weight += file_bytes
    return total / weight if weight else None


def _order(choice: HostChoice) -> tuple[int, bool, float, str]:
    return -choice.bytes, choice.distance is None, choice.distance or 0.0, choice.host

"""The physical resources of a cluster: disks, links and clients, numbered, and the resources that a chain uses.

Invariants:
* Hosts and links between switches have the topology's numbers; resources are numbered once and never change.
* Switches themselves are never the bottleneck; every link carries its rate each way at the same time.
* All traffic between two racks takes one cheapest route.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from scheduler.peace.plan import TransferKind
from scheduler.simulation.fairness import Floats
from scheduler.simulation.measured import PAPER, Physics
from scheduler.topology import Topology


class Use(NamedTuple):
    """A resource that a chain uses, and whether it is a disk that is written or read."""

    resource: int
    disk_write: bool = False
    disk_read: bool = False


class SimulatedCluster:
    """Capacities and routes of a topology, with the physics of its hosts.

    Resources, n hosts: links up 0 … n-1, links down n …, disks 2n …, writing clients 3n …, reading clients 4n …, then
    the links between switches.
    """

    def __init__(self, topology: Topology, physics: Physics = PAPER) -> None:
        self.topology = topology
        self.physics = physics
        self.hosts = len(topology.servers)
        self.resources = 5 * self.hosts + len(topology.links)
        link = physics.link_bytes_s
        own = [server.link_bytes_s or link for server in topology.servers]
        between = [connection.bytes_s or link for connection in topology.links]
        rest = [np.inf] * (3 * self.hosts)
        self.capacity: Floats = np.array([*own, *own, *rest, *between])
        alone = physics.disk_write.per_client(1)
        self.disk_factor: Floats = np.array([(server.disk_bytes_s or alone) / alone for server in topology.servers])
        """The speed of each host's disk as a multiple of table 8's disk."""
        self._routes: dict[tuple[int, int], tuple[int, ...]] = {}

    def up(self, host: int) -> int:
        """The link from a host to its switch."""
        return host

    def down(self, host: int) -> int:
        """The link from its switch to a host."""
        return self.hosts + host

    def disk(self, host: int) -> int:
        """A host's disk."""
        return 2 * self.hosts + host

    def link(self, link: int) -> int:
        """A link between switches."""
        return 5 * self.hosts + link

    def resource_name(self, resource: int) -> str:
        """The name of a resource for people."""
        group, number = divmod(resource, self.hosts)
        if group >= 5:
            link = self.topology.links[resource - 5 * self.hosts]
            return f"{link.source} → {link.target}"
        kind = ("up", "down", "disk", "writer", "reader")[group]
        return f"{self.topology.servers[number].name} {kind}"

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """The links between switches on the way from one host to another, in order."""
        ends = (self.topology.rack_of[source], self.topology.rack_of[target])
        if ends not in self._routes:
            self._routes[ends] = self._cheapest(*ends)
        return self._routes[ends]

    def uses(self, hosts: Sequence[int], kind: TransferKind) -> list[Use]:
        """Every resource on the path of a chunk; a resource that is passed twice occurs twice."""
        uses: list[Use] = []
        if kind is TransferKind.WRITE:
            uses.append(Use(3 * self.hosts + hosts[0]))
        else:
            uses.append(Use(self.disk(hosts[0]), disk_read=True))
        for source, target in pairwise(hosts):
            if source != target:
                uses.append(Use(self.up(source)))
                uses.extend(Use(self.link(link)) for link in self.route(source, target))
                uses.append(Use(self.down(target)))
            if kind is not TransferKind.READ:
                uses.append(Use(self.disk(target), disk_write=True))
        if kind is TransferKind.READ:
            uses.append(Use(4 * self.hosts + hosts[-1]))
        return uses

    def _cheapest(self, start: int, end: int) -> tuple[int, ...]:
        """The cheapest route, by Dijkstra's algorithm over the switches; ties go to the lower numbers of links."""
        heap: list[tuple[int, tuple[int, ...], int]] = [(0, (), start)]
        seen: set[int] = set()
        while heap:
            cost, links, switch = heappop(heap)
            if switch == end:
                return links
            if switch not in seen:
                seen.add(switch)
                for hop in self.topology.hops[switch]:
                    heappush(heap, (cost + hop.cost, (*links, hop.link), hop.target))
        raise AssertionError("a topology's servers all reach each other")

"""The network that Peace plans on: servers in racks, switches of any depth, capacities in chunks per timestep.

The model is SGuard's (section 5, figure 5). A server has a sending and a receiving process and a link up to and a link
down from its switch; what a link carries, and how many writers a disk serves well, is a whole number of chunks per
timestep. A physical connection costs 1, a passage inside a switch nothing.

Invariants:
* Servers, switches and directed links are numbered in the order given; the numbers never change.
* Every server reaches every other; names are unique; capacities are not negative, rates positive. Else TopologyError.
* A rack is a switch that servers hang on.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from scheduler.errors import TopologyError

CHUNK_BYTES = 64 << 20
DEFAULT_CAPACITY = 2
"""The paper's chunks per timestep of a server (section 6.2): to receive by table 8, to send a conservative choice."""


@dataclass(frozen=True, slots=True)
class Server:
    """A host. `send`, `receive`, `disk`: chunks per timestep; `disk` None: the receive capacity covers it (the paper).

    `link_bytes_s` and `disk_bytes_s` are physical rates, where they are known: of the link each way, of one writer.
    """

    name: str
    rack: str
    send: int = DEFAULT_CAPACITY
    receive: int = DEFAULT_CAPACITY
    disk: int | None = None
    address: str | None = None
    link_bytes_s: float | None = None
    disk_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a connection between two switches; `capacity` in chunks per timestep, `bytes_s` if known."""

    source: str
    target: str
    capacity: int
    cost: int = 1
    bytes_s: float | None = None


class Tree(NamedTuple):
    """Switches as a rooted tree, by number. For the root, `parent`, `up` and `down` are -1."""

    parent: tuple[int, ...]
    up: tuple[int, ...]  # the link from a switch to its parent
    down: tuple[int, ...]  # the link from the parent to it
    depth: tuple[int, ...]
    order: tuple[int, ...]  # parents before children


class Hop(NamedTuple):
    """A link out of a switch."""

    target: int
    link: int
    cost: int


UNLIMITED = 1 << 30
"""The capacity of a disk without a limit, and the largest capacity: planners count in 32 bits."""


class Topology:
    """Servers, switches and links, checked and numbered. Raises TopologyError that names the entry.

    `switches` left out: the racks that servers name. `index` and `switch_index` give the numbers of names, `rack_of`
    each server's switch.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        links: Sequence[Link] = (),
        *,
        switches: Sequence[str] = (),
        name: str = "network",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.name = name
        self.chunk_bytes = chunk_bytes
        self.servers = tuple(servers)
        self.links = tuple(links)
        self.switches = tuple(dict.fromkeys(switches or [server.rack for server in servers]))
        self.index = {server.name: number for number, server in enumerate(self.servers)}
        self.switch_index = {switch: number for number, switch in enumerate(self.switches)}
        self._check(switches)
        self.rack_of = tuple(self.switch_index[server.rack] for server in self.servers)
        self._check_reach()

    # ---- what planners ask

    @cached_property
    def racks(self) -> tuple[int, ...]:
        """The switches that servers hang on, by number, ascending."""
        return tuple(sorted(set(self.rack_of)))

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """For each switch, its servers."""
        lists: list[list[int]] = [[] for _ in self.switches]
        for server, rack in enumerate(self.rack_of):
            lists[rack].append(server)
        return tuple(map(tuple, lists))

    @cached_property
    def hops(self) -> tuple[tuple[Hop, ...], ...]:
        """For each switch, the links out of it."""
        lists: list[list[Hop]] = [[] for _ in self.switches]
        for number, link in enumerate(self.links):
            target = self.switch_index[link.target]
            lists[self.switch_index[link.source]].append(Hop(target, number, link.cost))
        return tuple(map(tuple, lists))

    @cached_property
    def link_index(self) -> dict[tuple[str, str], int]:
        """The numbers of links by the names of their ends."""
        return {(link.source, link.target): number for number, link in enumerate(self.links)}

    @cached_property
    def tree(self) -> Tree | None:
        """The switches as a tree, if they are one: all connected, each connection both ways, and no rings.

        The root is the first switch without servers, else the first switch: a plan is the same for every root.
        """
        pairs = {
            (self.switch_index[link.source], self.switch_index[link.target]): number
            for number, link in enumerate(self.links)
        }
        if any((target, source) not in pairs for source, target in pairs):
            return None
        if len(pairs) != 2 * (len(self.switches) - 1):
            return None
        root = next((n for n in range(len(self.switches)) if not self.members[n]), 0)
        parent, depth = [-1] * len(self.switches), [0] * len(self.switches)
        order, reached = [root], {root}
        for switch in order:  # grows while it is walked
            for hop in self.hops[switch]:
                if hop.target not in reached:
                    parent[hop.target], depth[hop.target] = switch, depth[switch] + 1
                    order.append(hop.target)
                    reached.add(hop.target)
        if len(order) != len(self.switches):
            return None  # as many connections as a tree has, but some form a ring, and a switch stands apart
        up = tuple(-1 if parent[n] < 0 else pairs[n, parent[n]] for n in range(len(self.switches)))
        down = tuple(-1 if parent[n] < 0 else pairs[parent[n], n] for n in range(len(self.switches)))
        return Tree(tuple(parent), up, down, tuple(depth), tuple(order))

    # ---- checks

    def _check(self, switches: Sequence[str]) -> None:
        if not self.servers:
            raise TopologyError("no servers: a network needs at least one")
        for kind, names in (("server", [server.name for server in self.servers]), ("switch", list(switches))):
            for name in _duplicates(names):
                raise TopologyError(f"{kind} {name!r} appears twice: names must be unique")
        if self.chunk_bytes < 1:
            raise TopologyError(f"chunk_bytes={self.chunk_bytes!r}: must be 1 or more")
        for server in self.servers:
            if server.rack not in self.switch_index:
                raise TopologyError(f"server {server.name!r}: unknown rack {server.rack!r}; add a switch of that name")
            for field in ("send", "receive", "disk"):
                _check_capacity(f"server {server.name!r}", field, getattr(server, field))
            for field in ("link_bytes_s", "disk_bytes_s"):
                _check_rate(f"server {server.name!r}", field, getattr(server, field))
        seen: set[tuple[str, str]] = set()
        for link in self.links:
            where = f"link {link.source!r} to {link.target!r}"
            for end in (link.source, link.target):
                if end not in self.switch_index:
                    raise TopologyError(f"{where}: unknown switch {end!r}; links connect switches that are listed")
            if link.source == link.target:
                raise TopologyError(f"{where}: a switch needs no link to itself")
            if (link.source, link.target) in seen:
                raise TopologyError(f"{where} appears twice: add their capacities and give one")
            seen.add((link.source, link.target))
            _check_capacity(where, "capacity", link.capacity)
            _check_capacity(where, "cost", link.cost)
            _check_rate(where, "bytes_s", link.bytes_s)

    def _check_reach(self) -> None:
        first = self.rack_of[0]
        ways = {
            "{host} cannot be reached from {first}": [(link.source, link.target) for link in self.links],
            "{first} cannot be reached from {host}": [(link.target, link.source) for link in self.links],
        }
        for way, hops in ways.items():
            reached = self._reached(first, hops)
            for server in self.servers:
                if self.switch_index[server.rack] not in reached:
                    problem = way.format(host=f"server {server.name!r}", first=f"server {self.servers[0].name!r}")
                    racks = f"{server.rack!r} and {self.servers[0].rack!r}"
                    raise TopologyError(f"{problem}: no links connect {racks} that way")

    def _reached(self, first: int, hops: Sequence[tuple[str, str]]) -> set[int]:
        """The switches that can be reached from one over these hops."""
        following: dict[int, list[int]] = {}
        for source, target in hops:
            following.setdefault(self.switch_index[source], []).append(self.switch_index[target])
        reached, left = {first}, [first]
        while left:
            for switch in following.get(left.pop(), ()):
                if switch not in reached:
                    reached.add(switch)
                    left.append(switch)
        return reached


def disk_capacity(server: Server) -> int:
    """Chunks that a server's disk takes in a timestep, beyond what its link allows."""
    return UNLIMITED if server.disk is None else server.disk


def both_ways(a: str, b: str, capacity: int, *, bytes_s: float | None = None) -> tuple[Link, Link]:
    """A connection between two switches: the same capacity each way."""
    return Link(a, b, capacity, bytes_s=bytes_s), Link(b, a, capacity, bytes_s=bytes_s)


def racks(sizes: Sequence[int], uplink: int, *, send: int = DEFAULT_CAPACITY, receive: int | None = None) -> Topology:
    """A network of racks below one switch: `sizes[i]` servers in rack i, named `r1h1`, `r1h2`, …

    `uplink` is what a rack's connection to the switch above carries each way, in chunks per timestep.
    """
    servers = [
        Server(f"r{rack}h{host}", f"rack{rack}", send, send if receive is None else receive)
        for rack, size in enumerate(sizes, 1)
        for host in range(1, size + 1)
    ]
    names = [f"rack{rack}" for rack in range(1, len(sizes) + 1)]
    links = [link for name in names for link in both_ways(name, "core", uplink)]
    return Topology(servers, links, switches=["core", *names], name=f"{len(sizes)} racks")


def _check_capacity(where: str, field: str, value: object) -> None:
    if value is None and field == "disk":
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= UNLIMITED:
        raise TopologyError(f"{where}: {field}={value!r} must be a whole number, 0 or more (up to {UNLIMITED})")


def _check_rate(where: str, field: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise TopologyError(f"{where}: {field}={value!r} must be above 0, in bytes per second")


def _duplicates(names: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)

"""From measured rates to capacities, and which pairs of hosts to measure. Sans-I/O.

A receiver is bound by its disk's knee, from SGuard's table 8: a capacity is the largest number of writers at a time at
which each still gets at least a share of what one alone gets (0.6 by default). Its data nodes write 30.0, 22.5, 9.9, …
MB/s for each of 1, 2, 4, … writers: two keep 75 %, four 33 %, so 2, the paper's.

A sender is bound by what fills its link: `rate × timestep ÷ chunk` chunks, rounded down, at least 1; measuring errors
of 5 % are granted. That each of many parallel writes is slower than a lone one only says that they share the link.
Where they do not fill it together (a slow processor), what they carry counts instead. Links between switches likewise.
A timestep is the time one chunk takes to a server: over its link, onto a disk that serves as many writers as its
capacity allows, whichever is slower, in the median over the servers. A server receives no more than its disk takes
(section 6.2 puts the limit of the disk there). The paper set 2 for senders, which it calls conservative: its client
filled its link with four threads.

Invariants: what was not measured keeps its value; every capacity that comes from a measurement is at least 1.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median
from typing import Final, NamedTuple

import networkx as nx

from scheduler.topology import Link, Server, Topology

DEFAULT_SHARE: Final = 0.6
MEASURING_ERROR: Final = 0.05
SATURATED: Final = 0.9
"""A link that carries less than this share of what its senders could send is the bottleneck: that is its rate."""

FILLED: Final = 0.85
"""A host whose parallel writes carry this share of its link together fills it: the rest is checksums and headers."""


@dataclass(frozen=True, slots=True)
class HostRates:
    """What was measured of a host, bytes per second; None or empty: was not. By concurrency: the rate of each."""

    send: float | None = None
    receive: float | None = None
    disk: Mapping[int, float] = field(default_factory=dict)
    writes: Mapping[int, float] = field(default_factory=dict)
    """Of each of so many parallel writes through to other hosts' disks."""


class LinkRate(NamedTuple):
    """What pairs of hosts got over a link together; `full`: the link held them back, so it is the link's own rate."""

    bytes_s: float
    full: bool
    pairs: int


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements: by server's name, by link's number."""

    hosts: Mapping[str, HostRates] = field(default_factory=dict)
    links: Mapping[int, LinkRate] = field(default_factory=dict)


class Calibrated(NamedTuple):
    """A network with measured capacities, its timestep if one is known, and what to know about it."""

    topology: Topology
    timestep_s: float | None
    notes: tuple[str, ...]


def concurrency(each: Mapping[int, float], share: float = DEFAULT_SHARE) -> int:
    """How many at a time are served well: the largest tested number up to which each gets a share of one's rate."""
    alone = each[min(each)]
    best = min(each)
    for number in sorted(each):
        if each[number] < share * alone:
            break
        best = number
    return best


def chunks_per_timestep(bytes_s: float, timestep_s: float, chunk_bytes: int) -> int:
    """A capacity from a rate: rounded down, but for measuring errors; at least 1."""
    return max(1, int(bytes_s * timestep_s / chunk_bytes * (1 + MEASURING_ERROR)))


def calibrate(topology: Topology, measured: Measured, share: float = DEFAULT_SHARE) -> Calibrated:
    """The network with the capacities that the measurements give.

    Servers that were not measured get the median of those of their rack that were.
    """
    filled = fill(topology, measured)
    disks = {name: concurrency(rates.disk, share) for name, rates in filled.items() if rates.disk}
    disk_rates = {name: filled[name].disk[count] for name, count in disks.items()}
    paces = [pace for server in topology.servers if (pace := _pace(server, filled[server.name], disk_rates))]
    timestep_s = _digits(topology.chunk_bytes / median(paces)) if paces else None
    notes = [] if timestep_s else ["nothing was measured that tells how long a timestep is: capacities stay"]

    def capacity(bytes_s: float | None, old: int) -> int:
        if bytes_s is None or timestep_s is None:
            return old
        return chunks_per_timestep(bytes_s, timestep_s, topology.chunk_bytes)

    servers = []
    for server in topology.servers:
        rates = filled[server.name]
        disk = server.disk
        send, receive = capacity(_sending(rates), server.send), capacity(rates.receive, server.receive)
        if server.name in disks and timestep_s is not None:
            # A slow disk does less in a timestep than so many writers; a fast one still serves no more of them well.
            one = chunks_per_timestep(disks[server.name] * disk_rates[server.name], timestep_s, topology.chunk_bytes)
            disk = min(disks[server.name], one)
            receive = min(receive, disk)
        link_rates = [rate for rate in (rates.send, rates.receive) if rate is not None]
        servers.append(
            replace(
                server, send=send, receive=receive, disk=disk,
                link_bytes_s=_digits(min(link_rates, default=server.link_bytes_s)),
                disk_bytes_s=_digits(disk_rates.get(server.name, server.disk_bytes_s)),
            )
        )  # fmt: skip
    links, more = _links(topology.links, measured.links, capacity)
    made = Topology(servers, links, switches=topology.switches, name=topology.name, chunk_bytes=topology.chunk_bytes)
    return Calibrated(made, timestep_s, (*notes, *more))


def _sending(rates: HostRates) -> float | None:
    """What a host sends: what its link carries, or what its parallel writes do if they cannot fill it."""
    together = max((count * each for count, each in rates.writes.items()), default=None)
    if rates.send is None or together is None or together >= FILLED * rates.send:
        return rates.send
    return together


def _pace(server: Server, rates: HostRates, disk_rates: Mapping[str, float]) -> float | None:
    """How fast a chunk gets to a server: over its link and onto its disk, as far as they are known."""
    known = (rates.receive or server.link_bytes_s, disk_rates.get(server.name, server.disk_bytes_s))
    return min((rate for rate in known if rate is not None), default=None)


def _digits(value: float | None) -> float | None:
    """The three digits that a measurement is worth."""
    return None if value is None else float(f"{value:.3g}")


def _links(
    links: Sequence[Link], measured: Mapping[int, LinkRate], capacity: Callable[[float | None, int], int]
) -> tuple[list[Link], list[str]]:
    made, notes = [], []
    for number, link in enumerate(links):
        rate = measured.get(number)
        name = f"{link.source} → {link.target}"
        if rate is None:
            notes.append(f"{name}: not measured, capacity {link.capacity} stays (other ways lead around it)")
            made.append(link)
            continue
        if not rate.full:
            notes.append(f"{name}: at least this much; {rate.pairs} pairs of hosts could not fill it")
        made.append(replace(link, capacity=capacity(rate.bytes_s, link.capacity), bytes_s=_digits(rate.bytes_s)))
    return made, notes


def fill(topology: Topology, measured: Measured) -> dict[str, HostRates]:
    """The rates of every server: its own, else its rack's median, else none."""
    filled: dict[str, HostRates] = {}
    for rack in topology.racks:
        servers = [topology.servers[number] for number in topology.members[rack]]
        own = [measured.hosts[server.name] for server in servers if server.name in measured.hosts]
        typical = HostRates(
            _median(rates.send for rates in own),
            _median(rates.receive for rates in own),
            _median_each([rates.disk for rates in own]),
            _median_each([rates.writes for rates in own]),
        )
        for server in servers:
            filled[server.name] = measured.hosts.get(server.name, typical)
    return filled


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _median_each(tables: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """By concurrency, over those that were measured at it."""
    numbers = sorted({number for table in tables for number in table})
    return {number: median([table[number] for table in tables if number in table]) for number in numbers}


# ---- what to measure


def sample(topology: Topology, most: int, random: Random) -> list[Server]:
    """At most so many servers of each rack, in the topology's order."""
    chosen: list[int] = []
    for rack in topology.racks:
        members = topology.members[rack]
        chosen += members if len(members) <= most else random.sample(members, most)
    return [topology.servers[number] for number in sorted(chosen)]


def pairs(servers: Sequence[Server], partners: int) -> list[tuple[Server, Server]]:
    """Who sends to whom so that each server sends and receives `partners` times; where others are few, to one again.

    Within its rack where it can be: there, nothing but the two servers' own links is in the way. A rate is the best of
    all measurements: other traffic and bad luck only make them worse.
    """
    racks: dict[str, list[Server]] = {}
    for server in servers:
        racks.setdefault(server.rack, []).append(server)
    found: list[tuple[Server, Server]] = []
    for members in racks.values():
        others = members[1:] or [server for server in servers if server.rack != members[0].rack]
        for turn in range(partners if others else 0):
            if len(members) > 1:
                step = 1 + turn % len(others)
                found += [(one, members[(place + step) % len(members)]) for place, one in enumerate(members)]
            else:
                other = others[turn % len(others)]
                found += [(members[0], other), (other, members[0])]
    return found


def sides(topology: Topology, link: Link) -> tuple[list[Server], list[Server]] | None:
    """The servers on the sending and on the receiving side of a link that all traffic between them must pass.

    None if there are other ways around it, or nobody on a side.
    """
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(topology.switches)
    graph.add_edges_from((one.source, one.target) for one in topology.links)
    graph.remove_edge(link.source, link.target)
    here = nx.node_connected_component(graph, link.source)
    if link.target in here:
        return None
    there = nx.node_connected_component(graph, link.target)
    senders = [server for server in topology.servers if server.rack in here]
    receivers = [server for server in topology.servers if server.rack in there]
    return (senders, receivers) if senders and receivers else None


def spread(servers: Sequence[Server]) -> list[Server]:
    """Servers of different racks in turn, so that no single rack's link is in the way of many."""
    racks: dict[str, list[Server]] = {}
    for server in servers:
        racks.setdefault(server.rack, []).append(server)
    longest = max(map(len, racks.values()), default=0)
    return [members[turn] for turn in range(longest) for members in racks.values() if turn < len(members)]

"""The rules that turn measured rates into capacities, and the choice of hosts to measure. Sans-I/O.

The capacity of a receiver follows from its disk, as in SGuard's table 8: it is the largest number of parallel writers
that each get at least a share of a lone writer's rate (0.6 by default). The paper's data nodes write 30.0, 22.5, 9.9, …
MB/s for each of 1, 2, 4, … writers: two writers keep 75 %, four 33 %, so the capacity is 2, as in the paper.

The capacity of a sender follows from its link: `rate × timestep ÷ chunk` chunks, rounded down, at least 1, with a
tolerance of 5 % for measuring errors. Parallel writes that are slower than a lone one only share the link. If they do
not fill it together (a slow processor), the rate that they reach counts instead. The same holds for links between
switches. A timestep is the time of one chunk to a server: over its link, or onto a disk that serves as many writers as
its capacity allows, whichever is slower; the median over the servers. A server receives no more than its disk takes
(section 6.2 places the limit of the disk there). The paper set 2 for senders, which it calls conservative: its client
filled its link with four threads.

Invariants: a capacity without a measurement keeps its value; every measured capacity is at least 1.
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
"""A link that carries less than this share of its senders' rates is the bottleneck; its rate is that of the link."""

FILLED: Final = 0.85
"""Parallel writes that carry this share of a host's link fill it: the rest is checksums and headers."""


@dataclass(frozen=True, slots=True)
class HostRates:
    """The measured rates of a host, bytes per second; None or empty: not measured. By concurrency: the rate of each."""

    send: float | None = None
    receive: float | None = None
    disk: Mapping[int, float] = field(default_factory=dict)
    writes: Mapping[int, float] = field(default_factory=dict)
    """By number of parallel writes to other hosts' disks: the rate of each."""


class LinkRate(NamedTuple):
    """The rate of pairs of hosts over a link together; `full`: the link was the bottleneck, so the rate is its own."""

    bytes_s: float
    full: bool
    pairs: int


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements, by server name and by link number."""

    hosts: Mapping[str, HostRates] = field(default_factory=dict)
    links: Mapping[int, LinkRate] = field(default_factory=dict)


class Calibrated(NamedTuple):
    """A network with measured capacities, its timestep if one is known, and notes for the user."""

    topology: Topology
    timestep_s: float | None
    notes: tuple[str, ...]


def concurrency(each: Mapping[int, float], share: float = DEFAULT_SHARE) -> int:
    """The largest tested number of parallel writers up to which each gets `share` of a lone writer's rate."""
    alone = each[min(each)]
    best = min(each)
    for number in sorted(each):
        if each[number] < share * alone:
            break
        best = number
    return best


def chunks_per_timestep(bytes_s: float, timestep_s: float, chunk_bytes: int) -> int:
    """The capacity of a rate: rounded down, with a tolerance for measuring errors; at least 1."""
    return max(1, int(bytes_s * timestep_s / chunk_bytes * (1 + MEASURING_ERROR)))


def calibrate(topology: Topology, measured: Measured, share: float = DEFAULT_SHARE) -> Calibrated:
    """The network with the capacities that the measurements give.

    Servers without measurements get the median of the measured servers of their rack.
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
            # A slow disk writes less in a timestep than so many chunks; a fast disk still serves no more writers well.
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
    """The sending rate of a host: that of its link, or of its parallel writes if they cannot fill the link."""
    together = max((count * each for count, each in rates.writes.items()), default=None)
    if rates.send is None or together is None or together >= FILLED * rates.send:
        return rates.send
    return together


def _pace(server: Server, rates: HostRates, disk_rates: Mapping[str, float]) -> float | None:
    """The rate of a chunk to a server: over its link and onto its disk, as far as known."""
    known = (rates.receive or server.link_bytes_s, disk_rates.get(server.name, server.disk_bytes_s))
    return min((rate for rate in known if rate is not None), default=None)


def _digits(value: float | None) -> float | None:
    """The value with the three digits that a measurement justifies."""
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
    """The median rate by concurrency, over the hosts that were measured at it."""
    numbers = sorted({number for table in tables for number in table})
    return {number: median([table[number] for table in tables if number in table]) for number in numbers}


# ---- selection of hosts


def sample(topology: Topology, most: int, random: Random) -> list[Server]:
    """At most so many servers of each rack, in the topology's order."""
    chosen: list[int] = []
    for rack in topology.racks:
        members = topology.members[rack]
        chosen += members if len(members) <= most else random.sample(members, most)
    return [topology.servers[number] for number in sorted(chosen)]


def pairs(servers: Sequence[Server], partners: int) -> list[tuple[Server, Server]]:
    """Pairs (sender, receiver) so that each server sends and receives `partners` times; pairs may repeat.

    Pairs are within a rack if possible: there a transfer uses only the two servers' links. A rate is the best of all
    measurements, since other traffic can only lower a measurement.
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

    None if there is a way around the link, or no server on a side.
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
    """The servers in an order that alternates between racks, so that no single rack's link limits many of them."""
    racks: dict[str, list[Server]] = {}
    for server in servers:
        racks.setdefault(server.rack, []).append(server)
    longest = max(map(len, racks.values()), default=0)
    return [members[turn] for turn in range(longest) for members in racks.values() if turn < len(members)]

"""The deadline of a chunk in flight, after which its writer counts as hung; computed from the topology's rates.

Invariant: sans-I/O; the same topology gives the same deadline.
"""

from collections.abc import Iterator

from scheduler.topology import Topology

MAX_SLOWDOWN = 10
"""A chunk may take this multiple of the time that its share of the slowest link or disk gives: rates are measured in
an idle network, and a disk that also serves others is a few times slower."""
MIN_MS = 30_000
"""Enough for connecting, a few retransmissions and a pause of a JVM, at any rate of the network."""
MAX_MS = 10**15
"""No deadline: for a rate that is next to nothing, whose time is no whole number."""
WITHOUT_RATES_MS = 600_000
"""The deadline without known rates: that of a silent writer."""


def chunk_deadline_ms(topology: Topology) -> int:
    """The deadline of a chunk in flight, in milliseconds."""
    slowest_s = max(_times_s(topology), default=None)
    return WITHOUT_RATES_MS if slowest_s is None else max(MIN_MS, round(min(MAX_SLOWDOWN * slowest_s * 1000, MAX_MS)))


def _times_s(topology: Topology) -> Iterator[float]:
    """The time of one chunk on each link and disk with a known rate, while the resource is fully used."""
    size_bytes = topology.chunk_bytes
    for server in topology.servers:
        if server.link_bytes_s is not None:
            yield max(1, server.send, server.receive) * size_bytes / server.link_bytes_s
        if server.disk_bytes_s is not None:  # of each writer
            yield size_bytes / server.disk_bytes_s
    for link in topology.links:
        if link.bytes_s is not None and link.capacity:
            yield link.capacity * size_bytes / link.bytes_s

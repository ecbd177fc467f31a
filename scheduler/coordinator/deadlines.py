"""How long a chunk may be under way before its writer counts as hung: from what the network is said to carry.

Invariant: sans-I/O; the same topology gives the same deadline.
"""

from collections.abc import Iterator

from scheduler.topology import Topology

MAX_SLOWDOWN = 10
"""A chunk may take so many times as long as its share of the slowest link or disk needs: measured rates are of an empty
network, and a disk that also serves others is a few times slower."""
MIN_MS = 30_000
"""Connecting, a retransmission or two and a pause of a JVM fit in it, whatever the network's rate."""
WITHOUT_RATES_MS = 600_000
"""Where no rate is known: as long as a silent writer has."""


def chunk_deadline_ms(topology: Topology) -> int:
    """Milliseconds that a chunk may be under way."""
    slowest_s = max(_times_s(topology), default=None)
    return WITHOUT_RATES_MS if slowest_s is None else max(MIN_MS, round(MAX_SLOWDOWN * slowest_s * 1000))


def _times_s(topology: Topology) -> Iterator[float]:
    """What one chunk takes on each link and disk whose rate is known, while as many use it as may."""
    size_bytes = topology.chunk_bytes
    for server in topology.servers:
        if server.link_bytes_s is not None:
            yield max(1, server.send, server.receive) * size_bytes / server.link_bytes_s
        if server.disk_bytes_s is not None:  # of each writer
            yield size_bytes / server.disk_bytes_s
    for link in topology.links:
        if link.bytes_s is not None and link.capacity:
            yield link.capacity * size_bytes / link.bytes_s

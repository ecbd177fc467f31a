"""The paper's measurements of its cluster (SGuard, table 8 and section 6.2), and the cluster itself.

Invariants:
* MB is 2**20 bytes throughout, as in HDFS's chunk of 64 MB and its own benchmarks; rates are bytes per second.
* A curve gives the rate of each of n clients for any n ≥ 1: between two measured n it is a power law (a straight line
  on logarithmic axes), beyond the last the total stays as it is.
* One number was fitted to figure 10's two HDFS times: WRITER_THREADS. Two more are our choices where the paper gives no
  number, and they affect results too: CACHE_BYTES and PAPER_LINK_CAPACITY.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from scheduler.topology import CHUNK_BYTES, Server, Topology, both_ways

MB = 1 << 20

GIGABIT_BYTES_S = 125e6
ETHERNET_SHARE = 1448 / 1538
"""TCP payload of a full frame: 1500 bytes less 52 of headers, in 1538 bytes on the wire (preamble and gap included)."""
CHECKSUM_SHARE = 512 / 516
"""HDFS sends four bytes of checksum with every 512 bytes of data."""
LINK_BYTES_S = GIGABIT_BYTES_S * ETHERNET_SHARE * CHECKSUM_SHARE
"""The rate of a chunk's data on a gigabit link: 111.4 MB/s each way. Table 8's best client got 110 MB/s."""

MAX_CLIENTS = 512
"""Rates are tabulated up to so many clients of one disk; more clients share the same total."""


@dataclass(frozen=True)
class Curve:
    """The rate of each client when n are at work at once. `points`: (n, bytes/s per client), n from 1, ascending."""

    points: tuple[tuple[int, float], ...]

    def per_client(self, clients: int) -> float:
        """Bytes per second of each of so many clients (at least 1)."""
        last, last_rate = self.points[-1]
        if clients >= last:
            return last_rate * last / clients
        for (low, low_rate), (high, high_rate) in zip(self.points, self.points[1:], strict=False):
            if low <= clients <= high:
                share = math.log(clients / low) / math.log(high / low)
                return low_rate * (high_rate / low_rate) ** share
        raise ValueError(f"clients={clients}: a rate is known for 1 and more")

    @cached_property
    def totals(self) -> npt.NDArray[np.float64]:
        """Bytes per second of all clients together, by their number. For none: as for one (draining the cache)."""
        rates = [self.per_client(1)] + [n * self.per_client(n) for n in range(1, MAX_CLIENTS + 1)]
        return np.array(rates)


def curve(clients: Sequence[int], megabytes_s: Sequence[float], *, total: bool = False) -> Curve:
    """A curve from figures in MB/s, per client, or of all clients together if `total`."""
    pairs = zip(clients, megabytes_s, strict=True)
    return Curve(tuple((n, rate * MB / (n if total else 1)) for n, rate in pairs))


CLIENTS = (1, 2, 4, 8, 16)
TABLE_8_CLIENT_READ = (60.5, 56.3, 95.3, 105.0, 110.0)
TABLE_8_CLIENT_WRITE = (63.7, 91.3, 102.0, 104.0, 105.0)
TABLE_8_NODE_READ = (42.7, 6.16, 3.04, 1.29, 0.63)
TABLE_8_NODE_WRITE = (30.0, 22.5, 9.90, 6.03, 2.57)

TABLE_8_NODE_WRITE_TOTALS_IF_UNFAIR = (30.0, 45.0, 39.6, 22.6, 13.2)
"""What a disk gives all writers together if table 8's deviations at 8 and 16 clients (3.85 of 6.03, 2.48 of 2.57) are
those between the clients of a run. A mean of rates says more than the disk does when some clients finish long before
others: these totals, shared so unfairly, give the table's means and deviations. Used to show how much hangs on it.
"""

CACHE_BYTES = CHUNK_BYTES
"""Written data that a host's memory holds before its writers must wait for its disk: one chunk.

Table 8 says that there is such a memory: a lone client writes chunk after chunk at 63.7 MB/s through hosts whose disks
take 30.0 from a lone client, which needs 34 MB. Linux 2.6.22 on 32 bits, which the paper used, lets a tenth of low
memory (at most 896 MB) wait to be written: 90 MB. One chunk lies between.
"""
WRITER_THREADS = 1
"""Threads per writing client of HDFS in figure 10. Chosen once, by the paper's 45 s and 55 s.

It contradicts the paper's text, which gives no number but has a node's pages split across multiple worker threads
(SGuard, section 5). With 2 to 8 threads the simulated HDFS's COMP is further below the paper's.
"""


@dataclass(frozen=True)
class Physics:
    """How fast the parts of a host are. The client curves hold its checksums and its link, whatever binds first.

    `overheads_s`: what chunks were measured to take besides their bytes; each draws one of them. Empty: nothing.
    """

    disk_write: Curve
    disk_read: Curve
    client_write: Curve
    client_read: Curve
    link_bytes_s: float = LINK_BYTES_S
    cache_bytes: float = CACHE_BYTES
    overheads_s: tuple[float, ...] = ()


PAPER = Physics(
    disk_write=curve(CLIENTS, TABLE_8_NODE_WRITE),
    disk_read=curve(CLIENTS, TABLE_8_NODE_READ),
    client_write=curve(CLIENTS, TABLE_8_CLIENT_WRITE, total=True),
    client_read=curve(CLIENTS, TABLE_8_CLIENT_READ, total=True),
)

RACKS = (8, 9)
"""Hosts in each of the paper's two racks."""
HOST_CAPACITY = 2
"""Send and receive capacity of a host in the paper, from table 8."""
PAPER_LINK_CAPACITY = 2
"""Between the racks: the paper gives no number; theirs is a gigabit link like a host's, which has 2 to send (6.2)."""


def link_capacity(physics: Physics = PAPER, *, links: float = 1.0) -> int:
    """Chunks at a time that fill a link: its rate by the rate of one chain, rounded up.

    A chain goes as fast as a disk serves each of as many writers as a host may receive from. `links`: how many times
    a gigabit link it is.
    """
    return math.ceil(links * physics.link_bytes_s / physics.disk_write.per_client(HOST_CAPACITY))


def paper_cluster(
    between_racks: int | None = None,
    *,
    send: int = HOST_CAPACITY,
    receive: int = HOST_CAPACITY,
    physics: Physics = PAPER,
) -> Topology:
    """17 hosts in racks of 8 and 9, gigabit links, one of them between the racks; the rest are capacities in chunks.

    `between_racks`: what the link between the racks carries each way (default: `link_capacity`).
    """
    rate = physics.link_bytes_s
    servers = [
        Server(f"r{rack}h{host}", f"rack{rack}", send, receive, link_bytes_s=rate)
        for rack, size in enumerate(RACKS, 1)
        for host in range(1, size + 1)
    ]
    capacity = link_capacity(physics) if between_racks is None else between_racks
    links = both_ways("rack1", "rack2", capacity, bytes_s=rate)
    return Topology(servers, links, switches=["rack1", "rack2"], name="the paper's 17 hosts")

"""What the shaped links really carry: TCP payload, measured through them before anything else is.

Invariants:
* Both directions of every link are measured while both are busy.
* Of the link between the racks the best of a few probes counts: a probe whose TCP waits after a loss is too low, none
  is too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.racks.hosts import Hosts
from benchmarks.racks.network import Host

PROBE_S = 2.0
PROBES = 3


class Rates(NamedTuple):
    """Bytes/s of payload: each host's link (its own and its sender's, whichever is slower), and between the racks."""

    hosts: dict[str, float]
    between: tuple[float, ...]

    def figures(self) -> dict[str, object]:
        """For the results."""
        rates = [*self.hosts.values()]
        return {
            "host links MB/s, least, median, most": [
                round(x / 1e6, 3) for x in (min(rates), median(rates), max(rates))
            ],
            "between the racks MB/s, each way": [round(rate / 1e6, 3) for rate in self.between],
        }


def measure(hosts: Hosts, seconds: float = PROBE_S) -> Rates:
    """First a ring in each rack, then one sender after the other between two racks, both ways."""
    racks: dict[int, list[Host]] = {}
    for host in hosts.hosts:
        racks.setdefault(host.rack, []).append(host)
    ring = [(rack[place - 1], rack[place]) for rack in racks.values() for place in range(len(rack))]
    own = _probe(hosts, ring, seconds)
    first, second = racks[1], racks[2]
    across = [*zip(first[:2], second[:2], strict=True), *zip(second[2:4], first[2:4], strict=True)]
    seen = [_probe(hosts, across, seconds) for _ in range(PROBES)]
    ways = [max(sum(got[receiver.name] for _, receiver in way) for got in seen) for way in (across[:2], across[2:])]
    return Rates(own, tuple(ways))


def _probe(hosts: Hosts, pairs: Sequence[tuple[Host, Host]], seconds: float) -> dict[str, float]:
    """Bytes/s received by each pair's second host, all pairs at once."""
    ports = hosts.ask_each({receiver.name: {} for _, receiver in pairs}, "listen")
    targets = {sender.name: {"address": to.address, "port": ports[to.name]} for sender, to in pairs}
    hosts.ask_each(targets, "flood")
    return hosts.ask_each({receiver.name: {"seconds": seconds} for _, receiver in pairs}, "receive")

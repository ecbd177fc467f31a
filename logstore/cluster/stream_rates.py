"""What is written to the disk of each host: the rates of all streams, and where the open chunk of each is. No I/O, no
clock.

What passes the links into fault domains is a sum too: the members of a chunk form a chain, owner first, and bytes enter
a domain where the chain does, not for members that get them within it.

Where open chunks are, every host knows within milliseconds, from the heads of registrations; how much a stream writes
its owner measures and tells. So a load is a sum over streams, and when a stream's next chunk lies elsewhere, its rate
goes along at once: no host acts on a load that is already gone.

Invariants:
* A load is always the sum of the rates of the streams whose open chunks are on the host; rates are whole numbers.
* A stream of which no rate is known counts NEW_BYTES_S, so that many new ones spread before they write anything.
* A rate follows what its owner measures with a lag of some FADE_S; a new one begins as what was measured first.

Memory: an entry for each stream. A change costs what a stream's members cost.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import exp
from typing import Final

from scheduler.peace.replica_sets import Domain

FADE_S: Final = 30.0
NEW_BYTES_S: Final = 1024
TELL_CHANGE: Final = 0.2
"""Part of a rate by which it must have changed to be told."""
MAX_TOLD: Final = 500
"""Rates told at a time, half of them such that have not changed: a host that has started anew hears of them."""


class HostLoads:
    """See the module."""

    def __init__(self) -> None:
        self._ways: Mapping[str, Sequence[Domain]] = {}
        self._entering: Counter[Domain] = Counter()
        self._rates: dict[str, int] = {}
        self._sets: dict[str, tuple[str, ...]] = {}
        self._loads: Counter[str] = Counter()
        self._fresh: Counter[str] = Counter()
        self._own: dict[str, int] = {}
        """Streams that this host owns and that write, with the rates that were told last."""
        self._told_until = ""

    # ---- sums

    def rate(self, stream: str) -> int:
        """What a stream writes, in bytes a second."""
        return self._rates.get(stream, NEW_BYTES_S)

    def loads(self, without: str = "") -> Counter[str]:
        """What is written to each host's disk, in bytes a second, but for one stream."""
        found = self._loads.copy()
        for host in self._sets.get(without, ()):
            found[host] -= self.rate(without)
        return found

    def entering(self, without: str = "") -> Counter[Domain]:
        """What passes the links into domains, in bytes a second, but for one stream."""
        found = self._entering.copy()
        for domain in self._entered(self._sets.get(without, ())):
            found[domain] -= self.rate(without)
        return found

    def place_hosts(self, ways: Mapping[str, Sequence[Domain]]) -> None:
        """The domains of each host whose links are known."""
        self._ways = ways
        self._entering.clear()
        if any(ways.values()):
            for stream, hosts in self._sets.items():
                for domain in self._entered(hosts):
                    self._entering[domain] += self.rate(stream)

    def gone(self, stream: str) -> None:
        """There is no such stream any more."""
        self._add(self._sets.pop(stream, ()), -self.rate(stream))
        self._rates.pop(stream, None)
        self.deposed(stream)

    def placed(self, stream: str, hosts: Sequence[str]) -> None:
        """The stream's open chunk is on these hosts; none: no chunk is open."""
        self._add(self._sets.get(stream, ()), -self.rate(stream))
        self._sets[stream] = tuple(hosts)
        self._add(hosts, self.rate(stream))

    def told(self, stream: str, bytes_s: int) -> None:
        """The owner of a stream says what it writes."""
        if stream in self._sets:
            self._add(self._sets[stream], bytes_s - self.rate(stream))
            self._rates[stream] = bytes_s

    def _entered(self, hosts: Sequence[str]) -> Iterator[Domain]:
        """The domains that a chain enters, each as often as it does."""
        if self._ways:
            for sender, receiver in pairwise(hosts):
                inside = self._ways.get(sender, ())
                yield from (domain for domain in self._ways.get(receiver, ()) if domain not in inside)

    def _add(self, hosts: Sequence[str], bytes_s: int) -> None:
        for domain in self._entered(hosts):
            self._entering[domain] += bytes_s
        for host in hosts:
            self._loads[host] += bytes_s
            if not self._loads[host]:
                del self._loads[host]

    # ---- this host's own streams

    def appended(self, stream: str, size_bytes: int) -> None:
        """This host has appended to a stream of its own."""
        self._fresh[stream] += size_bytes

    def deposed(self, stream: str) -> None:
        """This host does not own a stream any more; the next owner goes on with its rate."""
        self._own.pop(stream, None)
        self._fresh.pop(stream, None)

    def measure(self, passed_s: float) -> None:
        """Count what was appended since the last time, so many seconds ago."""
        fresh, self._fresh = self._fresh, Counter()
        kept = exp(-passed_s / FADE_S)
        for stream in {**self._own, **fresh}:
            if stream not in self._sets:
                continue
            now = fresh[stream] / passed_s
            before = self._rates.get(stream)
            self._own.setdefault(stream, 0)
            self.told(stream, int(now if before is None else kept * before + (1 - kept) * now))

    def to_tell(self) -> list[tuple[str, int]]:
        """Streams of this host's and what they write, for the others: those that have changed, and some of the rest."""
        changed = [stream for stream, told in self._own.items() if self._has_changed(stream, told)][: MAX_TOLD // 2]
        rest = sorted(stream for stream in self._own if stream > self._told_until)[: MAX_TOLD // 2]
        self._told_until = rest[-1] if rest else ""
        found = {stream: self.rate(stream) for stream in (*changed, *rest)}
        for stream, bytes_s in found.items():
            self._own[stream] = bytes_s
            if not bytes_s:
                del self._own[stream]
        return list(found.items())

    def _has_changed(self, stream: str, told: int) -> bool:
        return abs(self.rate(stream) - told) > TELL_CHANGE * told

"""Histograms of durations in Prometheus' form.

Invariants: `counts` has a number for each bound and one for longer durations; each duration is counted once. `add` is
for one thread: callers on several threads need a lock.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """The numbers of durations between the bounds, which are seconds in rising order."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count a duration; a negative one, from clocks that differ, counts as 0."""
        if duration_s < 0:
            duration_s = 0.0
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each bound as Prometheus writes it, and the number of durations up to it."""
        total = 0
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total

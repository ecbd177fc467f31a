"""Histograms of durations in Prometheus' format.

Invariant: `counts` has one number for each bound and one for longer durations; each value is counted once.
"""

from bisect import bisect_left
from collections.abc import Iterator

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600, 1800)
"""The bounds cover a chunk on a fast network up to a queue of half an hour."""


class Histogram:
    """The numbers of durations between the bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_ms = 0

    def add(self, duration_ms: int) -> None:
        """Count a duration; a negative one, from clocks that differ, counts as 0."""
        duration_ms = max(0, duration_ms)
        self.counts[bisect_left(BOUNDS_S, duration_ms / 1000)] += 1
        self.sum_ms += duration_ms

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each bound as Prometheus writes it, and the number of durations up to it."""
        total = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total

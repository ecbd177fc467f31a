"""Histograms of durations, as Prometheus wants them.

Invariant: `counts` has one number for each bound and one for what is longer; each value is counted once.
"""

from bisect import bisect_left
from collections.abc import Iterator

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600, 1800)
"""From a chunk on a fast network to a queue of half an hour."""


class Histogram:
    """How many durations fell below each of the bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_ms = 0

    def add(self, duration_ms: int) -> None:
        """Count one; clocks that differ never make it negative."""
        duration_ms = max(0, duration_ms)
        self.counts[bisect_left(BOUNDS_S, duration_ms / 1000)] += 1
        self.sum_ms += duration_ms

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each bound as Prometheus writes it, and how many were at most so long."""
        total = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total

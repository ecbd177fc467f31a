"""Sets of page numbers as ranges, for manifests.

Invariant: ranges of a set are ascending, not empty, and neither overlap nor touch.
"""

from collections.abc import Sequence

import numpy as np

from spe_adapter.codec.kernels import Int64s


def ranges_of(ids: Int64s) -> list[int]:
    """The ranges of ascending page numbers, flat: first, count, first, count, …"""
    if not len(ids):
        return []
    starts = np.flatnonzero(np.concatenate(([True], np.diff(ids) != 1)))
    counts = np.diff(np.concatenate((starts, [len(ids)])))
    return np.stack((ids[starts], counts), axis=1).reshape(-1).tolist()


def ids_of(ranges: Sequence[int]) -> Int64s:
    """The page numbers of flat ranges, ascending. Raises ValueError for anything but such ranges."""
    pairs = np.asarray(ranges, np.int64).reshape(-1, 2)
    firsts, counts = pairs[:, 0], pairs[:, 1]
    if (counts < 1).any() or (firsts < 0).any() or (firsts[1:] <= firsts[:-1] + counts[:-1]).any():
        raise ValueError("ranges are empty, negative, or not ascending")
    ends = np.cumsum(counts)
    steps = np.ones(int(ends[-1]) if len(ends) else 0, np.int64)
    if len(pairs):
        steps[0] = firsts[0]
        steps[ends[:-1]] = firsts[1:] - (firsts[:-1] + counts[:-1] - 1)
    return np.cumsum(steps)


def count_of(ranges: Sequence[int]) -> int:
    """The number of pages of flat ranges."""
    return sum(ranges[1::2])

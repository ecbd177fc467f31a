"""Sets of page numbers as ranges, for manifests.

Invariant: ranges of a set are ascending, not empty, and neither overlap nor touch.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Int64s

_MAX_COUNT: Final = 1 << 31
_MAX_FIRST: Final = 2**63 - 1 - _MAX_COUNT
"""The end of a range fits into 64 bits."""


def ranges_of(ids: Int64s) -> list[int]:
    """The ranges of ascending page numbers, flat: first, count, first, count, …"""
    if not len(ids):
        return []
    starts = np.flatnonzero(np.concatenate(([True], np.diff(ids) != 1)))
    counts = np.diff(np.concatenate((starts, [len(ids)])))
    return np.stack((ids[starts], counts), axis=1).reshape(-1).tolist()


def ids_of(ranges: Sequence[int]) -> Int64s:
    """The page numbers of flat ranges, ascending. Raises ValueError for anything but such ranges."""
    pairs = _pairs(ranges)
    firsts, counts = pairs[:, 0], pairs[:, 1]
    ends = np.cumsum(counts)
    steps = np.ones(int(ends[-1]) if len(ends) else 0, np.int64)
    if len(pairs):
        steps[0] = firsts[0]
        steps[ends[:-1]] = firsts[1:] - (firsts[:-1] + counts[:-1] - 1)
    return np.cumsum(steps)


def check_ranges(ranges: Sequence[int]) -> None:
    """Raise ValueError for anything but flat ranges; costs no memory for their pages."""
    _pairs(ranges)


def _pairs(ranges: Sequence[int]) -> Int64s:
    try:
        pairs = np.asarray(ranges, np.int64).reshape(-1, 2)
    except OverflowError as error:
        raise ValueError(f"ranges of pages: {error}") from error
    firsts, counts = pairs[:, 0], pairs[:, 1]
    outside = (counts < 1) | (counts > _MAX_COUNT) | (firsts < 0) | (firsts > _MAX_FIRST)
    if outside.any() or (firsts[1:] <= firsts[:-1] + counts[:-1]).any():
        raise ValueError("ranges are empty, negative, too large, or not ascending")
    return pairs


def count_of(ranges: Sequence[int]) -> int:
    """The number of pages of flat ranges."""
    return sum(ranges[1::2])

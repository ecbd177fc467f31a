"""The rows with the lowest ordinals: the windows whose footprints are oldest.

Invariant: rows that hold no window have ordinal NEVER, and are not found.
"""

from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Int64s
from spe_adapter.state.layout import NEVER

_SAMPLE: Final = 4096
_SAMPLE_FACTOR: Final = 16


def oldest_of(ordinals: Int64s, count: int) -> Int64s:
    """The positions of the `count` lowest ordinals without NEVER, ascending by ordinal, then by position."""
    if count <= 0 or not len(ordinals):
        return np.empty(0, np.int64)
    highest = _nth_lowest(ordinals, min(count, len(ordinals)))
    lower = np.flatnonzero(ordinals < highest)
    lower = lower[np.argsort(ordinals[lower], kind="stable")]
    if highest == NEVER:
        return lower
    return np.concatenate((lower, np.flatnonzero(ordinals == highest)[: count - len(lower)]))


def _nth_lowest(ordinals: Int64s, count: int) -> int:
    """The `count`-th lowest of all ordinals."""
    lowest = ordinals.min()
    # Whole epochs share an ordinal: the lowest one often suffices.
    if count == 1 or np.count_nonzero(ordinals == lowest) >= count:
        return int(lowest)
    step = len(ordinals) // _SAMPLE
    if step > 1 and count < len(ordinals) // _SAMPLE_FACTOR:
        # A sample says below which ordinal there are surely enough, and not too many to sort.
        sample = np.sort(ordinals[::step])
        few = ordinals[ordinals <= sample[2 * count // step + _SAMPLE_FACTOR]]
        if len(few) >= count:
            ordinals = few
    return int(np.partition(ordinals, count - 1)[count - 1])

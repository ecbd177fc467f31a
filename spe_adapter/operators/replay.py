"""Which rows of a replay a window has seen already.

A recovering partition loads windows whose footprints are of different beats and replays the input behind the oldest. A
row belongs to its window only if the window's footprint is older than the row's beat. Windows that closed since are
skip points just the same, or their results would come twice.

Invariant: what is here is fixed before a replay starts; a window that opens during one and is not here has seen
nothing.

Source: CEC paper, section II.B ("window w_i ignores tuples with timestamps t < t_i").
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Int64s
from spe_adapter.state.table import Table

_BEAT: Final = "beat"
_NOTHING: Final = -1


class Replay(NamedTuple):
    """The beat that is being replayed, and the function that says which beat windows (keys, numbers) have seen last."""

    beat: int
    covered: Callable[[pa.Array, Int64s], Int64s]


class SkipPoints:
    """The last beat that each window has seen, open or closed."""

    def __init__(self) -> None:
        self._table = Table.in_memory(pa.schema([(_BEAT, pa.int64())]))

    def add(self, keys: pa.Array, numbers: Int64s, beats: Int64s | int) -> None:
        """Note windows (distinct within a call); of several beats the latest counts."""
        rows, is_new = self._table.ensure(keys, numbers)
        before = np.where(is_new, _NOTHING, self._table.get(_BEAT, rows))
        self._table.set(_BEAT, rows, np.maximum(before, beats))

    def at(self, beat: int) -> Replay:
        """The replay of this beat."""
        return Replay(beat, self.covered)

    def covered(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The last beat that each window has seen, −1 for those that are not here."""
        rows = self._table.find(keys, numbers)
        known = rows >= 0
        beats = np.full(len(rows), _NOTHING, np.int64)
        beats[known] = self._table.get(_BEAT, rows[known])
        return beats

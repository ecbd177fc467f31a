"""Which rows of a replay a window has seen already.

A recovering partition loads windows whose footprints are of different epochs and replays the input behind the oldest. A
row belongs to its window only if the window's footprint is older than the row's epoch. Windows that closed since are
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

_EPOCH: Final = "epoch"
_NOTHING: Final = -1


class Replay(NamedTuple):
    """The epoch that is replayed, and a function from windows (keys, numbers) to the last epoch that each has seen."""

    epoch: int
    covered: Callable[[pa.Array, Int64s], Int64s]


class SkipPoints:
    """The last epoch that each window has seen, open or closed."""

    def __init__(self) -> None:
        self._table = Table.in_memory(pa.schema([(_EPOCH, pa.int64())]))

    def add(self, keys: pa.Array, numbers: Int64s, epochs: Int64s | int) -> None:
        """Note windows (distinct within a call); of several epochs the latest counts."""
        rows, is_new = self._table.ensure(keys, numbers)
        before = np.where(is_new, _NOTHING, self._table.get(_EPOCH, rows))
        self._table.set(_EPOCH, rows, np.maximum(before, epochs))

    def at(self, epoch: int) -> Replay:
        """The replay of this epoch."""
        return Replay(epoch, self.covered)

    def covered(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The last epoch that each window has seen, −1 for those that are not here."""
        rows = self._table.find(keys, numbers)
        known = rows >= 0
        epochs = np.full(len(rows), _NOTHING, np.int64)
        epochs[known] = self._table.get(_EPOCH, rows[known])
        return epochs

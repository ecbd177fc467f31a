"""The epochs whose rows each window has seen, so that a replay skips those rows.

A recovering partition loads windows with footprints of different epochs, and replays the input after the oldest
footprint. A replayed row counts for its window only if the footprint is older than the epoch of the row. Windows that
closed since have skip points too; otherwise their results would be given twice.

Invariant: skip points do not change during a replay. A window without a skip point has seen no row.

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

    def __init__(self, seed: int = 0) -> None:
        """No windows. `seed` keys the hash of their identities: a number that the producers of keys do not know."""
        self._table = Table.in_memory(pa.schema([(_EPOCH, pa.int64())]), seed=seed)

    def add(self, keys: pa.Array, numbers: Int64s, epochs: Int64s | int) -> None:
        """Note the last epoch that windows (distinct within a call) have seen; the latest of several calls holds."""
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

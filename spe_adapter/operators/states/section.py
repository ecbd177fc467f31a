"""The entries of one kind that a call touches: copies in private memory, which reach the store when the call succeeds.

Invariants:
* The store is read when an identity is first named, and written by `commit` alone. So a call that raises, or a trial,
  changes nothing.
* An entry whose TTL has passed is not alive, though the store still has it; a write makes it alive again.
* Rows name identities of this section until the section is dropped.

Source: SGuard paper, section 4 (a part of the state is copied when it is first touched).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.operators.clock import CallTimes
from spe_adapter.state.columns import Values
from spe_adapter.state.layout import NEVER
from spe_adapter.state.store import StateStore
from spe_adapter.state.table import Table

_NONE: Final = -1
_FIRST_ROWS: Final = 256


class Section:
    """Entries with some columns of the store. `clock`: entries that it has passed are not alive (None: all are)."""

    def __init__(self, store: StateStore, fields: Sequence[pa.Field], clock: CallTimes | None) -> None:
        self._store = store
        self._clock = clock
        self._table = Table.in_memory(pa.schema(fields), _FIRST_ROWS, seed=store.seed)
        self._names = [field.name for field in fields]
        self._origin = np.full(_FIRST_ROWS, _NONE, np.int64)
        self._alive = np.zeros(_FIRST_ROWS, np.bool_)
        self._written = np.zeros(_FIRST_ROWS, np.bool_)

    def rows(self, keys: pa.BinaryArray, numbers: Int64s, *, fresh: bool = False) -> Int64s:
        """The row of each of these (distinct) identities. `fresh`: the store has none of them."""
        rows, is_new = self._table.ensure(keys, numbers)
        if is_new.any():
            self._grow()
            if not fresh:
                whole = is_new.all()
                self._load(
                    rows if whole else rows[is_new],
                    keys if whole else keys.filter(pa.array(is_new)),
                    numbers if whole else numbers[is_new],
                )
        return rows

    def _load(self, rows: Int64s, keys: pa.BinaryArray, numbers: Int64s) -> None:
        ids = self._store.find(keys, numbers)
        found = np.flatnonzero(ids >= 0)
        if not len(found):
            return
        rows, ids = rows[found], ids[found]
        self._origin[rows] = ids
        expires = self._store.expires(ids)
        self._table.set_expires(rows, expires)
        self._alive[rows] = True if self._clock is None else ~self._clock.has_passed(expires)
        for name in self._names:
            self._table.set_arrow(name, rows, self._store.get_arrow(name, ids))

    def _grow(self) -> None:
        if len(self._alive) < self._table.used:
            more = 2 * self._table.used - len(self._alive)
            self._origin = np.concatenate((self._origin, np.full(more, _NONE, np.int64)))
            self._alive = np.concatenate((self._alive, np.zeros(more, np.bool_)))
            self._written = np.concatenate((self._written, np.zeros(more, np.bool_)))

    # ---- reading

    def alive(self, rows: Int64s) -> Bools:
        """Whether each entry is there."""
        return self._alive[rows]

    def is_kept(self, rows: Int64s) -> Bools:
        """Whether each entry is there or, its TTL having passed, still in the store."""
        return self._alive[rows] | ((self._origin[rows] >= 0) & ~self._written[rows])

    def alive_rows(self) -> Int64s:
        """All entries that are there, of those that were named."""
        return np.flatnonzero(self._alive)

    def get(self, name: str, rows: Int64s) -> Values:
        """Values of a column of fixed width, 0 where null or where there is no entry."""
        values = self._table.get(name, rows)
        return np.where(self._alive[rows], values, np.zeros((), values.dtype))

    def stored(self, name: str, rows: Int64s) -> Values:
        """As `get`, of entries that are gone as well: what they had last."""
        return self._table.get(name, rows)

    def column(self, name: str, rows: Int64s) -> pa.Array:
        """A column of any type, null where there is no entry."""
        column = self._table.get_arrow(name, rows)
        alive = self._alive[rows]
        if alive.all():
            return column
        return column.take(pa.array(np.arange(len(rows)), mask=~alive))

    def keys(self, rows: Int64s) -> pa.BinaryArray:
        """The key bytes of each entry."""
        return self._table.keys(rows)

    def numbers(self, rows: Int64s) -> Int64s:
        """The number of each entry."""
        return self._table.numbers(rows)

    def expires(self, rows: Int64s) -> Int64s:
        """When each entry is due, as the store has it."""
        return self._table.expires(rows)

    # ---- writing

    def set_column(self, name: str, rows: Int64s, values: pa.Array) -> None:
        """Write a column; `write` makes the entries count."""
        self._table.set_arrow(name, rows, values)

    def set(self, name: str, rows: Int64s, values: Int64s) -> None:
        """Write a column of integers; `write` makes the entries count."""
        self._table.set(name, rows, values)

    def write(self, rows: Int64s, expires: Int64s | int = NEVER) -> None:
        """Say that these entries are there, and when they are due."""
        self._alive[rows] = True
        self._written[rows] = True
        self._table.set_expires(rows, expires)

    def drop(self, rows: Int64s) -> None:
        """Remove entries. Their columns can still be read by `stored`."""
        self._alive[rows] = False
        self._written[rows] = True

    def commit(self) -> None:
        """Hand what was written on to the store."""
        written = np.flatnonzero(self._written)
        if not len(written):
            return
        alive = self._alive[written]
        gone = self._origin[written[~alive]]
        if len(gone):
            self._store.close(gone[gone >= 0])
        rows = written[alive]
        if not len(rows):
            return
        ids = self._origin[rows]
        new = np.flatnonzero(ids < 0)
        if len(new):
            ids[new], _ = self._store.ensure(self._table.keys(rows[new]), self._table.numbers(rows[new]))
        for name in self._names:
            self._store.set_arrow(name, ids, self._table.get_arrow(name, rows))
        self._store.set_expires(ids, self._table.expires(rows))

"""The store of an operator's windows, and the changes of an epoch.

Invariants:
* An *id* names a window from the call that gave it until the window is closed or the epoch ends with `changes`; ids are
  opaque, and never those of another store.
* `changes` describes an epoch completely: the state before the epoch, with the footprints and tombstones applied, is
  the state after it. Each identity is in one part of `changes` at most.

Source: CEC paper, section III (footprints of windows that opened, changed and closed).
"""

from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.state.columns import Values, distinct
from spe_adapter.state.table import Table

IDENTITY_SCHEMA: Final = pa.schema([pa.field("key", pa.binary()), pa.field("number", pa.int64())])

_NO_IDENTITIES: Final = pa.RecordBatch.from_arrays(
    [pa.nulls(0, pa.binary()), pa.nulls(0, pa.int64())], schema=IDENTITY_SCHEMA
)
_NO_ROWS: Final = np.empty(0, np.int64)
_NO_FLAGS: Final = np.empty(0, np.bool_)
_SCAN_FACTOR: Final = 32
"""Reading the flags of this many rows costs as much as sorting one row."""


class WindowChanges(NamedTuple):
    """The changes of an epoch.

    `footprints`: the windows that changed or were touched and are still open, as `Table.take` gives them, with their
    `ids`; `opened`: whether each of them opened (or was renewed) in this epoch. `closed`: windows that were open before
    the epoch and are not open any more. `transient`: windows that opened and closed within the epoch. The last two are
    batches of (key, number).
    """

    footprints: pa.RecordBatch
    opened: Bools
    closed: pa.RecordBatch
    transient: pa.RecordBatch
    ids: Int64s


class StateStore(Protocol):
    """The store that operators run on. Ids are int64 arrays; the identities in one call are distinct."""

    schema: pa.Schema

    @property
    def live(self) -> int:
        """How many windows are open."""

    @property
    def size_bytes(self) -> int:
        """Private memory that the store takes."""

    @property
    def seed(self) -> int:
        """The key of its hash, for `distinct`."""

    def find(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The id of each window, -1 where it is not open."""

    def ensure(self, keys: pa.Array, numbers: Int64s) -> tuple[Int64s, Bools]:
        """The id of each window, and whether it is new. A new window is opened: its state is null, it expires NEVER."""

    def close(self, ids: Int64s) -> None:
        """Close windows. Their ids become invalid; `ensure` of the same identity opens a new window."""

    def renew(self, ids: Int64s) -> None:
        """Mark open windows as new, because a full window and its successor share an identity. Their footprints are
        those of windows that opened in this epoch.
        """

    def get(self, name: str, ids: Int64s) -> Values:
        """Values of a column of fixed width, 0 where null."""

    def nulls(self, name: str, ids: Int64s) -> Bools:
        """Where a column is null."""

    def set(self, name: str, ids: Int64s, values: Any, nulls: Bools | None = None) -> None:
        """Store values of fixed width."""

    def get_arrow(self, name: str, ids: Int64s) -> pa.Array:
        """A column of any type."""

    def set_arrow(self, name: str, ids: Int64s, values: pa.Array) -> None:
        """Store a column of any type."""

    def keys(self, ids: Int64s) -> pa.BinaryArray:
        """The key of each window."""

    def numbers(self, ids: Int64s) -> Int64s:
        """The number of each window."""

    def expires(self, ids: Int64s) -> Int64s:
        """When windows expire, in milliseconds of event time; NEVER."""

    def set_expires(self, ids: Int64s, expires_ms: Int64s | int) -> None:
        """Set when windows expire, in milliseconds of event time."""

    def due(self, watermark_ms: int) -> Int64s:
        """The ids of open windows that expire at the watermark or before it."""

    def all_rows(self) -> Int64s:
        """The ids of all open windows."""

    def oldest(self, count: int) -> Int64s:
        """The ids of the `count` windows with the oldest footprints, oldest first, without windows that changed in this
        epoch.
        """

    def window_versions(self, ids: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Epochs, ordinals and counts of seen records of windows' last footprints (0 for those opened since)."""

    def touch(self, ids: Int64s) -> None:
        """Write footprints of these windows too, whether they changed or not (a check)."""

    def changes(self) -> WindowChanges:
        """What changed since the last call, and the start of the next epoch."""


class ChangeTracker:
    """Tracks which rows of a table changed, opened and closed in an epoch, for `changes`.

    Rows and identities are those of one private table. A store with a base beside that table reports closed windows of
    the base by `closed_elsewhere`.
    """

    _CHANGED = 1
    _OPENED = 2
    _RENEWED = 4
    """Open before the epoch, so that closing it needs a tombstone; but its content is new."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._flags = np.zeros(1024, np.uint8)
        self._changed: list[Int64s] = []
        self._closed: list[pa.RecordBatch] = []
        self._transient: list[pa.RecordBatch] = []

    def changed(self, rows: Int64s) -> None:
        """Note rows that need a footprint."""
        self._mark(rows, self._CHANGED)

    def opened(self, rows: Int64s) -> None:
        """Note rows of windows that opened."""
        self._mark(rows, self._CHANGED | self._OPENED)

    def renewed(self, rows: Int64s) -> None:
        """Note rows of windows whose content is new."""
        self._mark(rows, self._CHANGED | self._RENEWED)

    def is_changed(self, rows: Int64s) -> Bools:
        """Whether each row needs a footprint."""
        self._grow()
        return self._flags[rows] != 0

    def is_new(self, rows: Int64s) -> Bools:
        """Whether each row opened or was renewed in this epoch."""
        self._grow()
        return self._flags[rows] & (self._OPENED | self._RENEWED) != 0

    def closing(self, rows: Int64s) -> None:
        """Note rows that will be removed, of windows that are in this table only."""
        self._grow()
        opened = self._flags[rows] & self._OPENED != 0
        self._flags[rows] = 0
        if opened.any():
            self._transient.append(identity_batch(self._table, rows[opened]))
        if not opened.all():
            self._closed.append(identity_batch(self._table, rows[~opened]))

    def dropped(self, rows: Int64s) -> None:
        """Forget rows that are removed: `changes` will not have them."""
        self._grow()
        self._flags[rows] = 0

    def closed_elsewhere(self, identities: pa.RecordBatch) -> None:
        """Note windows that were open before the epoch and closed in it."""
        self._closed.append(identities)

    def changed_rows(self) -> tuple[Int64s, Bools]:
        """The rows that need a footprint, ascending, and whether each of them opened or was renewed in this epoch."""
        self._grow()
        if not self._changed:
            return _NO_ROWS, _NO_FLAGS
        if _SCAN_FACTOR * sum(map(len, self._changed)) > self._table.used:
            rows = np.flatnonzero(self._flags[: self._table.used])
        else:
            # A row can be here twice, if it was freed and used again.
            rows = np.unique(np.concatenate(self._changed) if len(self._changed) > 1 else self._changed[0])
            rows = rows[self._flags[rows] != 0]
        return rows, self.is_new(rows)

    def gone(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The windows `closed` and `transient` of `WindowChanges`; none of them is open."""
        closed = self._not_open(_joined(self._closed))
        transient = self._not_open(_joined(self._transient))
        if transient.num_rows and len(self._transient) > 1:
            rows = self._first_of_each(transient)
            if len(rows) < transient.num_rows:
                transient = transient.take(pa.array(rows))
        if transient.num_rows and closed.num_rows:
            known = Table.in_memory(pa.schema([]), closed.num_rows + transient.num_rows, self._table.seed)
            known.ensure(*identities_of(closed))
            transient = transient.take(pa.array(np.flatnonzero(known.find(*identities_of(transient)) < 0)))
        return closed, transient

    def start_epoch(self) -> None:
        """Start the next epoch without changes."""
        for rows in self._changed:
            self._flags[rows] = 0
        self._changed, self._closed, self._transient = [], [], []

    def _mark(self, rows: Int64s, flags: int) -> None:
        self._grow()
        fresh = rows[self._flags[rows] == 0]
        if len(fresh):
            self._changed.append(fresh)
        self._flags[rows] |= np.uint8(flags)

    def _grow(self) -> None:
        if len(self._flags) < self._table.used:
            flags = np.zeros(2 * self._table.used, np.uint8)
            flags[: len(self._flags)] = self._flags
            self._flags = flags

    def _not_open(self, identities: pa.RecordBatch) -> pa.RecordBatch:
        if not identities.num_rows:
            return identities
        gone = self._table.find(*identities_of(identities)) < 0
        return identities if gone.all() else identities.take(pa.array(np.flatnonzero(gone)))

    def _first_of_each(self, identities: pa.RecordBatch) -> Int64s:
        return distinct(*identities_of(identities), self._table.seed).first


def identities_of(batch: pa.RecordBatch) -> tuple[pa.Array, Int64s]:
    """Keys and numbers of a batch of windows."""
    return batch.column("key"), batch.column("number").to_numpy()


def identity_batch(table: Table, rows: Int64s) -> pa.RecordBatch:
    """Keys and numbers of a table's windows as a batch."""
    return pa.RecordBatch.from_arrays([table.keys(rows), pa.array(table.numbers(rows))], schema=IDENTITY_SCHEMA)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return _NO_IDENTITIES
    return pa.concat_batches(batches)

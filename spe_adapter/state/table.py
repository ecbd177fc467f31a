"""A hash table of windows in one block of memory. Each operation takes many windows.

A window has an identity (key bytes or null, number), a time when it expires, the window version of its last footprint
and the columns of its state. A *row* is the number under which the table keeps a window, until the window is removed.

Invariants:
* Rows keep their numbers while the table grows; the row of a removed window is used again.
* A row that holds no window expires NEVER, has ordinal NEVER and no references into the arena.
* The block is only grown through `allocate`. A table that cannot grow raises StateDamaged before it changes.
* Identities are hashed with the table's own seed, so that a producer cannot choose keys that collide.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.cec.control import STATE_PREFIX
from spe_adapter.codec import nested
from spe_adapter.codec.columns import BytesColumn, keys_of
from spe_adapter.codec.identity_hash import hashes_of, signed
from spe_adapter.codec.kernels import Bools, Bytes, Int64s
from spe_adapter.pages.page_memory import PageMemory
from spe_adapter.state import exact, kernels
from spe_adapter.state.columns import (
    Values,
    bytes_array,
    fixed_array,
    fixed_values,
    nested_array,
    numbers_of,
)
from spe_adapter.state.errors import StateDamaged, StateTooLarge
from spe_adapter.state.layout import NEVER, Column, Layout, check_counters, take_schema
from spe_adapter.state.oldest import oldest_of
from spe_adapter.state.paged import PagedBlocks
from spe_adapter.state.touches import Touches, TrackedTouches, Untracked

Allocate = Callable[[int], Bytes]
"""A function that gives this many zeroed bytes, or raises StateTooLarge."""

_ARENA_BYTES_PER_ROW: Final = 16
"""The arena's first size: about one short key per row."""

_SPARSE_FACTOR: Final = 8
_SPARSE_CAPACITY: Final = 16 * 1024
"""A smaller table is never sparse: it wastes little memory."""


class WindowVersion(NamedTuple):
    """The last footprint of a window: its epoch, and the numbers of records emitted and input records seen by then."""

    epoch: int | Int64s
    ordinal: int | Int64s
    seen: int | Int64s


class IdentityColumns(NamedTuple):
    """Identities as compiled loops take them: keys, numbers and hashes."""

    keys: BytesColumn
    numbers: Int64s
    hashes: Int64s


def anonymous(size_bytes: int) -> Bytes:
    """Private memory. The system gives a page when it is first written."""
    return np.zeros(size_bytes, np.uint8)


class Table:
    """A hash table of windows. `rows` are int64 arrays, and name windows of the table."""

    def __init__(
        self,
        schema: pa.Schema,
        layout: Layout,
        block: Bytes,
        allocate: Allocate | None,
        *,
        is_torn: bool = False,
        pages: PageMemory | None = None,
    ) -> None:
        """A table over a block that holds a table already (see `create`). With `allocate` None it cannot grow. If it
        `is_torn` by a crash, only `repair` may be called. Changes are announced to `pages` that the block lies on,
        or to those of `PagedBlocks` that give the block.
        """
        self.schema = schema
        self._allocate = allocate
        self._take_schema = take_schema(schema)
        self._nothing = pa.RecordBatch.from_pylist([], schema=self._take_schema)
        self._adopt(layout, block, pages)
        if not is_torn:
            check_counters(self._counters, layout)

    @classmethod
    def in_memory(
        cls, schema: pa.Schema, capacity: int = 1024, seed: int = 0, allocate: Allocate = anonymous
    ) -> "Table":
        """An empty table in private memory that grows as needed. Raises StateSchemaRefused."""
        layout = Layout(schema, max(capacity, 1), max(capacity, 1) * _ARENA_BYTES_PER_ROW)
        return cls.create(schema, layout, allocate(layout.size_bytes), seed, allocate)

    @classmethod
    def create(
        cls, schema: pa.Schema, layout: Layout, block: Bytes, seed: int, allocate: Allocate | None = None
    ) -> "Table":
        """An empty table in a block of zeros."""
        counters = layout.views(block)["counters"]
        counters[kernels.CAPACITY] = layout.capacity
        counters[kernels.ARENA_BYTES] = layout.arena_bytes
        counters[kernels.INDEX_SLOTS] = layout.slots
        counters[kernels.SEED] = signed(seed)
        counters[kernels.EARLIEST] = NEVER
        return cls(schema, layout, block, allocate)

    def _adopt(self, layout: Layout, block: Bytes, pages: PageMemory | None = None) -> None:
        views: dict[str, Any] = layout.views(block)
        self._layout = layout
        self._views = views
        self._columns: dict[str, Column] = {column.name: column for column in layout.columns}
        self._counters: Int64s = views["counters"]
        self._identities: kernels.Grid = views["identities"]
        self._refs: Int64s = self._identities[:, kernels.REF]
        self._hashes: Int64s = views["hashes"]
        self._index: Int64s = views["index"]
        self._arena: Bytes = views["arena"]
        if isinstance(self._allocate, PagedBlocks):
            pages = self._allocate.track(layout.tracked_bytes, self.content())
        self._touches: Touches = Untracked() if pages is None else TrackedTouches(layout, pages)

    # ---- size

    @property
    def live(self) -> int:
        """The number of windows."""
        return int(self._counters[kernels.OCCUPIED])

    @property
    def used(self) -> int:
        """The upper bound (exclusive) of row numbers."""
        return int(self._counters[kernels.USED])

    @property
    def size_bytes(self) -> int:
        """The memory of the table, in bytes."""
        return self._layout.size_bytes

    @property
    def capacity(self) -> int:
        """The number of rows that fit."""
        return self._layout.capacity

    @property
    def arena_bytes(self) -> int:
        """The number of bytes of keys and values that fit."""
        return self._layout.arena_bytes

    @property
    def is_sparse(self) -> bool:
        """Whether most of the memory belongs to windows that were removed."""
        return self.capacity > _SPARSE_CAPACITY and _SPARSE_FACTOR * self.live < self.capacity

    @property
    def seed(self) -> int:
        """The key of the hash."""
        return int(self._counters[kernels.SEED])

    # ---- identities

    def identify(self, keys: pa.Array, numbers: Int64s) -> IdentityColumns:
        """Identities with the hashes of this table, and of every table with the same seed."""
        parts = keys_of(keys)
        numbers = numbers_of(numbers, len(keys))
        hashes = hashes_of(parts, numbers, self.seed)
        numbers = numbers[:]
        numbers.flags.writeable = False
        return IdentityColumns(parts, numbers, hashes)

    def find(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The row of each window, -1 where there is none."""
        return self.find_identities(self.identify(keys, numbers))

    def find_identities(self, identities: IdentityColumns) -> Int64s:
        """`find`, for what `identify` returned."""
        keys, numbers, hashes = identities
        out = np.empty(len(hashes), np.int64)
        _check(kernels.find_rows(hashes, *keys, numbers, self._index, self._identities, self._arena, out))
        return out

    def ensure(self, keys: pa.Array, numbers: Int64s) -> tuple[Int64s, Bools]:
        """The row of each of these (distinct) identities, and whether it is new (state null, expires NEVER)."""
        identities = self.identify(keys, numbers)
        rows = self.find_identities(identities)
        is_new = rows < 0
        if is_new.any():
            self.insert(identities, rows)
        return rows, is_new

    def insert(self, identities: IdentityColumns, rows: Int64s) -> None:
        """Insert the identities with -1 in `rows`, and write their new rows there."""
        keys, numbers, hashes = identities
        missing = rows < 0
        lengths = np.diff(keys.offsets)[missing]
        if len(lengths) and int(lengths.max()) > kernels.MAX_ENTRY_BYTES:
            raise StateTooLarge(f"a key of {int(lengths.max())} bytes; at most {kernels.MAX_ENTRY_BYTES} can be kept")
        count, key_bytes = int(missing.sum()), int(lengths.sum(dtype=np.int64))
        self.reserve(count, key_bytes)
        self._touches.new_rows(count, key_bytes, self._identities, self._counters)
        refs = np.empty(len(rows), np.int64)
        status = kernels.insert_rows(
            hashes, *keys, numbers, self._index, self._identities, self._hashes, self._arena, self._counters, rows, refs
        )
        _check(status)
        new = rows[missing]
        self._blank(new)
        self._refs[new] = refs[missing]

    def hide(self, count: int) -> Int64s:
        """`count` new rows that no identity leads to, for windows that another table indexes. The caller fills them by
        `copy_state`.
        """
        self.reserve(count, 0)
        self._touches.new_rows(count, 0, self._identities, self._counters)
        free: list[int] = []
        while self._counters[kernels.FREE] and len(free) < count:
            row = int(self._counters[kernels.FREE]) - 1
            self._counters[kernels.FREE] = self._identities[row, kernels.NUMBER]
            free.append(row)
        fresh = count - len(free)
        rows = np.concatenate((np.array(free, np.int64), np.arange(self.used, self.used + fresh, dtype=np.int64)))
        self._counters[kernels.USED] += fresh
        self._counters[kernels.OCCUPIED] += count
        self._refs[rows] = kernels.REF_HIDDEN
        self._views["expires"][rows] = NEVER  # never used memory is 0, which would look like an expiry at 0
        return rows

    def _blank(self, rows: Int64s) -> None:
        views = self._views
        views["expires"][rows] = NEVER
        for name in ("epoch", "ordinal", "seen"):
            views[name][rows] = 0
        for column in self._layout.columns:
            views[STATE_PREFIX + column.name][rows] = 0
            if column.dtype is not None:
                views["n_" + column.name][rows] = 1

    def remove(self, rows: Int64s) -> None:
        """Remove windows, each row once at most; their rows become free. Rows that are free already stay free."""
        rows = rows[self._refs[rows] != kernels.REF_FREE]
        if not len(rows):
            return
        self._touches.rows(rows)
        garbage = _content_bytes(self._refs[rows])
        for column in self._layout.columns:
            if column.dtype is None:
                refs = self._views[STATE_PREFIX + column.name]
                garbage += _content_bytes(refs[rows])
                refs[rows] = 0
        self._views["expires"][rows] = NEVER
        self._views["ordinal"][rows] = NEVER
        _check(kernels.unlink_rows(_plain(rows), self._index, self._identities, self._hashes))
        self._refs[rows] = kernels.REF_FREE
        self._identities[rows, kernels.NUMBER] = np.append(rows[1:] + 1, self._counters[kernels.FREE])
        self._counters[kernels.FREE] = rows[0] + 1
        self._counters[kernels.OCCUPIED] -= len(rows)
        self._counters[kernels.GARBAGE] += garbage

    def keys(self, rows: Int64s) -> pa.BinaryArray:
        """The key of each window."""
        return bytes_array(pa.binary(), np.maximum(self._refs[rows], 0), self._arena)

    def numbers(self, rows: Int64s) -> Int64s:
        """The number of each window."""
        return self._identities[rows, kernels.NUMBER]

    def live_rows(self) -> Int64s:
        """The rows of all windows, ascending."""
        return np.flatnonzero(_holds_window(self._refs[: self.used]))

    # ---- state

    def get(self, name: str, rows: Int64s) -> Values:
        """The values of a column of fixed width, 0 where null; dates are days, timestamps and durations in their
        unit.
        """
        self._fixed(name)
        return self._views[STATE_PREFIX + name][rows]

    def nulls(self, name: str, rows: Int64s) -> Bools:
        """Where a column is null."""
        if self._column(name).dtype is None:
            return self._views[STATE_PREFIX + name][rows] == 0
        return self._views["n_" + name][rows] != 0

    def set(self, name: str, rows: Int64s, values: Any, nulls: Bools | None = None) -> None:
        """Store values of fixed width (or one for all), null where `nulls` says so. Raises StateValueRefused for values
        of another type that the column cannot hold without loss.
        """
        self._fixed(name)
        column = self._views[STATE_PREFIX + name]
        if getattr(values, "dtype", None) != column.dtype:
            given = values if np.ndim(values) else np.broadcast_to(np.asarray(values), (len(rows),))
            values, nulls = exact.fixed(f"state column {name!r}", self._column(name).type, given, nulls, len(rows))
        self._touches.rows(rows, (STATE_PREFIX + name,))
        column[rows] = values if nulls is None else np.where(nulls, np.zeros((), column.dtype), values)
        self._set_nulls("n_" + name, rows, nulls)

    def _set_nulls(self, name: str, rows: Int64s, nulls: Bools | None) -> None:
        """Note where a column is null; rows where that stays as it is change no page."""
        flags = self._views[name]
        wanted = np.zeros(len(rows), flags.dtype) if nulls is None else nulls.astype(flags.dtype)
        changed = flags[rows] != wanted
        if changed.any():
            self._touches.rows(rows[changed], (name,))
            flags[rows] = wanted

    def get_arrow(self, name: str, rows: Int64s) -> pa.Array:
        """A column of any type."""
        column = self._column(name)
        if column.dtype is None:
            refs = self._views[STATE_PREFIX + name][rows]
            if column.is_nested:
                return nested_array(column.type, bytes_array(pa.binary(), refs, self._arena))
            return bytes_array(column.type, refs, self._arena)
        return fixed_array(column.type, self._views[STATE_PREFIX + name][rows], self.nulls(name, rows))

    def set_arrow(self, name: str, rows: Int64s, values: pa.Array) -> None:
        """Store a column of any type; values are cast to the column's type. Raises StateValueRefused where that would
        lose something.
        """
        column = self._column(name)
        values = exact.column(f"state column {name!r}", column.type, values)
        if len(values) != len(rows):
            raise ValueError(f"{len(values)} values for {len(rows)} windows")
        if column.dtype is not None:
            self.set(name, rows, *fixed_values(values, column.dtype))
            return
        parts = keys_of(nested.encode(values) if column.is_nested else values)
        lengths = np.diff(parts.offsets)
        if len(lengths) and int(lengths.max()) > kernels.MAX_ENTRY_BYTES:
            raise StateTooLarge(
                f"a value of {int(lengths.max())} bytes in state column {name!r}; at most {kernels.MAX_ENTRY_BYTES} "
                "can be kept"
            )
        self.reserve(0, int(lengths.sum(dtype=np.int64)))
        rows, refs = _plain(rows), self._views[STATE_PREFIX + name]
        self._touches.values(rows, STATE_PREFIX + name, parts, refs, self._counters)
        _check(kernels.scatter_bytes(rows, *parts, refs, self._arena, self._counters))

    def _column(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"the state has no column {name!r}; it has {', '.join(self._columns)}") from None

    def _fixed(self, name: str) -> None:
        if self._column(name).dtype is None:
            raise TypeError(f"state column {name!r} varies in width: use its Arrow form")

    # ---- time and marks

    def expires(self, rows: Int64s) -> Int64s:
        """When windows expire, in milliseconds of event time."""
        return self._views["expires"][rows]

    def set_expires(self, rows: Int64s, expires_ms: Int64s | int) -> None:
        """Say when windows expire; NEVER, if not at all."""
        self._touches.rows(rows, ())  # no array: checks the rows
        # Most footprints are of windows that were there: what stays as it is changes no page.
        changed = self._views["expires"][rows] != expires_ms
        if not changed.any():
            return
        rows, expires_ms = rows[changed], np.broadcast_to(expires_ms, len(rows))[changed]
        self._touches.rows(rows, ("expires",))
        self._views["expires"][rows] = expires_ms
        earliest = int(np.min(expires_ms))
        if earliest < self._counters[kernels.EARLIEST]:
            self._counters[kernels.EARLIEST] = earliest

    def due(self, watermark_ms: int) -> Int64s:
        """The rows of windows that expire at the watermark or before it, ascending."""
        if watermark_ms < self._counters[kernels.EARLIEST] or watermark_ms == NEVER:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._views["expires"][: self.used] <= watermark_ms)

    def set_window_versions(self, rows: Int64s, epoch: int | Int64s, ordinal: int | Int64s, seen: int | Int64s) -> None:
        """Set the version of windows to that of a new footprint."""
        self._touches.rows(rows, ("epoch", "ordinal", "seen"))
        self._views["epoch"][rows] = epoch
        self._views["ordinal"][rows] = ordinal
        self._views["seen"][rows] = seen

    def window_versions(self, rows: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Epochs, ordinals and counts of seen records of windows' last footprints."""
        return self._views["epoch"][rows], self._views["ordinal"][rows], self._views["seen"][rows]

    def seens(self, rows: Int64s) -> Int64s:
        """Counts of seen records of windows' last footprints, as in `marks`."""
        return self._views["seen"][rows]

    def ordinals(self) -> Int64s:
        """The ordinal of every row below `used`, NEVER where there is no window. A view: do not write."""
        return self._views["ordinal"][: self.used]

    def oldest(self, count: int) -> Int64s:
        """The rows of the `count` windows whose footprints are oldest, by ordinal, then by row."""
        return oldest_of(self.ordinals(), count)

    def oldest_window_version(self) -> tuple[int, int, int] | None:
        """The mark of the oldest footprint (lowest ordinal), None without windows."""
        rows = self.oldest(1)
        if not len(rows):
            return None
        epochs, ordinals, seens = self.window_versions(rows)
        return int(epochs[0]), int(ordinals[0]), int(seens[0])

    # ---- many windows as a batch

    def take(self, rows: Int64s) -> pa.RecordBatch:
        """Windows as a batch: key, number, expires, and the state's columns with their prefix."""
        if not len(rows):
            return self._nothing
        return self.take_as(rows, self.keys(rows), self.numbers(rows))

    def take_as(self, rows: Int64s, keys: pa.Array, numbers: Int64s) -> pa.RecordBatch:
        """`take` under identities kept elsewhere (see `hide`)."""
        columns = [keys, pa.array(numbers), pa.array(self.expires(rows))]
        columns += [self.get_arrow(name, rows) for name in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._take_schema)

    def put(self, batch: pa.RecordBatch, mark: WindowVersion | tuple[int, int, int]) -> Int64s:
        """Store such a batch (identities distinct), overwriting windows that are there; the rows."""
        rows, _ = self.ensure(batch.column("key"), batch.column("number").to_numpy())
        self.fill(rows, batch)
        self.set_window_versions(rows, *mark)
        return rows

    def copy_state(self, rows: Int64s, source: "Table", source_rows: Int64s) -> None:
        """Take over expiry and state of windows of a table with the same schema."""
        self.set_expires(rows, source.expires(source_rows))
        for column in self._layout.columns:
            if column.dtype is None:
                self.set_arrow(column.name, rows, source.get_arrow(column.name, source_rows))
            else:
                names = (STATE_PREFIX + column.name, "n_" + column.name)
                self._touches.rows(rows, names)
                for name in names:
                    self._views[name][rows] = source._views[name][source_rows]  # noqa: SLF001 - one of us

    def fill(self, rows: Int64s, batch: pa.RecordBatch) -> None:
        """Overwrite expiry and state of windows by a batch's."""
        self.set_expires(rows, batch.column("expires").to_numpy())
        for name in self._columns:
            self.set_arrow(name, rows, batch.column(STATE_PREFIX + name))

    # ---- memory

    def has_room(self, rows: int, arena_bytes: int) -> bool:
        """Whether this many more rows and bytes fit without growing."""
        counters = self._counters
        return (
            int(counters[kernels.OCCUPIED]) + rows <= self._layout.capacity
            and int(counters[kernels.ARENA_USED]) + arena_bytes <= self._layout.arena_bytes
        )

    def grown(self, rows: int, arena_bytes: int, *, tight: bool = False) -> Layout:
        """The layout of a table like this one in which this many more rows and bytes fit: with room for as many again,
        or, if `tight`, with hardly more than that.
        """
        content_bytes = int(self._counters[kernels.ARENA_USED] - self._counters[kernels.GARBAGE]) + arena_bytes
        if tight:
            capacity = max(self.used, self.live + rows)
            return Layout(self.schema, capacity + capacity // 8, content_bytes + content_bytes // 8)
        capacity = self._layout.capacity
        while self.live + rows > capacity:
            capacity *= 2
        return Layout(self.schema, capacity, max(self._layout.arena_bytes, 2 * content_bytes))

    def reserve(self, rows: int, arena_bytes: int) -> None:
        """Make room for more rows and bytes, growing if need be. Raises the errors of `allocate`, and StateDamaged if
        the table cannot grow: then the caller was wrong about the room it needs.
        """
        if self.has_room(rows, arena_bytes):
            return
        if self._allocate is None:
            raise StateDamaged(f"no room for {rows} more windows and {arena_bytes} bytes in a table that cannot grow")
        layout = self.grown(rows, arena_bytes)
        block = self._allocate(layout.size_bytes)
        self.copy_to(layout, block)
        self._adopt(layout, block)

    @property
    def tracked_bytes(self) -> int:
        """The bytes of the block before its index: what pages are checkpointed."""
        return self._layout.tracked_bytes

    def content(self) -> list[tuple[int, int]]:
        """The ranges of bytes of the block that can differ from zero, without the index."""
        return self._layout.content(self._counters)

    def repair(self) -> None:
        """Make the table consistent after a crash within a change: all that follows from the windows and their
        references is rebuilt. The caller repeats the change.

        Raises StateDamaged if the table is still inconsistent.
        """
        counters, used = self._counters, self.used
        capacity, arena_bytes, slots = (int(value) for value in counters[: kernels.USED])
        known = (self._layout.capacity, self._layout.arena_bytes, self._layout.slots)
        if (capacity, arena_bytes, slots) != known or not 0 <= used <= capacity:
            raise StateDamaged(f"a table's counters contradict themselves: {counters[:8].tolist()}")
        free = np.flatnonzero(~_holds_window(self._refs[:used]))
        self._touches.rows(free)
        self._refs[free] = kernels.REF_FREE
        self._identities[free, kernels.NUMBER] = np.append(free[1:] + 1, 0)[: len(free)]
        for name in ("expires", "ordinal"):
            self._views[name][free] = NEVER
        content_bytes, end = _extent(self._refs[:used])
        for column in self._layout.columns:
            if column.dtype is None:
                refs = self._views[STATE_PREFIX + column.name]
                refs[free] = 0
                more_bytes, further = _extent(refs[:used])
                content_bytes, end = content_bytes + more_bytes, max(end, further)
        counters[kernels.FREE] = free[0] + 1 if len(free) else 0
        counters[kernels.OCCUPIED] = used - len(free)
        counters[kernels.ARENA_USED] = end
        counters[kernels.GARBAGE] = end - content_bytes
        counters[kernels.EARLIEST] = self._views["expires"][:used].min(initial=NEVER)
        check_counters(counters, self._layout)
        self._index[:] = 0
        _check(kernels.link_rows(self._identities, self._hashes, used, self._index))

    def copy_to(self, layout: Layout, block: Bytes) -> None:
        """Copy the table into a block of zeros with room for it. Rows keep their numbers; garbage is not copied."""
        views: dict[str, Any] = layout.views(block)
        used = self.used
        for name, source in self._views.items():
            if name not in ("counters", "index", "arena"):
                views[name][:used] = source[:used]
        arena_used = _move(self._refs[:used], self._arena, views["identities"][:used, kernels.REF], views["arena"], 0)
        for column in self._layout.columns:
            if column.dtype is None:
                name = STATE_PREFIX + column.name
                arena_used = _move(
                    self._views[name][:used], self._arena, views[name][:used], views["arena"], arena_used
                )
        counters = views["counters"]
        counters[:] = self._counters
        counters[kernels.CAPACITY] = layout.capacity
        counters[kernels.ARENA_BYTES] = layout.arena_bytes
        counters[kernels.INDEX_SLOTS] = layout.slots
        counters[kernels.ARENA_USED] = arena_used
        counters[kernels.GARBAGE] = 0
        _check(kernels.link_rows(views["identities"], views["hashes"], used, views["index"]))


def _holds_window(refs: Int64s) -> Bools:
    """Which references in identities are of windows that can be found here."""
    return (refs != kernels.REF_FREE) & (refs != kernels.REF_HIDDEN)


def _content_bytes(refs: Int64s) -> int:
    return int(np.maximum((refs[refs > 0] & kernels.LENGTH_MASK) - 1, 0).sum())


def _extent(refs: Int64s) -> tuple[int, int]:
    """How many bytes references lead to, and where the last of them ends."""
    refs = refs[refs > 0]
    lengths = np.maximum((refs & kernels.LENGTH_MASK) - 1, 0)
    return int(lengths.sum()), int(((refs >> kernels.LENGTH_BITS) + lengths).max(initial=0))


def _move(refs: Int64s, source: Bytes, target_refs: Int64s, target: Bytes, at: int) -> int:
    """Copy what references lead to end to end behind `at` and write the new references; the position behind."""
    held = np.flatnonzero(refs > 0)
    lengths = (refs[held] & kernels.LENGTH_MASK) - 1
    ends = np.cumsum(lengths)
    total_bytes = int(ends[-1]) if len(ends) else 0
    if at + total_bytes > len(target):
        raise StateDamaged(f"{at + total_bytes} bytes of keys and values for an arena of {len(target)}")
    target_refs[held] = ((ends - lengths + at) << kernels.LENGTH_BITS) | (lengths + 1)
    _check(kernels.move_bytes(refs[held], source, target[at : at + total_bytes]))
    return at + total_bytes


def _plain(rows: Int64s) -> Int64s:
    """Rows as compiled loops take them."""
    return np.require(rows, np.int64, ["C", "W"])


def _check(status: int) -> None:
    if status != kernels.OK:
        raise StateDamaged("a table's index or references contradict themselves")

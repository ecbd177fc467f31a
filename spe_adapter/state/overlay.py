"""Copy-on-write: windows of a base that is never written, with changes in a private table.

A window of the base is read from the base until its first change. Then its state is copied into a private row, which
later calls read. New windows are in the private table only.

Invariants:
* The base is only read. Dropping the overlay undoes everything.
* `_shadow` says of each row of the base where its window is: 0 in the base, n > 0 in private row n − 1, CLOSED nowhere.
* A private row is indexed by its identity if its window is not the base's; copies are found through the base alone.
* Ids from BASE on name rows of the base, whether copied or not; ids below it are private rows.

Source: SGuard paper, section 4 (application-level copy-on-write: a page is copied when it is first touched), with a
window in place of a page.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.state.columns import Values
from spe_adapter.state.layout import NEVER
from spe_adapter.state.oldest import oldest_of
from spe_adapter.state.store import ChangeTracker, WindowChanges, identity_batch
from spe_adapter.state.table import Allocate, Table, anonymous

_BASE: Final = 1 << 40
_CLOSED: Final = -1
_NONE: Final = -1


class Overlay:
    """A `StateStore` over a base. Raises what `allocate` raises when the private table grows."""

    def __init__(self, base: Table, allocate: Allocate = anonymous) -> None:
        self.schema = base.schema
        self._base = base
        self._own = Table.in_memory(base.schema, seed=base.seed, allocate=allocate)
        self._tracker = ChangeTracker(self._own)
        self._shadow = np.zeros(base.used, np.int32)
        self._origin = np.full(1024, _NONE, np.int64)
        self._copies = 0
        self._closed = 0

    @property
    def live(self) -> int:
        """The number of open windows."""
        return self._base.live - self._closed + self._own.live - self._copies

    @property
    def size_bytes(self) -> int:
        """The memory of the private table and of the arrays that locate windows, in bytes."""
        return self._own.size_bytes + self._shadow.nbytes + self._origin.nbytes

    @property
    def seed(self) -> int:
        """The key of the hash of base and private table."""
        return self._base.seed

    # ---- windows

    def find(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The id of each window, -1 where it is not open."""
        identities = self._base.identify(keys, numbers)
        ids = self._in_base(self._base.find_identities(identities))
        if (ids < 0).any() and self._own.live > self._copies:
            ids = np.where(ids < 0, self._own.find_identities(identities), ids)
        return ids

    def ensure(self, keys: pa.Array, numbers: Int64s) -> tuple[Int64s, Bools]:
        """The id of each window, and whether it is new. A new window is opened."""
        identities = self._base.identify(keys, numbers)
        ids = self._in_base(self._base.find_identities(identities))
        absent = ids < 0
        if not absent.any():
            return ids, absent
        own = self._own.find_identities(identities)
        is_new = absent & (own < 0)
        if is_new.any():
            # Windows of the base count as found here: any row but -1 says so.
            rows = np.where(absent, own, 0)
            self._own.insert(identities, rows)
            own = np.where(absent, rows, own)
            self._tracker.opened(rows[is_new])
        return np.where(absent, own, ids), is_new

    def close(self, ids: Int64s) -> None:
        """Close windows."""
        in_base = ids >= _BASE
        own = ids[~in_base]
        if len(own):
            self._tracker.closing(own)
            self._own.remove(own)
        base_rows = ids[in_base] - _BASE
        if len(base_rows):
            self._tracker.closed_elsewhere(identity_batch(self._base, base_rows))
            copies = self._shadow[base_rows].astype(np.int64) - 1
            copies = copies[copies >= 0]
            self._tracker.dropped(copies)
            self._own.remove(copies)
            self._origin[copies] = _NONE
            self._copies -= len(copies)
            self._shadow[base_rows] = _CLOSED
            self._closed += len(base_rows)

    def renew(self, ids: Int64s) -> None:
        """Mark open windows as new."""
        self._tracker.renewed(self._copied(ids))

    def all_rows(self) -> Int64s:
        """The ids of all open windows."""
        base_rows = self._base.live_rows()
        if self._closed:
            base_rows = base_rows[self._shadow[base_rows] != _CLOSED]
        return np.concatenate((base_rows + _BASE, self._own.live_rows()))

    def due(self, watermark_ms: int) -> Int64s:
        """Open windows that expire at the watermark or before it."""
        base_rows = self._base.due(watermark_ms)
        base_rows = base_rows[self._shadow[base_rows] == 0]
        own = self._own.due(watermark_ms)
        self._grow()
        origins = self._origin[own]
        return np.concatenate((base_rows + _BASE, np.where(origins >= 0, origins + _BASE, own)))

    # ---- state

    def get(self, name: str, ids: Int64s) -> Values:
        """Values of a column of fixed width, 0 where null."""
        return self._read(ids, lambda table, rows: table.get(name, rows))

    def nulls(self, name: str, ids: Int64s) -> Bools:
        """Where a column is null."""
        return self._read(ids, lambda table, rows: table.nulls(name, rows))

    def numbers(self, ids: Int64s) -> Int64s:
        """The number of each window."""
        in_base = ids >= _BASE
        if in_base.all():
            return self._base.numbers(ids - _BASE)
        numbers = np.empty(len(ids), np.int64)
        numbers[in_base] = self._base.numbers(ids[in_base] - _BASE)
        numbers[~in_base] = self._own.numbers(ids[~in_base])
        return numbers

    def expires(self, ids: Int64s) -> Int64s:
        """When windows expire, in milliseconds of event time."""
        return self._read(ids, lambda table, rows: table.expires(rows))

    def get_arrow(self, name: str, ids: Int64s) -> pa.Array:
        """A column of any type."""
        own = self._own_rows(ids)
        return _merge(own, ids, lambda rows: self._own.get_arrow(name, rows), lambda r: self._base.get_arrow(name, r))

    def keys(self, ids: Int64s) -> pa.BinaryArray:
        """The key of each window."""
        own = np.where(ids < _BASE, ids, _NONE)
        return _merge(own, ids, self._own.keys, self._base.keys)

    def set(self, name: str, ids: Int64s, values: Any, nulls: Bools | None = None) -> None:
        """Store values of fixed width."""
        rows = self._copied(ids)
        self._own.set(name, rows, values, nulls)
        self._tracker.changed(rows)

    def set_arrow(self, name: str, ids: Int64s, values: pa.Array) -> None:
        """Store a column of any type."""
        rows = self._copied(ids)
        self._own.set_arrow(name, rows, values)
        self._tracker.changed(rows)

    def set_expires(self, ids: Int64s, expires_ms: Int64s | int) -> None:
        """Set when windows expire, in milliseconds of event time."""
        rows = self._copied(ids)
        self._own.set_expires(rows, expires_ms)
        self._tracker.changed(rows)

    # ---- footprints

    def oldest(self, count: int) -> Int64s:
        """The ids of the `count` windows with the oldest footprints, oldest first, without windows that changed.

        Windows that changed in an earlier epoch of this overlay are left out too: the versions of their footprints are
        not known here.
        """
        ordinals = self._base.ordinals()
        if self._copies or self._closed:
            ordinals = np.where(self._shadow[: len(ordinals)] == 0, ordinals, NEVER)
        return oldest_of(ordinals, count) + _BASE

    def window_versions(self, ids: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Epochs, ordinals and counts of seen records of windows' last footprints, 0 for those not in the base."""
        in_base = ids >= _BASE
        parts = self._base.window_versions(ids[in_base] - _BASE)
        out = np.zeros((3, len(ids)), np.int64)
        for row, part in zip(out, parts, strict=True):
            row[in_base] = part
        return out[0], out[1], out[2]

    def touch(self, ids: Int64s) -> None:
        """Write footprints of these windows too."""
        self._tracker.changed(self._copied(ids))

    def changes(self) -> WindowChanges:
        """The changes since the last call. The next epoch starts."""
        rows, opened = self._tracker.changed_rows()
        self._grow()
        origins = self._origin[rows]
        ids = np.where(origins >= 0, origins + _BASE, rows)
        footprints = self._own.take_as(rows, self.keys(ids), self.numbers(ids))
        closed, transient = self._tracker.gone()
        self._tracker.start_epoch()
        return WindowChanges(footprints, opened, closed, transient, ids)

    # ---- where windows are

    def _in_base(self, rows: Int64s) -> Int64s:
        """Ids of the base's rows, -1 where there is none or it is closed."""
        if self._closed:
            rows = np.where((rows >= 0) & (self._shadow[rows] == _CLOSED), _NONE, rows)
        return np.where(rows >= 0, rows + _BASE, rows)

    def _own_rows(self, ids: Int64s) -> Int64s:
        """The private row of each window, -1 for those that are only in the base."""
        if not self._copies:
            return np.where(ids < _BASE, ids, _NONE)
        in_base = ids >= _BASE
        rows = ids.copy()
        rows[in_base] = self._shadow[ids[in_base] - _BASE] - 1
        return rows

    def _read(self, ids: Int64s, read: Any) -> Any:
        own = self._own_rows(ids)
        here = own >= 0
        if here.all():
            return read(self._own, own)
        if not here.any():
            return read(self._base, ids - _BASE)
        mine = read(self._own, own[here])
        values = np.empty(len(ids), mine.dtype)
        values[here] = mine
        values[~here] = read(self._base, ids[~here] - _BASE)
        return values

    def _copied(self, ids: Int64s) -> Int64s:
        """The private row of each window, copying what is only in the base."""
        rows = self._own_rows(ids)
        absent = rows < 0
        if not absent.any():
            return rows
        base_rows = ids[absent] - _BASE
        # Should a window be named twice, one of its places remains: that which was written last.
        places = np.arange(1, len(base_rows) + 1, dtype=np.int32)
        self._shadow[base_rows] = places
        base_rows = base_rows[self._shadow[base_rows] == places]
        copies = self._own.hide(len(base_rows))
        self._own.copy_state(copies, self._base, base_rows)
        self._shadow[base_rows] = copies + 1
        self._grow()
        self._origin[copies] = base_rows
        self._copies += len(copies)
        return self._own_rows(ids)

    def _grow(self) -> None:
        if len(self._origin) < self._own.used:
            origin = np.full(2 * self._own.used, _NONE, np.int64)
            origin[: len(self._origin)] = self._origin
            self._origin = origin


def _merge(own: Int64s, ids: Int64s, read_own: Any, read_base: Any) -> pa.Array:
    """A column from private rows where there are any, else from the base's."""
    here = own >= 0
    if here.all():
        return read_own(own)
    if not here.any():
        return read_base(ids - _BASE)
    both = pa.concat_arrays([read_own(own[here]), read_base(ids[~here] - _BASE)])
    place = np.empty(len(ids), np.int64)
    place[here] = np.arange(int(here.sum()))
    place[~here] = np.arange(int(here.sum()), len(ids))
    return both.take(pa.array(place))

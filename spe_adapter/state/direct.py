"""Windows changed in place, in one private table: for a runner that owns its state.

Invariant: the table is always the current state; the journal alone remembers what an epoch changed.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.state.columns import Values
from spe_adapter.state.store import ChangeTracker, WindowChanges
from spe_adapter.state.table import Table


class Direct:
    """A `StateStore` over one table, which the loader of state fills first. Ids are the table's rows.

    A runner that footprints only what opens and what is checked need not be told of other changes
    (`tells_changes=False`), one without checkpoints need be told nothing (`tells_windows=False`).
    """

    def __init__(self, table: Table, *, tells_changes: bool = True, tells_windows: bool = True) -> None:
        self.table = table
        self.schema = table.schema
        self._tells_changes = tells_changes
        self._tells_windows = tells_windows
        self._tracker = ChangeTracker(table)

    @property
    def live(self) -> int:
        """How many windows are open."""
        return self.table.live

    @property
    def size_bytes(self) -> int:
        """The table's memory."""
        return self.table.size_bytes

    @property
    def seed(self) -> int:
        """The key of the table's hash."""
        return self.table.seed

    def find(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The id of each window, -1 where it is not open."""
        return self.table.find(keys, numbers)

    def ensure(self, keys: pa.Array, numbers: Int64s) -> tuple[Int64s, Bools]:
        """The id of each window, opening those that are not; and which are new."""
        rows, is_new = self.table.ensure(keys, numbers)
        if self._tells_windows and is_new.any():
            self._tracker.opened(rows[is_new])
        return rows, is_new

    def close(self, ids: Int64s) -> None:
        """Close windows."""
        if self._tells_windows:
            self._tracker.closing(ids)
        self.table.remove(ids)

    def renew(self, ids: Int64s) -> None:
        """Note that the content of open windows was replaced. Like windows just opened they have no footprint yet."""
        if self._tells_windows:
            self._tracker.renewed(ids)
        self.table.set_window_versions(ids, 0, 0, 0)

    def get(self, name: str, ids: Int64s) -> Values:
        """Values of a column of fixed width, 0 where null."""
        return self.table.get(name, ids)

    def nulls(self, name: str, ids: Int64s) -> Bools:
        """Where a column is null."""
        return self.table.nulls(name, ids)

    def set(self, name: str, ids: Int64s, values: Any, nulls: Bools | None = None) -> None:
        """Store values of fixed width."""
        self.table.set(name, ids, values, nulls)
        if self._tells_changes:
            self._tracker.changed(ids)

    def get_arrow(self, name: str, ids: Int64s) -> pa.Array:
        """A column of any type."""
        return self.table.get_arrow(name, ids)

    def set_arrow(self, name: str, ids: Int64s, values: pa.Array) -> None:
        """Store a column of any type."""
        self.table.set_arrow(name, ids, values)
        if self._tells_changes:
            self._tracker.changed(ids)

    def keys(self, ids: Int64s) -> pa.BinaryArray:
        """The key of each window."""
        return self.table.keys(ids)

    def numbers(self, ids: Int64s) -> Int64s:
        """The number of each window."""
        return self.table.numbers(ids)

    def expires(self, ids: Int64s) -> Int64s:
        """When windows expire, in milliseconds of event time."""
        return self.table.expires(ids)

    def set_expires(self, ids: Int64s, expires_ms: Int64s | int) -> None:
        """Say when windows expire."""
        self.table.set_expires(ids, expires_ms)
        if self._tells_changes:
            self._tracker.changed(ids)

    def due(self, watermark_ms: int) -> Int64s:
        """Open windows that expire at the watermark or before it."""
        return self.table.due(watermark_ms)

    def all_rows(self) -> Int64s:
        """Every open window."""
        return self.table.live_rows()

    def oldest(self, count: int) -> Int64s:
        """Of all open windows, those whose footprints are oldest, oldest first. One that opened in this epoch has no
        footprint yet and is not among them.
        """
        rows, opened = self._tracker.changed_rows()
        fresh = rows[opened]
        found = self.table.oldest(count + len(fresh))
        return found[~np.isin(found, fresh)][:count]

    def window_versions(self, ids: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Epochs, ordinals and counts of seen records of windows' last footprints."""
        return self.table.window_versions(ids)

    def touch(self, ids: Int64s) -> None:
        """Footprint these windows too."""
        self._tracker.changed(ids)

    def changes(self, checks: Int64s | None = None, *, with_changed: bool = False) -> WindowChanges:
        """What changed since the last call, and the start of the next epoch.

        With `checks` (each named once), only windows that opened and these are footprinted; what else changed is left
        for a replay of the input to bring back, unless `with_changed` has it footprinted too. The caller that writes
        the footprints notes their marks in `table`.
        """
        rows, opened = self._tracker.changed_rows()
        if checks is not None:
            if not with_changed and not opened.all():
                rows, opened = rows[opened], opened[opened]
            if len(checks):
                known = self._tracker.is_changed(checks) if with_changed else self._tracker.is_new(checks)
                rows = np.concatenate((rows, checks[~known]))
            opened = np.append(opened, np.zeros(len(rows) - len(opened), np.bool_))
        closed, transient = self._tracker.gone()
        changes = WindowChanges(self.table.take(rows), opened, closed, transient, rows)
        self._tracker.start_epoch()
        return changes

"""The open windows with the oldest footprints, from which a policy chooses; kept from epoch to epoch.

Invariants:
* Ordinals only grow, so the list stays sorted: windows that close or get a new footprint leave it, none is inserted. It
  is built again from the whole table when few windows are left, not in every epoch.
* A row of the list counts only while the table has the ordinal that the list noted: a row that was freed or used again
  has another.

Source: CEC paper, section III (the ordered list of open windows).
"""

from typing import Final, NamedTuple

import numpy as np

from spe_adapter.codec.kernels import Int64s
from spe_adapter.state.table import Table

MAX_CANDIDATES: Final = 8192
"""The number of windows that a policy gets at first."""
MAX_CHECKS: Final = 8 * MAX_CANDIDATES
"""The largest number, for a policy that chooses all windows that it got. An epoch checks no more windows, so that its
output stays small: some MB, and some ten milliseconds.
"""
MIN_CANDIDATES: Final = 1024
"""A shorter list is built again."""


class OldestWindows(NamedTuple):
    """Table rows, ordinals and counts of seen records of windows, oldest footprint first.

    `fresh` is the number of open windows without a footprint; 0 if the list does not hold all windows with one.
    """

    rows: Int64s
    ordinals: Int64s
    seens: Int64s
    fresh: int


class Oldest(NamedTuple):
    """The epoch, the ordinal and the count of seen records of the oldest footprint of an open window."""

    epoch: int
    ordinal: int
    seen: int


class Candidates:
    """The list of candidates over a table. Call `refresh` once all open windows have footprints."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows = self._ordinals = np.empty(0, np.int64)
        self._is_whole = True

    def add(self, rows: Int64s, ordinal: int) -> None:
        """Add windows that just got a footprint, if the list holds all open windows."""
        if self._is_whole and len(rows):
            self._rows = np.concatenate((self._rows, rows))
            self._ordinals = np.concatenate((self._ordinals, np.full(len(rows), ordinal)))

    def refresh(self) -> None:
        """Build the list again if it is short."""
        self._drop_stale()
        self._is_whole = self._is_whole and len(self._rows) <= MAX_CANDIDATES
        if len(self._rows) < min(MIN_CANDIDATES, self._table.live):
            self._rows = self._table.oldest(MAX_CANDIDATES)
            self._ordinals = self._table.ordinals()[self._rows]
            self._is_whole = len(self._rows) == self._table.live

    def front(self) -> OldestWindows:
        """The windows of the list that are still open. Windows that opened in this epoch are not among them."""
        self._drop_stale()
        fresh = self._table.live - len(self._rows) if self._is_whole else 0
        return OldestWindows(self._rows, self._ordinals, self._table.seens(self._rows), fresh)

    def longer_front(self) -> OldestWindows:
        """`front` with up to MAX_CHECKS windows, for a policy that chose all windows of `front`."""
        # A window that opened in this epoch has no footprint yet: its ordinal is 0.
        known = self._table.ordinals()
        fresh = int(np.count_nonzero(known == 0))
        rows = self._table.oldest(MAX_CHECKS + fresh)
        ordinals = known[rows]
        self._rows, self._ordinals = rows[ordinals > 0], ordinals[ordinals > 0]
        self._is_whole = len(self._rows) + fresh == self._table.live
        return self.front()

    def oldest(self) -> Oldest | None:
        """The oldest footprint; None without windows. Call it after `refresh`, before the state changes."""
        if not len(self._rows):
            return None
        epochs, ordinals, seens = self._table.window_versions(self._rows[:1])
        return Oldest(int(epochs[0]), int(ordinals[0]), int(seens[0]))

    def _drop_stale(self) -> None:
        fresh = self._table.ordinals()[self._rows] == self._ordinals
        if not fresh.all():
            self._rows, self._ordinals = self._rows[fresh], self._ordinals[fresh]

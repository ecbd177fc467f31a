"""The front of the ordered list of open windows: those whose footprints are oldest, kept from epoch to epoch.

Invariants:
* Ordinals only grow, so the list stays sorted while windows close or get new footprints: those only drop out. It is
  made anew from the whole table when few are left, not in every epoch.
* A row counts only while its ordinal is the one it had: a row that was freed, or used again, has another.

Source: CEC paper, section III (the ordered list of open windows).
"""

from typing import Final, NamedTuple

import numpy as np

from spe_adapter.codec.kernels import Int64s
from spe_adapter.state.table import Table

MAX_CANDIDATES: Final = 8192
"""How many candidates a policy is shown at first."""
MAX_CHECKS: Final = 8 * MAX_CANDIDATES
"""And at most, where it wants all that it is shown. An epoch never checks more, so that it and its append group stay
small: some MB, and some ten milliseconds.
"""
MIN_CANDIDATES: Final = 1024
"""Below this the list is made anew."""


class OldestWindows(NamedTuple):
    """Windows, oldest footprint first. `fresh` others have no footprint yet; 0 if there are more that have one."""

    rows: Int64s
    ordinals: Int64s
    seens: Int64s
    fresh: int


class Oldest(NamedTuple):
    """The mark of the oldest footprint of an open window."""

    epoch: int
    ordinal: int
    seen: int


class Candidates:
    """See the module. `refresh` is called when all open windows have their marks, `front` at any time."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows = self._ordinals = np.empty(0, np.int64)
        self._is_whole = True

    def add(self, rows: Int64s, ordinal: int) -> None:
        """These windows were footprinted last; a list of all open windows stays one of all, until it is too long."""
        if self._is_whole and len(rows):
            self._rows = np.concatenate((self._rows, rows))
            self._ordinals = np.concatenate((self._ordinals, np.full(len(rows), ordinal)))

    def refresh(self) -> None:
        """Make the list anew if it runs short."""
        self._drop_stale()
        self._is_whole = self._is_whole and len(self._rows) <= MAX_CANDIDATES
        if len(self._rows) < min(MIN_CANDIDATES, self._table.live):
            self._rows = self._table.oldest(MAX_CANDIDATES)
            self._ordinals = self._table.ordinals()[self._rows]
            self._is_whole = len(self._rows) == self._table.live

    def front(self) -> OldestWindows:
        """The oldest windows that are still open; opened ones of this epoch are not among them."""
        self._drop_stale()
        fresh = self._table.live - len(self._rows) if self._is_whole else 0
        return OldestWindows(self._rows, self._ordinals, self._table.seens(self._rows), fresh)

    def longer_front(self) -> OldestWindows:
        """`front` with up to MAX_CHECKS windows, where the policy wants more than there were in it."""
        # What opened in this epoch has no footprint yet, and the ordinal 0.
        known = self._table.ordinals()
        fresh = int(np.count_nonzero(known == 0))
        rows = self._table.oldest(MAX_CHECKS + fresh)
        ordinals = known[rows]
        self._rows, self._ordinals = rows[ordinals > 0], ordinals[ordinals > 0]
        self._is_whole = len(self._rows) + fresh == self._table.live
        return self.front()

    def oldest(self) -> Oldest | None:
        """The oldest footprint, None without windows; behind `refresh`, before anything changes."""
        if not len(self._rows):
            return None
        epochs, ordinals, seens = self._table.marks(self._rows[:1])
        return Oldest(int(epochs[0]), int(ordinals[0]), int(seens[0]))

    def _drop_stale(self) -> None:
        fresh = self._table.ordinals()[self._rows] == self._ordinals
        if not fresh.all():
            self._rows, self._ordinals = self._rows[fresh], self._ordinals[fresh]

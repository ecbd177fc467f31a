"""The pages that a table changes, announced before the table changes them: what `pages.page_memory` asks for.

Invariants:
* Each store of a `state.table.Table` into its block, but for its index, comes after the announcement of its page. The
  index follows from the rest of the table, and is not among the pages.
* A table that nobody freezes (`Untracked`) pays for one call of an empty function.
* What is announced is a superset of what is changed: rows are announced in groups of neighbours.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from spe_adapter.codec.columns import BytesColumn
from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.pages.kernels import mark_groups, pages_of_groups
from spe_adapter.pages.page_memory import PageMemory
from spe_adapter.state import kernels
from spe_adapter.state.errors import StateDamaged
from spe_adapter.state.layout import ARENA, Layout

_GROUPS_PER_PAGE: Final = 16
"""Groups of rows in a page of an array of eight bytes a row: a group is the unit in which pages are looked for."""


class Touches(Protocol):
    """What a table announces before it changes."""

    def rows(self, rows: Int64s, names: Sequence[str] | None = None) -> None:
        """Rows of the arrays of these names (default: of all arrays), and the counters."""

    def new_rows(self, count: int, key_bytes: int, identities: kernels.Grid, counters: Int64s) -> None:
        """The rows that the next `count` insertions take, and the part of the arena for their keys."""

    def values(self, rows: Int64s, name: str, parts: BytesColumn, refs: Int64s, counters: Int64s) -> None:
        """Values of varying width of rows: their references and their bytes in the arena."""


class Untracked:
    """Touches of a table that nobody freezes."""

    def rows(self, rows: Int64s, names: Sequence[str] | None = None) -> None:
        """Nothing to announce."""

    def new_rows(self, count: int, key_bytes: int, identities: kernels.Grid, counters: Int64s) -> None:
        """Nothing to announce."""

    def values(self, rows: Int64s, name: str, parts: BytesColumn, refs: Int64s, counters: Int64s) -> None:
        """Nothing to announce."""


class TrackedTouches:
    """Touches of a table whose block lies on pages, from the block's first byte on."""

    def __init__(self, layout: Layout, memory: PageMemory) -> None:
        self._memory = memory
        self._page_shift = memory.table.page_shift
        self._group_shift = max(self._page_shift - 3 - (_GROUPS_PER_PAGE.bit_length() - 1), 0)
        self._groups: Bytes = np.zeros((layout.capacity >> self._group_shift) + 1, np.uint8)
        self._pages: Bytes = np.zeros(memory.table.pages, np.uint8)
        self._arena_at = layout.starts[ARENA]
        self._arena_bytes = layout.arena_bytes
        self._all = layout.row_arrays
        self._arrays: dict[tuple[str, ...], tuple[Int64s, Int64s]] = {}
        self._starts = layout.starts
        self._widths = layout.widths

    def rows(self, rows: Int64s, names: Sequence[str] | None = None) -> None:
        """Rows of the arrays of these names (default: of all arrays), and the counters. Raises StateDamaged for a row
        outside the table.
        """
        self._mark_rows(rows, self._all if names is None else tuple(names))
        self._announce()

    def new_rows(self, count: int, key_bytes: int, identities: kernels.Grid, counters: Int64s) -> None:
        """The rows that the next `count` insertions take, and the part of the arena for their keys."""
        rows = np.empty(count, np.int64)
        if kernels.next_rows(identities, counters, rows) != kernels.OK:
            raise StateDamaged("the chain of free rows leads outside the table")
        self._mark_rows(rows, self._all)
        self._mark_arena(int(counters[kernels.ARENA_USED]), key_bytes)
        self._announce()

    def values(self, rows: Int64s, name: str, parts: BytesColumn, refs: Int64s, counters: Int64s) -> None:
        """Values of varying width of rows: their references and their bytes in the arena."""
        self._mark_rows(rows, (name,))
        appended = kernels.mark_values(
            rows, *parts[:3], refs, self._arena_at, self._arena_bytes, self._page_shift, self._pages
        )
        if appended < 0:
            raise StateDamaged("a reference leads outside the arena")
        self._mark_arena(int(counters[kernels.ARENA_USED]), appended)
        self._announce()

    def _mark_rows(self, rows: Int64s, names: tuple[str, ...]) -> None:
        arrays = self._arrays.get(names)
        if arrays is None:
            starts = np.array([self._starts[name] for name in names], np.int64)
            widths = np.array([self._widths[name] for name in names], np.int64)
            arrays = self._arrays[names] = (starts, widths)
        rows = np.require(rows, np.int64, ["C", "W"])
        if not mark_groups(rows, self._group_shift, self._groups):
            self._groups[:] = 0
            raise StateDamaged("a row lies outside the table")
        pages_of_groups(self._groups, self._group_shift, *arrays, self._page_shift, self._pages)

    def _mark_arena(self, at: int, size_bytes: int) -> None:
        if size_bytes:
            first = (self._arena_at + at) >> self._page_shift
            last = (self._arena_at + at + size_bytes - 1) >> self._page_shift
            self._pages[first : last + 1] = 1

    def _announce(self) -> None:
        self._pages[0] = 1  # the counters, which every change changes
        numbers = np.flatnonzero(self._pages)
        self._pages[numbers] = 0
        self._memory.touch(numbers)

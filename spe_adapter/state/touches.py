"""The pages that a table changes, announced before the table changes them: what `pages.page_memory` asks for.

Invariants:
* Each store of a `state.table.Table` into its block, but for its index, comes after the announcement of its page. The
  index follows from the rest of the table, and is not among the pages.
* A table that nobody freezes (`Untracked`) pays for one call of an empty function.
* What is announced is a superset of what is changed: rows are announced in groups of neighbours.
* Each announcement can name the words that change, which costs nothing unless frozen pages are among the pages.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spe_adapter.codec.columns import BytesColumn
from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.pages.before_images import WORD_BYTES, WORD_SHIFT
from spe_adapter.pages.kernels import mark_groups, pages_of_groups, words_of_rows
from spe_adapter.pages.page_memory import PageMemory
from spe_adapter.state import kernels
from spe_adapter.state.errors import StateDamaged
from spe_adapter.state.layout import ARENA, Layout

_NO_WORDS: Final[Int64s] = np.empty(0, np.int64)
_COUNTER_WORDS: Final[Int64s] = np.arange(kernels.COUNTERS, dtype=np.int64)
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


class _Arrays(NamedTuple):
    """Arrays with an item per row: first bytes and widths, of the arrays and of their parts of a word at most."""

    starts: Int64s
    widths: Int64s
    part_starts: Int64s
    part_widths: Int64s


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
        self._arrays: dict[tuple[str, ...], _Arrays] = {}
        self._starts = layout.starts
        self._widths = layout.widths

    def rows(self, rows: Int64s, names: Sequence[str] | None = None) -> None:
        """Rows of the arrays of these names (default: of all arrays), and the counters. Raises StateDamaged for a row
        outside the table.
        """
        arrays = self._arrays_of(self._all if names is None else tuple(names))
        self._mark_rows(rows, arrays)
        self._announce(lambda pages: [self._words_of_rows(rows, arrays, pages)])

    def new_rows(self, count: int, key_bytes: int, identities: kernels.Grid, counters: Int64s) -> None:
        """The rows that the next `count` insertions take, and the part of the arena for their keys."""
        rows = np.empty(count, np.int64)
        if kernels.next_rows(identities, counters, rows) != kernels.OK:
            raise StateDamaged("the chain of free rows leads outside the table")
        arrays = self._arrays_of(self._all)
        self._mark_rows(rows, arrays)
        arena = self._mark_arena(int(counters[kernels.ARENA_USED]), key_bytes)
        self._announce(lambda pages: [self._words_of_rows(rows, arrays, pages), self._inside(arena, pages)])

    def values(self, rows: Int64s, name: str, parts: BytesColumn, refs: Int64s, counters: Int64s) -> None:
        """Values of varying width of rows: their references and their bytes in the arena."""
        arrays = self._arrays_of((name,))
        self._mark_rows(rows, arrays)
        appended = kernels.mark_values(
            rows, *parts[:3], refs, self._arena_at, self._arena_bytes, self._page_shift, self._pages
        )
        if appended < 0:
            raise StateDamaged("a reference leads outside the arena")
        arena = self._mark_arena(int(counters[kernels.ARENA_USED]), appended)
        self._announce(
            lambda pages: [
                self._words_of_rows(rows, arrays, pages),
                self._inside(arena, pages),
                self._inside(_words_in_place(refs[rows], parts.offsets, self._arena_at), pages),
            ]
        )

    def _arrays_of(self, names: tuple[str, ...]) -> _Arrays:
        arrays = self._arrays.get(names)
        if arrays is None:
            places = [(self._starts[name], self._widths[name]) for name in names]
            starts, widths = np.array(places, np.int64).reshape(-1, 2).T
            parts = [(start + at, width) for start, width in places for at in range(0, width, WORD_BYTES)]
            part_starts, part_widths = np.array(parts, np.int64).reshape(-1, 2).T
            arrays = _Arrays(starts.copy(), widths.copy(), part_starts.copy(), part_widths.copy())
            self._arrays[names] = arrays
        return arrays

    def _mark_rows(self, rows: Int64s, arrays: _Arrays) -> None:
        rows = np.require(rows, np.int64, ["C", "W"])
        if not mark_groups(rows, self._group_shift, self._groups):
            self._groups[:] = 0
            raise StateDamaged("a row lies outside the table")
        pages_of_groups(self._groups, self._group_shift, arrays.starts, arrays.widths, self._page_shift, self._pages)

    def _mark_arena(self, at: int, size_bytes: int) -> Int64s:
        """Mark the pages of bytes of the arena; their words."""
        if not size_bytes:
            return _NO_WORDS
        start, last = self._arena_at + at, self._arena_at + at + size_bytes - 1
        self._pages[start >> self._page_shift : (last >> self._page_shift) + 1] = 1
        return np.arange(start >> WORD_SHIFT, (last >> WORD_SHIFT) + 1, dtype=np.int64)

    def _announce(self, words: Callable[[Bytes], list[Int64s]]) -> None:
        """Announce the marked pages; `words` gives the words that change in pages whose byte is not 0, but for the
        counters.
        """
        self._pages[0] = 1  # the counters, which every change changes
        numbers = np.flatnonzero(self._pages)
        self._pages[numbers] = 0

        def changed(pages: Bytes) -> Int64s:
            return np.concatenate((self._inside(_COUNTER_WORDS, pages), *words(pages)))

        self._memory.touch(numbers, changed)

    def _inside(self, words: Int64s, pages: Bytes) -> Int64s:
        """Those of some words that lie in pages whose byte is not 0."""
        return words[pages[words >> (self._page_shift - WORD_SHIFT)] != 0]

    def _words_of_rows(self, rows: Int64s, arrays: _Arrays, pages: Bytes) -> Int64s:
        """The words that hold rows of arrays, and lie in pages whose byte is not 0."""
        words = np.empty(len(rows) * len(arrays.part_starts), np.int64)
        count = words_of_rows(
            np.require(rows, np.int64, ["C", "W"]), arrays.part_starts, arrays.part_widths, WORD_SHIFT,
            self._page_shift - WORD_SHIFT, pages, words,
        )  # fmt: skip
        if count < 0:
            raise StateDamaged("a row lies outside the pages of the table")
        return words[:count]


def _words_in_place(refs: Int64s, offsets: NDArray[np.int32], arena_at: int) -> Int64s:
    """The words of values that are not longer than the values that `refs` lead to, which they overwrite."""
    old_bytes = (refs & kernels.LENGTH_MASK) - 1
    new_bytes = np.diff(offsets).astype(np.int64)
    fits = (refs > 0) & (new_bytes > 0) & (new_bytes <= old_bytes)
    start = arena_at + (refs[fits] >> kernels.LENGTH_BITS)
    first, end = start >> WORD_SHIFT, ((start + new_bytes[fits] - 1) >> WORD_SHIFT) + 1
    counts = end - first
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + counts, counts)

"""An arena: bytes of varying length on pages, named by references. Garbage is counted per page.

Invariants:
* An entry lies on one page. New entries go behind the last ones, on the open page (named in the super page) or on
  new pages.
* COUNT of a page is the number of its bytes that references lead to. A page with none is given back, except the open
  page.
* A reference is position << 24 | length + 1, the position counted in bytes from page 0; 0 is null.
* The arena does not know who holds references. Its owner moves what still lies on pages that are mostly garbage
  (`wasteful_pages`).
"""

from typing import Final

import numpy as np
import pyarrow as pa

from spe_adapter.codec.columns import BytesColumn, keys_of
from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.pages.errors import EntryTooLarge, PagesDamaged
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures import kernels
from spe_adapter.pages.structures.layouts import (
    ARENA,
    COUNTERS,
    WORD_BYTES,
    PagedStructure,
    RecordSchema,
    check,
    distinct_numbers,
)

_OPEN: Final = COUNTERS
"""Words of the super page: the open page (0: none), and the offset of its first unused byte."""
_OPEN_AT: Final = COUNTERS + 1
_LIVE: Final = COUNTERS + 2
"""The number of bytes that references lead to, in the whole arena."""

_HEADER_BYTES: Final = kernels.HEADER_WORDS * WORD_BYTES
_OFFSET_BITS: Final = 24
_MAX_COLUMN_BYTES: Final = 2**31 - 1


class PagedArena(PagedStructure):
    """Bytes on pages. `refs` are int64 arrays of references."""

    def __init__(self, pages: PageSet) -> None:
        """Make an arena in an empty page set, or recover the set's. Raises PagesDamaged."""
        self._numbers = np.empty(0, np.int64)
        super().__init__(pages, ARENA, RecordSchema({"byte": "uint8"}))

    def _adopt(self, numbers: Int64s, headers: Int64s) -> None:
        live = headers[:, kernels.COUNT]
        words = self._words()
        page, at = int(words[_OPEN]), int(words[_OPEN_AT])
        room = self.max_entry_bytes
        whole = (
            bool(((live >= 0) & (live <= room)).all())
            and int(live.sum()) == words[_LIVE]
            and (page == 0 or (page in numbers and _HEADER_BYTES <= at <= self._page_bytes))
        )
        if not whole:
            raise PagesDamaged(f"an arena whose pages hold {int(live.sum())} bytes and say {int(words[_LIVE])}")
        self._numbers = numbers

    @property
    def max_entry_bytes(self) -> int:
        """The longest entry: what fits on a page."""
        return min(self._page_bytes - _HEADER_BYTES, kernels.LENGTH_MASK - 1)

    @property
    def live_bytes(self) -> int:
        """The number of bytes that references lead to."""
        return self._total(_LIVE)

    @property
    def memory(self) -> Bytes:
        """The memory that references lead into."""
        return self._pages.bytes

    def store(self, column: pa.Array) -> Int64s:
        """Keep the values of a binary or string column; their references, 0 for null.

        Raises EntryTooLarge, before anything changes, for a value that does not fit on a page.
        """
        return self.store_parts(keys_of(column))

    def store_parts(self, parts: BytesColumn) -> Int64s:
        """`store` for a column's plain arrays."""
        words = self._current()
        lengths = _lengths_of(parts)
        if len(lengths) and int(lengths.max()) > self.max_entry_bytes:
            raise EntryTooLarge(
                f"a value of {int(lengths.max())} bytes; pages of {self._page_bytes} bytes hold values of up to "
                f"{self.max_entry_bytes}"
            )
        open_page, begin = int(words[_OPEN]), int(words[_OPEN_AT])
        places = np.empty(len(lengths), np.int64)
        page_bytes = self._page_bytes
        # Without an open page, page 0 counts as full.
        more = kernels.place_entries(lengths, begin if open_page else page_bytes, page_bytes, _HEADER_BYTES, places)
        if more:
            fresh = self._allocate(more)
            self._numbers = np.append(self._numbers, fresh)
            used = np.insert(fresh, 0, open_page)
        else:
            used = np.array([open_page], np.int64)
        nothing = lengths <= 0
        chosen, offsets = used[places >> _OFFSET_BITS], places & ((1 << _OFFSET_BITS) - 1)
        positions = np.where(nothing, 0, chosen * page_bytes + offsets)
        refs = np.where(lengths < 0, 0, (positions << kernels.LENGTH_BITS) | (lengths + 1))
        if not nothing.all():
            self._touch(used[used > 0])
            check(kernels.store_entries(*parts, refs, self._pages.bytes), "a reference")
            self._count(chosen[~nothing], lengths[~nothing])
            last = np.flatnonzero(~nothing)[-1]
            words = self._words()
            words[_OPEN], words[_OPEN_AT] = chosen[last], offsets[last] + lengths[last]
            if more and open_page and not words[open_page * self._page_words + kernels.COUNT]:
                self._give_back(np.array([open_page], np.int64))
        return refs

    def read(self, refs: Int64s, kind: pa.DataType | None = None) -> pa.Array:
        """What references lead to, as a column (binary, or `kind`). Raises PagesDamaged where they lead outside."""
        lengths = np.where(refs > 0, (refs & kernels.LENGTH_MASK) - 1, -1)
        valid = lengths >= 0
        if len(lengths) and int(lengths.max()) > self.max_entry_bytes:
            raise PagesDamaged(f"a reference to {int(lengths.max())} bytes; pages hold {self.max_entry_bytes}")
        offsets = np.zeros(len(refs) + 1, np.int64)
        np.cumsum(np.where(valid, lengths, 0), out=offsets[1:])
        if int(offsets[-1]) > _MAX_COLUMN_BYTES:
            raise EntryTooLarge(f"{int(offsets[-1])} bytes in one column; read fewer values at a time")
        out = np.empty(int(offsets[-1]), np.uint8)
        check(kernels.read_entries(np.where(valid, refs, 0), self._pages.bytes, out), "a reference")
        bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
        return pa.Array.from_buffers(kind or pa.binary(), len(refs), buffers)

    def drop(self, refs: Int64s) -> None:
        """Say that references (each one at most once) are held no longer; pages without content are given back."""
        words = self._current()
        refs = refs[refs > 0]
        lengths = (refs & kernels.LENGTH_MASK) - 1
        refs, lengths = refs[lengths > 0], lengths[lengths > 0]
        if not len(refs):
            return
        pages = self._pages_of(refs)
        self._touch(pages)
        self._count(pages, -lengths)
        emptied = distinct_numbers(pages, self._behind)
        emptied = emptied[words[emptied * self._page_words + kernels.COUNT] <= 0]
        self._give_back(emptied[emptied != words[_OPEN]])

    def wasteful_pages(self) -> Int64s:
        """The pages, without the open one, of which more than half is garbage, if the arena is mostly garbage; their
        content should be moved by the owner of the references. Empty otherwise.
        """
        words = self._current()
        room = self.max_entry_bytes
        if len(self._numbers) < 3 or 2 * int(words[_LIVE]) > (len(self._numbers) - 1) * room:
            return np.empty(0, np.int64)
        live = words[self._numbers * self._page_words + kernels.COUNT]
        return self._numbers[(2 * live < room) & (self._numbers != words[_OPEN])]

    def lies_on(self, refs: Int64s, pages: Int64s) -> Int64s:
        """The positions in `refs` of references to bytes on these pages."""
        marks = np.zeros(self._behind, np.bool_)
        marks[pages] = True
        held = np.flatnonzero((refs > 0) & (refs & kernels.LENGTH_MASK > 1))
        return held[marks[self._pages_of(refs[held])]]

    @property
    def _behind(self) -> int:
        return len(self._pages.bytes) // self._page_bytes

    def _pages_of(self, refs: Int64s) -> Int64s:
        pages = (refs >> kernels.LENGTH_BITS) // self._page_bytes
        if len(pages) and not 0 < int(pages.min()) <= int(pages.max()) < self._behind:
            raise PagesDamaged(f"references lead to pages {pages.min()} to {pages.max()}, of {self._behind}")
        return pages

    def _count(self, pages: Int64s, lengths: Int64s) -> None:
        """Add to the bytes in use of pages (touched, as the super page)."""
        words = self._words()
        np.add.at(words, pages * self._page_words + kernels.COUNT, lengths)
        words[_LIVE] += int(lengths.sum())

    def _give_back(self, pages: Int64s) -> None:
        if len(pages):
            self._numbers = np.setdiff1d(self._numbers, pages, assume_unique=True)
            self._release(pages)


def _lengths_of(parts: BytesColumn) -> Int64s:
    """The length of each value, -1 where null."""
    lengths = np.diff(parts.offsets).astype(np.int64)
    bits = np.unpackbits(parts.bitmap, bitorder="little")[parts.bit : parts.bit + len(lengths)]
    return np.where(bits == 0, -1, lengths)

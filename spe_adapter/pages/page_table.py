"""The page table: what is known of each page, in the shared mapping itself, so that every process sees it.

Four words per page:
* `stamp`: 0 not allocated; 1 allocated and never changed (all zeros); else the sequence number at its last change.
* `hold`: the number of the last freeze that the page was part of.
* `mark`: where the page's old content was copied aside: number of the freeze << 24 | position + 1. Stored by the
  writer only.
* `done`: the number of the last freeze whose reader needs the page no more. Stored by readers only.

Invariants:
* The sequence number grows with each freeze, and is never used twice. The number of a freeze is the sequence number
  before it: pages that change later have a higher stamp.
* Each word is aligned and stored at once; each array of words has one kind of writer, so that no store of a late reader
  can undo a store of the writer.
* A page is *held* by the active freeze if `hold` names the freeze, `done` does not, and `mark` does not.

Source: SGuard, section 4.1 (page table).
"""

from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Bools, Bytes, Int64s
from spe_adapter.pages.errors import PagesDamaged, PagesRefused

MAGIC: Final = int.from_bytes(b"cairnpgs", "little")
FORMAT_VERSION: Final = 2

MIN_PAGE_BYTES: Final = 4 * 1024
MAX_PAGE_BYTES: Final = 1024 * 1024
DEFAULT_PAGE_BYTES: Final = 64 * 1024

UNALLOCATED: Final = 0
UNTOUCHED: Final = 1
FIRST_SEQUENCE: Final = 2

SLOT_BITS: Final = 24
"""Bits of a mark for the position of a copy: at most 2**24 - 1 pages are copied aside for a freeze."""
MAX_COPIES: Final = (1 << SLOT_BITS) - 1

# Words of the head.
_MAGIC: Final = 0
_VERSION: Final = 1
_PAGE_BYTES: Final = 2
_PAGES: Final = 3
_LENGTH: Final = 4
SEQUENCE: Final = 5
ACTIVE: Final = 6
"""The number of the freeze that is active, 0: none."""
COPIES: Final = 7
"""Positions given out to copies of pages and to records of before-images; the room for copies is that long, in pages.
"""
COPY_LIMIT: Final = 8
"""The number of pages that may be copied aside."""
CANCELLED: Final = 9
"""Freezes that the writer cancelled."""
DATA_AT: Final = 10
"""Where the pages begin in the file."""
ASIDE_AT: Final = 11
"""Where copies of pages begin in the file: behind all else."""
IDENTITY: Final = 12
"""A number that the user of the pages chooses: sequence numbers are comparable under the same one."""
NEWEST_RECORD: Final = 13
"""The newest record of before-images (`before_images`): its first byte in the room for copies plus one, 0: none."""
RECORDS_END: Final = 14
"""Where the next record may begin in its page of the room for copies."""
RECORD_PAGES: Final = 15
"""Positions given out to records."""
RECORD_LIMIT: Final = 16
HEAD_WORDS: Final = 32
_ARRAYS: Final = 4
_WORD_BYTES: Final = 8
_ALIGNMENT: Final = 4096


def table_bytes(pages: int) -> int:
    """The bytes of a page table, a multiple of 4 KiB."""
    return aligned((HEAD_WORDS + _ARRAYS * pages) * _WORD_BYTES, _ALIGNMENT)


def aligned(size: int, alignment: int) -> int:
    """The lowest multiple of `alignment` that is not below `size`."""
    return -(-size // alignment) * alignment


def check_page_bytes(page_bytes: int) -> None:
    """Raise PagesRefused unless it is a power of two from 4 KiB to 1 MiB."""
    if not MIN_PAGE_BYTES <= page_bytes <= MAX_PAGE_BYTES or page_bytes & (page_bytes - 1):
        raise PagesRefused(f"pages of {page_bytes} bytes; use a power of two from {MIN_PAGE_BYTES} to {MAX_PAGE_BYTES}")


class PageTable:
    """A page table over a block of shared memory. Page numbers are int64 arrays, from 0 to `pages` - 1."""

    def __init__(self, block: Bytes) -> None:
        """The page table that lies in a block. Raises PagesDamaged."""
        if len(block) < HEAD_WORDS * _WORD_BYTES:
            raise PagesDamaged(f"a page table in {len(block)} bytes")
        self.head: Int64s = block[: HEAD_WORDS * _WORD_BYTES].view(np.int64)
        magic, version, page_bytes, pages, length = (int(word) for word in self.head[: _LENGTH + 1])
        if magic != MAGIC or version != FORMAT_VERSION:
            raise PagesDamaged(f"no page table of version {FORMAT_VERSION}: magic {magic:#x}, version {version}")
        if not 0 <= pages <= (len(block) // _WORD_BYTES - HEAD_WORDS) // _ARRAYS:
            raise PagesDamaged(f"a page table of {pages} pages in {len(block)} bytes")
        if not 0 <= self.head[ACTIVE] < self.head[SEQUENCE]:
            raise PagesDamaged(f"a page table with freeze {int(self.head[ACTIVE])} at {int(self.head[SEQUENCE])}")
        check_page_bytes(page_bytes)
        self.page_bytes = page_bytes
        self.page_shift = page_bytes.bit_length() - 1
        self.pages = pages
        self.length_bytes = length
        """Bytes of the pages that count; behind them the last page is read as zeros."""
        words: Int64s = block[: (HEAD_WORDS + _ARRAYS * pages) * _WORD_BYTES].view(np.int64)[HEAD_WORDS:]
        self.stamp, self.hold, self.mark, self.done = words.reshape(_ARRAYS, pages)

    @classmethod
    def create(
        cls, block: Bytes, page_bytes: int, length_bytes: int, data_at: int, aside_at: int, *, allocated: bool
    ) -> "PageTable":
        """A page table for `length_bytes` bytes in a block of zeros; all pages are allocated, or none."""
        check_page_bytes(page_bytes)
        head: Int64s = block[: HEAD_WORDS * _WORD_BYTES].view(np.int64)
        head[: _LENGTH + 1] = MAGIC, FORMAT_VERSION, page_bytes, -(-length_bytes // page_bytes), length_bytes
        head[SEQUENCE], head[DATA_AT], head[ASIDE_AT] = FIRST_SEQUENCE, data_at, aside_at
        table = cls(block)
        if allocated:
            table.stamp[:] = UNTOUCHED
        return table

    @property
    def sequence(self) -> int:
        """The sequence number that changes carry now."""
        return int(self.head[SEQUENCE])

    @property
    def active(self) -> int:
        """The number of the active freeze, 0 if there is none."""
        return int(self.head[ACTIVE])

    def advance(self) -> None:
        """Begin a new sequence number, so that later changes are told from earlier ones."""
        self.head[SEQUENCE] += 1

    def changed_since(self, since: int | None) -> Int64s:
        """The pages that changed after the freeze `since`, or ever; ascending."""
        return np.flatnonzero(self.stamp > (UNTOUCHED if since is None else max(since, UNTOUCHED)))

    def is_allocated(self, numbers: Int64s) -> Bools:
        """Which pages are allocated."""
        return self.stamp[numbers] != UNALLOCATED

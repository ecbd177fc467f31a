"""Pages that can be frozen while their owner goes on: the old content of a frozen page is copied aside before the page
changes for the first time, or, where a change says which words it changes, the old values of these words.

The live page stays in its place, so that arrays over the pages remain contiguous and valid. Copies go behind the end of
the file by plain writes: a full disk is an error that cancels the freeze, never a signal.

Order of a writer: copy the page aside; fence; store the mark; fence; change the page. With words (`before_images`) a
record takes the place of the copy, and the head's word for the newest record that of the mark. A reader
(`frozen.FrozenPages`) copies the live page; fence; loads the mark, the newest record and the number of the active
freeze. If the reader finds no mark, the loads of the live page came before the writer's mark, and so before each change
of the page but those of words in records that the reader finds. A page that is copied aside after words of it changed
is read with its records as well. The fences are full fences: on x86 the hardware keeps stores in order and loads in
order anyway, on ARM it does not. They also keep a freeze that is cancelled from being read: the number of the active
freeze is cleared before a page changes without a copy.

Invariants:
* Memory is changed only after `touch` of its pages. `touch` never fails because of a freeze: a freeze whose copies have
  no room, or whose owner is gone, is cancelled.
* Freezing and changing exclude each other: the user of this module holds a lock around both, a shared one while it
  freezes. Reading takes no lock.
* The owner of a freeze holds a lock on a byte of the file (`freeze_lock`), which goes with the owner's process.

Source: SGuard, section 4.4 (copy-on-write during a checkpoint).
"""

import errno
import os
from collections.abc import Callable
from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.pages import before_images, freeze_lock
from spe_adapter.pages.before_images import WORD_BYTES, WORD_SHIFT
from spe_adapter.pages.errors import FreezeRefused, PagesRefused
from spe_adapter.pages.kernels import fence, load_loops, mark_held
from spe_adapter.pages.page_table import (
    ACTIVE,
    ASIDE_AT,
    CANCELLED,
    COPIES,
    COPY_LIMIT,
    MAX_COPIES,
    NEWEST_RECORD,
    RECORD_LIMIT,
    RECORD_PAGES,
    RECORDS_END,
    SEQUENCE,
    SLOT_BITS,
    PageTable,
)

ChangedWords = Callable[[Bytes], Int64s]
"""A function that gives the words that are about to change in some pages: their numbers, int64, in any order. The pages
are those that are not 0 in an array of a byte per page. More words than change may be given, but not fewer.
"""

Step = Callable[[str], None]
"""A function that is told of each thing that another process could see, before the thing is done."""

_MAX_VECTORS: Final = 1000
"""Buffers in one call of pwritev: below Linux's IOV_MAX of 1024."""
_DENSE: Final = 4
"""A page is copied as a whole if a part of its words changes that is not below one in so many: a word costs the address
of a value and a place of its own.
"""
_RECORDS_SHARE: Final = 2
"""Records of before-images take up to the limit of copies divided by this, beside the copies."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EIO)


def no_step(what: str) -> None:
    """Ignore the step."""


class PageMemory:
    """Pages of one mapped file, with their page table, as their only writer at the moment sees them.

    `data` begins at page 0. `descriptor` stays the caller's, and is open as long as the object is used.
    """

    def __init__(self, data: Bytes, table: PageTable, descriptor: int, step: Step = no_step) -> None:
        self.table = table
        self._data = data
        self._words: Int64s = data[: len(data) // WORD_BYTES * WORD_BYTES].view(np.int64)
        self._descriptor = descriptor
        self._step = step
        load_loops()

    def touch(self, numbers: Int64s, words: ChangedWords | None = None) -> None:
        """Announce a change of pages (int64 page numbers, in any order): what is frozen is copied aside. `words` says
        which words of the pages change, if the caller knows: then these alone may be kept.
        """
        head = self.table.head
        self.table.stamp[numbers] = head[SEQUENCE]
        if head[ACTIVE] or head[COPIES]:
            self._touch_frozen(numbers, words)

    def touch_bytes(self, start: int, end: int) -> None:
        """Announce a change of the bytes from `start` to `end` (exclusive)."""
        if start < end:
            shift = self.table.page_shift
            self.touch(np.arange(start >> shift, ((end - 1) >> shift) + 1, dtype=np.int64))

    def freeze(self, owner: int, since: int | None, limit: int, numbers: Int64s | None = None) -> tuple[int, Int64s]:
        """Freeze pages: the number of the freeze, and the frozen pages, ascending.

        The pages are those that changed after the freeze `since` (None: ever), of `numbers` if given. At most `limit`
        pages are copied aside, and half as many are used for before-images of words. `owner` is a descriptor of the
        file, from an opening of its own: the freeze lasts no longer than the opening. The caller excludes changes.
        Raises FreezeRefused if a freeze is active whose owner lives.
        """
        if not freeze_lock.begin(owner):
            raise FreezeRefused("another process is freezing these pages")
        try:
            return self._freeze(owner, since, limit, numbers)
        finally:
            freeze_lock.end(owner)

    def _freeze(self, owner: int, since: int | None, limit: int, numbers: Int64s | None) -> tuple[int, Int64s]:
        table, head = self.table, self.table.head
        if head[ACTIVE] and freeze_lock.is_held(self._descriptor):
            raise FreezeRefused(f"freeze {table.active} is still being read")
        freeze_lock.acquire(owner)
        self.cancel()
        self.reclaim()
        frozen = table.changed_since(since)
        if numbers is not None:
            frozen = frozen[np.isin(frozen, numbers, kind="table")]
        self._step("freeze")
        number = table.sequence
        table.hold[frozen] = number
        head[COPY_LIMIT] = min(max(limit, 0), MAX_COPIES - MAX_COPIES // _RECORDS_SHARE)
        head[RECORD_LIMIT] = head[COPY_LIMIT] // _RECORDS_SHARE
        head[NEWEST_RECORD] = head[RECORDS_END] = head[RECORD_PAGES] = 0
        self._step("held")
        table.advance()
        fence()
        head[ACTIVE] = number
        self._step("frozen")
        return number, frozen

    def cancel(self) -> None:
        """Cancel the active freeze, if any: its pages can be changed without copies from now on."""
        head = self.table.head
        if head[ACTIVE]:
            self._step("cancel")
            head[CANCELLED] += 1
            head[ACTIVE] = 0
            fence()

    def reclaim(self) -> None:
        """Give back the room of copies that no freeze needs."""
        head = self.table.head
        if head[COPIES] and not head[ACTIVE]:
            self._step("reclaim")
            aside_at = int(head[ASIDE_AT])
            if os.fstat(self._descriptor).st_size > aside_at:
                os.ftruncate(self._descriptor, aside_at)
            head[COPIES] = 0

    def _touch_frozen(self, numbers: Int64s, words: ChangedWords | None) -> None:
        active = self.table.active
        if not active:
            self.reclaim()
            return
        is_changed: Bytes = np.zeros(self.table.pages, np.uint8)
        table = self.table
        count = mark_held(numbers, table.hold, table.done, table.mark, SLOT_BITS, active, is_changed)
        if count < 0:
            raise PagesRefused(f"pages {numbers.min()} to {numbers.max()}: there are {table.pages}")
        if not count:
            return
        held = np.flatnonzero(is_changed)
        if not freeze_lock.is_held(self._descriptor):
            self.cancel()
        elif words is None or not self._note_words(held, words(is_changed), active):
            self._copy_aside(held, active)

    def _note_words(self, held: Int64s, changed: Int64s, freeze: int) -> bool:
        """Keep the values of words that change in held pages; False if the pages must be copied aside instead."""
        table = self.table
        if _DENSE * len(changed) > len(held) << (table.page_shift - WORD_SHIFT):
            return False
        if not len(changed):
            return True
        room = before_images.reserve(table, len(changed))
        if room is None:
            return False
        self._step("note words")
        try:
            before_images.write(self._descriptor, table, room, freeze, changed, self._words[changed])
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self.cancel()
            return True
        self._step("noted words")
        fence()
        before_images.publish(table, room)
        fence()
        self._step("published words")
        return True

    def _copy_aside(self, held: Int64s, freeze: int) -> None:
        table, head = self.table, self.table.head
        first = int(head[COPIES])
        if first - head[RECORD_PAGES] + len(held) > head[COPY_LIMIT]:
            self.cancel()
            return
        self._step("copy aside")
        head[COPIES] = first + len(held)
        try:
            self._write_copies(held, first)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self.cancel()
            return
        self._step("copied aside")
        fence()
        table.mark[held] = (freeze << SLOT_BITS) | np.arange(first + 1, first + len(held) + 1)
        fence()
        self._step("marked")

    def _write_copies(self, held: Int64s, first: int) -> None:
        page_bytes, shift = self.table.page_bytes, self.table.page_shift
        at = int(self.table.head[ASIDE_AT]) + first * page_bytes
        view = self._data.data
        for start in range(0, len(held), _MAX_VECTORS):
            parts = [view[page << shift : (page + 1) << shift] for page in held[start : start + _MAX_VECTORS].tolist()]
            if len(parts[-1]) < page_bytes:
                parts.append(memoryview(bytes(page_bytes - len(parts[-1]))))
            before_images.write_all(self._descriptor, parts, at + start * page_bytes)

"""Frozen pages: the content of pages at one moment, readable while their owner changes the pages, by another process
too.

A reader copies the live page and then looks whether the page was copied aside meanwhile; if so, the copy counts. Words
that changed without a copy of their page get their old values back (`page_memory` says why the order is safe). Live
pages and copies are read with plain reads, which see what others wrote through their maps; a reader maps the page table
alone.

Invariant: what `read` returns is the content at the freeze, or FreezeCancelled is raised.
"""

import fcntl
import mmap
import os
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.pages import freeze_lock
from spe_adapter.pages.before_images import BeforeImages
from spe_adapter.pages.errors import FreezeCancelled, PagesDamaged, PagesRefused
from spe_adapter.pages.kernels import fence
from spe_adapter.pages.page_memory import Step, no_step
from spe_adapter.pages.page_table import ACTIVE, ASIDE_AT, COPIES, DATA_AT, SLOT_BITS, PageTable, table_bytes

_MAX_READ_BYTES: Final = 1 << 30
"""Bytes of one read: Linux reads at most 2**31 - 4096."""


class FrozenHandle(NamedTuple):
    """What another process needs to read frozen pages, as long as the owner of the freeze lives or the other process
    has opened them: it can be pickled, or sent as JSON.
    """

    path: str
    table_at: int
    pages: int
    number: int
    set_shifts: tuple[tuple[int, int], ...]
    """For each page set its id and its first page."""


class FrozenPages:
    """Pages as they were when they were frozen. Closed by `release`, also as a context manager.

    `ids` are page ids (page set << 32 | number in the set; of a base's table the set is 0), ascending: all pages that
    ever changed, or those that changed since an earlier freeze. Pages not named are zero, or as at the earlier freeze.
    `number` is the number of this freeze: the `since` of a later one.
    """

    def __init__(self, descriptor: int, handle: FrozenHandle, ids: Int64s, step: Step = no_step) -> None:
        """Over a descriptor that owns or shares the freeze (`freeze_lock`), and is closed with this object."""
        size_bytes = table_bytes(handle.pages)
        table_map = mmap.mmap(descriptor, size_bytes, offset=handle.table_at)
        self._table = PageTable(np.frombuffer(table_map, np.uint8))
        self._descriptor = descriptor
        self._handle = handle
        self._step = step
        self._before = BeforeImages(descriptor, self._table, handle.number)
        self.ids = ids
        self.number = handle.number
        self.page_bytes = self._table.page_bytes
        self.pages = len(ids)
        """The number of frozen pages."""

    @classmethod
    def open(cls, handle: FrozenHandle, ids: Int64s, step: Step = no_step) -> "FrozenPages":
        """The pages that another process froze. Raises FreezeCancelled if the freeze is over."""
        try:
            descriptor = os.open(handle.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise FreezeCancelled(f"the owner of freeze {handle.number} is gone ({handle.path})") from error
        freeze_lock.acquire(descriptor)
        opened = cls(descriptor, handle, ids, step)
        if not opened.is_valid:
            opened.close()
            raise FreezeCancelled(f"freeze {handle.number} is over")
        return opened

    @property
    def handle(self) -> FrozenHandle:
        """How another process opens these pages."""
        return self._handle._replace(path=f"/proc/{os.getpid()}/fd/{self._descriptor}")

    @property
    def is_valid(self) -> bool:
        """Whether the freeze is still active."""
        return self._table.active == self.number

    @property
    def copied(self) -> int:
        """The room in pages that copies and before-images of words have taken so far, 0 when the freeze is over."""
        return int(self._table.head[COPIES]) if self.is_valid else 0

    def read(self, ids: Int64s) -> Bytes:
        """The content of pages of `ids` at the freeze: uint8 (len(ids), page_bytes).

        Raises FreezeCancelled, and PagesRefused for a page that is not frozen, or was given back by `written`.
        """
        numbers = self._numbers(ids)
        if (np.diff(numbers) <= 0).any():
            numbers, places = np.unique(numbers, return_inverse=True)
            return self._read_pages(numbers)[places]
        return self._read_pages(numbers)

    def _read_pages(self, numbers: Int64s) -> Bytes:
        """The content of pages at the freeze; page numbers are ascending."""
        out: Bytes = np.empty((len(numbers), self.page_bytes), np.uint8)
        head = self._table.head
        self._step("read live pages")
        self._read(out, np.arange(len(numbers)), numbers, int(head[DATA_AT]))
        self._step("look for copies")
        fence()
        marks = self._table.mark[numbers]
        aside = np.flatnonzero(marks >> SLOT_BITS == self.number)
        self._check()
        if len(aside):
            self._step("read copies")
            slots = (marks[aside] & ((1 << SLOT_BITS) - 1)) - 1
            order = np.argsort(slots)
            self._read(out, aside[order], slots[order], int(head[ASIDE_AT]))
        self._step("look for words")
        fence()
        try:
            self._before.put_back(numbers, out)
        except PagesDamaged:
            self._check()
            raise
        self._step("look for an end")
        fence()
        self._check()
        rest = self._table.length_bytes - (self._table.pages - 1) * self.page_bytes
        out[numbers == self._table.pages - 1, rest:] = 0
        return out

    def written(self, ids: Int64s) -> None:
        """Give pages back: they change without a copy from now on, and cannot be read again."""
        self._step("written")
        self._table.done[self._numbers(ids)] = self.number

    def release(self) -> None:
        """End the freeze, if it is still active, and close the object. The room of copies is given back."""
        if self._descriptor < 0:
            return
        if self.is_valid:
            self._step("release")
            self._table.head[ACTIVE] = 0
            fence()
        freeze_lock.release(self._descriptor)
        self._step("released")
        # If nobody uses the pages, the room is given back at once; else by the next writer.
        with suppress(BlockingIOError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head = self._table.head
            if head[COPIES] and not head[ACTIVE]:
                os.ftruncate(self._descriptor, int(head[ASIDE_AT]))
                head[COPIES] = 0
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close the object without an end of the freeze, which goes on if another process shares it."""
        if self._descriptor >= 0:
            freeze_lock.release(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "FrozenPages":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _check(self) -> None:
        if not self.is_valid:
            raise FreezeCancelled(
                f"freeze {self.number} was cancelled: copies of changed pages outgrew their room, or another process "
                "took the freeze for abandoned"
            )

    def _numbers(self, ids: Int64s) -> Int64s:
        """Page numbers of ids."""
        numbers = np.full(len(ids), -1, np.int64)
        sets = ids >> 32
        for set_id, first in self._handle.set_shifts:
            chosen = sets == set_id
            numbers[chosen] = (ids[chosen] & 0xFFFFFFFF) + first
        inside = (numbers >= 0) & (numbers < self._table.pages)
        if not inside.all():
            raise PagesRefused(f"page {int(ids[~inside][0])} is not one of the frozen pages")
        if self.is_valid:
            frozen = (self._table.hold[numbers] == self.number) & (self._table.done[numbers] != self.number)
            if not frozen.all():
                raise PagesRefused(f"page {int(ids[~frozen][0])} is not frozen, or was given back")
        return numbers

    def _read(self, out: Bytes, rows: Int64s, positions: Int64s, base: int) -> None:
        """Read pages at ascending positions of the file into rows of `out`; a run of pages in one call."""
        if not len(rows):
            return
        breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(rows) != 1)) + 1
        for run in np.split(np.arange(len(rows)), breaks):
            first = int(rows[run[0]])
            target = out[first : first + len(run)].reshape(-1).data
            at = base + int(positions[run[0]]) * self.page_bytes
            while target:
                count = os.preadv(self._descriptor, [target[:_MAX_READ_BYTES]], at)
                if not count:
                    target[:] = bytes(len(target))  # behind the end: the last page, or copies that were given back
                    break
                target, at = target[count:], at + count

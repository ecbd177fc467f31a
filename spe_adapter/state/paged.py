"""Private tables that can be frozen: their memory, and the page table that goes with each block of it.

A runner that owns its state keeps one table in memory of its own (`state.direct`). To checkpoint the table while the
runner goes on, the table's blocks come from `PagedBlocks` instead of `table.anonymous`. Another process reads what is
frozen, as with the base of a partition.

Invariants:
* A block is backed in full before it is used. The page table lies before the block, in the same unnamed file.
* When a table grows, a new block takes the old one's place; what is frozen of the old one stays readable.
"""

import mmap
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from spe_adapter.codec.kernels import Bytes
from spe_adapter.pages.errors import FreezeRefused
from spe_adapter.pages.frozen import FrozenHandle, FrozenPages
from spe_adapter.pages.page_memory import PageMemory, Step, no_step
from spe_adapter.pages.page_table import (
    DEFAULT_PAGE_BYTES,
    FIRST_SEQUENCE,
    IDENTITY,
    PageTable,
    check_page_bytes,
    table_bytes,
)
from spe_adapter.state.errors import StateDamaged, StateTooLarge


class FreezePoint(NamedTuple):
    """A moment in the life of a block: which block, and the number of a freeze. What changed after the freeze can be
    checkpointed on its own.
    """

    identity: int
    number: int


class FrozenBlock(NamedTuple):
    """A block of a table, frozen. `is_full`: the pages are all that can differ from zero, not only those that changed
    since an earlier freeze. `point` is the `since` of the next checkpoint, once this one is complete.
    """

    pages: FrozenPages
    point: FreezePoint
    is_full: bool


def begin_page_table(
    room: Bytes, page_bytes: int, tracked_bytes: int, places: tuple[int, int], content: Iterable[tuple[int, int]]
) -> PageTable:
    """A page table for a new block: the ranges of bytes in `content` have changed, the rest is zero. `places` are those
    of the block and of copies in the file.
    """
    table = PageTable.create(room, page_bytes, tracked_bytes, *places, allocated=True)
    table.head[IDENTITY] = int.from_bytes(os.urandom(8), "little") >> 1
    for start, end in content:
        table.stamp[start >> table.page_shift : -(-end // page_bytes)] = FIRST_SEQUENCE
    return table


def freeze_block(
    memory: PageMemory, descriptor: int, table_at: int, since: FreezePoint | None, copies: int | None, step: Step
) -> FrozenBlock:
    """Freeze a block whose page table lies at `table_at` in the file of `descriptor`. Raises FreezeRefused."""
    table = memory.table
    identity = int(table.head[IDENTITY])
    is_full = since is None or since.identity != identity or since.number >= table.sequence
    # An opening of its own: the freeze goes with it, and not with a map of the file.
    owner = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        # One epoch of rows all over a table changes most of its pages: a lower bound would cancel each freeze.
        limit = table.pages if copies is None else copies
        number, ids = memory.freeze(owner, None if is_full or since is None else since.number, limit)
        pages = FrozenPages(owner, FrozenHandle("", table_at, table.pages, number, ((0, 0),)), ids, step)
    except BaseException:
        os.close(owner)
        raise
    return FrozenBlock(pages, FreezePoint(identity, number), is_full)


def no_charge(size_bytes: int) -> None:
    """Allow any size."""


class PagedBlocks:
    """Memory for a table that can be frozen: an `Allocate` for `Table.in_memory` and `storage.load_table`.

    One table at a time; its owner serialises changes and freezes. `charge` is called with the bytes of a table before
    the memory is allocated, and raises an error where that is too much.
    """

    def __init__(
        self, page_bytes: int = DEFAULT_PAGE_BYTES, charge: Callable[[int], None] = no_charge, step: Step = no_step
    ) -> None:
        check_page_bytes(page_bytes)
        self._charge = charge
        self._page_bytes = page_bytes
        self._step = step
        self._descriptors: list[int] = []
        """Of the block in use, and before it of the block that it replaces while a table is copied."""
        self._map: mmap.mmap | None = None
        self._at = 0
        self._memory: PageMemory | None = None

    def __call__(self, size_bytes: int) -> Bytes:
        """A block of zeros. Raises StateTooLarge, and the errors of `charge`."""
        self._charge(size_bytes)
        self._at = table_bytes(-(-size_bytes // self._page_bytes))
        descriptor = os.memfd_create("cairn-table", os.MFD_CLOEXEC)
        self._descriptors.append(descriptor)
        try:
            os.posix_fallocate(descriptor, 0, self._at + size_bytes)
            self._map = mmap.mmap(descriptor, self._at + size_bytes)
        except OSError as error:
            raise StateTooLarge(f"no memory for a table of {size_bytes} bytes: {error.strerror}") from error
        block: Bytes = np.frombuffer(self._map, np.uint8)[self._at :]
        return block

    def track(self, tracked_bytes: int, content: Iterable[tuple[int, int]]) -> PageMemory:
        """The pages of the newest block, once its table is complete; former blocks are let go."""
        if self._map is None:
            raise StateDamaged("no block was allocated")
        whole: Bytes = np.frombuffer(self._map, np.uint8)
        places = self._at, len(whole)
        table = begin_page_table(whole[: self._at], self._page_bytes, tracked_bytes, places, content)
        while len(self._descriptors) > 1:
            os.close(self._descriptors.pop(0))
        self._memory = PageMemory(whole[self._at :], table, self._descriptors[0], self._step)
        return self._memory

    def freeze(self, since: FreezePoint | None = None, copies: int | None = None) -> FrozenBlock | None:
        """Freeze the table: all of it, or what changed since an earlier freeze of the same block. None if an earlier
        freeze is still being read.
        """
        if self._memory is None:
            raise StateDamaged("no table lies in this memory")
        try:
            return freeze_block(self._memory, self._descriptors[0], 0, since, copies, self._step)
        except FreezeRefused:
            return None

    def close(self) -> None:
        """Let go of the file; the table stays usable as long as no freeze is active, and can be frozen no more."""
        self._memory = None
        while self._descriptors:
            os.close(self._descriptors.pop())

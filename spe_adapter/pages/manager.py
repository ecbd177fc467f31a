"""The page manager: page sets on one mapped file, allocated page by page, frozen and loaded as a whole.

The file: a head of 64 KiB, the directory of sets (64 KiB), the page table, the pages, and behind them the copies of
frozen pages. A set is a contiguous range of the mapping, which is reserved when the set is created and backed by memory
page by page, so that a set grows without a copy and arrays over the set stay valid.

Invariants:
* A page is backed before its id is given out: a full file system is an error, never a signal.
* A page is zero when it is allocated. Released pages are given back to the file system, and allocated again first.
* One process owns the file (an exclusive lock); it serialises changes and freezes. Other processes read what is frozen.

Source: SGuard, section 4.1 (page manager), tables 1 and 4 (its operations).
"""

import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.pages.before_images import WORD_SHIFT
from spe_adapter.pages.errors import PagesDamaged, PagesFull, PagesRefused
from spe_adapter.pages.frozen import FrozenHandle, FrozenPages
from spe_adapter.pages.page_memory import PageMemory, Step, no_step
from spe_adapter.pages.page_table import (
    DATA_AT,
    DEFAULT_PAGE_BYTES,
    UNALLOCATED,
    PageTable,
    aligned,
    check_page_bytes,
    table_bytes,
)

DEFAULT_MAX_PAGES: Final = 64 * 1024
"""Pages that a manager can address: 4 GiB of pages of 64 KiB. Address space, not memory."""
DEFAULT_RESERVE: Final = 4096
"""Pages that a set can grow to: 256 MiB of pages of 64 KiB. Address space, not memory."""
MAX_SETS: Final = 1024
MAX_SET_ID: Final = 2**31 - 1

_MAGIC: Final = int.from_bytes(b"cairnmmm", "little")
_FORMAT_VERSION: Final = 1
_HEAD_BYTES: Final = 64 * 1024
"""Also the largest unit in which Linux maps parts of a file: the page table, behind the directory, is mapped alone."""
_DIRECTORY_BYTES: Final = 64 * 1024
_TABLE_AT: Final = _HEAD_BYTES + _DIRECTORY_BYTES
_ALIGNMENT: Final = 1024 * 1024
_SET_SHIFT: Final = 32
_NUMBER_MASK: Final = 0xFFFFFFFF

# Words of a set in the directory.
_ID: Final = 0
"""The set's id plus one; 0: no set."""
_FIRST: Final = 1
_RESERVED: Final = 2
_USED: Final = 3
_SET_WORDS: Final = 8


class SetDescription(NamedTuple):
    """A page set as a checkpoint describes it: its id, reserved pages, the bound of its page numbers, and the numbers
    below the bound that are not allocated.
    """

    set_id: int
    reserved: int
    used: int
    released: tuple[int, ...]


class SetsCheckpoint(NamedTuple):
    """Page sets at one moment: their description, and the frozen pages."""

    sets: tuple[SetDescription, ...]
    pages: FrozenPages


class PageSet:
    """A page set: a contiguous array of pages that grows. Numbers are those of pages within the set."""

    def __init__(self, manager: "PageManager", set_id: int, entry: Int64s) -> None:
        self.manager = manager
        self.set_id = set_id
        self._entry = entry
        self._first = int(entry[_FIRST])

    @property
    def used(self) -> int:
        """The upper bound (exclusive) of page numbers that were allocated."""
        return int(self._entry[_USED])

    @property
    def reserved(self) -> int:
        """The number of pages that the set can grow to."""
        return int(self._entry[_RESERVED])

    @property
    def pages(self) -> NDArray[np.uint8]:
        """All pages up to `used`: a view, uint8 (used, page_bytes). The view stays valid when the set grows."""
        return self.manager.memory[self._first : self._first + self.used]

    @property
    def bytes(self) -> Bytes:
        """All pages up to `used` as one contiguous view."""
        return self.pages.reshape(-1)

    def allocate(self, count: int) -> Int64s:
        """The numbers of `count` more pages, all zeros; see `PageManager.allocate`."""
        return self.manager.allocate(self.set_id, count) & _NUMBER_MASK

    def release(self, numbers: Int64s) -> None:
        """Give pages back."""
        self.manager.release(self.ids(numbers))

    def ids(self, numbers: Int64s) -> Int64s:
        """The page ids of numbers of this set."""
        return (self.set_id << _SET_SHIFT) | numbers

    def touch(self, numbers: Int64s) -> None:
        """Announce a change of pages (int64 numbers, in any order); must come before each change."""
        self.manager.page_memory.touch(numbers + self._first)

    def touch_words(self, words: Int64s) -> None:
        """Announce a change of words of eight bytes (int64 numbers within the set, in any order); nothing else of
        their pages changes.
        """
        shift = self.manager.table.page_shift - WORD_SHIFT
        words = words + (self._first << shift)
        numbers = words >> shift
        self.manager.page_memory.touch(np.unique(numbers), lambda pages: words[pages[numbers] != 0])

    def touch_bytes(self, start: int, end: int) -> None:
        """Announce a change of the bytes from `start` to `end` (exclusive) of the set."""
        at = self._first * self.manager.page_bytes
        self.manager.page_memory.touch_bytes(at + start, at + end)


class PageManager:
    """Page sets on one file. Closed by `close`, also as a context manager.

    Operations raise PagesRefused for ids that do not exist, and PagesFull where there is no room.
    """

    def __init__(self, descriptor: int, step: Step = no_step) -> None:
        """Over an open file that `create_file` made; the descriptor belongs to the manager then. Raises PagesRefused if
        another process owns the file, PagesDamaged if the file is not one.
        """
        self._descriptor = descriptor
        self._step = step
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PagesRefused("another process owns these pages") from error
        head = np.frombuffer(os.pread(descriptor, _HEAD_BYTES, 0).ljust(_HEAD_BYTES, b"\0"), np.int64)
        if head[0] != _MAGIC or head[1] != _FORMAT_VERSION:
            raise PagesDamaged(f"no page file of version {_FORMAT_VERSION}")
        self.page_bytes, self.max_pages, self._max_used = (int(word) for word in head[2:5])
        self._data_at = aligned(_TABLE_AT + table_bytes(self.max_pages), _ALIGNMENT)
        size_bytes = self._data_at + self.max_pages * self.page_bytes
        if os.fstat(descriptor).st_size < size_bytes:
            raise PagesDamaged(f"a page file of {os.fstat(descriptor).st_size} bytes, where {size_bytes} were made")
        self._map = mmap.mmap(descriptor, size_bytes)
        block: Bytes = np.frombuffer(self._map, np.uint8)
        self._directory: Int64s = block[_HEAD_BYTES:_TABLE_AT].view(np.int64).reshape(-1, _SET_WORDS)[:MAX_SETS]
        table = PageTable(block[_TABLE_AT : _TABLE_AT + table_bytes(self.max_pages)])
        if (table.pages, table.page_bytes, int(table.head[DATA_AT])) != (
            self.max_pages,
            self.page_bytes,
            self._data_at,
        ):
            raise PagesDamaged("the page table contradicts the head of its file")
        data = block[self._data_at :]
        self.memory: NDArray[np.uint8] = data.reshape(self.max_pages, self.page_bytes)
        """All pages by position (see `resolve`), backed or not: touch what is allocated only."""
        self.table = table
        self.page_memory = PageMemory(data, table, descriptor, step)

    @classmethod
    def create_file(
        cls,
        path: Path | None = None,
        *,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        max_pages: int = DEFAULT_MAX_PAGES,
        limit_bytes: int | None = None,
        step: Step = no_step,
    ) -> "PageManager":
        """A manager without sets in a new file, or in anonymous memory; at most `limit_bytes` of pages are allocated.

        Raises FileExistsError, PagesRefused and PagesFull.
        """
        check_page_bytes(page_bytes)
        if not 0 < max_pages <= _NUMBER_MASK:
            raise PagesRefused(f"a page manager of {max_pages} pages; use 1 to {_NUMBER_MASK}")
        if path is None:
            descriptor = os.memfd_create("cairn-pages", os.MFD_CLOEXEC)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            data_at = aligned(_TABLE_AT + table_bytes(max_pages), _ALIGNMENT)
            aside_at = data_at + max_pages * page_bytes
            _back(descriptor, 0, data_at, "a page table")
            os.ftruncate(descriptor, aside_at)
            block: Bytes = np.frombuffer(mmap.mmap(descriptor, data_at), np.uint8)
            PageTable.create(block[_TABLE_AT:], page_bytes, max_pages * page_bytes, data_at, aside_at, allocated=False)
            max_used = max_pages if limit_bytes is None else min(limit_bytes // page_bytes, max_pages)
            head: Int64s = block[:_HEAD_BYTES].view(np.int64)
            head[1:5] = _FORMAT_VERSION, page_bytes, max_pages, max_used
            head[0] = _MAGIC
            return cls(descriptor, step)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: Path, step: Step = no_step) -> "PageManager":
        """The manager of an existing file. Raises FileNotFoundError, PagesRefused and PagesDamaged."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return cls(descriptor, step)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Let go of the file. Views stay valid as long as they are referred to; they are not to be changed any more."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "PageManager":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- page sets

    def create(self, set_id: int, reserve: int = DEFAULT_RESERVE) -> PageSet:
        """A new page set without pages, which can grow to `reserve` pages."""
        if not 0 <= set_id <= MAX_SET_ID or reserve < 1:
            raise PagesRefused(f"page set {set_id} of {reserve} pages; ids go from 0 to {MAX_SET_ID}")
        if self.exists(set_id):
            raise PagesRefused(f"page set {set_id} exists already")
        free = np.flatnonzero(self._directory[:, _ID] == 0)
        if not len(free):
            raise PagesFull(f"{MAX_SETS} page sets exist; destroy page sets first")
        entry = self._directory[free[0]]
        entry[_FIRST : _USED + 1] = self._gap(reserve), reserve, 0
        self._step("create set")
        entry[_ID] = set_id + 1
        return PageSet(self, set_id, entry)

    def exists(self, set_id: int) -> bool:
        """Whether there is such a page set."""
        return bool((self._directory[:, _ID] == set_id + 1).any())

    def recover(self, set_id: int) -> PageSet:
        """An existing page set."""
        return PageSet(self, set_id, self._entry(set_id))

    def destroy(self, set_id: int) -> None:
        """Remove a page set with all its pages. What is frozen of the set stays readable."""
        entry = self._entry(set_id)
        numbers = np.arange(entry[_USED], dtype=np.int64)
        allocated = self.table.is_allocated(numbers + entry[_FIRST])
        self.release((set_id << _SET_SHIFT) | numbers[allocated])
        self._step("destroy set")
        entry[_ID] = 0

    def sets(self) -> list[int]:
        """The ids of all page sets, ascending."""
        ids = self._directory[:, _ID]
        return sorted(int(set_id) - 1 for set_id in ids[ids != 0])

    def description(self, set_id: int) -> SetDescription:
        """A page set as a checkpoint describes it."""
        entry = self._entry(set_id)
        first, used = int(entry[_FIRST]), int(entry[_USED])
        released = np.flatnonzero(self.table.stamp[first : first + used] == UNALLOCATED)
        return SetDescription(set_id, int(entry[_RESERVED]), used, tuple(released.tolist()))

    # ---- pages

    def allocate(self, set_id: int, count: int) -> Int64s:
        """The ids of `count` more pages of a set, all zeros, ascending: released numbers first, then new ones."""
        entry = self._entry(set_id)
        first, used = int(entry[_FIRST]), int(entry[_USED])
        numbers = np.flatnonzero(self.table.stamp[first : first + used] == UNALLOCATED)[:count]
        fresh = count - len(numbers)
        if used + fresh > entry[_RESERVED]:
            raise PagesFull(
                f"page set {set_id} was created for {int(entry[_RESERVED])} pages; {used + fresh} are asked"
            )
        allocated = int(np.count_nonzero(self.table.stamp))
        if allocated + count > self._max_used:
            raise PagesFull(
                f"{count} more pages of {self.page_bytes} bytes beside {allocated}; the limit is {self._max_used} pages"
            )
        numbers = np.concatenate((numbers, np.arange(used, used + fresh, dtype=np.int64)))
        self._step("back pages")
        for start, length in _runs(numbers + first):
            _back(self._descriptor, self._data_at + start * self.page_bytes, length * self.page_bytes, "pages")
        self.page_memory.touch(numbers + first)
        entry[_USED] = used + fresh
        return (set_id << _SET_SHIFT) | numbers

    def release(self, ids: Int64s) -> None:
        """Give pages back to the file system; their content is gone, but for what is frozen."""
        positions = np.unique(self.resolve(ids))
        self.page_memory.touch(positions)
        self._step("release pages")
        self.table.stamp[positions] = UNALLOCATED
        for start, length in _runs(positions):
            self._map.madvise(
                mmap.MADV_REMOVE, self._data_at + start * self.page_bytes, length * self.page_bytes
            )  # a hole is punched into the file

    def resolve(self, ids: Int64s) -> Int64s:
        """The positions of pages in `memory`."""
        positions = np.full(len(ids), -1, np.int64)
        sets = ids >> _SET_SHIFT
        for set_id in np.unique(sets).tolist():
            entry = self._entry(set_id)
            chosen = sets == set_id
            numbers = ids[chosen] & _NUMBER_MASK
            positions[chosen] = np.where(numbers < entry[_USED], numbers + entry[_FIRST], -1)
        missing = (positions < 0) | ~self.table.is_allocated(positions)
        if missing.any():
            wrong = int(ids[missing][0])
            raise PagesRefused(f"page {wrong & _NUMBER_MASK} of page set {wrong >> _SET_SHIFT} is not allocated")
        return positions

    def touch(self, ids: Int64s) -> None:
        """Announce a change of pages; must come before each change."""
        self.page_memory.touch(self.resolve(ids))

    def clone(self, ids: Int64s) -> Int64s:
        """Copies of pages of one set, in newly allocated pages of the set; their ids."""
        sets = np.unique(ids >> _SET_SHIFT)
        if len(sets) != 1:
            raise PagesRefused(f"pages of the page sets {sets.tolist()} cannot be cloned at once")
        source = self.resolve(ids)
        clones = self.allocate(int(sets[0]), len(ids))
        self.memory[self.resolve(clones)] = self.memory[source]
        return clones

    # ---- checkpoints

    def freeze(
        self, sets: Sequence[int] | None = None, *, since: int | None = None, copies: int | None = None
    ) -> FrozenPages:
        """Freeze the pages of sets (None: of all) that changed after the freeze `since` (None: all that ever changed).

        At most `copies` pages are copied aside while they are frozen (default: all of them). Raises
        FreezeRefused while an earlier freeze is read.
        """
        chosen = self.sets() if sets is None else list(sets)
        positions = [np.empty(0, np.int64)]
        shifts = []
        for set_id in chosen:
            entry = self._entry(set_id)
            shifts.append((set_id, int(entry[_FIRST])))
            positions.append(np.arange(entry[_FIRST], entry[_FIRST] + entry[_USED], dtype=np.int64))
        numbers = np.concatenate(positions)
        limit = max(len(numbers), 1) if copies is None else copies
        owner = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            number, frozen = self.page_memory.freeze(owner, since, limit, numbers)
            parts = [_ids_in(frozen, set_id, self._entry(set_id)) for set_id in chosen]
            ids = np.sort(np.concatenate(parts)) if parts else frozen
            handle = FrozenHandle("", _TABLE_AT, self.max_pages, number, tuple(shifts))
            return FrozenPages(owner, handle, ids, self._step)
        except BaseException:
            os.close(owner)
            raise

    def checkpoint(
        self, sets: Sequence[int] | None = None, *, since: int | None = None, copies: int | None = None
    ) -> SetsCheckpoint:
        """Freeze page sets and describe them: what `load` takes."""
        chosen = tuple(self.sets() if sets is None else sets)
        described = tuple(self.description(set_id) for set_id in chosen)
        return SetsCheckpoint(described, self.freeze(chosen, since=since, copies=copies))

    def load(self, sets: Iterable[SetDescription], runs: Iterable[tuple[Int64s, NDArray[np.uint8]]]) -> None:
        """Create page sets as described and fill their pages, which come in any order as ids and (n, page_bytes) bytes.

        Pages that do not come are zero. Raises PagesDamaged for pages that the description does not have.
        """
        for described in sets:
            page_set = self.create(described.set_id, described.reserved)
            if described.used:
                page_set.allocate(described.used)
            if described.released:
                page_set.release(np.array(described.released, np.int64))
        for ids, content in runs:
            if content.shape != (len(ids), self.page_bytes):
                raise PagesDamaged(f"{len(ids)} pages of {self.page_bytes} bytes come as an array {content.shape}")
            try:
                positions = self.resolve(ids)
            except PagesRefused as error:
                raise PagesDamaged(f"a page that the checkpoint does not describe: {error}") from error
            self._step("load pages")
            self.memory[positions] = content

    # ---- helpers

    def _entry(self, set_id: int) -> Int64s:
        found = np.flatnonzero(self._directory[:, _ID] == set_id + 1)
        if not len(found):
            raise PagesRefused(f"there is no page set {set_id}")
        entry: Int64s = self._directory[found[0]]
        first, reserved, used = (int(word) for word in entry[_FIRST : _USED + 1])
        if not (0 <= first <= first + reserved <= self.max_pages and 0 <= used <= reserved):
            raise PagesDamaged(f"page set {set_id} lies outside: {entry[:4].tolist()}")
        return entry

    def _gap(self, reserve: int) -> int:
        """The first range of `reserve` pages that belongs to no set."""
        at = 0
        taken = self._directory[self._directory[:, _ID] != 0]
        for first, reserved in sorted(zip(taken[:, _FIRST].tolist(), taken[:, _RESERVED].tolist(), strict=True)):
            if first - at >= reserve:
                break
            at = first + reserved
        if at + reserve > self.max_pages:
            raise PagesFull(
                f"no range of {reserve} pages is free among {self.max_pages}; create sets that reserve less, or a "
                "manager of more pages"
            )
        return int(at)


def _ids_in(positions: Int64s, set_id: int, entry: Int64s) -> Int64s:
    """The ids of those positions that belong to a set."""
    first, used = int(entry[_FIRST]), int(entry[_USED])
    inside = positions[np.searchsorted(positions, first) : np.searchsorted(positions, first + used)]
    return (set_id << _SET_SHIFT) | (inside - first)


def _runs(positions: Int64s) -> list[tuple[int, int]]:
    """Ascending positions as runs: first and length."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return [(int(run[0]), len(run)) for run in np.split(positions, breaks)]


def _back(descriptor: int, at: int, length: int, what: str) -> None:
    """Back a range of a file by memory or disk. Raises PagesFull."""
    try:
        os.posix_fallocate(descriptor, at, length)
    except OSError as error:
        raise PagesFull(f"no room for {length} bytes of {what}: {error.strerror}") from error

"""Before-images of single words: what a change of a few bytes of a frozen page keeps, instead of the whole page.

A batch of rows all over a table changes a few bytes of most of its pages. To copy these pages aside would take the
operator twenty times as long as the batch. So the writer notes the words that change, with the values that they had;
whoever reads a frozen page later puts the values back.

A *record* has the words of one announcement. Records lie end to end in the room for copies, and each leads to the one
before. A word may be in many records of a freeze: the oldest one has the value at the freeze, as no word changes before
it is noted.

Invariants:
* A record is whole before the page table's head leads to it; it is never changed afterwards.
* A word is eight bytes, aligned; words are numbered from the first page on.
* A value in a record is the word's value at the freeze, or the word is in an older record of the same freeze.

Source: SGuard, section 4.4 (copy-on-write during a checkpoint); docs/decisions/0023-pages-copied-aside.md says where
words are better than pages.
"""

import os
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.pages.errors import PagesDamaged
from spe_adapter.pages.page_table import (
    ASIDE_AT,
    COPIES,
    NEWEST_RECORD,
    RECORD_LIMIT,
    RECORD_PAGES,
    RECORDS_END,
    PageTable,
)

WORD_BYTES: Final = 8
WORD_SHIFT: Final = 3
_HEAD_WORDS: Final = 3
"""Of a record: the number of the freeze, the position of the record before plus one (0: none), the number of words."""
_MAX_UNMERGED: Final = 64
"""Records that a reader keeps apart before it makes one of them."""
_MAX_IO_BYTES: Final = 1 << 30


class Room(NamedTuple):
    """Where a record goes: its first byte within the room for copies."""

    at: int
    size_bytes: int


def reserve(table: PageTable, words: int) -> Room | None:
    """Room for a record of this many words, None if the records of this freeze have no more of it."""
    head = table.head
    size_bytes = (_HEAD_WORDS + 2 * words) * WORD_BYTES
    at = int(head[RECORDS_END])
    if -at % table.page_bytes < size_bytes:  # not in what is left of the newest page of records
        pages = -(-size_bytes // table.page_bytes)
        if head[RECORD_PAGES] + pages > head[RECORD_LIMIT]:
            return None
        at = int(head[COPIES]) * table.page_bytes
        head[COPIES] += pages
        head[RECORD_PAGES] += pages
    head[RECORDS_END] = at + size_bytes
    return Room(at, size_bytes)


def write(descriptor: int, table: PageTable, room: Room, freeze: int, words: Int64s, values: Int64s) -> None:
    """Write a record into its room. The caller makes the head lead to the record (`publish`). Raises OSError."""
    record = np.concatenate(((freeze, table.head[NEWEST_RECORD], len(words)), words, values), dtype=np.int64)
    write_all(descriptor, [record.data.cast("B")], at=_aside(table, room.at))


def write_all(descriptor: int, parts: list[memoryview], at: int) -> None:
    """Write buffers of bytes end to end at a position of a file. Raises OSError."""
    while parts:
        written = os.pwritev(descriptor, parts, at)
        at += written
        parts = _behind(parts, written)


def _behind(parts: list[memoryview], written: int) -> list[memoryview]:
    """What is left of buffers after so many bytes."""
    for index, part in enumerate(parts):
        if written < len(part):
            return [part[written:], *parts[index + 1 :]]
        written -= len(part)
    return []


def _aside(table: PageTable, at: int) -> int:
    """The position in the file of a byte of the room for copies."""
    return int(table.head[ASIDE_AT]) + at


def publish(table: PageTable, room: Room) -> None:
    """Make the head lead to a record that is whole; the caller puts memory fences before and behind."""
    table.head[NEWEST_RECORD] = room.at + 1


class _Words(NamedTuple):
    """Words, ascending and each once, and their values."""

    numbers: Int64s
    values: Int64s

    @classmethod
    def first_of(cls, numbers: Int64s, values: Int64s) -> "_Words":
        """Of each word its first value."""
        words, first = np.unique(numbers, return_index=True)
        return cls(words, values[first])


class BeforeImages:
    """The records of one freeze, as a reader finds them. Threads may share the object."""

    def __init__(self, descriptor: int, table: PageTable, freeze: int) -> None:
        self._descriptor = descriptor
        self._table = table
        self._freeze = freeze
        self._lock = Lock()
        self._known = 0
        """The newest record that was read, as the head names it."""
        self._records: list[_Words] = []
        """Oldest first."""

    def put_back(self, numbers: Int64s, pages: Bytes) -> None:
        """Give words of pages that were read the values that they had at the freeze.

        `numbers` are the page numbers, ascending, `pages` uint8 (len(numbers), page_bytes). The caller has read the
        pages before this call, with a memory fence between. Raises PagesDamaged, also where the freeze has ended and
        its room is used for something else.
        """
        with self._lock:
            self._read_new()
            records = list(self._records)
        if not records or not len(numbers):
            return
        shift = self._table.page_shift - WORD_SHIFT
        content = pages.view(np.int64)
        ends = np.array([numbers[0], numbers[-1] + 1]) << shift
        for record in reversed(records):
            first, last = np.searchsorted(record.numbers, ends)
            words = record.numbers[first:last]
            rows = np.searchsorted(numbers, words >> shift)
            inside = numbers[rows] == words >> shift
            content[rows[inside], words[inside] & ((1 << shift) - 1)] = record.values[first:last][inside]

    def _read_new(self) -> None:
        newest = at = int(self._table.head[NEWEST_RECORD])
        found: list[_Words] = []
        while at not in (0, self._known):
            before, record = self._read(at - 1)
            if not 0 <= before < at:
                raise PagesDamaged(f"a record of before-images at {at - 1} leads to {before - 1}")
            found.append(record)
            at = before
        if at != self._known:
            raise PagesDamaged(f"records of before-images do not lead to the one at {self._known - 1}")
        self._records += reversed(found)
        self._known = newest
        if len(self._records) > _MAX_UNMERGED:
            numbers = np.concatenate([record.numbers for record in self._records])
            values = np.concatenate([record.values for record in self._records])
            self._records = [_Words.first_of(numbers, values)]

    def _read(self, at: int) -> tuple[int, _Words]:
        """The record at a position, and which record is before it."""
        head = self._words(at, _HEAD_WORDS)
        freeze, before, count = (int(word) for word in head)
        if freeze != self._freeze or not 0 <= count <= self._table.pages << (self._table.page_shift - WORD_SHIFT + 1):
            raise PagesDamaged(f"a record of before-images of freeze {freeze} with {count} words at {at}")
        body = self._words(at + _HEAD_WORDS * WORD_BYTES, 2 * count)
        return before, _Words.first_of(body[:count], body[count:])

    def _words(self, at: int, count: int) -> Int64s:
        out: Int64s = np.zeros(count, np.int64)
        target = out.data.cast("B") if count else memoryview(b"")
        position = _aside(self._table, at)
        while target:
            read = os.preadv(self._descriptor, [target[:_MAX_IO_BYTES]], position)
            if not read:
                raise PagesDamaged(f"a record of before-images at {at} ends too early")
            target, position = target[read:], position + read
        return out

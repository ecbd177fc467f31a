"""Lists and queues of records on pages. Each operation takes many records.

A record has a position. Page `position // records per page` of the sequence holds the record; its header says so.
A list's positions begin at 0; those of a queue go up at the back, and go down at the front.

Invariants:
* The super page has the first position and the one behind the last. There is a page for each position between, and no
  other page.
* Records are copied page by page: an operation costs its records, and some time per page.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Int64s
from spe_adapter.pages.errors import PagesDamaged
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures import kernels
from spe_adapter.pages.structures.layouts import (
    COUNTERS,
    LIST,
    QUEUE,
    SUPER_PAGE,
    PagedStructure,
    Records,
    RecordSchema,
    check,
    no_bytes,
)

_HEAD: Final = COUNTERS
_TAIL: Final = COUNTERS + 1
"""Words of the super page: the first position, and the one behind the last."""


class PagedSequence(PagedStructure):
    """What lists and queues share: records at positions from `_head` to `_tail`."""

    def __init__(self, pages: PageSet, kind: int, schema: RecordSchema) -> None:
        no_bytes(schema)
        self._per_page = (pages.manager.page_bytes // 8 - kernels.HEADER_WORDS) // schema.words
        self._first_ordinal = 0
        self._directory = np.empty(0, np.int64)
        super().__init__(pages, kind, schema)

    def _adopt(self, numbers: Int64s, headers: Int64s) -> None:
        order = np.argsort(headers[:, kernels.ORDINAL], kind="stable")
        ordinals = headers[order, kernels.ORDINAL]
        words = self._words()
        head, tail = int(words[_HEAD]), int(words[_TAIL])
        first, behind = self._ordinals(head, tail)
        if head > tail or behind - first != len(ordinals) or (ordinals != np.arange(first, behind)).any():
            raise PagesDamaged(
                f"a sequence from {head} to {tail}, {self._per_page} records a page, on pages "
                f"{ordinals[:5].tolist()}…, {len(ordinals)} of them"
            )
        self._first_ordinal = first
        self._directory = numbers[order]

    def __len__(self) -> int:
        head, tail = self._ends()
        return tail - head

    def _ordinals(self, head: int, tail: int) -> tuple[int, int]:
        """The pages that positions need: from which to which (exclusive)."""
        if head >= tail:
            return 0, 0
        return head // self._per_page, -(-tail // self._per_page)

    def _resize(self, head: int, tail: int) -> None:
        """Give the sequence these ends: pages come and go, and the super page says so."""
        self._current()
        first, behind = self._ordinals(head, tail)
        old_first, old_behind = self._first_ordinal, self._first_ordinal + len(self._directory)
        kept_first, kept_behind = max(first, old_first), min(behind, old_behind)
        if kept_first >= kept_behind:
            kept_first = kept_behind = first
        kept = self._directory[max(kept_first - old_first, 0) :][: kept_behind - kept_first]
        gone = np.setdiff1d(self._directory, kept, assume_unique=True)
        before, after = kept_first - first, behind - kept_behind
        fresh = self._allocate(before + after) if before + after else np.empty(0, np.int64)
        grid = self._words().reshape(-1, self._page_words)
        self._pages.touch(SUPER_PAGE)
        grid[fresh[:before], kernels.ORDINAL] = np.arange(first, kept_first)
        grid[fresh[before:], kernels.ORDINAL] = np.arange(kept_behind, behind)
        grid[0, _HEAD], grid[0, _TAIL] = head, tail
        self._first_ordinal = first
        self._directory = np.concatenate((fresh[:before], kept, fresh[before:]))
        self._release(gone)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Runs of positions that lie on one page: offset from `start`, number of records, page, word on the page."""
        position = start
        while position < stop:
            ordinal, slot = divmod(position, self._per_page)
            count = min(self._per_page - slot, stop - position)
            page = int(self._directory[ordinal - self._first_ordinal])
            yield position - start, count, page, kernels.HEADER_WORDS + slot * self.schema.words
            position += count

    def _copy_out(self, start: int, stop: int) -> Records:
        words, width = self._current(), self.schema.words
        out = np.empty((stop - start, width), np.int64)
        for at, count, page, word in self._parts(start, stop):
            begin = page * self._page_words + word
            out[at : at + count] = words[begin : begin + count * width].reshape(count, width)
        return self.schema.of_words(out)

    def _copy_in(self, start: int, records: Int64s) -> None:
        parts = list(self._parts(start, start + len(records)))
        if parts:
            self._touch(np.array([page for _, _, page, _ in parts], np.int64))
        words, width = self._words(), self.schema.words
        for at, count, page, word in parts:
            begin = page * self._page_words + word
            words[begin : begin + count * width] = records[at : at + count].reshape(-1)

    def _append(self, records: Records) -> None:
        content = self.schema.words_of(records)
        if len(content):
            head, tail = self._ends()
            self._resize(head, tail + len(content))
            self._copy_in(tail, content)

    def _ends(self) -> tuple[int, int]:
        words = self._current()
        head, tail = int(words[_HEAD]), int(words[_TAIL])
        first, behind = self._ordinals(head, tail)
        if behind - first != len(self._directory) or (behind > first and first != self._first_ordinal):
            raise PagesDamaged(f"a sequence from {head} to {tail} on {len(self._directory)} pages")
        return head, tail


class PagedList(PagedSequence):
    """A list of records, which is also an array of them by row number."""

    def __init__(self, pages: PageSet, schema: RecordSchema) -> None:
        """Make a list in an empty page set, or recover the set's. Raises PagesDamaged, RecordSchemaRefused."""
        super().__init__(pages, LIST, schema)

    def append(self, records: Records) -> None:
        """Add records at the end. Raises RecordSchemaRefused if they are of another schema."""
        self._append(records)

    def read(self, start: int, stop: int) -> Records:
        """The records at [start, stop), cut to the list's length: a copy."""
        length = len(self)
        start = min(max(start, 0), length)
        return self._copy_out(start, min(max(stop, start), length))

    def truncate(self, length: int) -> None:
        """Drop the records at `length` and behind. Raises IndexError if the list is shorter."""
        if not 0 <= length <= len(self):
            raise IndexError(f"cannot cut a list of {len(self)} records to {length}")
        self._resize(0, length)

    def resize(self, length: int) -> None:
        """Give the list this length: records at its end are dropped, or records of zeros added."""
        missing = length - len(self)
        if missing <= 0:
            self.truncate(length)
            return
        tail = len(self)
        self._resize(0, length)
        rest = min(missing, -tail % self._per_page)  # the last page may hold old records there
        self._copy_in(tail, np.zeros((rest, self.schema.words), np.int64))

    def get(self, rows: Int64s) -> Records:
        """The records of rows, in any order. Raises IndexError for a row outside the list."""
        out = np.empty((len(rows), self.schema.words), np.int64)
        check(kernels.gather(self._current(), self._addresses(rows), out), "a list's page")
        return self.schema.of_words(out)

    def set(self, rows: Int64s, records: Records) -> None:
        """Overwrite the records of rows; of a row named twice, the last. Raises IndexError for a row outside."""
        content = self.schema.words_of(records)
        addresses = self._addresses(rows)
        self._touch(addresses // self._page_words)
        check(kernels.scatter(self._words(), addresses, content), "a list's page")

    def _addresses(self, rows: Int64s) -> Int64s:
        length = len(self)
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < length:
            raise IndexError(f"rows from {rows.min()} to {rows.max()} of a list of {length} records")
        ordinals, slots = np.divmod(rows, self._per_page)
        return self._directory[ordinals] * self._page_words + kernels.HEADER_WORDS + slots * self.schema.words


class PagedQueue(PagedSequence):
    """A queue of records with two ends. Pages before the front and behind the back are given back."""

    def __init__(self, pages: PageSet, schema: RecordSchema) -> None:
        """Make a queue in an empty page set, or recover the set's. Raises PagesDamaged, RecordSchemaRefused."""
        super().__init__(pages, QUEUE, schema)

    def append(self, records: Records) -> None:
        """Add records at the back. Raises RecordSchemaRefused if they are of another schema."""
        self._append(records)

    def append_front(self, records: Records) -> None:
        """Add records at the front: the first of them becomes the queue's first."""
        content = self.schema.words_of(records)
        if len(content):
            head, tail = self._ends()
            self._resize(head - len(content), tail)
            self._copy_in(head - len(content), content)

    def peek(self, count: int) -> Records:
        """Up to `count` records at the front: a copy."""
        head, tail = self._ends()
        return self._copy_out(head, min(head + max(count, 0), tail))

    def pop(self, count: int) -> Records:
        """Take up to `count` records from the front."""
        head, tail = self._ends()
        records = self.peek(count)
        self._resize(head + len(records), tail)
        return records

    def pop_back(self, count: int) -> Records:
        """Take up to `count` records from the back, in the queue's order."""
        head, tail = self._ends()
        start = max(tail - max(count, 0), head)
        records = self._copy_out(start, tail)
        self._resize(head, start)
        return records

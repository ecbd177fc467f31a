"""An ordered map from (time, name) to records on sorted pages: timers, and windows by when they expire.

The pages are the leaves of a tree of two levels; the upper level, the first pair of each page, is kept outside the
pages and follows from them.

Invariants:
* Records are ordered by time, then by name. A pair is there once.
* Pages are in order: the last pair of a page comes before the first pair of the next one. No page is empty.
* COUNT and START of a page are its number of records and the slot of the first one: records at the front of a page are
  dropped without moving the others.

Source: SGuard, table 3, has a T-tree there. A page holds thousands of records, so a tree over pages has a few hundred
nodes: a sorted array of their first pairs is searched in less time than links are followed.
"""

from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.pages.errors import PagesDamaged, RecordSchemaRefused
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures import kernels, sorted_kernels
from spe_adapter.pages.structures.layouts import (
    COUNTERS,
    ORDERED,
    SUPER_PAGE,
    PagedStructure,
    Records,
    RecordSchema,
    check,
    no_bytes,
)

TIME: Final = "time"
NAME: Final = "name"

_RECORDS: Final = COUNTERS
"""A word of the super page: the number of records."""

_SPREAD: Final = (3, 4)
"""How full pages are after records were spread over more of them, except behind the last record."""
_SMALL: Final = 4
"""A page is joined with its neighbour if both together fill no more than one part in so many."""


class PagedOrderedMap(PagedStructure):
    """Records in the order of two fields, `time` and `name` (int64), which no two records share."""

    def __init__(self, pages: PageSet, schema: RecordSchema) -> None:
        """Make an ordered map in an empty page set, or recover the set's. Raises PagesDamaged, and RecordSchemaRefused
        for a schema that does not open with `time` and `name`.
        """
        no_bytes(schema)
        if list(schema.fields.items())[:2] != [(TIME, "int64"), (NAME, "int64")]:
            raise RecordSchemaRefused(f"an ordered map opens with int64 fields time and name, not {schema.fields}")
        self._capacity = (pages.manager.page_bytes // 8 - kernels.HEADER_WORDS) // schema.words
        self._leaves = np.empty(0, np.int64)
        self._first_times = np.empty(0, np.int64)
        self._first_names = np.empty(0, np.int64)
        super().__init__(pages, ORDERED, schema)

    def _adopt(self, numbers: Int64s, headers: Int64s) -> None:
        words, width = self._words(), self.schema.words
        start, count = headers[:, kernels.START], headers[:, kernels.COUNT]
        room = self._capacity
        if not ((start >= 0) & (count > 0) & (start <= room) & (count <= room - start)).all():
            raise PagesDamaged(f"sorted pages with counts {count[:5].tolist()}… of {room}")
        firsts = numbers * self._page_words + kernels.HEADER_WORDS + start * width
        lasts = firsts + (count - 1) * width
        order = np.lexsort((words[firsts + 1], words[firsts]))
        firsts, lasts = firsts[order], lasts[order]
        is_sorted = _less(words[lasts[:-1]], words[lasts[:-1] + 1], words[firsts[1:]], words[firsts[1:] + 1])
        if not is_sorted.all() or int(count.sum()) != words[_RECORDS]:
            raise PagesDamaged(f"sorted pages of {int(count.sum())} records, where {int(words[_RECORDS])} should be")
        self._leaves = numbers[order]
        self._first_times, self._first_names = words[firsts], words[firsts + 1]

    def __len__(self) -> int:
        return self._total(_RECORDS)

    @property
    def earliest(self) -> int | None:
        """The lowest time, None if there are no records."""
        self._current()
        return int(self._first_times[0]) if len(self._first_times) else None

    # ---- changes

    def put(self, records: Records) -> None:
        """Store records; one with a pair of time and name that is there replaces the other. Of records with the same
        pair, the last counts. Raises PagesFull before anything changes.
        """
        self._current()
        batch = _sorted(self.schema.words_of(records))
        if not len(batch):
            return
        if not len(self._leaves):
            self._spread(0, 0, batch, self._allocate(self._pages_for(len(batch), is_last=True)))
            self._add(len(batch))
            return
        leaves = self._leaves_of(batch)
        found = self._locate(leaves, batch)
        there = found >= 0
        fresh = self._pages_to_spread(leaves[~there])
        if there.any():
            self._touch(self._leaves[leaves[there]])
            check(kernels.scatter(self._words(), found[there], batch[there]), "a sorted page")
            batch, leaves = batch[~there], leaves[~there]
        if len(batch):
            self._merge(leaves, batch, fresh)
            self._add(len(batch))

    def remove(self, times: Int64s, names: Int64s) -> Bools:
        """Remove the records with these (distinct) pairs; which of them were there."""
        self._current()
        order = np.lexsort((names, times))
        batch = np.column_stack((times, names)).astype(np.int64)[order]
        was_there = np.zeros(len(batch), np.bool_)
        if not len(batch) or not len(self._leaves):
            return was_there
        leaves = self._leaves_of(batch)
        found = self._locate(leaves, batch)
        was_there[order] = found >= 0
        leaves, found = leaves[found >= 0], found[found >= 0]
        if not len(found):
            return was_there
        runs, ends = _runs(leaves)
        self._touch(self._leaves[runs])
        status = sorted_kernels.remove_runs(
            self._words(), self._leaves[runs], ends, found, self._page_words, self.schema.words
        )
        check(status, "a sorted page")
        self._add(-len(found))
        self._refresh(runs)
        self._tidy(runs)
        return was_there

    def pop_until(self, time: int) -> Records:
        """Take out all records of this time or before, in order."""
        self._current()
        reached = int(np.searchsorted(self._first_times, time, side="right"))
        records = self._copy(0, reached, None, time)
        if not len(records):
            return records
        kept = reached
        words = self._words()
        last = int(self._leaves[reached - 1]) * self._page_words
        before = len(records) - int(words[self._leaves[: reached - 1] * self._page_words + kernels.COUNT].sum())
        if before < words[last + kernels.COUNT]:
            kept = reached - 1
            self._touch(self._leaves[kept:reached])
            words[last + kernels.START] += before
            words[last + kernels.COUNT] -= before
            self._refresh(np.array([kept], np.int64))
        self._drop(0, kept)
        self._add(-len(records))
        return records

    # ---- reads

    def read(self, start: int, stop: int) -> Records:
        """The records with times from `start` to `stop` (exclusive), in order: a copy."""
        self._current()
        if start >= stop or not len(self._leaves):
            return self.schema.zeros(0)
        # Records of time `start` may begin in the page before the first page that opens with that time.
        low = max(int(np.searchsorted(self._first_times, start, side="left")) - 1, 0)
        high = int(np.searchsorted(self._first_times, stop, side="left"))
        return self._copy(low, high, start, stop - 1)

    def get(self, times: Int64s, names: Int64s) -> tuple[Records, Bools]:
        """The records with these pairs, zeros where there is none, and which there are."""
        self._current()
        order = np.lexsort((names, times))
        batch = np.column_stack((times, names)).astype(np.int64)[order]
        out = np.zeros((len(batch), self.schema.words), np.int64)
        there = np.zeros(len(batch), np.bool_)
        if len(batch) and len(self._leaves):
            found = self._locate(self._leaves_of(batch), batch)
            there[order] = found >= 0
            chosen = np.empty((int(there.sum()), self.schema.words), np.int64)
            check(kernels.gather(self._words(), found[found >= 0], chosen), "a sorted page")
            out[order[found >= 0]] = chosen
        return self.schema.of_words(out), there

    def _copy(self, low: int, high: int, first_time: int | None, last_time: int) -> Records:
        """The records on pages from `low` to `high` (exclusive) with times in a closed range."""
        words, width = self._words(), self.schema.words
        parts = [np.empty((0, width), np.int64)]
        for page in self._leaves[low:high].tolist():
            part = self._content(words, page)
            begin = 0 if first_time is None else int(np.searchsorted(part[:, 0], first_time, side="left"))
            end = len(part)
            if end and part[-1, 0] > last_time:
                end = int(np.searchsorted(part[:, 0], last_time, side="right"))
            parts.append(part[begin:end])
        return self.schema.of_words(np.concatenate(parts))

    def _content(self, words: Int64s, page: int) -> kernels.Words:
        """The records of a page: a view. Raises PagesDamaged."""
        base, width = page * self._page_words, self.schema.words
        start, count = int(words[base + kernels.START]), int(words[base + kernels.COUNT])
        if not (start >= 0 and 0 <= count <= self._capacity - start):
            raise PagesDamaged(f"page {page} with {count} records from slot {start} on, of {self._capacity}")
        at = base + kernels.HEADER_WORDS + start * width
        return words[at : at + count * width].reshape(count, width)

    # ---- pages

    def _leaves_of(self, batch: kernels.Words) -> Int64s:
        out = np.empty(len(batch), np.int64)
        sorted_kernels.leaves_of(self._first_times, self._first_names, batch, out)
        return out

    def _locate(self, leaves: Int64s, batch: kernels.Words) -> Int64s:
        out = np.empty(len(batch), np.int64)
        status = sorted_kernels.locate(
            self._words(), self._leaves[leaves], batch, self._page_words, self.schema.words, out
        )
        check(status, "a sorted page")
        return out

    def _pages_for(self, records: int, *, is_last: bool) -> int:
        """On how many pages records are spread; those behind all others fill their pages, as times mostly grow."""
        return -(-records // (self._capacity if is_last else max(self._capacity * _SPREAD[0] // _SPREAD[1], 1)))

    def _pages_to_spread(self, leaves: Int64s) -> Int64s:
        """New pages, as many as `_merge` will need for a batch that goes into these pages."""
        if not len(leaves):
            return leaves
        runs, ends = _runs(leaves)
        total = self._words()[self._leaves[runs] * self._page_words + kernels.COUNT] + np.diff(ends, prepend=0)
        over = np.flatnonzero(total > self._capacity)
        behind = len(self._leaves) - 1
        wanted = sum(self._pages_for(int(total[run]), is_last=runs[run] == behind) - 1 for run in over.tolist())
        return self._allocate(wanted) if wanted else np.empty(0, np.int64)

    def _merge(self, leaves: Int64s, batch: kernels.Words, fresh: Int64s) -> None:
        """Merge a sorted batch of new pairs, each into the page given for it, and spread pages that overflow over
        `fresh` ones.
        """
        runs, ends = _runs(leaves)
        self._touch(self._leaves[runs])
        merged = np.zeros(len(runs), np.bool_)
        pages = self._leaves[runs]
        check(sorted_kernels.merge_runs(self._words(), pages, ends, batch, self._page_words, merged), "a sorted page")
        self._refresh(runs[merged])
        starts = np.append(0, ends[:-1])
        # From the last page to the first, so that the numbers of pages before stay what they are.
        for run in np.flatnonzero(~merged)[::-1].tolist():
            leaf = int(runs[run])
            more = batch[starts[run] : ends[run]]
            content = self._content(self._words(), int(self._leaves[leaf]))
            both = np.empty((len(content) + len(more), self.schema.words), np.int64)
            sorted_kernels.merge_sorted(content, more, both)
            more_pages = self._pages_for(len(both), is_last=leaf == len(self._leaves) - 1) - 1
            self._spread(leaf, leaf + 1, both, fresh[:more_pages])
            fresh = fresh[more_pages:]

    def _spread(self, low: int, high: int, content: kernels.Words, fresh: Int64s) -> None:
        """Put this sorted content on the pages from `low` to `high` (exclusive), as far as they are needed, and on the
        fresh ones.
        """
        is_last = high == len(self._leaves)
        wanted = self._pages_for(len(content), is_last=is_last)
        used, gone = np.split(np.append(self._leaves[low:high], fresh), [wanted])
        if len(used) < wanted:
            raise PagesDamaged(f"{len(content)} records for {len(used)} sorted pages")
        self._touch(used)
        words, width = self._words(), self.schema.words
        edges = [min(self._capacity * item, len(content)) for item in range(wanted + 1)]
        if not is_last:
            edges = [len(content) * item // wanted for item in range(wanted + 1)]
        for page, begin, end in zip(used.tolist(), edges[:-1], edges[1:], strict=True):
            base = page * self._page_words
            words[base + kernels.START], words[base + kernels.COUNT] = 0, end - begin
            at = base + kernels.HEADER_WORDS
            words[at : at + (end - begin) * width] = content[begin:end].reshape(-1)
        firsts = content[edges[:-1]]
        self._first_times = np.concatenate((self._first_times[:low], firsts[:, 0], self._first_times[high:]))
        self._first_names = np.concatenate((self._first_names[:low], firsts[:, 1], self._first_names[high:]))
        self._leaves = np.concatenate((self._leaves[:low], used, self._leaves[high:]))
        self._release(gone)

    def _refresh(self, leaves: Int64s) -> None:
        """Read the first pairs of pages (touched, as the super page) again, without those that are empty."""
        words = self._words()
        base = self._leaves[leaves] * self._page_words
        leaves, base = leaves[words[base + kernels.COUNT] > 0], base[words[base + kernels.COUNT] > 0]
        at = base + kernels.HEADER_WORDS + words[base + kernels.START] * self.schema.words
        self._first_times[leaves], self._first_names[leaves] = words[at], words[at + 1]
        self._count_page_change()

    def _tidy(self, leaves: Int64s) -> None:
        """Give back those pages that are empty, and join those that hold little with their neighbours."""
        words = self._words()
        counts = words[self._leaves * self._page_words + kernels.COUNT]
        low = np.minimum(leaves, max(len(counts) - 2, 0))
        pairs = counts[low] + counts[np.minimum(low + 1, len(counts) - 1)]
        candidates = leaves[(counts[leaves] == 0) | (pairs * _SMALL <= self._capacity)]
        for leaf in candidates[::-1].tolist():
            if leaf >= len(self._leaves):
                continue
            if not words[self._leaves[leaf] * self._page_words + kernels.COUNT]:
                self._drop(leaf, leaf + 1)
            elif leaf + 1 < len(self._leaves):
                parts = [self._content(words, page) for page in self._leaves[leaf : leaf + 2].tolist()]
                if sum(map(len, parts)) * _SMALL <= self._capacity:
                    self._spread(leaf, leaf + 2, np.concatenate(parts), fresh=np.empty(0, np.int64))

    def _drop(self, low: int, high: int) -> None:
        if low == high:
            return
        gone = self._leaves[low:high]
        self._leaves = np.delete(self._leaves, slice(low, high))
        self._first_times = np.delete(self._first_times, slice(low, high))
        self._first_names = np.delete(self._first_names, slice(low, high))
        self._release(gone)

    def _add(self, records: int) -> None:
        self._pages.touch(SUPER_PAGE)
        self._words()[_RECORDS] += records


def _sorted(words: kernels.Words) -> kernels.Words:
    """Records by their first two words; of those that share them, the last."""
    order = np.lexsort((words[:, 1], words[:, 0]))
    words = words[order]
    if len(words) > 1:
        last = np.append((words[1:, 0] != words[:-1, 0]) | (words[1:, 1] != words[:-1, 1]), True)
        words = words[last]
    return np.ascontiguousarray(words)


def _runs(leaves: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct values of an ascending array, and where each ends."""
    ends = np.append(np.flatnonzero(np.diff(leaves)) + 1, len(leaves))
    return leaves[ends - 1], ends


def _less(times: Int64s, names: Int64s, other_times: Int64s, other_names: Int64s) -> Bools:
    return (times < other_times) | ((times == other_times) & (names < other_names))

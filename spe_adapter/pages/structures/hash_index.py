"""The index of a map: buckets of entries on pages, which grow and shrink page by page.

An entry is 8 bytes: the upper half of a key's hash, and the row plus one. The lower half of the hash chooses the
bucket; a bucket is one page, and more pages behind it if it overflows. Inside a page, entries are probed from the slot
that follows from the upper half.

Invariants:
* There are 2**level + split buckets; level and split follow from their number. Buckets below `split` were split in this
  round: their keys are told apart by one bit more of the hash. One bucket at a time is split or joined; nothing else is
  moved.
* A page is never full: each probe ends at an empty slot.
* The index follows from the map's records. It need not be part of a checkpoint: an empty index is filled again.

Source: Litwin, "Linear hashing: a new tool for file and table addressing" (VLDB 1980); SGuard, table 3.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Int64s
from spe_adapter.pages.errors import PagesDamaged
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures import kernels
from spe_adapter.pages.structures.layouts import (
    COUNTERS,
    INDEX,
    PagedStructure,
    RecordSchema,
    check,
    distinct_numbers,
)

_ENTRIES: Final = COUNTERS
"""A word of the super page: the number of entries."""

_FILL: Final = (2, 5)
"""Buckets are split above this part of their slots. Buckets that were not split in a round hold up to twice as much as
those that were: 4/5, which leaves few to overflow."""
_JOIN: Final = (1, 10)
"""Buckets are joined below this part of their slots."""
_LIMIT: Final = (7, 8)
"""A page takes entries up to this part of its slots."""

HashesOf = Callable[[Int64s], Int64s]
"""A function that gives the hash of each of these rows, and raises PagesDamaged for a row that there is not."""


class PagedHashIndex(PagedStructure):
    """Buckets of rows by hash."""

    def __init__(self, pages: PageSet) -> None:
        """Make an index in an empty page set, or recover the set's. Raises PagesDamaged."""
        self.first = np.empty(0, np.int64)
        """The first page of each bucket."""
        self._slots = pages.manager.page_bytes // 8 - kernels.HEADER_WORDS
        self._limit = self._slots * _LIMIT[0] // _LIMIT[1]
        super().__init__(pages, INDEX, RecordSchema({"entry": "int64"}))

    def _create(self) -> None:
        super()._create()
        page = self._allocate(1)
        self._words()[page * self._page_words + kernels.ORDINAL] = 1

    def _adopt(self, numbers: Int64s, headers: Int64s) -> None:
        words = self._words()
        ordinals, nexts = headers[:, kernels.ORDINAL], headers[:, kernels.NEXT]
        heads = numbers[ordinals > 0]
        buckets = ordinals[ordinals > 0] - 1
        links = nexts[nexts > 0]
        whole = (
            len(heads) > 0
            and bool((np.sort(buckets) == np.arange(len(heads))).all())
            and len(np.unique(links)) == len(links)
            and np.array_equal(np.sort(links), numbers[ordinals == 0])
            and bool(((headers[:, kernels.COUNT] >= 0) & (headers[:, kernels.COUNT] <= self._limit)).all())
            and int(headers[:, kernels.COUNT].sum()) == words[_ENTRIES]
        )
        if not whole:
            raise PagesDamaged(
                f"an index of {len(heads)} buckets on {len(numbers)} pages, {int(words[_ENTRIES])} entries"
            )
        self.first = np.empty(len(heads), np.int64)
        self.first[buckets] = heads

    @property
    def table(self) -> tuple[int, int, int, int]:
        """What compiled loops need: mask of the level, buckets that were split, words of a page, slots of a page."""
        level = 1 << (len(self.first).bit_length() - 1)
        return level - 1, len(self.first) - level, self._page_words, self._slots

    @property
    def words(self) -> Int64s:
        """The memory of the index, checked to be what `first` describes."""
        return self._current()

    def __len__(self) -> int:
        return self._total(_ENTRIES)

    def insert(self, hashes: Int64s, rows: Int64s, hashes_of: HashesOf) -> None:
        """Enter rows that are not there. `hashes_of` gives the hashes of rows that are there already.

        Raises PagesFull, and then holds what it held before.
        """
        count = len(self) + len(hashes)
        while count * _FILL[1] > len(self.first) * self._slots * _FILL[0]:
            self._split(hashes_of)
        buckets = self._buckets(hashes)
        self._make_room(buckets)
        self._touch_buckets(buckets)
        check(kernels.insert_entries(hashes, rows, self._words(), self.first, self.table, self._limit), "an index page")
        self._words()[_ENTRIES] += len(hashes)

    def remove(self, hashes: Int64s, rows: Int64s) -> None:
        """Take out rows that are there, each once."""
        self._current()
        self._touch_buckets(self._buckets(hashes))
        check(kernels.unlink_entries(hashes, rows, self._words(), self.first, self.table), "an index page")
        self._words()[_ENTRIES] -= len(hashes)
        while len(self.first) > 1 and len(self) * _JOIN[1] < len(self.first) * self._slots * _JOIN[0]:
            self._join()

    # ---- buckets

    def _buckets(self, hashes: Int64s) -> Int64s:
        mask, split, _, _ = self.table
        buckets = hashes & mask
        return np.where(buckets < split, hashes & (2 * mask + 1), buckets)

    def _chain(self, bucket: int) -> Int64s:
        """The pages of a bucket."""
        words, pages = self._words(), [int(self.first[bucket])]
        while link := int(words[pages[-1] * self._page_words + kernels.NEXT]):
            if not 0 < link < len(words) // self._page_words or len(pages) > len(words) // self._page_words:
                raise PagesDamaged(f"bucket {bucket} continues on page {link}")
            pages.append(link)
        return np.array(pages, np.int64)

    def _touch_buckets(self, buckets: Int64s) -> None:
        used = distinct_numbers(buckets, len(self.first))
        pages = self.first[used]
        words = self._words()
        if words[pages * self._page_words + kernels.NEXT].any():
            pages = np.concatenate([self._chain(bucket) for bucket in used.tolist()])
        self._touch(pages)

    def _make_room(self, buckets: Int64s) -> None:
        """Give buckets pages until each of them can take the entries that name it in `buckets`."""
        more = np.bincount(buckets, minlength=len(self.first))
        held = self._words()[self.first * self._page_words + kernels.COUNT]
        for bucket in np.flatnonzero((more > 0) & (held + more > self._limit)).tolist():
            chain = self._chain(bucket)
            held_entries = int(self._words()[chain * self._page_words + kernels.COUNT].sum())
            wanted = -(-(held_entries + int(more[bucket])) // self._limit)
            if wanted > len(chain):
                fresh = self._allocate(wanted - len(chain))
                self._touch(chain)
                grid = self._words().reshape(-1, self._page_words)
                grid[np.append(chain[-1], fresh[:-1]), kernels.NEXT] = fresh

    def _entries(self, chain: Int64s) -> Int64s:
        out = np.empty(len(chain) * self._slots, np.int64)
        count = kernels.collect_entries(self._words(), chain, self._page_words, out)
        check(count, "an index page")
        return out[:count]

    def _pages_for(self, entries: int) -> int:
        """How many pages a bucket of this many entries needs."""
        return max(-(-entries // self._limit), 1)

    def _rewrite(self, bucket: int, chain: Int64s, entries: Int64s) -> Int64s:
        """Put entries on the first of these pages, which are or become the bucket's; the pages that are not needed."""
        used = chain[: self._pages_for(len(entries))]
        self._touch(used)
        grid = self._words().reshape(-1, self._page_words)
        grid[used, kernels.ORDINAL] = 0
        grid[used, kernels.NEXT] = np.append(used[1:], 0)
        grid[used[0], kernels.ORDINAL] = bucket + 1
        for item, page in enumerate(used.tolist()):
            part = entries[item * self._limit : (item + 1) * self._limit]
            check(kernels.fill_page(grid[page], part), "an index page")
        self.first[bucket] = used[0]
        return chain[len(used) :]

    def _split(self, hashes_of: HashesOf) -> None:
        """Share the next bucket's entries between it and a new bucket."""
        mask, split, _, _ = self.table
        level = mask + 1
        chain = self._chain(split)
        entries = self._entries(chain)
        moves = (hashes_of((entries & kernels.ROW_MASK) - 1) & level) != 0
        wanted = sum(self._pages_for(int(np.count_nonzero(part))) for part in (moves, ~moves))
        if wanted > len(chain):
            chain = np.append(chain, self._allocate(wanted - len(chain)))
        rest = self._rewrite(split, chain, entries[~moves])
        self.first = np.append(self.first, rest[0])
        self._release(self._rewrite(level + split, rest, entries[moves]))
        self._count_page_change()

    def _join(self) -> None:
        """Undo the last split."""
        mask, split, _, _ = self.table
        level = mask + 1
        if not split:
            level, split = level // 2, level // 2
        split -= 1
        chains = self._chain(split), self._chain(level + split)
        entries = self._entries(np.concatenate(chains))
        self.first = self.first[:-1].copy()
        self._release(self._rewrite(split, np.concatenate(chains), entries))
        self._count_page_change()

"""A map from identities (key bytes or null, number) to records, on pages. Each operation takes many identities or rows.

Three page sets: records, their index (`hash_index`), and an arena for keys and for values of varying length.

A row names a record until the record is removed: page << shift | slot. So a row's place follows from the row alone,
rows keep their numbers while the map grows, and new records lie together, which keeps a checkpoint of changed pages
small.

Invariants:
* COUNT of a page is the number of its records; a page without records is given back.
* Free slots of a page form a chain through the records' second word; their KEY_REF is REF_FREE.
* Identities are hashed with the map's own seed, so that a producer cannot choose keys that collide.

Source: SGuard, section 4.3 (the unordered map); the records lie apart from the hash pages, which the paper does not do.
"""

from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.columns import BytesColumn, keys_of, steady
from spe_adapter.codec.identity_hash import hashes_of, signed
from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.pages.errors import PagesDamaged, PagesFull
from spe_adapter.pages.manager import PageSet
from spe_adapter.pages.structures import kernels
from spe_adapter.pages.structures.arena import PagedArena
from spe_adapter.pages.structures.hash_index import PagedHashIndex
from spe_adapter.pages.structures.layouts import (
    COUNTERS,
    MAP,
    PagedStructure,
    Records,
    RecordSchema,
    check,
    distinct_numbers,
)

_SEED: Final = COUNTERS
_RECORDS: Final = COUNTERS + 1
"""Words of the super page: the key of the hash, the number of records."""

_MAX_ROW: Final = kernels.ROW_MASK - 1


class MapPages(NamedTuple):
    """The page sets of a map. A checkpoint needs `records` and `arena`; an empty `index` is filled again."""

    records: PageSet
    index: PageSet  # type: ignore[assignment]  # hides tuple.index, which is not used
    arena: PageSet


class HashedIdentities(NamedTuple):
    """Identities as compiled loops take them: keys, numbers and hashes under a map's seed."""

    keys: BytesColumn
    numbers: Int64s
    hashes: Int64s


class _MapRecords(PagedStructure):
    """The pages with the records of a map."""

    def __init__(self, pages: PageSet, schema: RecordSchema, seed: int) -> None:
        self._seed = signed(seed)
        self.width = kernels.IDENTITY_WORDS + schema.words
        self.per_page = (pages.manager.page_bytes // 8 - kernels.HEADER_WORDS) // self.width
        self.shift = max((self.per_page - 1).bit_length(), 1)
        self.roomy: list[int] = []
        """The pages with free slots."""
        super().__init__(pages, MAP, schema)

    def _create(self) -> None:
        super()._create()
        self._words()[_SEED] = self._seed

    def _adopt(self, numbers: Int64s, headers: Int64s) -> None:
        count, used, free = (headers[:, word] for word in (kernels.COUNT, kernels.USED, kernels.FREE))
        words = self._words()
        whole = (count > 0) & (count <= used) & (used <= self.per_page) & (free >= 0) & (free <= used)
        if not whole.all() or int(count.sum()) != words[_RECORDS]:
            raise PagesDamaged(f"a map of {int(words[_RECORDS])} records on pages with {int(count.sum())}")
        self._seed = int(words[_SEED])
        self.roomy = numbers[count < self.per_page].tolist()
        self.numbers = numbers

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """What compiled loops need: shift of the page in a row, words of a page, of a record, records per page."""
        return self.shift, self._page_words, self.width, self.per_page

    @property
    def words(self) -> Int64s:
        """The memory of the records, after the headers were read again if another process changed pages."""
        return self._current()

    @property
    def seed(self) -> int:
        """The key of the hash."""
        return self._seed

    def __len__(self) -> int:
        return self._total(_RECORDS)

    def addresses(self, rows: Int64s) -> Int64s:
        """The first word of each record. Raises PagesDamaged for rows outside the pages."""
        slots = rows & ((1 << self.shift) - 1)
        pages = rows >> self.shift
        if len(rows) and (
            not 0 < int(pages.min()) <= int(pages.max()) < self._pages.used or int(slots.max()) >= self.per_page
        ):
            raise PagesDamaged(f"rows from {rows.min()} to {rows.max()} in a map of {self._pages.used} pages")
        return pages * self._page_words + kernels.HEADER_WORDS + slots * self.width

    def identity_words(self, word: int, rows: Int64s) -> Int64s:
        """One word of the identities of rows."""
        return self._words()[self.addresses(rows) + word]

    def touch_rows(self, rows: Int64s) -> None:
        """Announce a change of rows."""
        self._touch(rows >> self.shift)

    def take(self, count: int) -> Int64s:
        """`count` rows that were free; their pages are touched."""
        words = self._current()
        chosen, room = 0, 0
        while chosen < len(self.roomy) and room < count:
            room += self.per_page - int(words[self.roomy[-1 - chosen] * self._page_words + kernels.COUNT])
            chosen += 1
        if room < count:
            fresh = self._allocate(-(-(count - room) // self.per_page))
            if int(fresh[-1]) + 1 > _MAX_ROW >> self.shift:
                raise PagesFull(f"page {int(fresh[-1])} of a map lies beyond what rows can name; use larger pages")
            self.numbers = np.sort(np.append(self.numbers, fresh))
            # Behind the roomy pages that are chosen, so that these are filled first.
            self.roomy[len(self.roomy) - chosen : len(self.roomy) - chosen] = fresh[::-1].tolist()
            chosen += len(fresh)
        pages = np.array(self.roomy[len(self.roomy) - chosen :][::-1], np.int64)
        self._touch(pages)
        rows = np.empty(count, np.int64)
        taken_pages = kernels.take_rows(self._words(), pages, self.shape, rows)
        check(taken_pages, "a map's chain of free records")
        last = int(pages[taken_pages - 1])
        full = int(self._words()[last * self._page_words + kernels.COUNT]) == self.per_page
        del self.roomy[len(self.roomy) - taken_pages + (not full) :]
        self._words()[_RECORDS] += count
        self._count_page_change()
        return rows

    def write(self, rows: Int64s, identities: "HashedIdentities", refs: Int64s) -> None:
        """Store identities, with these references to their keys, in rows that were just taken; fields are 0."""
        numbers = np.array(identities.numbers)
        status = kernels.write_identities(self._words(), rows, identities.hashes, numbers, refs, self.shape)
        check(status, "a map's page")

    def free(self, rows: Int64s) -> None:
        """Make rows (each once, touched) free; pages without records are given back."""
        words = self._words()
        pages = distinct_numbers(rows >> self.shift, self._pages.used)
        was_full = pages[words[pages * self._page_words + kernels.COUNT] == self.per_page]
        check(kernels.free_rows(words, rows, self.shape), "a map's page")
        words[_RECORDS] -= len(rows)
        self._count_page_change()
        self.roomy += was_full.tolist()
        emptied = pages[words[pages * self._page_words + kernels.COUNT] == 0]
        if len(emptied):
            gone = set(emptied.tolist())
            self.roomy = [page for page in self.roomy if page not in gone]
            self.numbers = np.setdiff1d(self.numbers, emptied, assume_unique=True)
            self._release(emptied)

    def rows(self) -> Int64s:
        """All rows in use, ascending."""
        words = self._current()
        used = words[self.numbers * self._page_words + kernels.USED]
        total = int(used.sum())
        starts = np.cumsum(used) - used
        slots = np.arange(total) - np.repeat(starts, used)
        rows = np.repeat(self.numbers << self.shift, used) | slots
        return rows[words[self.addresses(rows) + kernels.KEY_REF] != kernels.REF_FREE]


class PagedMap:
    """A map from identities to records. `rows` are int64 arrays, and name records of the map."""

    def __init__(self, pages: MapPages, schema: RecordSchema, seed: int = 0) -> None:
        """Make a map in empty page sets, or recover the sets' own, with its own seed. Raises PagesDamaged."""
        self.schema = schema
        self._records = _MapRecords(pages.records, schema, seed)
        self._arena = PagedArena(pages.arena)
        self._index = PagedHashIndex(pages.index)
        if len(self._index) != len(self._records):
            self._fill_index()

    def recover(self) -> None:
        """Read the headers of all pages again; see `PagedStructure.recover`."""
        self._records.recover()
        self._arena.recover()
        self._index.recover()

    def destroy(self) -> None:
        """Give all pages back. The map is not used after that."""
        for part in (self._records, self._arena, self._index):
            part.destroy()

    def _fill_index(self) -> None:
        if len(self._index):
            raise PagesDamaged(f"an index of {len(self._index)} rows for {len(self._records)} records")
        rows = self._records.rows()
        if len(rows) != len(self._records):
            raise PagesDamaged(f"{len(rows)} records in use on pages that say {len(self._records)}")
        self._index.insert(self._hashes_of(rows), rows, self._hashes_of)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def size_bytes(self) -> int:
        """The memory of the map's pages."""
        return self._records.size_bytes + self._arena.size_bytes + self._index.size_bytes

    # ---- identities

    def identify(self, keys: pa.Array, numbers: Int64s) -> HashedIdentities:
        """Identities with the hashes of this map. Raises ValueError unless there is one number per key."""
        parts = keys_of(keys)
        plain = np.ascontiguousarray(numbers, np.int64)
        if plain.shape != (len(keys),):
            raise ValueError(f"{len(keys)} keys with numbers of shape {plain.shape}")
        return HashedIdentities(parts, steady(plain), hashes_of(parts, plain, self._records.seed))

    def find(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The row of each identity, -1 where there is none. Raises PagesDamaged."""
        return self._find(self.identify(keys, numbers))

    def _find(self, identities: HashedIdentities) -> Int64s:
        keys, numbers, hashes = identities
        records, index = self._records.words, self._index.words
        out = np.empty(len(hashes), np.int64)
        status = kernels.find_rows(
            hashes, *keys, numbers, index, self._index.first, self._index.table, records, self._records.shape,
            self._arena.memory, out
        )  # fmt: skip
        check(status, "a map's index")
        return out

    def ensure(self, keys: pa.Array, numbers: Int64s) -> tuple[Int64s, Bools]:
        """The row of each of these (distinct) identities, and whether it is new (all fields 0).

        Raises EntryTooLarge for a key that does not fit on a page, and PagesFull; then the map holds what it held.
        """
        identities = self.identify(keys, numbers)
        rows = self._find(identities)
        is_new = rows < 0
        if is_new.any():
            rows[is_new] = self._insert(identities, keys, is_new)
        return rows, is_new

    def _insert(self, identities: HashedIdentities, keys: pa.Array, is_new: Bools) -> Int64s:
        fresh = identities
        if not is_new.all():
            keys = keys.filter(pa.array(is_new))
            fresh = HashedIdentities(keys_of(keys), identities.numbers[is_new], identities.hashes[is_new])
        refs = self._arena.store_parts(fresh.keys)
        rows = np.empty(0, np.int64)
        try:
            rows = self._records.take(len(refs))
            self._records.write(rows, fresh, np.where(refs == 0, kernels.REF_NULL, refs))
            self._index.insert(fresh.hashes, rows, self._hashes_of)
        except PagesFull:
            if len(rows):
                self._records.touch_rows(rows)
                self._records.free(rows)
            self._arena.drop(refs)
            raise
        return rows

    def remove(self, rows: Int64s) -> None:
        """Remove records, each row once at most; rows that are free already stay free."""
        refs = self._records.identity_words(kernels.KEY_REF, rows)
        rows, refs = rows[refs != kernels.REF_FREE], refs[refs != kernels.REF_FREE]
        if not len(rows):
            return
        dropped = [refs] + [self._field(name, rows) for name in self.schema.bytes_fields]
        self._index.remove(self._hashes_of(rows), rows)
        self._records.touch_rows(rows)
        self._records.free(rows)
        self._arena.drop(np.concatenate(dropped))
        self._move_out()

    def keys(self, rows: Int64s) -> pa.BinaryArray:
        """The key of each record."""
        return self._arena.read(self._records.identity_words(kernels.KEY_REF, rows))

    def numbers(self, rows: Int64s) -> Int64s:
        """The number of each record's identity."""
        return self._records.identity_words(kernels.KEY_NUMBER, rows)

    def rows(self) -> Int64s:
        """The rows of all records, ascending."""
        return self._records.rows()

    def _hashes_of(self, rows: Int64s) -> Int64s:
        return self._records.identity_words(kernels.HASH, rows)

    # ---- fields

    def get(self, rows: Int64s) -> Records:
        """The records of rows; fields of varying length are references."""
        out = np.empty((len(rows), self.schema.words), np.int64)
        addresses = self._records.addresses(rows) + kernels.IDENTITY_WORDS
        check(kernels.gather(self._records.words, addresses, out), "a map's page")
        return self.schema.of_words(out)

    def set(self, rows: Int64s, records: Records) -> None:
        """Overwrite the records of rows; of a row named twice, the last. Fields of varying length keep theirs."""
        for name in self.schema.bytes_fields:
            records = records.copy()
            records[name] = self._field(name, rows)
        content = self.schema.words_of(records)
        self._records.touch_rows(rows)
        addresses = self._records.addresses(rows) + kernels.IDENTITY_WORDS
        check(kernels.scatter(self._records.words, addresses, content), "a map's page")

    def field(self, name: str, rows: Int64s) -> Any:
        """One field of fixed width of rows."""
        self._fixed(name)
        return self._field(name, rows)

    def set_field(self, name: str, rows: Int64s, values: Any) -> None:
        """Store one field of fixed width: a value for each row, or one for all."""
        self._fixed(name)
        self._set_field(name, rows, values)

    def bytes_field(self, name: str, rows: Int64s) -> pa.BinaryArray:
        """One field of varying length of rows, null where it was never set."""
        self._varying(name)
        return self._arena.read(self._field(name, rows))

    def set_bytes_field(self, name: str, rows: Int64s, values: pa.Array) -> None:
        """Store a value of varying length for each of these (distinct) rows. Raises EntryTooLarge and PagesFull; then
        the map holds what it held.
        """
        self._varying(name)
        if len(values) != len(rows):
            raise ValueError(f"{len(values)} values for {len(rows)} rows")
        fresh = self._arena.store(values)
        old = self._field(name, rows)
        self._set_field(name, rows, fresh)
        self._arena.drop(old)
        self._move_out()

    def _places(self, name: str, rows: Int64s) -> tuple[Any, Int64s]:
        """All memory as items of a field's type, and the item of each row."""
        kind, offset = self.schema.dtype.fields[name][:2]  # type: ignore[index]  # a structured type has fields
        addresses = (self._records.addresses(rows) + kernels.IDENTITY_WORDS) * 8 + offset
        return self._records.words.view(kind), addresses // kind.itemsize

    def _field(self, name: str, rows: Int64s) -> Any:
        items, places = self._places(name, rows)
        return items[places]

    def _set_field(self, name: str, rows: Int64s, values: Any) -> None:
        self._records.touch_rows(rows)
        items, places = self._places(name, rows)
        items[places] = values

    def _fixed(self, name: str) -> None:
        if name not in self.schema.fields or name in self.schema.bytes_fields:
            raise KeyError(f"{name!r} is not a field of fixed width; the map has {self.schema.fields}")

    def _varying(self, name: str) -> None:
        if name not in self.schema.bytes_fields:
            raise KeyError(f"{name!r} is not a field of varying length; the map has {self.schema.fields}")

    def _move_out(self) -> None:
        """Move what is left on pages of the arena that are mostly garbage, once the arena is mostly garbage."""
        pages = self._arena.wasteful_pages()
        if not len(pages):
            return
        rows = self._records.rows()
        with suppress(PagesFull):  # then the garbage stays for now
            moved, fresh = self._moved(rows, self._records.identity_words(kernels.KEY_REF, rows), pages)
            if len(moved):
                self._records.touch_rows(moved)
                self._records.words[self._records.addresses(moved) + kernels.KEY_REF] = fresh
            for name in self.schema.bytes_fields:
                moved, fresh = self._moved(rows, self._field(name, rows), pages)
                if len(moved):
                    self._set_field(name, moved, fresh)

    def _moved(self, rows: Int64s, refs: Int64s, pages: Int64s) -> tuple[Int64s, Int64s]:
        """Copy what references of rows lead to on these pages; the rows, and their new references."""
        held = self._arena.lies_on(refs, pages)
        fresh = self._arena.store(self._arena.read(refs[held]))
        self._arena.drop(refs[held])
        return rows[held], fresh

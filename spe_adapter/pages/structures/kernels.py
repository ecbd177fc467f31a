"""The compiled loops of structures on pages: moving records, and probing, filling and emptying hash pages.

Invariants:
* Every position that comes out of a page is checked against the memory that it leads into, and every walk is bounded:
  damaged pages give DAMAGED, never a read or write outside and never an endless loop.
* Page numbers in `first` come from headers that `recover` has checked.
* Types are fixed, so each function compiles once; the result is cached on disk.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spe_adapter.codec.identity_hash import key_length, load
from spe_adapter.codec.kernels import Bytes, Int32s, Int64s, compiled

Words = NDArray[np.int64]
"""Two dimensions: records and their words."""

# Words of a page's header.
PAGE_KIND: Final = 0
PAGE_NUMBER: Final = 1
ORDINAL: Final = 2
"""Of lists and queues: which page of the sequence this is. Of hash pages: the bucket, plus one; 0: none."""
NEXT: Final = 3
"""Of hash pages: the page with the rest of the bucket; 0: none."""
COUNT: Final = 4
"""Records or entries on the page; in an arena the bytes that are in use."""
USED: Final = 5
"""Slots of the page that were ever used."""
FREE: Final = 6
"""The first free slot below USED, plus one; 0: none. The chain runs through the records' second word."""
START: Final = 7
"""Of sorted pages: the slot of the first record."""
HEADER_WORDS: Final = 8

# Words of a map's record, before its fields.
HASH: Final = 0
KEY_NUMBER: Final = 1
KEY_REF: Final = 2
IDENTITY_WORDS: Final = 3

# A reference packs position and length into one word: position << 24 | length + 1, and 0 for null. In a record's
# KEY_REF 0 says that the record is free, -1 that its key is null.
LENGTH_BITS: Final = 24
LENGTH_MASK: Final = (1 << LENGTH_BITS) - 1
REF_FREE: Final = 0
REF_NULL: Final = -1

ROW_MASK: Final = 0xFFFFFFFF
TAG_BITS: Final = 32

OK: Final = 0
DAMAGED: Final = -2


@compiled
def gather(words: Int64s, addresses: Int64s, out: Words) -> int:
    """Copy records that begin at these words; OK or DAMAGED."""
    width = out.shape[1]
    for item in range(addresses.shape[0]):
        at = addresses[item]
        if at < 0 or at + width > words.shape[0]:
            return DAMAGED
        for word in range(width):
            out[item, word] = words[at + word]
    return OK


@compiled
def scatter(words: Int64s, addresses: Int64s, records: Words) -> int:
    """Store records so that they begin at these words; OK or DAMAGED."""
    width = records.shape[1]
    for item in range(addresses.shape[0]):
        at = addresses[item]
        if at < 0 or at + width > words.shape[0]:
            return DAMAGED
        for word in range(width):
            words[at + word] = records[item, word]
    return OK


# ---- rows of a map


@compiled
def take_rows(records: Int64s, pages: Int64s, shape: tuple[int, ...], out: Int64s) -> int:
    """Take free rows from these pages, in their order, until `out` is full; how many pages were looked at, or DAMAGED.
    The pages have room for them.
    """
    shift, page_words, width, per_page = shape
    taken = 0
    for item in range(pages.shape[0]):
        base = pages[item] * page_words
        if base < 0 or base + page_words > records.shape[0]:
            return DAMAGED
        while taken < out.shape[0] and records[base + COUNT] < per_page:
            slot = records[base + FREE] - 1
            if slot >= 0:
                at = base + HEADER_WORDS + slot * width
                if slot >= per_page or records[at + KEY_REF] != REF_FREE:
                    return DAMAGED
                records[base + FREE] = records[at + KEY_NUMBER]
            else:
                slot = records[base + USED]
                if slot < 0 or slot >= per_page:
                    return DAMAGED
                records[base + USED] = slot + 1
            records[base + COUNT] += 1
            out[taken] = (pages[item] << shift) | slot
            taken += 1
        if taken == out.shape[0]:
            return item + 1
    return DAMAGED


@compiled
def free_rows(records: Int64s, rows: Int64s, shape: tuple[int, ...]) -> int:
    """Make rows in use free; OK or DAMAGED."""
    shift, page_words, width, per_page = shape
    mask = (np.int64(1) << shift) - 1
    for item in range(rows.shape[0]):
        base = (rows[item] >> shift) * page_words
        slot = rows[item] & mask
        at = base + HEADER_WORDS + slot * width
        if base < 0 or slot >= per_page or base + page_words > records.shape[0]:
            return DAMAGED
        records[at + KEY_REF] = REF_FREE
        records[at + KEY_NUMBER] = records[base + FREE]
        records[base + FREE] = slot + 1
        records[base + COUNT] -= 1
    return OK


@compiled
def write_identities(
    records: Int64s, rows: Int64s, hashes: Int64s, numbers: Int64s, refs: Int64s, shape: tuple[int, ...]
) -> int:
    """Store identities in rows that were taken, with fields of zeros; OK or DAMAGED."""
    shift, page_words, width, per_page = shape
    mask = (np.int64(1) << shift) - 1
    for item in range(rows.shape[0]):
        base = (rows[item] >> shift) * page_words
        slot = rows[item] & mask
        at = base + HEADER_WORDS + slot * width
        if base < 0 or slot >= per_page or base + page_words > records.shape[0]:
            return DAMAGED
        records[at + HASH] = hashes[item]
        records[at + KEY_NUMBER] = numbers[item]
        records[at + KEY_REF] = refs[item]
        for word in range(IDENTITY_WORDS, width):
            records[at + word] = 0
    return OK


# ---- the index of a map: linear hashing


@compiled
def bucket_of(value: int, mask: int, split: int) -> int:
    """The bucket of a hash: buckets below `split` were split already in this round."""
    bucket = value & mask
    if bucket < split:
        bucket = value & (2 * mask + 1)
    return bucket


@compiled
def home_of(value: int, slots: int) -> int:
    """The slot of a hash page where the search for a hash begins; it follows from the upper half of the hash."""
    return np.int64(((np.uint64(value) >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32))


@compiled
def find_rows(
    hashes: Int64s, offsets: Int32s, bitmap: Bytes, bit: int, data: Bytes, numbers: Int64s, index: Int64s,
    first: Int64s, table: tuple[int, ...], records: Int64s, shape: tuple[int, ...], arena: Bytes, out: Int64s
) -> int:  # fmt: skip
    """The row of each identity, or -1. OK or DAMAGED. `first` has the first page of each bucket."""
    mask, split, index_words, slots = table
    shift, page_words, width, per_page = shape
    row_mask = (np.int64(1) << shift) - 1
    # On its own this loop misses many cache lines at a time; inside the next one it would miss one after the other.
    for item in range(hashes.shape[0]):
        page = first[bucket_of(hashes[item], mask, split)]
        out[item] = index[page * index_words + HEADER_WORDS + home_of(hashes[item], slots)]
    for item in range(hashes.shape[0]):
        value = hashes[item]
        slot = home_of(value, slots)
        base = first[bucket_of(value, mask, split)] * index_words
        entry = out[item]
        out[item] = -1
        steps = slots
        pages = first.shape[0]
        length = key_length(offsets, bitmap, bit, item)
        while True:
            if entry == 0 or steps == 0:
                page = index[base + NEXT]
                if page == 0:
                    break
                pages -= 1
                base = page * index_words
                if base < 0 or base + index_words > index.shape[0] or pages < 0:
                    return DAMAGED
                slot, steps = home_of(value, slots), slots
                entry = index[base + HEADER_WORDS + slot]
                continue
            if (entry ^ value) >> TAG_BITS == 0:
                row = (entry & ROW_MASK) - 1
                at = (row >> shift) * page_words + HEADER_WORDS + (row & row_mask) * width
                if row < 0 or (row & row_mask) >= per_page or at + width > records.shape[0]:
                    return DAMAGED
                ref = records[at + KEY_REF]
                same = records[at + KEY_NUMBER] == numbers[item] and (
                    (ref > 0 and (ref & LENGTH_MASK) == length + 1) or (ref == REF_NULL and length < 0)
                )
                if same and (ref >> LENGTH_BITS) + length > arena.shape[0]:
                    return DAMAGED
                left, left_at, right_at = length, np.uint64(ref >> LENGTH_BITS), np.uint64(offsets[item])
                while same and left >= 8:
                    same = load(arena, left_at) == load(data, right_at)
                    left_at += np.uint64(8)
                    right_at += np.uint64(8)
                    left -= 8
                while same and left > 0:
                    same = arena[left_at] == data[right_at]
                    left_at += np.uint64(1)
                    right_at += np.uint64(1)
                    left -= 1
                if same:
                    out[item] = row
                    break
            slot += 1
            if slot == slots:
                slot = 0
            steps -= 1
            entry = index[base + HEADER_WORDS + slot]
    return OK


@compiled
def insert_entries(
    hashes: Int64s, rows: Int64s, index: Int64s, first: Int64s, table: tuple[int, ...], limit: int
) -> int:
    """Enter rows into their buckets, whose pages have room below `limit` entries a page; OK or DAMAGED."""
    mask, split, index_words, slots = table
    for item in range(hashes.shape[0]):
        value = hashes[item]
        base = first[bucket_of(value, mask, split)] * index_words
        pages = first.shape[0]
        while index[base + COUNT] >= limit:
            base = index[base + NEXT] * index_words
            pages -= 1
            if base <= 0 or base + index_words > index.shape[0] or pages < 0:
                return DAMAGED
        slot = home_of(value, slots)
        steps = slots
        while index[base + HEADER_WORDS + slot] != 0:
            slot += 1
            if slot == slots:
                slot = 0
            steps -= 1
            if steps == 0:
                return DAMAGED
        index[base + HEADER_WORDS + slot] = ((value >> TAG_BITS) << TAG_BITS) | (rows[item] + 1)
        index[base + COUNT] += 1
    return OK


@compiled
def unlink_entries(hashes: Int64s, rows: Int64s, index: Int64s, first: Int64s, table: tuple[int, ...]) -> int:
    """Take rows out of their buckets; OK or DAMAGED."""
    mask, split, index_words, slots = table
    for item in range(hashes.shape[0]):
        value = hashes[item]
        base = first[bucket_of(value, mask, split)] * index_words
        pages = first.shape[0]
        hole, steps = home_of(value, slots), slots
        while (index[base + HEADER_WORDS + hole] & ROW_MASK) - 1 != rows[item]:
            if index[base + HEADER_WORDS + hole] == 0 or steps == 0:
                base = index[base + NEXT] * index_words
                pages -= 1
                if base <= 0 or base + index_words > index.shape[0] or pages < 0:
                    return DAMAGED
                hole, steps = home_of(value, slots), slots
                continue
            hole += 1
            if hole == slots:
                hole = 0
            steps -= 1
        # An entry that was pushed behind the hole moves into it, so that no search stops there too early.
        slot = hole + 1 if hole + 1 < slots else 0
        steps = slots
        while index[base + HEADER_WORDS + slot] != 0 and steps > 0:
            home = home_of(index[base + HEADER_WORDS + slot], slots)
            from_home = slot - home if slot >= home else slot - home + slots
            from_hole = slot - hole if slot >= hole else slot - hole + slots
            if from_home >= from_hole:
                index[base + HEADER_WORDS + hole] = index[base + HEADER_WORDS + slot]
                hole = slot
            slot += 1
            if slot == slots:
                slot = 0
            steps -= 1
        index[base + HEADER_WORDS + hole] = 0
        index[base + COUNT] -= 1
    return OK


@compiled
def collect_entries(index: Int64s, pages: Int64s, index_words: int, out: Int64s) -> int:
    """Copy the entries of these pages; how many there are, or DAMAGED if they do not fit."""
    count = 0
    for item in range(pages.shape[0]):
        base = pages[item] * index_words
        for slot in range(HEADER_WORDS, index_words):
            if index[base + slot] != 0:
                if count == out.shape[0]:
                    return DAMAGED
                out[count] = index[base + slot]
                count += 1
    return count


@compiled
def fill_page(page: Int64s, entries: Int64s) -> int:
    """Make a hash page hold just these entries; OK or DAMAGED if they do not fit."""
    slots = page.shape[0] - HEADER_WORDS
    if entries.shape[0] >= slots:
        return DAMAGED
    for slot in range(slots):
        page[HEADER_WORDS + slot] = 0
    for item in range(entries.shape[0]):
        slot = home_of(entries[item], slots)
        while page[HEADER_WORDS + slot] != 0:
            slot += 1
            if slot == slots:
                slot = 0
        page[HEADER_WORDS + slot] = entries[item]
    page[COUNT] = entries.shape[0]
    return OK


# ---- bytes


@compiled
def place_entries(lengths: Int64s, begin: int, end: int, header_bytes: int, out: Int64s) -> int:
    """Give each entry a place: `out` gets page << 24 | offset, pages counted from 0, which has room from `begin` on;
    the number of pages behind page 0. Entries of negative length (null) need no place; `end` is the size of a page.
    """
    page = 0
    at = begin
    for item in range(lengths.shape[0]):
        length = lengths[item]
        if length <= 0:
            out[item] = (page << 24) | header_bytes
            continue
        if at + length > end:
            page += 1
            at = header_bytes
        out[item] = (page << 24) | at
        at += length
    return page


@compiled
def store_entries(offsets: Int32s, bitmap: Bytes, bit: int, data: Bytes, refs: Int64s, arena: Bytes) -> int:
    """Copy bytes to where the references lead; OK or DAMAGED."""
    for item in range(refs.shape[0]):
        length = key_length(offsets, bitmap, bit, item)
        at = refs[item] >> LENGTH_BITS
        if length > 0:
            if at < 0 or at + length > arena.shape[0]:
                return DAMAGED
            source, target = np.uint64(offsets[item]), np.uint64(at)
            for byte in range(np.uint64(length)):
                arena[target + byte] = data[source + byte]
    return OK


@compiled
def read_entries(refs: Int64s, arena: Bytes, out: Bytes) -> int:
    """Copy what references lead to, end to end; OK or DAMAGED."""
    target = np.uint64(0)
    for item in range(refs.shape[0]):
        length = (refs[item] & LENGTH_MASK) - 1
        at = refs[item] >> LENGTH_BITS
        if length > 0:
            if at < 0 or at + length > arena.shape[0] or np.int64(target) + length > out.shape[0]:
                return DAMAGED
            source = np.uint64(at)
            for byte in range(np.uint64(length)):
                out[target + byte] = arena[source + byte]
            target += np.uint64(length)
    return OK

"""The compiled loops of a table: they find, insert and remove identities, and move bytes to and from the arena.

Invariants:
* Every index that comes out of a table's memory is checked against the array it leads into: a damaged segment gives a
  negative status, never a read outside. Loops over the index are bounded by its size.
* Types are fixed (see `codec.columns.keys_of`), so each function compiles once; the result is cached on disk. Work that
  numpy does well is not done here: loading compiled code takes time in every new worker.
* A row becomes part of a table, and ceases to be, when its reference is stored, which loops leave to their callers:
  what else is stored of it comes wholly before or after, whatever order the compiler gives the stores of a loop.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spe_adapter.codec.identity_hash import key_length, load
from spe_adapter.codec.kernels import Bytes, Int32s, Int64s, compiled

Grid = NDArray[np.int64]

# Counters at the start of a table's memory.
CAPACITY: Final = 0
ARENA_BYTES: Final = 1
INDEX_SLOTS: Final = 2
USED: Final = 3
"""Rows that were ever used; those behind are untouched."""
FREE: Final = 4
"""The first of the chain of free rows below USED, plus one; 0: none. The chain runs through column NUMBER."""
OCCUPIED: Final = 5
"""Rows that are not free."""
ARENA_USED: Final = 6
GARBAGE: Final = 7
"""Bytes of the arena below ARENA_USED that nothing refers to."""
SEED: Final = 8
EARLIEST: Final = 9
"""No row expires earlier than this."""
COUNTERS: Final = 16

# Columns of the table of identities.
NUMBER: Final = 0
REF: Final = 1
IDENTITY_COLUMNS: Final = 2

# A reference packs position and length into one word, so that it is stored at once: position << 24 | length + 1, and 0
# for null. In an identity 0 says that there is no window, as in memory that was never used, -1 that its key is null.
LENGTH_BITS: Final = 24
LENGTH_MASK: Final = (1 << LENGTH_BITS) - 1
MAX_ENTRY_BYTES: Final = LENGTH_MASK - 1
REF_FREE: Final = 0
REF_NULL: Final = -1
REF_HIDDEN: Final = -2
"""The row is in use, but not in the index."""

ROW_MASK: Final = 0xFFFFFFFF
TAG_BITS: Final = 32

OK: Final = 0
DAMAGED: Final = -2


@compiled
def distinct_rows(
    hashes: Int64s, offsets: Int32s, bitmap: Bytes, bit: int, data: Bytes, numbers: Int64s, slots: Int32s,
    index: Int64s, first: Int64s
) -> int:  # fmt: skip
    """Number identities in the order of their appearance; how many there are. `slots` is zeroed, a power of two."""
    mask = np.int64(slots.shape[0] - 1)
    count = 0
    for row in range(hashes.shape[0]):
        value = hashes[row]
        slot = value & mask
        length = key_length(offsets, bitmap, bit, row)
        while True:
            seen = np.int64(slots[slot])
            if seen == 0:
                count += 1
                slots[slot] = count
                first[count - 1] = row
                index[row] = count - 1
                break
            other = first[seen - 1]
            same = (
                hashes[other] == value
                and numbers[other] == numbers[row]
                and key_length(offsets, bitmap, bit, other) == length
            )
            left, left_at, right_at = length, np.uint64(offsets[other]), np.uint64(offsets[row])
            while same and left >= 8:
                same = load(data, left_at) == load(data, right_at)
                left_at += np.uint64(8)
                right_at += np.uint64(8)
                left -= 8
            while same and left > 0:
                same = data[left_at] == data[right_at]
                left_at += np.uint64(1)
                right_at += np.uint64(1)
                left -= 1
            if same:
                index[row] = seen - 1
                break
            slot = (slot + 1) & mask
    return count


@compiled
def find_rows(
    hashes: Int64s, offsets: Int32s, bitmap: Bytes, bit: int, data: Bytes, numbers: Int64s, index: Int64s,
    identities: Grid, arena: Bytes, out: Int64s
) -> int:  # fmt: skip
    """The row of each identity, or -1. OK or DAMAGED."""
    mask = np.int64(index.shape[0] - 1)
    # On its own this loop misses many cache lines at a time; inside the next one it would miss one after the other.
    for row in range(hashes.shape[0]):
        out[row] = index[hashes[row] & mask]
    for row in range(hashes.shape[0]):
        value = hashes[row]
        slot = value & mask
        entry = out[row]
        out[row] = -1
        steps = mask
        length = key_length(offsets, bitmap, bit, row)
        while entry != 0:
            if (entry ^ value) >> TAG_BITS == 0:
                candidate = (entry & ROW_MASK) - 1
                if candidate >= identities.shape[0]:
                    return DAMAGED
                ref = identities[candidate, REF]
                same = identities[candidate, NUMBER] == numbers[row] and (
                    (ref > 0 and (ref & LENGTH_MASK) == length + 1) or (ref == REF_NULL and length < 0)
                )
                if same and (ref >> LENGTH_BITS) + length > arena.shape[0]:
                    return DAMAGED
                left, left_at, right_at = length, np.uint64(ref >> LENGTH_BITS), np.uint64(offsets[row])
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
                    out[row] = candidate
                    break
            slot = (slot + 1) & mask
            entry = index[slot]
            steps -= 1
            if steps < 0:
                return DAMAGED
    return OK


@compiled
def insert_rows(
    hashes: Int64s, offsets: Int32s, bitmap: Bytes, bit: int, data: Bytes, numbers: Int64s, index: Int64s,
    identities: Grid, row_hashes: Int64s, arena: Bytes, counters: Int64s, rows: Int64s, refs: Int64s
) -> int:  # fmt: skip
    """Give each identity that has no row yet (-1 in `rows`) one; OK or DAMAGED.

    `refs` gets the reference of each new row's key, which the caller stores in the table to make the row whole, and
    REF_FREE for rows that were there. There is room. Identities of one call are distinct.
    """
    mask = np.int64(index.shape[0] - 1)
    for item in range(hashes.shape[0]):
        if rows[item] >= 0:
            refs[item] = REF_FREE
            continue
        value = hashes[item]
        slot = value & mask
        steps = mask
        while index[slot] != 0:
            slot = (slot + 1) & mask
            steps -= 1
            if steps < 0:
                return DAMAGED
        row = counters[FREE] - 1
        if row >= 0:
            if row >= identities.shape[0] or identities[row, REF] != REF_FREE:
                return DAMAGED
            counters[FREE] = identities[row, NUMBER]
        else:
            row = counters[USED]
            if row >= identities.shape[0]:
                return DAMAGED
            counters[USED] = row + 1
        length = key_length(offsets, bitmap, bit, item)
        at = counters[ARENA_USED]
        start = np.uint64(offsets[item])
        if length > 0:
            if at + length > arena.shape[0]:
                return DAMAGED
            target = np.uint64(at)
            for byte in range(np.uint64(length)):
                arena[target + byte] = data[start + byte]
            counters[ARENA_USED] = at + length
        identities[row, NUMBER] = numbers[item]
        row_hashes[row] = value
        index[slot] = ((value >> TAG_BITS) << TAG_BITS) | (row + 1)
        counters[OCCUPIED] += 1
        rows[item] = row
        refs[item] = (at << LENGTH_BITS) | (length + 1) if length >= 0 else np.int64(REF_NULL)
    return OK


@compiled
def next_rows(identities: Grid, counters: Int64s, out: Int64s) -> int:
    """The rows that the next calls of `insert_rows` will take; OK or DAMAGED."""
    row = counters[FREE] - 1
    used = counters[USED]
    for item in range(out.shape[0]):
        if row >= 0:
            if row >= identities.shape[0]:
                return DAMAGED
            out[item] = row
            row = identities[row, NUMBER] - 1
        else:
            out[item] = used
            used += 1
    return OK


@compiled
def mark_values(
    rows: Int64s, offsets: Int32s, bitmap: Bytes, bit: int, column: Int64s, arena_at: int, arena_bytes: int,
    page_shift: int, pages: Bytes
) -> int:  # fmt: skip
    """Set `pages[page]` for each page that `scatter_bytes` will change in place, in an arena that begins at byte
    `arena_at`; how many bytes it will append to the arena, or DAMAGED.
    """
    appended = 0
    for item in range(rows.shape[0]):
        old = max((column[rows[item]] & LENGTH_MASK) - 1, 0)
        length = key_length(offsets, bitmap, bit, item)
        if length > old:
            appended += length
        elif length > 0:
            at = column[rows[item]] >> LENGTH_BITS
            if at < 0 or at + length > arena_bytes:
                return DAMAGED
            first = (arena_at + at) >> page_shift
            last = (arena_at + at + length - 1) >> page_shift
            for page in range(first, min(last, pages.shape[0] - 1) + 1):
                pages[page] = 1
    return appended


@compiled
def unlink_rows(rows: Int64s, index: Int64s, identities: Grid, row_hashes: Int64s) -> int:
    """Take rows that are in use, and of which each is there once, out of the index; OK or DAMAGED. Making them free is
    left to the caller.
    """
    mask = np.int64(index.shape[0] - 1)
    for item in range(rows.shape[0]):
        row = rows[item]
        if identities[row, REF] == REF_HIDDEN:
            continue
        hole = row_hashes[row] & mask
        steps = mask
        while (index[hole] & ROW_MASK) - 1 != row:
            if index[hole] == 0 or steps < 0:
                return DAMAGED
            hole = (hole + 1) & mask
            steps -= 1
        # An entry that was pushed behind the hole moves into it, so that no probe stops there too early.
        slot = (hole + 1) & mask
        while index[slot] != 0:
            other = (index[slot] & ROW_MASK) - 1
            if other >= row_hashes.shape[0] or steps < 0:
                return DAMAGED
            home = row_hashes[other] & mask
            if ((slot - home) & mask) >= ((slot - hole) & mask):
                index[hole] = index[slot]
                hole = slot
            slot = (slot + 1) & mask
            steps -= 1
        index[hole] = 0
    return OK


@compiled
def link_rows(identities: Grid, row_hashes: Int64s, used: int, index: Int64s) -> int:
    """Build a zeroed index of all rows with a key; OK or DAMAGED."""
    mask = np.int64(index.shape[0] - 1)
    if used > identities.shape[0] or used > mask:
        return DAMAGED
    for row in range(used):
        if identities[row, REF] == REF_FREE or identities[row, REF] == REF_HIDDEN:
            continue
        value = row_hashes[row]
        slot = value & mask
        while index[slot] != 0:
            slot = (slot + 1) & mask
        index[slot] = ((value >> TAG_BITS) << TAG_BITS) | (row + 1)
    return OK


@compiled
def move_bytes(refs: Int64s, arena: Bytes, out: Bytes) -> int:
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


@compiled
def scatter_bytes(
    rows: Int64s, offsets: Int32s, bitmap: Bytes, bit: int, data: Bytes, column: Int64s, arena: Bytes, counters: Int64s
) -> int:
    """Store values in a column of references, in place where they fit; OK or DAMAGED. There is room."""
    for item in range(rows.shape[0]):
        row = rows[item]
        old = max((column[row] & LENGTH_MASK) - 1, 0)
        length = key_length(offsets, bitmap, bit, item)
        if length < 0:
            column[row] = 0
            counters[GARBAGE] += old
            continue
        at = column[row] >> LENGTH_BITS
        if length > old:
            at = counters[ARENA_USED]
            counters[ARENA_USED] = at + length
            counters[GARBAGE] += old
        else:
            counters[GARBAGE] += old - length
        if at < 0 or at + length > arena.shape[0]:
            return DAMAGED
        source = np.uint64(offsets[item])
        target = np.uint64(at)
        for byte in range(np.uint64(length)):
            arena[target + byte] = data[source + byte]
        column[row] = (at << LENGTH_BITS) | (length + 1)
    return OK

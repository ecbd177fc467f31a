"""A set of window identities (key, number) that takes whole columns at a time: what reconstruction has seen already.

Invariants:
* Two identities are equal only if number and key bytes are equal; hashes only say where to look. A null key differs
  from an empty one.
* Keys of at most eight bytes stand in their slot, so that one look costs one cache line; longer ones stand in the
  arena.
* There is always room for a whole column before its loop starts; loops never grow anything and never raise.

Source: open addressing with linear probing; Fibonacci and murmur3 mixing constants.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Bools, Bytes, Int32s, Int64s, compiled

UInt64s = NDArray[np.uint64]

SLOT_WORDS: Final = 4
"""Hash (0: empty), number, first eight key bytes, and the rest: below."""
INLINE_BYTES: Final = 8
"""Longest key that stands in its slot. Its fourth word is the length plus one (0: null), a longer key's is its arena
position plus ARENA_BASE.
"""
ARENA_BASE: Final = 16
LENGTH_BYTES: Final = 8
"""In the arena a key's length stands in front of it."""
MIN_CAPACITY: Final = 1024
MAX_INITIAL: Final = 1 << 24
"""A set made for more identities than this starts smaller and grows: the estimate may be wrong."""
LOAD_PERCENT: Final = 60
"""How full a new table gets with what it was made for."""
MAX_LOAD_PERCENT: Final = 75
"""How full it may get before it grows: rows are counted before it is known how many of them are new."""


@compiled
def _word(data: Bytes, at: int, length: int) -> np.uint64:
    """Up to eight bytes from `at`, little-endian."""
    word = np.uint64(0)
    if length >= 8:
        for index in range(8):
            word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    else:
        for index in range(length):
            word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return word


@compiled
def _hash(data: Bytes, at: int, length: int, number: int) -> np.uint64:
    """A hash of an identity that is never 0; `length` is -1 for a null key."""
    state = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    state ^= np.uint64(length + 2) * np.uint64(0xC2B2AE3D27D4EB4F)
    done = 0
    while done < length:
        state ^= _word(data, at + done, length - done) * np.uint64(0x87C37B91114253D5)
        state = (state << np.uint64(31)) | (state >> np.uint64(33))
        state *= np.uint64(0x4CF5AD432745937F)
        done += 8
    state ^= state >> np.uint64(33)
    state *= np.uint64(0xFF51AFD7ED558CCD)
    state ^= state >> np.uint64(33)
    state *= np.uint64(0xC4CEB9FE1A85EC53)
    state ^= state >> np.uint64(33)
    return state | np.uint64(1)


@compiled
def _slot(value: np.uint64, size: np.uint64) -> np.uint64:
    """Where to look first, for tables of any size below 2**32: powers of two would waste up to half of them."""
    return ((value >> np.uint64(32)) * size) >> np.uint64(32)


@compiled
def _next(slot: np.uint64, size: np.uint64) -> np.uint64:
    slot += np.uint64(1)
    return slot if slot < size else np.uint64(0)


@compiled
def _same_tail(data: Bytes, at: int, length: int, arena: Bytes, where: int) -> bool:
    """Whether the long key at `at` is the one in the arena; their first eight bytes are known to be equal."""
    if _word(arena, where, 8) != np.uint64(length):
        return False
    index = 8
    while index < length and data[at + index] == arena[where + 8 + index]:
        index += 1
    return index == length


@compiled
def _keep(data: Bytes, at: int, length: int, arena: Bytes, where: int) -> int:
    """Put a long key into the arena; the position behind it."""
    for index in range(8):
        arena[where + index] = np.uint8(np.uint64(length) >> np.uint64(8 * index))
    for index in range(length):
        arena[where + 8 + index] = data[at + index]
    return where + 8 + length


@compiled
def insert(
    key_offsets: Int32s,
    key_bitmap: Bytes,
    key_bit: int,
    key_data: Bytes,
    numbers: Int64s,
    slots: UInt64s,
    arena: Bytes,
    used_bytes: int,
    is_new: Bytes,
) -> tuple[int, int]:
    """Add identities to a table with room for all of them: how many were new, and the arena bytes then used.

    `is_new` gets one byte a row.
    """
    rows = numbers.shape[0]
    size = np.uint64(slots.shape[0])
    hashes = np.empty(rows, np.uint64)
    lengths = np.empty(rows, np.int64)
    for row in range(rows):
        at = np.int64(key_offsets[row])
        length = np.int64(key_offsets[row + 1]) - at
        bit = key_bit + row
        if key_bitmap.shape[0] != 0 and (key_bitmap[bit >> 3] >> np.uint8(bit & 7)) & np.uint8(1) == 0:
            length = np.int64(-1)
        lengths[row] = length
        hashes[row] = _hash(key_data, at, length, numbers[row])
    added = 0
    # Apart from the hashing, so that the looks of neighbouring rows overlap: each is a cache miss.
    for row in range(rows):
        at = np.int64(key_offsets[row])
        length = lengths[row]
        value = hashes[row]
        number = np.uint64(numbers[row])
        head = _word(key_data, at, length)
        slot = _slot(value, size)
        found = False
        while slots[slot, 0] != np.uint64(0):
            if slots[slot, 0] == value and slots[slot, 1] == number and slots[slot, 2] == head:
                rest = slots[slot, 3]
                if length <= INLINE_BYTES:
                    found = rest == np.uint64(length + 1)
                elif rest >= np.uint64(ARENA_BASE):
                    found = _same_tail(key_data, at, length, arena, np.int64(rest) - ARENA_BASE)
                if found:
                    break
            slot = _next(slot, size)
        is_new[row] = 0 if found else 1
        if not found:
            slots[slot, 0] = value
            slots[slot, 1] = number
            slots[slot, 2] = head
            if length <= INLINE_BYTES:
                slots[slot, 3] = np.uint64(length + 1)
            else:
                slots[slot, 3] = np.uint64(used_bytes + ARENA_BASE)
                used_bytes = _keep(key_data, at, length, arena, used_bytes)
            added += 1
    return added, used_bytes


@compiled
def rehash(source: UInt64s, target: UInt64s) -> None:
    """Move all entries into a larger, empty table."""
    size = np.uint64(target.shape[0])
    for index in range(source.shape[0]):
        value = source[index, 0]
        if value != np.uint64(0):
            slot = _slot(value, size)
            while target[slot, 0] != np.uint64(0):
                slot = _next(slot, size)
            for word in range(SLOT_WORDS):
                target[slot, word] = source[index, word]


class Identities:
    """A growing set of (key, number)."""

    def __init__(self, expected: int = 0) -> None:
        """Room for `expected` identities at once, as far as that is sensible."""
        self._slots = _empty(min(max(expected, 0), MAX_INITIAL))
        self._arena = np.empty(0, np.uint8)
        self._arena_used = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Memory that the set takes."""
        return int(self._slots.nbytes + self._arena.nbytes)

    def add(self, keys: pa.Array, numbers: Int64s) -> Bools:
        """Add the identities of some rows; which of them were not there (nor further up in the same rows).

        `keys` is a binary array, `numbers` int64 of the same length.
        """
        rows = len(numbers)
        self._make_room(rows)
        bitmap, offsets, data = keys.buffers()
        first = keys.offset
        ends = np.frombuffer(offsets, np.int32)[first : first + rows + 1] if rows else np.zeros(1, np.int32)
        self._make_arena(int(ends[-1]) - int(ends[0]) + rows * LENGTH_BYTES)
        is_new = np.empty(rows, np.uint8)
        added, self._arena_used = insert(
            _read_only(ends),
            _bytes(bitmap if keys.null_count else None),
            first,
            _bytes(data),
            _read_only(np.require(numbers, np.int64, ["C", "A"])),
            self._slots,
            self._arena,
            self._arena_used,
            is_new,
        )
        self._count += added
        return is_new.view(np.bool_)

    def _make_room(self, rows: int) -> None:
        if (self._count + rows) * 100 > len(self._slots) * MAX_LOAD_PERCENT:
            larger = _empty(self._count + self._count // 2 + rows)
            rehash(self._slots, larger)
            self._slots = larger

    def _make_arena(self, more_bytes: int) -> None:
        wanted = self._arena_used + more_bytes
        if wanted > len(self._arena):
            larger = np.empty(max(2 * len(self._arena), wanted), np.uint8)
            larger[: self._arena_used] = self._arena[: self._arena_used]
            self._arena = larger


def _empty(identities: int) -> UInt64s:
    return np.zeros((max(MIN_CAPACITY, identities * 100 // LOAD_PERCENT + 1), SLOT_WORDS), np.uint64)


def _bytes(buffer: pa.Buffer | None) -> Bytes:
    return _read_only(np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else _NOTHING)


def _read_only(array: Any) -> Any:
    """Always a read-only view, so that the loop is compiled for one type."""
    view = array.view()
    view.flags.writeable = False
    return view


_NOTHING: Final = np.empty(0, np.uint8)

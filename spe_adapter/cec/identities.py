"""A set of window identities (key, number), filled a column at a time: the identities that a reconstruction has met.

A hash table of its own beside `state.table`: it has no rows to number and nothing to remove, so that an identity with a
short key takes 32 bytes, and one cache miss.

Invariants:
* Two identities are equal only if their numbers and key bytes are equal; hashes only choose the slot. A null key
  differs from an empty key.
* Identities are hashed with the set's own seed, so that a producer cannot choose keys that collide. The answers of
  `add` do not depend on the seed.
* A key of at most eight bytes is kept in its slot, so that a probe costs one cache line; a longer key is kept in the
  arena.
* The table has room for a whole column before the column's loop starts; loops never allocate and never raise.

Source: open addressing with linear probing; the hash is `codec.identity_hash`.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Final

import numpy as np
import pyarrow as pa

from spe_adapter.codec.columns import keys_of, steady
from spe_adapter.codec.identity_hash import hashes_of, key_length
from spe_adapter.codec.kernels import Bools, Bytes, Int32s, Int64s, Uint64s, compiled

SLOT_WORDS: Final = 4
"""Words of a slot: hash (0: empty), number, first eight bytes of the key, and the word that INLINE_BYTES describes."""
INLINE_BYTES: Final = 8
"""Length of the longest key that is kept in its slot. The fourth word of its slot is the length plus one (0:
null); that of a longer key is its position in the arena plus ARENA_BASE.
"""
ARENA_BASE: Final = 16
LENGTH_BYTES: Final = 8
"""In the arena, the length of a key precedes its bytes."""
MIN_CAPACITY: Final = 1024
MAX_INITIAL: Final = 1 << 24
"""A set for more expected identities than this starts smaller and grows: the estimate may be wrong."""
LOAD_PERCENT: Final = 60
"""Load of a new table once it holds the expected identities."""
MAX_LOAD_PERCENT: Final = 75
"""Load at which a table grows. All rows of a column count, since the number of new ones is not known before."""


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
def _slot(value: np.uint64, size: np.uint64) -> np.uint64:
    """The first slot to probe, in a table of any size below 2**32: sizes of powers of two would waste up to half of the
    memory.
    """
    return ((value >> np.uint64(32)) * size) >> np.uint64(32)


@compiled
def _next(slot: np.uint64, size: np.uint64) -> np.uint64:
    slot += np.uint64(1)
    return slot if slot < size else np.uint64(0)


@compiled
def _same_tail(data: Bytes, at: int, length: int, arena: Bytes, where: int) -> bool:
    """Whether the long keys at `at` and, in the arena, at `where` are equal, given that their first eight bytes are."""
    if _word(arena, where, 8) != np.uint64(length):
        return False
    index = 8
    while index < length and data[at + index] == arena[where + 8 + index]:
        index += 1
    return index == length


@compiled
def _keep(data: Bytes, at: int, length: int, arena: Bytes, where: int) -> int:
    """Put a long key into the arena; the position after it."""
    for index in range(8):
        arena[where + index] = np.uint8(np.uint64(length) >> np.uint64(8 * index))
    for index in range(length):
        arena[where + 8 + index] = data[at + index]
    return where + 8 + length


@compiled
def insert(
    hashes: Int64s,
    key_offsets: Int32s,
    key_bitmap: Bytes,
    key_bit: int,
    key_data: Bytes,
    numbers: Int64s,
    slots: Uint64s,
    arena: Bytes,
    used_bytes: int,
    is_new: Bytes,
) -> tuple[int, int]:
    """Add identities to a table that has room for all of them; the number of new ones, and the arena bytes then used.

    `is_new` gets one byte per row.
    """
    size = np.uint64(slots.shape[0])
    added = 0
    # The hashes are computed before this loop, so that the cache misses of neighbouring rows overlap.
    for row in range(numbers.shape[0]):
        at = np.int64(key_offsets[row])
        length = key_length(key_offsets, key_bitmap, key_bit, row)
        value = np.uint64(hashes[row]) | np.uint64(1)  # 0 marks an empty slot
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
def rehash(source: Uint64s, target: Uint64s) -> None:
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
    """A set of (key, number) that only grows."""

    def __init__(self, expected: int = 0, *, seed: int) -> None:
        """A set with room for `expected` identities, but for MAX_INITIAL at most. `seed` keys the hash: a number that
        the producers of keys do not know.
        """
        self._seed = seed
        self._slots = _empty(min(max(expected, 0), MAX_INITIAL))
        self._arena = np.empty(0, np.uint8)
        self._arena_used = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """The memory of the set, in bytes."""
        return int(self._slots.nbytes + self._arena.nbytes)

    def add(self, keys: pa.Array, numbers: Int64s) -> Bools:
        """Add the identities of rows; for each row, whether its identity is new: neither in the set before this call
        nor in an earlier row. `keys` is a binary array, `numbers` int64 of the same length.
        """
        self._make_room(len(numbers))
        columns = keys_of(keys)
        content_bytes = int(columns.offsets[-1]) - int(columns.offsets[0])
        self._make_arena(content_bytes + len(numbers) * LENGTH_BYTES)
        numbers = steady(np.require(numbers, np.int64, ["C", "A"]))
        hashes = hashes_of(columns, numbers, self._seed)
        is_new = np.empty(len(numbers), np.uint8)
        added, self._arena_used = insert(hashes, *columns, numbers, self._slots, self._arena, self._arena_used, is_new)
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


def _empty(identities: int) -> Uint64s:
    return np.zeros((max(MIN_CAPACITY, identities * 100 // LOAD_PERCENT + 1), SLOT_WORDS), np.uint64)

"""The hash of window identities (key bytes or null, number), keyed by a seed.

Keys come from outside. With a hash that everyone can compute, a producer could choose keys that share a slot, and each
lookup would walk over all of them. A producer that does not know the seed cannot find such keys.

Invariants:
* The same identity and the same seed give the same hash, in every process and on every machine.
* A null key differs from an empty one. No identity's hashed bytes are a prefix of another's: the length comes first.
* The arrays that loops read are of the types that `columns.keys_of` gives, so that each loop is compiled once.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), with one round per word and three at the end.
"""

# The compiler tells numpy's scalars and Python's ints apart where that matters; mypy does where it does not.
# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Final

import numpy as np

from spe_adapter.codec.columns import BytesColumn, steady
from spe_adapter.codec.kernels import Bytes, Int32s, Int64s, compiled

_BITS_64: Final = 2**64 - 1
_BIT_63: Final = 2**63


def signed(seed: int) -> int:
    """The low 64 bits of a seed as a signed number: the type that compiled loops and a table's counters take."""
    return (seed & _BITS_64) - ((seed & _BIT_63) << 1)


def hashes_of(keys: BytesColumn, numbers: Int64s, seed: int) -> Int64s:
    """The hash of each identity. `keys` as `columns.keys_of` gives them, one number per key."""
    out = np.empty(len(numbers), np.int64)
    hash_rows(*keys, steady(numbers), signed(seed), out)
    return out


# Helpers that take arrays are one straight run: where they branch, the compiler counts references to the arrays at
# every call, which costs more than the work.


@compiled
def load(data: Bytes, at: int) -> int:
    """Eight bytes as a little-endian number; the compiler makes it one load."""
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    )


@compiled
def _rotate(value: int, bits: int) -> int:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@compiled
def _sip_round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@compiled
def key_length(offsets: Int32s, bitmap: Bytes, bit: int, row: int) -> int:
    """A key's length, -1 if it is null; `bitmap` is not empty."""
    position = np.uint64(bit + row)
    valid = np.int64((bitmap[position >> np.uint64(3)] >> np.uint8(position & np.uint64(7))) & np.uint8(1))
    return (np.int64(offsets[row + 1]) - np.int64(offsets[row])) * valid - (1 - valid)


@compiled
def hash_rows(offsets: Int32s, bitmap: Bytes, bit: int, data: Bytes, numbers: Int64s, seed: int, out: Int64s) -> None:
    """SipHash-1-3 of each identity (length of the key, number, key), keyed by `seed`, into `out`."""
    key0 = np.uint64(seed)
    key1 = _rotate(key0 * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(0xD6E8FEB86659FD93), 29)
    for row in range(numbers.shape[0]):
        v0 = key0 ^ np.uint64(0x736F6D6570736575)
        v1 = key1 ^ np.uint64(0x646F72616E646F6D)
        v2 = key0 ^ np.uint64(0x6C7967656E657261)
        v3 = key1 ^ np.uint64(0x7465646279746573)
        length = key_length(offsets, bitmap, bit, row)
        at = np.int64(offsets[row])
        # The length comes first, which makes null and all keys prefix-free.
        word = np.uint64(length)
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
        word = np.uint64(numbers[row])
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
        left = length
        while left > 0:
            word = np.uint64(0)
            if left >= 8:
                word = load(data, np.uint64(at))
            elif length >= 8:
                # The last bytes, with those before them, which are shifted out.
                word = load(data, np.uint64(at + left - 8)) >> np.uint64(8 * (8 - left))
            else:
                for byte in range(left):
                    word |= np.uint64(data[np.uint64(at + byte)]) << np.uint64(8 * byte)
            v3 ^= word
            v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
            v0 ^= word
            at += 8
            left -= 8
        v2 ^= np.uint64(0xFF)
        for _ in range(3):
            v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        out[row] = np.int64(v0 ^ v1 ^ v2 ^ v3)

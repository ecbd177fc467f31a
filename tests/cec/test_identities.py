"""The compiled set of identities against Python's own set."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.cec.identities import Identities, _hash

KEYS = st.none() | st.binary(max_size=20) | st.sampled_from([bytes(length) for length in range(20)])
ROWS = st.lists(st.tuples(KEYS, st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])), max_size=60)


def expected(rows: list[tuple[bytes | None, int]], seen: set[tuple[bytes | None, int]]) -> list[bool]:
    """Which rows are new, one after the other."""
    new = []
    for row in rows:
        new.append(row not in seen)
        seen.add(row)
    return new


@given(st.lists(ROWS, max_size=6), st.integers(-1, 5000), st.integers(0, 3))
def test_it_is_a_set(columns: list[list[tuple[bytes | None, int]]], estimate: int, skipped: int) -> None:
    """New is what was not there before, neither in earlier columns nor further up; slices work as whole columns do."""
    identities, seen = Identities(estimate), set[tuple[bytes | None, int]]()
    for rows in columns:
        keys = pa.array([key for key, _ in rows], pa.binary())[skipped:]
        numbers = np.array([number for _, number in rows], np.int64)[skipped:]
        assert identities.add(keys, numbers).tolist() == expected(rows[skipped:], seen)
        assert len(identities) == len(seen)


@pytest.mark.parametrize("width", [1, 8, 9, 40])
def test_it_grows(width: int) -> None:
    """A hundred thousand identities, in a set that expected none."""
    identities = Identities()
    for start in range(0, 100_000, 7_000):
        keys = pa.array([index.to_bytes(width, "big") if width > 1 else b"k" for index in range(start, start + 8_000)])
        numbers = np.arange(start, start + 8_000) if width == 1 else np.zeros(8_000, np.int64)
        new = identities.add(keys, numbers)
        assert new.tolist() == [start == 0 or row >= 1_000 for row in range(8_000)]
    assert len(identities) == 106_000
    assert identities.size_bytes < 40_000_000


def test_keys_that_begin_alike_differ() -> None:
    """Null, empty, zeros of every length, and long keys that differ in their last byte only."""
    keys = [None, *(bytes(length) for length in range(30)), bytes(29) + b"\1", bytes(28) + b"\1", b"\0" * 15 + b"\1"]
    identities = Identities()
    column = pa.array(keys, pa.binary())
    assert identities.add(column, np.zeros(len(keys), np.int64)).all()
    assert not identities.add(column, np.zeros(len(keys), np.int64)).any()
    assert identities.add(column, np.ones(len(keys), np.int64)).all()


def rotated(state: int) -> int:
    """A step of the set's hash, behind the word."""
    return ((state << 31 | state >> 33) & MASK) * MIX & MASK


MASK = 2**64 - 1
SPREAD, MIX = 0x87C37B91114253D5, 0x4CF5AD432745937F


def colliding_keys() -> tuple[bytes, bytes]:
    """Two keys of 24 bytes that begin alike and have the same hash for number 0: the hash can be solved for a word."""
    words = [b"begin it", b"one way.", b"the end."]
    start = (24 + 2) * 0xC2B2AE3D27D4EB4F & MASK
    first, second, third = (int.from_bytes(word, "little") for word in words)
    begun = rotated(start ^ first * SPREAD & MASK)
    other = int.from_bytes(b"another.", "little")
    difference = rotated(begun ^ second * SPREAD & MASK) ^ rotated(begun ^ other * SPREAD & MASK)
    last = (difference ^ third * SPREAD & MASK) * pow(SPREAD, -1, 2**64) & MASK
    return b"".join(words), words[0] + b"another." + last.to_bytes(8, "little")


def test_keys_with_one_hash_are_still_two() -> None:
    """Hashes say where to look, bytes decide."""
    keys = colliding_keys()
    hashes = {int(_hash(np.frombuffer(key, np.uint8), 0, 24, 0)) for key in keys}
    assert len(set(keys)) == 2
    assert len(hashes) == 1
    identities = Identities()
    assert identities.add(pa.array([*keys, *keys], pa.binary()), np.zeros(4, np.int64)).tolist() == [1, 1, 0, 0]
    assert len(identities) == 2

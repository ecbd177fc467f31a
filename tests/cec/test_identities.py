"""The compiled set of identities against Python's own set."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.cec import identities as module
from spe_adapter.cec.identities import Identities
from spe_adapter.codec.columns import keys_of
from spe_adapter.codec.identity_hash import hashes_of

KEYS = st.none() | st.binary(max_size=20) | st.sampled_from([bytes(length) for length in range(20)])
ROWS = st.lists(st.tuples(KEYS, st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])), max_size=60)


def expected(rows: list[tuple[bytes | None, int]], seen: set[tuple[bytes | None, int]]) -> list[bool]:
    """Which rows are new, one after the other."""
    new = []
    for row in rows:
        new.append(row not in seen)
        seen.add(row)
    return new


@given(st.lists(ROWS, max_size=6), st.integers(-1, 5000), st.integers(0, 3), st.integers(0, 2**64 - 1))
def test_it_is_a_set(columns: list[list[tuple[bytes | None, int]]], estimate: int, skipped: int, seed: int) -> None:
    """New is what was not there before, neither in earlier columns nor further up, whatever the seed; slices work as
    whole columns do.
    """
    identities, seen = Identities(estimate, seed=seed), set[tuple[bytes | None, int]]()
    for rows in columns:
        keys = pa.array([key for key, _ in rows], pa.binary())[skipped:]
        numbers = np.array([number for _, number in rows], np.int64)[skipped:]
        assert identities.add(keys, numbers).tolist() == expected(rows[skipped:], seen)
        assert len(identities) == len(seen)


@pytest.mark.parametrize("width", [1, 8, 9, 40])
def test_it_grows(width: int) -> None:
    """A hundred thousand identities, in a set that expected none."""
    identities = Identities(seed=1)
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
    identities = Identities(seed=1)
    column = pa.array(keys, pa.binary())
    assert identities.add(column, np.zeros(len(keys), np.int64)).all()
    assert not identities.add(column, np.zeros(len(keys), np.int64)).any()
    assert identities.add(column, np.ones(len(keys), np.int64)).all()


def test_keys_with_one_hash_are_still_two() -> None:
    """Hashes choose the slot, bytes decide: short keys, long keys and a null, all under the same hash."""
    keys = [b"", b"a", b"b", None, b"begin it one way.", b"begin it another."]
    columns = keys_of(pa.array([*keys, *keys], pa.binary()))
    numbers = np.zeros(2 * len(keys), np.int64)
    numbers.flags.writeable = False
    slots, arena = np.zeros((64, module.SLOT_WORDS), np.uint64), np.empty(1024, np.uint8)
    is_new = np.empty(len(numbers), np.uint8)
    added, _ = module.insert(np.full(len(numbers), 7), *columns, numbers, slots, arena, 0, is_new)
    assert added == len(keys)
    assert is_new.tolist() == [1] * len(keys) + [0] * len(keys)


def probes(identities: Identities) -> int:
    """The slots that a lookup of each identity reads, added up."""
    slots = identities._slots
    taken = np.flatnonzero(slots[:, 0])
    home = ((slots[taken, 0] >> np.uint64(32)) * np.uint64(len(slots)) >> np.uint64(32)).astype(np.int64)
    return int(((taken - home) % len(slots) + 1).sum())


@pytest.mark.parametrize("width", [8, 20])
def test_keys_that_collide_under_one_seed_are_spread_under_another(width: int) -> None:
    """Keys that were chosen to share a slot cost as many probes as any others: who chooses them does not know the
    seed. Under the seed that they were chosen for they cost a hundred times as many.
    """
    keys = pa.array([index.to_bytes(width, "big") for index in range(300_000)], pa.binary())
    hashes = hashes_of(keys_of(keys), np.zeros(len(keys), np.int64), 1).view(np.uint64)
    chosen = keys.take(pa.array(np.argsort(hashes)[:3_000]))  # 3,000 keys in a hundredth of the table
    counts = []
    for seed in (1, 2):
        identities = Identities(len(chosen), seed=seed)
        assert identities.add(chosen, np.zeros(len(chosen), np.int64)).all()
        counts.append(probes(identities))
    guessed, spread = counts
    assert spread < 4 * len(chosen)
    assert guessed > 100 * spread

"""The compiled set of identities against Python's own set."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.cec.identities import Identities

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

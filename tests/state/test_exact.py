"""Values of a user's against declared types: what is taken is what was given, what would lose something is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.state import exact
from spe_adapter.state.errors import StateValueRefused
from spe_adapter.state.table import Table

INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
WHAT = "state column 'n'"


@given(
    st.sampled_from([*INTEGERS, *FLOATS, pa.bool_()]),
    st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda values: np.array(values, np.int64)),
        st.lists(st.integers(0, 2**64 - 1)).map(lambda values: np.array(values, np.uint64)),
        st.lists(st.integers(-3, 3)).map(lambda values: np.array(values, np.int8)),
        st.lists(st.floats() | st.integers(-300, 300).map(float)).map(lambda values: np.array(values, np.float64)),
        st.lists(st.booleans()).map(lambda values: np.array(values, np.bool_)),
    ),
)
def test_numbers_are_the_same_or_refused(kind: pa.DataType, values: np.ndarray) -> None:
    """Into integers and booleans a number comes as it is or not at all; a float is rounded, and never to infinity. The
    Arrow form is treated alike.
    """
    dtype: Any = np.dtype(kind.to_pandas_dtype())
    if not all(_fits(dtype, value) for value in values.tolist()):
        with pytest.raises(StateValueRefused, match=f"^{WHAT} is {kind} and cannot hold "):
            exact.fixed(WHAT, kind, values, None, len(values))
        with pytest.raises(StateValueRefused, match=f"^{WHAT} is {kind} and cannot hold "):
            exact.column(WHAT, kind, pa.array(values))
        return
    taken, _ = exact.fixed(WHAT, kind, values, None, len(values))
    assert taken.dtype == dtype
    np.testing.assert_array_equal(taken, exact.column(WHAT, kind, pa.array(values)).to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f" and dtype.kind == "f":
        np.testing.assert_array_equal(taken, values.astype(dtype))
    else:
        assert [int(value) for value in taken.tolist()] == [int(value) for value in values.tolist()]


def _fits(dtype: Any, value: Any) -> bool:
    """Whether a number has its exact place in a type (a float in a float: a finite one), by Python's own arithmetic."""
    if isinstance(value, float) and dtype.kind == "f":
        with np.errstate(over="ignore"):
            return not np.isfinite(value) or bool(np.isfinite(dtype.type(value)))
    if isinstance(value, float) and (not np.isfinite(value) or value != int(value) or abs(value) > 2**53):
        return False
    if dtype.kind == "b":
        return int(value) in (0, 1)
    if dtype.kind == "f":
        return abs(int(value)) <= 2 ** (np.finfo(dtype).nmant + 1)
    return bool(np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max)


@pytest.mark.parametrize(
    ("kind", "given", "taken"),
    [
        (pa.timestamp("us", "UTC"), np.array(["2026-01-01"], "M8[D]"), 1767225600_000000),
        (pa.timestamp("s"), np.array(["2026-01-01T00:00:00.5"], "M8[ms]"), None),
        (pa.timestamp("ns"), np.array(["9999-01-01"], "M8[s]"), None),
        (pa.timestamp("us"), np.array(["NaT"], "M8[us]"), None),
        (pa.timestamp("us"), np.array([5], "m8[us]"), None),
        (pa.date32(), np.array(["1970-01-03"], "M8[us]"), 2),
        (pa.date32(), np.array(["1970-01-03T01"], "M8[us]"), None),
        (pa.duration("s"), np.array([2], "m8[m]"), 120),
        (pa.int64(), np.array(["2026-01-01"], "M8[us]"), None),
        (pa.timestamp("us"), np.array([7], np.int32), 7),
        (pa.timestamp("us"), np.array([7.5]), None),
        (pa.int64(), np.array(["7"]), None),
        (pa.int64(), np.array([None]), None),
        (pa.int64(), np.array([[7]]), None),
        (pa.int64(), [7], 7),
        (pa.int64(), "7", None),
        (pa.int64(), {0: 7}, None),
        (pa.int64(), 7, None),
    ],
)
def test_moments_and_what_is_no_number(kind: pa.DataType, given: Any, taken: int | None) -> None:
    """datetime64 is converted into the column's unit; texts, objects, other shapes and other units are refused."""
    if taken is None:
        with pytest.raises(StateValueRefused, match=WHAT):
            exact.fixed(WHAT, kind, given, None, 1)
    else:
        assert exact.fixed(WHAT, kind, given, None, 1)[0].tolist() == [taken]


@pytest.mark.parametrize(
    ("kind", "given", "fits"),
    [
        (pa.string(), pa.array(["a", None], pa.large_string()), True),
        (pa.string(), pa.array([b"\xff"]), False),
        (pa.int64(), pa.array([1.0, None]), True),
        (pa.int64(), pa.nulls(2), True),
        (pa.timestamp("ms"), pa.array([1]).view(pa.timestamp("us")), False),
        (pa.timestamp("us"), pa.array([1]).view(pa.timestamp("ms")), True),
        (pa.date32(), pa.array([86_400]).view(pa.timestamp("s")), True),
        (pa.date32(), pa.array([86_401]).view(pa.timestamp("s")), False),
        (pa.int64(), pa.array([1]).view(pa.timestamp("s")), False),
        (pa.int64(), [1], False),
        (pa.string(), np.array(["a"]), False),
    ],
)
def test_columns_of_other_types(kind: pa.DataType, given: Any, fits: bool) -> None:
    """Arrow's casts, as far as nothing is lost."""
    if fits:
        assert exact.column(WHAT, kind, pa.chunked_array([given])) == given.cast(kind)
    else:
        with pytest.raises(StateValueRefused, match=WHAT):
            exact.column(WHAT, kind, given)


def test_what_stands_at_a_null_does_not_count() -> None:
    """A null's value may be anything, and reads as 0."""
    values, nulls = exact.fixed(WHAT, pa.int8(), np.array([np.nan, 3.0]), np.array([True, False]), 2)
    assert (values.tolist(), None if nulls is None else nulls.tolist()) == ([0, 3], [True, False])


def test_a_table_casts_nothing_by_itself() -> None:
    """Whoever writes into a table past the operators' State is held to the same."""
    table = Table.in_memory(pa.schema([("n", pa.int16())]))
    rows, _ = table.ensure(pa.array([b"a", b"b"]), np.zeros(2, np.int64))
    for values in (np.array([1, 70_000]), np.array([1.5, 2]), 70_000):
        with pytest.raises(StateValueRefused, match="state column 'n' is int16"):
            table.set("n", rows, values)
    with pytest.raises(StateValueRefused, match="state column 'n' is int16"):
        table.set_arrow("n", rows, pa.array([1, 70_000]))
    table.set("n", rows, np.array([1.0, 2.0]))
    assert table.get("n", rows).tolist() == [1, 2]

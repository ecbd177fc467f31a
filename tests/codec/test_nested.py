"""Lists and structs as bytes: round trips, canonical, and damage is found."""

from __future__ import annotations

import decimal
import string
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptBatch
from spe_adapter.codec.nested import decode, encode, encoded_bytes, is_nested

_Typed = tuple[pa.DataType, st.SearchStrategy[Any]]

LEAVES: list[_Typed] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates()),
    (pa.decimal128(20, 3), st.integers(-(10**19), 10**19).map(lambda n: decimal.Decimal(n).scaleb(-3))),
]


@st.composite
def typed(draw: st.DrawFn, depth: int = 3) -> _Typed:
    """A type that can be nested further, with values of it."""
    which = draw(st.integers(0, 2)) if depth else 0
    if which == 0:
        return draw(st.sampled_from(LEAVES))
    if which == 1:
        kind, values = draw(typed(depth - 1))
        return pa.list_(kind), st.lists(st.none() | values, max_size=4)
    fields = draw(st.lists(typed(depth - 1), min_size=1, max_size=3))
    kind = pa.struct([(string.ascii_letters[at], inner) for at, (inner, _) in enumerate(fields)])
    row = {string.ascii_letters[at]: st.none() | values for at, (_, values) in enumerate(fields)}
    return kind, st.fixed_dictionaries(row)


NESTED = typed().filter(lambda made: is_nested(made[0]))


@given(NESTED, st.data())
@settings(max_examples=200, deadline=None)
def test_values_come_back(made: _Typed, data: st.DataObject) -> None:
    """Any nesting, nulls on every level, slices, empty lists."""
    kind, values = made
    rows = data.draw(st.lists(st.none() | values, max_size=6))
    column = pa.array(rows, kind).slice(data.draw(st.integers(0, len(rows))))
    encoded = encode(column)
    back = decode(kind, encoded)
    back.validate(full=True)
    assert back.equals(column)
    assert back.type == kind
    assert encoded_bytes(column) == sum(len(value or b"") for value in encoded.to_pylist())


@given(NESTED, st.data())
@settings(max_examples=100, deadline=None)
def test_equal_values_are_equal_bytes(made: _Typed, data: st.DataObject) -> None:
    """Whatever stands beside them, and whatever Arrow keeps under nulls."""
    kind, values = made
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=6))
    together = encode(pa.array(rows, kind)).to_pylist()
    assert together == [encode(pa.array([row], kind))[0].as_py() for row in rows]
    taken = pa.array([*rows, *rows], kind).take(pa.array(range(len(rows), 2 * len(rows))))
    assert encode(taken).to_pylist() == together


def test_what_arrow_keeps_under_nulls_is_not_written() -> None:
    """A null list over elements, a null struct over values, a null number that is not zero."""
    numbers = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.arange(3).tobytes())])
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32).tobytes())
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [pa.py_buffer(b"\x01"), offsets], children=[numbers])
    kind = pa.struct([("l", lists.type)])
    rows = pa.StructArray.from_arrays([lists], fields=list(kind))
    assert encode(rows).to_pylist() == encode(pa.array([{"l": [0]}, {"l": None}], kind)).to_pylist()


@given(NESTED, st.data())
@settings(max_examples=100, deadline=None)
def test_damage_is_found_or_harmless(made: _Typed, data: st.DataObject) -> None:
    """Bytes cut short or left over are refused; changed ones never lead outside."""
    kind, values = made
    whole = encode(pa.array([data.draw(values)], kind))[0].as_py()
    with pytest.raises(CorruptBatch):
        decode(kind, pa.array([whole + b"\0"]))
    if whole:
        with pytest.raises(CorruptBatch):
            decode(kind, pa.array([whole[:-1]]))
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
        try:
            decode(kind, pa.array([changed]))
        except CorruptBatch:
            return


def test_types_that_cannot_be_written_are_known() -> None:
    """Maps, wide strings and decimals of 256 bits, at any depth."""
    assert is_nested(pa.list_(pa.struct([("a", pa.list_(pa.string()))])))
    for kind in (pa.map_(pa.string(), pa.int8()), pa.large_string(), pa.decimal256(40, 2), pa.null()):
        assert not is_nested(kind)
        assert not is_nested(pa.list_(kind))
        assert not is_nested(pa.struct([("a", pa.int8()), ("b", kind)]))

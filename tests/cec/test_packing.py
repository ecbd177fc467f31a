"""Packed rows: equal when unpacked, much shorter where rows are alike, refused where bytes are not what they claim."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptBatch, UnknownFormatVersion
from logstore.format.control import TOMBSTONES_TYPE, encode_control_record
from spe_adapter.cec.control import (
    MIN_PACKED_ROWS,
    Footprints,
    Tombstones,
    decode,
    encode_footprints,
    encode_tombstones,
)
from spe_adapter.cec.packing import MAX_UNPACKED_BYTES, can_pack, pack, unpack

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 65_535),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False) | st.just(math.inf),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.integers(-(2**40), 2**40),
    pa.duration("ms"): st.integers(-(2**40), 2**40),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.decimal128(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda unscaled: Decimal(unscaled).scaleb(-2)),
    pa.list_(pa.string()): st.lists(st.none() | st.text(max_size=3), max_size=3),
    pa.struct([("a", pa.list_(pa.int8())), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | st.lists(st.integers(-5, 5), max_size=3), "b": st.none() | st.text(max_size=3)}
    ),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A few columns of any kind, with nulls, perhaps a slice."""
    count = draw(st.integers(1, 40))
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    columns = [
        pa.array(draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), kind) for kind in kinds
    ]
    rows = pa.RecordBatch.from_arrays(columns, names=[f"c{index}" for index in range(len(kinds))])
    first = draw(st.integers(0, count - 1))
    return rows.slice(first, draw(st.integers(1, count - first)))


@settings(deadline=None)
@given(batches())
def test_what_is_packed_comes_back(rows: pa.RecordBatch) -> None:
    """Every kind of state column, nulls, slices; and a second time the same bytes."""
    packed, size_bytes = pack(rows)
    assert unpack(packed, rows.num_rows, size_bytes).equals(rows)
    assert pack(rows) == (packed, size_bytes)


@settings(deadline=None)
@given(batches(), st.data())
def test_damage_is_named(rows: pa.RecordBatch, data: st.DataObject) -> None:
    """Another size, another number of rows, a cut: CorruptBatch, never another error. A changed byte is the CRC's part,
    but must not be worse.
    """
    packed, size_bytes = pack(rows)
    for wrong in (size_bytes - 1, size_bytes + 1, -1, MAX_UNPACKED_BYTES + 1):
        with pytest.raises(CorruptBatch):
            unpack(packed, rows.num_rows, wrong)
    with pytest.raises(CorruptBatch):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))], rows.num_rows, size_bytes)
    broken = bytearray(packed)
    broken[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged, count in ((bytes(broken), rows.num_rows), (packed, rows.num_rows + 9)):
        try:
            unpack(damaged, count, size_bytes)
        except CorruptBatch:
            continue


def test_rows_that_could_not_be_unpacked_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """State that is large and all alike is small when it is packed: what is written can be read all the same."""
    for module in ("control", "packing"):
        monkeypatch.setattr(f"spe_adapter.cec.{module}.MAX_UNPACKED_BYTES", 1024 * 1024, raising=False)
    count = MIN_PACKED_ROWS
    columns = {
        "key": pa.array([b"%d" % number for number in range(count)], pa.binary()),
        "number": pa.array(range(count), pa.int64()),
        "expires": pa.array([0] * count, pa.int64()),
        "s_text": pa.array([b" " * 20_000] * count, pa.binary()),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    found = [decode(batch) for batch in encode_footprints("q", 1, rows, np.ones(count, np.bool_), 0)]
    read = [one.rows for one in found if isinstance(one, Footprints)]
    assert pa.Table.from_batches(read).equals(pa.Table.from_batches([rows]))


def averages(count: int) -> pa.RecordBatch:
    """Footprints of windowed averages."""
    dice = np.random.default_rng(3)
    return pa.record_batch(
        {
            "key": pa.array([b"%d" % key for key in dice.permutation(2 * count)[:count]], pa.binary()),
            "number": pa.array(np.full(count, 1_692_000_000_000_000)),
            "expires": pa.array(np.full(count, 1_692_003_600_000)),
            "s_average.sum": pa.array(dice.integers(1, 8_000, count).astype(np.float64)),
            "s_average.n": pa.array(np.full(count, 8)),
        }
    )


def test_state_takes_a_sixth_of_its_bytes_or_less() -> None:
    """What a stateful query writes in each epoch; and it is read back, footprints as well as tombstones."""
    rows = averages(5_000)
    opened = np.arange(5_000) % 2 == 0
    written = list(encode_footprints("q", 1, rows, opened, 1))
    assert sum(map(len, written)) < rows.nbytes / 6
    back = [decode(batch) for batch in written]
    assert all(isinstance(record, Footprints) for record in back)
    assert pa.concat_batches([record.rows for record in back if isinstance(record, Footprints)]).equals(rows)
    gone = rows.select(["key", "number"])
    (tombstones,) = encode_tombstones("q", 1, gone, 1)
    assert len(tombstones) < gone.nbytes / 4
    record = decode(tombstones)
    assert isinstance(record, Tombstones)
    assert record.rows.equals(gone)


def test_a_form_of_rows_from_later_is_refused_by_its_number() -> None:
    """A log of a newer version is not damage."""
    fields = {"query": "q", "epoch": 1, "n": 1, "rows": 3, "size": 10}
    with pytest.raises(UnknownFormatVersion, match="form 3"):
        decode(encode_control_record(TOMBSTONES_TYPE, fields, b"whatever", 1))


def test_kinds_of_columns_that_are_unknown_stay_as_arrow_has_them() -> None:
    """Maps, for one."""
    assert not can_pack(pa.schema([("x", pa.map_(pa.string(), pa.int64()))]))
    assert can_pack(averages(1).schema)

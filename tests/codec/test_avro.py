"""Results as Avro: what another implementation reads and writes is what we mean, and damage is never a wrong row."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptBatch
from spe_adapter.codec.avro import MARKER, avro_schema, canonical, decode, encode, fingerprint, fingerprints
from spe_adapter.errors import SchemaRefused

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("small", pa.int8()),
        ("n", pa.int64()),
        ("mean", pa.float64()),
        ("part", pa.float32()),
        ("raw", pa.binary()),
        ("last", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("ms")),
        ("price", pa.decimal128(20, 3)),
        ("window", pa.struct([("start", pa.timestamp("us", "UTC")), ("names", pa.list_(pa.string()))])),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int32())]))),
        ("nothing", pa.null()),
    ]
)
HEAD_BYTES = len(MARKER) + 8

moments = st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001 - zones are set below
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.text(max_size=200),
            "small": st.none() | st.integers(-128, 127),
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "mean": st.none() | st.floats(allow_nan=False),
            "part": st.none() | st.floats(width=32, allow_nan=False),
            "raw": st.none() | st.binary(max_size=200),
            "last": st.none() | st.booleans(),
            "day": st.none() | st.dates(date(1800, 1, 1), date(2200, 1, 1)),
            "at": st.none() | moments.map(lambda moment: moment.replace(tzinfo=UTC)),
            "local": st.none() | moments.map(lambda moment: moment.replace(microsecond=1000)),
            "price": st.none() | st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-3)),
            "window": st.none()
            | st.fixed_dictionaries(
                {
                    "start": st.none() | moments.map(lambda moment: moment.replace(tzinfo=UTC)),
                    "names": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4),
                }
            ),
            "items": st.none()
            | st.lists(
                st.none()
                | st.fixed_dictionaries({"sku": st.none() | st.text(max_size=3), "n": st.none() | st.integers(-9, 9)}),
                max_size=70,
            ),
            "nothing": st.none(),
        }
    ),
    max_size=8,
)


def as_theirs(described: dict[str, Any]) -> Any:
    """The schema as the other implementation has it."""
    return fastavro.parse_schema(described)


@settings(deadline=None)
@given(ROWS, st.integers(0, 3))
def test_another_implementation_reads_the_same(rows: list[dict[str, Any]], cut: int) -> None:
    """Any rows, also of a batch that begins within another, are read by fastavro as they are, and by ourselves."""
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA).slice(cut)
    described = avro_schema(SCHEMA)
    theirs = as_theirs(described)
    values = encode(batch)
    assert len(values) == batch.num_rows
    for value, row in zip(values.to_pylist(), rows[cut:], strict=True):
        file = io.BytesIO(value[HEAD_BYTES:])
        assert fastavro.schemaless_reader(file, theirs, None) == row
        assert not file.read()
    assert decode(values, described).to_pylist() == rows[cut:]


@settings(deadline=None)
@given(ROWS)
def test_what_another_implementation_writes_is_read(rows: list[dict[str, Any]]) -> None:
    """Decimals of any width, and whatever else may be written in more than one way."""
    described = avro_schema(SCHEMA)
    theirs, values = as_theirs(described), []
    for row in rows:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, theirs, row)
        values.append(MARKER + fingerprint(described) + file.getvalue())
    assert decode(pa.array(values, pa.binary()), described).to_pylist() == rows


def test_the_fingerprint_is_avros() -> None:
    """CRC-64-AVRO of the canonical form, little-endian, as the single-object encoding has it."""
    described = avro_schema(SCHEMA)
    form = fastavro.schema.to_parsing_canonical_form(described)
    assert canonical(described) == form
    assert fingerprint(described).hex() == fastavro.schema.fingerprint(form, "CRC-64-AVRO")
    values = encode(pa.RecordBatch.from_pylist([{"n": 1}], schema=SCHEMA))
    found = fingerprints(pa.concat_arrays([values, pa.array([b"{}", b"", MARKER, None], pa.binary())]))
    assert found.to_pylist() == [fingerprint(described), None, None, None, None]


def test_many_rows_are_cut_and_joined() -> None:
    """More rows than are encoded at a time."""
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(150_000), pa.int64())})
    values = encode(batch)
    assert decode(values, avro_schema(batch.schema)).equals(batch)


def test_damage_is_never_a_wrong_row() -> None:
    """Each prefix, and bytes behind the end, are refused; a flipped bit is refused or is a value of the right type."""
    row = {"key": "k", "n": 300, "price": Decimal("1.250"), "items": [{"sku": "s", "n": 1}], "window": {"names": ["a"]}}
    described = avro_schema(SCHEMA)
    (value,) = encode(pa.RecordBatch.from_pylist([row], schema=SCHEMA)).to_pylist()
    for end in range(HEAD_BYTES, len(value)):
        with pytest.raises(CorruptBatch):
            decode(pa.array([value[:end]], pa.binary()), described)
    with pytest.raises(CorruptBatch, match="a record of"):
        decode(pa.array([value + b"\0"], pa.binary()), described)
    with pytest.raises(CorruptBatch, match="without a value"):
        decode(pa.array([None], pa.binary()), described)
    for bit in range(8 * HEAD_BYTES, 8 * len(value)):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            decode(pa.array([bytes(damaged)], pa.binary()), described).validate(full=True)
        except CorruptBatch:
            continue


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (pa.field("u", pa.uint64()), "'u' is uint64"),
        (pa.field("t", pa.timestamp("ns")), "'t' is timestamp"),
        (pa.field("a b", pa.int64()), "'a b' cannot be a field"),
        (pa.field("l", pa.list_(pa.null())), "'l' is list"),
        (pa.field("m", pa.map_(pa.string(), pa.int64())), "'m' is map"),
    ],
)
def test_what_avro_cannot_have_is_refused(field: pa.Field, said: str) -> None:
    """By column, with the types that are allowed."""
    with pytest.raises(SchemaRefused, match=said):
        avro_schema(pa.schema([field]))

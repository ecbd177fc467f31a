"""Keys and JSON values: round trips, and equal to what plain Python makes of the same rows."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecord
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.jsontext import json_objects
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import Output, output_schema, to_records
from tests.support.examples import examples

UTC = dt.UTC
FIRST, LAST = dt.datetime(1, 1, 2), dt.datetime(9998, 12, 30)  # noqa: DTZ001  Hypothesis adds the zone
MOMENTS = st.datetimes(FIRST, LAST, timezones=st.just(UTC))
KEY_TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.text(max_size=8)),
    "wide": (pa.large_string(), st.text(max_size=8)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates()),
    "moment": (pa.timestamp("us", "UTC"), MOMENTS),
    "local": (pa.timestamp("us", "Europe/Berlin"), MOMENTS),
    "bare": (
        pa.timestamp("ms"),
        MOMENTS.map(lambda moment: moment.replace(tzinfo=None, microsecond=1000 * (moment.microsecond // 1000))),
    ),
    "second": (pa.timestamp("s", "UTC"), MOMENTS.map(lambda moment: moment.replace(microsecond=0))),
}


@given(st.data())
@settings(max_examples=examples(50, long=150))
def test_keys_come_back_as_they_were(data: st.DataObject) -> None:
    """Any columns, nulls, slices: decoded keys are the columns, and keys are equal exactly where the rows are."""
    names = data.draw(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=4, unique=True))
    schema = pa.schema([(name, KEY_TYPES[name][0]) for name in names])
    rows = data.draw(st.lists(st.tuples(*(st.none() | KEY_TYPES[name][1] for name in names)), max_size=8))
    columns = [pa.array(list(values), schema.field(at).type) for at, values in enumerate(zip(*rows, strict=True))]
    if not rows:
        columns = [pa.array([], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema).slice(data.draw(st.integers(0, 1)))
    codec = KeyCodec(schema, names)
    keys = codec.encode(batch)
    keys.validate(full=True)
    assert keys.type == pa.binary()
    assert all(one.equals(two) for one, two in zip(codec.decode(keys), batch.columns, strict=True))
    texts = keys.to_pylist()
    same = [repr(row) for row in batch.to_pylist()]
    assert len(set(texts)) == len(set(same))
    if len(names) > 1:
        assert None not in texts


def test_keys_are_plain_to_read() -> None:
    """What another producer or consumer of the topic sees."""
    moment = dt.datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)
    cases: list[tuple[pa.DataType, Any, bytes | None]] = [
        (pa.string(), "ü", "ü".encode()),
        (pa.binary(), b"\xff\x00", b"\xff\x00"),
        (pa.int32(), -17, b"-17"),
        (pa.bool_(), True, b"true"),
        (pa.date32(), dt.date(2026, 3, 1), b"2026-03-01"),
        (pa.timestamp("us", "Europe/Berlin"), moment, b"2026-03-01T12:00:00.000001Z"),
        (pa.string(), None, None),
        (pa.int32(), None, None),
    ]
    for kind, value, wanted in cases:
        schema = pa.schema([("k", kind)])
        batch = pa.RecordBatch.from_arrays([pa.array([value], kind)], schema=schema)
        assert KeyCodec(schema, ["k"]).encode(batch).to_pylist() == [wanted]
    schema = pa.schema([("shop", pa.string()), ("n", pa.int64()), ("day", pa.date32())])
    batch = pa.RecordBatch.from_pylist([{"shop": 'a"b', "n": 3}, {"day": dt.date(2026, 3, 1)}, {}], schema=schema)
    assert KeyCodec(schema, ["shop", "n", "day"]).encode(batch).to_pylist() == [
        b'{"shop":"a\\"b","n":3}',
        b'{"day":"2026-03-01"}',
        b"{}",
    ]


def test_columns_that_cannot_be_keys_are_refused() -> None:
    """By name, with what a key may be."""
    schema = pa.schema([("x", pa.float64()), ("ns", pa.timestamp("ns")), ("raw", pa.binary()), ("k", pa.string())])
    for names, message in (
        (["x"], "key column 'x' is double; a key is string"),
        (["ns"], "key column 'ns' is timestamp"),
        (["k", "raw"], "key column 'raw' is binary"),
        (["gone"], "key column 'gone' is missing; there is x, ns"),
        (["k", "k"], "named twice"),
        ([], "no key column"),
    ):
        with pytest.raises(SchemaRefused, match=message):
            KeyCodec(schema, names)


EXACT = decimal.Context(prec=60)
DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda unscaled: decimal.Decimal(unscaled).scaleb(-18, EXACT))
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.text(max_size=12)),
    "wide": (pa.large_string(), st.text(st.characters(max_codepoint=40), max_size=12)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "byte": (pa.uint8(), st.integers(0, 255)),
    "flag": (pa.bool_(), st.booleans()),
    "real": (pa.float64(), st.floats()),
    "single": (pa.float32(), st.floats(width=32)),
    "bytes": (pa.binary(), st.binary(max_size=7)),
    "day": (pa.date32(), st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))),
    "moment": (pa.timestamp("us", "UTC"), MOMENTS),
    "bare": (pa.timestamp("us"), st.datetimes(FIRST, LAST)),
    "inner": (
        pa.struct([("a", pa.string()), ("b", pa.float64())]),
        st.fixed_dictionaries({"a": st.none() | st.text(max_size=3), "b": st.none() | st.floats()}),
    ),
    "amount": (pa.decimal128(38, 18), DECIMALS),
    "texts": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=4), max_size=4)),
    "pairs": (
        pa.list_(pa.struct([("a", pa.string()), ("l", pa.list_(pa.decimal128(38, 18)))])),
        st.lists(
            st.none()
            | st.fixed_dictionaries(
                {"a": st.none() | st.text(max_size=3), "l": st.none() | st.lists(st.none() | DECIMALS, max_size=3)}
            ),
            max_size=3,
        ),
    ),
    'odd "näme"': (pa.int8(), st.integers(-128, 127)),
    "nothing": (pa.null(), st.none()),
}


def naive(value: Any) -> Any:
    """What a JSON reader finds where this value was written."""
    if isinstance(value, dict):
        return {name: naive(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [naive(inner) for inner in value]
    if isinstance(value, decimal.Decimal):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        text = value.strftime("%Y").zfill(4) + value.strftime("-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}"
        return text + ("Z" if value.tzinfo is not None else "")
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


def like(found: Any, wanted: Any) -> Any:
    """What a JSON reader found, with its numbers as floats where floats are wanted."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return {name: like(value, wanted.get(name)) for name, value in found.items()}
    if isinstance(found, decimal.Decimal) and isinstance(wanted, float):
        return float(found)
    return found


@given(st.data())
@settings(max_examples=examples(70, long=200))
def test_json_says_what_the_row_says(data: st.DataObject) -> None:
    """Any types, nulls, slices: a JSON reader gets the row back, without its nulls."""
    names = data.draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=5, unique=True))
    rows = data.draw(st.lists(st.tuples(*(st.none() | VALUES[name][1] for name in names)), max_size=6))
    columns = [pa.array([row[at] for row in rows], VALUES[name][0]) for at, name in enumerate(names)]
    first = data.draw(st.integers(0, len(rows)))
    columns, rows = [column.slice(first) for column in columns], rows[first:]
    texts = json_objects(names, columns, len(rows))
    texts.validate(full=True)
    for text, row in zip(texts.to_pylist(), rows, strict=True):
        values = [
            np.float32(value).item() if name == "single" and value is not None else value
            for name, value in zip(names, row, strict=True)
        ]
        wanted = {name: naive(value) for name, value in zip(names, values, strict=True) if value is not None}
        found = like(json.loads(text, parse_float=decimal.Decimal), wanted)
        if "single" in wanted and not isinstance(wanted["single"], str):
            found["single"] = np.float32(found["single"]).item()
        assert found == wanted
        assert (
            text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode()
            or {"real", "single", "inner", "amount", "pairs"} & set(names)
            or b"\\" in text
            or b"\x7f" in text
        )


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (-12.5, "-12.5"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1e300, "1.0E300"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (0.1 + 0.2, "0.30000000000000004"),
        (123456.789, "123456.789"),
    ],
)
def test_numbers_are_laid_out_as_java_does(number: float, text: str) -> None:
    """A point always, an exponent from 10⁷ on and below 10⁻³."""
    assert json_objects(["x"], [pa.array([number])], 1)[0].as_py().decode() == f'{{"x":{text}}}'


def test_timestamps_are_in_their_columns_zone() -> None:
    """With the distance from UTC, summer and winter."""
    moments = [dt.datetime(2026, 7, 1, 12, tzinfo=UTC), dt.datetime(2026, 1, 1, 12, tzinfo=UTC)]
    for zone, wanted in (
        ("Europe/Berlin", ["2026-07-01T14:00:00.000+02:00", "2026-01-01T13:00:00.000+01:00"]),
        ("America/St_Johns", ["2026-07-01T09:30:00.000-02:30", "2026-01-01T08:30:00.000-03:30"]),
        ("Europe/London", ["2026-07-01T13:00:00.000+01:00", "2026-01-01T12:00:00.000Z"]),
    ):
        texts = json_objects(["t"], [pa.array(moments, pa.timestamp("us", zone))], 2).to_pylist()
        assert [json.loads(text)["t"] for text in texts] == wanted


def test_a_year_that_cannot_be_written_is_refused() -> None:
    """Four digits there are."""
    with pytest.raises(InvalidRecord, match="beyond the years 0 to 9999"):
        json_objects(["t"], [pa.array([2**62]).view(pa.timestamp("us"))], 1)


def test_a_value_column_is_the_records_value() -> None:
    """If it is the operator's only one; binary and string as they are."""
    key = [pa.field("k", pa.string())]
    assert output_schema(key, pa.schema([("value", pa.binary())])).names == ["k", "value"]
    rows = pa.RecordBatch.from_pydict({"k": ["a", "b"], "value": ["x", None]})
    keys = pa.array([b"a", b"b"])
    assert to_records(Output(keys, rows, None, raw=True))[1].to_pylist() == [b"x", None]
    assert to_records(Output(keys, rows, None))[1].to_pylist() == [b'{"k":"a","value":"x"}', b'{"k":"b"}']


def test_columns_that_json_cannot_hold_are_refused_before_any_row() -> None:
    """By name, with the types allowed."""
    with pytest.raises(SchemaRefused, match=r"output column 'd' is decimal256.*it must be string, binary, integers"):
        output_schema([], pa.schema([("d", pa.decimal256(5, 2))]))
    with pytest.raises(SchemaRefused, match="output column 's' is struct"):
        output_schema([], pa.schema([("s", pa.struct([("l", pa.map_(pa.string(), pa.int8()))]))]))


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        ((38, 18), "0", "0E-18"),
        ((38, 18), "1.5", "1.500000000000000000"),
        ((10, 7), "0.0000001", "1E-7"),
        ((10, 7), "-0.0000012", "-0.0000012"),
        ((10, 8), "-0.00000012", "-1.2E-7"),
        ((10, 0), "-1234567890", "-1234567890"),
        ((20, 20), "0.5", "0.50000000000000000000"),
    ],
)
def test_decimals_are_laid_out_as_java_does(kind: tuple[int, int], number: str, text: str) -> None:
    """All digits of the scale, an exponent below 10⁻⁶: as BigDecimal.toString."""
    column = pa.array([decimal.Decimal(number)], pa.decimal128(*kind))
    assert json_objects(["x"], [column], 1)[0].as_py().decode() == f'{{"x":{text}}}'

"""Columns of a state as those of a changed operator: every value is there, or the change is refused by name."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.state.errors import StateSchemaChanged
from spe_adapter.state.evolution import Conversion, Evolution, is_widened, state_columns_of
from spe_adapter.state.layout import take_schema

WIDER: dict[pa.DataType, list[pa.DataType]] = {
    pa.int8(): [pa.int16(), pa.int32(), pa.int64(), pa.float16(), pa.float32(), pa.float64()],
    pa.int16(): [pa.int32(), pa.int64(), pa.float32(), pa.float64()],
    pa.int32(): [pa.int64(), pa.float64()],
    pa.uint8(): [pa.uint16(), pa.int16(), pa.uint32(), pa.int64(), pa.float16(), pa.float64()],
    pa.uint32(): [pa.uint64(), pa.int64(), pa.float64()],
    pa.float32(): [pa.float64()],
    pa.decimal128(10, 2): [pa.decimal128(12, 2), pa.decimal128(12, 4), pa.decimal128(38, 10)],
}
NOT_WIDER = [
    (pa.int64(), pa.int32()),
    (pa.int64(), pa.float64()),
    (pa.int32(), pa.float32()),
    (pa.int32(), pa.uint64()),
    (pa.uint32(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.int64()),
    (pa.decimal128(10, 2), pa.decimal128(10, 3)),
    (pa.decimal128(10, 2), pa.decimal128(12, 1)),
    (pa.string(), pa.int64()),
    (pa.bool_(), pa.int8()),
    (pa.timestamp("us"), pa.timestamp("ms")),
]


def windows(state: pa.Schema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """A batch of windows with these values."""
    named = [
        {"key": b"%d" % at, "number": at, "expires": at, **{f"s_{name}": value for name, value in row.items()}}
        for at, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(named, schema=take_schema(state))


def states_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The state's columns of a batch, row by row."""
    return [{name[2:]: value for name, value in row.items() if name.startswith("s_")} for row in batch.to_pylist()]


def extremes(kind: pa.DataType) -> list[Any]:
    """Values at the ends of a type."""
    if pa.types.is_decimal(kind):
        return [Decimal("99999999.99"), Decimal("-99999999.99"), Decimal("0.01"), None]
    if pa.types.is_floating(kind):
        return [3.4028234663852886e38, -1.5, 1.401298464324817e-45, None]
    bits = kind.bit_width - (1 if pa.types.is_signed_integer(kind) else 0)
    return [2**bits - 1, -(2**bits) if pa.types.is_signed_integer(kind) else 0, 1, None]


@pytest.mark.parametrize(("former", "now"), [(former, now) for former, wider in WIDER.items() for now in wider])
def test_a_widened_column_keeps_every_value(former: pa.DataType, now: pa.DataType) -> None:
    """Also the largest and the smallest of the former type."""
    assert is_widened(former, now)
    before = windows(pa.schema([("x", former)]), [{"x": value} for value in extremes(former)])
    after = Conversion(pa.schema([("x", former)]), pa.schema([("x", now)]), Evolution()).converted(before)
    assert [row["x"] for row in states_of(after)] == [row["x"] for row in states_of(before)]
    assert after.schema == take_schema(pa.schema([("x", now)]))


@pytest.mark.parametrize(("former", "now"), NOT_WIDER)
def test_a_type_that_cannot_hold_all_values_is_refused(former: pa.DataType, now: pa.DataType) -> None:
    """Whatever the values are, so that no query fails later than at its start."""
    with pytest.raises(StateSchemaChanged, match=r"column 'x' was .* and is .* now"):
        Conversion(pa.schema([("x", former)]), pa.schema([("x", now)]), Evolution())


NAMES = [f"c{at}" for at in range(6)]


@given(st.data())
def test_any_declared_changes(data: st.DataObject) -> None:
    """Columns kept, renamed, dropped and added at random are those of a model that moves the values of dicts."""
    former_names = data.draw(st.lists(st.sampled_from(NAMES), unique=True))
    former = pa.schema([(name, data.draw(st.sampled_from([pa.int16(), pa.float32()]))) for name in former_names])
    fates = {name: data.draw(st.sampled_from(["keep", "rename", "drop", "widen"])) for name in former_names}
    renamed = {name: f"new_{name}" for name, fate in fates.items() if fate == "rename"}
    dropped = tuple(name for name, fate in fates.items() if fate == "drop")
    added = {f"add{at}": data.draw(st.none() | st.integers(-5, 5)) for at in range(data.draw(st.integers(0, 3)))}
    defaults = {name: value for name, value in added.items() if value is not None}
    columns = [
        (renamed.get(field.name, field.name), pa.float64() if fates[field.name] == "widen" else field.type)
        for field in former
        if field.name not in dropped
    ]
    now = pa.schema(data.draw(st.permutations([*columns, *((name, pa.int64()) for name in added)])))
    value = st.none() | st.integers(-100, 100)
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(former_names, value)), max_size=5))
    conversion = Conversion(former, now, Evolution(renamed=renamed, dropped=dropped, defaults=defaults))
    before = windows(former, rows)
    after = conversion.converted(before)
    wanted = [
        {renamed.get(name, name): value for name, value in row.items() if name not in dropped} | added for row in rows
    ]
    assert states_of(after) == [{name: row[name] for name in now.names} for row in wanted]
    assert after.select(["key", "number", "expires"]).equals(before.select(["key", "number", "expires"]))
    assert state_columns_of(after) == now
    # Declarations may stay: on a state that has changed already they do nothing.
    again = Conversion(now, now, Evolution(renamed=renamed, dropped=dropped, defaults=defaults))
    assert again.changes == ""
    assert again.converted(after).equals(after)


def test_nothing_goes_in_silence() -> None:
    """Each column that is gone, each wrong declaration and each default that does not fit has its sentence."""
    former = pa.schema([("n", pa.int64()), ("total", pa.float64())])
    now = pa.schema([("n", pa.int64()), ("sum", pa.float64())])
    with pytest.raises(StateSchemaChanged, match=r"'total' \(double\) is gone: declare it"):
        Conversion(former, now, Evolution())
    with pytest.raises(StateSchemaChanged, match=r"renamed=\{'total': 'amount'\} names no column of the state"):
        Conversion(former, now, Evolution(renamed={"total": "amount"}, dropped=("total",)))
    with pytest.raises(StateSchemaChanged, match="dropped names column 'n', which the state has"):
        Conversion(former, now, Evolution(renamed={"total": "sum"}, dropped=("n",)))
    with pytest.raises(StateSchemaChanged, match="defaults names column 'x'"):
        Conversion(former, now, Evolution(renamed={"total": "sum"}, defaults={"x": 1}))
    fits = Conversion(former, now, Evolution(dropped=("total",), defaults={"sum": "much"}))
    with pytest.raises(StateSchemaChanged, match="default of state column 'sum' is 'much', which a double cannot hold"):
        fits.converted(windows(former, [{"n": 1, "total": 1.0}]))
    with pytest.raises(StateSchemaChanged, match="renamed has 'n' as a former name and as one of now"):
        Conversion(former, former, Evolution(renamed={"n": "total", "total": "n"}))
    whole = pa.schema([*former, ("m", pa.int8())])
    with pytest.raises(StateSchemaChanged, match=r"default of state column 'm' is 1\.5, which a int8 cannot hold"):
        Conversion(former, whole, Evolution(defaults={"m": 1.5})).converted(windows(former, [{"n": 1, "total": 1.0}]))
    told = Conversion(former, pa.schema([("n", pa.int64()), ("m", pa.int8())]), Evolution(dropped=("total",)))
    assert told.changes == "adds m (int8), drops total"

"""JSON values become columns, row by row, whatever stands beside them."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.codec.decode import SCHEMA
from spe_adapter.continuous.steps import FromJson

STEP = FromJson(
    pa.schema([("name", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us", tz="UTC"))]), ("key",)
)
NOTHING = {"name": None, "amount": None, "at": None}


def records(values: list[bytes | None]) -> pa.RecordBatch:
    """Records with these values."""
    rows = [
        {"key": b"%d" % at, "value": value, "topic": "in", "partition": 0, "offset": at, "timestamp": 0}
        for at, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


BAD = [b"", b"{", b"{}{}", b"[1]", b"7", b'{"amount":"much"}', b'1}\n{"v":2', b"\xff\xfe", b'{"name":"x"} trailing']


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_is_a_row_of_nulls(bad: bytes) -> None:
    """And its neighbours keep their places."""
    good = b'{"name":"a","amount":1.5,"at":"2026-01-01T10:00:00.5Z","more":[1,{"x":2}]}'
    found = STEP(records([good, bad, None, good])).to_pylist()
    assert [row["key"] for row in found] == [b"0", b"1", b"2", b"3"]
    assert [row["name"] for row in found] == ["a", None, None, "a"]
    assert {name: found[1][name] for name in NOTHING} == NOTHING
    assert found[0]["at"].isoformat() == "2026-01-01T10:00:00.500000+00:00"


values = st.one_of(
    st.none(),
    st.sampled_from(BAD),
    st.fixed_dictionaries(
        {}, optional={"name": st.text(max_size=5), "amount": st.integers(-99, 99), "other": st.integers(0, 5)}
    ).map(lambda one: json.dumps(one).encode()),
    st.binary(max_size=8),
)


@given(st.lists(values, max_size=12))
def test_a_row_does_not_depend_on_its_neighbours(given_values: list[bytes | None]) -> None:
    """All at once is the same as one by one."""
    together = STEP(records(given_values)).to_pylist()
    alone = [STEP(records([value])).to_pylist()[0] for value in given_values]
    assert [{**row, "key": None} for row in together] == [{**row, "key": None} for row in alone]


def test_a_step_can_be_sent_to_a_worker() -> None:
    """It can be pickled."""
    assert pickle.loads(pickle.dumps(STEP)) == STEP

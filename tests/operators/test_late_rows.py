"""Late rows as a side output: a row goes there if it is in windows, and all of them have ended."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.processor import Processor
from spe_adapter.operators.windows import Session, Sliding, Tumbling, Window
from spe_adapter.state.direct import Direct
from spe_adapter.state.table import Table
from tests.operators.model import SCHEMA, US, Row, batch_of, rows_of

END_S: dict[str, tuple[Window, Any]] = {
    "tumbling": (Tumbling("60 seconds", "ts"), lambda second: second // 60 * 60 + 60),
    "sliding": (Sliding("60 seconds", "20 seconds", "ts"), lambda second: second // 20 * 20 + 60),
    "sessions": (Session("30 seconds", "ts"), lambda second: second + 30),
}
"""Windows, and when the last of a row's windows ends."""


@pytest.mark.parametrize("kind", sorted(END_S))
@given(st.lists(st.lists(rows_of(), max_size=10), max_size=3), st.integers(0, 300))
@settings(max_examples=25, deadline=None)
def test_late_rows_are_kept(kind: str, calls: list[list[Row]], watermark_s: int) -> None:
    """Whole, in their order, with their own time; each once, and no row without a time; nothing unless it is asked
    for.
    """
    window, end_s = END_S[kind]
    operator, codec = Aggregate(window, n=agg.count()), KeyCodec(SCHEMA, ["key"])
    keeping, plain = (
        Processor(operator, codec, SCHEMA, Direct(Table.in_memory(operator.state_schema(SCHEMA)))) for _ in range(2)
    )
    keeping.keeps_late = True
    for rows in calls:
        for processor in (keeping, plain):
            processor.process(batch_of(rows), late_watermark_ms=watermark_s * 1000)
        wanted = [row for row in rows if row["ts"] is not None and end_s(row["ts"] // US) <= watermark_s]
        found = keeping.take_late()
        kept = pa.concat_batches([each.rows for each in found]) if found else batch_of([])
        assert repr(kept.to_pylist()) == repr(batch_of(wanted).to_pylist())
        times = [time for each in found if each.times_ms is not None for time in each.times_ms.tolist()]
        assert times == [row["ts"] // 1000 for row in wanted]
        keys = [key for each in found for key in each.keys.to_pylist()]
        assert keys == [None if row["key"] is None else row["key"].encode() for row in wanted]
        assert not keeping.take_late()
        assert not plain.take_late()
        assert keeping.late == plain.late

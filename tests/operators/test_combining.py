"""Rows combined in front of a shuffle lead to what the rows themselves lead to: results, state, late rows, counters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.aggregation import Aggregation
from spe_adapter.operators.base import Operator
from spe_adapter.operators.combining import NULL_PARTITION, Combiner
from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import Output
from spe_adapter.operators.processor import Processor
from spe_adapter.operators.stateless import Filter, Map, Pipeline
from spe_adapter.operators.windows import Counting, Running, Sliding, Tumbling, Window
from spe_adapter.state.direct import Direct
from spe_adapter.state.table import Table
from tests.operators.model import FUNCTIONS, SCHEMA, Row, assert_same, batch_of, plain, rows_of
from tests.support.examples import examples

PARTITIONS = 2
EXACT = st.sampled_from([None, 0.0, 1.5, -2.25, 7.0, math.inf, math.nan])
"""Sums of these are the same in any order."""
WHOLE = {name: one for name, one in FUNCTIONS.items() if not one.is_ordered}
WINDOWS: list[tuple[Window, dict[str, Aggregation]]] = [
    (Tumbling("60 seconds", "ts"), FUNCTIONS),
    (Sliding("60 seconds", "25 seconds", "ts"), WHOLE),
    (Tumbling("60 seconds", "ts", mode="update"), FUNCTIONS),
    (Running(), FUNCTIONS),
]


def operator_of(window: Window, functions: dict[str, Aggregation], *, steps: bool) -> Operator:
    """Aggregates, with a filter in front or not."""
    operator = Aggregate(window, **functions)
    return Pipeline(Filter(pc.field("b")), Map(keep=True, i=pc.field("i")), operator) if steps else operator


class Side:
    """What stands behind the shuffle: a processor for each state partition."""

    def __init__(self, operator: Operator) -> None:
        self.raw = KeyCodec(SCHEMA, ["key"])
        self.codec = KeyCodec(operator.prepared(SCHEMA), ["key"])
        stores = [Direct(Table.in_memory(operator.state_schema(SCHEMA))) for _ in range(PARTITIONS)]
        self.processors = [Processor(operator, self.codec, SCHEMA, store) for store in stores]
        self.results: list[Row] = []

    def keep(self, output: Output | None) -> None:
        """Results, in their order."""
        self.results += [] if output is None else plain(output.rows)

    def close(self, watermark_ms: int) -> None:
        """What is due, and then the counters of each partition."""
        for processor in self.processors:
            self.keep(processor.expire(watermark_ms))

    def counters(self) -> list[tuple[object, ...]]:
        """What driver and marks are told."""
        return [(one.seen, one.sequence, one.late, one.max_events_ms) for one in self.processors]


def send_plain(side: Side, calls: Sequence[list[Row]], late_ms: int) -> None:
    """The rows themselves, all those of a partition in one call."""
    for number, processor in enumerate(side.processors):
        parts = [batch_of(rows) for rows in calls if rows]
        mine = [part.filter(pa.array(targets(side.raw, part) == number)) for part in parts]
        if mine:
            side.keep(processor.process(pa.concat_batches(mine), late_watermark_ms=late_ms))


def send_combined(side: Side, operator: Operator, calls: Sequence[list[Row]], late_ms: int) -> None:
    """Each of the calls combined by itself, then all of a partition in one call."""
    combining = operator.combining(SCHEMA)
    assert combining is not None
    combiner = Combiner(operator, combining, side.codec, side.raw, PARTITIONS, 7)
    made = [combiner.combine(batch_of(rows)) for rows in calls if rows]
    for number, processor in enumerate(side.processors):
        mine = [rows.filter(pa.array(partitions == number)) for rows, partitions in made]
        if mine:
            side.keep(processor.process_combined(pa.concat_batches(mine), late_watermark_ms=late_ms))


def targets(codec: KeyCodec, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The partition of each row."""
    return partitions_of(codec.encode(batch), batch.num_rows, PARTITIONS, NULL_PARTITION)


ROWS = rows_of().flatmap(lambda row: EXACT.map(lambda x: {**row, "x": x}))


@settings(max_examples=examples(10, long=1000))
@given(
    st.sampled_from(WINDOWS),
    st.booleans(),
    st.lists(st.tuples(st.lists(st.lists(ROWS, max_size=12), max_size=3), st.integers(0, 400)), max_size=4),
)
def test_combined_rows_lead_to_the_same(
    window: tuple[Window, dict[str, Aggregation]], steps: bool, epochs: list[tuple[list[list[Row]], int]]
) -> None:
    """Results in their order, late rows, counters and newest event times of every epoch, over several input partitions
    whose rows are combined apart: tumbling, sliding and no windows, every aggregate, nulls in every column, a filter.
    """
    operator = operator_of(*window, steps=steps)
    plainly, combined = Side(operator), Side(operator)
    late_ms = 0
    for calls, second in epochs:
        send_plain(plainly, calls, late_ms)
        send_combined(combined, operator, calls, late_ms)
        late_ms = max(late_ms, second * 1000)
        for side in (plainly, combined):
            side.close(late_ms)
        assert combined.counters() == plainly.counters()
        assert_same(combined.results, plainly.results)


def test_windows_of_a_number_of_rows_are_not_combined() -> None:
    """Which of a key's windows a row is in depends on rows that other tasks have; and in overlapping windows the order
    of rows is lost, which first and last depend on.
    """
    assert Aggregate(Counting(3), n=agg.count()).combining(SCHEMA) is None
    assert Aggregate(Sliding("60 seconds", "25 seconds", "ts"), x=agg.last("x")).combining(SCHEMA) is None
    assert Pipeline(Filter(pc.field("b")), Aggregate(Counting(3), n=agg.count())).combining(SCHEMA) is None


def test_a_sum_that_fits_only_together_with_others_is_no_error() -> None:
    """Two rows that together exceed 64 bits fit once a negative state is added: they go on one by one."""
    operator = Aggregate(Running(), total=agg.sum("l"))
    side = Side(operator)
    most, row = 2**63 - 1, dict.fromkeys(SCHEMA.names) | {"key": "a"}
    send_combined(side, operator, [[row | {"l": -most}]], 0)
    send_combined(side, operator, [[row | {"l": most}, row | {"l": 5}]], 0)
    assert side.results[-1] == {"key": "a", "total": 5}


def test_a_sum_that_exceeds_64_bits_is_an_error_behind_the_shuffle_too() -> None:
    """As without combining."""
    operator = Aggregate(Running(), total=agg.sum("l"))
    row = dict.fromkeys(SCHEMA.names) | {"key": "a", "l": 2**62}
    with pytest.raises(OperatorFailed, match="64 bits"):
        send_combined(Side(operator), operator, [[row], [row]], 0)


def test_an_operator_that_cannot_combine_refuses_combined_rows() -> None:
    """Rather than taking cells for columns."""
    side = Side(Aggregate(Counting(3), n=agg.count()))
    with pytest.raises(SchemaRefused, match="combined"):
        side.processors[0].process_combined(batch_of([]))

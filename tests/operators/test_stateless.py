"""Filter, map and union: on whole batches, before and behind a stateful operator, or alone."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from logstore.errors import InvalidConfig
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.operators.stateless import Filter, Map, Pipeline, Step, union
from spe_adapter.operators.windows import Running, Tumbling
from spe_adapter.testing.harness import OperatorHarness

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def rows(*pairs: tuple[str | None, int | None]) -> list[dict[str, object]]:
    """Rows of key and x."""
    return [{"k": key, "x": x, "ts": None} for key, x in pairs]


def test_steps_before_and_behind_an_operator() -> None:
    """Rows are filtered and mapped, aggregated, and the results mapped and filtered; each keeps its key."""
    pipeline = Pipeline(
        Filter(pc.field("x") > 0),
        Map(x=pc.field("x") * 2, keep=True),
        Aggregate(Running(), total=agg.sum("x")),
        Map(total="total", half=pc.field("total") / 2),
        Filter(lambda batch: pc.greater(batch.column("total"), 4)),
    )
    harness = OperatorHarness(pipeline, key="k", schema=SCHEMA)
    assert harness.send(rows(("a", 1), ("b", 5), ("a", None), ("c", -7), (None, 3))) == [
        {"k": "b", "total": 10, "half": 5},
        {"k": None, "total": 6, "half": 3},
    ]
    harness.crash_and_recover()
    assert harness.send(rows(("a", 2))) == [{"k": "a", "total": 6, "half": 3}]
    assert [row["k"] for row in harness.state()] == [None, "a", "b"]


def test_a_chain_without_state_passes_rows_with_their_keys() -> None:
    """No window is ever opened."""
    harness = OperatorHarness(
        Pipeline(Filter(pc.field("x") > 0), Map(k="k", y=pc.field("x") + 1)), key="k", schema=SCHEMA
    )
    assert harness.send(rows(("a", 1), ("b", 0), ("a", 3))) == [{"k": "a", "y": 2}, {"k": "a", "y": 4}]
    assert harness.records()[1] == (b"a", b'{"k":"a","y":4}')
    assert harness.state() == []


def test_a_map_may_make_the_key() -> None:
    """Keys are made of the rows as they are behind the steps in front."""
    pipeline = Pipeline(Map(shop=pc.field("k"), x="x"), Aggregate(Running(), n=agg.count()))
    harness = OperatorHarness(pipeline, key="shop", schema=SCHEMA)
    assert harness.send(rows(("a", 1), ("a", 2))) == [{"shop": "a", "n": 2}]


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (Filter(pc.field("x") > 0), False),
        (Map(x="k", keep=True), False),
        (Map(k="k", x="x"), False),
        (Map(k="x"), True),
        (Map(x="x"), True),
        (Map(k=pc.field("k")), True),
        (Map(lambda batch: batch), True),
    ],
)
def test_what_may_change_a_column_is_known(step: Step, changes: bool) -> None:
    """Rows are routed by their key before the steps, so whoever routes must know which steps leave it alone."""
    assert Pipeline(step, Aggregate(Running(), n=agg.count())).changes("k") == changes


def test_event_time_reaches_the_operator_inside() -> None:
    """The pipeline has its operator's watermark."""
    pipeline = Pipeline(Filter(pc.field("x") > 0), Aggregate(Tumbling("1 second", "ts", "5 seconds"), n=agg.count()))
    assert (pipeline.event_time, pipeline.delay_ms, pipeline.inputs()[0].column) == ("ts", 5000, "ts")


def test_steps_that_fail_or_do_not_fit_are_named() -> None:
    """A function that raises, changes the number of rows or gives no condition; two operators in one pipeline."""
    failing = OperatorHarness(
        Pipeline(Map(lambda batch: batch if not batch.num_rows else 1 / 0)), key="k", schema=SCHEMA
    )
    with pytest.raises(OperatorFailed, match="epoch 1: ZeroDivisionError"):
        failing.send(rows(("a", 1)))
    cutting = OperatorHarness(Pipeline(Map(lambda batch: batch.slice(0, 1))), key="k", schema=SCHEMA)
    with pytest.raises(SchemaRefused, match="made 1 rows of 2"):
        cutting.send(rows(("a", 1), ("b", 1)))
    with pytest.raises(SchemaRefused, match="condition is int64; it must be boolean"):
        OperatorHarness(Pipeline(Filter(pc.field("x") + 1)), key="k", schema=SCHEMA)
    with pytest.raises(InvalidConfig, match="at most one stateful operator"):
        Pipeline(Aggregate(Running(), n=agg.count()), Aggregate(Running(), n=agg.count()))
    with pytest.raises(InvalidConfig, match="one function, or columns by name"):
        Map()


def test_union_matches_columns_by_name() -> None:
    """In the order of the inputs; what an input lacks is null; one name with two types is refused."""
    one = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    two = pa.RecordBatch.from_pydict({"b": ["y"], "c": [True]})
    assert union([one, two]).to_pylist() == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": None, "c": None},
        {"a": None, "b": "y", "c": True},
    ]
    assert union([one]) == one
    with pytest.raises(SchemaRefused, match="cannot be united"):
        union([one, pa.RecordBatch.from_pydict({"a": ["text"]})])
    with pytest.raises(InvalidConfig, match="at least"):
        union([])

"""The data frames of a stateful query: their schema, their watermarks, and two frames as the one input of a join.

Invariants:
* What does not suit (columns, types, the operator's demands) is refused on the driver, before anything starts.
* A stateful query's watermark is its operator's: the time column and the delay that it names. A watermark that a frame
  was given by `withWatermark` reaches Spark's own stateful operators alone; it is the operator's own, or serves one of
  Spark's in the frame, or is refused by name. None is left without effect.
* In a join's input a row carries its side and, as a struct, its own columns; the other side's struct is null.

Source: Spark's EventTimeWatermark and the operators that its UnsupportedOperationChecker counts as stateful.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import get_field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema

from logstore.errors import InvalidConfig
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.base import Operator
from spe_adapter.operators.join import SIDE, SIDES
from spe_adapter.operators.jsontext import check_supported
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import output_schema
from spe_adapter.state.layout import columns_of

_WATERMARK: Final = "EventTimeWatermark"
_JOIN: Final = "Join"
_STATEFUL: Final = frozenset(
    (
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "TransformWithStateInPandas",
    )
)
_DAY_MS: Final = 86_400_000
_MONTH_DAYS: Final = 31
"""As Spark counts a month in a watermark's delay."""


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """A data frame's schema as tasks see it; timestamps are in the session's time zone. Raises SchemaRefused."""
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    names = frame.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaRefused(f"column {twice[0]!r} exists twice; give each column a unique name")
    return to_arrow_schema(frame.schema, timezone=zone)


def check(operator: Operator, schema: pa.Schema, key: Sequence[str]) -> str:
    """The fingerprint of a query: its operator, state columns and key columns.

    Raises SchemaRefused or StateSchemaRefused, which name the column, for an operator that cannot run on the schema.
    """
    KeyCodec(schema, key)
    changed = [name for name in key if operator.changes(name)]
    if changed:
        raise SchemaRefused(
            f"a step before the operator may change key column {changed[0]!r}; compute it in the data frame, which "
            "decides where rows are routed"
        )
    prepared = operator.prepared(schema)
    codec = KeyCodec(prepared, key)
    operator.times(pa.RecordBatch.from_pylist([], schema=prepared))
    output = operator.output(schema)
    if not isinstance(output, pa.Schema):
        raise SchemaRefused(
            f"output of operator {operator.name} gave a {type(output).__name__}; it must give a pyarrow.Schema"
        )
    output_schema(codec.fields, output)
    state = operator.state_schema(schema)
    columns_of(state)
    keys = ", ".join(f"{field.name} {field.type}" for field in codec.fields)
    columns = ", ".join(f"{field.name} {field.type}" for field in state)
    return f"{operator.description}; {columns}; by {keys}"


def check_late(operator: Operator, schema: pa.Schema) -> None:
    """Raise InvalidConfig if an operator drops no late rows, SchemaRefused if these could not be written."""
    if not operator.inputs():
        raise InvalidConfig(
            f"option 'lateTopic', but operator {operator.name} uses no event time, so no row is late; omit the option"
        )
    check_supported(operator.prepared(schema), "with 'lateTopic', column")


# ---- watermarks


def check_watermarks(frame: DataFrame, operator: Operator) -> None:
    """Raise InvalidConfig for a watermark of the frame that has no effect."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - Spark has no public way to its plans in Python
    for column, delay_ms in _idle(plan):
        given = [one for one in operator.inputs() if one.column.rpartition(".")[2] == column]
        if any(one.delay_ms == delay_ms for one in given):
            continue
        own = ", ".join(f"{one.column!r} with a delay of {one.delay_ms} ms" for one in operator.inputs())
        raise InvalidConfig(
            f"the data frame has withWatermark({column!r}, {delay_ms} ms), which a stateful query does not see: "
            f"operator {operator.name} uses {own or 'no event time'}. Give the column and the delay to the operator "
            "(in Tumbling, Sliding and WindowJoin, or as event_time and delay_ms of your own operator), and remove "
            "withWatermark or give it the same values"
        )


def _idle(plan: Any) -> Iterator[tuple[str, int]]:
    """Column and delay of the watermarks that no stateful operator of Spark's uses."""
    name = str(plan.nodeName())
    children = plan.children()
    below = [children.apply(index) for index in range(children.size())]
    if name in _STATEFUL or (name == _JOIN and all(child.isStreaming() for child in below)):
        return
    if name == _WATERMARK:
        delay = plan.delay()
        months, days, us = (int(get_field(delay, part)) for part in ("months", "days", "microseconds"))
        yield str(plan.eventTime().name()), (months * _MONTH_DAYS + days) * _DAY_MS + us // 1000
    for child in below:
        yield from _idle(child)


# ---- joins


def joined(left: DataFrame, right: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows of two streaming frames as the one input of a window join.

    Raises SchemaRefused for a key column that one of them lacks, or that differs in type.
    """
    for name in key:
        kinds = [{field.name: field.dataType for field in frame.schema.fields}.get(name) for frame in (left, right)]
        if kinds[0] is None or kinds[0] != kinds[1]:
            said = " and ".join("missing" if kind is None else kind.simpleString() for kind in kinds)
            raise SchemaRefused(f"key column {name!r} is {said} (left and right); both need it, with one type")
    frames = (left, right)
    kinds_of = [frame.select(_struct(frame).alias("row")).schema["row"].dataType for frame in frames]

    def side(index: int) -> DataFrame:
        frame = frames[index]
        columns = [_struct(frame) if at == index else sf.lit(None).cast(kinds_of[at]) for at in range(len(SIDES))]
        return frame.select(
            *[sf.col(f"`{name}`") for name in key],
            sf.lit(index).cast("tinyint").alias(SIDE),
            *[column.alias(name) for column, name in zip(columns, SIDES, strict=True)],
        )

    return side(0).unionByName(side(1))


def _struct(frame: DataFrame) -> Column:
    return sf.struct(*[sf.col(f"`{name}`") for name in frame.columns])

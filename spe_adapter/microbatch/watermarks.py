"""Watermarks that a data frame was given by `withWatermark`, against the one that a stateful query keeps.

A stateful query's watermark is its operator's: the time column and delay that it names. Spark's own, which
`withWatermark` declares, reaches nothing but Spark's own stateful operators.

Invariant: a watermark on the frame is the operator's own, or serves an operator of Spark's in the frame, or is refused
by name; none is left without effect.

Source: Spark's EventTimeWatermark and the operators that its UnsupportedOperationChecker counts as stateful.
"""

from collections.abc import Iterator
from typing import Any, Final

from py4j.java_gateway import get_field
from pyspark.sql import DataFrame

from logstore.errors import InvalidConfig
from spe_adapter.operators.base import Operator

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


def check_watermarks(frame: DataFrame, operator: Operator) -> None:
    """Raise InvalidConfig for a watermark of the frame that has no effect on anything."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - Spark has no public way to its plans in Python
    for column, delay_ms in _idle(plan):
        given = [one for one in operator.inputs() if one.column.rpartition(".")[2] == column]
        if any(one.delay_ms == delay_ms for one in given):
            continue
        own = ", ".join(f"{one.column!r} with a delay of {one.delay_ms} ms" for one in operator.inputs())
        raise InvalidConfig(
            f"the data frame has withWatermark({column!r}, {delay_ms} ms), which a stateful query does not see: "
            f"operator {operator.name} goes by {own or 'no event time'}. Give the operator the column and the delay "
            "(in Tumbling, Sliding and WindowJoin, or as event_time and delay_ms of your own), and leave withWatermark "
            "out or let it say the same"
        )


def _idle(plan: Any) -> Iterator[tuple[str, int]]:
    """Column and delay of the watermarks on which no stateful operator of Spark's stands."""
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

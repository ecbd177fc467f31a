"""Spark itself as the oracle of operators: JSON values, windows of event times, aggregates of odd values."""

from __future__ import annotations

import json
import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.base import Overlapping, times_in
from spe_adapter.operators.jsontext import json_objects
from spe_adapter.operators.windows import Running, Sliding
from spe_adapter.testing.harness import OperatorHarness
from tests.operators.model import FUNCTIONS, SCHEMA, US, Row, assert_same, batch_of, plain

pytestmark = pytest.mark.spark

NUMBERS = [0.0, -0.0, 1.0, 1e7, 9999999.0, 0.001, 0.00099, 1.5e-7, 123456.789, -2.5e300, math.inf, -math.inf, math.nan]

SINGLES = [0.0, 1.0, 0.1, 3.4e38, 1e-30, 16777216.0, -1.5e-7, math.inf, math.nan, None]


def test_json_is_what_to_json_writes(spark: SparkSession) -> None:
    """Byte for byte: escapes, numbers, timestamps of the session's zone, nulls left out, nested windows."""
    texts = ["", 'a"b\\c/d', "\x00\x01\b\t\n\f\r\x1f\x7f", "ü€𝄞\u2028", None]
    moments = [0, 1, 999_999, -1, -62_135_596_800_000_000 + 1, 253_402_300_799_999_999, 1_700_000_000_123_456, None]
    rows = max(len(texts), len(moments), len(NUMBERS))
    table = pa.table(
        {
            "text": pa.array((texts * rows)[:rows], pa.string()),
            "moment": pa.array((moments * rows)[:rows], pa.int64()).view(pa.timestamp("us", "UTC")),
            "bare": pa.array((moments * rows)[:rows], pa.int64()).view(pa.timestamp("us")),
            "real": pa.array((NUMBERS * rows)[:rows], pa.float64()),
            "single": pa.array((SINGLES * rows)[:rows], pa.float32()),
            "long": pa.array([2**63 - 1, -(2**63), 0, None] * rows, pa.int64()).slice(0, rows),
            "flag": pa.array([True, False, None] * rows, pa.bool_()).slice(0, rows),
            "day": pa.array([0, -1, 20_000, None] * rows, pa.int32()).slice(0, rows).view(pa.date32()),
            "raw": pa.array([b"", b"a", b"ab", b"abc", b"\xff\xfe", None] * rows, pa.binary()).slice(0, rows),
        }
    )
    window = pa.StructArray.from_arrays(
        [table.column("moment").combine_chunks(), table.column("moment").combine_chunks()], names=["start", "end"]
    )
    table = table.append_column("window", window)
    frame = spark.createDataFrame(table).coalesce(1)
    frame = frame.withColumn("bare", sf.col("bare").cast("timestamp_ntz"))
    written = frame.select(sf.to_json(sf.struct("*")).alias("value")).toArrow().column("value").to_pylist()
    batch = table.combine_chunks().to_batches()[0]
    ours = [text.decode() for text in json_objects(batch.schema.names, batch.columns, batch.num_rows).to_pylist()]
    assert ours == written


def test_random_doubles_are_the_same_numbers(spark: SparkSession) -> None:
    """Spark's Java may write a digit more than needed; what is read back is the same."""
    chance = random.Random(5)
    numbers = [chance.uniform(-1, 1) * 10.0 ** chance.randint(-320, 300) for _ in range(2000)]
    frame = spark.createDataFrame(pa.table({"x": numbers})).coalesce(1)
    written = frame.select(sf.to_json(sf.struct("x")).alias("value")).toArrow().column("value").to_pylist()
    ours = json_objects(["x"], [pa.array(numbers)], len(numbers)).to_pylist()
    assert [json.loads(text) for text in ours] == [json.loads(text) for text in written] == [{"x": x} for x in numbers]
    assert sum(mine.decode() != theirs for mine, theirs in zip(ours, written, strict=True)) < len(numbers) / 20


@pytest.mark.parametrize(
    ("length", "slide", "start"),
    [
        ("10 seconds", "10 seconds", "0 seconds"),
        ("10 seconds", "3 seconds", "2 seconds"),
        ("1 minute", "7 seconds", "1500 milliseconds"),
        ("1 week", "1 day", "5 hours"),
    ],
)
def test_windows_start_where_sparks_do(spark: SparkSession, length: str, slide: str, start: str) -> None:
    """Also before 1970, at the very edges, and without a time."""
    chance = random.Random(length)
    moments: list[int | None] = [chance.randrange(-(10**13), 10**13) for _ in range(200)]
    moments += [step * 1_000_000 + edge for step in range(-70, 70) for edge in (-1, 0, 1)]
    moments.append(None)
    column = pa.array(moments, pa.int64()).view(pa.timestamp("us", "UTC"))
    frame = spark.createDataFrame(pa.table({"ts": column}))
    windows = (
        frame.select("ts", sf.window("ts", length, slide, start).alias("w")).select("ts", "w.start", "w.end").toArrow()
    )
    theirs = {
        tuple(column.cast(pa.int64())[at].as_py() for column in windows.columns) for at in range(windows.num_rows)
    }
    window = Sliding(length, slide, "ts", start=start)
    given = window.assign(times_in(column))
    rows = np.arange(len(moments)) if given.rows is None else given.rows
    numbers = given.numbers
    if isinstance(given, Overlapping):
        counts, spread = given.spread(numbers)
        rows, numbers = np.repeat(rows, counts), spread.numbers
    ours = {
        (moments[row], int(number), int(number) + window.length_us) for row, number in zip(rows, numbers, strict=True)
    }
    assert ours == theirs


SPARK_FUNCTIONS: dict[str, Any] = {
    "n": lambda: sf.count(sf.lit(1)),
    "nx": lambda: sf.count("x"),
    "sum": sf.sum,
    "avg": sf.avg,
    "stddev": sf.stddev,
    "min": sf.min,
    "max": sf.max,
    "first": sf.first,
    "last": sf.last,
    "first_known": lambda column: sf.first(column, ignorenulls=True),
    "last_known": lambda column: sf.last(column, ignorenulls=True),
    "list": sf.collect_list,
    "distinct": sf.approx_count_distinct,
    "near_median": lambda column: sf.percentile_approx(column, 0.5),
    "near_most": lambda column: sf.percentile_approx(column, 0.9),
}
OTHERWISE_IN_SPARK = {"set_s", "set_b", "near_median_x", "first_t", "last_t"}
"""Aggregates whose results Spark orders or rounds otherwise, or whose name means another function there; other tests
have them.
"""


def spark_column(name: str) -> Column:
    """Spark's aggregate of a name in the model."""
    if name in SPARK_FUNCTIONS:
        return SPARK_FUNCTIONS[name]().alias(name)
    function, _, column = name.rpartition("_")
    return SPARK_FUNCTIONS[function](column).alias(name)


def test_aggregates_are_sparks(spark: SparkSession) -> None:
    """NaN, infinities, nulls first, last and only, groups of one, strings by their bytes: every aggregate."""
    chance = random.Random(11)
    doubles = [0.0, 1.5, -2.25, 1e300, 0.1, 7.0, math.inf, -math.inf, math.nan]

    def row(key: str | None) -> Row:
        given: dict[str, Any] = {
            "ts": chance.randrange(-1000, 1000) * US,
            "x": chance.choice(doubles),
            "f": chance.choice([0.5, -3.0, math.nan]),
            "i": chance.randrange(-(2**31), 2**31),
            "l": chance.randrange(-(2**40), 2**40),
            "s": chance.choice(["", "a", "b", "ab", "é", "z", "𝄞"]),
            "b": chance.random() < 0.5,
            "d": chance.randrange(-5, 5),
            "m": Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-2),
            "w": Decimal(chance.randrange(-(10**27), 10**27)).scaleb(-20),
            "t": [{"a": chance.choice(["x", "", None])} for _ in range(chance.randrange(3))],
        }
        return {"key": key} | {name: None if chance.random() < 0.4 else value for name, value in given.items()}

    rows = [row(chance.choice(["a", "b", "c", "", None])) for _ in range(60)] + [row(f"k{at}") for at in range(40)]
    batch = batch_of(rows)
    functions = {name: function for name, function in FUNCTIONS.items() if name not in OTHERWISE_IN_SPARK}
    harness = OperatorHarness(Aggregate(Running(), **functions), key="key", schema=SCHEMA)
    harness.send(batch)
    ours = [one for output in harness.outputs() for one in plain(output.rows)]
    frame = spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1)
    grouped = frame.groupBy("key").agg(*(spark_column(name) for name in functions)).toArrow()
    theirs = plain(grouped.combine_chunks().to_batches()[0])

    def by_key(row: Row) -> tuple[bool, str]:
        return row["key"] is None, row["key"] or ""

    assert_same(sorted(ours, key=by_key), sorted(theirs, key=by_key))


def test_sums_overflow_as_sparks_do(spark: SparkSession) -> None:
    """An error in both, with Spark's defaults."""
    frame = spark.createDataFrame(pa.table({"l": [2**63 - 1, 1]})).coalesce(1)
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        frame.agg(sf.sum("l")).collect()

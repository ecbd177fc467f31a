"""Keys of all kinds: routed as Kafka's partitioner does, to the stream of their results; null keys and joins too."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.errors import SchemaRefused
from spe_adapter.microbatch.query import stateful_join
from spe_adapter.operators import aggregates
from spe_adapter.operators import functions as agg
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.windows import Running
from tests.microbatch.operators import Row
from tests.microbatch.world import World
from tests.support.streams import read_all

pytestmark = [pytest.mark.spark]

KINDS = {
    "string": "if(number = 3, null, concat('key ', number))",
    "bigint": "number",
    "binary": "unhex(hex(number))",
    "date": "date_add(date'2026-01-01', cast(number as int))",
    "timestamp": "timestamp_micros(number * 1000001)",
    "boolean": "number % 2 = 0",
}


def numbered(world: World) -> DataFrame:
    """The input with a number of its own in each row."""
    return world.frame().withColumn("number", sf.expr("cast(substring(key, 2) as bigint)"))


@pytest.mark.parametrize(
    "kind",
    ["string", "two", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "string")],
)
def test_results_are_in_the_stream_of_their_key(world: World, kind: str) -> None:
    """Every record lies where Kafka's partitioner puts its key, and counts go on over epochs."""
    frame = numbered(world)
    if kind == "two":
        frame, key = frame.withColumn("a", sf.expr("number % 5")).withColumn("b", sf.expr(KINDS["date"])), ["a", "b"]
    else:
        frame, key = frame.withColumn("id", sf.expr(KINDS[kind])), ["id"]
    operator = aggregates.Aggregate(Running(), n=agg.count())
    for _ in range(2):
        world.feed([Row(f"k{number}", 100_000, 1) for number in range(40)])
        query = world.over(frame.select(*key, "amount"), operator, partitions=3, key=key)
        world.run(query)
    rows = read_all(world.address, world.topic)
    keys = pa.array([row.key for row in rows], pa.binary())
    assert partitions_of(keys, len(rows), 3, 0).tolist() == [row.partition for row in rows]
    last = {row.key: json.loads(row.value or b"")["n"] for row in rows}
    assert sum(last.values()) == 80
    assert len(last) == (2 if kind == "boolean" else 40)
    assert (None in last) == (kind == "string")


def test_a_join_of_two_frames(world: World) -> None:
    """Pairs of rows of equal keys at most two seconds apart are those of a nested loop, over several epochs."""
    left = world.frame().where("amount % 2 = 0")
    right = world.frame().where("amount % 2 = 1").withColumnRenamed("amount", "price")
    operator = WindowJoin("2 seconds", left_time="ts", right_time="ts", left_delay="5 seconds", right_delay="5 seconds")
    rows = [Row(f"k{number % 2}", 61_000 + 700 * number, number * 7 % 5) for number in range(30)]
    for start in range(0, 30, 10):
        world.feed(rows[start : start + 10])
        query = stateful_join(left, right, key="key", operator=operator, partitions=2)
        query.option("kafka.bootstrap.servers", world.address).option("stateDirectory", world.state)
        world.run(query)
    found = Counter(
        (value["key"], value["left"]["ts"], value["right"]["ts"], value["left"]["amount"], value["right"]["price"])
        for value in world.values()
    )
    wanted = Counter(
        (one.key, stamp(one.ms), stamp(other.ms), one.amount, other.amount)
        for one in rows
        for other in rows
        if one.key == other.key and one.amount % 2 == 0 and other.amount % 2 == 1 and abs(one.ms - other.ms) <= 2000
    )
    assert found == wanted
    assert wanted


def stamp(ms: int) -> str:
    """A moment as Spark writes it."""
    return f"1970-01-01T00:01:{ms // 1000 - 60:02}.{ms % 1000:03}Z"


def test_a_join_with_different_keys_is_refused(world: World) -> None:
    """The message says which key has which types."""
    other = world.frame().withColumn("key", sf.lit(1))
    operator = WindowJoin("1 second", left_time="ts", right_time="ts")
    with pytest.raises(SchemaRefused, match="'key' is string and int"):
        stateful_join(world.frame(), other, key="key", operator=operator)

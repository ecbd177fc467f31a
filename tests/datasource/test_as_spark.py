"""The same input through Spark's own windowed aggregation and through ours: the same results, batch by batch, with late
rows and pauses.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from spe_adapter.operators import aggregates
from spe_adapter.operators import functions as agg
from spe_adapter.operators.windows import Sliding, Tumbling
from tests.microbatch.operators import Row, rows_of
from tests.microbatch.world import World

pytestmark = [pytest.mark.spark]

Results = Counter[tuple[Any, ...]]


class Reference:
    """Spark's own aggregation over the same input."""

    def __init__(self, frame: DataFrame, slide: str, checkpoint: Path) -> None:
        grouped = (
            frame.withWatermark("ts", "2 seconds")
            .groupBy("key", sf.window("ts", "6 seconds", slide))
            .agg(sf.count("*").alias("n"), sf.sum("amount").alias("total"), sf.avg("amount").alias("mean"))
        )
        self.batches: list[Results] = []
        self.query: StreamingQuery = (
            grouped.select("key", sf.unix_millis("window.start").alias("start"), "n", "total", "mean")
            .writeStream.outputMode("append")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(self._take)
            .start()
        )

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches.append(Counter(tuple(row) for row in frame.collect()))

    def results(self) -> Results:
        """All so far."""
        return sum(self.batches, Counter())


def ours(world: World) -> Results:
    """What our query has told, in the reference's form."""
    found: Results = Counter()
    for value in world.values():
        start = milliseconds(value["window"]["start"])
        found[value["key"], start, value["n"], value["total"], value["mean"]] += 1
    return found


def milliseconds(text: str) -> int:
    """A JSON timestamp as milliseconds."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("slide", "combine"),
    [
        ("2 seconds", "always"),
        pytest.param("6 seconds", "always", marks=pytest.mark.slow),
        pytest.param("6 seconds", "never", marks=pytest.mark.slow),
    ],
)
def test_windows_are_those_of_spark(world: World, tmp_path: Path, slide: str, combine: str) -> None:
    """Both are fed the same rows in steps, with pauses and with bursts of batches; after each step both have told the
    same, rows that come too late by then included; with rows combined in front of the shuffle, and without.
    """
    kind = Tumbling("6 seconds", time="ts", delay="2 seconds")
    window = kind if slide == "6 seconds" else Sliding("6 seconds", slide, time="ts", delay="2 seconds")
    operator = aggregates.Aggregate(window, n=agg.count(), total=agg.sum("amount"), mean=agg.avg("amount"))
    frame = world.frame(60)
    reference = Reference(frame, slide, tmp_path / "reference")
    query = world.start(world.over(frame, operator).option("combine", combine))
    try:
        epochs = rows_of(14, 30, 12, seed=7)
        burst, rest = (list(chain(*part)) for part in (epochs[2:7], epochs[10:]))
        steps = [epochs[0], epochs[1], burst, epochs[9], epochs[7], rest]
        steps.append([Row("k0", 200_000, 1)])
        for rows in steps:
            world.feed(rows)
            reference.query.processAllAvailable()
            query.processAllAvailable()
            assert ours(world) == reference.results()
        late = [Row("k1", 150_000, 1), Row("k1", 197_999, 2), Row("k1", 198_001, 3), Row("k2", 300_000, 4)]
        world.feed(late)
        reference.query.processAllAvailable()
        query.processAllAvailable()
        assert ours(world) == reference.results()
        assert reference.results().total() > 20
    finally:
        query.stop()
        reference.query.stop()

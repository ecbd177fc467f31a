"""Sessions, update mode, decimals and lists: the same input through Spark's own aggregation and through ours."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Session, Tumbling, Window
from tests.microbatch.operators import Row, rows_of
from tests.microbatch.world import World

pytestmark = [pytest.mark.spark]

KINDS: dict[str, tuple[Window, str]] = {
    "session_window": (Session("3 seconds", time="ts", delay="2 seconds"), "append"),
    "window": (Tumbling("6 seconds", time="ts", delay="2 seconds", mode="update"), "update"),
}


class JsonReference:
    """Spark's own aggregation over the same input, each result as JSON."""

    def __init__(self, frame: DataFrame, kind: str, checkpoint: Path) -> None:
        window = sf.session_window("ts", "3 seconds") if kind == "session_window" else sf.window("ts", "6 seconds")
        grouped = (
            frame.withWatermark("ts", "2 seconds")
            .groupBy("key", window)
            .agg(
                sf.count("*").alias("n"),
                sf.sum("price").alias("total"),
                sf.avg("price").alias("mean"),
                sf.max("price").alias("most"),
                sf.sort_array(sf.collect_set("amount")).alias("amounts"),
            )
        )
        self.results: Counter[str] = Counter()
        self.query: StreamingQuery = (
            grouped.select(sf.to_json(sf.struct("*")))
            .writeStream.outputMode(KINDS[kind][1])
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(self._take)
            .start()
        )

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.results.update(row[0] for row in frame.collect())


def ours(world: World) -> Counter[str]:
    """What our query has told, as text; sets in ascending order."""
    found: Counter[str] = Counter()
    for text in world.texts():
        value = json.loads(text)
        amounts = ",".join(map(str, sorted(value["amounts"])))
        head, _, _ = text.rpartition('"amounts":[')
        found[f'{head}"amounts":[{amounts}]}}'] += 1
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_results_are_those_of_spark(world: World, tmp_path: Path, kind: str) -> None:
    """Byte for byte, after each step: rows in any order, late ones, bursts of batches, pauses."""
    frame = world.frame(60).withColumn("price", (sf.col("amount") / 7).cast("decimal(12, 4)"))
    operator = Aggregate(
        KINDS[kind][0],
        n=agg.count(),
        total=agg.sum("price"),
        mean=agg.avg("price"),
        most=agg.max("price"),
        amounts=agg.collect_set("amount"),
    )
    reference = JsonReference(frame, kind, tmp_path / "reference")
    query = world.start(world.over(frame, operator))
    try:
        epochs = rows_of(8, 30, 12, seed=11)
        steps = [epochs[0], epochs[1], [row for epoch in epochs[4:8] for row in epoch], epochs[2]]
        for rows in [*steps, [Row("k0", 400_000, 1)], [Row("k1", 397_000, 2), Row("k1", 399_500, 3)]]:
            world.feed(rows)
            reference.query.processAllAvailable()
            query.processAllAvailable()
            assert ours(world) == reference.results
        assert reference.results.total() > 20
    finally:
        query.stop()
        reference.query.stop()

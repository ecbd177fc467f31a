"""A stateful query's figures in Spark's own progress."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

from spe_adapter.microbatch.observed import OBSERVATION
from spe_adapter.microbatch.query import StatefulQuery
from tests.microbatch.operators import Model, rows_of
from tests.microbatch.world import World
from tests.support.waiting import until

pytestmark = pytest.mark.spark


class Listening(StreamingQueryListener):
    """Keeps the figures of each batch, by query."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, dict[str, Any]]] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Keep the figures."""
        row = event.progress.observedMetrics.get(OBSERVATION)
        if row is not None:
            self.heard.append((str(event.progress.id), event.progress.batchId, row.asDict()))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing."""

    def of(self, query: StatefulQuery) -> list[tuple[int, dict[str, Any]]]:
        """Batch and figures of one query; a session's late words are of others."""
        return [(batch, figures) for named, batch, figures in self.heard if named == query.id]


def test_a_listener_hears_the_figures_of_each_batch(world: World) -> None:
    """They are those of a model: rows that were late, results, windows that are open; and `lastProgress` has them."""
    epochs = rows_of(6, 30, 12)
    for rows in epochs:
        world.feed(rows)
    listening = Listening()
    world.spark.streams.addListener(listening)
    try:
        query = world.run(world.query(rows_per_batch=30))
        until(lambda: len(listening.of(query)) >= len(epochs), "each batch is heard")
    finally:
        world.spark.streams.removeListener(listening)
    model = Model()
    for batch, rows in enumerate(epochs):
        late_ms, before = model.watermark_ms, len(model.told)
        model.epoch(rows)
        heard, figures = listening.of(query)[batch]
        assert (heard, figures["epoch"]) == (batch, 2 * batch)
        assert figures["records"] == len(rows)
        assert figures["late"] == sum(row.ms <= late_ms for row in rows)
        assert figures["results"] == len(model.told) - before
        assert figures["windows"] == len(model.open)
        assert figures["footprints"] <= figures["windows"]
        assert figures["state_bytes"] > 0
        assert figures["load_seconds"] >= 0
    last = query.lastProgress
    assert last is not None
    assert last.observedMetrics[OBSERVATION].asDict() == figures

"""Whether rows are combined in front of the shuffle: what is chosen, and that a query does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from logstore.errors import InvalidConfig
from spe_adapter.microbatch.epoch import Parent, QueryDefinition, Seconds, TaskReport
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.microbatch.shuffle import CombineChoice
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.windows import Counting, Running, Window
from tests.microbatch.operators import Row
from tests.microbatch.world import World

REPORT = TaskReport(
    partition=0, epoch=0, attempt="a", segments=1, counters=Parent("a"), records=0, combined=False, moved=0, windows=0,
    late=0, results=0, footprints=0, open_windows=0, extent=0, oldest_epoch=0, max_events_ms=(), how="new",
    load_seconds=0.0, state_bytes=0, delta_bytes=0, started_ms=0, seconds=Seconds(0.0, 0.0, 0.0, 0.0, 0.0),
)  # fmt: skip


def choice(mode: str = "auto", window: Window | None = None) -> CombineChoice:
    """A choice for counting by an option."""
    options = parse_stateful({"kafka.bootstrap.servers": "127.0.0.1:9092", "combine": mode}, "topic")
    operator = Aggregate(window or Running(), n=agg.count())
    return CombineChoice(
        QueryDefinition(operator, ("key",), pa.schema([("key", pa.string())]), "fingerprint", 2, options)
    )


def epochs(chosen: CombineChoice, *, records: int, moved: int = 0, windows: int = 0, count: int = 3) -> bool:
    """Some epochs; what is chosen behind them."""
    for _ in range(count):
        half = replace(REPORT, records=records // 2, moved=moved // 2, windows=windows // 2)
        chosen.note([replace(half, combined=chosen.combine)] * 2)
    return chosen.combine


def test_the_last_epochs_decide() -> None:
    """Few windows for many rows begin it, many combined rows end it; in between all stays as it is, as it does in
    epochs of few rows.
    """
    chosen = choice()
    assert not chosen.combine
    assert not epochs(chosen, records=100_000, moved=100_000, windows=90_000)
    assert not epochs(chosen, records=1_000, moved=1_000, windows=2)
    assert epochs(chosen, records=100_000, moved=100_000, windows=1_000)
    assert epochs(chosen, records=100_000, moved=40_000, windows=40_000)
    assert not epochs(chosen, records=100_000, moved=80_000, windows=80_000)
    assert not epochs(chosen, records=100_000, moved=100_000, windows=40_000)


def test_the_option_decides() -> None:
    """Always, never; and never where rows cannot be combined."""
    assert choice("always").combine
    assert epochs(choice("always"), records=100_000, moved=100_000)
    assert not epochs(choice("never"), records=100_000, windows=2)
    assert not choice("always", Counting(3)).combine
    assert not epochs(choice("auto", Counting(3)), records=100_000, windows=2)


def test_another_word_is_refused() -> None:
    """With what may be written instead."""
    with pytest.raises(InvalidConfig, match=r"'combine' is 'sometimes'; allowed: auto, always, never"):
        choice("sometimes")


@pytest.mark.spark
def test_a_query_with_few_keys_combines_by_itself(world: World) -> None:
    """From its second epoch on the shuffle carries a row per window and input partition; results are those that
    counting gives.
    """
    operator = Aggregate(Running(), n=agg.count(), total=agg.sum("amount"))
    world.feed([Row(f"k{number % 3}", 100_000, number) for number in range(18_000)])
    query = world.run(world.over(world.frame(rows_per_batch=6_000), operator))
    progress = query.progress
    assert progress is not None
    assert (progress.records, progress.moved) == (6_000, 3)
    last: dict[str, Any] = {value["key"]: (value["n"], value["total"]) for value in world.values()}
    assert last == {f"k{key}": (6_000, sum(range(key, 18_000, 3))) for key in range(3)}

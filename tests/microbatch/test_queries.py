"""Stateful queries from start to stop: results, restarts, pauses, and what is refused."""

from __future__ import annotations

import re

import pytest

from logstore.client.blocking import Client, parse_addresses
from logstore.client.errors import Unavailable
from logstore.commands.queries import read_note
from logstore.format.epoch_api import DescribeRequest
from spe_adapter.epochs.client import take_over
from spe_adapter.microbatch.errors import TasksFailed
from spe_adapter.microbatch.query import stateful
from tests.microbatch.operators import DELAY_MS, Failing, Model, Row, Silent, Visits, rows_of
from tests.microbatch.world import World, by_key
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = [pytest.mark.spark]


def test_results_over_restarts_are_those_of_one_run(world: World) -> None:
    """A query stopped and started again goes on where it was: what it tells is what one run would."""
    made = rows_of(24, 40, 20)
    epochs = [one + other for one, other in zip(made[::2], made[1::2], strict=True)]
    model = Model()
    for life in range(3):
        part = epochs[life * 4 : life * 4 + 4]
        for rows in part:
            world.feed(rows)
            model.epoch(rows)
        model.pause()
        query = world.run(world.query(rows_per_batch=80))
        progress = query.progress
        assert progress is not None
        assert progress.windows == len(model.open)
        assert by_key(world.told()) == by_key(model.told)


def test_state_comes_from_memory_or_from_the_log(world: World) -> None:
    """With the state directory wiped between epochs (a partition that moved to another host) all comes from the log."""
    epochs = rows_of(6, 40, 20)
    for rows in epochs:
        world.feed(rows)
    world.run(world.query(rows_per_batch=40))
    more = rows_of(7, 40, 20, seed=2)[6:]
    world.feed(more[0])
    for path in world.state.glob("*/p*/*"):
        path.unlink()
    query = world.start(world.query())
    query.processAllAvailable()
    first = query.progress
    query.stop(forget_state=True)
    assert not list(world.state.glob("*/p*"))
    assert first is not None
    model = Model()
    for rows in epochs:
        model.epoch(rows)
    model.pause()
    model.epoch(more[0])
    model.pause()
    assert by_key(world.told()) == by_key(model.told)


def test_a_pause_closes_what_is_due(world: World) -> None:
    """Without more input, keys that are silent for long enough by the watermark are told their last word."""
    world.feed([Row("early", 100_000, 1), Row("late", 130_000, 2)])
    query = world.start(world.query().option("closingDelay", "100ms"))
    try:
        until(lambda: ("early", 1, 1, True) in world.told(), "the key is closed")
        # The figures come behind the results.
        until(lambda: query.progress is not None and query.progress.closing, "the closing's figures are there")
        progress = query.progress
        assert progress is not None
        assert progress.watermark_ms == 130_000 - DELAY_MS
        assert progress.windows == 1
        # Behind the pause, rows at or before its watermark are late.
        world.feed([Row("early", 127_000, 5), Row("early", 128_001, 7)])
        query.processAllAvailable()
        assert ("early", 1, 7, False) in world.told()
    finally:
        query.stop()


def test_a_failure_while_input_pauses_ends_the_query(world: World) -> None:
    """What the closing thread fails with is what the query failed with."""
    world.feed([Row("early", 100_000, 1), Row("late", 130_000, 2)])
    query = world.start(world.query(Silent()).option("closingDelay", "50ms"))
    with pytest.raises(TasksFailed, match=r"OperatorFailed: operator Silent.*epoch 1.*no last word"):
        query.awaitTermination(PATIENCE_S)
    assert not query.isActive
    assert isinstance(query.exception(), TasksFailed)
    query.stop()
    assert isinstance(query.exception(), TasksFailed)


def test_a_sidecar_that_is_not_there_is_told_soon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` says where nobody answers before its user takes it for hanging, unless told to wait for longer, or
    shorter.
    """
    monkeypatch.setattr("spe_adapter.microbatch.query.FIRST_CONTACT_S", 0.2)
    for told, said in (
        ({}, "0.2"),
        ({"kafka.delivery.timeout.ms": 400}, "0.4"),
        ({"Kafka.Delivery.Timeout.MS": 100}, "0.1"),
    ):
        query = stateful(world.frame(None), key="key", operator=Visits(), partitions=2)
        query.option("kafka.bootstrap.servers", "127.0.0.1:1").options(**told)
        with pytest.raises(Unavailable, match=re.escape(f"no answer from 127.0.0.1:1 within {said} s")):
            query.start(topic="none")


def test_an_operator_that_fails_is_named(world: World) -> None:
    """The query's exception is one line with operator, batch, key and the user's own line; the state committed before
    is intact.
    """
    epochs = rows_of(3, 20, 5)
    for rows in epochs:
        world.feed(rows)
    world.run(world.query(rows_per_batch=20))
    bad = [Row("k1", 105_000, 1), Row("bad", 105_000, 1)]
    world.feed(bad)
    query = world.start(world.query(Failing()))
    with pytest.raises(Exception, match=r"operator Visits failed in batch 3 \(epoch 6 in the log\) at key 'bad'"):
        query.awaitTermination(PATIENCE_S)
    said = str(query.exception())
    assert re.fullmatch(
        rf"query {query.id}, batch 3 \(epoch 6 in the log\): OperatorFailed: operator Visits failed in batch 3 .* "
        r"at key 'bad': ValueError: this key I cannot count \(.*operators\.py, line \d+\)",
        said,
    ), said
    query.stop()
    assert str(query.exception()) == said
    world.run(world.query())
    model = Model()
    for rows in epochs:
        model.epoch(rows)
    model.pause()
    model.epoch(bad)
    model.pause()
    assert by_key(world.told()) == by_key(model.told)


def test_a_query_that_was_taken_over_cannot_commit(world: World) -> None:
    """Once a newer incarnation is known, the older one's next epoch fails and leaves nothing."""
    world.feed([Row("k", 100_000, 1)])
    query = world.start(world.query())
    query.processAllAvailable()
    with Client(parse_addresses(world.address)) as client:
        assert take_over(client, query.id, "somebody else") == 1
    world.feed([Row("k", 100_001, 1)])
    with pytest.raises(Exception, match="FencedIncarnation"):
        query.awaitTermination(PATIENCE_S)
    query.stop()
    assert world.told() == [("k", 1, 1, False)]


def test_input_without_rows_still_leaves_a_mark(world: World) -> None:
    """An epoch of which a step in front leaves nothing, even one that Spark knows to be empty, moves the query on, and
    says which of Spark's queries it is of (`cairn queries`).
    """
    for batch, condition in enumerate(("amount > 100", "false")):
        world.feed([Row("k", 100_000, 1)])
        query = world.run(world.over(world.frame().where(condition), Visits()).queryName("visits"))
        assert query.progress is not None
        with Client(parse_addresses(world.address)) as client:
            positions = client.describe(DescribeRequest(query.id)).positions
        assert [read_note(positions, name) for name in ("name", "checkpoint")] == ["visits", str(world.checkpoint)]
        assert (query.progress.batch, query.progress.records, query.progress.windows) == (batch, 0, 0)
    assert world.told() == []

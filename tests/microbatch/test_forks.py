"""A forked query goes on by itself from an epoch of another one, which does not notice."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from logstore.cli import main
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.client.wire import EARLIEST
from logstore.errors import UnknownReader
from spe_adapter.epochs.client import describe
from spe_adapter.errors import EpochNotFound, QueryNotFound, TopicTaken
from spe_adapter.microbatch.epoch import reader_name
from spe_adapter.microbatch.errors import ForkRefused
from spe_adapter.tools.fork import Fork, fork
from tests.microbatch.below import Query
from tests.microbatch.operators import Model, rows_of
from tests.microbatch.test_changed_operators import changed
from tests.microbatch.world import World, by_key
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic, produce, read_all

EPOCHS = rows_of(6, 20, 12)
FORKED_AT = 2


def grown(sidecar: Sidecar, directory: Path, topic: str) -> Query:
    """A query that has run all batches."""
    create_topic(sidecar.address, topic, 2)
    query = Query(sidecar.address, topic, directory)
    query.rows = [row for rows in EPOCHS for row in rows]
    query.run(rows_per_batch=20)
    return query


def forked(sidecar: Sidecar, query: Query, directory: Path, to: str, **at: Any) -> tuple[Fork, Query]:
    """A fork, and the query that goes on with it over the same input."""
    made = fork(
        topic=query.topic, to=to, checkpoint=directory / "checkpoint", **at,
        options={"kafka.bootstrap.servers": sidecar.address},
    )  # fmt: skip
    branch = Query(sidecar.address, to, directory)
    branch.rows = list(query.rows)
    return made, branch


def told_from(batch: int, epochs: list[list[Any]] = EPOCHS) -> dict[str, list[tuple[int, int, bool]]]:
    """What is told from a batch on, with the state of the batches before."""
    model = Model()
    for rows in epochs[:batch]:
        model.epoch(rows)
    before = len(model.told)
    for rows in epochs[batch:]:
        model.epoch(rows)
    return by_key(model.told[before:])


@pytest.mark.parametrize("at", [{"batch": FORKED_AT}, {"epoch": 2 * FORKED_AT}])
def test_both_go_on_independently(sidecar: Sidecar, tmp_path: Path, at: dict[str, int]) -> None:
    """The fork tells what the original told behind the epoch; then each has its own rows, and its own operator."""
    name = f"forks-{next(iter(at))}"
    query = grown(sidecar, tmp_path / "original", name)
    made, branch = forked(sidecar, query, tmp_path / "branch", f"{name}-new", **at)
    assert (made.batch, made.epoch) == (FORKED_AT, 2 * FORKED_AT)
    assert made.query == branch.id != query.id
    branch.run(rows_per_batch=20)
    assert by_key(branch.told()) == told_from(FORKED_AT + 1)
    assert by_key(query.told()) == told_from(0)
    more = rows_of(8, 20, 12)
    query.rows += more[6]
    branch.rows += more[7]
    branch.operator = changed()
    query.run(rows_per_batch=20)
    branch.run(rows_per_batch=20)
    assert by_key(query.told()) == told_from(0, [*EPOCHS, more[6]])
    assert by_key(branch.told()) == told_from(FORKED_AT + 1, [*EPOCHS, more[7]])


def test_an_interrupted_fork_is_made_complete(sidecar: Sidecar, tmp_path: Path) -> None:
    """Ended between the epoch in the new topic and its checkpoint: nothing else can begin there, and the same call ends
    it. A call again later, when the fork has gone on, is refused.
    """
    query = grown(sidecar, tmp_path / "original", "forks-ended")
    (tmp_path / "branch").write_text("where the checkpoint's directory should be")
    with pytest.raises(OSError, match="branch"):
        forked(sidecar, query, tmp_path / "branch", "forks-ended-new", batch=FORKED_AT)
    (tmp_path / "branch").unlink()
    early = Query(sidecar.address, "forks-ended-new", tmp_path / "early")
    early.rows = list(query.rows)
    with pytest.raises(TopicTaken):
        early.run(rows_per_batch=20)
    first, _ = forked(sidecar, query, tmp_path / "branch", "forks-ended-new", batch=FORKED_AT)
    made, branch = forked(sidecar, query, tmp_path / "branch", "forks-ended-new", batch=FORKED_AT)
    assert made == first
    branch.run(rows_per_batch=20)
    assert by_key(branch.told()) == told_from(FORKED_AT + 1)
    with pytest.raises(ForkRefused, match=f"was forked .* as query {made.query}, which has gone on to epoch 10"):
        forked(sidecar, query, tmp_path / "branch", "forks-ended-new", batch=FORKED_AT)


def test_what_cannot_be_forked_is_named(sidecar: Sidecar, tmp_path: Path) -> None:
    """No such query, batch or epoch; a topic that is used or too small; a directory that is another query's."""
    query = grown(sidecar, tmp_path / "original", "forks-refused")
    with pytest.raises(QueryNotFound, match="nobody"):
        fork(
            topic=query.topic, query="nobody", to="forks-refused-new", checkpoint=tmp_path / "a",
            options={"kafka.bootstrap.servers": sidecar.address},
        )  # fmt: skip
    with pytest.raises(EpochNotFound, match="batch 77"):
        forked(sidecar, query, tmp_path / "a", "forks-refused-new", batch=77)
    create_topic(sidecar.address, "forks-refused-used", 2)
    produce(sidecar.address, "forks-refused-used", [b"x"])
    with pytest.raises(ForkRefused, match="forks-refused-used-0 has records"):
        forked(sidecar, query, tmp_path / "a", "forks-refused-used")
    create_topic(sidecar.address, "forks-refused-small", 1)
    with pytest.raises(ForkRefused, match="has 1 partitions; the state has 2"):
        forked(sidecar, query, tmp_path / "a", "forks-refused-small")
    with pytest.raises(ForkRefused, match=f"is the checkpoint of query {query.id}"):
        forked(sidecar, query, tmp_path / "original", "forks-refused-new")
    with Client(parse_addresses(sidecar.address)) as client:
        assert "forks-refused-new" not in client.topics(None)
        assert describe(client, query.id).last_epoch == 2 * (len(EPOCHS) - 1)


def test_the_command(sidecar: Sidecar, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cairn state fork` says the new query and how to start it; an error is one line."""
    query = grown(sidecar, tmp_path / "original", "forks-command")
    words = ["state", "fork", "forks-command", "--servers", sidecar.address, "--to", "forks-command-new"]
    words += ["--checkpoint", str(tmp_path / "branch" / "checkpoint")]
    assert main([*words, "--batch", "99"]) == 1
    assert "batch 99" in capsys.readouterr().err
    assert main([*words, "--batch", str(FORKED_AT)]) == 0
    branch = Query(sidecar.address, "forks-command-new", tmp_path / "branch")
    assert f"query {branch.id} starts in forks-command-new with the" in capsys.readouterr().out
    branch.rows = list(query.rows)
    branch.run(rows_per_batch=20)
    assert by_key(branch.told()) == told_from(FORKED_AT + 1)


@pytest.mark.spark
def test_a_fork_in_spark(world: World, tmp_path: Path) -> None:
    """Spark starts on the fork's checkpoint with the batch behind the epoch, in the source's input."""
    for rows in EPOCHS:
        world.feed(rows)
    original = world.run(world.query(rows_per_batch=20))
    before = read_all(world.address, world.topic)
    made = fork(
        topic=world.topic, to=f"{world.topic}-new", batch=FORKED_AT, checkpoint=tmp_path / "branch",
        options={"kafka.bootstrap.servers": world.address},
    )  # fmt: skip
    assert read_all(world.address, world.topic) == before
    branch = World(world.spark, world.address, "unused", tmp_path, create=False)
    branch.source, branch.topic = world.source, f"{world.topic}-new"
    branch.checkpoint, branch.state = tmp_path / "branch", tmp_path / "branch-state"
    query = branch.run(branch.query(rows_per_batch=20))
    assert query.id == made.query != original.id
    model = Model()
    for rows in EPOCHS[: FORKED_AT + 1]:
        model.epoch(rows)
    told = len(model.told)
    for rows in EPOCHS[FORKED_AT + 1 :]:
        model.epoch(rows)
    model.pause()
    assert by_key(branch.told()) == by_key(model.told[told:])
    shutil.rmtree(tmp_path / "branch-state", ignore_errors=True)


def test_a_fork_is_there_when_its_query_starts(eager: Sidecar, tmp_path: Path) -> None:
    """The topic keeps nothing for longer than it must: the new query's first epoch is held until it starts, and then as
    the query says. `allowTrimming`: nothing is held.
    """
    create_topic(eager.address, "original", 2)
    query = Query(eager.address, "original", tmp_path / "original")
    query.rows = [row for rows in EPOCHS for row in rows]
    query.run(rows_per_batch=20)
    create_topic(eager.address, "held", 2, {"retention.ms": "1", "segment.bytes": "1024"})
    made, branch = forked(eager, query, tmp_path / "branch", "held", batch=FORKED_AT)
    name = reader_name(made.query)
    with Client(parse_addresses(eager.address)) as client:
        held = client.describe_reader(name)
        assert [(entry.topic, entry.partition, entry.offset) for entry in held.streams] == [
            ("held", 0, 0), ("held", 1, 0)
        ]  # fmt: skip
        Event().wait(0.5)  # retention is applied many times
        stream = TopicPartition("held", 0)
        assert client.offsets({stream: EARLIEST})[stream].offset == 0
        branch.run(rows_per_batch=20)
        found, wanted = by_key(branch.told()), told_from(FORKED_AT + 1)
        assert all(wanted[key][-len(values) :] == values for key, values in found.items())
        assert client.describe_reader(name).incarnation_number > 0
        options = {"kafka.bootstrap.servers": eager.address, "allowTrimming": "true"}
        free = fork(topic="original", to="free", checkpoint=tmp_path / "free", batch=FORKED_AT, options=options)
        with pytest.raises(UnknownReader):
            client.describe_reader(reader_name(free.query))

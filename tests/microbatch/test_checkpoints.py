"""A checkpoint that does not say what the log says: nothing is lost or doubled without a word, and the log brings the
checkpoint back. Without Spark; tests/microbatch/test_lost_checkpoints.py shows the same with it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from logstore.client.blocking import Client, parse_addresses
from logstore.client.errors import Unavailable
from logstore.errors import StaleEpoch
from spe_adapter.errors import CheckpointDiffers, CheckpointRefused, TopicTaken
from spe_adapter.microbatch.epoch import Step
from spe_adapter.microbatch.errors import BatchesMissing
from spe_adapter.microbatch.topics import prepare_topic
from spe_adapter.tools.rebuild import planned_in_log, rebuild
from tests.microbatch.below import PARTITIONS, Query
from tests.microbatch.operators import Model, Row, rows_of
from tests.microbatch.world import by_key
from tests.support.sidecar import Sidecar


@pytest.fixture
def query(request: pytest.FixtureRequest, sidecar: Sidecar, tmp_path: Path) -> Query:
    """A query that has committed three batches of ten rows, and sees ten more."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:150]
    with Client(parse_addresses(sidecar.address)) as client:
        prepare_topic(client, name, PARTITIONS, PARTITIONS)
    made = Query(sidecar.address, name, tmp_path)
    epochs = rows_of(4, 10, 5)
    made.rows = [row for rows in epochs[:3] for row in rows]
    made.run()
    assert made.newest("commits") == 2
    made.rows += epochs[3]
    return made


def brought_back(query: Query, into: Path | None = None) -> None:
    """The command `cairn checkpoint rebuild`."""
    with Client(parse_addresses(query.address)) as client:
        rebuild(into or query.checkpoint, query.id, planned_in_log(client, query.id))


def assert_each_row_once(query: Query) -> None:
    """What stands in the topic is what one run over all rows tells, ten rows a batch."""
    model = Model()
    for start in range(0, len(query.rows), 10):
        model.epoch(query.rows[start : start + 10])
    assert by_key(query.told()) == by_key(model.told)


def test_the_last_batch_with_the_same_input_is_dropped(query: Query) -> None:
    """Spark runs the last batch again after a crash between the log's commit and its own: it is there once."""
    query.run(dies_before_commit=True)
    assert query.newest("offsets") == 3
    assert query.newest("commits") == 2
    query.run()
    assert len(query.ran) == 4
    assert_each_row_once(query)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_checkpoint_that_lost_its_newest_batches_is_refused_then_rebuilt(query: Query, lost: int) -> None:
    """The number of the last batch with other input is refused by name, as older numbers are; with the checkpoint made
    anew from the log, each row counts once.
    """
    query.forget(*range(3 - lost, 3))
    expected = (CheckpointDiffers, "lost batch 2") if lost == 1 else (StaleEpoch, "rewound")
    with pytest.raises(expected[0], match=rf"{expected[1]}.*cairn checkpoint rebuild CHECKPOINT --query {query.id}"):
        query.run(rows_per_batch=15)
    brought_back(query)
    assert query.newest("commits") == 2
    query.run()
    assert_each_row_once(query)


def test_a_lost_checkpoint_is_refused_then_rebuilt(query: Query, tmp_path: Path) -> None:
    """A query with an empty checkpoint is a new one: it may not write behind the other's state, and is told the other's
    id and the ways out. A checkpoint made from the log in an empty directory goes on exactly once.
    """
    former = query.id
    lost = query.checkpoint
    query.checkpoint = tmp_path / "empty"
    with pytest.raises(
        TopicTaken, match=rf"state and results of query {former}.*rebuild.*new topic.*allowOtherQueries"
    ):
        query.run()
    assert len(query.ran) == 3
    query.checkpoint = lost
    brought_back(query, tmp_path / "new")
    query.checkpoint = tmp_path / "new"
    assert query.id == former
    query.run()
    assert_each_row_once(query)


def test_another_query_may_write_beside_if_its_user_says_so(query: Query, tmp_path: Path) -> None:
    """Said once, at its start; afterwards it is a query of the topic like the other."""
    query.checkpoint = tmp_path / "another"
    query.run(allowOtherQueries="true")
    query.rows += rows_of(5, 10, 5)[4]
    query.run()
    assert query.newest("commits") == 4
    assert len(query.ran) == 3 + 4 + 1


def test_an_old_copy_of_a_checkpoint_that_went_on_is_refused_at_once(query: Query, tmp_path: Path) -> None:
    """Two batches behind, brought back, planned anew under other batches: the first number out of turn ends it."""
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    query.run()
    query.checkpoint = tmp_path / "copy"
    query.forget(2)
    with pytest.raises(StaleEpoch, match="batch 2 is older than the last committed batch, 3"):
        query.run(rows_per_batch=7)
    brought_back(query)
    query.run()
    assert_each_row_once(query)


def test_a_checkpoint_that_went_another_way_is_refused_at_its_next_batch(query: Query) -> None:
    """The last batch is noted as committed with other offsets than the log has (a former Cairn dropped it so): the next
    one does not begin where the log ends, and is refused instead of leaving a gap.
    """
    query.plan(2, 33)
    with pytest.raises(CheckpointDiffers, match=r"batch 3 .* does not begin where batch 2 ended in the log.*\"0\":30"):
        query.run()
    brought_back(query)
    assert query.end(2) == 30
    assert (query.checkpoint / "replaced/0/offsets/2").exists()
    query.run()
    assert_each_row_once(query)


def test_another_querys_checkpoint_is_refused(query: Query, sidecar: Sidecar, tmp_path: Path) -> None:
    """A copied checkpoint carries the other query's id: with a topic that has none of its state, or with input from
    elsewhere, nothing is written.
    """
    with Client(parse_addresses(sidecar.address)) as client:
        prepare_topic(client, f"{query.topic}-2", PARTITIONS, PARTITIONS)
    elsewhere = Query(sidecar.address, f"{query.topic}-2", tmp_path)
    elsewhere.rows = list(query.rows)
    with pytest.raises(BatchesMissing):
        elsewhere.run()
    shutil.rmtree(query.checkpoint / "offsets")
    shutil.rmtree(query.checkpoint / "commits")
    query.source = "other"
    for batch, end in enumerate((10, 20, 30)):
        query.plan(batch, end)
        query.write(f"commits/{batch}", "v1\n{}")
    with pytest.raises(CheckpointDiffers, match="another query's"):
        query.run()


def test_a_changed_checkpoint_is_taken_as_it_is_if_the_user_says_so(query: Query) -> None:
    """What the option says comes true, and no more: the repeated batch's input is dropped, later batches are read."""
    query.forget(2)
    query.rows += rows_of(5, 10, 5)[4]
    query.run(rows_per_batch=15, changedCheckpoint="accept")
    assert [len(rows) for rows in query.ran] == [10, 10, 10, 15]
    assert query.ran[3] == query.rows[35:50]


def test_a_rebuilt_checkpoint_is_rebuilt_again_without_a_change(query: Query) -> None:
    """The command may be given twice, and after having been cut short."""
    query.forget(1, 2)
    with Client(parse_addresses(query.address)) as client:
        planned = planned_in_log(client, query.id)
        first = rebuild(query.checkpoint, query.id, planned)
        assert set(first.written) == {"offsets/1", "offsets/2", "commits/2"}
        assert rebuild(query.checkpoint, query.id, planned) == (2, (), ())
        (query.checkpoint / "commits/2").unlink()
        assert rebuild(query.checkpoint, query.id, planned).written == ("commits/2",)


class LostAnswer:
    """The answer to one commit does not arrive: the driver gives up."""

    def __init__(self) -> None:
        self.is_due = False

    def __call__(self, step: Step, epoch: int, partition: int) -> None:
        """See Probe."""
        if self.is_due and step == "driver after commit":
            self.is_due = False
            raise Unavailable("nobody answered")


def test_nothing_is_built_over_an_epoch_whose_answer_was_lost(query: Query) -> None:
    """An epoch without input is committed, and its driver does not learn of it: the next one reads the log again, and
    closes nothing twice.
    """
    lost = LostAnswer()
    query.rows = [Row(key, 200_000, 1) for key in "abcd"] + [Row("z", 220_000, 1), Row("z", 221_000, 1)]
    query.topic = f"{query.topic}-2"
    query.checkpoint = query.checkpoint.with_name("second")
    with Client(parse_addresses(query.address)) as client:
        prepare_topic(client, query.topic, PARTITIONS, PARTITIONS)
    fixed = query.fixed({})
    driver = query.driver(fixed, lost)
    query.plan(0, 5)
    query.batch(driver, fixed, 0)
    lost.is_due = True
    with pytest.raises(Unavailable):
        query.close_due(driver, fixed)
    query.plan(1, 6)
    query.batch(driver, fixed, 1)
    model = Model()
    model.epoch(query.rows[:5])
    model.pause()
    model.epoch(query.rows[5:])
    assert by_key(query.told()) == by_key(model.told)


@pytest.mark.parametrize("text", ["", "\0" * 40, "v1\n{"], ids=["empty", "zeros", "cut"])
@pytest.mark.parametrize("name", ["offsets/1", "offsets/2", "commits/2", "metadata"])
def test_a_file_that_a_power_cut_left_without_its_content_is_made_anew(query: Query, name: str, text: str) -> None:
    """Spark does not sync its files: after a power cut they may be there, and be empty."""
    former = query.id
    query.write(name, text)
    with Client(parse_addresses(query.address)) as client:
        done = rebuild(query.checkpoint, former, planned_in_log(client, former))
    assert name in done.written
    assert name in done.replaced
    assert query.id == former
    assert (query.checkpoint / f"replaced/0/{name}").read_text() == text
    assert json.loads((query.checkpoint / "commits/2").read_text().removeprefix("v1\n")) is not None
    query.run()
    assert_each_row_once(query)


def test_a_checkpoint_of_another_query_is_not_written_over(query: Query, tmp_path: Path) -> None:
    """The directory's metadata names whose it is."""
    (tmp_path / "metadata").write_text('{"id":"somebody"}')
    with pytest.raises(CheckpointRefused, match="checkpoint of query somebody"):
        brought_back(query, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "metadata", "state"]
    with (
        Client(parse_addresses(query.address)) as client,
        pytest.raises(CheckpointRefused, match="query nobody has committed nothing"),
    ):
        planned_in_log(client, "nobody")

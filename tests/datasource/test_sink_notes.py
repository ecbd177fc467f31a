"""The sink's commits without Spark: real tasks' segments, a real sidecar, and a checkpoint that is cut back or lost."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from logstore.cli import main
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.client.wire import LATEST
from logstore.errors import CorruptBatch, StaleEpoch, UnknownFormatVersion
from logstore.format.epoch_api import DescribeRequest, EpochCommitRequest, StageRequest, TaskOutput
from spe_adapter.codec.digests import MODULUS, digest_of
from spe_adapter.datasource.options import parse_sink
from spe_adapter.datasource.rows import RowWriter
from spe_adapter.datasource.sink import StreamWriter, TaskCommit
from spe_adapter.datasource.sink_notes import SinkNote, WrittenOutput
from spe_adapter.epochs.client import TaskAttempt
from spe_adapter.errors import CheckpointDiffers, TopicTaken
from spe_adapter.host import ThisHost
from spe_adapter.microbatch.topics import refuse_taken
from spe_adapter.spark_checkpoint.planned import planned_of
from spe_adapter.tools.rebuild import planned_in_log, rebuild
from tests.support.streams import create_topic, read_all


class Query:
    """A sink's query: its checkpoint in a directory, or where no driver can read it."""

    def __init__(self, address: str, topic: str, checkpoint: Path, *, readable: bool = True, name: str | None = None):
        self.address = address
        self.topic = topic
        self.id = str(uuid.uuid4())
        self.checkpoint = checkpoint
        self.location = str(checkpoint) if readable else f"hdfs://names{checkpoint}"
        self.name = name
        self.write("metadata", json.dumps({"id": self.id}))

    def write(self, name: str, text: str) -> None:
        """A file of the checkpoint."""
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def epoch(self, number: int, end: int, values: Sequence[str], **options: str) -> None:
        """An epoch, in its own incarnation, whose input ends at `end`: planned, written by two tasks, committed."""
        self.write(f"offsets/{number}", f'v1\n{{"conf":{{}}}}\n{{"in":{{"0":{end}}}}}')
        given = {"kafka.bootstrap.servers": self.address, "topic": self.topic, "checkpointLocation": self.location}
        if self.name is not None:
            given["queryName"] = self.name
        parsed = parse_sink({**given, **options})
        incarnation, commits = str(uuid.uuid4()), []
        digested = not self.location.startswith("/")
        for task in range(2):
            attempt = TaskAttempt(self.id, incarnation, number, task, str(uuid.uuid4()))
            with Client(parsed.servers) as client:
                writer = RowWriter(client, attempt, parsed, ThisHost(), with_digest=digested)
                rows = pa.array([value.encode() for value in values[task::2]], pa.binary())
                writer.add(pa.RecordBatch.from_arrays([rows], names=["value"]))
                commits.append(TaskCommit(attempt, writer.finish(), self.location, digested))
        StreamWriter(parsed).commit([*commits], number)

    def written(self) -> list[str]:
        """What stands in the topic."""
        return sorted((row.value or b"").decode() for row in read_all(self.address, self.topic))


@pytest.fixture(params=[True, False], ids=["read", "digest"])
def query(request: pytest.FixtureRequest, address: str, topic: str, tmp_path: Path) -> Query:
    """A query with two epochs, whose checkpoint the driver can read, or cannot."""
    name = topic.replace("[", "-").replace("]", "-")
    create_topic(address, name, partitions=2)
    made = Query(address, name, tmp_path / "checkpoint", readable=request.param)
    made.epoch(0, 2, ["a", "b"])
    made.epoch(1, 4, ["c", "d"])
    return made


def test_the_same_epoch_again_is_dropped(query: Query) -> None:
    """Spark runs the last epoch again after a crash: with the same input it is there once, however its rows are dealt
    out to tasks.
    """
    query.epoch(1, 4, ["d", "c"])
    assert query.written() == ["a", "b", "c", "d"]
    query.epoch(2, 5, ["e"])
    assert query.written() == ["a", "b", "c", "d", "e"]


def test_the_last_epoch_with_other_input_is_refused(query: Query) -> None:
    """A checkpoint that lost its newest batch plans its number with all the input that there is now: refused by name,
    with the command; nothing is written or dropped in silence.
    """
    with pytest.raises(CheckpointDiffers, match=rf"comes again|lost batch 1.*rebuild CHECKPOINT --query {query.id}"):
        query.epoch(1, 6, ["c", "d", "e", "f"])
    assert query.written() == ["a", "b", "c", "d"]
    query.epoch(1, 6, ["c", "d", "e", "f"], changedCheckpoint="accept")
    assert query.written() == ["a", "b", "c", "d"]


def test_a_query_with_a_lost_checkpoint_is_refused(query: Query, address: str) -> None:
    """A new query from the same checkpoint location would write everything once more."""
    anew = Query(address, query.topic, query.checkpoint)
    anew.location = query.location
    with pytest.raises(TopicTaken, match=rf"its checkpoint, .*{query.id}.*rebuild.*allowOtherQueries"):
        anew.epoch(0, 4, ["a", "b", "c", "d"])
    assert query.written() == ["a", "b", "c", "d"]
    anew.epoch(0, 1, ["a"], allowOtherQueries="true")
    anew.epoch(1, 2, ["b"])
    assert query.written() == ["a", "a", "b", "b", "c", "d"]


def test_a_lost_checkpoint_is_seen_by_an_epoch_without_output(query: Query, address: str) -> None:
    """What a new query reads first may well lead to no output: that its former self wrote here is seen all the same,
    and not only while nothing is committed.
    """
    anew = Query(address, query.topic, query.checkpoint)
    anew.location = query.location
    with pytest.raises(TopicTaken, match=rf"its checkpoint, .*{query.id}"):
        anew.epoch(0, 1, [])
    anew.epoch(0, 1, [], allowOtherQueries="true")
    anew.epoch(1, 2, ["b"])
    assert query.written() == ["a", "b", "b", "c", "d"]


def test_a_first_epoch_without_output_needs_no_topic(address: str, topic: str, tmp_path: Path) -> None:
    """Where nothing is written yet, nobody has written."""
    query = Query(address, f"{topic}-later", tmp_path / "checkpoint")
    query.epoch(0, 1, [])
    query.epoch(1, 2, ["a"])
    assert query.written() == ["a"]


@pytest.mark.parametrize("spelled", ["file://{}", "file:{}", "{}/", "{}/../checkpoint"])
def test_a_location_is_the_same_however_it_is_spelled(address: str, topic: str, tmp_path: Path, spelled: str) -> None:
    """With the scheme of local files, without it, with a slash at its end."""
    create_topic(address, topic)
    query = Query(address, topic, tmp_path / "checkpoint")
    query.epoch(0, 2, ["a", "b"])
    anew = Query(address, topic, query.checkpoint)
    anew.location = spelled.format(query.location)
    with pytest.raises(TopicTaken, match="its checkpoint"):
        anew.epoch(0, 4, ["a", "b", "c", "d"])


def test_several_queries_may_write_into_one_topic(query: Query, address: str, tmp_path: Path) -> None:
    """Queries with checkpoints and names of their own are told apart, without a word from their users; one with the
    name of another is taken for it.
    """
    second = Query(address, query.topic, tmp_path / "second", name="second")
    second.epoch(0, 2, ["x", "y"])
    Query(address, query.topic, tmp_path / "third", name="third").epoch(0, 1, ["z"])
    query.epoch(2, 5, ["e"])
    assert query.written() == ["a", "b", "c", "d", "e", "x", "y", "z"]
    with pytest.raises(TopicTaken, match="its name, 'second'"):
        Query(address, query.topic, tmp_path / "fourth", name="second").epoch(0, 2, ["x", "y"])


def test_epochs_left_out_are_compared_too(query: Query, tmp_path: Path) -> None:
    """`rewoundCheckpoint=skip` leaves out older epochs that are the committed ones, not others with their numbers."""
    with pytest.raises(StaleEpoch, match=rf"rebuild CHECKPOINT --query {query.id}.*new topic.*rewoundCheckpoint"):
        query.epoch(0, 2, ["a", "b"])
    query.epoch(0, 2, ["a", "b"], rewoundCheckpoint="skip")
    with pytest.raises(CheckpointDiffers):
        query.epoch(0, 6, ["a", "b", "c", "d", "e", "f"], rewoundCheckpoint="skip")
    assert query.written() == ["a", "b", "c", "d"]


def test_an_epoch_without_output_is_left_out_too(query: Query) -> None:
    """It has no END to compare it with, and nothing is left out with it; with output, it is another one."""
    query.epoch(2, 5, [])
    query.epoch(3, 6, ["e"])
    query.epoch(2, 5, [], rewoundCheckpoint="skip")
    with pytest.raises(CheckpointDiffers, match=r"trimmed with the topic.*no output"):
        query.epoch(2, 6, ["e"], rewoundCheckpoint="skip")
    assert query.written() == ["a", "b", "c", "d", "e"]


def test_an_epoch_that_was_trimmed_can_be_left_out_if_the_user_says_so(query: Query) -> None:
    """What it wrote cannot be told any more; the message says so."""
    with Client(parse_addresses(query.address)) as client:
        for partition in range(2):
            stream = TopicPartition(query.topic, partition)
            client.delete_records(stream, client.offsets({stream: LATEST})[stream].offset)
    query.epoch(2, 5, ["e"])
    with pytest.raises(CheckpointDiffers, match="trimmed with the topic"):
        query.epoch(0, 2, ["a", "b"], rewoundCheckpoint="skip")
    query.epoch(0, 2, ["a", "b"], rewoundCheckpoint="skip", changedCheckpoint="accept")
    assert query.written() == ["e"]


@pytest.mark.parametrize("positions", ["no JSON", "[1]", '{"v":2,"of":"sink","name":3}'])
def test_positions_of_another_client_say_nothing(
    address: str, topic: str, tmp_path: Path, positions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever commits epochs may note what he likes with them: other queries start beside him, `show` goes on."""
    name = topic.replace("[", "-").replace("]", "-")
    create_topic(address, name)
    foreign = Query(address, name, tmp_path / "foreign")
    foreign.id = f"foreign-{uuid.uuid4()}"
    foreign.epoch(0, 1, ["a"])
    with Client(parse_addresses(address)) as client:
        attempt = TaskAttempt(foreign.id, "run", 1, 0, "attempt")
        writer = RowWriter(client, attempt, parse_sink({"kafka.bootstrap.servers": address, "topic": name}), ThisHost())
        writer.add(pa.RecordBatch.from_arrays([pa.array([b"b"], pa.binary())], names=["value"]))
        output = TaskOutput(0, "attempt", writer.finish().segments)
        client.commit(EpochCommitRequest(foreign.id, "run", 1, "error", (output,), positions, False))
        with pytest.raises(TopicTaken, match=f"output of query {foreign.id}"):
            refuse_taken(client, name, "new")
    Query(address, name, tmp_path / "new").epoch(0, 1, ["c"])
    assert foreign.written() == ["a", "b", "c"]
    assert main(["checkpoint", "show", name, "--servers", address]) == 0
    assert f"{foreign.id}  writes here, epoch 1, input positions not recorded" in capsys.readouterr().out


def test_a_gap_between_epochs_is_refused(address: str, topic: str, tmp_path: Path) -> None:
    """The next epoch begins where the last one ended in the log, or the checkpoint went another way."""
    create_topic(address, topic)
    query = Query(address, topic, tmp_path / "checkpoint")
    query.epoch(0, 2, ["a", "b"])
    query.epoch(0, 2, [])
    query.write("offsets/0", 'v1\n{"conf":{}}\n{"in":{"0":3}}')
    with pytest.raises(CheckpointDiffers, match="does not begin where batch 0 ended"):
        query.epoch(1, 4, ["d"])
    with Client(parse_addresses(address)) as client:
        done = rebuild(query.checkpoint, query.id, planned_in_log(client, query.id))
    assert done.replaced[0] == "offsets/0" or "offsets/0" in done.replaced
    query.epoch(1, 4, ["c", "d"])
    assert query.written() == ["a", "b", "c", "d"]


def test_an_epoch_without_output_is_compared_too(query: Query) -> None:
    """It leaves no END in any stream, but the sidecar knows its input: the same number with output is refused."""
    query.epoch(2, 6, [])
    with Client(parse_addresses(query.address)) as client:
        assert client.describe(DescribeRequest(query.id)).last_epoch == 2
    query.epoch(2, 6, [])
    with pytest.raises(CheckpointDiffers):
        query.epoch(2, 7, ["g"])
    query.write("offsets/2", 'v1\n{"conf":{}}\n{"in":{"0":6}}')
    query.epoch(3, 7, ["g"])
    assert query.written() == ["a", "b", "c", "d", "g"]


def test_an_epoch_of_a_former_version_cannot_be_compared(query: Query) -> None:
    """An epoch committed without a note comes again: refused, unless the user says that it is the same."""
    with Client(parse_addresses(query.address)) as client:
        client.stage(StageRequest(query.id, "old", 2, 0, "a", 0, (), b""))
        client.commit(EpochCommitRequest(query.id, "old", 2, "error", (), "", False))
    with pytest.raises(CheckpointDiffers, match="cannot be compared"):
        query.epoch(2, 5, ["e"])
    query.epoch(2, 5, ["e"], changedCheckpoint="accept")
    query.epoch(3, 6, ["f"])
    assert query.written() == ["a", "b", "c", "d", "f"]


def test_show_says_how_far_each_query_has_read(
    address: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever partition its newest epoch wrote into, and if it wrote into none."""
    create_topic(address, topic, partitions=2)
    query = Query(address, topic, tmp_path / "checkpoint")
    query.epoch(0, 2, ["a", "b"])
    for end in range(3, 7):
        query.epoch(end - 2, end, ["c"])
        assert main(["checkpoint", "show", topic, "--servers", address]) == 0
        assert f'{query.id}  writes here, epoch {end - 2}, batch {end - 2}, read up to {{"in":{{"0":{end}}}}}' in (
            capsys.readouterr().out
        )
    query.epoch(5, 7, [])
    assert main(["checkpoint", "show", topic, "--servers", address]) == 0
    assert 'epoch 5, batch 5, read up to {"in":{"0":7}}' in capsys.readouterr().out


def test_a_note_as_it_is_written() -> None:
    """Byte for byte; it comes back, and damage is named."""
    note = SinkNote("/c", None, None, WrittenOutput(3, 2**64 - 1))
    text = '{"v":2,"of":"sink","checkpoint":"/c","name":null,"output":[3,18446744073709551615]}'
    assert note.to_json() == text
    assert SinkNote.from_json(text) == note
    with_input = SinkNote("/c", "n", planned_of(0, "v1\n{}\n5", None))
    assert SinkNote.from_json(with_input.to_json()) == with_input
    assert SinkNote.from_json("") is None
    assert SinkNote.from_json('{"v":2,"generation":0}') is None
    for wrong in ("{", "[", '{"v":2,"of":"sink","name":3}', '{"v":2,"of":"sink","output":[1]}'):
        with pytest.raises(CorruptBatch):
            SinkNote.from_json(wrong)
    with pytest.raises(UnknownFormatVersion):
        SinkNote.from_json('{"v":3,"of":"sink"}')


def test_a_digest_is_of_records_in_any_order() -> None:
    """It adds up over parts, and differs for keys, values, nulls and borders between the two."""
    keys = pa.array([b"k1", None, b"", b"longer than a word of eight"], pa.binary())
    values = pa.array([b"v", b"w" * 100, None, b"0123456789abcdef"], pa.binary())
    whole = digest_of(keys, values)
    assert sum(digest_of(keys[i : i + 1], values[i : i + 1]) for i in (2, 0, 3, 1)) % MODULUS == whole
    assert digest_of(None, values) == digest_of(pa.nulls(4, pa.binary()), values)
    pairs = [(None, None), (None, b""), (b"", None), (b"", b""), (b"a", b"b"), (b"ab", b""), (b"", b"ab"), (b"b", b"a"),
             (b"\0", b""), (b"\0\0", b""), (b"", b"\0")]  # fmt: skip
    digests = {digest_of(pa.array([key], pa.binary()), pa.array([value], pa.binary())) for key, value in pairs}
    assert len(digests) == len(pairs)
    numbers = [digest_of(None, pa.array([b"%06d" % number], pa.binary())) for number in range(20_000)]
    assert len(set(numbers)) == len(numbers)

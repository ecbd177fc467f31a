"""A first batch that is run again after a crash begins where it began, also where "latest" is another by then."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spe_adapter.datasource.offsets import BEGAN, TopicPartition, began_of, from_json, parse_offsets
from spe_adapter.datasource.options import parse_source
from spe_adapter.datasource.source import RangePartition, StreamReader
from tests.support.spark_session import finish, read_stream
from tests.support.streams import create_topic, produce

pytestmark = pytest.mark.spark


def reader(address: str, topic: str) -> StreamReader:
    """What Spark's planning process has; a new one after every restart."""
    options = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "latest"}
    return StreamReader(parse_source(options, streaming=True))


def ranges(
    found: StreamReader, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]
) -> set[tuple[int, int]]:
    """The offsets that a batch reads of the only partition."""
    pieces = [partition.piece for partition in found.partitions(start, end) if isinstance(partition, RangePartition)]
    return {(piece.start, piece.end) for piece in pieces}


def values(first: int, end: int) -> list[bytes]:
    """Records to produce."""
    return [b"%d" % number for number in range(first, end)]


def test_it_reads_the_same_records(address: str, topic: str) -> None:
    """Spark has written where the batch ends and asks anew where the query starts: the records between stay its own."""
    create_topic(address, topic)
    produce(address, topic, values(0, 10))
    before = reader(address, topic)
    start = before.initialOffset()
    produce(address, topic, values(10, 15))
    end = before.latestOffset(start, ReadAllAvailable())
    assert ranges(before, start, end) == {(10, 15)}
    before.stop()
    after = reader(address, topic)
    again = after.initialOffset()
    assert from_json(again) == {TopicPartition(topic, 0): 15}
    assert ranges(after, again, end) == {(10, 15)}
    produce(address, topic, values(15, 17))
    assert ranges(after, after.initialOffset(), end) == {(10, 15)}
    after.stop()


def test_later_offsets_are_as_they_were(address: str, topic: str) -> None:
    """Only the first batch's end says where the query began; the same offsets are the same text while nothing comes."""
    create_topic(address, topic)
    found = reader(address, topic)
    start = found.initialOffset()
    assert found.latestOffset(start, ReadAllAvailable()) == start
    produce(address, topic, values(0, 3))
    first = found.latestOffset(start, ReadAllAvailable())
    assert list(first) == [BEGAN, topic]
    assert found.latestOffset(first, ReadAllAvailable()) == first
    assert ranges(found, first, first) == set()
    produce(address, topic, values(3, 5))
    second = found.latestOffset(first, ReadAllAvailable())
    assert second == {topic: {"0": 5}}
    assert began_of(second) is None
    assert ranges(found, first, second) == {(3, 5)}
    assert parse_offsets('{"(began)": {"a-0": 1}, "a": {"0": 2}}', "startingOffsets") == {TopicPartition("a", 0): 2}
    found.stop()


def test_a_checkpoint_that_did_not_commit_its_first_batch(
    spark: SparkSession, address: str, topic: str, checkpoint: Path
) -> None:
    """A driver that dies in the first batch: the next one reads all that has come since the query started."""
    create_topic(address, topic)
    produce(address, topic, values(0, 4))

    def run() -> int:
        frame = read_stream(spark, address, subscribe=topic, startingOffsets="latest")
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = finish(writer.trigger(availableNow=True).start())
        return sum(int(progress["numInputRows"]) for progress in query.recentProgress)

    assert run() == 0
    for path in (checkpoint / "commits").iterdir():
        path.unlink()
    produce(address, topic, values(4, 9))
    assert run() == 5

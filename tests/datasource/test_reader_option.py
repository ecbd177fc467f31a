"""The option `reader`: retention keeps what a streaming query has not committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.errors import InvalidConfig
from spe_adapter.datasource.options import parse_source
from spe_adapter.datasource.source import StreamReader
from spe_adapter.errors import DataLost
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.spark_session import finish, last_line, read_stream
from tests.support.streams import create_topic, delete_topic, produce

pytestmark = pytest.mark.spark

EARLIEST = -2


@pytest.fixture
def trimming(tmp_path: Path) -> Iterator[Sidecar]:
    """A sidecar that trims all that it may, at once; each record of a kilobyte fills a chunk."""
    flags = ("--segment-bytes", "1024", "--retention-ms", "1", "--retention-check-interval-ms", "20")
    with Sidecar(tmp_path / "data", *flags) as running:
        yield running


def records(first: int, end: int) -> list[bytes]:
    """Values of a kilobyte."""
    return [b"%d " % number + bytes(1000) for number in range(first, end)]


def run(frame: DataFrame, checkpoint: Path, found: list[int]) -> None:
    """Read what is there; the numbers go into a list."""

    def collect(batch: DataFrame, _: int) -> None:
        found.extend(int(bytes(row["value"]).split(b" ")[0]) for row in batch.collect())

    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    finish(writer.trigger(availableNow=True).start())


def log_start(client: Client, topic: str) -> int:
    """The first offset that is there."""
    stream = TopicPartition(topic, 0)
    return client.offsets({stream: EARLIEST})[stream].offset


def wait_for_start(client: Client, topic: str, expected: int) -> None:
    """Wait until the log starts there; it must never start later."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := log_start(client, topic)) < expected:
        assert time.monotonic() < deadline_s, f"the log still starts at {found}"
        Event().wait(0.01)
    assert found == expected


def test_a_query_that_is_down_loses_nothing(spark: SparkSession, trimming: Sidecar, tmp_path: Path, topic: str) -> None:
    """Retention would remove everything while no query runs; the registered query finds each record, once."""
    create_topic(trimming.address, topic)
    found: list[int] = []
    frame = read_stream(spark, trimming.address, subscribe=topic, startingOffsets="earliest", reader="mine")
    run(frame, tmp_path / "checkpoint", found)  # registers at the start of an empty topic
    produce(trimming.address, topic, records(0, 5))
    with Client(parse_addresses(trimming.address), limit_s=PATIENCE_S) as client:
        assert [entry.offset for entry in client.describe_reader("mine").streams] == [0]
        run(frame, tmp_path / "checkpoint", found)
        produce(trimming.address, topic, records(5, 8))
        run(frame, tmp_path / "checkpoint", found)
        assert found == list(range(8))
        # Spark commits a batch's end when it plans the next one, so the last batch is still held.
        wait_for_start(client, topic, 5)


def test_a_released_query_is_told(spark: SparkSession, tmp_path: Path, topic: str) -> None:
    """It held too much and was released: the query fails and names what is gone, or goes on if it accepts that."""
    flags = ("--segment-bytes", "1024", "--retention-ms", "1", "--retention-check-interval-ms", "20")
    with Sidecar(tmp_path / "data", *flags, "--reader-hold-bytes", "3000") as sidecar:
        create_topic(sidecar.address, topic)
        found: list[int] = []
        options = {"subscribe": topic, "startingOffsets": "earliest", "reader": "mine"}
        run(read_stream(spark, sidecar.address, **options), tmp_path / "checkpoint", found)
        produce(sidecar.address, topic, records(0, 9))
        with Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S) as client:
            wait_for_start(client, topic, 9)
        with pytest.raises(Exception, match="mine") as refused:
            run(read_stream(spark, sidecar.address, **options), tmp_path / "checkpoint", found)
        assert "offset 0" in last_line(refused.value)
        accepting = read_stream(spark, sidecar.address, **options, failOnDataLoss="false")
        run(accepting, tmp_path / "checkpoint", found)
        produce(sidecar.address, topic, records(9, 11))
        run(accepting, tmp_path / "checkpoint", found)
        assert found == [9, 10]


class Sources:
    """The driver's sides of queries, without Spark around them."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._made: list[StreamReader] = []

    def of(self, topics: str, **options: str) -> StreamReader:
        """A query that reads these topics."""
        given = {"kafka.bootstrap.servers": self._sidecar.address, "subscribe": topics, "reader": "mine"}
        source = StreamReader(parse_source({**given, "startingOffsets": "earliest", **options}, streaming=True))
        self._made.append(source)
        return source

    def stop(self) -> None:
        """Close their connections."""
        for source in self._made:
            source.stop()


@pytest.fixture
def sources(trimming: Sidecar) -> Iterator[Sources]:
    """Queries of the sidecar."""
    made = Sources(trimming)
    yield made
    made.stop()


def test_a_new_partition_is_held_once_it_is_planned(trimming: Sidecar, sources: Sources, topic: str) -> None:
    """The query has not committed anything of it yet; what a batch is planned to read must stay until it has."""
    create_topic(trimming.address, topic)
    source = sources.of(topic)
    start = source.initialOffset()
    source.latestOffset(start, ReadAllAvailable())
    with Client(parse_addresses(trimming.address), limit_s=PATIENCE_S) as client:
        client.create_partitions(topic, 2)
        end = source.latestOffset(start, ReadAllAvailable())
        assert end[topic] == {"0": 0, "1": 0}
        held = {(entry.partition, entry.offset) for entry in client.describe_reader("mine").streams}
        assert held == {(0, 0), (1, 0)}
        produce(trimming.address, topic, records(0, 3), partition=1)
        assert client.offsets({TopicPartition(topic, 1): EARLIEST})[TopicPartition(topic, 1)].offset == 0
        client.remove_reader("mine")  # a recovery plans the batch again
        sources.of(topic, failOnDataLoss="false").partitions(start, end)
        assert {entry.partition for entry in client.describe_reader("mine").streams} == {0, 1}


def test_a_topic_that_was_made_anew(trimming: Sidecar, sources: Sources, topic: str) -> None:
    """The query stands behind the end of the new topic: it is refused, or goes on at the end if it accepts that."""
    create_topic(trimming.address, topic)
    produce(trimming.address, topic, records(0, 3))
    sources.of(topic).initialOffset()
    delete_topic(trimming.address, topic)
    create_topic(trimming.address, topic)
    start = {topic: {"0": 3}}
    with pytest.raises(DataLost, match="offset 3"):
        sources.of(topic).latestOffset(start, ReadAllAvailable())
    accepting = sources.of(topic, failOnDataLoss="false")
    accepting.latestOffset(start, ReadAllAvailable())
    with Client(parse_addresses(trimming.address), limit_s=PATIENCE_S) as client:
        assert [entry.offset for entry in client.describe_reader("mine").streams] == [0]
        accepting.commit(start)
        assert [entry.offset for entry in client.describe_reader("mine").streams] == [0]


def test_a_topic_that_is_gone(trimming: Sidecar, sources: Sources, topic: str) -> None:
    """Its streams are dropped, if the query accepts that; the others are held."""
    gone = f"{topic}-gone"
    for name in (topic, gone):
        create_topic(trimming.address, name)
    start = {topic: {"0": 0}, gone: {"0": 0}}
    registered = sources.of(f"{topic},{gone}", failOnDataLoss="false")
    registered.latestOffset(start, ReadAllAvailable())
    delete_topic(trimming.address, gone)
    with pytest.raises(DataLost, match=f"{gone}.* existed and does not any more"):
        sources.of(f"{topic},{gone}").latestOffset(start, ReadAllAvailable())
    with Client(parse_addresses(trimming.address), limit_s=PATIENCE_S) as client:
        registered.commit(start)
        sources.of(f"{topic},{gone}", failOnDataLoss="false").latestOffset(start, ReadAllAvailable())
        assert [entry.topic for entry in client.describe_reader("mine").streams] == [topic]


@pytest.mark.parametrize(("name", "streaming"), [("", True), ("x" * 257, True), ("a\x1b[2J", True), ("fine", False)])
def test_wrong_names_are_refused(name: str, streaming: bool) -> None:
    """Empty, too long, not to be printed, or in a batch query, which has no position to keep."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t", "reader": name}
    with pytest.raises(InvalidConfig, match="option 'reader'"):
        parse_source(given, streaming=streaming)

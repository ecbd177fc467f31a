"""The option `reader`: retention keeps what a streaming query has not committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame, SparkSession

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.errors import InvalidConfig
from spe_adapter.datasource.options import parse_source
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.spark_session import finish, last_line, read_stream
from tests.support.streams import create_topic, produce

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


@pytest.mark.parametrize(("name", "streaming"), [("", True), ("x" * 257, True), ("fine", False)])
def test_wrong_names_are_refused(name: str, streaming: bool) -> None:
    """Empty, too long, or in a batch query, which has no position to keep."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t", "reader": name}
    with pytest.raises(InvalidConfig, match="option 'reader'"):
        parse_source(given, streaming=streaming)

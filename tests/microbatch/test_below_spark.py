"""What a stateful query asks of its topic, its hosts and its data frame, without a query."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.errors import InvalidConfig, InvalidPartitions
from spe_adapter.errors import StateTrimmed
from spe_adapter.host import host_name
from spe_adapter.microbatch.committed import read_committed
from spe_adapter.microbatch.errors import BatchesMissing, StateNotForgotten
from spe_adapter.microbatch.frames import check_watermarks
from spe_adapter.microbatch.host_memory import OnSpark, forget
from spe_adapter.microbatch.topics import prepare_topic
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.windows import Running, Tumbling
from spe_adapter.state.versions import StateDirectory
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic, produce

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def client(sidecar: Sidecar) -> Iterator[Client]:
    """A client of the shared sidecar."""
    with Client(parse_addresses(sidecar.address)) as connected:
        yield connected


def prepared(client: Client, topic: str, partitions: int | None) -> int:
    """How many state partitions a query gets."""
    return prepare_topic(client, topic, partitions, 2)


def test_a_topic_of_its_own_gets_the_partitions_it_needs(client: Client) -> None:
    """A topic that a query made, and into which nobody has written, grows; fewer state partitions leave it as it is."""
    assert prepared(client, "grows", None) == 2
    assert prepared(client, "grows", 5) == 5
    assert client.partitions("grows") == 5
    assert prepared(client, "grows", 3) == 3
    assert prepared(client, "grows", None) == client.partitions("grows") == 5


def test_a_topic_with_records_of_others_is_left_as_it_is(client: Client, sidecar: Sidecar) -> None:
    """More partitions would move their keys: refused, with the ways out."""
    create_topic(sidecar.address, "others", 2, {"retention.ms": "-1", "retention.bytes": "-1"})
    produce(sidecar.address, "others", [b"theirs"], partition=1, key=b"k")
    with pytest.raises(InvalidPartitions, match=r"5 state partitions.*'others' has 2.*in partition 1.*yourself .*own"):
        prepared(client, "others", 5)
    assert client.partitions("others") == 2


def test_a_trimmed_topic_is_called_trimmed(client: Client, sidecar: Sidecar) -> None:
    """A query whose last epoch was trimmed away is told so; one that never wrote there is told something else."""
    create_topic(sidecar.address, "trimmed", 1)
    produce(sidecar.address, "trimmed", [b"a", b"b"])
    with pytest.raises(BatchesMissing, match="holds none"):
        read_committed(client, "trimmed", "query", 6)
    client.delete_records(TopicPartition("trimmed", 0), -1)
    with pytest.raises(StateTrimmed, match=r"'trimmed' was trimmed: partition 0 starts at offset 2 .*epoch, 6, so"):
        read_committed(client, "trimmed", "query", 6)


def stored(root: Path) -> StateDirectory:
    """A query's state on this host."""
    directory = StateDirectory(root, "query", 1 << 30)
    with directory.open(0, SCHEMA, "print", None, _Nothing()) as state:
        state.overlay().ensure(pa.array([b"k"]), np.zeros(1, np.int64))
    assert list(root.glob("query/p0/*"))
    return directory


class _Nothing:
    """A log without state."""

    def since(self, tag: object) -> None:
        return None

    def everything(self) -> tuple[()]:
        return ()

    def expected(self) -> int:
        return 0

    def note(self) -> bytes:
        return b""


def test_state_is_forgotten_or_it_is_said_where_it_is_not(tmp_path: Path) -> None:
    """On this host and on those that Spark's tasks reach; a host that none came to, or where it is in use, is named."""
    stored(tmp_path)
    forget("query", str(tmp_path), {host_name()}, lambda job: pytest.fail("no other host was named"))
    assert not list(tmp_path.glob("query/*"))
    with pytest.raises(StateNotForgotten, match=r"query query .*\(b: a task still uses it; c: no Spark task ran"):
        forget("query", str(tmp_path), {"a", "b", "c"}, lambda job: [("a", True), ("b", True), ("b", False)])
    stored(tmp_path)
    user = os.open(tmp_path / "query/lock", os.O_RDONLY)
    fcntl.flock(user, fcntl.LOCK_SH)
    with pytest.raises(StateNotForgotten, match=f"{host_name()}: a task still uses it"):
        forget("query", str(tmp_path), (), lambda job: [])
    os.close(user)
    forget("query", str(tmp_path), (), lambda job: [])


@pytest.mark.spark
def test_tasks_forget_on_the_hosts_they_come_to(spark: SparkSession, tmp_path: Path) -> None:
    """The function runs in Spark's workers, and what it gives comes back with the host's name."""
    stored(tmp_path)
    seen: list[tuple[str, bool]] = []

    def everywhere(job: object) -> list[tuple[str, bool]]:
        stored(tmp_path)
        seen.extend(OnSpark(spark)(job))  # type: ignore[arg-type]
        return seen

    with pytest.raises(StateNotForgotten, match="elsewhere: no Spark task"):
        forget("query", str(tmp_path), {"elsewhere"}, everywhere)
    assert set(seen) == {(host_name(), True)}
    assert not list(tmp_path.glob("query/*"))


@pytest.mark.spark
def test_a_watermark_on_the_frame_has_an_effect_or_is_refused(spark: SparkSession) -> None:
    """The operator's own, or one for an operator of Spark's in the frame, is taken; another is refused by name."""
    frame = spark.readStream.format("rate").load().withColumn("key", sf.lit("k"))
    late = frame.withWatermark("timestamp", "1 minute")
    windows = Aggregate(Tumbling("1 hour", time="timestamp", delay="1 minute"), n=agg.count())
    running = Aggregate(Running(), n=agg.count())
    join = WindowJoin("1 hour", left_time="timestamp", right_time="at", left_delay="1 minute")
    for data, operator in ((frame, running), (late, windows), (late, join), (late.dropDuplicates(["value"]), running)):
        check_watermarks(data, operator)
    both = late.withColumnRenamed("timestamp", "at").join(late, "value")
    check_watermarks(both, running)
    for data, operator, said in (
        (late, running, "operator Aggregate uses no event time"),
        (
            frame.withWatermark("timestamp", "1 day 5 seconds"),
            windows,
            r"86405000 ms.*'timestamp' with a delay of 6",
        ),
        (late.where("value > 3").select("key"), running, r"withWatermark\('timestamp', 60000 ms\)"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            check_watermarks(data, operator)

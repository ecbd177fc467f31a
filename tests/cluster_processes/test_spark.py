"""Spark's queries on a cluster that loses its hosts one after the other: exact output, state from the replicated log.

The output is counted by librdkafka. Input lies in the cluster as well. Where hosts are processes, the short run has its
test in `tests/microbatch/test_on_a_cluster.py`, beside a Spark that runs anyway.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from logstore.testing.cluster import Cluster
from tests.cluster_processes.clients import ends
from tests.cluster_processes.spark_world import consumed, create, fed, feed, kills_in_turn, run_stateful
from tests.continuous.processes import RunnerProcess, Work, expected
from tests.metadata.support import needs_etcd
from tests.support.cluster_network import are_containers, new_network
from tests.support.spark_session import read_stream, require_connector, start_spark, write_stream
from tests.support.streams import produce
from tests.support.waiting import until

pytestmark = [needs_etcd, pytest.mark.spark]

GUIDE = (Path(__file__).resolve().parents[2] / "docs/spark.md").read_text(encoding="utf-8")
GUIDE_SERVERS = "10.0.0.1:9092,10.0.0.2:9092,10.0.0.3:9092"
MOST_HEARD = 10_000
GONE_ON = 500
"""Records that show that a query goes on."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session."""
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def run_sink(spark: SparkSession, cluster: Cluster, directory: Path, records: int, epochs: int, kills: str) -> None:
    """A query with the sink through kills: two output topics, each record once."""
    for topic, partitions in (("input", 2), ("even", 2), ("odd", 3)):
        create(cluster.bootstrap, topic, partitions)
    for partition in range(2):
        values = [b"%06d" % number for number in range(partition, records, 2)]
        produce(cluster.bootstrap, "input", values, partition=partition)
    frame = read_stream(
        spark, cluster.bootstrap, subscribe="input", maxOffsetsPerTrigger=str(records // epochs)
    ).selectExpr("value as key", "value", "if(partition = 0, 'even', 'odd') as topic")

    def due(number: int) -> bool:
        written = sum(len(consumed(cluster.bootstrap, topic)) for topic in ("even", "odd"))
        return written >= (1 + number) * records // (len(kills) + 2)

    with kills_in_turn(cluster, kills, due) as killed:
        write_stream(frame, cluster.bootstrap, directory / "sink")
    assert "".join(killed) == kills
    for topic, first in (("even", 0), ("odd", 1)):
        found = Counter(value for _, value in consumed(cluster.bootstrap, topic))
        assert found == Counter(b"%06d" % number for number in range(first, records, 2))


def start_connector(spark: SparkSession, servers: str, checkpoint: Path) -> StreamingQuery:
    """A query that copies the topic `given` into `taken`, by Spark's own Kafka source and sink."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    frame = source.option("subscribe", "given").option("startingOffsets", "earliest").load().select("value")
    sink = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "taken")
    return sink.option("checkpointLocation", str(checkpoint)).start()


def copied(servers: str) -> int:
    """How many records are in `taken`."""
    return sum(ends(servers, TopicPartition("taken", partition))[1] for partition in range(2))


def run_the_guide(spark: SparkSession, servers: str, directory: Path) -> None:
    """The guide's query for a cluster, as it stands but for the addresses: every record is copied once."""
    (block,) = re.findall(r"^```python\n(.*?)^```", GUIDE.split("## On a cluster")[1], flags=re.MULTILINE | re.DOTALL)
    for topic in ("numbers", "copy"):
        create(servers, topic, 2)
    values = [b"%d" % number for number in range(300)]
    produce(servers, "numbers", values, key=b"k")
    names: dict[str, Any] = {"spark": spark, "checkpoints": str(directory / "guide")}
    exec(compile(block.replace(GUIDE_SERVERS, servers), "docs/spark.md", "exec"), names)
    try:
        names["copy"].processAllAvailable()
    finally:
        names["copy"].stop()
    assert Counter(value for _, value in consumed(servers, "copy")) == Counter(values)


@pytest.mark.skipif(not are_containers(), reason="tests/microbatch/test_on_a_cluster.py has it on processes")
def test_a_stateful_query_outlives_the_loss_of_a_host(spark: SparkSession, tmp_path: Path) -> None:
    """`kill -9` of the host that has its epochs, while it runs; then a new driver that has nothing in memory loads the
    state from the log, with that host still away. Here the hosts are containers.
    """
    with Cluster(tmp_path / "hosts", network=new_network()) as cluster:
        run_stateful(spark, cluster, tmp_path, 4, "a")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_queries_outlive_all_hosts_in_turn(spark: SparkSession, tmp_path: Path) -> None:
    """Each host is killed several times while queries with state and with the sink run; the guide's query runs too."""
    with Cluster(tmp_path / "hosts", network=new_network()) as cluster:
        run_stateful(spark, cluster, tmp_path, 40, "abcabcabc")
        run_the_guide(spark, cluster.bootstrap, tmp_path)
        for name in "abc":
            if not cluster[name].is_running:
                cluster[name].start()
        cluster.wait_members()
        run_sink(spark, cluster, tmp_path, 60_000, 60, "cabcabcab")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sparks_own_connector_outlives_all_hosts_in_turn(spark: SparkSession, tmp_path: Path) -> None:
    """A query with Spark's own Kafka source and sink sees no error while each host is killed in turn, and goes on while
    that host is away. Every record is copied; the sink is at least once, so some may be there twice.
    """
    require_connector()
    with Cluster(tmp_path / "hosts", network=new_network()) as cluster:
        servers = cluster.bootstrap
        for topic in ("given", "taken"):
            create(servers, topic, 2)
        query = start_connector(spark, servers, tmp_path / "connector")

        def go_on() -> None:
            wanted = copied(servers) + GONE_ON
            until(lambda: not query.isActive or copied(servers) >= wanted, f"{wanted} records are copied")
            assert query.isActive, str(query.exception())

        try:
            with fed(servers, "given", 2) as given:
                for name in "abcabc":
                    go_on()
                    cluster[name].kill()
                    go_on()
                    cluster[name].start()
                    cluster.wait_members()
            until(lambda: {value for _, value in consumed(servers, "taken")} >= set(given), "all records are copied")
            assert query.isActive, str(query.exception())
        finally:
            query.stop()
        found = consumed(servers, "taken")
        print(f"{len(given)} records, {len(found) - len(given)} of them twice")
        assert {value for _, value in found} == set(given)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_runners_outlive_all_hosts_in_turn(tmp_path: Path) -> None:
    """Continuous runners, some killed with a host: the next one goes on from the log, wherever that is."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    given = [(b"key-%d" % min(int(chance.paretovariate(0.4)), 900), chance.randint(0, 999)) for _ in range(24_000)]
    with Cluster(tmp_path / "hosts", network=new_network()) as cluster:
        servers = cluster.bootstrap
        create(servers, "in", 1)
        feed(servers, "in", given)
        work = Work(servers, "killed", len(given))
        for name in "abcabcabc":
            with RunnerProcess(work) as runner:
                for _ in range(chance.randint(1, 6)):
                    assert runner.hear()[0] in ("recovered", "epoch")
                cluster[name].kill()
                if chance.random() < 0.5:
                    runner.kill()
                else:
                    assert runner.hear()[0] in ("recovered", "epoch")
            cluster[name].start()
            cluster.wait_members()
        with RunnerProcess(work) as runner:
            assert list(runner.hear_until("done", MOST_HEARD))[-1] == ("done",)
        assert consumed(servers, "out-killed") == expected(given)

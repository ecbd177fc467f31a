"""Spark's queries on a cluster of processes: their topics, a consumer of their output that is not ours, and kills."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.testing.cluster import Cluster
from spe_adapter.microbatch.query import Stateful
from spe_adapter.operators.base import Operator
from tests.continuous.fragments import START_MS
from tests.microbatch.operators import Row, expected_of
from tests.microbatch.world import World, by_key
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

ROWS, KEYS = 40, 20
SPARE = 10
"""Epochs for queries that are faster than the kills."""


def create(servers: str, topic: str, partitions: int) -> None:
    """A topic with as many replicas as the cluster gives."""
    with Client(parse_addresses(servers), limit_s=PATIENCE_S) as client:
        client.create_topic(topic, partitions)


def feed(servers: str, topic: str, rows: Sequence[tuple[bytes, int]]) -> None:
    """Keys and numbers into a topic's first partition, at the times that the fragments of tests expect."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for at, (key, value) in enumerate(rows):
        while True:
            try:
                producer.produce(topic, b"%d" % value, key, partition=0, timestamp=START_MS + at)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0


@contextmanager
def fed(servers: str, topic: str, partitions: int) -> Iterator[list[bytes]]:
    """Numbers that go to a topic while the context lasts, some hundred a second; at its end all are acknowledged."""
    sent: list[bytes] = []
    failed: list[str] = []
    over = threading.Event()

    def run() -> None:
        producer = Producer(
            {
                "bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5,
                "message.timeout.ms": PATIENCE_S * 1000,
            }
        )  # fmt: skip
        while not over.wait(0.001):
            sent.append(b"%d" % len(sent))
            producer.produce(
                topic, sent[-1], partition=len(sent) % partitions,
                on_delivery=lambda error, _: failed.append(repr(error)) if error is not None else None,
            )  # fmt: skip
            producer.poll(0)
        left = producer.flush(PATIENCE_S)
        if left:
            failed.append(f"{left} without an answer")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()
    assert failed == []


def committed(servers: str) -> int:
    """How many epochs the only query of the cluster has committed."""
    with Client(parse_addresses(servers), limit_s=PATIENCE_S) as client:
        queries = Admin(client).queries()
    return max((query.last_epoch + 1 for query in queries if query.last_epoch is not None), default=0)


def consumed(servers: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Keys and values of a topic, as librdkafka reads them from the beginning to the end of all its partitions."""
    partitions: list[int] = []

    def is_known() -> bool:  # to the host that is asked
        shown = AdminClient({"bootstrap.servers": servers}).list_topics(topic, PATIENCE_S).topics[topic]
        partitions[:] = shown.partitions
        return bool(partitions)

    until(is_known, f"{topic} has partitions")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "check", "enable.partition.eof": True})
    found: list[tuple[bytes | None, bytes]] = []
    left = set(partitions)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        while left:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(found)} records of {topic}, then silence"
            if message.error() is not None:
                left.discard(message.partition())
            else:
                found.append((message.key(), message.value()))
    finally:
        consumer.close()
    return found


class ClusterWorld(World):
    """A stateful query's surroundings on a cluster; its output is read by librdkafka."""

    def __init__(self, spark: SparkSession, servers: str, name: str, directory: Path) -> None:
        super().__init__(spark, servers, name, directory, create=False)

    def over(
        self, frame: DataFrame, operator: Operator, *, partitions: int | None = 2, key: str | Sequence[str] = "key"
    ) -> Stateful:
        """A query that waits for as long as hosts need to take over."""
        made = super().over(frame, operator, partitions=partitions, key=key)
        return made.option("kafka.delivery.timeout.ms", PATIENCE_S * 1000)

    def texts(self) -> list[str]:
        """All results as they are."""
        return [value.decode() for _, value in consumed(self.address, self.topic)]


@contextmanager
def kills_in_turn(cluster: Cluster, names: str, due: Callable[[int], bool]) -> Iterator[list[str]]:
    """Kill one host after the other while the context lasts, each when `due` says so of the number of kills, and start
    it again before the next. Gives the names of those that were killed.
    """
    killed: list[str] = []
    over = threading.Event()

    def run() -> None:
        for name in names:
            while not due(len(killed)):
                if over.wait(0.02):
                    return
            if killed:
                cluster[killed[-1]].start()
                cluster.wait_members()
            cluster[name].kill()
            killed.append(name)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def rows_of(epochs: int) -> list[list[Row]]:
    """Rows in the order of their times: a run that ends, and closes what is due, leaves none of the next one late."""
    numbers = range(epochs * ROWS)
    rows = [Row(f"k{number * 7 % KEYS}", START_MS + 5 * number, number * 13 % 101) for number in numbers]
    return [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]


def run_stateful(spark: SparkSession, cluster: Cluster, directory: Path, epochs: int, kills: str) -> None:
    """A stateful query through kills, and another driver that begins without what the first one had in memory."""
    world = ClusterWorld(spark, cluster.bootstrap, "visits", directory)
    create(cluster.bootstrap, world.source, 1)
    made = rows_of(epochs + SPARE)
    for rows in made[: epochs - 1]:
        world.feed(rows)
    fed = epochs - 1

    def run_one_more() -> None:
        nonlocal fed
        world.feed(made[fed])
        fed += 1
        world.run(world.query(rows_per_batch=ROWS))

    def due(number: int) -> bool:
        return committed(cluster.bootstrap) >= 1 + number * (epochs - 2) // len(kills)

    with kills_in_turn(cluster, kills, due) as killed:
        world.run(world.query(rows_per_batch=ROWS))
        while "".join(killed) != kills and fed < len(made) - 1:
            run_one_more()
        until(lambda: "".join(killed) == kills, "all kills are done")
    assert "".join(killed) == kills
    shutil.rmtree(world.state)
    run_one_more()
    assert by_key(world.told()) == by_key(expected_of(made[:fed]))

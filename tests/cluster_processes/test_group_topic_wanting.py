"""Consumers in groups, written by others, while too few hosts live of those that keep what groups commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaException, Producer
from kafka import KafkaConsumer
from kafka.admin import NewTopic
from kio.schema.errors import ErrorCode

from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.cluster_processes.clients import create_topic
from tests.cluster_processes.test_processes import leader_of
from tests.kafka.wire_client import WireClient
from tests.metadata.support import needs_etcd
from tests.support.beside import beside
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
TOPIC, GROUP, GROUPS = "orders", "readers", "__cairn_groups"
SESSION_MS: Final = 10_000
CLOSE_MS: Final = 5_000
AT_ONCE: Final = 200
FIND_COORDINATOR, OFFSET_COMMIT = 10, 8


class Reader(Protocol):
    """A consumer of the group, which commits by itself if its client's end is bounded then."""

    def poll(self) -> list[int]:
        """The next numbers, for a second at most."""

    def close(self) -> None:
        """End it."""


class ConfluentReader:
    """librdkafka."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "session.timeout.ms": SESSION_MS}
        self.consumer = Consumer({"bootstrap.servers": bootstrap, "auto.commit.interval.ms": 500, **settings})
        self.consumer.subscribe([TOPIC])

    def poll(self) -> list[int]:
        found = self.consumer.consume(AT_ONCE, 1)
        return [int(each.value()) for each in found if each.error() is None]

    def close(self) -> None:
        self.consumer.close()


class PythonReader:
    """kafka-python. Its end takes as long as it is given for a last commit."""

    def __init__(self, bootstrap: str) -> None:
        self.consumer = KafkaConsumer(
            TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, auto_offset_reset="earliest",
            auto_commit_interval_ms=500, session_timeout_ms=SESSION_MS,
        )  # fmt: skip

    def poll(self) -> list[int]:
        found = self.consumer.poll(timeout_ms=1000, max_records=AT_ONCE)
        return [int(each.value) for records in found.values() for each in records]

    def close(self) -> None:
        self.consumer.close(timeout_ms=CLOSE_MS)


class AioReader:
    """aiokafka, which does not commit by itself: its end would try that again and again, as it does beside Kafka."""

    def __init__(self, bootstrap: str) -> None:
        self.loop = asyncio.Runner()

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, auto_offset_reset="earliest",
                enable_auto_commit=False, session_timeout_ms=SESSION_MS,
            )  # fmt: skip
            await consumer.start()
            return consumer

        self.consumer = self.loop.run(start())

    def poll(self) -> list[int]:
        found = self.loop.run(self.consumer.getmany(timeout_ms=1000, max_records=AT_ONCE))
        return [int(each.value) for records in found.values() for each in records]

    def close(self) -> None:
        self.loop.run(self.consumer.stop())
        self.loop.close()


READERS: Final[dict[str, Callable[[str], Reader]]] = {
    "confluent": ConfluentReader,
    "kafka-python": PythonReader,
    "aiokafka": AioReader,
}


class Load:
    """Numbers that are produced until `ended` is set."""

    def __init__(self, bootstrap: str) -> None:
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self.sent = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.producer.produce(TOPIC, b"%d" % self.sent, partition=0)
            self.sent += 1
            self.producer.poll(0)
        assert self.producer.flush(PATIENCE_S) == 0


@contextmanager
def producing(cluster: Cluster) -> Iterator[Load]:
    """A load meanwhile, on a topic that one host of three may lead alone."""
    create_topic(cluster.bootstrap, NewTopic(TOPIC, 1, 3, topic_configs={"min.insync.replicas": "1"}))
    load = Load(cluster.bootstrap)
    with beside(load.run, load.ended.set):
        yield load


def read_until(reader: Reader, read: list[int], is_enough: Callable[[], bool]) -> None:
    """Have a consumer read on until that is enough."""

    def is_read() -> bool:
        read.extend(reader.poll())
        return is_enough()

    until(is_read, lambda: f"more numbers than the {len(read)} that are read")


def read_more(reader: Reader, read: list[int], count: int) -> None:
    """Have a consumer read so many more numbers."""
    wanted = len(read) + count
    read_until(reader, read, lambda: len(read) >= wanted)


def asked(host: ClusterHostProcess) -> tuple[ErrorCode, ErrorCode]:
    """What a host answers to a client that looks for the coordinator, and that commits: errors."""
    port = int(host.address.rpartition(":")[2])
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    commit = {"group_id": "tool", "generation_id_or_member_epoch": -1, "member_id": ""}
    with WireClient(port) as client:
        found = client.request(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=("tool",)).coordinators[0]
        answer = client.request(OFFSET_COMMIT, 8, **commit, topics=[{"name": TOPIC, "partitions": [part]}])
    return found.error_code, answer.topics[0].partitions[0].error_code


@pytest.mark.parametrize("client", READERS)
@pytest.mark.parametrize("is_coordinator_lost", [False, True])
def test_a_consumer_reads_on_while_its_group_cannot_commit(
    tmp_path: Path, client: str, *, is_coordinator_lost: bool
) -> None:
    """Two of three hosts are killed, the coordinator perhaps among them: the one that is left is named as such, and
    refuses commits with COORDINATOR_NOT_AVAILABLE. The consumer reads on, and its end does not wait for a host. When
    the hosts are back, another one of the group goes on: no number is skipped, and commits are taken.
    """
    with Cluster(tmp_path / "cluster") as cluster, producing(cluster) as load:
        reader, read = READERS[client](cluster.bootstrap), list[int]()
        read_more(reader, read, 50)
        coordinator = leader_of(cluster, topic=GROUPS)
        others = [host for host in cluster if host is not coordinator]
        left, *killed = [*others, coordinator] if is_coordinator_lost else [coordinator, *others]
        for host in killed:
            host.kill()
        not_available = ErrorCode.coordinator_not_available
        until(lambda: asked(left) == (ErrorCode.none, not_available), "commits are refused")
        read_more(reader, read, 50)
        reader.close()
        for host in killed:
            host.start()
        cluster.wait_members()
        until(lambda: asked(leader_of(cluster, topic=GROUPS)) == (ErrorCode.none, ErrorCode.none), "commits are taken")
        reader = READERS[client](cluster.bootstrap)
        load.ended.set()
        read_until(reader, read, lambda: load.sent - 1 in read)
        reader.close()
        assert set(read) == set(range(load.sent))


def test_a_commit_of_librdkafka_is_told_at_once(tmp_path: Path) -> None:
    """What an application hears that waits for its commit: no time limit of its client's."""
    with Cluster(tmp_path / "cluster") as cluster, producing(cluster):
        reader, read = ConfluentReader(cluster.bootstrap), list[int]()
        read_more(reader, read, 50)
        coordinator = leader_of(cluster, topic=GROUPS)
        for host in cluster:
            if host is not coordinator:
                host.kill()
        told: list[str] = []

        def is_refused() -> bool:
            read.extend(reader.poll())
            try:
                reader.consumer.commit(asynchronous=False)
            except KafkaException as error:
                if not error.args[0].name().startswith("_"):  # those are the client's own: a connection that was lost
                    told.append(error.args[0].name())
            return bool(told)

        until(is_refused, "a commit is refused")
        assert told == ["COORDINATOR_NOT_AVAILABLE"]
        reader.close()

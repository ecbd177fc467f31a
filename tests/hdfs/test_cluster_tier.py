"""Sealed chunks of a cluster in a real HDFS: three sidecar processes, an etcd, and owners that are killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.hdfs.test_tier import cairn, log_files, tier_url
from tests.hdfs.writers import wait_until
from tests.metadata.support import needs_etcd
from tests.support.hdfs.cluster import HdfsCluster
from tests.support.limits import PATIENCE_S

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
T = TypeVar("T")
TOPIC = "orders"
CHUNK_BYTES = 8 << 10
FIRST_MS = 1_700_000_000_000
SETTINGS = {"segment.bytes": str(CHUNK_BYTES), "remote.storage.enable": "true", "local.retention.bytes": "0"}


def admin(cluster: Cluster) -> AdminClient:
    """An administrator."""
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def create(cluster: Cluster) -> str:
    """The topic, with small chunks; returns its id."""
    asked = admin(cluster)
    asked.create_topics([NewTopic(TOPIC, 1, 3, config=SETTINGS)])[TOPIC].result(PATIENCE_S)
    (host, *_) = cluster
    wait_until(lambda: f"event=topic_created topic={TOPIC}" in host.log, "the host knows the topic")
    return host.log.split(f"event=topic_created topic={TOPIC} id=")[1].split()[0]


def leader(cluster: Cluster) -> ClusterHostProcess:
    """The host that leads the partition, once there is one."""

    def found() -> int:
        node: int = again(lambda: admin(cluster).list_topics(TOPIC, 5)).topics[TOPIC].partitions[0].leader
        return node

    wait_until(lambda: found() > 0, "somebody leads the partition")
    return cluster.by_node(found())


def produce(cluster: Cluster, first: int, count: int) -> None:
    """Records of 1 KB with numbers, two at a time, so that chunks become full (but none in less than 100 ms)."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(first, first + count):
        value = b"%06d" % number + bytes(1000)
        producer.produce(TOPIC, value, partition=0, timestamp=FIRST_MS + 1000 * number)
        if number % 2:
            assert producer.flush(PATIENCE_S) == 0


def consumer(cluster: Cluster) -> Consumer:
    """A consumer without a group of its own."""
    return Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "test", "enable.auto.commit": False})


def again(ask: Callable[[], T]) -> T:
    """What a cluster answers, asked again while hosts change."""
    answers: list[T] = []

    def is_answered() -> bool:
        try:
            answers.append(ask())
        except KafkaException:
            return False
        return True

    wait_until(is_answered, "an answer")
    return answers[0]


def read(cluster: Cluster, offset: int = 0) -> list[int]:
    """The numbers from an offset on."""
    with closing(consumer(cluster)) as reader:
        place = TopicPartition(TOPIC, 0, offset)
        reader.assign([place])
        _, end = again(lambda: reader.get_watermark_offsets(place, timeout=5))
        found: list[int] = []
        while len(found) < end - offset:
            record = reader.poll(PATIENCE_S)
            assert record is not None
            if record.error() is None:
                found.append(int(record.value()[:6]))
        return found


def at_time(cluster: Cluster, number: int) -> int:
    """The offset of the first record at or behind a number's time."""
    with closing(consumer(cluster)) as reader:
        asked = TopicPartition(TOPIC, 0, FIRST_MS + 1000 * number)
        (found,) = again(lambda: reader.offsets_for_times([asked], timeout=5))
        assert found.offset != OFFSET_INVALID
        return int(found.offset)


def copies(cluster: Cluster, topic_id: str) -> list[int]:
    """How many chunks of the topic each host has on its disk."""
    name = topic_id.replace("-", "")
    return [len(list((host.data_dir / "replicas").glob(f"{name}*/*.log"))) for host in cluster]


def described(cluster: Cluster) -> dict[str, int] | None:
    """What of the partition is in the tier, as an operator is told."""
    partition = json.loads(cairn("topics", "describe", TOPIC, "--servers", cluster.bootstrap, "--json"))["partitions"][
        0
    ]
    found: dict[str, int] | None = partition["tier"]
    return found


def test_a_cluster_keeps_its_log_in_hdfs(hdfs: HdfsCluster, tmp_path: Path) -> None:
    """Sealed chunks leave all hosts and are read from HDFS, by offset and by time, also after the owner was killed; the
    next owner goes on storing; a NameNode in safe mode delays nothing else; a topic that is deleted leaves nothing.
    """
    name = "cluster"
    with Cluster(
        tmp_path / "c", ("a", "b", "c"), "--tier-url", tier_url(hdfs, name), "--tier-replicas", "2"
    ) as cluster:
        topic_id = create(cluster)
        produce(cluster, 0, 60)
        wait_until(lambda: any("event=local_copies_removed" in host.log for host in cluster), "hosts give up copies")
        wait_until(lambda: max(copies(cluster, topic_id)) <= 2, "hosts remove them")
        stored = log_files(hdfs, name)
        assert read(cluster) == list(range(60))
        tier = described(cluster)
        assert tier is not None
        assert tier["chunks"] >= len(stored)

        leader(cluster).kill()
        assert read(cluster) == list(range(60))
        assert at_time(cluster, 7) == 7
        produce(cluster, 60, 40)
        wait_until(lambda: len(log_files(hdfs, name)) > len(stored), "the next owner stores chunks")
        for host in cluster:
            if not host.is_running:
                host.start()
        cluster.wait_members()

        hdfs.admin("-safemode", "enter")
        try:
            produce(cluster, 100, 40)
            assert read(cluster, 130) == list(range(130, 140))
        finally:
            hdfs.admin("-safemode", "leave")
        wait_until(lambda: max(copies(cluster, topic_id)) <= 2, "chunks go when HDFS takes them")
        assert read(cluster) == list(range(140))

        asked = admin(cluster)
        asked.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)
        wait_until(lambda: log_files(hdfs, name) == [], "no file of a topic that is gone")

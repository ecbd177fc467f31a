"""Sealed chunks of a cluster in a real HDFS: three sidecar processes, an etcd, and owners that are killed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from logstore.testing.cluster import Cluster
from tests.cluster.test_processes import TOPIC, create, leader_of, until
from tests.hdfs.test_tier import cairn, log_files, tier_url
from tests.metadata.support import needs_etcd
from tests.support.hdfs.cluster import HdfsCluster

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
PLACE = TopicPartition(TOPIC, 0)
CHUNK_BYTES = 8 << 10
FIRST_MS = 1_700_000_000_000
SETTINGS = {"segment.bytes": str(CHUNK_BYTES), "remote.storage.enable": "true", "local.retention.bytes": "0"}


def produce(cluster: Cluster, first: int, count: int) -> None:
    """Records of 1 KB with numbers, two at a time, so that chunks become full."""
    with closing(KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", retries=100)) as producer:
        for number in range(first, first + count):
            value = b"%06d" % number + bytes(1000)
            sent = producer.send(TOPIC, value, partition=0, timestamp_ms=FIRST_MS + 1000 * number)
            if number % 2:
                sent.get(60)


def read(cluster: Cluster, offset: int = 0) -> list[int]:
    """The numbers from an offset on."""
    with closing(KafkaConsumer(bootstrap_servers=cluster.bootstrap, consumer_timeout_ms=60_000)) as consumer:
        consumer.assign([PLACE])
        end = consumer.end_offsets([PLACE])[PLACE]
        consumer.seek(PLACE, offset)
        found: list[int] = []
        while consumer.position(PLACE) < end:
            for records in consumer.poll(1_000).values():
                found += [int(record.value[:6]) for record in records]
        return found


def at_time(cluster: Cluster, number: int) -> int:
    """The offset of the first record at or behind a number's time."""
    with closing(KafkaConsumer(bootstrap_servers=cluster.bootstrap)) as consumer:
        return consumer.offsets_for_times({PLACE: FIRST_MS + 1000 * number})[PLACE].offset


def copies(cluster: Cluster) -> list[int]:
    """How many chunks of the topic each host has on its disk."""
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        topic_id = admin.describe_topics([TOPIC])[0]["topic_id"].hex
    return [len(list((host.data_dir / "replicas").glob(f"{topic_id}*/*.log"))) for host in cluster]


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
        create(cluster, **{key.replace(".", "_"): value for key, value in SETTINGS.items()})
        produce(cluster, 0, 60)
        until(lambda: max(copies(cluster)) <= 2, "chunks leave all hosts")
        stored = log_files(hdfs, name)
        assert len(stored) >= 5
        assert read(cluster) == list(range(60))
        tier = described(cluster)
        assert tier is not None
        assert tier["chunks"] == len(stored)

        leader_of(cluster).kill()
        assert read(cluster) == list(range(60))
        assert at_time(cluster, 7) == 7
        produce(cluster, 60, 40)
        until(lambda: len(log_files(hdfs, name)) > len(stored) + 2, "the next owner stores chunks")
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
        until(lambda: max(copies(cluster)) <= 2, "chunks go when HDFS takes them")
        assert read(cluster) == list(range(140))

        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
            admin.delete_topics([TOPIC])
        until(lambda: log_files(hdfs, name) == [], "no file of a topic that is gone")

"""Retention and deleted records as Kafka clients see them, with sidecar processes that are killed."""

from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import KafkaError, OffsetOutOfRangeError

from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.cluster_processes.clients import asked, create_topic, ends, read
from tests.cluster_processes.test_processes import Load, leader_of, producing, wait_for_more
from tests.metadata.support import needs_etcd
from tests.support.cluster_network import new_network
from tests.support.waiting import until, until_holds

pytestmark = [needs_etcd, pytest.mark.clients]
TOPIC = "orders"
PLACE = TopicPartition(TOPIC, 0)
CHUNK_BYTES = 4 << 10
RETENTION_BYTES = 32 << 10
KEPT = 150
"""Records that are left when others are deleted: more than a chunk, and less than RETENTION_BYTES, which keeps them."""


def offsets(cluster: Cluster) -> tuple[int, int]:
    """The first offset and the end of the partition, as a new consumer is told."""
    return ends(cluster.bootstrap, PLACE)


def chunk_bytes(host: ClusterHostProcess) -> int:
    """What the replicas of chunks take on a host's disk, without indexes."""
    found = list((host.data_dir / "replicas").glob("*/*.log"))
    return sum(path.stat().st_size for path in found if path.exists())


def read_from(cluster: Cluster, offset: int) -> list[int]:
    """The offsets of what is read from an offset on. Raises OffsetOutOfRangeError."""
    return [found for found, _ in read(cluster.bootstrap, PLACE, offset)]


def create(cluster: Cluster) -> None:
    """The topic, with small chunks."""
    settings = {"segment.bytes": str(CHUNK_BYTES), "retention.bytes": str(RETENTION_BYTES)}
    create_topic(cluster.bootstrap, NewTopic(TOPIC, 1, 3, topic_configs=settings))


def delete(cluster: Cluster, end: int) -> None:
    """Delete all records but the last ones, and kill the owner: they stay deleted, and the others stay. `end` is known:
    a host that stood still may tell an older one.
    """
    start, _ = offsets(cluster)
    middle = end - KEPT
    assert start < middle
    asked(cluster.bootstrap, lambda admin: admin.delete_records({PLACE: middle}))
    leader_of(cluster).kill()
    until_holds(lambda: check_offsets(cluster, (middle, end)))
    assert read_from(cluster, middle) == list(range(middle, end))
    with pytest.raises(OffsetOutOfRangeError):
        read_from(cluster, middle - 1)


def check_offsets(cluster: Cluster, expected: tuple[int, int]) -> None:
    """The partition has this start and this end; a host that has not heard of another owner tells what it knows."""
    assert offsets(cluster) == expected


def test_retention_and_deleted_records_outlive_their_owner(tmp_path: Path) -> None:
    """The first offset moves with the input, on the disks of all hosts; kill -9 of the owner brings nothing back."""
    with Cluster(tmp_path / "cluster", network=new_network()) as cluster:
        create(cluster)
        with producing(cluster) as load:
            until(lambda: offsets(cluster)[0] > 0, "records go")
        check_log(cluster, load)
        until(lambda: all(chunk_bytes(host) < 8 * RETENTION_BYTES for host in cluster), "disks are freed on all hosts")
        delete(cluster, load.sent)


@pytest.mark.slow
def test_retention_goes_on_while_hosts_and_etcd_go(tmp_path: Path) -> None:
    """Under load, under the next owner, while etcd is away, and with other settings."""
    with Cluster(tmp_path / "cluster", network=new_network()) as cluster:
        create(cluster)
        with producing(cluster) as load:
            until(lambda: offsets(cluster)[0] > 0, "records go")
            first = offsets(cluster)[0]
            leader_of(cluster).kill()
            wait_for_more(load, 200)
            assert offsets(cluster)[0] >= first
            until(lambda: offsets(cluster)[0] > first + 100, "records go under the next owner")
            for host in cluster:
                if not host.is_running:
                    host.start()
            cluster.wait_members()
            wait_for_more(load, 200)
        check_log(cluster, load)
        until(lambda: all(chunk_bytes(host) < 8 * RETENTION_BYTES for host in cluster), "disks are freed on all hosts")
        delete(cluster, load.sent)

        middle = offsets(cluster)[0]
        cluster.etcd.kill()
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin, pytest.raises(KafkaError):
            admin.delete_records({PLACE: middle + 1}, timeout_ms=1_000)
        assert offsets(cluster)[0] == middle, "what is not registered is not done"
        cluster.etcd.start()
        asked(cluster.bootstrap, lambda admin: admin.delete_records({PLACE: middle + 1}))
        until(lambda: offsets(cluster)[0] == middle + 1, "it is done when it can be, by whoever owns the stream then")

        resource = ConfigResource(ConfigResourceType.TOPIC, TOPIC, configs={"retention.bytes": "0"})
        asked(cluster.bootstrap, lambda admin: admin.alter_configs([resource]))
        until(lambda: offsets(cluster)[0] > middle + 1, "a changed setting counts at once")


def check_log(cluster: Cluster, load: Load) -> None:
    """What is left is the end of what was acknowledged, each record at its offset."""
    assert load.errors == []
    until(lambda: is_read(cluster, load), "what is left can be read while nothing more of it goes")


def is_read(cluster: Cluster, load: Load) -> bool:
    """Whether all records that are left were read; False if some of them went meanwhile, or if who was asked does not
    know of all of them yet, as a host that stood still.
    """
    start, end = offsets(cluster)
    assert len(load.acked) == load.sent >= end
    if end < load.sent:
        return False
    try:
        found = read_from(cluster, start)
    except OffsetOutOfRangeError:
        found = []
    if found != list(range(start, end)):
        until(lambda: offsets(cluster)[0] > start, f"{len(found)} of {end - start} records from {start} are the rest")
        return False
    return True

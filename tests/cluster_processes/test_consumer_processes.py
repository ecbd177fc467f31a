"""Consumers in groups, written by others, on a cluster of processes whose coordinator and owners are killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer, TopicPartition

from logstore.testing.cluster import Cluster
from tests.cluster_processes.clients import ASK_MS, PATIENCE_MS, again
from tests.cluster_processes.foreign_consumers import CONSUMERS, ConsumerLog
from tests.cluster_processes.foreign_producers import require
from tests.cluster_processes.test_processes import TOPIC, WARM, check, create, leader_of, producing, rebalanced
from tests.kafka.wire_client import WireClient
from tests.metadata.support import needs_etcd
from tests.support.beside import beside
from tests.support.cluster_network import new_network
from tests.support.waiting import until

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
GROUP = "readers"
LEADER_EPOCH = 23


@contextmanager
def consuming(
    cluster: Cluster, run: Callable[[Cluster, ConsumerLog], None], *, resets: bool = True
) -> Iterator[ConsumerLog]:
    """A consumer that runs meanwhile."""
    log = ConsumerLog(TOPIC, GROUP, resets=resets)
    with beside(lambda: run(cluster, log), log.ended.set):
        yield log


def read_more(log: ConsumerLog, count: int) -> None:
    """Wait until the consumer has read so many more records."""
    wanted = len(log.read) + count
    until(lambda: len(log.read) >= wanted, lambda: f"{wanted} records read, {len(log.read)} are")


def committed(cluster: Cluster) -> int:
    """What the group has committed, as a client is told that is no member."""
    settings = {"bootstrap_timeout_ms": PATIENCE_MS, "request_timeout_ms": ASK_MS}

    def ask() -> int:
        with closing(KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=GROUP, **settings)) as asker:
            return asker.committed(TopicPartition(TOPIC, 0)) or 0

    return again(ask)


@pytest.mark.parametrize("client", CONSUMERS)
def test_a_consumer_outlives_its_coordinator_and_the_owner(tmp_path: Path, client: str) -> None:
    """kill -9 of the host that coordinates the group, and when it is back, of the one that leads the partition: the
    consumer skips no record, nobody rebalances, and what was committed stays committed.
    """
    require(client)
    with Cluster(tmp_path / "cluster", network=new_network()) as cluster:
        create(cluster)
        with producing(cluster) as load, consuming(cluster, CONSUMERS[client]) as log:
            read_more(log, WARM)
            until(lambda: committed(cluster) > 0, "the group has committed something")
            rebalances, before = rebalanced(cluster), committed(cluster)
            for topic in ("__cairn_groups", TOPIC):
                host = leader_of(cluster, topic=topic)
                host.kill()
                killed_s, count = time.monotonic(), len(log.read)
                read_more(log, WARM)
                until(lambda: committed(cluster) >= count, "what was read before the kill is committed")  # noqa: B023
                print(f"{client}: {topic}'s owner killed, read on and committed in {time.monotonic() - killed_s:.2f} s")
                host.start()
                cluster.wait_members()
            load.ended.set()
            until(lambda: load.acked and len(log.read) >= load.sent, "every record is read")
            assert rebalanced(cluster) == rebalances
        assert before <= committed(cluster) <= len(log.read)
        assert sorted(set(log.read)) == sorted(load.acked)
        check(cluster, load)


@pytest.mark.parametrize("client", CONSUMERS)
def test_no_consumer_takes_a_takeover_for_a_loss(tmp_path: Path, client: str) -> None:
    """A consumer that would end where it loses its place goes on from what an earlier consumer has committed, with the
    leader epoch of a former owner, and outlives another kill of the owner. Each owner's epoch ends where the records
    of the next one begin, says OffsetForLeaderEpoch.
    """
    require(client)
    with Cluster(tmp_path / "cluster", network=new_network()) as cluster:
        create(cluster)
        with producing(cluster) as load:
            with consuming(cluster, CONSUMERS[client]) as first:
                read_more(first, WARM)
                until(lambda: committed(cluster) > 0, "the group has committed something")
            replace_owner(cluster)
            with consuming(cluster, CONSUMERS[client], resets=False) as second:
                read_more(second, WARM)
                replace_owner(cluster)
                read_more(second, WARM)
            load.ended.set()
            until(lambda: load.acked, "the load has ended")
        offsets = {offset for offset, _ in (*first.read, *second.read)}
        assert sorted(offsets) == list(range(len(offsets)))
        begins, log_end = epochs_of(cluster)
        assert len(begins) >= 3
        host, _, port = leader_of(cluster).address.rpartition(":")
        with WireClient(int(port), host) as wire:
            for epoch, end in zip(begins, [*list(begins.values())[1:], log_end], strict=True):
                part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
                asked = {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [part]}]}
                found = wire.request(LEADER_EPOCH, 4, **asked).topics[0].partitions[0]
                assert (found.error_code.value, found.leader_epoch, found.end_offset) == (0, epoch, end)


def replace_owner(cluster: Cluster) -> None:
    """Kill the host that leads the stream, and start it again."""
    host = leader_of(cluster)
    host.kill()
    until(lambda: leader_of(cluster) is not host, "another host leads the stream")
    host.start()
    cluster.wait_members()


def epochs_of(cluster: Cluster) -> tuple[dict[int, int], int]:
    """The leader epochs of all records, with the offset of the first one of each, and the end of the log."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    place, at = confluent_kafka.TopicPartition(TOPIC, 0, 0), 0
    begins: dict[int, int] = {}
    try:
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place, timeout=PATIENCE_MS / 1000)
        while at < end:
            for each in consumer.consume(500, 1.0):
                if each.error() is None:
                    begins.setdefault(each.leader_epoch(), each.offset())
                    at = each.offset() + 1
    finally:
        consumer.close()
    return begins, end

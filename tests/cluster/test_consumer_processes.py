"""Consumers in groups, written by others, on a cluster of processes whose coordinator and owners are killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition

from logstore.testing.cluster import Cluster
from tests.cluster.clients import ASK_MS, PATIENCE_MS, again
from tests.cluster.foreign_consumers import CONSUMERS, ConsumerLog
from tests.cluster.foreign_producers import require
from tests.cluster.test_processes import TOPIC, WARM, check, create, leader_of, producing, rebalanced
from tests.metadata.support import needs_etcd
from tests.support.beside import beside
from tests.support.cluster_network import new_network
from tests.support.waiting import until

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
GROUP = "readers"


@contextmanager
def consuming(cluster: Cluster, run: Callable[[Cluster, ConsumerLog], None]) -> Iterator[ConsumerLog]:
    """A consumer that runs meanwhile."""
    log = ConsumerLog(TOPIC, GROUP)
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

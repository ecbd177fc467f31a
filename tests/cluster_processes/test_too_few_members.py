"""A topic with fewer hosts than its min.insync.replicas, as a Kafka client sees it that writes to another one too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from logstore.testing.cluster import Cluster
from tests.metadata.support import needs_etcd
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until, until_holds

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
STRICT, LOOSE = "strict", "loose"
PARTITIONS = 9
UNANSWERED = list(range(-30, 0))
GONE_S = 6.0
"""Longer than a stream waits before it says that it has too few members."""


class Writer:
    """One idempotent producer that writes to a partition of each topic by turns."""

    def __init__(self, bootstrap: str, partitions: dict[str, int]) -> None:
        self.partitions = partitions
        self.sent = dict.fromkeys(partitions, 0)
        self.acked: dict[str, list[float]] = {topic: [] for topic in partitions}
        """When the acknowledged records were produced."""
        self.failures: list[object] = []
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})

    def write(self) -> None:
        """A record to each topic."""
        for topic, partition in self.partitions.items():
            now_s = time.monotonic()

            def told(error: KafkaError | None, _: Message, topic: str = topic, sent_s: float = now_s) -> None:
                if error is None:
                    self.acked[topic].append(sent_s)
                else:
                    self.failures.append(error)

            self.producer.produce(topic, b"%d" % self.sent[topic], partition=partition, on_delivery=told)
            self.sent[topic] += 1
        self.producer.poll(0.01)

    def has_acked_since(self, topic: str, since_s: float) -> bool:
        """Writes on; whether a record that was produced since then is acknowledged."""
        self.write()
        return bool(self.acked[topic]) and self.acked[topic][-1] > since_s


def write_unanswered(bootstrap: str, partitions: dict[str, int]) -> None:
    """A producer that wants no acknowledgements writes to each topic by turns, each record in a request of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 0, "batch.num.messages": 1})
    for number in UNANSWERED:
        for topic, partition in partitions.items():
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def read(bootstrap: str, topic: str, partition: int, count: int) -> list[int]:
    """What a partition has: so many records at least."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads",
            "enable.auto.commit": False,  # commits wait while the topic of groups has too few members
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[int] = []
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            found.append(int(message.value()))
        elif len(found) >= count:
            break
    consumer.close()
    return found


def consumed(consumer: Consumer, count: int) -> list[int]:
    """What a consumer reads next: so many records, or fewer when time is over."""
    found: list[int] = []
    end_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < end_s:
        found += [int(message.value()) for message in consumer.consume(count - len(found), 1) if not message.error()]
    return found


def led_together(bootstrap: str) -> tuple[int, dict[str, int]]:
    """A host that leads a partition of each topic, and these."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    found = {
        topic["name"]: {each["leader_id"]: each["partition_index"] for each in topic["partitions"]}
        for topic in admin.describe_topics([STRICT, LOOSE])
    }
    admin.close()
    both = [leader for leader in found[STRICT] if leader >= 0 and leader in found[LOOSE]]
    assert both, found
    return both[0], {topic: found[topic][both[0]] for topic in (STRICT, LOOSE)}


def test_a_topic_with_too_few_hosts_holds_up_no_other(tmp_path: Path) -> None:
    """The same producer gets acknowledgements of the other topic with the same leader. When the host is back, those of
    the first one follow, and both have every record once and in order. A producer that wants no answers loses only what
    it sends to the first topic.
    """
    with Cluster(tmp_path) as cluster:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        settings = {STRICT: "3", LOOSE: "1"}
        admin.create_topics(
            [
                NewTopic(topic, PARTITIONS, 3, topic_configs={"min.insync.replicas": least})
                for topic, least in settings.items()
            ]
        )
        admin.close()
        leader, partitions = until_holds(lambda: led_together(cluster.bootstrap))
        writer = Writer(cluster.bootstrap, partitions)
        until(lambda: writer.has_acked_since(STRICT, 0.0), "acknowledgements of both topics")
        until(lambda: writer.has_acked_since(LOOSE, 0.0), "acknowledgements of both topics")
        victim = next(host for host in cluster if cluster.by_node(leader) is not host)
        victim.kill()
        killed_s = time.monotonic()
        until(lambda: writer.has_acked_since(LOOSE, killed_s + GONE_S), "acknowledgements of one topic")
        until(lambda: writer.has_acked_since(LOOSE, time.monotonic() - 2), "more of them")
        described = cairn("topics", "describe", STRICT, "--servers", cluster.bootstrap).out
        told = f"partition {partitions[STRICT]} has 2 live members, but min.insync.replicas is 3: producers are refused"
        assert told in described
        write_unanswered(cluster.bootstrap, partitions)
        assert not [sent_s for sent_s in writer.acked[STRICT] if sent_s > killed_s]
        victim.start()
        until(lambda: writer.has_acked_since(STRICT, killed_s), "acknowledgements of the other one")
        assert writer.producer.flush(PATIENCE_S) == 0
        assert not writer.failures
        for topic, of_topic in writer.partitions.items():
            count = writer.sent[topic]
            found = read(cluster.bootstrap, topic, of_topic, count)
            assert [number for number in found if number >= 0] == list(range(count))
            assert topic == STRICT or [number for number in found if number < 0] == UNANSWERED
        assert "acks=0, so the connection is closed" not in cluster.by_node(leader).log


def test_a_stream_is_read_from_the_only_host_that_is_left(tmp_path: Path) -> None:
    """Two of three hosts are killed, the leader among them: the third one shows everything that was acknowledged, also
    from where a consumer was. It refuses producers until another host is back; then both have every record once.
    """
    with Cluster(tmp_path) as cluster:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        admin.create_topics([NewTopic(STRICT, 1, 3, topic_configs={"min.insync.replicas": "2"})])
        admin.close()
        writer = Writer(cluster.bootstrap, {STRICT: 0})
        until(lambda: writer.has_acked_since(STRICT, 0.0) and writer.sent[STRICT] >= 200, "acknowledgements")
        assert writer.producer.flush(PATIENCE_S) == 0
        count = writer.sent[STRICT]
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "goes-on", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(STRICT, 0, 0)])
        assert consumed(consumer, count // 2) == list(range(count // 2))
        left, *killed = sorted(cluster, key=lambda host: host is cluster.by_node(leader_of(cluster.bootstrap)))
        for host in killed:
            host.kill()
        assert read(left.address, STRICT, 0, count) == list(range(count))
        assert consumed(consumer, count - count // 2) == list(range(count // 2, count))
        consumer.close()
        lone = Producer({"bootstrap.servers": left.address, "retries": 0, "acks": "all"})
        told: list[KafkaError | None] = []
        lone.produce(STRICT, b"-1", partition=0, on_delivery=lambda error, _: told.append(error))
        assert lone.flush(PATIENCE_S) == 0
        assert [error is not None and error.name() for error in told] == ["NOT_ENOUGH_REPLICAS"]
        writer.write()
        killed[0].start()
        until(lambda: writer.has_acked_since(STRICT, time.monotonic() - 5), "acknowledgements again")
        assert writer.producer.flush(PATIENCE_S) == 0
        assert not writer.failures
        assert read(cluster.bootstrap, STRICT, 0, writer.sent[STRICT]) == list(range(writer.sent[STRICT]))


def leader_of(bootstrap: str) -> int:
    """The number of the host that leads the topic's only partition."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    ((found,),) = [topic["partitions"] for topic in admin.describe_topics([STRICT])]
    admin.close()
    leader: int = found["leader_id"]
    return leader

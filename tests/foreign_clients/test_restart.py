"""What clients were told is still so after the server was killed and started again on the same data and address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import ConfigResource, ResourceType

from benchmarks.harness.kafka import KafkaPeer
from benchmarks.harness.sidecar import SidecarPeer
from tests.foreign_clients.adapters import LATEST, ConfluentClient, Message, Sending, confluent_poll
from tests.foreign_clients.broker import connect, eventually
from tests.support.kafka_peer import start_kafka
from tests.support.limits import PATIENCE_S


@pytest.fixture
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SidecarPeer | KafkaPeer]:
    """A server of the test's own, to be killed."""
    started: SidecarPeer | KafkaPeer
    if request.config.getoption("--peer") == "kafka":
        started = start_kafka(tmp_path)
    else:
        started = SidecarPeer(tmp_path)
        started.start()
    started.wait_serving(PATIENCE_S)
    yield started
    started.kill()


def test_a_killed_server_comes_back_with_everything(peer: SidecarPeer | KafkaPeer) -> None:
    """After kill -9 the acked records, the topics and their settings, and the groups' offsets are there; a producer and
    a consumer that were connected go on by themselves.
    """
    broker = connect("any", peer.port)
    topic, group = broker.create_topic(max_message_bytes="123456"), "survivors"
    client = ConfluentClient(broker.bootstrap)
    assert client.produce(topic, [Message(value=b"%d" % number) for number in range(20)], Sending(idempotent=True))
    assert len(client.consume_as_group(topic, group, 12)) == 12
    settings = {"bootstrap.servers": broker.bootstrap, "reconnect.backoff.max.ms": 500, "log_level": 2}
    producer = Producer({**settings, "enable.idempotence": True})
    consumer = Consumer({**settings, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "error"})
    try:
        producer.produce(topic, b"20", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        peer.kill()
        producer.produce(topic, b"21", partition=0)
        peer.start()
        peer.wait_serving(PATIENCE_S)
        assert producer.flush(PATIENCE_S) == 0
        assert client.offset_at(topic, LATEST) == 22
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = broker.admin().describe_configs([resource])[resource].result(PATIENCE_S)
        assert entries["max.message.bytes"].value == "123456"
        consumer.subscribe([topic])
        got = confluent_poll(consumer, 22 - 12)
        assert [message.offset for message in got] == list(range(12, 22))
    finally:
        consumer.close()
    eventually(lambda: [message.value for message in client.consume(topic, 22)] == [b"%d" % n for n in range(22)])

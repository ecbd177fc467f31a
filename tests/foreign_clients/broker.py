"""The server that the client tests talk to, and waiting for what it should come to."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support.limits import PATIENCE_S

POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Broker:
    """A running server: `kind` is "cairn" or "kafka"."""

    kind: str
    port: int
    admin_client: AdminClient
    """Kept as long as the server: one that is collected takes its unanswered calls with it."""

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_kafka(self) -> bool:
        """Whether it is the oracle and not Cairn."""
        return self.kind == "kafka"

    def admin(self) -> AdminClient:
        """librdkafka's admin client."""
        return self.admin_client

    def create_topic(self, partitions: int = 1, **config: str) -> str:
        """A new topic with a unique name; `config`'s keys have underscores for dots. Returns when it can be used.

        It keeps records of any age, unless `config` says otherwise: many tests write old timestamps.
        """
        name = f"t-{uuid.uuid4().hex[:12]}"
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(PATIENCE_S)
        eventually(lambda: led_partitions(admin, name) == partitions)
        # A Kafka names a leader before that leader accepts anything, and drops acks=0 requests of that moment.
        places = {TopicPartition(name, partition): OffsetSpec.earliest() for partition in range(partitions)}
        eventually(lambda: [found.result(PATIENCE_S) for found in admin.list_offsets(places).values()])
        return name


def connect(kind: str, port: int) -> Broker:
    """A running server's handle."""
    return Broker(kind, port, AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 2}))


def led_partitions(admin: AdminClient, topic: str) -> int:
    """How many partitions of a topic have a leader."""
    found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    return 0 if found.error else sum(part.leader >= 0 for part in found.partitions.values())


def eventually(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until `condition()` is true; it may raise KafkaException meanwhile. AssertionError when time runs out."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    failure: KafkaException | None = None
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except KafkaException as error:
            failure = error
        pause.wait(POLL_SECONDS)
    raise AssertionError(f"not within {seconds} s: {failure or 'the condition stayed false'}")

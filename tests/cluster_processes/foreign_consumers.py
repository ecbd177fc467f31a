"""Consumers in groups that are written by others: librdkafka, and Kafka's Java client.

Invariant: a consumer reads one topic of one partition from the beginning, as the only member of its group, and commits
what it has read behind each poll, until its log ends. It is never restarted.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from logstore.testing.cluster import Cluster
from tests.cluster_processes.clients import ASK_MS
from tests.cluster_processes.foreign_producers import java_command, printed
from tests.support.limits import PATIENCE_S

AT_ONCE: Final = 500
"""Records of one poll, at most."""
LOST: Final = (KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""What librdkafka says of a place that is lost."""


class ConsumerLog:
    """What a consumer of the group `group` has read of a topic, until `ended` is set."""

    def __init__(self, topic: str, group: str, *, resets: bool = True) -> None:
        self.topic = topic
        self.group = group
        self.resets = resets
        """Whether the consumer begins anew where it finds no place; if not, a place that is lost ends it."""
        self.read: list[tuple[int, int]] = []
        """Offset and number, in the order in which the consumer gave them."""
        self.ended = threading.Event()


def consume_confluent(cluster: Cluster, log: ConsumerLog) -> None:
    """librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": log.group, "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if log.resets else "error", "session.timeout.ms": ASK_MS,
        }
    )  # fmt: skip
    try:
        consumer.subscribe([log.topic])
        while not log.ended.is_set():
            found = consumer.consume(AT_ONCE, 0.2)
            lost = [each.error() for each in found if each.error() is not None and each.error().code() in LOST]
            if lost:
                raise KafkaException(lost[0])
            records = [each for each in found if each.error() is None]
            log.read += [(each.offset(), int(each.value())) for each in records]
            if records:
                _commit(consumer)
    finally:
        consumer.close()


def _commit(consumer: Consumer) -> None:
    """Commit what was read; once more while the group has no coordinator."""
    end_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while True:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            if time.monotonic() > end_s:
                raise
        else:
            return
        pause.wait(0.1)


def consume_java(cluster: Cluster, log: ConsumerLog) -> None:
    """The Java client, as Kafka's VerifiableConsumer."""
    command = [*java_command(), "org.apache.kafka.tools.VerifiableConsumer", "--verbose"]
    command += ["--bootstrap-server", cluster.bootstrap, "--topic", log.topic, "--group-id", log.group]
    command += ["--reset-policy", "earliest" if log.resets else "none", "--session-timeout", str(ASK_MS)]
    with printed(command, log, subprocess.Popen.terminate) as lines:
        for line in lines:
            said = json.loads(line) if line.startswith("{") else {}
            if said.get("name") == "record_data":
                log.read.append((int(said["offset"]), int(said["value"])))


CONSUMERS: Final[dict[str, Callable[[Cluster, ConsumerLog], None]]] = {
    "confluent": consume_confluent,
    "java": consume_java,
}

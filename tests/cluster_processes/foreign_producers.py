"""Producers that are programs of their own, written by others: Kafka's Java client, and franz-go.

Invariants: a program sends the numbers from 0 on to a topic of one partition, idempotent, with as many tries as it
needs, and prints a line for each that was acknowledged or has failed. When the load ends, the program sends what it has
begun to the end, says how many records it has sent, and ends; one that hangs is killed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import pytest

from benchmarks.harness.jars import kafka_class_path
from logstore.testing.cluster import Cluster
from tests.client_suites.sources import Missing, franz_go_producer
from tests.support.kafka_peer import require_kafka
from tests.support.limits import PATIENCE_S

RECORDS_PER_S: Final = 900
_JAVA_SETTINGS: Final = {
    "enable.idempotence": "true",
    "retries": str(2**31 - 1),
    "delivery.timeout.ms": str(PATIENCE_S * 1000),
    "request.timeout.ms": "5000",
    "max.block.ms": str(PATIENCE_S * 1000),
    "linger.ms": "5",
}
"""Kafka's tool makes one try, unless it is told otherwise."""


class UntilEnded(Protocol):
    """What runs until `ended` is set."""

    ended: threading.Event


class ProducerLog(UntilEnded, Protocol):
    """What became of the records of a load."""

    sent: int
    errors: list[str]

    def acknowledged(self, offset: int, number: int) -> None:
        """The cluster has said that it has a record."""


def run_java(topic: str, own: Mapping[str, str] = _JAVA_SETTINGS) -> Callable[[Cluster, ProducerLog], None]:
    """The Java client, as Kafka's VerifiableProducer, with settings of its own."""

    def run(cluster: Cluster, load: ProducerLog) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".properties", encoding="utf-8") as settings:
            settings.write("".join(f"{name}={value}\n" for name, value in own.items()))
            settings.flush()
            command = [*java_command(), "org.apache.kafka.tools.VerifiableProducer"]
            command += ["--bootstrap-server", cluster.bootstrap]
            command += ["--topic", topic, "--throughput", str(RECORDS_PER_S), "--command-config", settings.name]
            with printed(command, load, subprocess.Popen.terminate) as lines:
                unsent = sum(_note_java(json.loads(line), load) for line in lines if line.startswith("{"))
        load.sent -= unsent

    return run


def _note_java(said: dict[str, object], load: ProducerLog) -> bool:
    """Note a line of the tool. True: it has counted a record as sent that it could not send, for it was ending."""
    if said["name"] == "producer_send_success":
        load.acknowledged(int(str(said["offset"])), int(str(said["value"])))
    elif said["name"] == "tool_data":
        load.sent = int(str(said["sent"]))
    elif said["name"] == "producer_send_error":
        if load.ended.is_set() and "closed" in str(said["message"]):
            return True
        load.errors.append(str(said))
    return False


def run_franz_go(topic: str, metadata_age_ms: int = 0) -> Callable[[Cluster, ProducerLog], None]:
    """franz-go, as a program that is built here. `metadata_age_ms`: its `MetadataMinAge`; 0 for its own."""

    def run(cluster: Cluster, load: ProducerLog) -> None:
        own = [f"{metadata_age_ms}ms"] if metadata_age_ms else []
        with printed([str(franz_go_producer()), cluster.bootstrap, topic, *own], load, _end_input) as lines:
            for line in lines:
                kind, number, *rest = line.split()
                if kind == "acked":
                    load.acknowledged(int(rest[0]), int(number))
                elif kind == "sent":
                    load.sent = int(number)
                else:
                    load.errors.append(line)

    return run


def _end_input(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def java_command() -> list[str]:
    """How a small program of Kafka's is started; its class follows."""
    return ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", kafka_class_path()]


@contextmanager
def printed(
    command: Sequence[str], load: UntilEnded, end: Callable[[subprocess.Popen[str]], None]
) -> Iterator[Iterator[str]]:
    """What a program prints, to its end, which is asked for when the load ends."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def end_with_load() -> None:
            load.ended.wait()
            end(process)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()

        ending = threading.Thread(target=end_with_load)
        ending.start()
        try:
            yield iter(process.stdout)
            code = process.wait()
            errors.seek(0)
            assert load.ended.is_set(), f"{command[0]} ended by itself, with {code}: {errors.read()[-2000:]}"
        except BaseException:
            process.kill()
            raise
        finally:
            load.ended.set()
            ending.join()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def require(client: str) -> None:
    """Skip the test, with the reason, where a client's program cannot be had."""
    if client == "java":
        require_kafka()
    elif client == "franz-go":
        try:
            franz_go_producer()
        except Missing as reason:
            pytest.skip(str(reason))

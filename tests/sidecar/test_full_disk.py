"""A real small disk that fills: clients see refusals that they retry, trims make room, nothing acknowledged is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.foreign_clients.broker import eventually
from tests.support.kafka_peer import require_kafka, run_tool
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.small_disk import small_disk

DISK_BYTES = 24 << 20
RECORDS = 900
VALUE_BYTES = 32 << 10
"""All records together are larger than the disk."""
TOPIC = "t"
FLAGS = ("--segment-bytes", str(1 << 20))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of DISK_BYTES."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as place:
        yield place


class Sender(Protocol):
    """A client's producer."""

    def send(self, number: int) -> None:
        """Send record `number`."""

    def acked(self) -> dict[int, int]:
        """The offsets of the records that are acknowledged so far. Raises the error of one that failed."""

    def close(self) -> None:
        """End it."""


def value_of(number: int) -> bytes:
    """The value of a record."""
    return f"{number:08d}".encode().ljust(VALUE_BYTES, b".")


class ConfluentSender:
    """confluent-kafka, which is librdkafka."""

    def __init__(self, address: str) -> None:
        self._offsets: dict[int, int] = {}
        self._failures: list[Exception] = []
        timeout_ms = PATIENCE_S * 1000
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "message.timeout.ms": timeout_ms,
                "enable.idempotence": True,
                "batch.size": 4 * VALUE_BYTES,
                "log_level": 2,
            }
        )

    def send(self, number: int) -> None:
        def told(error: Any, message: Any) -> None:
            if error is not None:
                self._failures.append(KafkaException(error))
            else:
                self._offsets[number] = message.offset()

        self._producer.produce(TOPIC, value_of(number), partition=0, on_delivery=told)

    def acked(self) -> dict[int, int]:
        self._producer.poll(0.05)
        if self._failures:
            raise self._failures[0]
        return dict(self._offsets)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(5)


class PythonSender:
    """kafka-python."""

    def __init__(self, address: str) -> None:
        timeout_ms = PATIENCE_S * 1000
        self._sent: dict[int, Any] = {}
        self._pause = threading.Event()
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            bootstrap_timeout_ms=timeout_ms,
            acks="all",
            retries=1_000_000,
            delivery_timeout_ms=timeout_ms,
            max_block_ms=timeout_ms,
        )

    def send(self, number: int) -> None:
        self._sent[number] = self._producer.send(TOPIC, value_of(number), partition=0)

    def acked(self) -> dict[int, int]:
        self._pause.wait(0.05)  # its own thread sends
        return {number: future.get(0).offset for number, future in self._sent.items() if future.is_done}

    def close(self) -> None:
        self._producer.close(timeout=5)


def events(sidecar: Sidecar, name: str) -> int:
    """How often a line about an event was written."""
    return sum(f"event={name} " in line for line in sidecar.log().splitlines())


def delete_before(admin: AdminClient, offset: int) -> None:
    """Delete records before an offset; waits until it is done."""
    (done,) = admin.delete_records([TopicPartition(TOPIC, 0, offset)]).values()
    done.result(PATIENCE_S)


def read_all(address: str, from_offset: int, end_offset: int) -> dict[int, bytes]:
    """The values of all records by their offsets."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reads", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, from_offset)])
    found: dict[int, bytes] = {}
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < end_offset - from_offset:
        assert time.monotonic() < deadline_s, f"{len(found)} of {end_offset - from_offset} records are found"
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None, message.error()
            found[message.offset()] = message.value()
    consumer.close()
    return found


@pytest.mark.parametrize("sender_of", [ConfluentSender, PythonSender], ids=["confluent-kafka", "kafka-python"])
def test_a_producer_goes_on_after_each_trim(sender_of: Callable[[str], Sender], disk: Path) -> None:
    """A producer writes more than the disk holds. It is refused before the disk is full and retries by itself; each
    time a client deletes records it goes on, until all are acknowledged. What was not deleted is read back.
    """
    with Sidecar(disk / "data", *FLAGS) as sidecar:
        admin = AdminClient({"bootstrap.servers": sidecar.address, "log_level": 2})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
        sender = sender_of(sidecar.address)
        for number in range(RECORDS):
            sender.send(number)
        shortages, deleted = 0, 0
        acked = sender.acked()
        least_free_bytes = DISK_BYTES
        deadline_s = time.monotonic() + PATIENCE_S
        while len(acked) < RECORDS:
            assert time.monotonic() < deadline_s, f"{len(acked)} of {RECORDS} are acknowledged"
            if events(sidecar, "disk_low") > shortages and acked:
                shortages += 1
                deleted = max(acked.values()) * 3 // 4
                delete_before(admin, deleted)
            found = os.statvfs(disk)
            least_free_bytes = min(least_free_bytes, found.f_bavail * found.f_frsize)
            acked = sender.acked()
        sender.close()
        assert shortages >= 1
        assert least_free_bytes > DISK_BYTES // 40, "the reserve is there for what is no append"
        assert events(sidecar, "disk_full") == 0, "the disk never had to refuse anything"
        end = max(acked.values()) + 1
        values = read_all(sidecar.address, deleted, end)
        for number, offset in acked.items():
            if offset >= deleted:
                assert values[offset] == value_of(number)
        sidecar.kill()
        sidecar.start()
        assert read_all(sidecar.address, deleted, end) == values


def end_of(admin: AdminClient) -> int:
    """The offset after the last record."""
    place = TopicPartition(TOPIC, 0)
    found = admin.list_offsets({place: OffsetSpec.latest()})[place].result(PATIENCE_S)
    return int(found.offset)


@pytest.mark.kafka_peer
def test_the_java_producer_goes_on_after_each_trim(disk: Path) -> None:
    """The same with Java's producer: it ends without an error, and what was not deleted is there once and in order."""
    require_kafka()
    lines = [value_of(number) for number in range(RECORDS)]
    with Sidecar(disk / "data", *FLAGS) as sidecar, ThreadPoolExecutor(1) as pool:
        admin = AdminClient({"bootstrap.servers": sidecar.address, "log_level": 2})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
        patience_ms = str(PATIENCE_S * 1000)
        options = ["--message-send-max-retries", "1000000", "--max-block-ms", patience_ms]
        options += ["--command-property", f"delivery.timeout.ms={patience_ms}"]
        text = b"\n".join(lines).decode() + "\n"
        target = ["--bootstrap-server", sidecar.address, "--topic", TOPIC]
        sending = pool.submit(run_tool, "console-producer", [*target, *options], input_text=text)
        shortages, deleted = 0, 0
        while not sending.done():
            if events(sidecar, "disk_low") > shortages:
                shortages += 1
                deleted = end_of(admin) * 3 // 4
                delete_before(admin, deleted)
            wait([sending], timeout=0.1)
        sending.result()
        assert shortages >= 1
        end = end_of(admin)
        values = read_all(sidecar.address, deleted, end)
        assert [values[offset] for offset in range(deleted, end)] == lines[deleted - end :]
        assert end == RECORDS, "the producer is idempotent: what it sent again is not there twice"


def fill(disk: Path) -> Path:
    """Another program takes every byte that is left."""
    stranger = disk / "stranger"
    with stranger.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    return stranger


def produce(address: str) -> Future[int]:
    """Send one record; the future has its offset."""
    outcome: Future[int] = Future()

    def told(error: Any, message: Any) -> None:
        if error is not None:
            outcome.set_exception(KafkaException(error))
        else:
            outcome.set_result(message.offset())

    producer = Producer({"bootstrap.servers": address, "log_level": 2})
    producer.produce(TOPIC, value_of(0), partition=0, on_delivery=told)
    producer.flush(PATIENCE_S)
    return outcome


def test_a_disk_that_others_have_filled(disk: Path) -> None:
    """No byte is left: a kill and a restart, reads, deletions of records and of topics work, and appends come back when
    the other's file is gone.
    """
    with Sidecar(disk / "data", *FLAGS) as sidecar:
        admin = AdminClient({"bootstrap.servers": sidecar.address, "log_level": 2})
        for name in (TOPIC, "other"):
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE_S)
        for _ in range(4):
            assert produce(sidecar.address).result(0) >= 0
        eventually((disk / "data" / "spare").exists)
        stranger = fill(disk)
        sidecar.kill()
        sidecar.start()
        eventually(lambda: events(sidecar, "disk_low") >= 1)
        admin = AdminClient({"bootstrap.servers": sidecar.address, "log_level": 2})
        assert len(read_all(sidecar.address, 0, 4)) == 4
        delete_before(admin, 3)
        admin.delete_topics(["other"])["other"].result(PATIENCE_S)
        assert list(read_all(sidecar.address, 3, 4)) == [3]
        stranger.unlink()
        assert produce(sidecar.address).result(0) == 4

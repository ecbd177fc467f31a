"""Clients that go on through kills of their sidecar, and note every record that is lost, twice or out of order.

Invariants:
* A client ends when `Told.ended` is set, and never for an error of the sidecar: it connects again.
* Whatever breaks a promise goes to `Told.broken`, with what was expected; the list is bounded.
* Records are numbered by their writer from 0, in each partition; a checker expects each number once, in order, from the
  first that it sees: older ones may have been trimmed.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import confluent_kafka
import numpy as np
import pyarrow as pa

from benchmarks.harness.raw import RawConnection, RawFailed, make_batch
from logstore.client.blocking import Client, parse_addresses
from logstore.client.wire import TopicPartition
from logstore.errors import CairnError
from spe_adapter.codec.encode import Columns
from spe_adapter.epochs.client import TaskAttempt, start_commit, take_over
from spe_adapter.epochs.segments import SegmentCutter

PARTITIONS = 4
INPUT, OUTPUT, PROBE = "in", "out", "probe"
KEYS = 50
WRITES_EACH_S = 0.05
RECORDS_PER_WRITE = 10
EPOCH_EACH_S = 0.1
REJOIN_EACH_S = 15.0
CATCH_UP_EACH_S = 20.0
TOPIC_EACH_S = 3.1
PROBE_EACH_S = 0.05
PAUSE_S = 0.2
MAX_BROKEN = 100
DELIVERY_MS = 600_000


class Told:
    """What the clients count, and what they have seen that must not be."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.probes_s: list[float] = []
        self._lock = threading.Lock()

    def count(self, what: str, number: int = 1) -> None:
        """Something happened."""
        with self._lock:
            self.counts[what] += number

    def breaks(self, what: str) -> None:
        """A promise is broken."""
        with self._lock:
            if len(self.broken) < MAX_BROKEN:
                self.broken.append(what)

    def took(self, seconds: float) -> None:
        """A probe was acknowledged."""
        with self._lock:
            self.probes_s.append(seconds)

    def take_probes(self) -> list[float]:
        """The times of the probes since the last call."""
        with self._lock:
            found, self.probes_s = self.probes_s, []
        return found


Work = Callable[[str, Told], None]
"""A client: the address of the sidecar, and where it tells what it sees."""


def write(address: str, told: Told) -> None:
    """Idempotent producers, one for each partition; a record has a number and a key for the query."""

    def delivered(error: confluent_kafka.KafkaError | None, _message: object) -> None:
        if error is not None:
            told.breaks(f"a record was not delivered: {error}")
        told.count("records acknowledged")

    settings = {
        "bootstrap.servers": address,
        "enable.idempotence": True,
        "message.timeout.ms": DELIVERY_MS,
        "log_level": 0,
    }
    producers = [confluent_kafka.Producer(settings) for _ in range(PARTITIONS)]
    numbers = [0] * PARTITIONS
    while not told.ended.wait(WRITES_EACH_S):
        for partition, producer in enumerate(producers):
            for _ in range(RECORDS_PER_WRITE):
                number = numbers[partition]
                value = json.dumps({"k": f"k{number % KEYS}", "v": number}).encode()
                try:
                    producer.produce(INPUT, value, partition=partition, on_delivery=delivered)
                except BufferError:  # full, while the sidecar is away: the same number goes next time
                    break
                numbers[partition] += 1
            producer.poll(0)
    for producer in producers:
        producer.flush(DELIVERY_MS / 1000)


def check(topic: str, number_of: Callable[[bytes], int]) -> Work:
    """A reader at the tail of all partitions of a topic: numbers come in order, each once and without a hole."""

    def work(address: str, told: Told) -> None:
        consumer = confluent_kafka.Consumer(_reading(address, f"check-{topic}"))
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        newest: dict[int, int] = {}
        while not told.ended.is_set():
            for message in consumer.consume(1000, 0.5):
                if message.error():
                    continue
                number, partition = number_of(message.value() or b""), message.partition() or 0
                before = newest.get(partition)
                if before is not None and number != before + 1:
                    told.breaks(f"{topic}-{partition}: {number} came behind {before}, at offset {message.offset()}")
                newest[partition] = number
                told.count(f"records of {topic} checked")
        consumer.close()

    return work


def _reading(address: str, group: str) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }


def number_of_input(value: bytes) -> int:
    """The number that `write` gave a record."""
    return int(json.loads(value)["v"])


def join_and_leave(address: str, told: Told) -> None:
    """A member of a group that commits what it reads, leaves, and comes again."""
    while not told.ended.is_set():
        consumer = confluent_kafka.Consumer(_reading(address, "members"))
        consumer.subscribe([INPUT])
        until = time.monotonic() + REJOIN_EACH_S
        while time.monotonic() < until and not told.ended.is_set():
            found = [message for message in consumer.consume(500, 0.5) if not message.error()]
            if found:
                with suppress(confluent_kafka.KafkaException):
                    consumer.commit(message=found[-1], asynchronous=False)
                    told.count("offsets committed")
        consumer.close()
        told.count("members that left")


def catch_up(address: str, told: Told) -> None:
    """A new reader that reads everything there is, and goes."""
    while not told.ended.wait(CATCH_UP_EACH_S):
        consumer = confluent_kafka.Consumer(_reading(address, f"once-{uuid.uuid4().hex}"))
        with suppress(confluent_kafka.KafkaException):
            for partition in range(PARTITIONS):
                where = confluent_kafka.TopicPartition(INPUT, partition)
                low, high = consumer.get_watermark_offsets(where, timeout=10)
                where.offset = low
                consumer.assign([where])
                while low < high and not told.ended.is_set():
                    found = [message for message in consumer.consume(5000, 2.0) if not message.error()]
                    low = (found[-1].offset() or 0) + 1 if found else low
                    told.count("records read again", len(found))
                    if not found:
                        break
        consumer.close()


def commit_epochs(address: str, told: Told) -> None:
    """A query whose epoch n has the record n in each partition; a new run takes over behind every error."""
    values = np.arange(PARTITIONS, dtype=np.int32)
    streams = [TopicPartition(OUTPUT, partition) for partition in range(PARTITIONS)]
    while not told.ended.is_set():
        run = uuid.uuid4().hex
        try:
            with Client(parse_addresses(address)) as client:
                last = take_over(client, "epochs", run)
                epoch = 0 if last is None else last + 1
                while not told.ended.wait(EPOCH_EACH_S):
                    cutter = SegmentCutter()
                    data = pa.array([str(epoch).encode()] * PARTITIONS, pa.binary())
                    moments = np.full(PARTITIONS, time.time_ns() // 1_000_000, dtype=np.int64)
                    rows = Columns(None, data, None, moments)
                    segments = [*cutter.add_records(rows, values, streams), *cutter.rest()]
                    start_commit(client, TaskAttempt("epochs", run, epoch, 0, "a"), segments, "").receive()
                    told.count("epochs committed")
                    epoch += 1
        except (CairnError, OSError):
            told.count("runs that were replaced")
            told.ended.wait(PAUSE_S)


def make_topics(address: str, told: Told) -> None:
    """Topics come, get some records, and go."""
    port = int(address.rpartition(":")[2])
    batch = make_batch([b"x" * 100] * 10, timestamp_ms=time.time_ns() // 1_000_000)
    while not told.ended.wait(TOPIC_EACH_S):
        name = f"short-{uuid.uuid4().hex}"
        with suppress(RawFailed, OSError), RawConnection(port) as link:
            link.create_topic(name, PARTITIONS)
            for partition in range(PARTITIONS):
                link.produce(name, partition, batch)
            link.delete_topic(name)
            told.count("topics made and deleted")


def probe(address: str, told: Told) -> None:
    """One small record after the other, each timed."""
    port = int(address.rpartition(":")[2])
    while not told.ended.is_set():
        with suppress(RawFailed, OSError), RawConnection(port) as link:
            while not told.ended.wait(PROBE_EACH_S):
                batch = make_batch([b"x" * 100], timestamp_ms=time.time_ns() // 1_000_000)
                begun = time.perf_counter()
                link.produce(PROBE, 0, batch)
                told.took(time.perf_counter() - begun)
        told.ended.wait(PAUSE_S)


CLIENTS: tuple[Work, ...] = (
    write,
    check(INPUT, number_of_input),
    check(OUTPUT, int),
    join_and_leave,
    join_and_leave,
    catch_up,
    commit_epochs,
    make_topics,
    probe,
)

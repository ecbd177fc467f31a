"""A real sidecar under load, killed with SIGKILL at random moments and started again, many times.

Two producers run through all of it: an idempotent one, whose records must be there exactly once and in order, and one
that never retries, whose acknowledged records must be there at their offsets, in order, and no record twice.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

pytestmark = pytest.mark.crash

KILLS, LONG_KILLS = 20, 500

PARTITIONS = 2
SHORTEST_LIFE_S, LONGEST_LIFE_S = 0.02, 0.35
QUIET = {"log_level": 0, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20, "broker.address.family": "v4"}


class Load:
    """One producer on a thread of its own; records are numbered per partition."""

    def __init__(self, address: str, topic: str, *, idempotent: bool) -> None:
        self.topic = topic
        self.sent = [0] * PARTITIONS
        self.acked: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        """Per partition: record number → offset."""
        self.fatal: list[str] = []
        retries = {"enable.idempotence": True} if idempotent else {"message.send.max.retries": 0}
        self._producer = Producer(
            {
                **QUIET,
                **retries,
                "bootstrap.servers": address,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 50,
                "retry.backoff.ms": 5,
                "retry.backoff.max.ms": 20,
                "message.timeout.ms": 0 if idempotent else 2_000,
                "queue.buffering.max.messages": 2_000,
                "error_cb": self._error,
            }
        )
        self.delivering = threading.Event()
        """Set once a record was acknowledged: the client library takes its time to get a producer id."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=topic)

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal.append(str(error))

    def start(self) -> None:
        """Produce until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is queued, and end."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0, f"{self.topic}: not everything was delivered"

    def _run(self) -> None:
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                value = b"%d" % self.sent[partition]
                try:
                    self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
                except BufferError:
                    break
                self.sent[partition] += 1
            self._producer.poll(0.001)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivering.set()
            self.acked[message.partition()][int(message.value())] = message.offset()
        elif self.topic == "once":
            self.fatal.append(str(error))


def read_all(address: str, topic: str, partition: int) -> list[tuple[int, int]]:
    """(offset, record number) of everything in a partition."""
    consumer = Consumer({**QUIET, "bootstrap.servers": address, "group.id": "check", "enable.auto.commit": False})
    try:
        target = TopicPartition(topic, partition, OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
        consumer.assign([target])
        found: list[tuple[int, int]] = []
        deadline = time.monotonic() + PATIENCE_S
        while (not found or found[-1][0] < end - 1) and end:
            assert time.monotonic() < deadline, f"{topic}-{partition}: read {len(found)}, the log ends at {end}"
            for message in consumer.consume(5000, timeout=1.0):
                assert message.error() is None, message.error()
                found.append((message.offset(), int(message.value())))
        return found
    finally:
        consumer.close()


def check_once(load: Load, address: str) -> int:
    """Every record exactly once, in order, without holes."""
    total = 0
    for partition in range(PARTITIONS):
        found = read_all(address, load.topic, partition)
        assert [number for _, number in found] == list(range(load.sent[partition]))
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert {number: offset for offset, number in found} == load.acked[partition]
        total += len(found)
    return total


def check_plain(load: Load, address: str) -> int:
    """Every acknowledged record at its offset; none twice; in order; nothing that was never sent."""
    total = 0
    for partition in range(PARTITIONS):
        found = read_all(address, load.topic, partition)
        numbers = [number for _, number in found]
        assert numbers == sorted(set(numbers))
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert not numbers or numbers[-1] < load.sent[partition]
        where = {number: offset for offset, number in found}
        for number, offset in load.acked[partition].items():
            assert where.get(number) == offset, f"record {number}, acknowledged at {offset}, is at {where.get(number)}"
        total += len(load.acked[partition])
    return total


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    """A running sidecar with two topics."""
    with Sidecar(tmp_path / "data") as running:
        admin = AdminClient({"bootstrap.servers": running.address, "log_level": 0})
        topics = [
            NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config={"segment.bytes": "100000"})
            for name in ("once", "plain")
        ]
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_S)
        yield running


@pytest.mark.timeout(24 * 3600)
def test_kill_nine(sidecar: Sidecar, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the moment of a kill, every acknowledged record is there, in order, once."""
    kills = pytestconfig.getoption("--kills", None) or (LONG_KILLS if pytestconfig.getoption("--long") else KILLS)
    seed = pytestconfig.getoption("--kill-seed", None)
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    moments = random.Random(seed)
    once, plain = (
        Load(sidecar.address, "once", idempotent=True),
        Load(sidecar.address, "plain", idempotent=False),
    )
    started = time.monotonic()
    over = threading.Event()
    try:
        for load in (once, plain):
            load.start()
            assert load.delivering.wait(PATIENCE_S)
        for _ in range(kills):
            over.wait(moments.uniform(SHORTEST_LIFE_S, LONGEST_LIFE_S))
            sidecar.kill()
            sidecar.restart()
    finally:
        once.stop()
        plain.stop()
    assert not once.fatal
    exactly, at_least = check_once(once, sidecar.address), check_plain(plain, sidecar.address)
    with capsys.disabled():
        print(
            f"\n  {kills} kills with SIGKILL, seed {seed}, {time.monotonic() - started:.0f} s: {exactly} records of an "
            f"idempotent producer exactly once, {at_least} acknowledged records of one that does not retry in place"
        )
    assert exactly
    assert at_least

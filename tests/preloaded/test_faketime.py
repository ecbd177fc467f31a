"""A real sidecar whose wall clock jumps, by libfaketime; its monotonic clock runs as it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

LIBRARY: Final = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs libfaketime: apt-get install faketime")
HOUR_MS: Final = 3_600_000
JUMPS: Final = ("+0", "+1h", "-1h", "+1h", "+0")
"""The clock of the sidecar, from the true one: forward, far back, and forward again."""
PER_JUMP: Final = 200


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """The file that says how far the sidecar's clock is off."""
    path = tmp_path / "clock"
    path.write_text("+0\n", encoding="ascii")
    return path


@pytest.fixture
def sidecar(tmp_path: Path, clock: Path) -> Iterator[Sidecar]:
    """A sidecar with a topic whose records it stamps, and which keeps them for half an hour."""
    running = Sidecar(tmp_path / "data")
    running.environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    with running:
        admin = AdminClient({"bootstrap.servers": running.address, "log_level": 0})
        config = {
            "segment.bytes": "20000",
            "retention.ms": str(HOUR_MS // 2),
            "message.timestamp.type": "LogAppendTime",
        }
        for future in admin.create_topics([NewTopic("jumps", 1, 1, config=config)]).values():
            future.result(PATIENCE_S)
        yield running


def produce(address: str, first: int) -> None:
    """PER_JUMP records, all acknowledged."""
    failed: list[str] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 1, "log_level": 0})
    for number in range(first, first + PER_JUMP):
        producer.produce(
            "jumps",
            b"%d" % number + b" " * 200,
            partition=0,
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def read(address: str, count: int) -> list[tuple[int, int, int]]:
    """Offset, number and time of all records."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False, "log_level": 0})
    found: list[tuple[int, int, int]] = []
    try:
        consumer.assign([TopicPartition("jumps", 0, 0)])

        def more() -> bool:
            for message in consumer.consume(1000, timeout=0.1):
                assert message.error() is None
                found.append((message.offset(), int(message.value()), message.timestamp()[1]))
            return len(found) >= count

        until(more, lambda: f"{len(found)} of {count} records")
    finally:
        consumer.close()
    return found


def offset_of(address: str, time_ms: int) -> int:
    """The first offset at or after a time."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "log_level": 0})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition("jumps", 0, time_ms)], timeout=PATIENCE_S)
        return int(found.offset)
    finally:
        consumer.close()


def test_a_clock_that_jumps_loses_nothing(sidecar: Sidecar, clock: Path) -> None:
    """Records that are written while the clock jumps by hours are all there, in order, found by time, before and after
    a kill. That no pass of retention takes them while the test runs is all that is shown of retention.
    """
    for number, jump in enumerate(JUMPS):
        clock.write_text(f"{jump}\n", encoding="ascii")
        produce(sidecar.address, number * PER_JUMP)
    total = len(JUMPS) * PER_JUMP
    for _ in range(2):
        records = read(sidecar.address, total)
        assert [(offset, number) for offset, number, _ in records] == [(each, each) for each in range(total)]
        times = [time for *_, time in records]
        assert max(times) - min(times) > HOUR_MS  # the clock did jump
        for wanted in sorted({times[0], times[PER_JUMP], times[2 * PER_JUMP], max(times)}):
            assert offset_of(sidecar.address, wanted) == next(offset for offset, _, time in records if time >= wanted)
        sidecar.kill()
        sidecar.restart()

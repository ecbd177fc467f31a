"""A real sidecar and real runner processes, killed with SIGKILL many times: the output is exact, for every consumer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.continuous.processes import RunnerProcess, Work, create, expected, produce
from tests.support.examples import is_long
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

pytestmark = pytest.mark.crash

RECORDS = 24_000 if is_long() else 12_000
KEYS = 900
KILLS = 100 if is_long() else 8
MOST_HEARD = 10_000
FOR_EVER = 10**12


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    """A sidecar process."""
    with Sidecar(tmp_path / "data") as running:
        yield running


def rows(seed: int) -> list[tuple[bytes, int]]:
    """Input: few keys often, many seldom."""
    chance = random.Random(seed)
    return [(b"key-%d" % min(int(chance.paretovariate(0.4)), KEYS), chance.randint(0, 999)) for _ in range(RECORDS)]


def consumed(address: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """What librdkafka reads of a stream, from its beginning to its end."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "check", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[tuple[bytes | None, bytes | None]] = []
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(found)} records, then silence"
            if message.error() is not None:
                return found
            found.append((message.key(), message.value()))
    finally:
        consumer.close()


def test_runners_that_are_killed_leave_exact_output(sidecar: Sidecar) -> None:
    """Runners one after the other, each killed somewhere in its recovery or its work; some with the sidecar."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    given = rows(seed)
    create(sidecar.address, "in")
    produce(sidecar.address, "in", given)
    work = Work(sidecar.address, "killed", RECORDS)
    replayed = checks = 0

    def note(heard: tuple[object, ...]) -> None:
        nonlocal replayed, checks
        match heard:
            case ("recovered", _, records):
                replayed += int(str(records))
            case ("epoch", _, count):
                checks = max(checks, int(str(count)))

    for kill in range(KILLS):
        with RunnerProcess(work) as runner:
            for _ in range(chance.randint(0, 6)):
                heard = runner.hear()
                assert heard[0] in ("recovered", "epoch", "done"), heard
                if heard[0] == "done":  # a runner may be quicker than who listens to it
                    break
                note(heard)
            if kill % 6 == 5:
                sidecar.kill()
                if chance.random() < 0.5:
                    runner.kill()
                sidecar.restart()
    with RunnerProcess(work) as runner:
        for last in runner.hear_until("done", MOST_HEARD):
            note(last)
    assert last == ("done",)
    print(f"{replayed} records replayed, up to {checks} checks in a life")
    assert replayed > 0
    assert checks > 0
    assert consumed(sidecar.address, "out-killed") == expected(given)


def test_a_newer_runner_ends_the_older_one(sidecar: Sidecar) -> None:
    """Two runners of one partition: the older one is told that it has been replaced, and nothing is written twice."""
    given = rows(7)
    half = RECORDS // 2
    create(sidecar.address, "in")
    produce(sidecar.address, "in", given[:half])
    work = Work(sidecar.address, "fenced", RECORDS)
    with RunnerProcess(replace(work, records=FOR_EVER)) as older:
        for _ in range(3):
            assert older.hear()[0] in ("recovered", "epoch")
        with RunnerProcess(work) as newer:
            assert newer.hear()[0] == "recovered"
            produce(sidecar.address, "in", given[half:])
            said_by_older = list(older.hear_until("failed", MOST_HEARD))[-1]
            assert list(newer.hear_until("done", MOST_HEARD))[-1] == ("done",)
    assert said_by_older[0] == "failed"
    assert "FencedIncarnation" in str(said_by_older[1])
    assert consumed(sidecar.address, "out-fenced") == expected(given)

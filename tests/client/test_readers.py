"""Registered readers of a real sidecar: over the wire, over a kill, from the command line, by a Kafka group."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import cast

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.errors import MalformedRequest, OffsetOutOfRange, ReaderReleased, UnknownReader, UnknownTopicOrPartition
from logstore.format.reader_api import LOG_START, ReaderOffset
from logstore.format.records import Record, encode_batch
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

TOPIC = "t"
STREAM = TopicPartition(TOPIC, 0)
# Each record fills a chunk, and may go once it is as old as a retention check.
FLAGS = ("--segment-bytes", "1024", "--retention-ms", "1", "--retention-check-interval-ms", "20")
EARLIEST = -2


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    """A sidecar that trims all that it may."""
    with Sidecar(tmp_path / "data", *FLAGS) as running:
        yield running


def connected(sidecar: Sidecar) -> Client:
    """A client of it."""
    return Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S)


def produce(client: Client, count: int) -> None:
    """So many records of 900 bytes."""
    for _ in range(count):
        client.produce(STREAM, encode_batch([Record(0, int(time.time() * 1000), None, bytes(900))]))


def log_start(client: Client) -> int:
    """The first offset that is still there."""
    return client.offsets({STREAM: EARLIEST})[STREAM].offset


def wait_for_start(client: Client, expected: int) -> None:
    """Wait until the log starts there; it must never start later."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := log_start(client)) < expected:
        assert time.monotonic() < deadline_s, f"the log still starts at {found}"
        Event().wait(0.01)
    assert found == expected


def wait_for_line(sidecar: Sidecar, text: str) -> None:
    """Wait until the log has a line with this text."""
    deadline_s = time.monotonic() + PATIENCE_S
    while text not in sidecar.log():
        assert time.monotonic() < deadline_s, sidecar.log()
        Event().wait(0.01)


def at(offset: int) -> list[ReaderOffset]:
    """A position in the stream."""
    return [ReaderOffset(TOPIC, 0, offset)]


def cli(sidecar: Sidecar, *words: str) -> subprocess.CompletedProcess[str]:
    """`cairn readers`."""
    command = [sys.executable, "-m", "logstore.cli", "readers", "--servers", sidecar.address, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_reader_holds_records_over_a_kill(sidecar: Sidecar) -> None:
    """What it has not acknowledged stays, also after a kill; what it has goes; after its removal all may go."""
    with connected(sidecar) as client:
        client.create_topic(TOPIC, 1)
        assert client.register_reader("a", at(LOG_START)) == tuple(at(0))
        produce(client, 6)
        client.acknowledge("a", at(2))
        wait_for_start(client, 2)
        sidecar.kill()
        sidecar.start()
        assert client.describe_reader("a").streams == tuple(at(2))
        client.acknowledge("a", at(4))
        wait_for_start(client, 4)
        client.remove_reader("a")
        wait_for_start(client, 6)
        assert client.reader_names() == []


def test_refusals_name_what_is_wrong(sidecar: Sidecar) -> None:
    """Positions that are not there, topics that are not there, readers that are not there."""
    with connected(sidecar) as client:
        client.create_topic(TOPIC, 1)
        with pytest.raises(OffsetOutOfRange, match="offset 7 of t-0"):
            client.register_reader("a", at(7))
        with pytest.raises(UnknownTopicOrPartition, match="'none'"):
            client.register_reader("a", [ReaderOffset("none", 0, LOG_START)])
        for refused in (client.describe_reader, client.remove_reader):
            with pytest.raises(UnknownReader, match="'a'"):
                refused("a")
        with pytest.raises(UnknownReader, match="'a'"):
            client.acknowledge("a", at(0))
        client.register_reader("a", at(0))
        produce(client, 3)
        with pytest.raises(OffsetOutOfRange, match="offset 9 of t-0"):
            client.acknowledge("a", at(9))
        with pytest.raises(MalformedRequest, match="cannot be printed"):
            client.register_reader("a\x1b[2J", at(0))
        client.delete_records(STREAM, 2)
        with pytest.raises(ReaderReleased, match=r"offset 1 .* before 2 are gone; register again from 2"):
            client.acknowledge("a", at(1))


def test_many_names_come_in_pages(sidecar: Sidecar) -> None:
    """More readers than one answer holds."""
    with connected(sidecar) as client:
        client.create_topic(TOPIC, 1)
        names = [f"r{number:04}" for number in range(1_001)]
        for name in names:
            client.register_reader(name, at(0))
        assert client.reader_names() == names


def test_a_reader_of_many_streams(sidecar: Sidecar) -> None:
    """More streams than a request names: they are registered, acknowledged and set anew, and each is held."""
    with connected(sidecar) as client:
        client.create_topic(TOPIC, 1_500)
        produce(client, 3)
        streams = [ReaderOffset(TOPIC, partition, LOG_START) for partition in range(1_500)]
        placed = client.register_reader("a", streams)
        assert [entry.partition for entry in placed] == list(range(1_500))
        assert client.describe_reader("a").streams == placed
        client.acknowledge("a", placed)
        assert client.register_reader("a", placed) == placed
        assert len(client.describe_reader("a").streams) == 1_500


def test_what_is_answered_at_the_log_start_is_there(sidecar: Sidecar) -> None:
    """Registrations at the log start while retention is at work: no answer names records that it has trimmed."""
    with connected(sidecar) as client:
        client.create_topic(TOPIC, 1)
        for number in range(100):
            produce(client, 1)
            (placed,) = client.register_reader(f"r{number}", at(LOG_START))
            assert log_start(client) <= placed.offset
            client.remove_reader(f"r{number}")


def test_the_command_line(sidecar: Sidecar) -> None:
    """Add, list, show and remove; an error is one line and status 1."""
    with connected(sidecar) as client:
        client.create_topic(TOPIC, 2)
        assert cli(sidecar, "list").stdout == "no reader is registered\n"
        behind = [sys.executable, "-m", "logstore.cli", "readers", "list", "--servers", sidecar.address]
        told = subprocess.run(behind, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        assert told.stdout == "no reader is registered\n"
        assert cli(sidecar, "add", "a", TOPIC).stdout == "registered: a holds 2 streams\n"
        again = cli(sidecar, "add", "a", TOPIC)
        assert again.returncode == 1
        refusal = "cairn readers add: a is already registered; --replace changes its streams and positions\n"
        assert again.stderr == refusal
        assert cli(sidecar, "add", "--replace", "a", TOPIC).stdout == "registered: a holds 2 streams\n"
        client.register_reader("empty", [])
        shown = cli(sidecar, "show", "empty").stdout
        assert shown.startswith("empty: acknowledged ")
        assert shown.endswith(" s ago\nno streams\n")
        client.remove_reader("empty")
        produce(client, 3)
        assert cli(sidecar, "list").stdout.startswith("a: 2 streams, 3 records behind, acknowledged ")
        assert cli(sidecar).stdout.startswith("a: 2 streams, 3 records behind, acknowledged ")
        assert "t-0: holds from offset 0, 3 records behind\n" in cli(sidecar, "show", "a").stdout
        assert cli(sidecar, "remove", "a").stdout == "removed: a\n"
        wrong = cli(sidecar, "show", "a")
        assert wrong.returncode == 1
        assert wrong.stderr == "cairn readers show: no reader is registered as 'a'; register it first\n"


def test_the_command_line_prints_json(sidecar: Sidecar) -> None:
    """Each action, and the list without an action; `--timeout` is an option as of every command that asks a sidecar."""

    def answer(*words: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(cli(sidecar, "--json", "--timeout", str(PATIENCE_S), *words).stdout)
        return found

    with connected(sidecar) as client:
        client.create_topic(TOPIC, 1)
        place = {"topic": TOPIC, "partition": 0, "offset": 0}
        assert answer("add", "a", TOPIC, "--group", "g") == {"registered": "a", "streams": [place]}
        produce(client, 3)
        (listed,) = cast("list[dict[str, object]]", answer()["readers"])
        assert isinstance(listed.pop("idle_ms"), int)
        assert listed == {"reader": "a", "group": "g", "query": None, "streams": 1, "lag": 3, "released": 0}
        shown = answer("show", "a")
        assert (shown["streams"], shown["released"]) == ([{**place, "lag": 3}], [])
        assert answer("remove", "a") == {"removed": "a"}
        assert answer("list") == {"readers": []}


def test_a_reader_follows_a_kafka_group(sidecar: Sidecar) -> None:
    """What the group commits is acknowledged: no client needs to know of readers."""
    with connected(sidecar) as client:
        client.create_topic(TOPIC, 1)
        assert cli(sidecar, "add", "a", TOPIC, "--group", "g").returncode == 0
        produce(client, 5)
        consumer = Consumer({"bootstrap.servers": sidecar.address, "group.id": "g", "enable.auto.commit": False})
        try:
            consumer.commit(offsets=[ClientTopicPartition(TOPIC, 0, 3)], asynchronous=False)
        finally:
            consumer.close()
        wait_for_start(client, 3)
        assert "follows group g" in cli(sidecar, "list").stdout
        assert " s ago, follows group g\n" in cli(sidecar, "show", "a").stdout


def test_a_reader_that_holds_too_much_is_released(tmp_path: Path) -> None:
    """The disk is free again, and the log names the reader."""
    with Sidecar(tmp_path / "data", *FLAGS, "--reader-hold-bytes", "3000") as sidecar, connected(sidecar) as client:
        client.create_topic(TOPIC, 1)
        client.register_reader("a", at(0))
        produce(client, 8)
        wait_for_start(client, 8)
        assert client.describe_reader("a").released == tuple(at(0))
        wait_for_line(sidecar, "event=reader_released reader=a stream=t-0 offset=0")


def test_retention_by_size_does_not_wait_for_the_next_check(tmp_path: Path) -> None:
    """Acknowledgements are durable seconds later, so that a full chunk is trimmed long before retention is checked."""
    flags = ("--segment-bytes", "1024", "--retention-bytes", "1024")
    with Sidecar(tmp_path / "data", *flags) as sidecar, connected(sidecar) as client:
        client.create_topic(TOPIC, 1)
        client.register_reader("a", at(0))
        produce(client, 5)
        client.acknowledge("a", at(4))
        deadline_s = time.monotonic() + PATIENCE_S
        while log_start(client) < 4:
            assert time.monotonic() < deadline_s
            Event().wait(0.1)
            produce(client, 1)
        assert log_start(client) == 4

"""A takeover of real processes that waits for a chunk, as operators and clients see it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from logstore.client.blocking import Client, parse_addresses
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.metadata.support import needs_etcd
from tests.support.cli import Finished, cairn
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
STREAM = "orders:0"
RECORDS = 50
ANSWER_S = 10.0
"""Longer than any answer takes; a command asks for so long who leads a partition that nobody leads."""


def asked(host: ClusterHostProcess, *words: str) -> Finished:
    """A command, asked at one host."""
    return cairn(*words, "--servers", host.address, "--timeout", str(ANSWER_S))


def partition(host: ClusterHostProcess) -> dict[str, Any]:
    """What `topics describe` says of the stream."""
    found: dict[str, Any] = asked(host, "topics", "describe", "orders", "--json").json["partitions"][0]
    return found


def produce(host: ClusterHostProcess, first: int) -> None:
    """An idempotent producer of its own sends records, and all are acknowledged."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": host.address, "enable.idempotence": True})
    for number in range(first, first + RECORDS):
        producer.produce("orders", b"%d" % number, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None] * RECORDS


def last_sealed(host: ClusterHostProcess) -> Path:
    """Where the host has its copy of the chunk with records."""
    return max((host.data_dir / "replicas").glob("*/*.log"), key=lambda path: path.stat().st_size).parent


def test_a_stream_goes_on_without_its_last_chunk(tmp_path: Path) -> None:
    """The only copy of the last sealed chunk is gone when its owner starts again: the commands say what the stream
    waits for, and a word of the operator has it go on; the records that are left are read.
    """
    with Cluster(tmp_path, ("a",)) as cluster:
        host = cluster["a"]
        with Client(parse_addresses(host.address), limit_s=PATIENCE_S) as client:
            client.create_topic("orders", 1)
        produce(host, 0)
        host.kill()
        host.start()  # seals the chunk, and opens an empty one
        until(lambda: partition(host)["latest"] == RECORDS, lambda: host.log)
        refused = asked(host, "topics", "forget-producers", STREAM, "--confirm", STREAM)
        assert (refused.status, "nothing was changed" in refused.err) == (1, True)
        host.kill()
        shutil.rmtree(last_sealed(host))
        host.start()
        until(lambda: asked(host, "status", "--json").json["streams_waiting"] == ["orders-0"], lambda: host.log)
        (waits,) = partition(host)["waits"]
        assert (waits["first"], waits["last"], waits["object"], waits["lost"]) == (0, RECORDS - 1, None, False)
        assert f"cairn topics forget-producers {STREAM}" in asked(host, "topics", "describe", "orders").out
        assert "orders-0: cairn topics describe" in asked(host, "status").out
        unnamed = asked(host, "topics", "forget-producers", STREAM)
        assert (unnamed.status, "begin anew" in unnamed.err) == (2, True)
        assert asked(host, "topics", "forget-producers", STREAM, "--confirm", "orders:1").status == 2
        careful = asked(host, "topics", "forget-producers", STREAM, "--confirm", STREAM)
        assert (careful.status, "--even-if-away" in careful.err) == (1, True)
        done = asked(host, "topics", "forget-producers", STREAM, "--confirm", STREAM, "--even-if-away")
        assert (done.status, done.err) == (0, "")
        assert "An epoch that these offsets may contain is held back" in done.out
        produce(host, RECORDS)
        found = partition(host)
        assert (found["waits"], found["earliest"], found["latest"]) == ([], 0, 2 * RECORDS)
        assert asked(host, "trim", STREAM, "--before", str(RECORDS), "--yes").status == 0
        consumer = Consumer({"bootstrap.servers": host.address, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        values: list[bytes] = []

        def read_all() -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
            return len(values) == RECORDS

        until(read_all, lambda: str(len(values)))
        consumer.close()
        assert values == [b"%d" % number for number in range(RECORDS, 2 * RECORDS)]

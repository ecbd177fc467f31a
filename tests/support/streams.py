"""Filling and emptying streams without Spark, so that what Spark read or wrote is checked by someone else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from logstore.client.blocking import Client, parse_addresses
from logstore.client.errors import OFFSET_OUT_OF_RANGE
from logstore.client.wire import EARLIEST, LATEST, TopicPartition
from spe_adapter.codec.decode import Decoder, scan
from tests.support.limits import PATIENCE_S

UNTIL_FLUSHED_MS: Final = 60_000
"""A producer's linger that only a full batch and `flush` end."""


class Row(NamedTuple):
    """One record as Spark's columns have it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def create_topic(address: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """A topic, made by a client of others'."""
    admin = AdminClient({"bootstrap.servers": address})  # must outlive the answer
    made = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))]
    )
    made[topic].result(PATIENCE_S)


def delete_topic(address: str, topic: str) -> None:
    """Away with it."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)


def produce(
    address: str,
    topic: str,
    values: Iterable[bytes],
    *,
    partition: int = 0,
    key: bytes | None = None,
    timestamp_ms: int = 0,
    headers: Sequence[tuple[str, bytes]] | None = None,
) -> None:
    """Records to one partition, acknowledged: up to 10,000 of them, or 1 MB, are one batch, so that a query that runs
    already sees all of them at once or none.
    """
    producer = Producer({"bootstrap.servers": address, "linger.ms": UNTIL_FLUSHED_MS})
    failures: list[object] = []
    for value in values:
        producer.produce(
            topic, value, key, partition=partition, timestamp=timestamp_ms, headers=list(headers or []),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(PATIENCE_S) == 0
    assert not failures, failures


def read_all(address: str, topic: str) -> list[Row]:
    """Every record of a topic, by partition and offset."""
    rows: list[Row] = []
    with Client(parse_addresses(address), limit_s=PATIENCE_S) as client:
        for partition in range(client.partitions(topic)):
            stream = TopicPartition(topic, partition)
            position = client.offsets({stream: EARLIEST})[stream].offset
            end = client.offsets({stream: LATEST})[stream].offset
            decoder = Decoder(topic, partition, with_headers=True)
            while position < end:
                fetched = client.start_fetch(stream, position, 1 << 20).receive()
                if fetched.error == OFFSET_OUT_OF_RANGE:  # the front was trimmed meanwhile
                    start = client.offsets({stream: EARLIEST})[stream].offset
                    assert start > position, (stream, start, position)
                    position = start
                    continue
                assert fetched.error == 0, (stream, position, fetched.error)
                chunk = scan(fetched.records, position)
                for batch in decoder.decode(fetched.records, chunk, position, end):
                    for row in batch.to_pylist():
                        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
                        rows.append(Row(partition, row["offset"], row["key"], row["value"], headers))
                position = chunk.next_offset
    return rows


def assert_exactly_once(found: Iterable[bytes | None], expected: Iterable[bytes]) -> None:
    """Each expected once, and nothing else; the failure names what is missing and what came too often."""
    counts = Counter(found)
    wanted = set(expected)
    missing = sorted(wanted - set(counts))
    doubled = sorted((key, count) for key, count in counts.items() if count > 1)
    strange = [key for key in counts if key not in wanted]
    said = f"missing {len(missing)} {missing[:5]}, doubled {len(doubled)} {doubled[:5]}, strange {strange[:5]}"
    assert [missing, doubled, strange] == [[], [], []], said

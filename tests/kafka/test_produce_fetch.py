"""Produce and Fetch at the level of batches: what is refused and why, what limits mean, what a reader sees."""

import struct
import time

import pytest
from kio.schema.errors import ErrorCode

from logstore.format.batch import HEADER_BYTES, iterate_batches, seal_batch
from logstore.format.records import Record, decode_batch, encode_batch
from tests.kafka.wire_client import FETCH, INIT_PRODUCER_ID, PRODUCE, WireClient, fetch_values

HOUR_MS = 3_600_000


def batch(values: list[bytes], *, at_ms: int | None = None, producer_id: int = -1, sequence: int = -1) -> bytearray:
    """A batch of records."""
    now_ms = int(time.time() * 1000) if at_ms is None else at_ms
    records = [Record(n, now_ms, None, value, ()) for n, value in enumerate(values)]
    epoch = -1 if producer_id < 0 else 0
    return encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.parametrize("version", range(3, 12))
def test_every_produce_version(client: WireClient, topic: str, version: int) -> None:
    """Each version that is offered appends and answers."""
    assert client.produce(topic, bytes(batch([b"a"])), version=version)[1:] == (0, 0)


@pytest.mark.parametrize("version", range(4, 13))
def test_every_fetch_version(client: WireClient, topic: str, version: int) -> None:
    """Each version that is offered returns what was produced, unchanged but for its base offset."""
    client.produce(topic, bytes(batch([b"before"])))
    sent = batch([b"a", b"b"])
    client.produce(topic, bytes(sent))
    part = client.fetch(topic, 1, version=version)
    assert part.error_code is ErrorCode.none
    assert part.high_watermark == 3
    struct.pack_into(">q", sent, 0, 1)
    struct.pack_into(">i", sent, 12, 0)
    assert part.records == bytes(sent)


def _flip(data: bytearray, at: int) -> bytes:
    data[at] ^= 0x40
    return bytes(data)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (_flip(batch([b"value"]), HEADER_BYTES + 3), ErrorCode.corrupt_message),
        (_flip(batch([b"value"]), 17), ErrorCode.corrupt_message),
        (bytes(batch([b"value"]))[:-1], ErrorCode.corrupt_message),
        (bytes(batch([b"value"]))[:20], ErrorCode.corrupt_message),
        (b"", ErrorCode.corrupt_message),
        (bytes(batch([b"value"])) + bytes(batch([b"value"])), ErrorCode.invalid_record),
        (bytes(batch([b"v"], at_ms=int(time.time() * 1000) + 2 * HOUR_MS)), ErrorCode.invalid_timestamp),
        (bytes(16) + b"\x01" + bytes(60), ErrorCode.unsupported_for_message_format),
    ],
    ids=["record flipped", "CRC flipped", "cut", "no header", "empty", "two batches", "future", "old format"],
)
def test_bad_batch_is_refused_and_nothing_written(
    client: WireClient, topic: str, records: bytes, error: ErrorCode
) -> None:
    """A batch that is damaged, doubled, from the future or of an old format is refused by name; the log stays."""
    assert client.produce(topic, records).error == error
    assert client.latest(topic) == 0
    assert client.produce(topic, bytes(batch([b"good"]))).base_offset == 0


@pytest.mark.parametrize(("bit", "error"), [(0x20, ErrorCode.invalid_record), (0x10, ErrorCode.invalid_record)])
def test_control_and_transactional_batches_are_refused(
    client: WireClient, topic: str, bit: int, error: ErrorCode
) -> None:
    """Clients cannot write control batches, nor batches of transactions, which do not exist here."""
    data = batch([b"v"])
    data[22] |= bit
    assert client.produce(topic, bytes(seal_batch(data))).error == error
    assert client.latest(topic) == 0


def test_unknown_topic_and_partition(client: WireClient, topic: str) -> None:
    """Produce and Fetch do not create topics, and name what is missing."""
    assert client.produce("not-there", bytes(batch([b"v"]))).error == ErrorCode.unknown_topic_or_partition
    assert client.produce(topic, bytes(batch([b"v"])), partition=1).error == ErrorCode.unknown_topic_or_partition
    assert client.fetch("not-there", 0).error_code is ErrorCode.unknown_topic_or_partition


def test_transactional_produce_is_refused_by_name(client: WireClient, topic: str) -> None:
    """A transactional id is refused with a code that every client takes as final."""
    part = {"index": 0, "records": bytes(batch([b"v"]))}
    answer = client.request(
        PRODUCE, 8, transactional_id="t", acks=-1, topic_data=[{"name": topic, "partition_data": [part]}]
    )
    code = answer.responses[0].partition_responses[0].error_code
    assert code is ErrorCode.transactional_id_authorization_failed
    refused = client.request(INIT_PRODUCER_ID, 4, transactional_id="t")
    assert refused.error_code is ErrorCode.transactional_id_authorization_failed
    coordinator = client.request(10, 2, key="t", key_type=1)
    assert coordinator.error_code is ErrorCode.transactional_id_authorization_failed


def test_acks_that_do_not_exist(client: WireClient, topic: str) -> None:
    """acks other than 0, 1 and -1 are INVALID_REQUIRED_ACKS."""
    client.send_produce(topic, bytes(batch([b"v"])), acks=2)
    assert client.receive_produced().error == ErrorCode.invalid_required_acks
    assert client.latest(topic) == 0


def test_idempotent_producer(client: WireClient, topic: str) -> None:
    """A repeated batch is acknowledged with its first offset and written once; a gap in the sequence is refused."""
    given = client.request(INIT_PRODUCER_ID, 4, transactional_id=None)
    assert given.error_code is ErrorCode.none
    first = bytes(batch([b"a", b"b"], producer_id=given.producer_id, sequence=0))
    second = bytes(batch([b"c"], producer_id=given.producer_id, sequence=2))
    gap = bytes(batch([b"d"], producer_id=given.producer_id, sequence=9))
    assert [client.produce(topic, data)[1:] for data in (first, second, first, second)] == [
        (0, 0),
        (0, 2),
        (0, 0),
        (0, 2),
    ]
    assert client.produce(topic, gap).error == ErrorCode.out_of_order_sequence_number
    assert client.latest(topic) == 3


def test_producer_ids_differ(client: WireClient) -> None:
    """Nobody gets an id that somebody else has."""
    ids = [client.request(INIT_PRODUCER_ID, 1, transactional_id=None).producer_id for _ in range(10)]
    assert len(set(ids)) == len(ids)


def test_fetch_limits(client: WireClient, topic: str) -> None:
    """Whole batches up to the limits, but at least one, so that a reader always advances."""
    size = len(batch([b"x" * 1000]))
    for _ in range(5):
        client.produce(topic, bytes(batch([b"x" * 1000])))
    assert len(client.fetch(topic, 0, partition_max_bytes=1).records) == size
    assert len(client.fetch(topic, 0, max_bytes=1).records) == size
    assert len(client.fetch(topic, 0, partition_max_bytes=3 * size).records) == 3 * size
    assert len(client.fetch(topic, 2).records) == 3 * size


def test_fetch_total_limit_over_partitions(client: WireClient) -> None:
    """Only the first partition with records may exceed the request's limit; all partitions are answered."""
    assert client.create_topic("limits-2", partitions=2) == 0
    for partition in range(2):
        client.produce("limits-2", bytes(batch([b"x" * 1000])), partition=partition)
    answer = client.request(FETCH, 11, **fetch_values("limits-2", 0, max_bytes=10, partitions=(0, 1)))
    parts = answer.responses[0].partitions
    assert [part.partition_index for part in parts] == [0, 1]
    assert [bool(part.records) for part in parts] == [True, False]


@pytest.mark.parametrize("offset", [-2, 4, 1 << 40])
def test_offset_out_of_range(client: WireClient, topic: str, offset: int) -> None:
    """An offset outside the log is an error at once, however long the client waits; the high watermark is inside."""
    client.produce(topic, bytes(batch([b"a", b"b", b"c"])))
    part = client.fetch(topic, offset, max_wait_ms=20_000)
    assert part.error_code is ErrorCode.offset_out_of_range
    assert client.fetch(topic, 3).error_code is ErrorCode.none


def test_fetch_from_the_middle_of_a_batch(client: WireClient, topic: str) -> None:
    """The batch that holds the offset comes whole; the client skips what it has."""
    client.produce(topic, bytes(batch([b"a", b"b", b"c"])))
    records = client.fetch(topic, 1).records
    assert [record.value for record in decode_batch(records)] == [b"a", b"b", b"c"]
    assert [position for position, _ in iterate_batches(records)] == [0]


def test_min_bytes_waits_for_enough(client: WireClient, topic: str) -> None:
    """A fetch with min_bytes above what is there waits, and returns what there is when its time is up."""
    client.produce(topic, bytes(batch([b"a"])))
    started_s = time.monotonic()
    part = client.fetch(topic, 0, min_bytes=1 << 20, max_wait_ms=300)
    assert time.monotonic() - started_s >= 0.25
    assert part.records


def test_fetch_sessions_are_declined(client: WireClient, topic: str) -> None:
    """A client that asks for a session gets session 0; a session nobody opened is FETCH_SESSION_ID_NOT_FOUND."""
    opened = client.request(FETCH, 11, **fetch_values(topic, 0, session_id=0, session_epoch=0))
    assert (opened.session_id, opened.error_code) == (0, ErrorCode.none)
    unknown = client.request(FETCH, 11, **fetch_values(topic, 0, session_id=77, session_epoch=1))
    assert unknown.error_code is ErrorCode.fetch_session_id_not_found


def test_leader_epochs(client: WireClient, topic: str) -> None:
    """There is one leader epoch, 0; a client that knows a later one is told so."""
    values = fetch_values(topic, 0)
    values["topics"][0]["partitions"][0]["current_leader_epoch"] = 3
    part = client.request(FETCH, 11, **values).responses[0].partitions[0]
    assert part.error_code is ErrorCode.unknown_leader_epoch
    asked = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
    client.produce(topic, bytes(batch([b"a", b"b"])))
    answer = client.request(23, 4, replica_id=-1, topics=[{"topic": topic, "partitions": [asked]}])
    assert (answer.topics[0].partitions[0].leader_epoch, answer.topics[0].partitions[0].end_offset) == (0, 2)

"""Produce over a real connection: what is taken, what is refused, in which order it is answered."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from kio.schema.errors import ErrorCode

from logstore.base.system import SystemClock
from logstore.events import CONNECTION_CLOSED, DISK_FULL, DISK_FULL_OVER
from tests.kafka.front_driver import (
    API_VERSIONS,
    PRODUCE,
    batch,
    decode_answer,
    produce_frame,
    request_frame,
    serving,
)

HOUR_MS = 3_600_000
VERSIONS = range(3, 14)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_is_answered_in_its_own_layout(tmp_path: Path, version: int) -> None:
    """Offsets and log start come back in every version of Produce that ApiVersions offers."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        for expected in (0, 3):
            answer = await peer.produce(batch(3), version=version, topic_id=server.topic_id)
            assert (answer.error_code, answer.base_offset, answer.index) == (ErrorCode.none, expected, 0)
        assert server.stream.high_watermark == 6


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    """Fifty Produce requests and other ones between them, sent at once, are answered in the order they were sent."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        frames, kinds = [], []
        for number in range(50):
            if number % 7 == 3:
                frames.append(request_frame(API_VERSIONS, 0, b"", correlation_id=number))
            else:
                frames.append(produce_frame([batch(2)], correlation_id=number))
            kinds.append(number % 7 != 3)
        await peer.send(*frames)
        offsets = []
        for number, is_produce in enumerate(kinds):
            correlation_id, data = await peer.answer()
            assert correlation_id == number
            if is_produce:
                offsets.append(decode_answer(PRODUCE, 8, data).responses[0].partition_responses[0].base_offset)
        assert offsets == list(range(0, 2 * sum(kinds), 2))


async def test_produce_requests_are_appended_while_earlier_ones_wait_for_their_sync(tmp_path: Path) -> None:
    """With the disk held, requests go on into the log, nothing is answered; released, all are, in order."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch())
        server.files.gate = threading.Event()
        await peer.send(*(produce_frame([batch()], correlation_id=number) for number in range(10)))
        with trio.move_on_after(0.2) as waited:
            await peer.answer()
        assert waited.cancelled_caught
        assert server.stream.high_watermark == 1
        server.files.gate.set()
        assert [(await peer.answer())[0] for _ in range(10)] == list(range(10))
        assert server.stream.high_watermark == 11


async def test_acks_zero_gets_no_answer_and_is_written(tmp_path: Path) -> None:
    """A request with acks=0 is appended; the next answer is that of the next request."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.send(produce_frame([batch(4)], acks=0, correlation_id=1))
        answer = await peer.produce(batch(), correlation_id=2)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 4)


async def test_acks_zero_that_fails_closes_the_connection(tmp_path: Path) -> None:
    """Closing is the only way to tell a client that wants no answers; a real Kafka does so too."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.send(produce_frame([batch()], acks=0, topic="nowhere"))
        assert await peer.ended()
        assert server.reported(CONNECTION_CLOSED)


async def test_acks_one_means_acks_all(tmp_path: Path) -> None:
    """acks=1 is answered once the data is synced, like acks=all; other values are refused."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        assert (await peer.produce(batch(), acks=1)).error_code is ErrorCode.none
        assert (await peer.produce(batch(), acks=2)).error_code is ErrorCode.invalid_required_acks
        assert server.stream.high_watermark == 1


def _flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


REFUSED = {
    "wrong CRC": (_flipped(batch(), -1), ErrorCode.corrupt_message),
    "cut short": (batch()[:-1], ErrorCode.corrupt_message),
    "only a header": (batch()[:61], ErrorCode.corrupt_message),
    "two batches": (batch() + batch(), ErrorCode.invalid_record),
    "a control batch": (batch(control=True), ErrorCode.invalid_record),
    "an hour and more ahead": (
        batch(timestamp=SystemClock().wall_ms() + 2 * HOUR_MS),
        ErrorCode.invalid_timestamp,
    ),
    "too large": (batch(1, 1_100_000), ErrorCode.message_too_large),
    "no records": (None, ErrorCode.invalid_record),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_may_not_be_written_is_refused_by_name(tmp_path: Path, why: str) -> None:
    """A bad batch gets Kafka's error for it, with a message, and leaves nothing behind; a good one beside it is
    written.
    """
    records, error = REFUSED[why]
    async with serving(tmp_path) as server, await server.connect() as peer:
        answer = decode_answer(PRODUCE, 8, await peer.ask(produce_frame([records, batch(5)])))
        bad, good = answer.responses[0].partition_responses
        assert (bad.error_code, bad.base_offset) == (error, -1)
        assert bad.error_message
        assert (good.error_code, good.base_offset) == (ErrorCode.none, 0)
        assert server.stream.end_offset == 0
        assert (await peer.produce(batch())).base_offset == 0


async def test_transactions_are_refused_by_name(tmp_path: Path) -> None:
    """A transactional id is refused for good, before anything is written."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        answer = await peer.produce(batch(), transactional_id="t")
        assert answer.error_code is ErrorCode.transactional_id_authorization_failed
        assert server.stream.end_offset == 0


async def test_unknown_topics_and_partitions_fail_alone(tmp_path: Path) -> None:
    """A partition that is not there is UNKNOWN_TOPIC_OR_PARTITION; its neighbours are written."""
    async with serving(tmp_path, partitions=1) as server, await server.connect() as peer:
        answer = decode_answer(PRODUCE, 8, await peer.ask(produce_frame([batch(), batch()])))
        first, second = answer.responses[0].partition_responses
        assert (first.error_code, second.error_code) == (ErrorCode.none, ErrorCode.unknown_topic_or_partition)
        assert (await peer.produce(batch(), topic="nowhere")).error_code is ErrorCode.unknown_topic_or_partition


async def test_an_idempotent_producer_may_repeat_itself(tmp_path: Path) -> None:
    """A repeated batch gets its first offset again, a gap is OUT_OF_ORDER_SEQUENCE_NUMBER, nothing is doubled."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        first = batch(3, producer_id=9, producer_epoch=0, base_sequence=0)
        assert (await peer.produce(first)).base_offset == 0
        assert (await peer.produce(first)).base_offset == 0
        gap = batch(1, producer_id=9, producer_epoch=0, base_sequence=5)
        assert (await peer.produce(gap)).error_code is ErrorCode.out_of_order_sequence_number
        follows = batch(1, producer_id=9, producer_epoch=0, base_sequence=3)
        assert (await peer.produce(follows)).base_offset == 3


async def test_a_small_batch_does_not_keep_its_large_frame(tmp_path: Path) -> None:
    """What the tail keeps of a request is what it counts: a batch that is a small part of its frame is copied out."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.ask(produce_frame([batch(), batch(1, 900_000)]))
        (entry,) = server.stream.read_tail(0, 1) or []
        whole: Any = memoryview(entry.buffer).obj
        assert len(whole) < 1000


async def test_a_full_disk_refuses_and_goes_on(tmp_path: Path) -> None:
    """A disk error is KAFKA_STORAGE_ERROR, reads go on, and so do writes once the disk does."""
    async with serving(tmp_path) as server, await server.connect() as peer:
        await peer.produce(batch())
        server.files.failure = OSError(28, "No space left on device")
        assert (await peer.produce(batch())).error_code is ErrorCode.kafka_storage_error
        assert (await peer.fetch()).responses[0].partitions[0].records
        assert len(server.reported(DISK_FULL)) == 1
        assert not server.reported(DISK_FULL_OVER)
        server.files.failure = None
        assert (await peer.produce(batch())).base_offset == 1
        for _ in range(3):  # as much as was refused, the room for the journal's first file included
            await peer.produce(batch(1, 500_000))
        assert len(server.reported(DISK_FULL)) == len(server.reported(DISK_FULL_OVER)) == 1

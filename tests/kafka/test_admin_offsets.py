"""Offsets by position and time, and trimming, in every version of the requests."""

from pathlib import Path
from typing import Any

import pytest
import trio
from kio.schema.errors import ErrorCode

from logstore.events import LOOK_UP_INEXACT
from logstore.format.records import Record, encode_batch
from logstore.log import reading
from tests.kafka.node import NOW_MS, Node, running
from tests.support.compressed import CODECS, compressed, with_body

LIST_OFFSETS, LEADER_EPOCH, DELETE_RECORDS = 2, 23, 21
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -2, -1, -3, -4, -5, -6


async def offset(node: Node, version: int, timestamp: int, **more: Any) -> tuple[ErrorCode, int, int]:
    """Error, offset and timestamp that ListOffsets answers for t-0."""
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp, **more}
    topics = [{"name": "t", "partitions": [part]}]
    found = (await node.ask(LIST_OFFSETS, version, replica_id=-1, topics=topics)).topics[0].partitions[0]
    return found.error_code, found.offset, found.timestamp


async def with_records(node: Node) -> None:
    """t-0: records 0 to 4, at these seconds from NOW_MS, the newest in the middle; two of them trimmed."""
    await node.engine.wait(node.store.create_topic("t", 1, {}))
    await node.append("t", [NOW_MS, NOW_MS + 1000, NOW_MS + 9000])
    await node.append("t", [NOW_MS + 3000, NOW_MS + 4000])
    await node.engine.wait(node.store.stream("t", 0).delete_records(1))


def test_ends_of_a_stream(tmp_path: Path) -> None:
    """The earliest offset is the log start, the latest the high watermark; positions of later versions need those."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_records(node)
            unknown = (ErrorCode.unsupported_version, -1, -1)
            for version in node.versions(LIST_OFFSETS):
                assert await offset(node, version, EARLIEST) == (ErrorCode.none, 1, -1)
                assert await offset(node, version, LATEST) == (ErrorCode.none, 5, -1)
                newest = (ErrorCode.none, 2, NOW_MS + 9000)
                assert await offset(node, version, MAX_TIMESTAMP) == (newest if version >= 7 else unknown)
                local = (ErrorCode.none, 1, -1)
                assert await offset(node, version, EARLIEST_LOCAL) == (local if version >= 8 else unknown)
                tiered = (ErrorCode.none, -1, -1)
                assert await offset(node, version, LATEST_TIERED) == (tiered if version >= 9 else unknown)
                assert await offset(node, version, PENDING_UPLOAD) == (tiered if version >= 11 else unknown)
                assert await offset(node, version, -7) == unknown

    trio.run(story)


def test_offsets_by_time(tmp_path: Path) -> None:
    """A time finds the first record at it or later that is still there; behind the newest there is none."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_records(node)
            for version in (1, 11):
                assert await offset(node, version, 0) == (ErrorCode.none, 1, NOW_MS + 1000)
                assert await offset(node, version, NOW_MS + 1000) == (ErrorCode.none, 1, NOW_MS + 1000)
                assert await offset(node, version, NOW_MS + 1001) == (ErrorCode.none, 2, NOW_MS + 9000)
                assert await offset(node, version, NOW_MS + 9001) == (ErrorCode.none, -1, -1)

    trio.run(story)


@pytest.mark.parametrize("name", CODECS)
def test_offsets_by_time_inside_compressed_batches(tmp_path: Path, name: str) -> None:
    """Whatever the codec and its framing, a time finds the record itself, and the newest record is found as well."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await node.engine.wait(node.store.create_topic("t", 1, {}))
            seconds = [*range(40), 90, *range(40, 50)]
            for shift in (0, 100):
                times = [NOW_MS + 1000 * (shift + second) for second in seconds]
                records = [Record(0, at_ms, None, b"value" * 20) for at_ms in times]
                await node.send("t", compressed(encode_batch(records), name), now_ms=max(times))
            for second, expected in ((-1, 0), (0, 0), (33, 33), (41, 40), (90, 40), (91, 51), (133, 84), (190, 91)):
                found_ms = NOW_MS + 1000 * ([*seconds, *(100 + second for second in seconds)][expected])
                assert await offset(node, 10, NOW_MS + 1000 * second) == (ErrorCode.none, expected, found_ms)
            assert await offset(node, 10, NOW_MS + 190_001) == (ErrorCode.none, -1, -1)
            assert await offset(node, 10, MAX_TIMESTAMP) == (ErrorCode.none, 91, NOW_MS + 190_000)

    trio.run(story)


def test_a_batch_that_does_not_open_is_never_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch opens to more than the bound, the answer is the first record that was not seen: early, never late,
    with the batch's latest time; the operator is told.
    """
    monkeypatch.setattr(reading, "MAX_OPENED_BYTES", 1000)

    async def story() -> None:
        async with running(tmp_path) as node:
            await node.engine.wait(node.store.create_topic("t", 1, {}))
            records = [Record(0, NOW_MS + number, None, bytes(90)) for number in range(50)]
            await node.send("t", compressed(encode_batch(records), "zstd"), now_ms=NOW_MS)
            await node.send("t", with_body(encode_batch(records), 3, b"no lz4"), now_ms=NOW_MS)
            assert await offset(node, 10, NOW_MS + 5) == (ErrorCode.none, 5, NOW_MS + 5)
            assert not node.reports.of(LOOK_UP_INEXACT)
            error, found, found_ms = await offset(node, 10, NOW_MS + 40)
            assert (error, found_ms) == (ErrorCode.none, NOW_MS + 49)
            assert 5 < found < 12
            assert len(node.reports.of(LOOK_UP_INEXACT)) == 1
            await node.engine.wait(node.store.stream("t", 0).delete_records(50))
            assert await offset(node, 10, NOW_MS + 40) == (ErrorCode.none, 50, NOW_MS + 49)

    trio.run(story)


def test_the_newest_record_behind_a_trim(tmp_path: Path) -> None:
    """If the record that was the newest is trimmed, the newest of those that are left is found."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await node.engine.wait(node.store.create_topic("t", 1, {}))
            await node.append("t", [NOW_MS + 9000, NOW_MS + 1000, NOW_MS + 3000, NOW_MS + 2000])
            await node.append("t", [NOW_MS + 3000])
            await node.engine.wait(node.store.stream("t", 0).delete_records(1))
            assert await offset(node, 10, MAX_TIMESTAMP) == (ErrorCode.none, 2, NOW_MS + 3000)

    trio.run(story)


def test_an_empty_stream_has_ends_but_no_times(tmp_path: Path) -> None:
    """Both ends of an empty stream are 0; no time finds anything."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await node.engine.wait(node.store.create_topic("t", 1, {}))
            assert await offset(node, 10, EARLIEST) == await offset(node, 10, LATEST) == (ErrorCode.none, 0, -1)
            assert await offset(node, 10, 0) == await offset(node, 10, MAX_TIMESTAMP) == (ErrorCode.none, -1, -1)

    trio.run(story)


def test_refused_questions(tmp_path: Path) -> None:
    """Unknown partitions, other leader epochs and a partition named twice are each that partition's error."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_records(node)
            missing = await offset(node, 10, LATEST, partition_index=1)
            assert missing == (ErrorCode.unknown_topic_or_partition, -1, -1)
            ahead = await offset(node, 10, LATEST, current_leader_epoch=1)
            assert ahead == (ErrorCode.unknown_leader_epoch, -1, -1)
            twice = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}] * 2
            answer = await node.ask(LIST_OFFSETS, 10, topics=[{"name": "t", "partitions": twice}])
            assert {part.error_code for part in answer.topics[0].partitions} == {ErrorCode.invalid_request}

    trio.run(story)


def test_no_log_diverges(tmp_path: Path) -> None:
    """The one leader epoch ends at the high watermark; others are unknown, but no error."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_records(node)
            for version in node.versions(LEADER_EPOCH):
                parts = [
                    {"partition": partition, "current_leader_epoch": -1, "leader_epoch": epoch}
                    for partition, epoch in ((0, 0), (0, 7), (9, 0))
                ]
                answer = await node.ask(LEADER_EPOCH, version, topics=[{"topic": "t", "partitions": parts}])
                shown = [(p.error_code, p.leader_epoch, p.end_offset) for p in answer.topics[0].partitions]
                assert shown == [
                    (ErrorCode.none, 0, 5),
                    (ErrorCode.none, -1, -1),
                    (ErrorCode.unknown_topic_or_partition, -1, -1),
                ]

    trio.run(story)


def test_deleted_records_stay_deleted(tmp_path: Path) -> None:
    """DeleteRecords moves the log start, for good; above the high watermark it is refused and moves nothing."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_records(node)

            async def delete(version: int, before: int, partition: int = 0) -> tuple[ErrorCode, int]:
                parts = [{"partition_index": partition, "offset": before}]
                answer = await node.ask(DELETE_RECORDS, version, topics=[{"name": "t", "partitions": parts}])
                part = answer.topics[0].partitions[0]
                return part.error_code, part.low_watermark

            for version in node.versions(DELETE_RECORDS):
                assert await delete(version, 2 + version) == (ErrorCode.none, 2 + version)
            assert await delete(2, 1) == (ErrorCode.none, 4)
            assert await delete(2, 6) == (ErrorCode.offset_out_of_range, -1)
            assert await delete(2, 1, partition=1) == (ErrorCode.unknown_topic_or_partition, -1)
            assert await offset(node, 10, EARLIEST) == (ErrorCode.none, 4, -1)
        async with running(tmp_path) as node:
            assert await offset(node, 10, EARLIEST) == (ErrorCode.none, 4, -1)
            parts = [{"partition_index": 0, "offset": -1}]
            await node.ask(DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": parts}])
            assert await offset(node, 10, EARLIEST) == await offset(node, 10, LATEST) == (ErrorCode.none, 5, -1)

    trio.run(story)

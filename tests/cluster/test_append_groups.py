"""Append groups in replicated streams: whole or not at all, seen by those who ask, found again by their END."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

from logstore.cluster.engine import ClusterEngine
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams import chunk_reads
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.group_entry import MAX_GROUP_BYTES
from logstore.cluster.streams.replica_files import LocalReplicaFiles
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import ClusterTopics
from logstore.disk.files import OsFiles
from logstore.engine import open_engine
from logstore.errors import CorruptBatch, GroupTooLarge, InvalidRecord, NotEnoughReplicas, NotLeader
from logstore.format.batch import iterate_batches
from logstore.format.control import BEGIN_TYPE, END_TYPE, Begin, End, encode_control, known_type
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.log.store import Store, StoreSettings
from logstore.log.stream_state import AppendTicket
from logstore.log.topics import LOG_APPEND_TIME, TopicConfig
from logstore.replica.effects import CutChunk, Load, WriteEntries
from logstore.replica.messages import end_after
from tests.cluster.batches import STREAM, ChunkOfOwner
from tests.cluster.support import Front, MemoryOwner, NoFiles
from tests.cluster.test_replica_files import running


def group(epoch: int, *values: bytes) -> bytearray:
    """An epoch's append group."""
    batches = b"".join(encode_batch([Record(0, epoch, None, value)]) for value in values)
    begin = encode_control(Begin("q", epoch, 1, ("0:a",), len(batches), len(values)), timestamp_ms=epoch)
    return begin + batches + encode_control(End("q", epoch, 1, b"{}"), timestamp_ms=epoch)


async def led(max_in_flight: int = 100, config: TopicConfig | None = None) -> tuple[Front, MemoryOwner]:
    """A stream that this host leads."""
    owner = MemoryOwner(max_in_flight)
    front = Front(owner, config=config or TopicConfig())
    owner.own(front.stream)
    await front.tasks.run()
    return front, owner


def append(front: Front, group: bytearray) -> AppendTicket:
    """Append a group."""
    return front.stream.append_group(group, now_ms=front.clock.wall_ms())


async def test_a_group_is_one_entry_with_dense_offsets() -> None:
    """From BEGIN to END, with the leader epoch, behind what was appended before; seen when it is acknowledged."""
    front, owner = await led()
    front.append(b"0", b"1")
    ticket = append(front, group(7, b"a", b"b"))
    front.append(b"2")
    headers = [header for _, header in iterate_batches(owner.window[1].data)]
    assert [header.base_offset for header in headers] == [2, 3, 4, 5]
    assert {header.partition_leader_epoch for header in headers} == {1}
    assert owner.window[1].record_count == 4
    owner.ack()
    assert (ticket.done, front.stream.high_watermark) == (False, 2)
    owner.ack()
    assert (ticket.result().base_offset, front.stream.high_watermark) == (2, 6)
    owner.ack()
    assert front.stream.high_watermark == 7


async def test_the_time_of_an_append_is_stamped_in_a_group_too() -> None:
    """As on a host alone: in the batches with records, not in control batches."""
    front, owner = await led(config=TopicConfig(timestamp_type=LOG_APPEND_TIME))
    append(front, group(7, b"a"))
    stamped = [header.has_log_append_time for _, header in iterate_batches(owner.window[0].data)]
    assert stamped == [False, True, False]


async def test_an_epoch_is_under_way_once() -> None:
    """Who asks again, because an answer was lost, waits for the first; later the log tells by its END."""
    front, owner = await led()
    first = append(front, group(1, b"a"))
    assert append(front, group(1, b"a")) is first
    assert len(owner.window) == 1
    owner.ack()
    assert first.result().base_offset == 0


async def test_a_group_of_an_owner_that_is_deposed_has_an_unknown_fate() -> None:
    """While it is under way, and while it waits for room; the next owner goes on behind what the log has."""
    front, owner = await led(max_in_flight=1)
    tickets = [append(front, group(1, b"a")), append(front, group(2, b"b"))]
    front.stream.deposed(9)
    assert [type(ticket.error) for ticket in tickets] == [NotLeader] * 2
    owner.own(front.stream, kept=1)
    await front.tasks.run()
    again = append(front, group(2, b"b"))
    owner.ack()
    assert again.result().base_offset == 3


async def test_a_group_that_no_message_could_carry_is_refused_by_its_size() -> None:
    """The error says what to do; what is no group is refused too."""
    front, owner = await led()
    with pytest.raises(GroupTooLarge, match=r"bytes for it.*takes 16777216.*maxOffsetsPerTrigger"):
        append(front, group(1, bytes(MAX_GROUP_BYTES)))
    for bad in (
        bytearray(),
        group(1)[:-1],
        group(1, b"a")[len(group(1)) // 2 :],
        encode_batch([Record(0, 1, None, b"")]),
    ):
        with pytest.raises((InvalidRecord, CorruptBatch)):
            append(front, bytearray(bad))
    assert owner.window == []


async def test_groups_that_wait_for_room_are_bounded() -> None:
    """Whoever publishes tries again later; one may always wait."""
    front, owner = await led(max_in_flight=1)
    for epoch in (1, 2):
        append(front, group(epoch, bytes(MAX_GROUP_BYTES - 1000)))
    with pytest.raises(NotEnoughReplicas):
        append(front, group(3, b"a"))
    owner.ack()
    owner.ack()
    assert front.stream.high_watermark == 6


@asynccontextmanager
async def reading(directory: Path) -> AsyncIterator[tuple[ClusterEngine, Front, MemoryOwner]]:
    """A stream all of whose chunks are on other hosts, with three groups between batches, over two chunks."""
    files, owner = OsFiles(directory), MemoryOwner()
    front = Front(owner)
    store = Store.open(files, front.clock, StoreSettings(), new_id=uuid4, report=front.reports)
    async with open_engine(store, files) as engine:
        reads = ChunkReads(engine, owner, cast(ReplicaFiles, NoFiles()), front.clock, front.reports)
        owner.own(front.stream)
        await front.tasks.run()
        front.append(b"0")
        for epoch in (1, 2):
            append(front, group(epoch, b"a%d" % epoch))
        owner.ack(3)
        owner.roll()
        front.append(b"1")
        append(front, group(3, b"a3"))
        owner.ack(2)
        front.append(b"2")
        yield ClusterEngine(engine, cast(ClusterTopics, None), reads), front, owner


def kinds(data: bytes) -> list[tuple[int, int]]:
    """Base offset and type of control batches."""
    return [(header.base_offset, known_type(memoryview(data)[at:])) for at, header in iterate_batches(data)]


async def values(engine: ClusterEngine, stream: ReplicatedStream, *, include_control: bool) -> list[bytes | None]:
    """The values of all records, those of control batches as b"control"."""
    found: list[bytes | None] = []
    offset = 0
    while offset < stream.high_watermark:
        piece = await engine.read(stream, offset, 1, include_control=include_control)
        for buffer in piece.buffers:
            for at, header in iterate_batches(buffer):
                batch = memoryview(buffer)[at : at + header.size_bytes]
                found += [b"control"] if header.is_control else [record.value for record in decode_batch(batch)]
        assert piece.next_offset > offset
        offset = piece.next_offset
    return found


async def test_ordinary_reads_do_not_see_control_batches(tmp_path: Path) -> None:
    """They pass over their offsets; who asks for control batches gets them."""
    async with reading(tmp_path) as (engine, front, _):
        assert await values(engine, front.stream, include_control=False) == [b"0", b"a1", b"a2", b"1", b"a3"]
        whole = await values(engine, front.stream, include_control=True)
        assert whole.count(b"control") == 6
        newest = await engine.max_timestamp(front.stream)
        assert newest is not None
        assert newest.offset == 0  # the first of those with the test's time; control batches do not count


@pytest.mark.parametrize("scan_bytes", [1, 200, 4 << 20])
async def test_control_batches_are_found_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scan_bytes: int
) -> None:
    """Over all chunks, whatever a step looks at, of the types that are asked for, up to where they are asked for."""
    monkeypatch.setattr(chunk_reads, "SCAN_BYTES", scan_bytes)
    async with reading(tmp_path) as (engine, front, _):
        found: list[tuple[int, int]] = []
        before = -1
        while before:
            piece = await engine.scan_controls(front.stream, before, (), 1)
            found += [each for buffer in piece.buffers for each in kinds(bytes(buffer))]
            assert before == -1 or piece.next_before < before
            before = piece.next_before
        offsets = [(10, END_TYPE), (8, BEGIN_TYPE), (6, END_TYPE), (4, BEGIN_TYPE), (3, END_TYPE), (1, BEGIN_TYPE)]
        assert found == offsets
        ends: list[int] = []
        await engine.find_ends(front.stream, 4, take=lambda offset, _: ends.append(offset))
        assert ends == [10, 6]
        await engine.find_ends(front.stream, 0, take=lambda offset, _: ends.append(offset))
        assert ends == [10, 6, 10, 6, 3]
        front.stream.deposed(5)
        with pytest.raises(NotLeader):
            await engine.find_ends(front.stream, 0, take=lambda offset, _: ends.append(offset))


async def test_a_group_survives_a_restart_and_is_copied_whole(tmp_path: Path) -> None:
    """On its disk it is what the owner sent; a copy gets it as one entry, however little it asks for, a reader gets
    batches.
    """
    sent = ChunkOfOwner(epoch=1)
    async with running(tmp_path) as host:
        await host.perform(sent.write(), sent.write(group_batches=3, value=b"x" * 70_000), sent.write(group_batches=0))
    async with running(tmp_path) as host:
        assert host.files.stored.chunks[STREAM, 1].durable == sent.end
        copied = await host.files.load(Load(1, STREAM, 1, 1, sent.end.length_bytes, 1, for_copy=True))
        assert copied.entries == (sent.entries[1],)
        everything = await host.files.load(Load(1, STREAM, 1, 0, sent.end.length_bytes, 1 << 20, for_copy=True))
        assert everything.entries == tuple(sent.entries)
        read = await host.files.load(Load(1, STREAM, 1, 1, sent.end.length_bytes, 1))
        assert [entry.record_count for entry in read.entries] == [1]
        whole = b"".join(entry.data for entry in sent.entries)
        inside = await host.files.load(Load(1, STREAM, 1, 2, sent.end.length_bytes, 1 << 20, for_copy=True))
        assert whole.endswith(b"".join(entry.data for entry in inside.entries))
        await host.perform(CutChunk(STREAM, 1, sent.ends[2]))
    async with running(tmp_path) as host:
        assert host.files.stored.chunks[STREAM, 1].durable == sent.ends[2]


async def test_the_largest_group_is_one_write(tmp_path: Path) -> None:
    """Of a replica; a restart finds it."""
    sent = ChunkOfOwner(epoch=1)
    operation = sent.write(group_batches=15, value=b"x" * 1_100_000)
    assert isinstance(operation, WriteEntries)
    assert end_after(operation.at, operation.entries).length_bytes > 16_400_000
    async with running(tmp_path) as host:
        await host.perform(operation)
        assert isinstance(host.files, LocalReplicaFiles)
        assert host.files.stored.chunks == {}
    async with running(tmp_path) as host:
        assert host.files.stored.chunks[STREAM, 1].durable == sent.end

"""Reads of replicated streams from members, and the producers that a new owner finds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
import trio

from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.disk.files import OsFiles
from logstore.engine import open_engine
from logstore.errors import CorruptChunk, OffsetOutOfRange, OutOfOrderSequence
from logstore.format.batch import HEADER_BYTES, iterate_batches, seal_batch
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.log.reading import TimeFound
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.replica.messages import BatchEntry
from tests.cluster.support import Front, MemoryOwner, NoFiles


class Hosts:
    """Two hosts that own a stream one after the other."""

    def __init__(self, reads: ChunkReads, owner: MemoryOwner) -> None:
        self.reads, self.owner = reads, owner

    async def lead(self, kept: int = 0) -> Front:
        """Another host takes over."""
        front = Front(self.owner, load=self.reads.load_producers)
        self.owner.own(front.stream, kept=kept)
        await front.tasks.run()
        return front

    async def values(self, front: Front, offset: int, max_bytes: int = 1 << 20) -> list[bytes | None]:
        """The values of the records that a read returns."""
        found = await self.reads.read(front.stream, offset, max_bytes)
        whole = b"".join(found.buffers)
        return [record.value for at, _ in iterate_batches(whole) for record in decode_batch(whole[at:])]


@asynccontextmanager
async def hosts(directory: Path) -> AsyncIterator[Hosts]:
    """No chunk is on this host: everything is read from members."""
    files, owner = OsFiles(directory), MemoryOwner()
    front = Front(owner)
    store = Store.open(files, front.clock, StoreSettings(), new_id=uuid4, report=front.reports)
    async with open_engine(store, files) as engine:
        yield Hosts(ChunkReads(engine, owner, cast(ReplicaFiles, NoFiles()), front.clock, front.reports), owner)


def serves(front: Front) -> bool:
    """Whether a host takes requests for its stream."""
    return front.stream.is_leader


async def test_a_new_owner_knows_what_is_in_the_log(tmp_path: Path) -> None:
    """A producer that got no answer sends its batch again: it is in the log once, whichever host has it, also when the
    batch was never acknowledged by the old owner, and also over several chunks.
    """
    async with hosts(tmp_path) as cluster:
        first = await cluster.lead()
        first.append(b"1", producer_id=5, sequence=0)
        cluster.owner.ack()
        cluster.owner.roll()
        lost = first.append(b"2", producer_id=5, sequence=1)
        second = await cluster.lead(kept=1)
        first.stream.deposed(9)
        assert lost.error is not None
        assert second.append(b"2", producer_id=5, sequence=1).result().duplicate
        second.append(b"3", producer_id=5, sequence=2)
        cluster.owner.ack()
        third = await cluster.lead()
        assert third.append(b"1", producer_id=5, sequence=0).result().duplicate
        assert cluster.owner.values == [b"1", b"2", b"3"]


async def test_a_new_owner_forgets_what_is_not_in_the_log(tmp_path: Path) -> None:
    """A batch that was cut is no duplicate: it is appended when it is sent again."""
    async with hosts(tmp_path) as cluster:
        first = await cluster.lead()
        first.append(b"1", producer_id=5, sequence=0)
        cluster.owner.ack()
        first.append(b"2", producer_id=5, sequence=1)
        second = await cluster.lead(kept=0)
        with pytest.raises(OutOfOrderSequence):
            second.append(b"3", producer_id=5, sequence=2)
        again = second.append(b"2", producer_id=5, sequence=1)
        cluster.owner.ack()
        assert (again.result().base_offset, again.result().duplicate) == (1, False)


async def test_reads_follow_the_chunks_up_to_the_high_watermark(tmp_path: Path) -> None:
    """What is not acknowledged is not read, and a read begins in the middle of a batch as Kafka's does: with all of
    that batch.
    """
    async with hosts(tmp_path) as cluster:
        front = await cluster.lead()
        front.append(b"0", b"1")
        front.append(b"2")
        cluster.owner.ack(2)
        cluster.owner.roll()
        front.append(b"3")
        front.append(b"4")
        cluster.owner.ack(1)
        assert await cluster.values(front, 1) == [b"0", b"1", b"2"]
        assert await cluster.values(front, 1, max_bytes=1) == [b"0", b"1"]
        assert await cluster.values(front, 2) == [b"2"]
        assert await cluster.values(front, 3) == [b"3"]
        assert await cluster.values(front, 4) == []
        with pytest.raises(OffsetOutOfRange):
            await cluster.values(front, 5)


async def test_reads_end_at_what_is_acknowledged_while_members_are_wanting(tmp_path: Path) -> None:
    """A reader who has seen more waits at its offset. Later all that the last chunk has is read."""
    async with hosts(tmp_path) as cluster:
        front = await cluster.lead()
        front.append(b"0", b"1")
        cluster.owner.ack()
        front.append(b"2")
        second = Front(cluster.owner, load=cluster.reads.load_producers)
        cluster.owner.own_for_readers(second.stream, kept=1)
        await second.tasks.run_a_while()
        assert await cluster.values(second, 0) == [b"0", b"1"]
        assert await cluster.values(second, 2) == await cluster.values(second, 3) == []
        found = await cluster.reads.max_timestamp(second.stream)
        assert found is not None
        assert found.offset < 2
        with pytest.raises(OffsetOutOfRange):
            await cluster.values(second, 4)
        cluster.owner.own(second.stream)
        await second.tasks.run()
        assert await cluster.values(second, 2) == [b"2"]


async def test_records_are_found_by_time(tmp_path: Path) -> None:
    """The first record with a time or a later one, and the one with the latest time."""
    async with hosts(tmp_path) as cluster:
        front = await cluster.lead()
        start_ms = front.clock.wall_ms()
        for number in range(3):
            front.append(b"%d" % number)
            cluster.owner.ack()
            cluster.owner.roll()
            front.clock.advance(10)
        found = await cluster.reads.find_timestamp(front.stream, start_ms + 5)
        assert found is not None
        assert (found.offset, found.timestamp) == (1, start_ms + 10)
        assert await cluster.reads.find_timestamp(front.stream, start_ms + 21) is None
        newest = await cluster.reads.max_timestamp(front.stream)
        assert newest is not None
        assert (newest.offset, newest.timestamp) == (2, start_ms + 20)


async def test_a_look_up_by_time_decodes_no_record_behind_the_one_that_it_finds(tmp_path: Path) -> None:
    """A batch on other hosts whose last record is malformed tells the times in front of it exactly; of those behind,
    that they are at or behind the last one that could be read.
    """
    async with hosts(tmp_path) as cluster:
        front = await cluster.lead()
        start_ms = front.clock.wall_ms()
        front.append(b"0", b"1", b"2")
        cluster.owner.ack()
        entries = cluster.owner.chunks[-1].entries
        records = [Record(number, start_ms + number, None, b"v") for number in range(3)]
        batch = encode_batch(records)
        last_bytes = (len(batch) - HEADER_BYTES) // 3
        batch[-last_bytes] = 1  # a length of -1
        entries[0] = entries[0]._replace(data=bytes(seal_batch(batch)))
        exact = TimeFound(1, start_ms + 1)
        assert await cluster.reads.find_timestamp(front.stream, start_ms + 1) == exact
        late = await cluster.reads.find_timestamp(front.stream, start_ms + 2)
        assert late is not None
        assert (late.offset, late.exact) == (2, False)


class OneCopy:
    """`ReplicaFiles` of a host with a copy of the only chunk."""

    def __init__(self, copy: Stream) -> None:
        self._copy = copy

    def local(self, stream: str, epoch: int) -> Stream:
        return self._copy


async def test_a_damaged_copy_hides_no_time(tmp_path: Path) -> None:
    """Look-ups by time read the chunk from another member, as reads of records do."""
    files, owner = OsFiles(tmp_path), MemoryOwner()
    front = Front(owner)
    store = Store.open(files, front.clock, StoreSettings(), new_id=uuid4, report=front.reports)
    async with open_engine(store, files) as engine:
        topic = await engine.wait(store.create_topic("copy", 1, {}))
        copy = topic.partitions[0]
        reads = ChunkReads(engine, owner, cast(ReplicaFiles, OneCopy(copy)), front.clock, front.reports)
        owner.own(front.stream)
        await front.tasks.run()
        front.append(b"1")
        owner.ack()
        data = bytearray(owner.chunks[-1].entries[0].data)
        await engine.wait(copy.append(data, now_ms=front.clock.wall_ms()))
        await engine.wait(copy.write_backlog())
        path = tmp_path / copy.chunks[-1].log_path
        written = bytearray(path.read_bytes())
        written[-1] ^= 1
        path.write_bytes(written)
        with pytest.raises(CorruptChunk):
            await engine.find_timestamp(copy, 0)
        for found in (await reads.find_timestamp(front.stream, 0), await reads.max_timestamp(front.stream)):
            assert found is not None
            assert (found.offset, found.timestamp) == (0, front.clock.wall_ms())
    files.close()


async def test_a_member_that_sends_damage_is_named(tmp_path: Path) -> None:
    """Never served."""
    async with hosts(tmp_path) as cluster:
        front = await cluster.lead()
        front.append(b"1")
        cluster.owner.ack()
        entry = cluster.owner.chunks[-1].entries[0]
        cluster.owner.chunks[-1].entries[0] = BatchEntry(entry.data[:-1] + b"x", 1)
        with pytest.raises(CorruptChunk, match="what a has sent of epoch 1 is damaged"):
            await cluster.values(front, 0)


async def test_a_new_owner_waits_until_it_can_read_the_producers(tmp_path: Path, autojump_clock: Any) -> None:
    """It serves nobody before: it would take a batch that is in the log for a new one."""
    async with hosts(tmp_path) as cluster:
        first = await cluster.lead()
        first.append(b"1", producer_id=5, sequence=0)
        cluster.owner.ack()
        entries = cluster.owner.chunks[-1].entries
        good = entries[0]
        entries[0] = BatchEntry(good.data[:-1] + b"x", 1)
        second = Front(cluster.owner, load=cluster.reads.load_producers)
        cluster.owner.own(second.stream)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.tasks.run)
            await trio.sleep(1)
            assert not serves(second)
            cluster.owner.chunks[-2].entries[0] = good
            await trio.sleep(1)
            assert serves(second)
        assert second.append(b"1", producer_id=5, sequence=0).result().duplicate

"""Chunks of replicated streams that lie in the tier alone: stored from what members say, and read as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast
from uuid import uuid4

import pytest
import trio
from crc32c import crc32c

from logstore.base.metadata.sqlite import open_sqlite
from logstore.cluster.engine import ClusterEngine
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams import takeover_waits, tiered_chunks
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.retention_clock import AGREE_MS
from logstore.cluster.streams.takeover_waits import TakeoverWaits, WaitTimes
from logstore.cluster.tier.tier_service import OwnThreads
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.errors import ChunkUnreachable, CorruptChunk, OutOfOrderSequence, TierUnavailable
from logstore.format.control import END_TYPE
from logstore.format.tiered_chunk import LOG_SUFFIX, PRODUCERS_SUFFIX, StoredObject, TieredChunk
from logstore.log.read_patience import ReadPatience
from logstore.log.store import Store, StoreSettings
from logstore.replica.messages import EntriesRead
from logstore.replica.registrations import ChunkRegistration
from logstore.testing.directory_objects import DirectoryObjects
from logstore.tier.interface import NoTurns, Turn
from logstore.tier.range_cache import RangeCache
from logstore.tier.sealed_upload import Piece, Read, SealedChunk, upload_sealed
from logstore.tier.upload import UploadRevoked, read_back
from tests.cluster.batches import group_entry
from tests.cluster.support import Front, MemoryOwner, NoFiles
from tests.support.limits import PATIENCE_S

CHUNKS, BATCHES = 4, 5
STEP_MS = 10


class TieredOwner(MemoryOwner):
    """An owner whose chunks may lie in the tier alone. `is_cut`: no host that has one of them can be reached."""

    is_cut = False

    async def read_entries(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int) -> EntriesRead:
        if not chunk.members or (self.is_cut and chunk.tiered is not None):
            raise ChunkUnreachable(f"nobody has the chunk from {chunk.base_offset} on")
        return await super().read_entries(stream, chunk, offset, max_bytes)


class Running:
    """A stream of sealed chunks that members have, and an object store."""

    def __init__(self, engine: StoreEngine, owner: TieredOwner, front: Front, objects: DirectoryObjects) -> None:
        self.owner, self.front, self.objects, self.local = owner, front, objects, engine
        self.reads = ChunkReads(engine, owner, cast(ReplicaFiles, NoFiles()), front.clock, front.reports)
        self.engine = ClusterEngine(engine, cast(Any, None), self.reads)
        self._threads = OwnThreads(2)

    def fill(self) -> None:
        """Chunks of batches, with a group in each, and an open one."""
        for chunk in range(CHUNKS):
            for number in range(BATCHES):
                self.front.append(b"%d.%d" % (chunk, number) + bytes(2000))
                self.owner.ack()
                self.front.clock.advance(STEP_MS if chunk < CHUNKS - 1 else -STEP_MS)
            self.front.stream.append_group(bytearray(group_entry(0, 0, value=b"%d" % chunk).data), now_ms=0)
            self.owner.ack()
            self.owner.roll()
        self.front.append(b"newest")
        self.owner.ack()

    async def store(self, chunk: ChunkRegistration) -> TieredChunk:
        """Store a chunk, as an owner does."""
        assert chunk.end is not None
        end = StoredObject(chunk.end.length_bytes, chunk.end.checksum)
        place, names = self.front.stream.tier_place, tiered_chunks.attempts(1)
        source = SealedChunk("s", chunk.base_offset, chunk.end.next_offset, end, chunk.epoch, 5, place, names)

        async def read(offset: int) -> Piece:
            found = await self.owner.read_entries("s", chunk, offset, 4_000)
            assert found.at.next_offset == offset
            data = b"".join(entry.data for entry in found.entries)
            return Piece(data, offset + sum(entry.record_count for entry in found.entries), found.founding)

        def work(read_here: Read) -> TieredChunk:
            return upload_sealed(self.objects, NoTurns(), source, read_here)

        return await self._threads.upload(work, source, read)

    async def move(self) -> None:
        """All sealed chunks lie in the tier alone."""
        for each in self.owner.chunks[:-1]:
            copy = tiered_chunks.tiered_copy(await self.store(each.registration))
            each.registration = replace(each.registration, tiered=copy, members=())

    async def new_owner(self, *, are_named: bool) -> Front:
        """Two producers write, each in a chunk, the tier has all chunks, and a host takes over. `are_named`: hosts are
        named that have the chunks, and cannot be reached.
        """
        for number in (5, 6):
            self.front.append(b"%d" % number, producer_id=number, sequence=0)
            self.owner.ack()
            self.owner.roll()
        members = self.owner.chunks[-1].registration.members
        await self.move()
        for each in self.owner.chunks[:-1] if are_named else ():
            each.registration = replace(each.registration, members=members)
        self.owner.is_cut = True
        second = Front(self.owner, load=self.reads.load_producers, reports=self.front.reports)
        self.owner.own(second.stream)
        return second

    async def found(self) -> list[object]:
        """What readers of all kinds find."""
        stream, found = self.front.stream, list[object]()
        for offset in range(stream.high_watermark):
            result = await self.engine.read(stream, offset, 3_000)
            found.append((b"".join(result.buffers), result.next_offset))
        start_ms = self.front.clock.wall_ms() - 2 * CHUNKS * BATCHES * STEP_MS
        for number in range(3 * CHUNKS * BATCHES):
            found.append(await self.engine.find_timestamp(stream, start_ms + number * STEP_MS + 1))
        found.append(await self.engine.max_timestamp(stream))
        await self.engine.find_ends(stream, 0, take=lambda offset, batch: found.append((offset, bytes(batch))))
        found.append([bytes(b) for b in (await self.engine.scan_controls(stream, -1, (END_TYPE,), 1 << 20)).buffers])
        return found


@asynccontextmanager
async def running_on(directory: Path, objects: DirectoryObjects) -> AsyncIterator[Running]:
    """See Running; nothing is in the stream yet."""
    (directory / "data").mkdir()
    files, owner = OsFiles(directory / "data"), TieredOwner()
    front = Front(owner)
    store = Store.open(files, front.clock, StoreSettings(), new_id=uuid4, report=front.reports)
    async with open_engine(store, files) as engine:
        engine.tier.cache = RangeCache(objects)
        owner.own(front.stream)
        await front.tasks.run()
        yield Running(engine, owner, front, objects)
    files.close()


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Running]:
    """The same with chunks, and a store in a directory."""
    (directory / "tier").mkdir()
    async with running_on(directory, DirectoryObjects(OsFiles(directory / "tier"))) as at:
        at.fill()
        yield at


async def test_readers_find_what_they_found_when_hosts_had_the_chunks(tmp_path: Path) -> None:
    """By offset, by time, the newest, and control records."""
    async with running(tmp_path) as at:
        before = await at.found()
        await at.move()
        stream = at.front.stream
        assert (stream.local_start_offset, stream.tiered_chunk_count) == (CHUNKS * (BATCHES + 3), CHUNKS)
        assert await at.found() == before


async def test_chunks_are_read_from_the_tier_while_their_hosts_are_away(tmp_path: Path) -> None:
    """Hosts have copies still, and none of these hosts can be reached: readers find the same."""
    async with running(tmp_path) as at:
        before = await at.found()
        await at.move()
        for each in at.owner.chunks[:-1]:
            each.registration = replace(each.registration, members=at.owner.chunks[-1].registration.members)
        at.owner.is_cut = True
        assert await at.found() == before


async def test_the_newest_record_is_not_looked_for_in_chunks_whose_records_are_older(tmp_path: Path) -> None:
    """However many chunks are in the tier: what says where they lie has the newest time of each."""
    asked = set[str]()
    async with running(tmp_path) as at:
        newest = await at.engine.max_timestamp(at.front.stream)
        await at.move()
        at.objects.before = lambda method, key: asked.add(key.split("/")[-2])
        assert await at.engine.max_timestamp(at.front.stream) == newest
        last = at.owner.chunks[-2].registration
        assert last.tiered is not None
        assert asked == {f"{last.base_offset:020d}-{last.tiered.attempt}"}


async def test_a_fetch_does_not_wait_for_the_store(tmp_path: Path) -> None:
    """It gets nothing at first, and the stream's waiters are woken when its records are there."""
    async with running(tmp_path) as at:
        await at.move()
        stream, woken = at.front.stream, trio.Event()
        stream.add_waiter(woken.set)
        nothing = await at.engine.read(stream, 0, 3_000, patience=ReadPatience(0))
        assert nothing.buffers == []
        with trio.fail_after(PATIENCE_S):
            await woken.wait()
        found = await at.engine.read(stream, 0, 3_000, patience=ReadPatience(0))
        assert found.next_offset > 0


async def test_a_store_that_is_away_fails_those_who_read_from_it(tmp_path: Path) -> None:
    """What hosts have is served."""

    def away(method: str, key: str) -> None:
        raise TierUnavailable("away")

    async with running(tmp_path) as at:
        await at.move()
        at.objects.before = away
        with pytest.raises(TierUnavailable):
            await at.engine.read(at.front.stream, 0, 3_000)
        newest = at.front.stream.high_watermark - 1
        assert (await at.engine.read(at.front.stream, newest, 3_000)).next_offset == newest + 1


async def test_what_is_stored_is_the_chunk_with_its_index(tmp_path: Path) -> None:
    """Batches as they are, the producers' state of the chunk's start, and an index that fits; each attempt has keys of
    its own.
    """
    async with running(tmp_path) as at:
        chunk = at.owner.chunks[1]
        chunk.founding = b"state"
        first, second = await at.store(chunk.registration), await at.store(chunk.registration)
        assert not {*first.all_keys()} & {*second.all_keys()}
        for stored in (first, second):
            read_back(at.objects, stored)
            data = b"".join(entry.data for entry in chunk.entries)
            assert at.objects.get(stored.all_keys()[-1], 0, 1 << 20) == data
            assert at.objects.get(stored.all_keys()[0], 0, 100) == b"state"
            assert chunk.registration.end is not None
            assert stored.log == StoredObject(len(data), crc32c(data))
            assert tiered_chunks.tiered_chunk(
                stored.place, replace(chunk.registration, tiered=tiered_chunks.tiered_copy(stored), written_ms=5)
            ) == stored  # fmt: skip
            assert tiered_chunks.epoch_of(stored.attempt) == 1


@pytest.mark.parametrize("are_named", [False, True])
async def test_a_new_owner_finds_the_producers_in_the_tier(tmp_path: Path, *, are_named: bool) -> None:
    """Those that the last chunk is founded on, and those who have written in it; whether hosts are named that cannot be
    reached, or none.
    """
    async with running(tmp_path) as at:
        second = await at.new_owner(are_named=are_named)
        await second.tasks.run()
        assert second.append(b"5", producer_id=5, sequence=0).result().duplicate
        assert second.append(b"6", producer_id=6, sequence=0).result().duplicate
        with pytest.raises(OutOfOrderSequence):
            second.append(b"6", producer_id=6, sequence=2).result()


def last_object(directory: Path, suffix: str, at: Running, back: int = 0) -> Path:
    """The file of an object of the newest chunk that has one, or of one in front."""
    keys = sorted(each.key for each in at.objects.list_keys("") if each.key.endswith(suffix))
    return directory / "tier" / "objects" / keys[-1 - back]


async def test_what_a_chunk_is_founded_on_is_in_the_chunks_in_front(tmp_path: Path) -> None:
    """The object with the producers that the last chunk is founded on is damaged: they are those that the chunks in
    front of it leave, and the takeover goes on.
    """
    async with running(tmp_path) as at:
        second = await at.new_owner(are_named=False)
        path = last_object(tmp_path, PRODUCERS_SUFFIX, at)
        path.write_bytes(path.read_bytes()[:-1])
        with trio.fail_after(PATIENCE_S):
            await second.tasks.run()
        assert second.append(b"5", producer_id=5, sequence=0).result().duplicate
        assert second.append(b"6", producer_id=6, sequence=0).result().duplicate


@pytest.mark.parametrize("suffix", [LOG_SUFFIX, PRODUCERS_SUFFIX])
async def test_a_new_owner_does_not_believe_damaged_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """What says who has written is not as registered: the owner serves nobody. When the objects are right again, what
    was damaged is in no memory.
    """
    monkeypatch.setattr(takeover_waits, "TIER_PAUSE_S", 0.0)
    async with running(tmp_path) as at:
        second = await at.new_owner(are_named=False)
        damaged = [last_object(tmp_path, suffix, at)]
        if suffix == PRODUCERS_SUFFIX:
            damaged.append(last_object(tmp_path, LOG_SUFFIX, at, back=1))  # the chunk in front says it as well
        good = [path.read_bytes() for path in damaged]
        for path, data in zip(damaged, good, strict=True):
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert await at.reads.load_producers(second.stream, second.stream.high_watermark) is None
        assert "the object in the tier is damaged" in str(at.front.reports.events)
        for path, data in zip(damaged, good, strict=True):
            path.write_bytes(data)
        await second.tasks.run()
        assert second.append(b"5", producer_id=5, sequence=0).result().duplicate


async def test_who_has_expired_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All who have written in the lost chunk wrote longer ago than an owner remembers a producer: the takeover goes on
    without it, not before.
    """
    monkeypatch.setattr(takeover_waits, "TIER_PAUSE_S", 0.0)
    async with running(tmp_path) as at, open_sqlite(tmp_path / "metadata.db", Random(0)) as metadata:
        expiry_ms, served = StoreSettings().producer_expiry_ms, [0]
        at.front.retention.time_ms = 5_000
        second = await at.new_owner(are_named=False)
        last = at.owner.chunks[-2].registration
        assert last.written_ms == 5_000
        last_object(tmp_path, LOG_SUFFIX, at).unlink()
        times = WaitTimes(at.front.clock, lambda: served[0], expiry_ms)
        waits = TakeoverWaits(metadata, times, at.front.reports, second.tasks)
        reads = ChunkReads(at.local, at.owner, cast(ReplicaFiles, NoFiles()), at.front.clock, at.front.reports, waits)
        served[0] = 5_000 + AGREE_MS + expiry_ms
        assert await reads.load_producers(second.stream, second.stream.high_watermark) is None
        assert waits.count == 1
        served[0] += 1
        table = await reads.load_producers(second.stream, second.stream.high_watermark)
        assert table is not None
        assert (table.entries(), waits.count) == ([], 0)
        assert at.front.reports.names()[-1] == "producers_expired"


async def test_a_chunk_whose_objects_are_missing_is_named(tmp_path: Path) -> None:
    """As after a restore of an older metadata store: reads say which offsets are gone, and what to do. They fail as
    those of a damaged chunk do, and all other records are read.
    """
    async with running(tmp_path) as at:
        await at.move()
        first, stream = at.owner.chunks[0].registration, at.front.stream
        assert first.end is not None
        for each in [*at.objects.list_keys("")]:
            if f"/{first.base_offset:020d}-" in each.key:
                at.objects.delete(each.key)
        what = f"offsets 0 to {first.end.next_offset - 1} .* missing .*`cairn trim --before {first.end.next_offset}`"
        with pytest.raises(CorruptChunk, match=what) as failed:
            await at.engine.read(stream, 2, 3_000)
        assert (failed.value.first_offset, failed.value.last_offset) == (0, first.end.next_offset - 1)
        with pytest.raises(CorruptChunk, match=what):
            await at.engine.find_timestamp(stream, 0)
        for offset in range(first.end.next_offset, stream.high_watermark):
            assert (await at.engine.read(stream, offset, 3_000)).next_offset > offset


@pytest.mark.parametrize("damage", ["flipped", "other", "short", "gap"])
async def test_a_chunk_that_is_not_as_registered_is_not_stored(tmp_path: Path, damage: str) -> None:
    """Whatever a member sends: a damaged batch, other batches, too few, or with a gap; no object is left
    in the store.
    """
    async with running(tmp_path) as at:
        chunk = at.owner.chunks[1]
        entries = chunk.entries
        match damage:
            case "flipped":
                entries[2] = entries[2]._replace(data=entries[2].data[:-1] + b"!")
            case "other":
                end = chunk.registration.end
                assert end is not None
                chunk.registration = replace(chunk.registration, end=end._replace(checksum=end.checksum ^ 1))
            case "short":
                del entries[-1]
            case "gap":
                del entries[2]
        with pytest.raises(CorruptChunk, match="not as registered"):
            await at.store(chunk.registration)
        assert not [each.key for each in at.objects.list_keys("") if "/_" not in each.key]


def test_a_chunk_that_was_planned_anew_is_given_up() -> None:
    """A turn that is revoked ends with the piece under way."""

    class RevokedTurns:
        def run(self, store: Any) -> Any:
            return store(Turn((), lambda: True))

        def close(self) -> None:
            pass

    batch = group_entry(0, 0).data
    chunk = SealedChunk("s", 0, 3, StoredObject(len(batch), crc32c(batch)), 1, 5, "c/t/0", tiered_chunks.attempts(1))
    with pytest.raises(UploadRevoked):
        upload_sealed(_Nothing(), RevokedTurns(), chunk, lambda offset: Piece(batch, 3, b""))  # type: ignore[arg-type]


class _Nothing:
    """An object store that keeps nothing."""

    def put(self, key: str, size_bytes: int, pieces: Any, chain: Any = ()) -> None:
        list(pieces)

    def delete(self, key: str) -> None:
        pass

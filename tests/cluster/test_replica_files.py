"""A host's replicas on a real disk: what is confirmed is there after a restart, and reads give what the owner sent."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

import logstore.log.replica_chunk
from logstore.base.system import SystemClock
from logstore.cluster.copies.copy_pace import MIN_PIECE_BYTES
from logstore.cluster.interfaces import Loaded, ReplicaFiles
from logstore.cluster.streams.replica_files import LocalReplicaFiles
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.errors import CorruptChunk, StorageFailed, UnknownTopicOrPartition
from logstore.interfaces import Buffer
from logstore.log.journal import JournalLimits
from logstore.log.store import Store, StoreSettings
from logstore.replica.effects import CutChunk, DiskOperation, Load, RemoveChunk, RemoveFence, WriteFence
from logstore.replica.messages import BatchEntry
from logstore.replica.registrations import Prefix
from logstore.testing.reports import RecordedReports
from tests.cluster.batches import STREAM, ChunkOfOwner
from tests.support.examples import is_long
from tests.support.limits import PATIENCE_S


class RunningHost:
    """A store with its replicas."""

    def __init__(self, engine: StoreEngine, files: ReplicaFiles) -> None:
        self.engine, self.files = engine, files

    async def perform(self, *operations: DiskOperation) -> None:
        """Carry out operations, all asked for at once."""
        for ticket in [self.files.perform(operation) for operation in operations]:
            await self.engine.wait(ticket)


class SlowFiles(OsFiles):
    """Files of which nothing is in memory, and whose next read of batches waits until it may go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.waits = False
        self.is_waiting, self.goes_on = threading.Event(), threading.Event()

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """See FileSystem."""
        if self.waits and path.endswith(".log"):
            self.waits = False
            self.is_waiting.set()
            self.goes_on.wait(PATIENCE_S)
        return super().read(path, position, length, drop_cache=drop_cache)

    def read_cached(self, path: str, position: int, length: int) -> Buffer | None:
        """See FileSystem."""
        return None


@asynccontextmanager
async def running(
    root: Path, settings: StoreSettings | None = None, files: OsFiles | None = None
) -> AsyncIterator[RunningHost]:
    """A host on a directory; a clean stop at the end."""
    disk = files or OsFiles(root)
    store = Store.open(disk, SystemClock(), settings or StoreSettings(), new_id=uuid.uuid4, report=RecordedReports())
    with trio.fail_after(PATIENCE_S):
        async with open_engine(store, disk) as engine:
            yield RunningHost(engine, await LocalReplicaFiles.open(engine))
    disk.close()


def log_below(root: Path) -> Path:
    """The only file with batches."""
    (path,) = root.glob("replicas/*/*.log")
    return path


@pytest.mark.parametrize("value_bytes", [10, 70_000])
async def test_what_is_confirmed_is_found_at_the_next_start(tmp_path: Path, value_bytes: int) -> None:
    """Entries in small and in large writes, their checksum, the fence, and the state of producers, after a restart."""
    sent = ChunkOfOwner(epoch=3, base_offset=7)
    async with running(tmp_path) as host:
        await host.perform(*(sent.write(2, value=b"x" * value_bytes) for _ in range(5)), WriteFence(STREAM, 2))
    async with running(tmp_path) as host:
        found = host.files.stored
        assert found.fences == {STREAM: 2}
        chunk = found.chunks[STREAM, 3]
        assert (chunk.base_offset, chunk.durable, chunk.is_sealed, chunk.is_damaged) == (7, sent.end, False, False)
        await host.perform(sent.write(3))
        loaded = await host.files.load(Load(1, STREAM, 3, 7, sent.end.length_bytes, 10 << 20))
        assert loaded.entries == tuple(sent.entries)
        assert loaded.at == Prefix.empty(7)
        assert loaded.founding == sent.founding


async def test_a_piece_of_a_copy_is_written_to_its_chunk_alone(tmp_path: Path) -> None:
    """The smallest piece, of batches of 16 KB, is more than the journal takes: it would be written twice."""
    sent = ChunkOfOwner(epoch=1)
    async with running(tmp_path) as host:
        await host.perform(sent.write())
        await host.perform(sent.write(MIN_PIECE_BYTES // 16_500, value=b"x" * 16_384))
        assert sent.end.length_bytes <= MIN_PIECE_BYTES
        assert host.engine.store.journal.parts == 0
        await host.perform(sent.write())
        assert host.engine.store.journal.parts == 1


async def test_a_fence_that_was_removed_is_gone(tmp_path: Path) -> None:
    """Also after a restart; one that was never there may be removed, and others stay."""
    other = STREAM.partition("/")[0] + "/7"
    async with running(tmp_path) as host:
        await host.perform(WriteFence(STREAM, 2), WriteFence(other, 3), RemoveFence(STREAM), RemoveFence(STREAM))
    async with running(tmp_path) as host:
        assert host.files.stored.fences == {other: 3}
        await host.perform(WriteFence(STREAM, 1))
    async with running(tmp_path) as host:
        assert host.files.stored.fences == {STREAM: 1, other: 3}


NOTHING_IN_MEMORY = StoreSettings(tail_bytes=0, journal=JournalLimits(file_bytes=0))


@pytest.mark.parametrize("settings", [StoreSettings(), NOTHING_IN_MEMORY], ids=["memory", "files"])
async def test_a_load_begins_and_ends_where_it_is_asked_to(tmp_path: Path, settings: StoreSettings) -> None:
    """From every offset, inside batches too, up to every length: the batch that holds the offset is the first, the
    prefix in front of it is right, and nothing lies behind the limit.
    """
    sent = ChunkOfOwner(epoch=1)
    async with running(tmp_path, settings) as host:
        for records in (1, 3, 2, 1, 4):
            await host.perform(sent.write(records=records))
        for limit in sent.ends:
            for cut in (0, 1):
                limit_bytes = max(0, limit.length_bytes - cut)
                shown = max(end for end in sent.ends if end.length_bytes <= limit_bytes)
                for offset in range(sent.end.next_offset + 2):
                    loaded = await host.files.load(Load(1, STREAM, 1, offset, limit_bytes, 1 << 20))
                    at = max(end for end in sent.ends if end.next_offset <= offset and end <= shown)
                    wanted = sent.entries[sent.ends.index(at) : sent.ends.index(shown)]
                    assert (loaded.at, list(loaded.entries), loaded.limit_offset) == (at, wanted, shown.next_offset)


async def test_a_sealed_chunk_ends_where_it_was_cut(tmp_path: Path) -> None:
    """A chunk is cut to what its registration says, takes nothing more, and is the same after a restart; without a cut
    nothing but the mark is written.
    """
    longer, whole = ChunkOfOwner(epoch=1), ChunkOfOwner(epoch=2, base_offset=5)
    async with running(tmp_path) as host:
        await host.perform(longer.write(8), whole.write(4))
        end = longer.ends[5]
        await host.perform(CutChunk(STREAM, 1, end), CutChunk(STREAM, 2, whole.end))
        log = host.files.local(STREAM, 1)
        assert log is not None
        assert log.high_watermark == log.end_offset == end.next_offset
        with pytest.raises(StorageFailed):
            await host.perform(longer.write())
        loaded = await host.files.load(Load(1, STREAM, 1, 0, end.length_bytes, 1 << 20))
        assert loaded.entries == tuple(longer.entries[:5])
    async with running(tmp_path) as host:
        chunks = host.files.stored.chunks
        assert (chunks[STREAM, 1].durable, chunks[STREAM, 1].is_sealed) == (end, True)
        assert (chunks[STREAM, 2].durable, chunks[STREAM, 2].is_sealed) == (whole.end, True)
        loaded = await host.files.load(Load(1, STREAM, 2, 5, whole.end.length_bytes, 1 << 20))
        assert loaded.entries == tuple(whole.entries)


async def test_a_load_during_a_cut_finds_no_damage(tmp_path: Path) -> None:
    """A read that began when the chunk was longer gives what is left of it."""
    sent = ChunkOfOwner(epoch=1)
    files = SlowFiles(tmp_path)
    async with running(tmp_path, NOTHING_IN_MEMORY, files) as host, trio.open_nursery() as nursery:
        await host.perform(sent.write(8, value=b"x" * 100_000))
        files.waits = True
        found: list[Loaded] = []

        async def load() -> None:
            found.append(await host.files.load(Load(1, STREAM, 1, 0, sent.end.length_bytes, 10 << 20)))

        nursery.start_soon(load)
        await trio.to_thread.run_sync(files.is_waiting.wait)
        await host.perform(CutChunk(STREAM, 1, sent.ends[5]))
        files.goes_on.set()
    assert found[0].entries == tuple(sent.entries[:5])
    assert found[0].limit_offset == sent.ends[5].next_offset


async def test_a_cut_finds_another_content(tmp_path: Path) -> None:
    """A prefix with another checksum, and one that is longer than what is here, are damage and change nothing."""
    sent = ChunkOfOwner(epoch=1)
    async with running(tmp_path) as host:
        await host.perform(sent.write(4))
    end = sent.ends[2]
    others = (
        end._replace(checksum=5),
        end._replace(next_offset=9),
        end._replace(length_bytes=end.length_bytes + 1),
        sent.end._replace(next_offset=9),
        Prefix(1 << 20, 9, 0),
        Prefix.empty(0),
    )
    for other in others:
        async with running(tmp_path) as host:
            assert host.files.stored.chunks[STREAM, 1].durable == sent.end
            with pytest.raises(CorruptChunk):
                await host.perform(CutChunk(STREAM, 1, other))


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_a_flipped_bit_is_found_by_who_reads_it(tmp_path: Path, *, is_sealed: bool) -> None:
    """Nothing of it is sent, whether it lies in a record, or in front of what a batch's checksum covers."""
    sent = ChunkOfOwner(epoch=3)
    async with running(tmp_path) as host:
        await host.perform(sent.write(8, value=b"x" * 5000))
        if is_sealed:
            await host.perform(CutChunk(STREAM, 3, sent.end))
    path = log_below(tmp_path)
    content = path.read_bytes()
    for at in (15, 7000):  # the leader epoch of the first batch, a record of the second
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        async with running(tmp_path) as host:
            with pytest.raises(CorruptChunk):
                await host.files.load(Load(1, STREAM, 3, 0, sent.end.length_bytes, 1 << 20))
    path.write_bytes(content)
    async with running(tmp_path) as host:
        loaded = await host.files.load(Load(1, STREAM, 3, 0, sent.end.length_bytes, 1 << 20))
        assert loaded.entries == tuple(sent.entries)


async def test_a_chunk_that_is_removed_may_be_copied_anew(tmp_path: Path) -> None:
    """Nothing of the former copy is in the new one, whatever the journal still has of it."""
    former, copy = ChunkOfOwner(epoch=1), ChunkOfOwner(epoch=1)
    async with running(tmp_path) as host:
        await host.perform(former.write(3, value=b"former"), former.write(), RemoveChunk(STREAM, 1))
        assert host.files.local(STREAM, 1) is None
        with pytest.raises(UnknownTopicOrPartition):
            await host.files.load(Load(1, STREAM, 1, 0, 100, 100))
        await host.perform(copy.write(2))
    async with running(tmp_path) as host:
        assert host.files.stored.chunks[STREAM, 1].durable == copy.end


async def test_entries_that_do_not_belong_there_are_refused(tmp_path: Path) -> None:
    """A damaged batch, another offset, a place that is not the end, a name that is no stream's: all are refused."""
    sent = ChunkOfOwner(epoch=1)
    async with running(tmp_path) as host:
        write = sent.write()
        damaged = write.entries[0]._replace(data=write.entries[0].data[:-1] + b"\xff")
        for number, wrong in enumerate(
            (
                (write.at, (damaged,)),
                (Prefix.empty(3), write.entries),
                (sent.end, write.entries),
                (write.at, (write.entries[0]._replace(record_count=2),)),
            )
        ):
            stream = f"{STREAM.partition('/')[0]}/{number}"
            with pytest.raises(StorageFailed):
                await host.perform(type(write)(stream, 1, *wrong))
        for stream in ("../../etc/0", STREAM.partition("/")[0], f"{STREAM}/1"):
            with pytest.raises(StorageFailed):
                await host.perform(type(write)(stream, 1, write.at, write.entries))
            with pytest.raises(StorageFailed):
                await host.perform(WriteFence(stream, 1))


class RandomReplicas:
    """Random operations and loads, and what owners have sent as the model."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random = root, Random(seed)
        self.settings = StoreSettings(
            tail_bytes=self.random.choice([0, 2000, 1 << 20]),
            journal=JournalLimits(file_bytes=self.random.choice([0, 20_000]), max_part_bytes=2000),
        )
        self.chunks = {epoch: ChunkOfOwner(epoch, 10 * epoch) for epoch in (1, 2, 3)}
        self.sealed: set[int] = set()

    async def run(self, steps: int) -> None:
        """Some lives of a host."""
        for _ in range(4):
            async with running(self.root, self.settings) as host:
                for epoch, sent in self.chunks.items():
                    chunk = host.files.stored.chunks.get((STREAM, epoch))
                    assert (chunk.durable if chunk is not None else Prefix.empty(sent.base_offset)) == sent.end
                for _ in range(steps):
                    epoch = self.random.choice(list(self.chunks))
                    await self.step(host, epoch)

    async def step(self, host: RunningHost, epoch: int) -> None:
        """One operation, or one load."""
        sent, random = self.chunks[epoch], self.random
        kind = random.choices(["write", "load", "cut", "remove", "write out", "tick"], [8, 12, 1, 1, 1, 1])[0]
        log = host.files.local(STREAM, epoch)
        if kind == "write" and epoch not in self.sealed:
            sizes = [random.choice([10, 100, 3000]) for _ in range(random.randint(1, 4))]
            await host.perform(*(sent.write(records=random.randint(1, 3), value=b"v" * size) for size in sizes))
        elif kind == "cut" and sent.entries and epoch not in self.sealed:
            count = random.randint(1, len(sent.entries))
            await host.perform(CutChunk(STREAM, epoch, sent.ends[count]))
            self.sealed.add(epoch)
            del sent.entries[count:], sent.ends[count + 1 :]
        elif kind == "remove":
            await host.perform(RemoveChunk(STREAM, epoch))
            self.sealed.discard(epoch)
            self.chunks[epoch] = ChunkOfOwner(epoch, 10 * epoch)
        elif kind == "write out" and log is not None:
            await host.engine.wait(log.write_backlog())
        elif kind == "tick":
            host.engine.store.save_readers()
        elif kind == "load":
            await self.load(host, epoch)

    async def load(self, host: RunningHost, epoch: int) -> None:
        """Any offset, any limit, any size."""
        sent, random = self.chunks[epoch], self.random
        limit = random.choice([sent.end, random.choice(sent.ends)])
        offset = random.randint(sent.base_offset, sent.end.next_offset + 1)
        max_bytes = random.choice([1, 500, 4000, 1 << 20])
        loaded = await host.files.load(Load(1, STREAM, epoch, offset, limit.length_bytes, max_bytes))
        if not sent.entries:
            assert not loaded.entries
            return
        at = max(end for end in sent.ends if end.next_offset <= offset and end <= limit)
        wanted: list[BatchEntry] = []
        for entry in sent.entries[sent.ends.index(at) : sent.ends.index(limit)]:
            if sum(len(each.data) for each in wanted) >= max_bytes:
                break
            wanted.append(entry)
        assert (loaded.at, list(loaded.entries), loaded.limit_offset) == (at, wanted, limit.next_offset)
        assert loaded.founding == (b"" if at.length_bytes else sent.founding)


@pytest.mark.parametrize("seed", range(40 if is_long() else 6))
async def test_random_operations_and_loads_against_what_owners_sent(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, in the journal, in files, over restarts: each load gives exactly what was sent there."""
    monkeypatch.setattr(logstore.log.replica_chunk, "KNOWN_INTERVAL_BYTES", 2000)
    await RandomReplicas(tmp_path, seed).run(60)

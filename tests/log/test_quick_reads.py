"""Quick reads: what is in memory is read on the event loop, and is what a reader thread would have given."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from logstore.base.events import ignore
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.errors import CorruptChunk
from logstore.format.batch import iterate_batches
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer
from logstore.log.chunks import IndexCache
from logstore.log.journal import JournalLimits
from logstore.log.reading import (
    QUICK_LOOK_UP_BYTES,
    QUICK_LOOK_UP_RECORDS,
    QUICK_READ_BATCHES,
    QUICK_READ_BYTES,
    READ_BYTES,
    CachedFiles,
    NotQuick,
    find_timestamp,
    read_chunk,
)
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.world import FIRST_TIMESTAMP, ListGroup
from tests.log.scan_set import control_batch
from tests.support.compressed import compressed

TOPIC: Final = "quick"
STATE_TYPE: Final = 1003


class CountedFiles(OsFiles):
    """Files that count the ways in which chunks are read, and whose pages can be said not to be in memory."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.are_cached = True
        self.slow: list[int] = []
        """Lengths of the reads that may wait for the disk."""
        self.quick: list[int] = []

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """Read, and count reads of chunks."""
        if path.endswith(".log"):
            self.slow.append(length)
        return super().read(path, position, length, drop_cache=drop_cache)

    def read_cached(self, path: str, position: int, length: int) -> Buffer | None:
        """Read, and count what was found."""
        if not self.are_cached:
            return None
        # What was written just now is in memory. A read through the cache makes that certain on a machine without room.
        content = super().read(path, position, length)
        assert content
        found = super().read_cached(path, position, length)
        if not self.tells_what_is_cached and len(content) == length:
            found = memoryview(content)  # what a file system that tells would give
        if found is not None and path.endswith(".log"):
            self.quick.append(length)
        return found


class Log(NamedTuple):
    """A store with one stream that has next to nothing in its tail."""

    engine: StoreEngine
    files: CountedFiles

    @property
    def stream(self) -> Stream:
        """The stream."""
        return self.engine.store.stream(TOPIC, 0)

    async def append(self, *batches: bytearray) -> None:
        """Append batches one by one."""
        for batch in batches:
            await self.engine.wait(self.stream.append(batch, now_ms=FIRST_TIMESTAMP))


@asynccontextmanager
async def opened(root: Path, segment_bytes: int = 1 << 20) -> AsyncIterator[Log]:
    """A store on that directory."""
    files = CountedFiles(root)
    settings = StoreSettings(
        tail_bytes=1,
        topic_defaults=TopicConfig(segment_bytes=segment_bytes),
        journal=JournalLimits(file_bytes=0),
    )
    store = Store.open(files, ManualClock(FIRST_TIMESTAMP), settings, new_id=uuid.uuid4, report=ignore)
    async with open_engine(store, files) as engine:
        if TOPIC not in store.topics:
            await engine.wait(store.create_topic(TOPIC, 1, {"max.message.bytes": str(16 << 20)}))
        yield Log(engine, files)
    files.close()


def plain(number: int, value_bytes: int, records: int = 1) -> bytearray:
    """A batch whose records are a millisecond apart."""
    at = FIRST_TIMESTAMP + 10 * number
    return encode_batch([Record(0, at + k, None, bytes([number % 251]) * value_bytes) for k in range(records)])


async def some_of_each(log: Log) -> None:
    """Small, large and control batches over several chunks."""
    for number in range(40):
        if number % 7 == 3:
            pieces = [control_batch(STATE_TYPE, 50 * number, number), plain(number, 20)]
            await log.engine.wait(log.stream.append_group(ListGroup("query", number, pieces)))
        await log.append(plain(number, 30_000 if number % 9 == 4 else 10 + 37 * number, records=1 + number % 5))


async def read_all(log: Log, max_bytes: int, *, include_control: bool) -> bytes:
    """Everything, as a reader gets it that asks for so many bytes at a time."""
    found, offset = b"", log.stream.log_start_offset
    while offset < log.stream.high_watermark:
        result = await log.engine.read(log.stream, offset, max_bytes, include_control=include_control)
        assert result.size_bytes == sum(map(len, result.buffers))
        assert result.next_offset > offset
        found += b"".join(result.buffers)
        offset = result.next_offset
    return found


@pytest.mark.parametrize("max_bytes", [1, 5_000, 70_000, 1 << 20])
async def test_both_ways_give_the_same_bytes(tmp_path: Path, max_bytes: int) -> None:
    """A reader gets every byte of the chunks, in order, whether they are in memory or not, and however it asks."""
    async with opened(tmp_path, segment_bytes=100_000) as log:
        await some_of_each(log)
        sealed = [view.index is None for view in log.stream.chunk_views()]
        assert any(sealed)
        await read_all(log, max_bytes, include_control=True)  # loads the indexes
        log.files.slow.clear()
        quick = await read_all(log, max_bytes, include_control=True)
        assert log.files.quick
        assert not log.files.slow
        log.files.are_cached = False
        slow = await read_all(log, max_bytes, include_control=True)
        assert log.files.slow
        whole = b"".join(log.files.read(view.log_path, 0, view.size_bytes) for view in log.stream.chunk_views())
        assert quick == slow == whole


async def test_each_place_and_limit_gives_the_same(tmp_path: Path) -> None:
    """A single read from any offset, up to any size: the same batches from memory as through a reader thread."""
    async with opened(tmp_path) as log:
        await some_of_each(log)
        (view,) = log.stream.chunk_views()
        for offset in range(0, log.stream.high_watermark, 3):
            for max_bytes in (1, 700, 33_000, READ_BYTES):
                for include_control in (False, True):
                    both = [
                        read_chunk(files, IndexCache(), view, offset, max_bytes, include_control=include_control)
                        for files in (log.files, CachedFiles(log.files, 2 * QUICK_READ_BYTES))
                    ]
                    slow, quick = ((b"".join(one.buffers), one.next_offset, one.size_bytes) for one in both)
                    assert slow == quick


async def test_a_flipped_bit_is_found_on_both_ways(tmp_path: Path) -> None:
    """Whichever bit of a batch is flipped, no way serves the batch; both name the same lost offsets."""
    async with opened(tmp_path) as log:
        await log.append(plain(0, 20), plain(1, 20, records=3), plain(2, 20))
        (view,) = log.stream.chunk_views()
        whole = log.files.read(view.log_path, 0, view.size_bytes)
        (_, (at, header), _) = iterate_batches(whole)
        path = tmp_path / view.log_path
        for bit in range(8 * at, 8 * (at + header.size_bytes)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            errors = []
            for files in (log.files, CachedFiles(log.files, 2 * QUICK_READ_BYTES)):
                before = read_chunk(files, IndexCache(), view, 0, 1 << 20, include_control=True)
                assert (before.next_offset, b"".join(before.buffers)) == (1, whole[:at]), bit
                with pytest.raises(CorruptChunk) as error:
                    read_chunk(files, IndexCache(), view, 1, 1 << 20, include_control=True)
                errors.append(str(error.value))
            assert errors[0] == errors[1]
        path.write_bytes(damaged)
        for log.files.are_cached in (True, False):
            with pytest.raises(CorruptChunk):
                await log.engine.read(log.stream, 1, 1 << 20)
            with pytest.raises(CorruptChunk):
                await log.engine.find_timestamp(log.stream, FIRST_TIMESTAMP + 11)


async def test_a_read_takes_no_more_than_it_gives(tmp_path: Path) -> None:
    """One read of the file serves a request, whatever follows; a batch that does not fit is not read for nothing."""
    async with opened(tmp_path, segment_bytes=16 << 20) as log:
        await log.append(*(plain(number, 100_000) for number in range(40)))
        size = len(plain(0, 100_000))
        (view,) = log.stream.chunk_views()
        for start in range(0, 30, 5):
            log.files.slow.clear()
            result = read_chunk(log.files, IndexCache(), view, start, 10 * size - 1, include_control=True)
            assert result.next_offset == start + 9
            assert log.files.slow == [10 * size - 1]


async def test_many_small_batches_do_not_keep_the_event_loop(tmp_path: Path) -> None:
    """A quick read ends after so many batches; who reads on gets the rest."""
    async with opened(tmp_path, segment_bytes=16 << 20) as log:
        count = 3 * QUICK_READ_BATCHES
        for number in range(count):
            log.stream.append(plain(number, 1), now_ms=FIRST_TIMESTAMP)
        await log.engine.wait(log.stream.append(plain(count, 1), now_ms=FIRST_TIMESTAMP))
        first = await log.engine.read(log.stream, 0, 1 << 20)
        assert QUICK_READ_BATCHES <= first.next_offset <= QUICK_READ_BATCHES + 1
        assert not log.files.slow
        offsets = [
            header.base_offset for _, header in iterate_batches(await read_all(log, 1 << 20, include_control=True))
        ]
        assert offsets == list(range(count + 1))


async def test_what_is_not_quick_is_read_on_a_thread(tmp_path: Path) -> None:
    """A batch above the limit, an index that is not in memory, pages that are not: the reader notices nothing."""
    async with opened(tmp_path, segment_bytes=8 << 20) as log:
        large = plain(0, 3 * QUICK_READ_BYTES)
        await log.append(bytearray(large), plain(1, 10))
        (view,) = log.stream.chunk_views()
        with pytest.raises(NotQuick):
            read_chunk(
                CachedFiles(log.files, 2 * QUICK_READ_BYTES), IndexCache(), view, 0, 1 << 20, include_control=True
            )
        result = await log.engine.read(log.stream, 0, 1 << 20)
        assert b"".join(result.buffers)[61:] == bytes(large)[61:]


async def test_look_ups_find_the_same_both_ways(tmp_path: Path) -> None:
    """The first record at or after a time, in each of several chunks; so behind the last one, where there is none."""
    async with opened(tmp_path, segment_bytes=100_000) as log:
        await some_of_each(log)
        times = [FIRST_TIMESTAMP + step for step in range(-1, 410, 3)]
        for time in times:
            await log.engine.find_timestamp(log.stream, time)  # loads the indexes
        log.files.slow.clear()
        quick = [await log.engine.find_timestamp(log.stream, time) for time in times]
        assert log.files.quick
        assert not log.files.slow
        log.files.are_cached = False
        assert quick == [await log.engine.find_timestamp(log.stream, time) for time in times]
        assert log.files.slow
        assert quick[0] is not None
        assert quick[-1] is None


async def test_a_look_up_reads_once_what_the_index_says(tmp_path: Path) -> None:
    """Batches of 100 KB: the one that has the moment is read, with its header, by one read of its size."""
    async with opened(tmp_path, segment_bytes=8 << 20) as log:
        await log.append(*(plain(number, 100_000) for number in range(5)))
        sizes = [len(plain(number, 100_000)) for number in range(5)]
        for number in (0, 2, 4):
            log.files.quick.clear()
            found = await log.engine.find_timestamp(log.stream, FIRST_TIMESTAMP + 10 * number)
            assert found is not None
            assert (found.offset, found.timestamp) == (number, FIRST_TIMESTAMP + 10 * number)
            assert (log.files.slow, log.files.quick) == ([], [sizes[number]])


@pytest.mark.parametrize("kind", ["compressed", "many records"])
async def test_a_batch_that_takes_long_is_searched_on_a_thread(tmp_path: Path, kind: str) -> None:
    """Decompressing, or a walk over many records, does not keep the event loop; the result is exact all the same."""
    count = 3 if kind == "compressed" else QUICK_LOOK_UP_RECORDS + 1
    records = [Record(0, FIRST_TIMESTAMP + k, None, b"v") for k in range(count)]
    async with opened(tmp_path) as log:
        batch = encode_batch(records)
        await log.append(compressed(batch, "gzip") if kind == "compressed" else batch)
        (view,) = log.stream.chunk_views()
        with pytest.raises(NotQuick):
            find_timestamp(
                CachedFiles(log.files, QUICK_LOOK_UP_BYTES),
                IndexCache(),
                view,
                FIRST_TIMESTAMP + 2,
                0,
                max_records=QUICK_LOOK_UP_RECORDS,
            )
        found = await log.engine.find_timestamp(log.stream, FIRST_TIMESTAMP + 2)
        assert found is not None
        assert (found.offset, found.timestamp, found.exact) == (2, FIRST_TIMESTAMP + 2, True)


def test_pages_that_are_not_in_memory_are_not_waited_for(tmp_path: Path) -> None:
    """A read from memory gives nothing, rather than a part, where the operating system has dropped a page."""
    size = 1 << 20
    content = os.urandom(size)
    (tmp_path / "0.log").write_bytes(content)
    files = OsFiles(tmp_path)
    files.sync("0.log")
    found = files.read_cached("0.log", 0, size)
    if not files.tells_what_is_cached:
        pytest.skip("the file system of temporary files does not say what is in memory")
    assert found == content
    for first in (0, size // 2, size - 4096):
        files.read("0.log", first, 4096, drop_cache=True)
        assert files.read_cached("0.log", 0, size) in (None, content)  # memory is the disk of some file systems
        assert files.read("0.log", 0, size) == content
    files.close()

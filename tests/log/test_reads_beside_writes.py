"""Catch-up reads beside writes: they keep to their share and let a write end first, but no disk holds them up."""

from __future__ import annotations

import errno
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from logstore.base.events import ignore
from logstore.disk.ahead import AHEAD_BYTES
from logstore.disk.files import OsFiles
from logstore.disk.reads_beside import WRITE_WAIT_S
from logstore.engine import StoreEngine, open_engine
from logstore.errors import OffsetOutOfRange
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer
from logstore.log.journal import JournalLimits
from logstore.log.read_share import BESIDE_S, BYTES_PER_S
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.testing.clock import ManualClock
from logstore.testing.world import FIRST_TIMESTAMP
from tests.support.limits import PATIENCE_S

BATCH_BYTES: Final = 100_000
BATCHES: Final = 40
SHARE_S: Final = 1.01 * BATCH_BYTES / BYTES_PER_S
"""After that time one read of a batch is paid for."""
ATTEMPTS: Final = 20
"""Tasks run in a random order in each turn of the event loop."""


class HangingFiles(OsFiles):
    """Files whose syncs of chunks can be made to hang."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_hanging = threading.Event()
        self.reads = 0
        """Reads of chunks."""
        self.lacks_memory = self.is_broken = False

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """Count the read."""
        if self.is_broken:
            raise OSError(errno.EIO, "no such luck")
        self.reads += path.endswith(".log")
        return super().read(path, position, length, drop_cache=drop_cache)

    def read_cached(self, path: str, position: int, length: int) -> Buffer | None:
        """Count the read if it finds what it wants."""
        if self.lacks_memory:
            raise MemoryError
        if self.is_broken:
            return None
        found = super().read_cached(path, position, length)
        self.reads += found is not None and path.endswith(".log")
        return found

    def sync(self, path: str) -> None:
        """As the disk does it, once it goes on."""
        if path.endswith(".log") and not self.goes_on.is_set():
            self.is_hanging.set()
            self.goes_on.wait()
        super().sync(path)


class Place(NamedTuple):
    """An engine with a history in one stream, another stream that is written, and what has happened, in order."""

    engine: StoreEngine
    files: HangingFiles
    history: Stream
    live: Stream
    events: list[str]

    async def read(self, event: str = "read") -> None:
        """Read one batch of the history."""
        result = await self.engine.read(self.history, 0, BATCH_BYTES)
        assert result.next_offset == 1
        self.events.append(event)

    async def append(self) -> None:
        """Append a batch to the other stream."""
        ticket = self.live.append(batch(10), now_ms=FIRST_TIMESTAMP)
        ticket.add_callback(lambda _: self.events.append("acknowledged"))
        await self.engine.wait(ticket)

    async def happened(self, *events: str) -> None:
        """Wait for the last of the events; it must be these, in order."""
        await turned(lambda: len(self.events) >= len(events))
        assert self.events == list(events)

    async def begin_hanging_write(self, nursery: trio.Nursery) -> None:
        """Append, and return while the append's sync hangs."""
        self.files.goes_on.clear()
        nursery.start_soon(self.append)
        while not self.files.is_hanging.is_set():
            await trio.lowlevel.checkpoint()


async def turned(is_so: Callable[[], bool]) -> None:
    """Let the event loop turn until something is so, which threads may do: the loop's own clock stands still."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < end_s:
        await trio.lowlevel.checkpoint()


def batch(value_bytes: int) -> bytearray:
    """One record."""
    return encode_batch([Record(0, FIRST_TIMESTAMP, None, b"v" * value_bytes)])


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Place]:
    """A store whose tail holds next to nothing."""
    files = HangingFiles(root)
    settings = StoreSettings(tail_bytes=1, journal=JournalLimits(file_bytes=0))
    store = Store.open(files, ManualClock(FIRST_TIMESTAMP), settings, new_id=uuid.uuid4, report=ignore)
    async with open_engine(store, files) as engine:
        try:
            history, live = (await engine.wait(store.create_topic("t", 2, {}))).partitions
            for _ in range(BATCHES):
                last = history.append(batch(BATCH_BYTES), now_ms=FIRST_TIMESTAMP)
            await engine.wait(last)
            await engine.wait(live.append(batch(10), now_ms=FIRST_TIMESTAMP))
            yield Place(engine, files, history, live, [])
        finally:
            files.goes_on.set()
    files.close()


async def test_nobody_waits_for_a_piece_that_could_not_be_read_for_want_of_memory(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """The reader that wanted it hears of it; the next one of the same place reads it."""
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        if not place.files.tells_what_is_cached:
            pytest.skip("this file system does not tell what is in memory")
        mock_clock.jump(1.01 * BESIDE_S)
        engine, history, found, offset = place.engine, place.history, list[int](), 0
        for _ in range(2):
            offset = (await engine.read(history, offset, AHEAD_BYTES)).next_offset
        assert engine._ahead._wanted
        place.files.lacks_memory = True
        with pytest.raises(MemoryError):
            engine.read_ahead_of(history, offset, BATCH_BYTES)
        place.files.lacks_memory = False
        assert not engine._ahead._under_way

        async def read_again() -> None:
            found.append((await engine.read(history, offset, BATCH_BYTES)).next_offset)

        nursery.start_soon(read_again)
        await turned(lambda: bool(found))
        nursery.cancel_scope.cancel()
    assert found == [offset + 1]


async def test_a_read_waits_until_those_before_are_paid_for(tmp_path: Path, mock_clock: MockClock) -> None:
    """Readers that catch up beside a producer leave the event loop to it for most of the time, and take turns."""
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        await place.read("first")
        for name in ("second", "third"):
            nursery.start_soon(place.read, name)
            await wait_all_tasks_blocked()
        assert place.events == ["first"]
        mock_clock.jump(SHARE_S)
        await place.happened("first", "second")
        await place.append()
        await place.happened("first", "second", "acknowledged")
        mock_clock.jump(SHARE_S)
        await place.happened("first", "second", "acknowledged", "third")


async def test_a_read_that_waits_begins_after_the_write_under_way(tmp_path: Path, mock_clock: MockClock) -> None:
    """The write's thread and the reader do not compete; its answer goes first."""
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        await place.read("first")
        await place.begin_hanging_write(nursery)
        nursery.start_soon(place.read, "second")
        await wait_all_tasks_blocked()
        mock_clock.jump(SHARE_S)
        await wait_all_tasks_blocked()
        assert place.events == ["first"]
        place.files.goes_on.set()
        await place.happened("first", "acknowledged", "second")


async def test_a_write_that_comes_in_the_same_turn_goes_first(tmp_path: Path, mock_clock: MockClock) -> None:
    """A batch that arrives just when a read's wait is over does not wait for the read; whichever runs first."""
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        await place.read()

        async def append() -> None:
            await trio.sleep(SHARE_S / 2)
            await place.append()

        for _ in range(ATTEMPTS):
            place.events.clear()
            place.files.goes_on.clear()
            nursery.start_soon(append)
            nursery.start_soon(place.read)
            await wait_all_tasks_blocked()
            mock_clock.jump(SHARE_S)
            await wait_all_tasks_blocked()
            assert place.events == []
            place.files.goes_on.set()
            await place.happened("acknowledged", "read")


async def test_what_is_read_ahead_lets_a_write_go_first(tmp_path: Path, mock_clock: MockClock) -> None:
    """The answer has left, and its reader does not wait for the next piece yet: the write is more urgent."""
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        first = await place.engine.read(place.history, 0, AHEAD_BYTES)
        mock_clock.jump(first.size_bytes / BATCH_BYTES * SHARE_S)
        await place.begin_hanging_write(nursery)
        second = await place.engine.read(place.history, first.next_offset, AHEAD_BYTES)
        assert first.next_offset < second.next_offset < place.history.high_watermark
        reads = place.files.reads
        await wait_all_tasks_blocked()
        assert place.files.reads == reads
        place.files.goes_on.set()
        await place.happened("acknowledged")
        await turned(lambda: place.files.reads > reads)
        assert place.files.reads > reads


async def test_what_was_read_ahead_is_given_at_once_but_not_beside_writes(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """It is what a read would give, once; beside a producer a read has to ask for its share."""
    async with opened(tmp_path) as place:
        engine, history = place.engine, place.history
        mock_clock.jump(1.01 * BESIDE_S)
        assert engine.read_ahead_of(history, 0, BATCH_BYTES) is None
        for offset in range(2):
            await engine.read(history, offset, BATCH_BYTES)
        await turned(lambda: engine.has_read_ahead)
        await wait_all_tasks_blocked()
        await place.append()
        assert not engine.has_read_ahead
        assert engine.read_ahead_of(history, 2, BATCH_BYTES) is None
        mock_clock.jump(1.01 * BESIDE_S)
        found = engine.read_ahead_of(history, 2, BATCH_BYTES)
        assert found is not None
        again = await engine.read(history, 2, BATCH_BYTES)
        assert (b"".join(found.buffers), *found[1:]) == (b"".join(again.buffers), *again[1:])


async def test_a_write_that_hangs_holds_no_read_up(tmp_path: Path, mock_clock: MockClock) -> None:
    """A reader gets its share whatever the disk does, and no more, however long the write takes; and all it asks for
    once nothing is written any more.
    """
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        await place.read("first")
        await place.begin_hanging_write(nursery)
        for passed_s in (0.0, 10 * BESIDE_S, 100 * BESIDE_S):
            mock_clock.jump(passed_s)
            place.events[:] = ["first"]
            if passed_s:
                await place.read("paid")
                place.events.remove("paid")
            nursery.start_soon(place.read, "second")
            await wait_all_tasks_blocked()
            assert place.events == ["first"]
            mock_clock.jump(SHARE_S)
            await wait_all_tasks_blocked()
            mock_clock.jump(1.01 * WRITE_WAIT_S)
            await place.happened("first", "second")
        place.files.goes_on.set()
        await place.happened("first", "second", "acknowledged")
        mock_clock.jump(1.01 * BESIDE_S)
        for _ in range(10):
            await place.read()
        assert place.events == ["first", "second", "acknowledged", *["read"] * 10]


async def test_a_read_that_fails_gives_its_share_back(tmp_path: Path, mock_clock: MockClock) -> None:
    """Beside writes the next reader does not wait for what a read of a disk that fails has not given."""
    async with opened(tmp_path) as place:
        mock_clock.jump(1.01 * BESIDE_S)
        await place.append()
        place.files.is_broken = True
        with pytest.raises(OSError, match="no such luck"):
            await place.engine.read(place.history, 0, AHEAD_BYTES)
        place.files.is_broken = False
        assert place.engine._beside.is_beside_writes
        assert place.engine._beside.may_read
        await place.read()


async def test_a_read_alone_never_waits(tmp_path: Path, mock_clock: MockClock) -> None:
    """While nothing is written, a reader that catches up gets one batch after the other: no time passes."""
    async with opened(tmp_path) as place:
        mock_clock.jump(1.01 * BESIDE_S)
        for _ in range(100):
            await place.read()
        assert place.events == ["read"] * 100


async def test_reads_alone_are_not_paid_for_when_a_write_comes(tmp_path: Path, mock_clock: MockClock) -> None:
    """A reader that has caught up fast, alone, is not held up afterwards because one batch is appended."""
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        mock_clock.jump(1.01 * BESIDE_S)
        for _ in range(100):
            await place.read()
        await place.append()
        nursery.start_soon(place.read, "beside")
        await place.happened(*["read"] * 100, "acknowledged", "beside")


async def test_looks_at_the_disk_hold_no_read_up(tmp_path: Path, mock_clock: MockClock) -> None:
    """A sidecar looks at the room on its disk every second: no writer waits for that, so no reader does."""
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        mock_clock.jump(1.01 * BESIDE_S)
        place.engine.store.space.look()
        assert place.engine.store.queue.may_start
        place.engine.kick()
        await turned(lambda: not place.engine.store.queue.may_start)
        for _ in range(10):
            nursery.start_soon(place.read)
        await place.happened(*["read"] * 10)


async def test_a_read_whose_records_are_deleted_while_it_waits_is_told_so(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """It gets neither deleted records nor the error of damaged ones."""
    async with opened(tmp_path) as place, trio.open_nursery() as nursery:
        await place.read("first")

        async def read() -> None:
            with pytest.raises(OffsetOutOfRange):
                await place.read("second")
            place.events.append("refused")

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        await place.engine.wait(place.history.delete_records(2))
        mock_clock.jump(SHARE_S)
        await place.happened("first", "refused")

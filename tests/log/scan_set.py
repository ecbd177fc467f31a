"""A store on a real directory with a few streams' worth of control batches, and the naive way to list them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from logstore.base.events import ignore
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.format.batch import iterate_batches
from logstore.format.control import encode_control_record, known_type
from logstore.format.records import Record, encode_batch
from logstore.log.journal import JournalLimits
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.world import FIRST_TIMESTAMP, ListGroup
from tests.support.limits import PATIENCE_S

TOPIC = "state"


class Read(NamedTuple):
    """One read of a file."""

    path: str
    position: int
    length: int


class WatchedFiles(OsFiles):
    """Files on the operating system that note what is read, and call somebody before a chunk is."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[Read] = []
        self.before_log_read: Callable[[str], None] | None = None

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """Read, and note it."""
        if self.before_log_read is not None and path.endswith(".log"):
            self.before_log_read(path)
        self.reads.append(Read(path, position, length))
        return super().read(path, position, length, drop_cache=drop_cache)

    def read_from_chunks(self) -> tuple[int, int]:
        """How many reads of chunks there were, and of how many bytes."""
        lengths = [read.length for read in self.reads if read.path.endswith(".log")]
        return len(lengths), sum(lengths)


class Place(NamedTuple):
    """A life of a store."""

    engine: StoreEngine
    files: WatchedFiles
    clock: ManualClock

    @property
    def stream(self) -> Stream:
        """The one stream."""
        return self.engine.store.stream(TOPIC, 0)

    async def plain(self, count: int, value_bytes: int) -> None:
        """Append plain batches of one record."""
        for _ in range(count):
            await self.engine.wait(self.stream.append(plain_batch(value_bytes), now_ms=self.clock.wall_ms()))

    async def group(self, pieces: Sequence[bytearray], epoch: int = 0) -> None:
        """Append a group."""
        await self.engine.wait(self.stream.append_group(ListGroup("query", epoch, pieces)))

    async def trim(self, before_offset: int) -> None:
        """Delete records."""
        await self.engine.wait(self.stream.delete_records(before_offset))


def plain_batch(value_bytes: int) -> bytearray:
    """One record."""
    return encode_batch([Record(0, FIRST_TIMESTAMP, b"key", bytes(value_bytes))])


def control_batch(kind: int, tail_bytes: int, number: int = 0) -> bytearray:
    """One control batch of a query's state."""
    return encode_control_record(kind, {"query": "q", "n": number}, bytes(tail_bytes), FIRST_TIMESTAMP)


@asynccontextmanager
async def opened(root: Path, *, segment_bytes: int = 4096, tail_bytes: int = 1) -> AsyncIterator[Place]:
    """A store on that directory, with the topic; by default with next to nothing in memory."""
    files, clock = WatchedFiles(root), ManualClock(FIRST_TIMESTAMP)
    defaults = TopicConfig(segment_bytes=segment_bytes)
    # Without a journal everything is in the chunks, where a naive list looks for it.
    settings = StoreSettings(tail_bytes=tail_bytes, topic_defaults=defaults, journal=JournalLimits(file_bytes=0))
    store = Store.open(files, clock, settings, new_id=uuid.uuid4, report=ignore)
    async with open_engine(store, files) as engine:
        if TOPIC not in store.topics:
            await engine.wait(store.create_topic(TOPIC, 1, {}))
        yield Place(engine, files, clock)
    files.close()


def naive(place: Place, before_offset: int, types: Collection[int]) -> list[tuple[int, bytes]]:
    """The control batches in front of an offset, newest first, as found by reading every chunk from its start."""
    stream = place.stream
    found: list[tuple[int, bytes]] = []
    for chunk in stream.chunks:
        data = OsFiles.read(place.files, chunk.log_path, 0, chunk.size_bytes)
        for position, header in iterate_batches(data):
            whole = data[position : position + header.size_bytes]
            is_wanted = header.is_control and (not types or known_type(whole) in types)
            if is_wanted and stream.log_start_offset <= header.base_offset < before_offset:
                found.append((header.base_offset, whole))
    return found[::-1]


async def scan(
    place: Place, before_offset: int = -1, types: Collection[int] = (), max_bytes: int = 1 << 20
) -> list[tuple[int, bytes]]:
    """The same, piece by piece as a client asks for it."""
    found: list[tuple[int, bytes]] = []
    before = before_offset
    while True:
        piece = await place.engine.scan_controls(place.stream, before, types, max_bytes)
        whole = b"".join(piece.buffers)
        assert len(whole) == piece.size_bytes
        batches = [(header.base_offset, whole[at : at + header.size_bytes]) for at, header in iterate_batches(whole)]
        assert piece.size_bytes <= max_bytes or len(batches) == 1
        assert all(offset >= piece.next_before for offset, _ in batches)
        found += batches
        if piece.next_before <= place.stream.log_start_offset:
            return found
        assert before == -1 or piece.next_before < before
        before = piece.next_before


async def until(condition: Callable[[], bool]) -> None:
    """Give others their turn until something is so."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.lowlevel.checkpoint()


class SlowGroup:
    """A group whose second piece comes when somebody says so."""

    def __init__(self, pieces: Sequence[bytearray]) -> None:
        self._list = ListGroup("slow", 7, pieces)
        self.byte_count = self._list.byte_count
        self.gate: Ticket[bytearray | None] = Ticket()
        self._asked = 0

    def begin(self, now_ms: int) -> bytearray:
        """The BEGIN control batch."""
        return self._list.begin(now_ms)

    def next_batches(self) -> Ticket[bytearray | None]:
        """The pieces at hand, but the last: that is the gate."""
        ticket = self._list.next_batches()
        return ticket if ticket.result() is not None else self.gate

    def end(self, now_ms: int) -> bytearray:
        """The END control batch."""
        return self._list.end(now_ms)

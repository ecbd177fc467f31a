"""A stream's owner in memory: batches are acknowledged, chunks rolled and owners replaced when a test says so.

Invariant: it keeps what an owner gives its stream (docs/replication.md): offsets are given once, what is acknowledged
stays, a takeover keeps all of it and perhaps some of the rest.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio
import trio.testing

from logstore.cluster.interfaces import Answering
from logstore.cluster.streams.refusal_window import RefusedFirsts
from logstore.cluster.streams.replicated_stream import ReplicatedStream, StreamServices
from logstore.cluster.streams.retention import KeptByEpochs, NoEpochs
from logstore.cluster.streams.stream_place import StreamPlace
from logstore.format.batch import iterate_batches
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.log.producers import ProducerTable
from logstore.log.stream import Stream
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.replica.messages import BatchEntry, EntriesRead
from logstore.replica.registrations import UNKNOWN_TIME, ChunkRegistration, Member, Prefix, StreamRegistration
from logstore.testing.clock import ManualClock
from logstore.testing.reports import RecordedReports

PLACE = StreamPlace("orders", "00000000000000000000000000000001", 0)
MEMBERS = (Member("a", "disk-a"), Member("b", "disk-b"))


@dataclass
class MemoryChunk:
    """A chunk's batches, and what its members keep beside it."""

    registration: ChunkRegistration
    entries: list[BatchEntry] = field(default_factory=list)
    founding: bytes = b""


class MemoryOwner:
    """Implements `StreamOwners` for one stream, and tells its observer what an owner tells."""

    def __init__(self, max_in_flight: int = 100) -> None:
        self.max_in_flight = max_in_flight
        self.epoch = 0
        self.chunks: list[MemoryChunk] = []
        self.window: list[BatchEntry] = []
        self.acked_offset = 0
        self.known_acked: int | None = None
        """What members know to be acknowledged of a chunk that was sealed behind it."""
        self.takes = self.is_taking_over = False
        self.log_start = self.chunk_bytes = 0
        self.written_ms = UNKNOWN_TIME
        self.asked: list[tuple[int, bool]] = []
        """Trims."""
        self.stream: ReplicatedStream | None = None

    # ---- what the stream asks

    def may_append(self, stream: str, size_bytes: int) -> bool:
        return self.takes and len(self.window) < self.max_in_flight

    def is_claimed(self, stream: str) -> bool:
        return self.is_taking_over

    def next_offset(self, stream: str) -> int:
        return self.acked_offset + sum(entry.record_count for entry in self.window)

    def append(self, stream: str, data: bytes, record_count: int) -> int:
        offset = self.next_offset(stream)
        chunk = self.chunks[-1]
        if not chunk.entries and not self.window:
            assert self.stream is not None
            chunk.founding = self.stream.founding(chunk.registration.base_offset)
        self.window.append(BatchEntry(data, record_count))
        return offset

    def registration(self, stream: str) -> StreamRegistration:
        chunks = tuple(chunk.registration for chunk in self.chunks)
        return StreamRegistration(2, 2, self.epoch, chunks=chunks, log_start=self.log_start)

    def acked(self, stream: str) -> Prefix:
        end = Prefix.empty(self.chunks[-1].registration.base_offset)
        for entry in self.chunks[-1].entries:
            end = end.followed_by(*entry)
        return end

    def trim(self, stream: str, log_start: int, *, keeps_last: bool) -> None:
        self.asked.append((log_start, keeps_last))

    def reconfigure(self, stream: str, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes

    async def read_entries(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int) -> EntriesRead:
        found = next(each for each in self.chunks if each.registration.epoch == chunk.epoch)
        at = Prefix.empty(found.registration.base_offset)
        first = 0
        for entry in found.entries:
            if at.next_offset + entry.record_count > offset:
                break
            at, first = at.followed_by(*entry), first + 1
        entries: list[BatchEntry] = []
        for entry in found.entries[first:]:
            if entries and sum(len(each.data) for each in entries) + len(entry.data) > max_bytes:
                break
            entries.append(entry)
        founding = b"" if first else found.founding
        limit = self.acked_offset if self.known_acked is None else self.known_acked
        return EntriesRead(stream, chunk.epoch, MEMBERS[0], at, tuple(entries), limit, founding)

    async def acknowledged_end(self, stream: str, chunk: ChunkRegistration, offset: int) -> int | None:
        return (await self.read_entries(stream, chunk, offset, 1)).limit_offset

    def answering(self, chunk: ChunkRegistration) -> Answering:
        return Answering.AT_ONCE

    # ---- what a test does

    def carry_out_trims(self) -> None:
        """The metadata store has what was asked for."""
        for log_start, keeps_last in self.asked:
            trimmed = self.registration("").trimmed(min(log_start, self.acked_offset), keeps_last=keeps_last)
            self.log_start = trimmed.log_start
            self.chunks = self.chunks[len(self.chunks) - len(trimmed.chunks) :]
        self.asked.clear()
        assert self.stream is not None
        self.stream.registered(self.registration(""))

    def own(self, stream: ReplicatedStream, *, kept: int = 0) -> None:
        """A host takes over: what is acknowledged stays, and `kept` of the batches that are not."""
        self.stream, self.known_acked = stream, None
        for entry in self.window[:kept]:
            self._keep(entry)
        self.window.clear()
        self._open()
        stream.registered(self.registration(""))
        stream.ready(self.epoch, self.acked_offset)

    def own_for_readers(self, stream: ReplicatedStream, *, kept: int = 0, needed: int = 2) -> None:
        """The same, and fewer than `needed` hosts live: no chunk is opened, and readers are served."""
        self.stream, self.known_acked = stream, self.acked_offset
        for entry in self.window[:kept]:
            self._keep(entry)
        self.window.clear()
        self._open()
        self.chunks.pop()
        self.takes, self.is_taking_over = False, True
        stream.registered(self.registration(""))
        stream.readable(self.epoch, self.acked_offset, is_settled=kept == 0)
        stream.short(needed)

    def ack(self, count: int = 1) -> None:
        """The members confirm the first batches."""
        for entry in self.window[:count]:
            self._keep(entry)
        del self.window[:count]
        assert self.stream is not None
        self.stream.acked(self.acked_offset)

    def roll(self, stream: str = "") -> None:
        """A member has failed, or the chunk is old: what is not acknowledged goes to the next chunk."""
        assert self.stream is not None
        self.written_ms = self.stream.written_ms()
        self._open()
        self.stream.registered(self.registration(""))
        if self.window:
            self.chunks[-1].founding = self.stream.founding(self.acked_offset)

    def _keep(self, entry: BatchEntry) -> None:
        self.chunks[-1].entries.append(entry)
        self.acked_offset += entry.record_count

    def _open(self) -> None:
        if self.chunks:
            last = self.chunks[-1]
            end = Prefix.empty(last.registration.base_offset)
            for entry in last.entries:
                end = end.followed_by(*entry)
            old = last.registration
            last.registration = ChunkRegistration(
                old.epoch, old.base_offset, old.members, end, written_ms=self.written_ms
            )
            if not last.entries:
                self.chunks.pop()
        self.epoch += 1
        self.chunks.append(MemoryChunk(ChunkRegistration(self.epoch, self.acked_offset, MEMBERS)))
        self.takes = True

    @property
    def values(self) -> list[bytes | None]:
        """The values of all acknowledged records, in order."""
        return [
            record.value
            for chunk in self.chunks
            for entry in chunk.entries
            for at, header in iterate_batches(entry.data)
            for record in decode_batch(memoryview(entry.data)[at : at + header.size_bytes])
        ]


class NoFiles:
    """`ReplicaFiles` of a host without chunks."""

    def local(self, stream: str, epoch: int) -> Stream | None:
        return None


@dataclass
class Tasks:
    """Tasks that a stream has asked for; a test runs them."""

    waiting: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def __call__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.waiting.append(work)

    async def run(self) -> None:
        """Run what waits."""
        while self.waiting:
            await self.waiting.pop(0)()

    async def run_a_while(self) -> None:
        """Run what waits, until it has ended or waits for time to pass; that is its end."""
        async with trio.open_nursery() as nursery:
            while self.waiting:
                nursery.start_soon(self.waiting.pop(0))
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()


Load = Callable[[ReplicatedStream, int], Awaitable[ProducerTable[AppendTicket] | None]]


async def no_producers(stream: ReplicatedStream, offset: int) -> ProducerTable[AppendTicket] | None:
    """Nobody has written."""
    return ProducerTable()


@dataclass
class ServedTime:
    """`StreamRetention`: a clock that a test sets, the streams that are due, and what epochs hold."""

    time_ms: int = 0
    streams: list[ReplicatedStream] = field(default_factory=list)
    epochs: KeptByEpochs = field(default_factory=NoEpochs)

    def now_ms(self) -> int:
        return self.time_ms

    def due(self, stream: ReplicatedStream) -> None:
        self.streams.append(stream)

    def deletable(self, stream: ReplicatedStream, offset: int) -> Ticket[None]:
        return self.epochs.deletable(stream, offset)


@dataclass
class Front:
    """A replicated stream on one host."""

    owner: MemoryOwner
    load: Load = no_producers
    config: TopicConfig = field(default_factory=TopicConfig)
    clock: ManualClock = field(default_factory=ManualClock)
    reports: RecordedReports = field(default_factory=RecordedReports)
    tasks: Tasks = field(default_factory=Tasks)
    retention: ServedTime = field(default_factory=ServedTime)
    is_store_away: bool = False
    place: StreamPlace = PLACE
    refused: RefusedFirsts | None = None

    def __post_init__(self) -> None:
        is_away = lambda: self.is_store_away  # noqa: E731
        services = StreamServices(
            self.owner, self.clock, self.reports, self.load, self.tasks, self.retention, is_away, self.refused
        )
        self.stream = ReplicatedStream(self.place, self.config, services)

    def append(self, *values: bytes, producer_id: int = -1, sequence: int = -1) -> AppendTicket:
        """Append one batch."""
        epoch = 0 if producer_id >= 0 else -1
        now_ms = self.clock.wall_ms()
        records = [Record(0, now_ms, None, value) for value in values]
        batch = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        return self.stream.append(batch, now_ms=now_ms)

"""A small map that survives the loss of its host: in the memory of the owner of an internal stream, and in that stream.

It has the methods of `logstore.log.ledger.Ledger` that groups' offsets and epochs use. Only the host that owns the
stream has the map, in `LedgerHome`.

Invariants:
* A put is one batch of the stream: all or nothing; its ticket settles when the batch is acknowledged.
* The entries in memory are the entries of the stream up to its end, in its order. After a failed put the map is not
  used any more: the stream has another owner, which reads its own map. If this host owns the stream again, it reads the
  map again, because other owners may have changed entries since.
* From time to time `tidy` writes all live entries again, and the metadata store has the offset at which this began.
  Other live records of the stream are not written again; `tidy` writes their places. So reading from that offset gives
  all live records, also those far before it. `tidy` begins when `limit_bytes` were put after the offset in the metadata
  store: an owner reads at most these bytes, and the bytes that are put during `tidy`.
* Batches before that offset and before the first other live record are trimmed. So a stream with only the ledger takes
  a bounded multiple of the live entries, and a chunk.

A record without a key is a frame of changes, as in a ledger's file (`logstore.format.ledger_frame`). A record with a
key does not belong to the ledger; `OtherRecords` get it.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.base.metadata.errors import MetadataDamaged, MetadataError
from logstore.base.metadata.interface import Committed, Condition, MetadataStore, Put, Transaction
from logstore.cluster.epochs.entry_map import EntryMap
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import ClusterTopics
from logstore.errors import CairnError, NotLeader, StorageFailed
from logstore.events import LEDGER_NOT_READ
from logstore.format.batch import iterate_batches
from logstore.format.ledger_frame import KIND_CHANGES, LedgerFrame, encode_frame, scan_frames
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.interfaces import Buffer
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import Ticket
from logstore.replica.registrations import decode_head
from logstore.replica.stored_registrations import head_key

READ_BYTES: Final = 1 << 20
STEP_BYTES: Final = 32 << 10
BATCH_BYTES: Final = 512
"""So much is taken in one go, some milliseconds, where each batch costs as much as BATCH_BYTES of entries do."""
TIDY_BYTES: Final = 4 << 20
"""Less is not worth writing anew."""
TIDY_FACTOR: Final = 4
"""Live entries are written anew when so many times their bytes have been put since."""
TIDY_ENTRIES: Final = 2_000
"""In a batch, when all is written anew."""
TIDY_BATCH_BYTES: Final = 1 << 20
"""The same in bytes, or one larger entry: a stream takes no batch of all entries."""
TIDY_INTERVAL_S: Final = 5.0
"""Between two looks where nothing is put, and before a failed try is made again."""
PAUSE_S: Final = 0.1
"""Before what could not be read is tried again."""
KEY_PREFIX: Final = "ledgers/"
"""In the metadata store, before the topic's name: the offset, in decimal, from which on all lies that lives."""
NAMED_SUFFIX: Final = "/named"
"""Behind that key: a later offset, from which on all lies, or is named, that lives. The later one of both counts."""


class OtherRecords(Protocol):
    """Has what is in the stream beside the ledger."""

    @property
    def first_offset(self) -> int | None:
        """Where the first record is that lives; None: there is none."""

    @property
    def named_bytes(self) -> int:
        """Of the records that name what lives."""

    def take(self, offset: int, record: Record) -> None:
        """A record with a key, in the order of the stream, from a batch at an offset."""

    def held(self) -> AbstractAsyncContextManager[None]:
        """Within it, all other records that were appended are acknowledged or have failed, and no more are appended."""

    def named(self) -> Iterable[tuple[bytes, bytes]]:
        """Within `held`: keys and values of records that name all that lives, each as of when it is taken."""


class _NothingBeside:
    """No other records."""

    first_offset: int | None = None
    named_bytes = 0

    def take(self, offset: int, record: Record) -> None:
        """See OtherRecords."""

    def held(self) -> AbstractAsyncContextManager[None]:
        """See OtherRecords."""
        return nullcontext()

    def named(self) -> Iterable[tuple[bytes, bytes]]:
        """See OtherRecords."""
        return ()


class ReadFrom(NamedTuple):
    """Where owners may begin to read. From `whole_offset` on all lies that lives; from `named_offset` on it lies, or is
    named. `put_bytes`: what had been put in front of `named_offset`.
    """

    whole_offset: int
    named_offset: int
    put_bytes: int


class ReplicatedLedger:
    """See the module."""

    def __init__(
        self,
        stream: ReplicatedStream,
        clock: Clock,
        others: OtherRecords | None = None,
        *,
        tidy_bytes: int = TIDY_BYTES,
    ) -> None:
        self.stream = stream
        self._clock = clock
        self._others = others or _NothingBeside()
        self._tidy_bytes = tidy_bytes
        self._ownership = stream.ownership
        self._entries = EntryMap()
        self._entry_bytes = 0
        """Of all entries, keys and values."""
        self._put_bytes = 0
        """Of all batches that were read or appended."""
        self._noted_bytes = 0
        """Those of them in front of the offset that the metadata store has."""
        self._look_at_bytes = 0
        """When so many were put, it is looked whether the ledger is untidy."""
        self._look = trio.Event()

    async def load(self, reads: ChunkReads, offset: int) -> None:
        """Read the stream from an offset on. Raises what `ChunkReads.read` raises, CorruptFile."""
        end = self.stream.high_watermark
        while offset < end:
            found = await reads.read(self.stream, offset, READ_BYTES)
            if found.next_offset <= offset:
                raise StorageFailed(f"{self.stream.name} gives nothing from offset {offset} on, {end} is its end")
            await self._take_batches(found.buffers)
            offset = found.next_offset
            await trio.lowlevel.checkpoint()

    async def _take_batches(self, buffers: Iterable[Buffer]) -> None:
        """Take what was read; other tasks run in between."""
        taken_bytes = 0
        for buffer in buffers:
            for at, header in iterate_batches(buffer):
                batch = memoryview(buffer)[at : at + header.size_bytes]
                self._put_bytes += header.size_bytes
                for record in decode_batch(batch):
                    self._take(header.base_offset, record)
                taken_bytes += header.size_bytes + BATCH_BYTES
                if taken_bytes > STEP_BYTES:
                    taken_bytes = 0
                    await trio.lowlevel.checkpoint()

    def _take(self, offset: int, record: Record) -> None:
        if record.key is None:
            for frame in scan_frames(record.value or b"", self.stream.name).frames:
                self._apply(frame.changes)
        else:
            self._others.take(offset, record)

    def _apply(self, changes: Mapping[str, bytes | None]) -> None:
        for key, value in changes.items():
            self._entry_bytes += self._entries.set(key, value)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """All pairs under a prefix, each as it is when it is given: the caller may let other tasks run in between."""
        return self._entries.items(prefix)

    async def confirms(self) -> bool:
        """Whether this host owns the stream for certain: an entry is acknowledged that is put now."""
        confirmed = self.put({})
        await _settled(confirmed)
        return confirmed.error is None

    def put(self, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        """Store entries atomically; None deletes. The ticket fails with StorageFailed."""
        done: Ticket[None] = Ticket()
        try:
            written = self._append(changes)
        except CairnError as error:
            done.fail(StorageFailed(str(error)))
            return done
        self._apply(changes)

        def settle(ticket: AppendTicket) -> None:
            if ticket.error is None:
                done.succeed(None)
            else:
                done.fail(StorageFailed(str(ticket.error)))

        written.add_callback(settle)
        return done

    def _append(self, changes: Mapping[str, bytes | None]) -> AppendTicket:
        return self.append_record(None, encode_frame(LedgerFrame(KIND_CHANGES, 0, changes)))

    def append_record(self, key: bytes | None, value: bytes) -> AppendTicket:
        """Append a record; one with a key is not the ledger's. Raises as `ReplicatedStream.append_own`."""
        if self.stream.ownership != self._ownership:
            raise NotLeader(f"{self.stream.name}: the ownership in which its ledger was read has ended")
        now_ms = self._clock.wall_ms()
        batch = encode_batch([Record(0, now_ms, key, value)])
        ticket = self.stream.append_own(batch, now_ms=now_ms)
        self._put_bytes += len(batch)
        if self._put_bytes > self._look_at_bytes:
            self._look.set()
        return ticket

    # ---- tidying

    @property
    def limit_bytes(self) -> int:
        """How much may be put behind where owners begin to read, before entries are written anew."""
        return max(self._tidy_bytes, TIDY_FACTOR * (self._entry_bytes + self._others.named_bytes))

    @property
    def span_bytes(self) -> int:
        """What an owner reads that takes over now."""
        return self._put_bytes - self._noted_bytes

    @property
    def is_untidy(self) -> bool:
        """Whether much more was put than lives."""
        return self.span_bytes > self.limit_bytes

    async def untidy(self) -> None:
        """Wait until the ledger is untidy: at once when too much was put, and otherwise as is seen now and then."""
        while self.span_bytes <= self.limit_bytes:
            self._look_at_bytes, self._look = self._noted_bytes + self.limit_bytes, trio.Event()
            with trio.move_on_after(TIDY_INTERVAL_S) as pause:
                await self._look.wait()
            if pause.cancelled_caught and self.is_untidy:
                return

    async def tidy(self, settled: Callable[[AppendTicket], Awaitable[None]]) -> ReadFrom:
        """Write all live entries anew, and name all other records that live; returns where owners may read from then
        on. Raises CairnError.

        A batch has the entries as they are when it is appended, so it undoes no change that came meanwhile.
        """
        async with self._others.held():
            named_offset, put_bytes = self.stream.end_offset, self._put_bytes
            for key, value in self._others.named():
                ticket = self.append_record(key, value)
                await settled(ticket)
                ticket.result()
            first_offset = self._others.first_offset  # of what is named: it may be moved as soon as nothing is held
        keys, parts, is_acknowledged = deque[str](), self._entries.key_parts(), False
        while True:
            while len(keys) < TIDY_ENTRIES and (more := next(parts, None)) is not None:
                keys += more
            if not keys and is_acknowledged:
                break
            ticket = self._append(self._take_some(keys))
            await settled(ticket)
            ticket.result()
            is_acknowledged = True  # without entries too: with this batch all in front of it is acknowledged
        whole_offset = named_offset if first_offset is None else min(named_offset, first_offset)
        return ReadFrom(whole_offset, named_offset, put_bytes)

    def noted(self, read_from: ReadFrom) -> None:
        """The metadata store has these offsets."""
        self._noted_bytes = read_from.put_bytes

    def _take_some(self, keys: deque[str]) -> dict[str, bytes | None]:
        """The entries of the first keys, as they are now, as many as go into a batch; takes their keys."""
        some: dict[str, bytes | None] = {}
        size_bytes = 0
        while keys and len(some) < TIDY_ENTRIES:
            value = self._entries.get(keys[0])
            if value is not None:
                size_bytes += len(keys[0]) + len(value)
                if some and size_bytes > TIDY_BATCH_BYTES:
                    break
                some[keys[0]] = value
            keys.popleft()
        return some


L = TypeVar("L", bound=ReplicatedLedger)


class LedgerServices(NamedTuple):
    """What the homes of ledgers share."""

    topics: ClusterTopics
    reads: ChunkReads
    metadata: MetadataStore
    clock: Clock
    report: Report


class LedgerHome(Generic[L]):
    """Has the ledger in a topic while this host owns the topic's stream. `make` makes an empty one over the stream."""

    def __init__(self, topic: str, services: LedgerServices, make: Callable[[ReplicatedStream], L]) -> None:
        topics, reads, metadata, _, report = services
        self.topic = topic
        self._make = make
        self._topics = topics
        self._reads = reads
        self._metadata = metadata
        self._report = report

    @property
    def is_leader(self) -> bool:
        """Whether this host owns the stream."""
        stream = self.stream
        return stream is not None and stream.is_leader

    @property
    def waits_for_members(self) -> bool:
        """Whether this host has claimed the stream, and cannot lead it for want of members."""
        stream = self.stream
        return stream is not None and not stream.is_leader and stream.lacks_members

    @property
    def stream(self) -> ReplicatedStream | None:
        """The stream, whoever owns it; None: the topic is not there."""
        topic = self._topics.topics.get(self.topic)
        return None if topic is None else topic.partitions[0]

    async def is_owner_for_certain(self) -> bool:
        """Whether the metadata store says now that this host owns the stream: then no other host has had it since this
        ownership began. Raises MetadataError, CorruptRegister, UnknownFormatVersion.
        """
        stream = self.stream
        return stream is not None and await self._own_head(stream) is not None

    async def _own_head(self, stream: ReplicatedStream) -> Condition | None:
        """That the head of the stream's registration stays as it is now; None if it does not name this host."""
        if not stream.is_leader:
            return None
        owner, key = stream.registration.owner, head_key(stream.stream)
        entry = (await self._metadata.get(key)).entry
        is_own = entry is not None and decode_head(entry.value).owner == owner
        return Condition(key, entry.revision) if entry is not None and is_own else None

    async def run(self, serve: Callable[[L], Awaitable[None]]) -> None:
        """For each ownership of the stream: read the ledger, and run `serve` until it ends; until cancelled."""
        while True:
            stream = self.stream
            if stream is None:
                await self._topics.changed.wait()
            elif not stream.is_leader:
                await self._news(stream, lambda stream: stream.is_leader or stream.deleted)
                if stream.deleted:
                    await self._topics.changed.wait()
            else:
                await self._one_ownership(stream, serve)

    async def _one_ownership(self, stream: ReplicatedStream, serve: Callable[[L], Awaitable[None]]) -> None:
        ownership = stream.ownership
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, stream, serve)
            await self._news(stream, lambda stream: stream.ownership != ownership)
            nursery.cancel_scope.cancel()

    async def _serve(self, stream: ReplicatedStream, serve: Callable[[L], Awaitable[None]]) -> None:
        ledger = await self._loaded(stream)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, ledger)
            nursery.start_soon(self._keep_tidy, stream, ledger)

    async def _loaded(self, stream: ReplicatedStream) -> L:
        while True:
            ledger = self._make(stream)
            try:
                await ledger.load(self._reads, max(stream.log_start_offset, await self._first_offset()))
            except (CairnError, OSError) as error:
                self._report(LEDGER_NOT_READ, stream=stream.name, error=str(error))
                await trio.sleep(PAUSE_S)
                continue
            return ledger

    async def _first_offset(self) -> int:
        key = f"{KEY_PREFIX}{self.topic}"
        return max([await self._noted_offset(each) for each in (key, key + NAMED_SUFFIX)])

    async def _noted_offset(self, key: str) -> int:
        entry = (await self._metadata.get(key)).entry
        text = b"0" if entry is None else entry.value
        if not text.isdigit():
            raise MetadataDamaged(f"the entry {key!r} is {text[:40]!r}, not an offset; remove it")
        return int(text)

    async def _note_read_from(self, stream: ReplicatedStream, read_from: ReadFrom) -> bool:
        """Note where owners begin to read, unless this host has been replaced; whether that is done.

        What a replaced owner has dropped last may live: that it was dropped was not acknowledged.
        """
        own = await self._own_head(stream)
        if own is None:
            return False
        key = f"{KEY_PREFIX}{self.topic}"
        puts = [Put(key, b"%d" % read_from.whole_offset)]
        if read_from.named_offset > read_from.whole_offset:
            puts.append(Put(key + NAMED_SUFFIX, b"%d" % read_from.named_offset))
        return isinstance(await self._metadata.commit(Transaction((own,), tuple(puts))), Committed)

    async def _keep_tidy(self, stream: ReplicatedStream, ledger: ReplicatedLedger) -> None:
        while True:
            await ledger.untidy()
            try:
                read_from = await ledger.tidy(_settled)
                if await self._note_read_from(stream, read_from):
                    ledger.noted(read_from)
                    stream.trim(read_from.whole_offset)
                    continue
            except (CairnError, MetadataError) as error:
                self._report(LEDGER_NOT_READ, stream=self.topic, error=str(error))
            await trio.sleep(TIDY_INTERVAL_S)

    @staticmethod
    async def _news(stream: ReplicatedStream, is_so: Callable[[ReplicatedStream], bool]) -> None:
        """Wait until something is so; the stream tells of every change."""
        while not is_so(stream):
            changed = trio.Event()
            stream.add_waiter(changed.set)
            try:
                await changed.wait()
            finally:
                stream.remove_waiter(changed.set)


async def _settled(ticket: AppendTicket | Ticket[None]) -> None:
    done = trio.Event()
    ticket.add_callback(lambda _: done.set())
    await done.wait()

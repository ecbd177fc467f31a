"""One stream: appends records in order and acknowledges them once they are synced.

Life of a batch: `append` checks the batch and puts it on the pending list. `take_job` turns pending batches into one
write and one sync of the open chunk. When the sync is done, the index gets its entry, the high watermark moves, the
batch enters the tail, its ticket settles and waiting readers are woken.

Invariants:
* At most one write per stream is in flight. Offsets are assigned when a write is built, so a refused batch leaves no
  hole.
* The high watermark covers synced data only and never stands inside an append group: no reader, index, ack or trim sees
  a group before its END is synced.
* A failed write or sync fails all pending appends. A failed sync is final: the chunk ends at its last good length and
  the next write opens a new chunk. After a failed write (a full disk), the bytes that it may have left are cut before
  anything else is written.
* `.log` names and `.producers` snapshots are durable before the first batch of a new chunk is acknowledged.

Sources: CEC paper, section IX; docs/format.md.
"""

from collections import deque
from collections.abc import Callable

from logstore.errors import (
    CairnError,
    OffsetOutOfRange,
    StorageFailed,
    UnknownTopicOrPartition,
)
from logstore.events import APPEND_FAILED, TRIMMED
from logstore.format.batch import LEADER_EPOCH, BatchHeader, parse_header, patch_base, stamp_append_time
from logstore.format.control import known_type
from logstore.format.index import NO_TIMESTAMP, IndexBlock, IndexEntry, encode_block
from logstore.format.snapshot import ProducerSnapshot, encode_snapshot
from logstore.log.background import FileRemover
from logstore.log.chunks import WARM_BYTES, WRITE_BYTES, Chunk, ChunkView, IndexBuilder, fits_one_write
from logstore.log.coroutines import start
from logstore.log.jobs import Create, DiskJob, Operation, RemoveFile, Sync, SyncDirectory, Truncate, WriteFile
from logstore.log.producers import ProducerTable
from logstore.log.retention import RetentionTime, excess
from logstore.log.stream_state import (
    AppendGroup,
    AppendResult,
    AppendTicket,
    OpenGroup,
    PendingAppend,
    Pin,
    PlacedBatch,
    RecoveredStream,
    StreamHost,
    WriteInFlight,
)
from logstore.log.tail import StreamTail, TailEntry
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.log.validation import check_produced

SNAPSHOT_INTERVAL_BYTES = 1 << 20
"""Data between two producer snapshots: bounds the data that a restart has to walk."""
SNAPSHOT_SHARE = 16
"""With many producers, snapshots are written less often, so that their bytes stay below 1/16 of the data."""
GROUP_TAIL_BYTES = 4 << 20
"""Bytes of an open group that are kept for the tail."""


class Stream:
    """A durable, ordered sequence of record batches with dense offsets."""

    def __init__(
        self,
        topic: str,
        partition: int,
        directory: str,
        config: TopicConfig,
        host: StreamHost,
        recovered: RecoveredStream,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.directory = directory
        self.config = config
        self.leader_epoch = LEADER_EPOCH
        self.chunks: list[Chunk] = recovered.chunks
        self.producers = recovered.producers
        self.log_start_offset = recovered.log_start_offset
        self.start_asked = self.log_start_offset
        self.high_watermark = recovered.next_offset
        self.tail = StreamTail()
        self._host = host
        self._pending: deque[PendingAppend | OpenGroup] = deque()
        self._flight: WriteInFlight | None = None
        self._write_offset = self.high_watermark
        self._write_position = self.chunks[-1].size_bytes if self.chunks else 0
        self._builder = self._new_builder()
        self._must_roll = not self.chunks
        self._truncate_first = False
        self._snapshot_at = self._write_position
        self._snapshot_bytes = 0
        self._waiters: dict[Callable[[], None], None] = {}
        self._pins: dict[Pin, None] = {}
        self._unpinned: Ticket[None] = Ticket()
        self._closing: Ticket[None] | None = None
        self._closed = False
        self._remover = FileRemover(directory, host.notify)
        self.deleted = False

    @classmethod
    def fresh(cls, topic: str, partition: int, directory: str, config: TopicConfig, host: StreamHost) -> "Stream":
        """A stream that has never held a record."""
        return cls(topic, partition, directory, config, host, RecoveredStream([], ProducerTable(), 0, 0))

    # ---- appending

    @property
    def end_offset(self) -> int:
        """The offset after the last record that has an offset, synced or not."""
        return self._write_offset

    def append(self, records: bytearray | memoryview, *, now_ms: int, are_times_checked: bool = False) -> AppendTicket:
        """Append one RecordBatch v2 as a client sent it. The stream patches the buffer in place and keeps it.

        Raises at once: CorruptBatch, UnsupportedBatchFormat, InvalidRecord, MessageTooLarge, InvalidTimestamp,
        OutOfOrderSequence, InvalidProducerEpoch, UnknownTopicOrPartition. The ticket fails with StorageFailed, or with
        UnknownTopicOrPartition if the topic is deleted before the write.
        """
        self._refuse_if_gone()
        header = check_produced(records, self.name, self.config, now_ms, are_times_checked=are_times_checked)
        ticket: AppendTicket = Ticket()
        if header.producer_id >= 0:
            duplicate = self.producers.admit(header, ticket)
            if duplicate is not None:
                if duplicate.ticket is not None:
                    return duplicate.ticket
                return Ticket.succeeded(AppendResult(duplicate.base_offset, self.log_start_offset, True))
        self._pending.append(PendingAppend(records, header, ticket))
        self._host.notify(self)
        return ticket

    def append_group(self, group: AppendGroup) -> AppendTicket:
        """Append a group; the base offset of the result is BEGIN's.

        Raises UnknownTopicOrPartition. The ticket fails with StorageFailed, with UnknownTopicOrPartition if the topic
        is deleted before the write, or with the error of `next_batches`.
        """
        self._refuse_if_gone()
        opened = OpenGroup(group, Ticket())
        self._pending.append(opened)
        self._host.notify(self)
        return opened.ticket

    def _refuse_if_gone(self) -> None:
        if self.deleted or self._closing is not None:
            raise UnknownTopicOrPartition(f"{self.name} has been deleted or is being closed")

    # ---- writing

    def take_job(self) -> DiskJob | None:
        """The next write, or None if there is none or one is in flight."""
        if self._flight is not None or self.deleted:
            return None
        if not self._pending:
            return self._closing_job() if self._closing is not None else None
        head = self._pending[0]
        if isinstance(head, OpenGroup):
            return self._group_job(head)
        appends: list[PendingAppend] = []
        size = 0
        while self._pending and size < WRITE_BYTES:
            item = self._pending[0]
            if isinstance(item, OpenGroup) or (appends and size + len(item.buffer) > WRITE_BYTES):
                break
            self._pending.popleft()
            appends.append(item)
            size += len(item.buffer)
        operations: list[Operation] = []
        flight = self._start_flight(size, operations)
        flight.appends = appends
        for append in appends:
            self._place(flight, memoryview(append.buffer), append.header, flight.entries)
        return self._finish_flight(flight, operations)

    def _group_job(self, opened: OpenGroup) -> DiskJob | None:
        """The next write of a group; it waits for the batches after the current ones, so that END may join the last."""
        try:
            if not self._advance_group(opened):
                return None
            following = opened.following.result() if opened.following is not None else None
        except CairnError as error:
            self._pending.popleft()
            self._drop_group(opened)
            opened.ticket.fail(error)
            return self.take_job()
        now_ms = self._host.clock.wall_ms()
        is_first = opened.base_offset < 0
        parts = [opened.group.begin(now_ms)] if is_first else []
        if opened.current is not None and fits_one_write(parts, opened.current):
            parts.append(opened.current)
            opened.current = following
            if following is not None:
                opened.following = self._ask_batches(opened)
        is_last = False
        if opened.current is None:
            end = opened.group.end(now_ms)
            is_last = fits_one_write(parts, end)
            if is_last:
                parts.append(end)
        operations: list[Operation] = []
        flight = self._start_flight(opened.group.byte_count, operations, may_roll=is_first)
        flight.group, flight.group_open = opened, not is_last
        if is_first:
            opened.base_offset = self._write_offset
        for batches in parts:
            self._place_all(flight, batches, opened.entries)
        if is_last:
            self._pending.popleft()
            flight.entries = opened.entries
        return self._finish_flight(flight, operations)

    def _advance_group(self, opened: OpenGroup) -> bool:
        """Whether the current and the following batches are both known; asks for the missing ones."""
        if opened.following is None:
            opened.following = self._ask_batches(opened)
        if not opened.following.done:
            return False
        if opened.current is None and opened.following.result() is not None:
            opened.current = opened.following.result()
            opened.following = self._ask_batches(opened)
        return opened.following.done

    def _ask_batches(self, opened: OpenGroup) -> Ticket[bytearray | None]:
        ticket = opened.group.next_batches()
        if not ticket.done:
            ticket.add_callback(lambda _: self._host.notify(self))
        return ticket

    def _drop_group(self, opened: OpenGroup) -> None:
        """Discard what a group has written: the next write starts at the group's start."""
        if opened.base_offset >= 0:
            self._rewind()

    def _rewind(self) -> None:
        self._write_offset = self.high_watermark
        self._truncate_first = True
        if self.chunks:
            self._write_position = self.chunks[-1].size_bytes
        self._builder = self._new_builder()

    def _new_builder(self) -> IndexBuilder:
        return IndexBuilder(self.chunks[-1].max_timestamp) if self.chunks else IndexBuilder()

    def _start_flight(self, size: int, operations: list[Operation], *, may_roll: bool = True) -> WriteInFlight:
        """Choose the chunk for the next write; append what must be done to it first to `operations`."""
        chunk = self.chunks[-1] if self.chunks else None
        full = may_roll and self._write_position > 0 and self._write_position + size > self.config.segment_bytes
        # A trim may ask for a new chunk while a group is being written; the group is not split for that.
        if chunk is None or (self._must_roll and may_roll) or full:
            chunk = self._roll(operations)
            is_new = True
        else:
            is_new = False
            if self._truncate_first:
                # Sync at once: otherwise a power cut may keep the new batch and, after it, batches that were discarded.
                operations += [Truncate(chunk.log_path, chunk.size_bytes), Sync(chunk.log_path)]
        return WriteInFlight(chunk, is_new, [], [], [], 0, 0)

    def _roll(self, operations: list[Operation]) -> Chunk:
        if self.chunks:
            operations.extend(self._seal_operations(self.chunks[-1]))
        chunk = Chunk(self.directory, self._write_offset, self._write_offset)
        snapshot = encode_snapshot(ProducerSnapshot(0, self._write_offset, self.producers.entries()))
        operations.extend(
            [
                # A fresh inode: data that an earlier attempt left under this name, and its failed sync, are gone.
                RemoveFile(chunk.log_path),
                Create(chunk.log_path),
                Create(chunk.index_path, optional=True),
                Create(chunk.producers_path),
                WriteFile(chunk.producers_path, 0, [snapshot]),
                Sync(chunk.producers_path),
                SyncDirectory(self.directory),
            ]
        )
        chunk.producers_bytes = len(snapshot)
        self._snapshot_at, self._snapshot_bytes = 0, len(snapshot)
        self._write_position = 0
        self._builder = IndexBuilder()
        return chunk

    def _seal_operations(self, chunk: Chunk) -> list[Operation]:
        """The operations that close a chunk's index with a block that states the chunk's length."""
        if chunk.index_damaged:
            return []
        seal = IndexBlock(chunk.size_bytes, chunk.next_offset, chunk.max_timestamp, [], chunk.written_ms)
        block = encode_block(seal)
        return [
            WriteFile(chunk.index_path, chunk.index_bytes, [block], optional=True),
            Sync(chunk.index_path, optional=True),
        ]

    def _place(self, flight: WriteInFlight, buffer: memoryview, header: BatchHeader, entries: list[IndexEntry]) -> None:
        """Assign a batch its offset and position, and its time if the topic uses LogAppendTime."""
        if self.config.stamps_appends and not header.is_control:
            header = stamp_append_time(buffer, header, self._host.clock.wall_ms())
        patch_base(buffer, 0, self._write_offset, self.leader_epoch)
        kind = known_type(buffer) if header.is_control else 0
        self._builder.note(header, self._write_offset, self._write_position, entries, kind)
        flight.batches.append(PlacedBatch(buffer, header, self._write_offset, kind))
        self._write_offset += header.last_offset_delta + 1
        self._write_position += header.size_bytes

    def _place_all(self, flight: WriteInFlight, batches: bytearray, entries: list[IndexEntry]) -> None:
        view = memoryview(batches)
        at = 0
        while at < len(batches):
            header = parse_header(view, at)
            self._place(flight, view[at : at + header.size_bytes], header, entries)
            at += header.size_bytes

    def _finish_flight(self, flight: WriteInFlight, operations: list[Operation]) -> DiskJob:
        chunk = flight.chunk
        position = self._write_position - sum(len(batch.buffer) for batch in flight.batches)
        flight.end_position, flight.next_offset = self._write_position, self._write_offset
        operations.append(WriteFile(chunk.log_path, position, [batch.buffer for batch in flight.batches]))
        operations.append(Sync(chunk.log_path))
        if flight.entries and not chunk.index_damaged:
            # After the sync: a valid block proves that the data it describes was durable.
            ends = (flight.end_position, flight.next_offset, self._builder.max_timestamp)
            block = IndexBlock(*ends, flight.entries, self._host.retention_clock.now_ms())
            flight.index_write = WriteFile(chunk.index_path, chunk.index_bytes, [encode_block(block)], optional=True)
            operations.append(flight.index_write)
        due = max(SNAPSHOT_INTERVAL_BYTES, SNAPSHOT_SHARE * self._snapshot_bytes)
        if not flight.is_new_chunk and chunk.size_bytes - self._snapshot_at >= due:
            flight.snapshot_write = self._snapshot_write(chunk)
            operations.append(flight.snapshot_write)
        self._flight = flight

        # The job must not refer to itself, so that its memory, mostly its batches, is freed as soon as the job is done.
        skipped: list[tuple[Operation, OSError]] = []
        return DiskJob(operations, lambda: self._written(skipped, flight), self._failed, skipped)

    def _snapshot_write(self, chunk: Chunk) -> WriteFile:
        """The write of a producer snapshot as of the synced end of the chunk."""
        data = encode_snapshot(ProducerSnapshot(chunk.size_bytes, chunk.next_offset, self.producers.entries()))
        return WriteFile(chunk.producers_path, chunk.producers_bytes, [data], optional=True)

    def _written(self, failures: list[tuple[Operation, OSError]], flight: WriteInFlight) -> None:
        """A write is synced: pass it to index, tail, tickets and readers, in the order of the module's docstring."""
        self._flight = None
        chunk = flight.chunk
        if flight.is_new_chunk:
            self._adopt(chunk)
        self._truncate_first = False
        skipped = [operation for operation, _ in failures]
        if flight.index_write is not None:
            if flight.index_write in skipped:
                chunk.index_damaged = True
            else:
                chunk.index_bytes += len(flight.index_write.buffers[0])
        if flight.snapshot_write is not None:
            self._snapshot_at = chunk.size_bytes
            if flight.snapshot_write not in skipped:
                self._snapshot_bytes = len(flight.snapshot_write.buffers[0])
                chunk.producers_bytes += self._snapshot_bytes
        if flight.group is not None:
            self._keep_for_tail(flight.group, flight.batches)
        if not flight.group_open:
            self._publish(flight)
        if self._pending or self._closing is not None:
            self._host.notify(self)
        for append, batch in zip(flight.appends, flight.batches, strict=False):
            append_ms = batch.header.max_timestamp if batch.header.has_log_append_time else NO_TIMESTAMP
            append.ticket.succeed(AppendResult(batch.base_offset, self.log_start_offset, False, append_ms))
        if flight.group is not None and not flight.group_open:
            flight.group.ticket.succeed(AppendResult(flight.group.base_offset, self.log_start_offset, False))
        if not flight.group_open:
            self._wake()
        if flight.is_new_chunk and self.config.retention_bytes >= 0:
            self.apply_retention()  # otherwise a fast writer could fill the disk before the next check

    def _adopt(self, chunk: Chunk) -> None:
        """A new chunk is durable: it replaces an empty last chunk, or follows the last one."""
        self._must_roll = False
        if self.chunks:
            if self.chunks[-1].size_bytes == 0:
                self.chunks.pop()
            else:
                self.chunks[-1].index = None
                self._host.indexes.forget(self.chunks[-1].index_path)
        self.chunks.append(chunk)

    def _publish(self, flight: WriteInFlight) -> None:
        chunk = flight.chunk
        if chunk.index is not None:
            chunk.index.add(flight.entries)
        chunk.size_bytes, chunk.next_offset = flight.end_position, flight.next_offset
        chunk.max_timestamp = self._builder.max_timestamp
        chunk.written_ms = self._host.retention_clock.now_ms()
        self.high_watermark = flight.next_offset
        now_ms = self._host.clock.wall_ms()
        for append, batch in zip(flight.appends, flight.batches, strict=False):
            if append.header.producer_id >= 0:
                self.producers.synced(append.header, batch.base_offset, now_ms)
        if flight.group is not None:
            if flight.group.tail_cut:
                self.tail.reset()
            entries = list(flight.group.tail)
        else:
            entries = [
                TailEntry(batch.base_offset, batch.next_offset, batch.buffer, batch.header.is_control, batch.kind)
                for batch in flight.batches
            ]
        for entry in entries:
            self._host.tail.push(self.tail, entry)

    def _keep_for_tail(self, opened: OpenGroup, batches: list[PlacedBatch]) -> None:
        for batch in batches:
            entry = TailEntry(batch.base_offset, batch.next_offset, batch.buffer, batch.header.is_control, batch.kind)
            opened.tail.append(entry)
            opened.tail_bytes += len(batch.buffer)
        while opened.tail_bytes > GROUP_TAIL_BYTES and len(opened.tail) > 1:
            opened.tail_bytes -= len(opened.tail.popleft().buffer)
            opened.tail_cut = True

    def _failed(self, operation: Operation, error: OSError) -> None:
        """The disk refused: fail all pending appends; the next write starts after the last good byte."""
        flight, self._flight = self._flight, None
        if isinstance(operation, Sync) or (flight is not None and flight.is_new_chunk):
            # The name of the new chunk may exist: a batch at its base offset must not go to the chunk before it.
            self._must_roll = True
        behind, self._pending = self._pending, deque()
        self.producers.fail_pending()
        self._rewind()
        reason = StorageFailed(f"{self.name}: {error.strerror or error} ({type(operation).__name__})")
        self._host.report(APPEND_FAILED, stream=self.name, error=str(error), operation=type(operation).__name__)
        tickets = [append.ticket for append in flight.appends] if flight is not None else []
        if flight is not None and flight.group is not None and not any(item is flight.group for item in behind):
            tickets.append(flight.group.ticket)
        for ticket in [*tickets, *(item.ticket for item in behind)]:
            ticket.fail(reason)
        if self._closing is not None:
            self._host.notify(self)

    # ---- reading

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless `offset` lies between log start and high watermark, both included."""
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(self.name, offset, self.log_start_offset, self.high_watermark)

    def read_tail(self, offset: int, max_bytes: int) -> list[TailEntry] | None:
        """Batches from memory, or None if `offset` is older than the tail. An empty list: no data at `offset` yet."""
        if offset >= self.high_watermark:
            return []
        start = self.tail.start_offset
        return self.tail.read(offset, max_bytes) if start is not None and offset >= start else None

    def chunk_at(self, offset: int) -> ChunkView | None:
        """The chunk that holds `offset`, as of now; None at or above the high watermark."""
        newer_bytes = 0
        for chunk in reversed(self.chunks):
            if chunk.base_offset <= offset:
                return chunk.view(is_cold=newer_bytes > WARM_BYTES) if offset < chunk.next_offset else None
            newer_bytes += chunk.size_bytes
        return None

    def chunk_below(self, offset: int) -> ChunkView | None:
        """The newest chunk with data before `offset`, as of now; None if there is none."""
        newer_bytes = 0
        for chunk in reversed(self.chunks):
            if chunk.base_offset < offset and chunk.size_bytes:
                return chunk.view(is_cold=newer_bytes > WARM_BYTES)
            newer_bytes += chunk.size_bytes
        return None

    def chunk_views(self, from_offset: int = 0) -> list[ChunkView]:
        """All chunks with data at or after `from_offset`, in order."""
        return [chunk.view() for chunk in self.chunks if chunk.next_offset > from_offset and chunk.size_bytes]

    def add_waiter(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the high watermark or the log start moves, or the stream is deleted."""
        self._waiters[callback] = None

    def remove_waiter(self, callback: Callable[[], None]) -> None:
        """Undo `add_waiter`."""
        self._waiters.pop(callback, None)

    def _wake(self) -> None:
        for callback in list(self._waiters):
            callback()

    # ---- trimming

    def pin(self, offset: int) -> Pin:
        """Prevent records at or after `offset` from being trimmed until the pin is released."""
        pin = Pin(offset, self._unpin)
        self._pins[pin] = None
        return pin

    def _unpin(self, pin: Pin) -> None:
        self._pins.pop(pin, None)
        unpinned, self._unpinned = self._unpinned, Ticket()
        unpinned.succeed(None)

    @property
    def _pinned_offset(self) -> int:
        """The lowest pinned offset: records at or after it must not be trimmed now."""
        return min([pin.offset for pin in self._pins], default=self.high_watermark)

    def delete_records(self, before_offset: int) -> Ticket[int]:
        """Trim all records before an offset (-1: the high watermark). The result is the new log start.

        Waits while a pin protects records below the offset.

        Raises OffsetOutOfRange for an offset above the high watermark.
        """
        target = self.high_watermark if before_offset == -1 else before_offset
        if not 0 <= target <= self.high_watermark:
            raise OffsetOutOfRange(self.name, target, self.log_start_offset, self.high_watermark)
        if target <= self.log_start_offset:
            return Ticket.succeeded(self.log_start_offset)
        return start(self._trim_when_free(target))

    async def _trim_when_free(self, offset: int) -> int:
        while offset > self._pinned_offset:
            await self._unpinned
        return await self._trim(offset, "deleted by a client")

    def apply_retention(self) -> None:
        """Trim whole chunks beyond the topic's retention, up to the first pin or registered reader's held offset."""
        now = RetentionTime(self._host.retention_clock.now_ms(), self._host.clock.wall_ms())
        found = excess(self.chunks, self.config, self._pinned_offset, now, lambda to: self._host.trim_limit(self, to))
        if found is not None and found.before_offset > self.log_start_offset:
            start(self._trim(found.before_offset, found.why))

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    async def _trim(self, offset: int, why: str) -> int:
        """Make the log start durable, then remove the chunks before it. Returns the new log start."""
        # A smaller trim must not overwrite a larger one that is being written to the catalogue.
        offset = self.start_asked = max(offset, self.start_asked)
        try:
            await self._host.save_log_start(self, offset)
        except CairnError:
            self.start_asked = self.log_start_offset
            raise
        first, self.log_start_offset = self.log_start_offset, max(self.log_start_offset, offset)
        freed_bytes = self._drop_chunks()
        if first < self.log_start_offset:
            last = self.log_start_offset - 1
            self._host.report(TRIMMED, stream=self.name, first=first, last=last, why=why, freed_bytes=freed_bytes)
        self._wake()
        return self.log_start_offset

    def _drop_chunks(self) -> int:
        """Remove the files of chunks before the log start; the last chunk stays, because its name tells where the log
        ends. Returns the bytes of those chunks.
        """
        freed_bytes = 0
        while len(self.chunks) > 1 and self.chunks[0].next_offset <= self.log_start_offset:
            chunk = self.chunks.pop(0)
            freed_bytes += chunk.size_bytes
            self._host.indexes.forget(chunk.index_path)
            self._remover.remove([chunk.log_path, chunk.index_path, chunk.producers_path])
        if self.chunks and self.chunks[-1].size_bytes and self.chunks[-1].next_offset <= self.log_start_offset:
            # All records are trimmed: the next append opens a new chunk, and this chunk is removed then.
            self._must_roll = True
        return freed_bytes

    # ---- ending

    def close(self) -> Ticket[None]:
        """Refuse new appends, finish pending ones, then seal the index and write a producer snapshot."""
        if self._closing is None:
            self._closing = Ticket()
            self._host.notify(self)
        return self._closing

    def _closing_job(self) -> DiskJob | None:
        closing = self._closing
        if closing is None or self._closed:
            return None
        self._closed = True
        if not self.chunks:
            closing.succeed(None)
            return None
        chunk = self.chunks[-1]
        operations: list[Operation] = [*self._seal_operations(chunk)]
        operations += [self._snapshot_write(chunk), Sync(chunk.producers_path, optional=True)]
        return DiskJob(operations, lambda: closing.succeed(None), lambda *_: closing.succeed(None))

    def abandon(self) -> None:
        """The topic is deleted: fail all pending appends, wake the waiters, give out no more jobs."""
        self.deleted = True
        behind, self._pending = self._pending, deque()
        for item in behind:
            item.ticket.fail(UnknownTopicOrPartition(f"{self.name} has been deleted"))
        self._wake()

"""One stream: appends records in order and acknowledges them once they are synced.

Life of a batch: `append` checks the batch and puts it on the pending list. `take_job` turns pending batches into one
write and one sync: a part of a block of the shared journal if they are few bytes (`logstore.log.journal`), else a write
to the open chunk (`logstore.log.chunk_writer`). When the sync is done, the high watermark moves, the batch enters the
tail, its ticket settles and waiting readers are woken. What went to the journal gets into the chunk later
(`logstore.log.backlog_writer`).

Invariants:
* At most one write of appends is in flight, to the journal or to the chunk. Offsets are assigned when a write is built,
  so a refused batch leaves no hole.
* The high watermark covers synced data only and never stands inside an append group: no reader, index, ack or trim sees
  a group before its END is synced.
* A failed write or sync fails all pending appends. A failed sync is final: the next write opens a new chunk. After a
  failed write (a full disk), the bytes that it may have left are cut before anything else is written.
* No file changes before `logstore.log.quiet` lets it: `may_change` before a write, `wake` before a trim.
* `.log` names and `.producers` snapshots are durable before the first batch of a new chunk is acknowledged.

Sources: CEC paper, section IX; docs/format.md.
"""

from collections import deque
from collections.abc import Sequence

from logstore.errors import CairnError, OffsetOutOfRange, StorageFailed, UnknownTopicOrPartition
from logstore.events import APPEND_FAILED, TRIMMED
from logstore.format.index import NO_TIMESTAMP
from logstore.log.background import FileRemover
from logstore.log.backlog_writer import BacklogWriter
from logstore.log.chunk_writer import ChunkWriter
from logstore.log.chunks import WRITE_BYTES, ChunkView, newest
from logstore.log.coroutines import start
from logstore.log.jobs import DiskJob, Operation, Sync
from logstore.log.retention import RetentionTime, excess
from logstore.log.stream_state import (
    AppendGroup,
    AppendResult,
    AppendTicket,
    OpenGroup,
    PendingAppend,
    Pin,
    Pins,
    PlacedGroup,
    RecoveredStream,
    SoleLeader,
    StreamHost,
    WriteInFlight,
    next_appends,
)
from logstore.log.tail import StreamTail, TailEntry
from logstore.log.ticket import Ticket
from logstore.log.tiered import TieredLog
from logstore.log.topics import TopicConfig
from logstore.log.validation import check_produced


class Stream(SoleLeader, TieredLog):
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
        super().__init__()
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.directory = directory
        self.config = config
        self.leader_epoch = recovered.leader_epoch
        self.chunks, self.producers = recovered.chunks, recovered.producers
        self.log_start_offset = recovered.log_start_offset
        self.start_asked = self.log_start_offset
        self.high_watermark = self.opened_at = recovered.next_offset
        self.tail = StreamTail()
        self._host = host
        self._pending: deque[PendingAppend | OpenGroup] = deque()
        self._flight: WriteInFlight | None = None
        self._pending_bytes = 0
        self._writer = ChunkWriter(directory, host, recovered)
        self._backlog_writer = BacklogWriter(self, self._writer, host)
        self.pins = Pins()
        self._closing: Ticket[None] | None = None
        self._remover = FileRemover(directory, host.notify)
        self.is_awake = self.deleted = self._closed = self._roll_wanted = False
        self.appended_bytes = self.fetched_bytes = 0  # since the start; durable ones, and those given to clients

    # ---- appending

    @property
    def end_offset(self) -> int:
        """The offset after the last record that has an offset, synced or not."""
        return self._writer.end_offset

    def append(self, records: bytearray | memoryview, *, now_ms: int, are_times_checked: bool = False) -> AppendTicket:
        """Append one RecordBatch v2 as a client sent it. The stream patches the buffer in place and keeps it.

        Raises at once: CorruptBatch, UnsupportedBatchFormat, InvalidRecord, MessageTooLarge, InvalidTimestamp,
        OutOfOrderSequence, InvalidProducerEpoch, UnknownTopicOrPartition, StorageFailed (no room for appends). The
        ticket fails with StorageFailed, or with UnknownTopicOrPartition if the topic is deleted before the write.
        """
        self._refuse_if_gone()
        header = check_produced(records, self.name, self.config, now_ms, are_times_checked=are_times_checked)
        size_bytes = len(records)
        self._host.space.admit(size_bytes)
        ticket: AppendTicket = Ticket()
        if header.producer_id >= 0:
            duplicate = self.producers.admit(header, ticket)
            if duplicate is not None:
                if duplicate.ticket is not None:
                    return duplicate.ticket
                return Ticket.succeeded(AppendResult(duplicate.base_offset, self.log_start_offset, True))
        self._pending.append(PendingAppend(records, header, ticket))
        self._pending_bytes += size_bytes
        self._host.notify(self)
        return ticket

    def append_placed(self, appends: Sequence[PendingAppend | PlacedGroup]) -> None:
        """Append to a replica what has its offsets, without a gap behind all that was appended before.
        Raises UnknownTopicOrPartition, StorageFailed (no room for appends); tickets fail as those of `append`.
        """
        self._refuse_if_gone()
        batch_bytes = sum(append.header.size_bytes for append in appends if isinstance(append, PendingAppend))
        group_bytes = sum(append.byte_count for append in appends if isinstance(append, PlacedGroup))
        self._host.space.admit(batch_bytes + group_bytes)
        for append in appends:
            self._pending.append(self._opened(append, append.ticket) if isinstance(append, PlacedGroup) else append)
        self._pending_bytes += batch_bytes
        self._host.notify(self)

    def append_group(self, group: AppendGroup) -> AppendTicket:
        """Append a group; the base offset of the result is BEGIN's.

        Raises UnknownTopicOrPartition. The ticket fails with StorageFailed, with UnknownTopicOrPartition if the topic
        is deleted before the write, or with the error of `next_batches`.
        """
        self._refuse_if_gone()
        opened = self._opened(group, Ticket())
        self._pending.append(opened)
        self._host.notify(self)
        return opened.ticket

    def _opened(self, group: AppendGroup, ticket: AppendTicket) -> OpenGroup:
        return OpenGroup(group, ticket, lambda: self._host.notify(self))

    def _refuse_if_gone(self) -> None:
        if self.deleted or self._closing is not None:
            raise UnknownTopicOrPartition(f"{self.name} has been deleted or is being closed")

    # ---- writing

    def take_job(self) -> DiskJob | None:
        """The next write to the chunk; None if there is none, one is in flight, or the journal takes the next."""
        is_idle = self._is_idle
        if self.deleted or self._closed or not self._may_write(is_idle=is_idle):
            return None
        if self._flight is None and not self._backlog_writer.must_salvage and not is_idle and self._is_gathered():
            if self._host.journal.has_room and self._goes_to_journal():
                self._host.journal.offer(self)
            elif not self._backlog_writer.in_flight:
                job = self._direct_job()
                if job is not None:
                    return job
        # A salvage replaces the whole backlog: no part may be added to it meanwhile.
        if self._flight is None or (self._flight.place is not None and not self._backlog_writer.must_salvage):
            job = self._backlog_writer.take_job()
            if job is not None:
                return job
        self._end_closing()
        return self.roll_job() if self._roll_wanted else None

    def _may_write(self, *, is_idle: bool) -> bool:
        """Whether the files may change now; if they must for what waits, and may not, the stream is notified later."""
        backlog = self._backlog_writer
        if is_idle and not (self._roll_wanted or backlog.is_wanted or backlog.must_salvage):
            self._end_closing()
            return False
        return self.is_awake or self._host.quiet.may_change(self)

    @property
    def _is_idle(self) -> bool:
        """Whether nothing waits to be appended."""
        return not self._pending and not self._writer.is_moving

    def _goes_to_journal(self) -> bool:
        """Whether the next write is small and can go to the journal, if that has room."""
        limits = self._host.journal.limits
        if self._backlog_writer.must_salvage or not self._pending:
            return False
        head = self._pending[0]
        if isinstance(head, OpenGroup):
            size = head.group.byte_count
            if not head.is_whole:
                return False
        else:
            size = self._pending_bytes
        return size <= limits.max_part_bytes and self._writer.may_journal(size, self.config)

    def take_part(self) -> WriteInFlight | None:
        """The next write as a part of a journal block; None if there is none for the journal. The journal has room."""
        if self._flight is not None or self.deleted or not self._goes_to_journal():
            if self._flight is None:
                self._host.notify(self)
            return None
        head = self._pending[0]
        if isinstance(head, OpenGroup):
            self._pending.popleft()
            return self.take_group(head)
        flight = self._writer.start_part()
        self._take_appends(flight, self._next_appends()[0])
        self._writer.finish_part(flight)
        self._flight = flight
        return flight

    def takes_group(self, size_bytes: int) -> bool:
        """Whether a whole group of so many bytes can be a part of a journal block now, in front of what waits."""
        is_between_writes = self._flight is None and self.end_offset == self.high_watermark  # and in no open group
        is_open = self.is_awake and not self.deleted and self._closing is None and not self._backlog_writer.must_salvage
        return is_between_writes and is_open and self._writer.may_journal(size_bytes, self.config)

    def take_group(self, opened: OpenGroup) -> WriteInFlight:
        """A whole group as a part of a journal block; only if `takes_group` says so."""
        flight = self._flight = self._writer.start_part()
        self._writer.place_group(flight, opened, self.config)
        self._writer.finish_part(flight)
        return flight

    def _next_appends(self) -> tuple[list[PendingAppend], int]:
        """The appends of the next write, and their bytes."""
        appends, size_bytes = next_appends(self._pending, WRITE_BYTES)
        self._pending_bytes -= size_bytes
        return appends, size_bytes

    def _direct_job(self) -> DiskJob | None:
        """The next write to the chunk itself; None if it waits for the batches of a group."""
        if self._writer.is_moving:  # alone, so that nothing of it depends on the fate of an append
            operations: list[Operation] = []
            return self._finish_flight(self._writer.start(0, self.config, operations), operations)
        head = self._pending[0] if self._pending else None
        if isinstance(head, OpenGroup):
            return self._group_job(head)
        appends, size = self._next_appends()
        operations = []
        flight = self._writer.start(size, self.config, operations)
        self._take_appends(flight, appends)
        return self._finish_flight(flight, operations)

    def _take_appends(self, flight: WriteInFlight, appends: list[PendingAppend]) -> None:
        flight.appends = appends
        for append in appends:
            self._writer.place(flight, memoryview(append.buffer), append.header, flight.entries, self.config)

    def _group_job(self, opened: OpenGroup) -> DiskJob | None:
        """The next write of a group; it waits for the batches after the current ones, so that END may join the last."""
        if opened.is_whole:
            operations: list[Operation] = []
            flight = self._writer.start(opened.group.byte_count, self.config, operations)
            self._writer.place_group(flight, opened, self.config)
            self._pending.popleft()
            return self._finish_flight(flight, operations)
        try:
            if not opened.advance():
                return None
            following = opened.following.result() if opened.following is not None else None
        except CairnError as error:
            self._pending.popleft()
            if opened.base_offset >= 0:
                self._writer.rewind()  # the next write starts at the group's start
            opened.ticket.fail(error)
            return self.take_job()
        flight, operations = self._writer.start_group_piece(opened, following, self.config)
        if not flight.group_open:
            self._pending.popleft()
        return self._finish_flight(flight, operations)

    def _is_gathered(self) -> bool:
        """Whether the next write is in memory: all batches of a small group are, which goes into one write."""
        head = self._pending[0] if self._pending else None
        limits = self._host.journal.limits
        if not isinstance(head, OpenGroup) or not limits.file_bytes or head.group.byte_count > limits.max_part_bytes:
            return True
        try:
            return head.gather()
        except CairnError as error:
            self._pending.popleft()
            self._host.notify(self)
            head.ticket.fail(error)
            return False

    def roll_job(self) -> DiskJob | None:
        """The job that seals a last chunk with data and opens one behind it; None if the next write does that."""
        if not self.chunks or not self.chunks[-1].size_bytes:
            return None
        self._writer.must_roll = self._roll_wanted = True
        is_writing = self._flight is not None or self._backlog_writer.is_busy or not self._is_idle
        if is_writing or self.deleted or self._closing is not None:
            return None
        if not (self.is_awake or self._host.quiet.may_change(self)):
            return None
        self._roll_wanted = False
        operations: list[Operation] = []
        flight = self._flight = self._writer.start(0, self.config, operations)
        return DiskJob(operations, lambda: self._written([], flight), self._failed)

    def _finish_flight(self, flight: WriteInFlight, operations: list[Operation]) -> DiskJob:
        self._writer.finish(flight, operations)
        self._flight = flight
        # The job must not refer to itself: its memory, mostly its batches, is freed as soon as it is done.
        skipped: list[tuple[Operation, OSError]] = []
        return DiskJob(operations, lambda: self._written(skipped, flight), self._failed, skipped)

    def _written(self, failures: list[tuple[Operation, OSError]], flight: WriteInFlight) -> None:
        """A write to the chunk is synced."""
        self._flight = None
        self._writer.landed(flight, [operation for operation, _ in failures])
        self._backlog_writer.note()
        self._acknowledge(flight)
        if flight.is_new_chunk:
            self._roll_wanted = False
            self.drop_chunks(self.log_start_offset)
            if self.config.retention_bytes >= 0:
                self.apply_retention()  # otherwise a fast writer could fill the disk before the next check

    def journaled(self, flight: WriteInFlight, generation: int) -> None:
        """A write is durable in the journal: it counts as synced, and waits for its way into the chunk."""
        self._flight = None
        if self.deleted:
            self._host.journal.release(self, [generation])
        else:
            self._writer.journaled(flight, generation)
            self._backlog_writer.note()
        self._acknowledge(flight)

    def _acknowledge(self, flight: WriteInFlight) -> None:
        """Pass a durable write to tail, tickets and readers, in the order of the module's docstring."""
        self.appended_bytes += flight.size_bytes
        if flight.group is not None:
            flight.group.keep_for_tail(flight.batches)
        if not flight.group_open:
            self._publish(flight)
        if not self._is_idle or self._closing is not None or self._backlog_writer.must_salvage:
            self._host.notify(self)
        for append, batch in zip(flight.appends, flight.batches, strict=False):
            append_ms = batch.header.max_timestamp if batch.header.has_log_append_time else NO_TIMESTAMP
            append.ticket.succeed(AppendResult(batch.base_offset, self.log_start_offset, False, append_ms))
        if flight.group is not None and not flight.group_open:
            flight.group.ticket.succeed(AppendResult(flight.group.base_offset, self.log_start_offset, False))
        if not flight.group_open:
            self._host.tail.evict()
            self._wake()

    def _publish(self, flight: WriteInFlight) -> None:
        flight.chunk.note_write(self._host.retention_clock.now_ms())
        self.high_watermark = flight.end.next_offset
        now_ms = self._host.clock.wall_ms()
        for append, batch in zip(flight.appends, flight.batches, strict=False):
            if append.header.producer_id >= 0:
                self.producers.synced(append.header, batch.base_offset, now_ms)
        if flight.group is not None:
            if flight.group.tail_cut:
                self.tail.reset()
            for entry in list(flight.group.tail):
                self._host.tail.push(self.tail, entry)
        else:
            for batch in flight.batches:
                self._host.tail.push(self.tail, batch.tail_entry())

    def _failed(self, operation: Operation, error: OSError) -> None:
        """The chunk was not written: the next write starts after the last good byte."""
        flight, self._flight = self._flight, None
        if flight is not None and flight.is_new_chunk and self._writer.roll_failed(operation):
            self._backlog_writer.note()
        self._writer.must_roll |= isinstance(operation, Sync)
        if self._writer.is_moving:
            self._backlog_writer.fail(error)  # the next append, or the journal's next tick, tries again
            self._give_up_closing()
        self._backlog_writer.note_failed_sync(operation)
        self._fail_appends(flight, operation, error)

    def journal_failed(self, flight: WriteInFlight, operation: Operation, error: OSError) -> None:
        """The journal was not written. A new chunk comes next: the failed part may be found at the next start, and must
        not be put over what follows.
        """
        self._flight = None
        self._writer.must_roll = True
        self._fail_appends(flight, operation, error)

    def _fail_appends(self, flight: WriteInFlight | None, operation: Operation, error: OSError) -> None:
        """The disk refused: the next write starts after the last good byte."""
        self._writer.rewind()
        self._host.report(APPEND_FAILED, stream=self.name, error=str(error), operation=type(operation).__name__)
        self.refuse(StorageFailed(f"{self.name}: {error.strerror or error} ({type(operation).__name__})"), flight)

    def refuse(self, reason: StorageFailed, flight: WriteInFlight | None = None) -> None:
        """Fail all appends that are not durable: the disk refused them, or the stream may not be written to."""
        behind, self._pending = self._pending, deque()
        self._pending_bytes = 0
        self.producers.fail_pending()
        tickets = [append.ticket for append in flight.appends] if flight is not None else []
        if flight is not None and flight.group is not None and not any(item is flight.group for item in behind):
            tickets.append(flight.group.ticket)
        for ticket in [*tickets, *(item.ticket for item in behind)]:
            ticket.fail(reason)
        if self._closing is not None or self._backlog_writer.is_wanted:
            self._host.notify(self)

    def refuse_appends(self, error: OSError) -> None:
        """Fail all pending appends: the disk or the journal refuses."""
        self._give_up_closing()
        self._fail_appends(None, Sync(self.directory), error)

    def read_unwritten(self, offset: int, max_bytes: int) -> list[TailEntry] | None:
        """Batches that the chunk's file lacks; None if the file has the one that holds `offset`."""
        return self._writer.backlog.read(offset, max_bytes)

    @property
    def written_offset(self) -> int:
        """The offset up to which the chunk files have the acknowledged batches."""
        return self.chunks[-1].next_offset if self.has_unwritten else self.high_watermark

    @property
    def has_unwritten(self) -> bool:
        """Whether the chunk's file lacks acknowledged batches."""
        return bool(self._writer.backlog.unwritten)

    def write_backlog(self) -> Ticket[None]:
        """Write what the chunk's file lacks. The ticket fails with StorageFailed."""
        return self._backlog_writer.write_backlog()

    def sync_backlog(self) -> Ticket[None]:
        """Write and sync what the chunk's file lacks of the acknowledged batches. Fails with StorageFailed."""
        return self._backlog_writer.sync_backlog()

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
        if start is not None and offset >= start:
            return self.tail.read(offset, max_bytes)
        return self._writer.backlog.read(offset, max_bytes)

    def chunk_at(self, offset: int) -> ChunkView | None:
        """The chunk that holds `offset`, as of now; None at or above the high watermark."""
        found = newest(self.chunks, lambda chunk: chunk.base_offset <= offset)
        return found if found is not None and offset < found.next_offset else None

    def chunk_below(self, offset: int) -> ChunkView | None:
        """The newest chunk with data before `offset`, as of now; None if there is none."""
        return newest(self.chunks, lambda chunk: chunk.base_offset < offset and chunk.size_bytes > 0)

    def chunk_views(self, from_offset: int = 0) -> list[ChunkView]:
        """All chunks with data at or after `from_offset`, in order."""
        return [chunk.view() for chunk in self.chunks if chunk.next_offset > from_offset and chunk.size_bytes]

    # ---- trimming

    def pin(self, offset: int) -> Pin:
        """Prevent records at or after `offset` from being trimmed until the pin is released."""
        return self.pins.add(offset)

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
        while offset > self.pins.lowest(self.high_watermark):
            await self.pins.unpinned
        return await self._trim(offset, "deleted by a client")

    def apply_retention(self) -> None:
        """Trim whole chunks beyond the topic's retention, up to the first pin or held offset; what only the journal has
        comes into its chunk first.
        """
        if self.has_unwritten:
            self.write_backlog().add_callback(lambda _: self._apply_retention())
        else:
            self._apply_retention()

    def _apply_retention(self) -> None:
        now = RetentionTime(self._host.retention_clock.now_ms(), self._host.clock.wall_ms())
        pinned_offset = self.pins.lowest(self.high_watermark)
        found = excess(self.kept_chunks, self.config, pinned_offset, now, lambda to: self._host.trim_limit(self, to))
        if found is not None and found.before_offset > self.log_start_offset:
            start(self._trim(found.before_offset, found.why))

    @property
    def size_bytes(self) -> int:
        """Bytes of all local chunks, with those that are still to be written to the last one."""
        return sum(chunk.size_bytes for chunk in self.chunks[:-1]) + self._writer.backlog.acked.position

    async def _trim(self, offset: int, why: str) -> int:
        """Make the log start durable, then remove the chunks before it. Returns the new log start."""
        # A smaller trim must not overwrite a larger one that is being written to the catalogue.
        offset = self.start_asked = max(offset, self.start_asked)
        try:
            await self._host.quiet.wake(self)
            await self._host.save_log_start(self, offset)
        except CairnError:
            self.start_asked = self.log_start_offset
            raise
        first, self.log_start_offset = self.log_start_offset, max(self.log_start_offset, offset)
        freed_bytes, last = self.drop_chunks(self.log_start_offset), self.log_start_offset - 1
        if first <= last:
            self._host.report(TRIMMED, stream=self.name, first=first, last=last, why=why, freed_bytes=freed_bytes)
        self._wake()
        return self.log_start_offset

    def drop_chunks(self, before_offset: int) -> int:
        """Remove the files of chunks before the log start, or an offset up to which the tier has them; the last chunk
        stays, because its name tells where the log ends. The stream is awake. Returns the bytes of those chunks.
        """
        freed_bytes = 0
        while len(self.chunks) > 1 and self.chunks[0].next_offset <= before_offset:
            chunk = self.chunks.pop(0)
            freed_bytes += chunk.size_bytes
            self._host.indexes.forget(chunk.index_path)
            self._remover.remove([chunk.log_path, chunk.index_path, chunk.producers_path])
        if (
            self.chunks
            and self.chunks[-1].size_bytes
            and self._writer.backlog.acked.next_offset <= self.log_start_offset
        ):
            # All records are trimmed: the next write opens a new chunk, and this chunk is removed then.
            self._writer.must_roll = True
            self._host.roll_soon(self)
        return freed_bytes

    @property
    def can_rest(self) -> bool:
        """Whether no write or trim waits or is under way, and everything is synced in the chunks."""
        is_trimming = self.start_asked > self.log_start_offset or not self._remover.is_idle
        if is_trimming or self._flight or self._roll_wanted or not self._is_idle or self._backlog_writer.is_wanted:
            return False
        return not self._backlog_writer.in_flight and self._writer.can_rest

    @property
    def snapshot_at(self) -> int:
        """Position of the newest producer snapshot in the last chunk."""
        return self._writer.snapshot_at

    def sync_soon(self) -> None:
        """Have the backlog synced when the journal's turn comes."""
        if self._writer.backlog.is_unsynced:
            self._host.journal.sync_soon(self)

    # ---- ending

    def close(self) -> Ticket[None]:
        """Refuse new appends; settles when the pending ones are finished."""
        if self._closing is None:
            self._closing = Ticket()
            self._end_closing()
        return self._closing

    def _end_closing(self) -> None:
        if self._closing is None or self._closing.done:
            return
        if self._flight is None and not self._backlog_writer.must_salvage and self._is_idle:
            self._closing.succeed(None)

    def _give_up_closing(self) -> None:
        """End a stream that is being closed: its last chunk cannot be made whole, or nobody wants it any more."""
        if self._closing is not None and not self._closed:
            self._closed = True
            self._backlog_writer.close()
            if not self._closing.done:
                self._closing.succeed(None)

    def abandon(self) -> None:
        """The topic is deleted: fail all pending appends, wake the waiters, give out no more jobs."""
        self.deleted = True
        behind, self._pending = self._pending, deque()
        for item in behind:
            item.ticket.fail(UnknownTopicOrPartition(f"{self.name} has been deleted"))
        self._backlog_writer.abandon()
        self._give_up_closing()
        self._wake()

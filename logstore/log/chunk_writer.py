"""The end of a stream's log: gives batches their place, and builds the disk operations that bring them there.

Invariants:
* `end_offset` and `end_position` are those of the next batch; they are ahead of what is acknowledged while a write is
  in flight.
* An index block is written after the sync of the data that it describes: a valid block proves that the data was
  durable.
* A chunk is sealed (backlog written and synced, index closed) before the next chunk gets its name.
* After a chunk's sync has failed, its unsynced batches move to a new chunk that starts at their base offset: the old
  chunk ends there (`begin_move`). The new chunk gets its name when its data is synced: until then a start finds the old
  chunk last, and brings the batches there from the journal.
"""

from collections.abc import Sequence

from logstore.format.batch import LEADER_EPOCH, BatchHeader, parse_header, patch_base, stamp_append_time
from logstore.format.control import known_type
from logstore.format.index import IndexBlock, IndexEntry, encode_block
from logstore.format.journal_block import PartPlace
from logstore.format.snapshot import ProducerSnapshot, encode_snapshot
from logstore.log.backlog import Backlog, ChunkEnd, end_of
from logstore.log.chunks import Chunk, IndexBuilder, fits_one_write
from logstore.log.jobs import Create, Operation, RemoveFile, Rename, Sync, SyncDirectory, Truncate, WriteFile
from logstore.log.producers import ProducerTable
from logstore.log.stream_state import (
    AppendTicket,
    BacklogWrite,
    OpenGroup,
    PlacedBatch,
    RecoveredStream,
    StreamHost,
    WriteInFlight,
)
from logstore.log.tail import TailEntry
from logstore.log.topics import TopicConfig

SNAPSHOT_INTERVAL_BYTES = 1 << 20
"""Data between two producer snapshots: bounds the data that a restart has to walk."""
SNAPSHOT_SHARE = 16
"""With many producers, snapshots are written less often, so that their bytes stay below 1/16 of the data."""


class ChunkWriter:
    """Writes the last chunk of one stream."""

    __slots__ = (
        "_builder",
        "_directory",
        "_host",
        "_leader_epoch",
        "_producers",
        "_snapshot_bytes",
        "backlog",
        "chunks",
        "end_offset",
        "end_position",
        "is_moving",
        "key",
        "must_roll",
        "snapshot_at",
        "truncate_first",
    )

    def __init__(self, directory: str, host: StreamHost, recovered: RecoveredStream) -> None:
        self._directory = directory
        self._host = host
        self._producers: ProducerTable[AppendTicket] = recovered.producers
        self._leader_epoch = recovered.leader_epoch
        self.key = directory.encode("utf-8", "surrogateescape")
        self.chunks = recovered.chunks
        last = end_of(self.chunks[-1]) if self.chunks else ChunkEnd(0, recovered.next_offset)
        self.backlog = Backlog(last)
        self.end_offset = recovered.next_offset
        self.end_position = last.position
        self.must_roll = not self.chunks
        self.truncate_first = False
        self.is_moving = False
        """The backlog goes to the next chunk, because this one cannot be synced."""
        self._builder = IndexBuilder(last.max_timestamp)
        self.snapshot_at = recovered.snapshot_at
        self._snapshot_bytes = 0

    # ---- places

    def may_journal(self, size_bytes: int, config: TopicConfig) -> bool:
        """Whether the next batches may go to the journal: they continue a chunk that holds synced batches, and need
        nothing done to it first.
        """
        return (
            not self.must_roll
            and not self.truncate_first
            and self.backlog.synced.position > 0
            and self.end_position + size_bytes <= config.segment_bytes
        )

    def start(
        self, size_bytes: int, config: TopicConfig, operations: list[Operation], *, may_roll: bool = True
    ) -> WriteInFlight:
        """Choose the chunk for the next write; append what must be done to it first to `operations`."""
        chunk = self.chunks[-1] if self.chunks else None
        full = may_roll and self.end_position > 0 and self.end_position + size_bytes > config.segment_bytes
        # A trim may ask for a new chunk while a group is being written; the group is not split for that.
        if chunk is None or self.is_moving or (self.must_roll and may_roll) or full:
            return self._roll(operations)
        if self.truncate_first:
            # Sync at once: otherwise a power cut may keep the new batch and, after it, batches that were discarded.
            operations += [Truncate(chunk.log_path, chunk.size_bytes), Sync(chunk.log_path)]
        return WriteInFlight(chunk, False, [], [], [], self.backlog.acked)

    def start_part(self) -> WriteInFlight:
        """A write that goes to the journal."""
        chunk = self.chunks[-1]
        place = PartPlace(self.key, chunk.base_offset, self.end_position, self.end_offset)
        return WriteInFlight(chunk, False, [], [], [], self.backlog.acked, place)

    def place(
        self,
        flight: WriteInFlight,
        buffer: memoryview,
        header: BatchHeader,
        entries: list[IndexEntry],
        config: TopicConfig,
    ) -> None:
        """Assign a batch its offset and position, and its time if the topic uses LogAppendTime; a batch of a replica
        has its offset and its time.
        """
        is_control = header.is_control
        if self._leader_epoch == LEADER_EPOCH:
            if config.stamps_appends and not is_control:
                header = stamp_append_time(buffer, header, self._host.clock.wall_ms())
            patch_base(buffer, 0, self.end_offset, LEADER_EPOCH)
        kind = known_type(buffer) if is_control else 0
        self._builder.note(header, self.end_offset, self.end_position, entries, kind)
        flight.batches.append(PlacedBatch(buffer, header, self.end_offset, kind))
        self.end_offset += header.last_offset_delta + 1
        size_bytes = header.size_bytes
        self.end_position += size_bytes
        flight.size_bytes += size_bytes

    def place_all(
        self, flight: WriteInFlight, batches: bytearray, entries: list[IndexEntry], config: TopicConfig
    ) -> None:
        """Assign places to batches that stand end to end."""
        view = memoryview(batches)
        at = 0
        while at < len(batches):
            header = parse_header(view, at)
            self.place(flight, view[at : at + header.size_bytes], header, entries, config)
            at += header.size_bytes

    def place_group(self, flight: WriteInFlight, opened: OpenGroup, config: TopicConfig) -> None:
        """Put a whole group, whose batches are in memory, into one write."""
        now_ms = self._host.clock.wall_ms()
        flight.group = opened
        opened.base_offset = self.end_offset
        for batches in (opened.group.begin(now_ms), *opened.pieces, opened.group.end(now_ms)):
            self.place_all(flight, batches, flight.entries, config)

    def start_group_piece(
        self, opened: OpenGroup, following: bytearray | None, config: TopicConfig
    ) -> tuple[WriteInFlight, list[Operation]]:
        """The next write of a group, to the chunk: its current batches, BEGIN before the first and END behind the last
        of them, if they fit. `following`: the batches after the current ones.
        """
        now_ms = self._host.clock.wall_ms()
        is_first = opened.base_offset < 0
        parts = [opened.group.begin(now_ms)] if is_first else []
        if opened.current is not None and fits_one_write(parts, opened.current):
            parts.append(opened.current)
            opened.current = following
            if following is not None:
                opened.following = opened.ask()
        is_last = False
        if opened.current is None:
            end = opened.group.end(now_ms)
            is_last = fits_one_write(parts, end)
            if is_last:
                parts.append(end)
        operations: list[Operation] = []
        flight = self.start(opened.group.byte_count, config, operations, may_roll=is_first)
        flight.group, flight.group_open = opened, not is_last
        if is_first:
            opened.base_offset = self.end_offset
        for batches in parts:
            self.place_all(flight, batches, opened.entries, config)
        if is_last:
            flight.entries += opened.entries
        return flight, operations

    def finish_part(self, flight: WriteInFlight) -> None:
        """A write to the journal is complete."""
        flight.end = ChunkEnd(self.end_position, self.end_offset, self._builder.max_timestamp)

    def rewind(self) -> None:
        """The next batch gets the place after the last acknowledged one."""
        acked = self.backlog.acked
        self.end_offset, self.end_position = acked.next_offset, acked.position
        self.truncate_first = True
        self._builder = IndexBuilder(acked.max_timestamp)

    # ---- direct writes

    def finish(self, flight: WriteInFlight, operations: list[Operation]) -> None:
        """Append the write to the chunk, its sync and what follows to `operations`. The backlog goes with it."""
        chunk, backlog = flight.chunk, self.backlog
        flight.end = ChunkEnd(self.end_position, self.end_offset, self._builder.max_timestamp)
        takes_backlog = not flight.is_new_chunk or self.is_moving
        before = [entry.buffer for entry in backlog.unwritten] if takes_backlog else []
        buffers = [*before, *flight.buffers()]
        path = self._path_until_synced(chunk) if flight.is_new_chunk else chunk.log_path
        operations += [WriteFile(path, self.end_position - sum(map(len, buffers)), buffers), Sync(path)]
        if path != chunk.log_path:
            operations += [Rename(path, chunk.log_path), SyncDirectory(self._directory)]
        entries = flight.entries if flight.is_new_chunk else [*backlog.entries, *flight.entries]
        if not flight.is_new_chunk:
            flight.backlog_write = BacklogWrite(backlog.acked, len(backlog.unwritten), len(backlog.entries), True)
        if entries and not flight.group_open and not chunk.index_damaged:
            flight.index_write = self._index_write(chunk, flight.end, entries)
            operations.append(flight.index_write)
        if not flight.is_new_chunk and self._is_snapshot_due(backlog.acked.position):
            flight.snapshot_write = self._snapshot_write(chunk, backlog.acked)
            operations.append(flight.snapshot_write)

    def landed(self, flight: WriteInFlight, skipped: Sequence[Operation]) -> None:
        """A direct write is synced: the backlog is, and what is visible of the write."""
        chunk = flight.chunk
        if flight.is_new_chunk:
            self._adopt(chunk)
        elif flight.backlog_write is not None:
            self._apply(flight.backlog_write, chunk, has_block=flight.index_write is not None)
        self.truncate_first = False
        self._note_derived(chunk, flight.index_write, flight.snapshot_write, self.backlog.acked.position, skipped)
        if not flight.group_open:
            if chunk.index is not None:
                chunk.index.add(flight.entries)
            self._advance(chunk, flight.end, is_synced=True)
            self.backlog.acked = flight.end
        elif flight.is_new_chunk:
            self.backlog.synced = self.backlog.acked = end_of(chunk)

    def _adopt(self, chunk: Chunk) -> None:
        """A new chunk is durable: it replaces an empty last chunk, or follows the last one."""
        self.must_roll = False
        if self.chunks:
            old = self.chunks[-1]
            if not self.is_moving and self.backlog.is_unsynced:
                self._advance(old, self.backlog.acked, is_synced=True)
            if old.size_bytes == 0:
                self.chunks.pop()
            else:
                old.index = None
                self._host.indexes.forget(old.index_path)
        self.is_moving = False
        self.backlog.written(len(self.backlog.unwritten))
        self.backlog.proven(len(self.backlog.entries))
        self.chunks.append(chunk)

    def _roll(self, operations: list[Operation]) -> WriteInFlight:
        if self.chunks:
            operations.extend(self.seal_operations())
        base_offset = self.backlog.synced.next_offset if self.is_moving else self.end_offset
        chunk = Chunk(self._directory, base_offset, base_offset, leader_epoch=self._leader_epoch)
        log_path = self._path_until_synced(chunk)
        moved = self.backlog.unwritten if self.is_moving else []
        snapshot_at = sum(len(entry.buffer) for entry in moved)
        acked = self.backlog.acked.next_offset if self.is_moving else base_offset
        snapshot = encode_snapshot(ProducerSnapshot(snapshot_at, acked, self._producers.entries()))
        # An empty chunk of this name has the same producers; it may be the last that knows them.
        kept_bytes = self.chunks[-1].producers_bytes if self._is_replacing(chunk) else 0
        operations.extend(
            [
                # A fresh inode: data that an earlier attempt left under this name, and its failed sync, are gone.
                RemoveFile(log_path),
                Create(log_path),
                Create(chunk.index_path, optional=True),
                *([] if kept_bytes else _founding(chunk.producers_path, snapshot)),
                SyncDirectory(self._directory),
            ]
        )
        chunk.producers_bytes = kept_bytes or len(snapshot)
        self.snapshot_at, self._snapshot_bytes = snapshot_at, len(snapshot)
        self.end_position = 0
        self._builder = IndexBuilder()
        flight = WriteInFlight(chunk, True, [], [], [], ChunkEnd(0, base_offset))
        for entry in moved:
            header = parse_header(entry.buffer)
            self._builder.note(header, entry.base_offset, self.end_position, flight.entries, entry.kind)
            self.end_position += len(entry.buffer)
        return flight

    def _path_until_synced(self, chunk: Chunk) -> str:
        """Where a new chunk's first batches are written. An empty chunk of the same name is replaced at once: without
        any name, a stream whose records are all trimmed would have lost where its log ends.
        """
        return chunk.cleaned_path if self.is_moving or self._is_replacing(chunk) else chunk.log_path

    def _is_replacing(self, chunk: Chunk) -> bool:
        """Whether the last chunk is empty and has the name of this new one."""
        return bool(self.chunks) and self.chunks[-1].base_offset == chunk.base_offset

    def roll_failed(self, operation: Operation) -> bool:
        """A roll ended at this operation. The name of the new chunk may exist: nothing may go to the chunk before it.

        Behind the seal, that chunk is synced. It is noted, so that its backlog does not move to a third chunk, which
        the new one's name would cut off. Returns whether it is so.
        """
        self.must_roll = True
        if self.is_moving or not self.chunks:
            return False
        is_seal = isinstance(operation, WriteFile | Sync) and operation.path == self.chunks[-1].log_path
        if not is_seal:
            backlog = self.backlog
            write = BacklogWrite(backlog.acked, len(backlog.unwritten), len(backlog.entries), True)
            self._apply(write, self.chunks[-1], has_block=False)
        return not is_seal

    def begin_move(self, batches: list[TailEntry]) -> None:
        """The chunk ends at its synced end; `batches`, everything acknowledged behind it, goes to the next chunk."""
        backlog, chunk = self.backlog, self.chunks[-1]
        backlog.written(len(backlog.unwritten))
        backlog.proven(len(backlog.entries))
        chunk.size_bytes, chunk.next_offset, chunk.max_timestamp = backlog.synced
        backlog.take_unwritten(batches)
        self.is_moving = self.must_roll = True

    # ---- the backlog

    def journaled(self, flight: WriteInFlight, generation: int) -> None:
        """A part is durable in the journal."""
        self.backlog.add([batch.tail_entry() for batch in flight.batches], flight.entries, flight.end, generation)

    def backlog_operations(self, *, is_synced: bool) -> tuple[BacklogWrite, list[Operation]]:
        """What writes the backlog to the chunk; `is_synced`: and makes it durable there."""
        chunk, backlog = self.chunks[-1], self.backlog
        write = BacklogWrite(backlog.acked, len(backlog.unwritten), len(backlog.entries), is_synced)
        operations: list[Operation] = []
        if backlog.unwritten:
            buffers = [entry.buffer for entry in backlog.unwritten]
            operations.append(WriteFile(chunk.log_path, chunk.size_bytes, buffers))
        if is_synced:
            operations.append(Sync(chunk.log_path))
            if backlog.entries and not chunk.index_damaged:
                write.index_write = self._index_write(chunk, backlog.acked, list(backlog.entries))
                operations.append(write.index_write)
            if self._is_snapshot_due(backlog.acked.position):
                write.snapshot_write = self._snapshot_write(chunk, backlog.acked)
                operations.append(write.snapshot_write)
        return write, operations

    def backlog_landed(self, write: BacklogWrite, skipped: Sequence[Operation]) -> None:
        """The job of `backlog_operations` is done."""
        chunk = self.chunks[-1]
        self._apply(write, chunk, has_block=write.index_write is not None)
        self._note_derived(chunk, write.index_write, write.snapshot_write, write.end.position, skipped)

    def _apply(self, write: BacklogWrite, chunk: Chunk, *, has_block: bool) -> None:
        self.backlog.written(write.batches)
        fresh = self.backlog.unindexed(write.entries)
        if chunk.index is not None:
            chunk.index.add(fresh)
        if has_block or chunk.index_damaged:
            self.backlog.proven(write.entries)
        self._advance(chunk, write.end, is_synced=write.is_synced)

    def _advance(self, chunk: Chunk, end: ChunkEnd, *, is_synced: bool) -> None:
        chunk.size_bytes, chunk.next_offset, chunk.max_timestamp = end
        if is_synced:
            self.backlog.synced = end

    @property
    def can_rest(self) -> bool:
        """Whether the chunks' files have everything, synced, and nothing behind it."""
        if not self.chunks or self.backlog.is_unsynced or self.is_moving or self.truncate_first:
            return False
        return self.chunks[-1].size_bytes > 0 and not self.chunks[-1].index_damaged

    # ---- index and snapshots

    def seal_operations(self) -> list[Operation]:
        """The operations that make the last chunk whole on the disk: its backlog, and an index block that states its
        length.
        """
        chunk, backlog = self.chunks[-1], self.backlog
        operations: list[Operation] = []
        index_at, entries, end = chunk.index_bytes, backlog.entries, backlog.acked
        if self.is_moving:
            entries, end = [], backlog.synced
        elif backlog.is_unsynced:
            if backlog.unwritten:
                buffers = [entry.buffer for entry in backlog.unwritten]
                operations.append(WriteFile(chunk.log_path, chunk.size_bytes, buffers))
            operations.append(Sync(chunk.log_path))
        if chunk.index_damaged:
            return operations
        blocks = []
        if entries:
            blocks.append(encode_block(IndexBlock(*end, list(entries), chunk.written_ms)))
        blocks.append(encode_block(IndexBlock(*end, [], chunk.written_ms)))
        operations.append(WriteFile(chunk.index_path, index_at, blocks, optional=True))
        operations.append(Sync(chunk.index_path, optional=True))
        return operations

    def _index_write(self, chunk: Chunk, end: ChunkEnd, entries: list[IndexEntry]) -> WriteFile:
        block = IndexBlock(*end, entries, self._host.retention_clock.now_ms())
        return WriteFile(chunk.index_path, chunk.index_bytes, [encode_block(block)], optional=True)

    def _is_snapshot_due(self, position: int) -> bool:
        return position - self.snapshot_at >= max(SNAPSHOT_INTERVAL_BYTES, SNAPSHOT_SHARE * self._snapshot_bytes)

    def _snapshot_write(self, chunk: Chunk, end: ChunkEnd) -> WriteFile:
        """The write of a producer snapshot as of an end of the chunk that is synced before it."""
        data = encode_snapshot(ProducerSnapshot(end.position, end.next_offset, self._producers.entries()))
        return WriteFile(chunk.producers_path, chunk.producers_bytes, [data], optional=True)

    def _note_derived(
        self,
        chunk: Chunk,
        index_write: WriteFile | None,
        snapshot: WriteFile | None,
        at: int,
        skipped: Sequence[Operation],
    ) -> None:
        """Count what was written beside the chunk; the snapshot is as of position `at`."""
        if index_write is not None:
            if _has(skipped, index_write):
                chunk.index_damaged = True
            else:
                chunk.index_bytes += len(index_write.buffers[0])
        if snapshot is not None:
            self.snapshot_at = at
            if not _has(skipped, snapshot):
                self._snapshot_bytes = len(snapshot.buffers[0])
                chunk.producers_bytes += self._snapshot_bytes


def _founding(path: str, data: bytes) -> list[Operation]:
    """The operations that make a file with this content, synced."""
    return [Create(path), WriteFile(path, 0, [data]), Sync(path)]


def _has(operations: Sequence[Operation], wanted: Operation) -> bool:
    """Whether this very operation is among them; equal writes of other jobs do not count."""
    return any(operation is wanted for operation in operations)

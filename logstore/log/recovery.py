"""Opening a stream: data that is proven durable is never cut; data that may be torn is.

Steps: the name of a chunk gives its start; the index of a sealed chunk ends with a block that gives its end; the last
chunk is walked from its last index block on. A batch is proven durable if a valid index block covers it, if a later
chunk exists, or if the file holds more bytes from the batch's start on than one write can have. A damaged batch that is
proven is reported with its offsets and stays (reads of it fail). The first damaged batch that is not proven is cut with
everything after it; so is an append group without its END.

Invariants:
* The work is bounded by the data that no index covers yet, not by the size of the log; a clean shutdown leaves nothing
  to walk.
* When it returns, all data that it found is synced, names included, so that data may be served.
* Derived files (index) are repaired from the chunk. Here the bytes of a chunk never change, except that its end may be
  cut.

Sources: docs/format.md, crash states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from logstore.base.events import Report
from logstore.errors import CorruptBatch, CorruptFile, UnsupportedBatchFormat
from logstore.events import (
    APPEND_GROUP_WITHOUT_END_CUT,
    DURABLE_DATA_DAMAGED,
    DURABLE_DATA_LOST,
    INDEX_DOES_NOT_MATCH_ITS_CHUNK,
    JOURNAL_REPLAYED,
    OFFSETS_LOST,
    PRODUCER_SNAPSHOTS_REBUILT,
    TORN_END_CUT,
)
from logstore.format.batch import (
    HEADER,
    HEADER_BYTES,
    LEADER_EPOCH,
    MAGIC_OFFSET,
    BatchHeader,
    check_batch,
    parse_header,
)
from logstore.format.control import BEGIN_TYPE, END_TYPE, known_type
from logstore.format.index import BLOCK, UNKNOWN_TIME, IndexBlock, IndexEntry, decode_blocks, decode_seal, encode_block
from logstore.format.journal_block import JournalPart
from logstore.format.snapshot import ProducerSnapshot, decode_snapshots, encode_snapshot
from logstore.interfaces import Buffer, FileSystem
from logstore.log.chunks import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    MAX_APPEND_BYTES,
    MAX_WRITE_BYTES,
    Chunk,
    IndexBuilder,
    SparseIndex,
    chunk_name,
    parse_chunk_name,
)
from logstore.log.producers import ProducerTable
from logstore.log.rewrite import rewrite
from logstore.log.stream_state import AppendTicket, RecoveredStream

WINDOW_BYTES = 1 << 20


def recover_stream(
    fs: FileSystem,
    directory: str,
    log_start: int,
    now_ms: int,
    report: Report,
    journaled: Sequence[JournalPart] = (),
    leader_epoch: int = LEADER_EPOCH,
) -> RecoveredStream:
    """Open the stream in `directory`, whose log start was last recorded as `log_start`. `journaled`: what the journal
    holds of it, in order; `leader_epoch`: the highest one that its batches may have.

    Raises CorruptFile if no chunk is left of a stream that had records (it must not silently start again at 0), and
    UnknownFormatVersion. Any other loss or cut is reported, and the stream opens.
    """
    bases = _sweep(fs, directory, log_start)
    if not bases:
        if log_start > 0:
            raise CorruptFile(
                f"{directory}: no chunk is left, though the log had reached offset {log_start}; restore it"
            )
        if journaled:
            raise CorruptFile(f"{directory}: no chunk is left, though the journal continues one; restore it")
        fs.sync_directory(directory)
        return RecoveredStream([], ProducerTable(), log_start, log_start, leader_epoch=leader_epoch)
    if bases[0] > log_start:
        report(OFFSETS_LOST, directory=directory, first=log_start, last=bases[0] - 1, why="no chunk holds them")
    chunks: list[Chunk] = []
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        fresh = Chunk(directory, base, base, leader_epoch=leader_epoch)
        chunk = _open_chunk(fs, fresh, following, report, journaled if following is None else ())
        if following is not None and chunk.next_offset < following:
            report(OFFSETS_LOST, path=chunk.log_path, first=chunk.next_offset, last=following - 1, why="damaged")
        chunks.append(chunk)
    _report_lost_parts(chunks[-1], journaled, report)
    producers, snapshot_at = _recover_producers(fs, chunks, now_ms, report)
    fs.sync_directory(directory)
    next_offset = chunks[-1].next_offset
    start = min(max(log_start, bases[0]), next_offset)
    return RecoveredStream(chunks, producers, start, next_offset, snapshot_at, leader_epoch)


def open_last_chunk(fs: FileSystem, chunk: Chunk, report: Report) -> Chunk:
    """Open the last chunk of a stream alone, as if only its name were known, with its index: it is walked from its last
    index block on, what is torn is cut, and the index is repaired. Raises OSError, UnknownFormatVersion.
    """
    fresh = Chunk(chunk.directory, chunk.base_offset, chunk.base_offset, leader_epoch=chunk.leader_epoch)
    return _open_chunk(fs, fresh, None, report, ())


def _sweep(fs: FileSystem, directory: str, log_start: int) -> list[int]:
    """Base offsets of the chunks that are still part of the stream; removes the files of all others."""
    files = [parsed for name in fs.list_directory(directory) if (parsed := parse_chunk_name(name)) is not None]
    bases = sorted(base for base, suffix in files if suffix == LOG_SUFFIX)
    # A crash may have interrupted a trim: all chunks before the one that holds the log start may be removed.
    while len(bases) > 1 and bases[1] <= log_start:
        bases.pop(0)
    # Another crash may have interrupted a cleaning before the new content got the chunk's name.
    stale = [chunk_name(base, suffix) for base, suffix in files if base not in bases or suffix == CLEANED_SUFFIX]
    if stale:
        # Kept names may be in the page cache only: if a crash lost them and kept the removals, no chunk would be left.
        fs.sync_directory(directory)
    for name in stale:
        fs.remove(f"{directory}/{name}")
    return bases


def _open_chunk(
    fs: FileSystem, chunk: Chunk, following: int | None, report: Report, journaled: Sequence[JournalPart]
) -> Chunk:
    """Find the end and the index of a chunk of which the name is known."""
    file_bytes = fs.size(chunk.log_path)
    if following is not None and _open_sealed(fs, chunk, following, file_bytes):
        return chunk
    blocks = _trusted_blocks(fs, chunk, file_bytes, report)
    builder = IndexBuilder()
    if blocks:
        last = blocks[-1]
        chunk.size_bytes, chunk.next_offset, chunk.max_timestamp = (
            last.durable_end,
            last.next_offset,
            last.max_timestamp,
        )
        chunk.opened_ms, chunk.written_ms = blocks[0].written_ms, last.written_ms
        builder = IndexBuilder(last.max_timestamp)
    index = SparseIndex()
    for block in blocks:
        index.add(block.entries)
    chunk.index = index
    if following is not None and chunk.next_offset >= following:
        return _as_sealed(chunk, following)
    proven_bytes = chunk.size_bytes
    journaled_end = _replay(fs, chunk, journaled, report)
    file_bytes = max(file_bytes, journaled_end)
    walk = _TailWalk(fs, chunk, file_bytes, following, builder, report, journaled_end)
    entries = walk.run()
    index.add(entries)
    if chunk.size_bytes > proven_bytes:
        chunk.written_ms = UNKNOWN_TIME
    if following is None and chunk.size_bytes < file_bytes:
        fs.truncate(chunk.log_path, chunk.size_bytes)
    if following is None:
        rewrite(fs, chunk.log_path, proven_bytes, chunk.size_bytes)
    fs.sync(chunk.log_path)
    _repair_index(fs, chunk, entries, is_sealed=following is not None)
    return chunk if following is None else _as_sealed(chunk, following)


def _replay(fs: FileSystem, chunk: Chunk, journaled: Sequence[JournalPart], report: Report) -> int:
    """Write what the journal holds of a last chunk, behind its proven end, to the chunk's file. Returns the position
    after it; 0: the journal holds nothing.

    All of it belongs at these places, and the file may have all, some or none of it. What is in the file behind it was
    never acknowledged.
    """
    wanted: dict[int, memoryview] = {}
    for part in journaled:
        position = part.place.position
        if part.place.chunk_offset == chunk.base_offset and position + len(part.data) > chunk.size_bytes:
            wanted[position] = part.data
    end = 0
    run: list[Buffer] = []
    run_at = run_end = 0
    for position, data in sorted(wanted.items()):
        if position != run_end and run:
            fs.write(chunk.log_path, run_at, run)
            run = []
        if not run:
            run_at = position
        run.append(data)
        run_end = end = position + len(data)
    if run:
        fs.write(chunk.log_path, run_at, run)
    if wanted:
        report(
            JOURNAL_REPLAYED, path=chunk.log_path, position=min(wanted), replayed_bytes=sum(map(len, wanted.values()))
        )
    return end


def _report_lost_parts(last: Chunk, journaled: Sequence[JournalPart], report: Report) -> None:
    """The journal names only chunks whose names were durable: one that is newer than the last chunk is lost."""
    lost = [part.place.base_offset for part in journaled if part.place.chunk_offset > last.base_offset]
    if lost:
        report(OFFSETS_LOST, path=last.log_path, first=last.next_offset, last=max(lost), why="their chunk is gone")


def _as_sealed(chunk: Chunk, following: int) -> Chunk:
    chunk.index = None
    chunk.next_offset = min(chunk.next_offset, following)
    return chunk


def _open_sealed(fs: FileSystem, chunk: Chunk, following: int, file_bytes: int) -> bool:
    """Whether the index ends with a seal according to which the chunk ends where the next one starts."""
    if not fs.exists(chunk.index_path):
        return False
    index_bytes = fs.size(chunk.index_path)
    tail_bytes = min(index_bytes, BLOCK.size)
    last = decode_seal(fs.read(chunk.index_path, index_bytes - tail_bytes, tail_bytes))
    if last is None or last.next_offset != following or last.durable_end > file_bytes:
        return False
    chunk.size_bytes, chunk.next_offset, chunk.max_timestamp = last.durable_end, last.next_offset, last.max_timestamp
    chunk.written_ms = last.written_ms
    chunk.index_bytes, chunk.index = index_bytes, None
    return True


def _trusted_blocks(fs: FileSystem, chunk: Chunk, file_bytes: int, report: Report) -> list[IndexBlock]:
    """Index blocks that agree with the chunk; none if one contradicts it (then the whole chunk is walked)."""
    if not fs.exists(chunk.index_path):
        # A cleaned chunk's new name may be in the page cache only: the old content must not get the new one's index.
        fs.sync_directory(chunk.directory)
        fs.create(chunk.index_path)
        return []
    blocks, chunk.index_bytes = decode_blocks(fs.read(chunk.index_path, 0, fs.size(chunk.index_path)))
    if not blocks:
        return []
    if blocks[-1].durable_end > file_bytes:
        report(
            DURABLE_DATA_LOST,
            path=chunk.log_path,
            found_bytes=file_bytes,
            durable_bytes=blocks[-1].durable_end,
            last=blocks[-1].next_offset - 1,
        )
        chunk.index_bytes = 0
        return []
    entries = [entry for block in blocks for entry in block.entries]
    if entries and not _agrees(fs, chunk, entries[-1]):
        report(INDEX_DOES_NOT_MATCH_ITS_CHUNK, path=chunk.index_path, position=entries[-1].position)
        chunk.index_bytes = 0
        return []
    return blocks


def _agrees(fs: FileSystem, chunk: Chunk, entry: IndexEntry) -> bool:
    head = fs.read(chunk.log_path, entry.position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return False
    header = BatchHeader._make(HEADER.unpack(head))
    return header.base_offset == entry.base_offset and header.crc == entry.batch_crc


def _repair_index(fs: FileSystem, chunk: Chunk, entries: list[IndexEntry], *, is_sealed: bool) -> None:
    """Write the entries that the walk found to the index; called after the chunk is synced."""
    fs.truncate(chunk.index_path, chunk.index_bytes)
    if entries or is_sealed:
        found = IndexBlock(chunk.size_bytes, chunk.next_offset, chunk.max_timestamp, entries, chunk.written_ms)
        block = encode_block(found)
        if is_sealed and entries:
            block += encode_block(found._replace(entries=[]))
        fs.write(chunk.index_path, chunk.index_bytes, [block])
        chunk.index_bytes += len(block)


@dataclass(slots=True)
class _OpenGroupMark:
    """The state before a BEGIN, to return to if its END is missing."""

    position: int
    offset: int
    max_timestamp: int
    entries: int


@dataclass(slots=True)
class _TailWalk:
    """A walk from a chunk's proven end to its last valid batch."""

    fs: FileSystem
    chunk: Chunk
    file_bytes: int
    following: int | None
    builder: IndexBuilder
    report: Report
    journaled_end: int
    """Everything before this position was durable, here or in the journal."""
    entries: list[IndexEntry] = field(default_factory=list)
    group: _OpenGroupMark | None = None

    def run(self) -> list[IndexEntry]:
        """Move the chunk's end past every valid batch; returns their index entries."""
        position, offset = self.chunk.size_bytes, self.chunk.next_offset
        window, window_at = memoryview(b""), position
        while position < self.file_bytes and not self._is_over(offset):
            found = self._next(window, position - window_at, offset)
            if found is None and window_at + len(window) < self.file_bytes:
                window, window_at = self._window(position), position
                found = self._next(window, 0, offset)
            if found is None:
                resumed = self._behind_damage(position, offset)
                if resumed is None:
                    break
                position, offset = resumed
                continue
            self._note(found, position, window[position - window_at : position - window_at + found.size_bytes])
            position += found.size_bytes
            offset = found.next_offset
        self._finish(position, offset)
        return self.entries

    def _is_over(self, offset: int) -> bool:
        return self.following is not None and offset >= self.following

    def _window(self, position: int) -> memoryview:
        """A window of bytes from `position` on, or the whole batch there if it is larger (bounded)."""
        window = memoryview(self.fs.read(self.chunk.log_path, position, WINDOW_BYTES))
        try:
            need = min(parse_header(window).size_bytes, MAX_APPEND_BYTES)
        except (CorruptBatch, UnsupportedBatchFormat):
            return window
        return window if need <= len(window) else memoryview(self.fs.read(self.chunk.log_path, position, need))

    @staticmethod
    def _next(window: memoryview, at: int, offset: int) -> BatchHeader | None:
        try:
            header = check_batch(window, at)
        except (CorruptBatch, UnsupportedBatchFormat):
            return None
        return header if header.base_offset == offset else None

    def _note(self, header: BatchHeader, position: int, batch: memoryview) -> None:
        kind = known_type(batch) if header.is_control else 0
        if kind == BEGIN_TYPE:
            self.group = _OpenGroupMark(position, header.base_offset, self.builder.max_timestamp, len(self.entries))
        self.builder.note(header, header.base_offset, position, self.entries, kind)
        if kind == END_TYPE:
            self.group = None

    def _largest_write(self, position: int, offset: int) -> int:
        """The largest size in bytes that one write at `position` may have had."""
        try:
            header = parse_header(self.fs.read(self.chunk.log_path, position, HEADER_BYTES))
        except (CorruptBatch, UnsupportedBatchFormat):
            return MAX_WRITE_BYTES
        is_large = header.base_offset == offset and header.size_bytes <= MAX_APPEND_BYTES
        return max(MAX_WRITE_BYTES, header.size_bytes) if is_large else MAX_WRITE_BYTES

    def _behind_damage(self, position: int, offset: int) -> tuple[int, int] | None:
        """Position and offset after a damaged batch that is proven durable; None: it may be torn and is the end."""
        is_proven = self.following is not None or position < self.journaled_end
        if not is_proven and self.file_bytes - position <= self._largest_write(position, offset):
            return None
        most = min(self.file_bytes, position + 4 * self._largest_write(position, offset))
        found = _find_batch(self.fs, self.chunk, position + 1, most, self.file_bytes, offset)
        if found is None:
            return None
        at, header = found
        self.report(
            DURABLE_DATA_DAMAGED,
            path=self.chunk.log_path,
            position=position,
            first=offset,
            last=header.base_offset - 1,
        )
        self.group = None
        self.builder.note_damage(offset, position, self.entries)
        return at, header.base_offset

    def _finish(self, position: int, offset: int) -> None:
        if self.group is not None:
            self.report(
                APPEND_GROUP_WITHOUT_END_CUT, path=self.chunk.log_path, first=self.group.offset, last=offset - 1
            )
            position, offset = self.group.position, self.group.offset
            self.builder.max_timestamp = self.group.max_timestamp
            del self.entries[self.group.entries :]
        if position < self.file_bytes and self.following is None:
            self.report(
                TORN_END_CUT, path=self.chunk.log_path, from_offset=offset, cut_bytes=self.file_bytes - position
            )
        self.chunk.size_bytes, self.chunk.next_offset = position, offset
        self.chunk.max_timestamp = self.builder.max_timestamp


def _find_batch(
    fs: FileSystem, chunk: Chunk, start: int, stop: int, end: int, after_offset: int
) -> tuple[int, BatchHeader] | None:
    """The first intact batch whose position is from `start` up to `stop` and whose base offset is above `after_offset`;
    the file ends at `end`. Slow.
    """
    for window_at in range(start, stop, WINDOW_BYTES):
        window = fs.read(chunk.log_path, window_at, min(WINDOW_BYTES + HEADER_BYTES, end - window_at))
        at = window.find(b"\x02", MAGIC_OFFSET, WINDOW_BYTES + MAGIC_OFFSET)
        while at >= 0:
            position = window_at + at - MAGIC_OFFSET
            header = _batch_at(fs, chunk, position, end, memoryview(window)[at - MAGIC_OFFSET :], after_offset)
            if header is not None:
                return position, header
            at = window.find(b"\x02", at + 1, WINDOW_BYTES + MAGIC_OFFSET)
    return None


def _batch_at(
    fs: FileSystem, chunk: Chunk, position: int, end: int, data: memoryview, after_offset: int
) -> BatchHeader | None:
    """The header of the intact batch at `position`, whose first bytes are in `data`; None if there is none."""
    try:
        header = parse_header(data)
        # Bytes inside records may look like a header; only plausible headers are worth a read. How far its offset is
        # ahead proves nothing: a compressed batch may have more records than bytes.
        if not 0 <= header.partition_leader_epoch <= chunk.leader_epoch or header.last_offset_delta < 0:
            return None
        if header.base_offset <= after_offset or header.size_bytes > min(end - position, MAX_APPEND_BYTES):
            return None
        whole = (
            data if header.size_bytes <= len(data) else memoryview(fs.read(chunk.log_path, position, header.size_bytes))
        )
        return check_batch(whole)
    except (CorruptBatch, UnsupportedBatchFormat):
        return None


def _recover_producers(
    fs: FileSystem, chunks: list[Chunk], now_ms: int, report: Report
) -> tuple[ProducerTable[AppendTicket], int]:
    """The producers from the newest valid snapshot and from the headers of all batches after it; and the position of
    that snapshot in the last chunk, 0 if it is in an older one.
    """
    table: ProducerTable[AppendTicket] = ProducerTable()
    start, position = 0, 0
    for number in range(len(chunks) - 1, -1, -1):
        chunk = chunks[number]
        if not fs.exists(chunk.producers_path):
            continue
        snapshots, end = decode_snapshots(fs.read(chunk.producers_path, 0, fs.size(chunk.producers_path)))
        usable = [
            item for item in snapshots if item.position <= chunk.size_bytes and item.next_offset <= chunk.next_offset
        ]
        if usable:
            table.load(usable[-1].producers)
            start, position = number, usable[-1].position
            chunk.producers_bytes = end
            break
    else:
        report(PRODUCER_SNAPSHOTS_REBUILT, directory=chunks[0].directory)
    snapshot_at = position if start == len(chunks) - 1 else 0
    for chunk in chunks[start:]:
        for header in _headers(fs, chunk, position):
            if header.producer_id >= 0:
                table.synced(header, header.base_offset, now_ms)
        position = 0
    last = chunks[-1]
    if start < len(chunks) - 1:
        # A crash came while the last chunk was begun. The older chunks may be trimmed before it gets another snapshot.
        snapshot_at = last.size_bytes
        snapshot = encode_snapshot(ProducerSnapshot(snapshot_at, last.next_offset, table.entries()))
        fs.create(last.producers_path)
        fs.write(last.producers_path, 0, [snapshot])
        fs.sync(last.producers_path)
        last.producers_bytes = len(snapshot)
    elif not fs.exists(last.producers_path):
        fs.create(last.producers_path)
    elif fs.size(last.producers_path) > last.producers_bytes:
        fs.truncate(last.producers_path, last.producers_bytes)
    return table, snapshot_at


def _headers(fs: FileSystem, chunk: Chunk, position: int) -> list[BatchHeader]:
    """Headers of a chunk's batches from `position` on, up to the first damaged one."""
    headers: list[BatchHeader] = []
    window, window_at = memoryview(b""), position
    while position < chunk.size_bytes:
        if window_at + len(window) - position < HEADER_BYTES:
            window = memoryview(fs.read(chunk.log_path, position, min(WINDOW_BYTES, chunk.size_bytes - position)))
            window_at = position
        try:
            header = parse_header(window, position - window_at)
        except (CorruptBatch, UnsupportedBatchFormat):
            break
        headers.append(header)
        position += header.size_bytes
        if position > window_at + len(window):
            window, window_at = memoryview(b""), position
    return headers

"""Opening a stream: what is proven durable is never cut, what may be torn is.

How it goes: the chunks' names say where each starts; a sealed chunk's index ends with a block that says where it ends;
the last chunk is walked from its last index block on. Proven is what a valid index block covers, and what has more
bytes behind it than one write can hold. A damaged batch in front of that line is reported with its offsets and stays
(reads of it fail); the first damaged batch behind it is cut with everything that follows, and so is an append group
without its END.

Invariants:
* The work is bounded by what no index covers yet, not by the size of the log; a clean shutdown leaves nothing to walk.
* When it returns, everything it found is synced, names included: it may be served.
* Derived files (index) are repaired from the chunk; a chunk is never written to, except to cut its end.

Sources: docs/format.md, crash states.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from logstore.errors import CorruptBatch, CorruptFile, UnsupportedBatchFormat
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
from logstore.format.snapshot import decode_snapshots
from logstore.interfaces import FileSystem
from logstore.log.chunks import (
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
Report = Callable[..., None]


def recover_stream(fs: FileSystem, directory: str, log_start: int, now_ms: int, report: Report) -> RecoveredStream:
    """Open the stream in `directory`, whose log start was last recorded as `log_start`.

    Raises CorruptFile if nothing is left of a stream that had something (it must not start again at 0 silently), and
    UnknownFormatVersion. Everything else that is lost or cut is reported and the stream opens.
    """
    bases = _sweep(fs, directory, log_start)
    if not bases:
        if log_start > 0:
            raise CorruptFile(
                f"{directory}: no chunk is left, though the log had reached offset {log_start}; restore it"
            )
        fs.sync_directory(directory)
        return RecoveredStream([], ProducerTable(), log_start, log_start)
    if bases[0] > log_start:
        report("offsets lost", directory=directory, first=log_start, last=bases[0] - 1, why="no chunk holds them")
    chunks: list[Chunk] = []
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        chunk = _open_chunk(fs, directory, base, following, report)
        if following is not None and chunk.next_offset < following:
            report("offsets lost", path=chunk.log_path, first=chunk.next_offset, last=following - 1, why="damaged")
        chunks.append(chunk)
    producers = _recover_producers(fs, chunks, now_ms, report)
    fs.sync(chunks[-1].log_path)
    fs.sync_directory(directory)
    start = max(log_start, bases[0])
    return RecoveredStream(chunks, producers, min(start, chunks[-1].next_offset), chunks[-1].next_offset)


def _sweep(fs: FileSystem, directory: str, log_start: int) -> list[int]:
    """Base offsets of the chunks that count; files that no longer matter are removed."""
    files = [parsed for name in fs.list_directory(directory) if (parsed := parse_chunk_name(name)) is not None]
    bases = sorted(base for base, suffix in files if suffix == LOG_SUFFIX)
    # A trim interrupted by a crash: all but the chunk that holds the log start, and those behind it, may go.
    while len(bases) > 1 and bases[1] <= log_start:
        bases.pop(0)
    stale = [chunk_name(base, suffix) for base, suffix in files if base not in bases]
    if stale:
        # What stays may be known to the page cache only; were it lost and the removals kept, nothing would be left.
        fs.sync_directory(directory)
    for name in stale:
        fs.remove(f"{directory}/{name}")
    return bases


def _open_chunk(fs: FileSystem, directory: str, base: int, following: int | None, report: Report) -> Chunk:
    chunk = Chunk(directory, base, base)
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
        chunk.written_ms = last.written_ms
        builder = IndexBuilder(last.max_timestamp)
    index = SparseIndex()
    for block in blocks:
        index.add(block.entries)
    chunk.index = index
    if following is not None and chunk.next_offset >= following:
        return _as_sealed(chunk, following)
    proven_bytes = chunk.size_bytes
    walk = _Walk(fs, chunk, file_bytes, following, builder, report)
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


def _as_sealed(chunk: Chunk, following: int) -> Chunk:
    chunk.index = None
    chunk.next_offset = min(chunk.next_offset, following)
    return chunk


def _open_sealed(fs: FileSystem, chunk: Chunk, following: int, file_bytes: int) -> bool:
    """Whether the index ends with a block that says the chunk ends where the next one starts."""
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
    """Index blocks that agree with the chunk; none if one contradicts it (the chunk is walked as a whole then)."""
    if not fs.exists(chunk.index_path):
        fs.create(chunk.index_path)
        return []
    blocks, chunk.index_bytes = decode_blocks(fs.read(chunk.index_path, 0, fs.size(chunk.index_path)))
    if not blocks:
        return []
    if blocks[-1].durable_end > file_bytes:
        report(
            "durable data lost",
            path=chunk.log_path,
            found_bytes=file_bytes,
            durable_bytes=blocks[-1].durable_end,
            last=blocks[-1].next_offset - 1,
        )
        chunk.index_bytes = 0
        return []
    entries = [entry for block in blocks for entry in block.entries]
    if entries and not _agrees(fs, chunk, entries[-1]):
        report("index does not match its chunk", path=chunk.index_path, position=entries[-1].position)
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
    """Write down what the walk found; called after the chunk is synced."""
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
    """Where a BEGIN stood, to come back to."""

    position: int
    offset: int
    max_timestamp: int
    entries: int


@dataclass(slots=True)
class _Walk:
    """From a chunk's proven end to the end of what holds."""

    fs: FileSystem
    chunk: Chunk
    file_bytes: int
    following: int | None
    builder: IndexBuilder
    report: Report
    entries: list[IndexEntry] = field(default_factory=list)
    group: _OpenGroupMark | None = None

    def run(self) -> list[IndexEntry]:
        """Move the chunk's end over everything that holds; returns the index entries for it."""
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
        """Bytes from `position` on: as many as the batch there has, if that is more than a window (bounded)."""
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
        """The most bytes that one write at `position` may have had."""
        try:
            header = parse_header(self.fs.read(self.chunk.log_path, position, HEADER_BYTES))
        except (CorruptBatch, UnsupportedBatchFormat):
            return MAX_WRITE_BYTES
        is_large = header.base_offset == offset and header.size_bytes <= MAX_APPEND_BYTES
        return max(MAX_WRITE_BYTES, header.size_bytes) if is_large else MAX_WRITE_BYTES

    def _behind_damage(self, position: int, offset: int) -> tuple[int, int] | None:
        """Where the log goes on behind a damaged batch that is proven durable; None: it may be torn, and is the end."""
        if self.following is None and self.file_bytes - position <= self._largest_write(position, offset):
            return None
        most = min(self.file_bytes, position + 4 * self._largest_write(position, offset))
        found = _find_batch(self.fs, self.chunk.log_path, position + 1, most, self.file_bytes, offset)
        if found is None:
            return None
        at, header = found
        self.report(
            "durable data damaged",
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
                "append group without end cut", path=self.chunk.log_path, first=self.group.offset, last=offset - 1
            )
            position, offset = self.group.position, self.group.offset
            self.builder.max_timestamp = self.group.max_timestamp
            del self.entries[self.group.entries :]
        if position < self.file_bytes and self.following is None:
            self.report(
                "torn end cut", path=self.chunk.log_path, from_offset=offset, cut_bytes=self.file_bytes - position
            )
        self.chunk.size_bytes, self.chunk.next_offset = position, offset
        self.chunk.max_timestamp = self.builder.max_timestamp


def _find_batch(
    fs: FileSystem, path: str, start: int, stop: int, end: int, after_offset: int
) -> tuple[int, BatchHeader] | None:
    """The first intact batch that starts from `start` to `stop` and whose base offset is behind `after_offset`; the
    file ends at `end`. Slow.
    """
    for window_at in range(start, stop, WINDOW_BYTES):
        window = fs.read(path, window_at, min(WINDOW_BYTES + HEADER_BYTES, end - window_at))
        at = window.find(b"\x02", MAGIC_OFFSET, WINDOW_BYTES + MAGIC_OFFSET)
        while at >= 0:
            position = window_at + at - MAGIC_OFFSET
            header = _batch_at(fs, path, position, end, memoryview(window)[at - MAGIC_OFFSET :], after_offset)
            if header is not None:
                return position, header
            at = window.find(b"\x02", at + 1, WINDOW_BYTES + MAGIC_OFFSET)
    return None


def _batch_at(
    fs: FileSystem, path: str, position: int, end: int, data: memoryview, after_offset: int
) -> BatchHeader | None:
    """The header of the intact batch at `position`, of which `data` has the beginning; None if there is none."""
    try:
        header = parse_header(data)
        # Whatever stands in records may look like a header; few of them are worth a read. How far ahead its offset is
        # says nothing: compressed, a batch may have more records than bytes.
        if header.partition_leader_epoch != LEADER_EPOCH or header.last_offset_delta < 0:
            return None
        if header.base_offset <= after_offset or header.size_bytes > min(end - position, MAX_APPEND_BYTES):
            return None
        whole = data if header.size_bytes <= len(data) else memoryview(fs.read(path, position, header.size_bytes))
        return check_batch(whole)
    except (CorruptBatch, UnsupportedBatchFormat):
        return None


def _recover_producers(fs: FileSystem, chunks: list[Chunk], now_ms: int, report: Report) -> ProducerTable[AppendTicket]:
    """The newest snapshot that holds, and the headers of all batches behind it."""
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
        report("producer snapshots rebuilt", directory=chunks[0].directory)
    for chunk in chunks[start:]:
        for header in _headers(fs, chunk, position):
            if header.producer_id >= 0:
                table.synced(header, header.base_offset, now_ms)
        position = 0
    last = chunks[-1]
    if not fs.exists(last.producers_path):
        fs.create(last.producers_path)
    elif fs.size(last.producers_path) > last.producers_bytes:
        fs.truncate(last.producers_path, last.producers_bytes)
    return table


def _headers(fs: FileSystem, chunk: Chunk, position: int) -> list[BatchHeader]:
    """Headers of a chunk's batches from `position` on; a damaged one ends them."""
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

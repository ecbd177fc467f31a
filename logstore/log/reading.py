"""Catch-up reads: read chunk files in large pieces and check every batch before it is served.

Invariants:
* Reads return whole batches that pass `check_batch`; damage raises CorruptChunk with the offsets that are lost.
* Control batches are replaced by empty batches over the same offsets unless the reader asks for them.
* Runs on reader threads: reads chunks through immutable views and does not touch the streams.
"""

from collections.abc import Iterator
from typing import NamedTuple

from logstore.errors import CorruptBatch, CorruptChunk, UnsupportedBatchFormat
from logstore.format.batch import (
    HEADER_BYTES,
    LEADER_EPOCH,
    BatchHeader,
    check_batch,
    empty_batch,
    intact_run,
    parse_header,
)
from logstore.format.compression import open_records
from logstore.format.control import known_type
from logstore.format.index import IndexEntry
from logstore.format.records import iterate_times
from logstore.interfaces import Buffer, FileSystem
from logstore.log.chunks import ChunkView, IndexBuilder, IndexCache, SparseIndex

READ_BYTES = 256 * 1024
"""Smallest request of a catch-up read to the disk (CEC paper, section II.B)."""
SEEK_READ_BYTES = 32 * 1024
"""Size of a look-up's reads: about one index interval."""
WINDOW_LIMIT_BYTES = 4 << 20
"""Largest piece that is read from a file at a time, however much a reader asks for, unless one batch is larger."""
WALK_LIMIT_BYTES = 16 << 20
"""A read that hides control batches ends at the latest after it has walked this many bytes."""
MAX_OPENED_BYTES = 64 << 20
"""A look-up decompresses at most this much: memory stays bounded whatever a batch of a few KiB claims to hold."""


class ReadResult(NamedTuple):
    """Batches, the offset after the last of them, and their size."""

    buffers: list[Buffer]
    next_offset: int
    size_bytes: int


class FoundBatch(NamedTuple):
    """A checked batch, or a run of them, and its place in the piece of the file that was read.

    A run has the header of its first batch; `next_offset` is the offset after its last.
    """

    position: int
    header: BatchHeader
    buffer: memoryview
    window: memoryview
    window_at: int
    next_offset: int


def read_chunk(
    fs: FileSystem, cache: IndexCache, view: ChunkView, offset: int, max_bytes: int, *, include_control: bool
) -> ReadResult:
    """Batches of one chunk, starting with the one that holds `offset`: at least one, up to `max_bytes`.

    Raises CorruptChunk if damage leaves no batch to return; otherwise returns the batches before the damage.
    """
    start = load_index(fs, cache, view).position_of(offset)
    buffers: list[Buffer] = []
    size = run_bytes = walked_bytes = 0
    run: FoundBatch | None = None
    next_offset = offset
    try:
        window_bytes = max(READ_BYTES, min(max_bytes, WINDOW_LIMIT_BYTES))
        for found in walk_batches(fs, view, start, offset, window_bytes, run_bytes=max_bytes):
            if buffers and size + len(found.buffer) > max_bytes:
                break
            if found.header.is_control and not include_control:
                buffers.append(empty_batch(found.header))
                run = None
                size += HEADER_BYTES
            else:
                # Adjacent batches are returned as one buffer: less to join and to send.
                if run is None or run.window is not found.window:
                    run, run_bytes = found, 0
                    buffers.append(found.buffer)
                run_bytes += len(found.buffer)
                buffers[-1] = run.window[run.window_at : run.window_at + run_bytes]
                size += len(found.buffer)
            next_offset = found.next_offset
            walked_bytes += len(found.buffer)
            if size >= max_bytes or walked_bytes >= max(max_bytes, WALK_LIMIT_BYTES):
                break
    except CorruptChunk:
        if not buffers:
            raise
    return ReadResult(buffers, next_offset, size)


def load_index(fs: FileSystem, cache: IndexCache, view: ChunkView) -> SparseIndex:
    """The index of a chunk; a lost or damaged index is rebuilt from the chunk, up to the first damage."""
    index = cache.load(fs, view)
    if index is None:
        index = SparseIndex()
        builder, entries = IndexBuilder(), list[IndexEntry]()
        position, due = 0, view.base_offset
        try:
            for found in walk_batches(fs, view, None, view.base_offset, READ_BYTES):
                kind = known_type(found.buffer) if found.header.is_control else 0
                builder.note(found.header, found.header.base_offset, found.position, entries, kind)
                position, due = found.position + len(found.buffer), found.header.next_offset
        except CorruptChunk:
            # The batches before the damage are indexed; a read of the damage itself raises.
            builder.note_damage(due, position, entries)
        index.add(entries)
        cache.keep(view, index)
    return index


def walk_batches(
    fs: FileSystem,
    view: ChunkView,
    start: tuple[int, int] | None,
    offset: int,
    window_bytes: int,
    *,
    run_bytes: int = 0,
) -> Iterator[FoundBatch]:
    """Checked batches from `start` (position, base offset; None: the chunk's first) on that end after `offset`.

    Batches before `offset` are skipped: only their headers are checked. Each batch must start where the previous one
    ended, because the checksum does not cover base offset and leader epoch. With `run_bytes`, batches without control
    records come in runs, as long as all that was found together has at most that many bytes.
    """
    position, due = start or (0, view.base_offset)
    window = memoryview(b"")
    window_at = position
    while position < view.size_bytes:
        need = HEADER_BYTES
        available = window_at + len(window) - position
        if available >= HEADER_BYTES:
            header = _header(view, window, position - window_at, due, offset)
            need = header.size_bytes
            if available >= need:
                due = header.next_offset
                if due > offset:
                    at = position - window_at
                    end = at + need
                    _check(view, window, at, header, offset)
                    run_bytes -= need
                    if run_bytes > 0 and not header.is_control:
                        limit = min(len(window), end + run_bytes)
                        end, due = intact_run(window, end, limit, due, view.next_offset)
                        run_bytes -= end - at - need
                    yield FoundBatch(position, header, window[at:end], window, at, due)
                    need = end - at
                position += need
                continue
        length = min(max(window_bytes, need), view.size_bytes - position)
        window = memoryview(fs.read(view.log_path, position, length, drop_cache=view.is_cold))
        window_at = position
        if len(window) < min(need, length) or length < need:
            raise _corrupt(view, offset, "the file ends inside a batch")
    if due <= offset < view.next_offset:
        raise _corrupt(view, offset, f"its batches end at offset {due}")


def _header(view: ChunkView, window: memoryview, at: int, due: int, offset: int) -> BatchHeader:
    try:
        header = parse_header(window, at)
    except (CorruptBatch, UnsupportedBatchFormat) as error:
        raise _corrupt(view, offset, str(error)) from error
    is_in_place = header.base_offset == due and header.partition_leader_epoch == LEADER_EPOCH
    if not is_in_place or not due < header.next_offset <= view.next_offset:
        raise _corrupt(view, offset, f"base offset {header.base_offset} stands where {due} is due")
    return header


def _check(view: ChunkView, window: memoryview, at: int, header: BatchHeader, offset: int) -> None:
    try:
        check_batch(window, at)
    except CorruptBatch as error:
        raise _corrupt(view, max(offset, header.base_offset), str(error)) from error


def _corrupt(view: ChunkView, offset: int, why: str) -> CorruptChunk:
    return damaged(view, offset, view.next_offset - 1, why)


def damaged(view: ChunkView, first_offset: int, last_offset: int, why: str) -> CorruptChunk:
    """The error for a damaged place in a chunk: at most these offsets are lost."""
    return CorruptChunk(
        f"{view.log_path}: durable data is damaged ({why}); offsets {first_offset} to at most {last_offset} cannot "
        "be read; restore the chunk from a copy, or move past it",
        first_offset=first_offset,
        last_offset=last_offset,
    )


class TimeFound(NamedTuple):
    """A record found by its time. `exact`: the record itself was read. Otherwise its batch could not be decompressed
    far enough: `offset` is at or before the record, and `timestamp` (ms) is the latest in its batch.
    """

    offset: int
    timestamp: int
    exact: bool = True


def find_timestamp(
    fs: FileSystem, cache: IndexCache, view: ChunkView, timestamp_ms: int, from_offset: int
) -> TimeFound | None:
    """The chunk's first record at or after `from_offset` with this timestamp or a later one.

    Trusts the latest timestamp in a batch's header; decompresses compressed batches. Raises CorruptChunk.
    """
    start = load_index(fs, cache, view).position_before_timestamp(timestamp_ms)
    for found in walk_batches(fs, view, start, from_offset, SEEK_READ_BYTES):
        if not found.header.is_control and found.header.max_timestamp >= timestamp_ms:
            for moment in _times(found, from_offset):
                if moment.timestamp >= timestamp_ms:
                    return moment
    return None


def find_newest(fs: FileSystem, cache: IndexCache, view: ChunkView, from_offset: int) -> TimeFound | None:
    """The chunk's record at or after `from_offset` with the latest timestamp; the first if several have it.

    Raises CorruptChunk.
    """
    newest = find_timestamp(fs, cache, view, view.max_timestamp, from_offset)
    if newest is not None:
        return newest
    # The chunk's latest record is before `from_offset`.
    start = load_index(fs, cache, view).position_of(from_offset)
    for found in walk_batches(fs, view, start, from_offset, READ_BYTES):
        if not found.header.is_control and (newest is None or found.header.max_timestamp > newest.timestamp):
            for moment in _times(found, from_offset):
                if newest is None or moment.timestamp > newest.timestamp:
                    newest = moment
    return newest


def _times(found: FoundBatch, from_offset: int) -> Iterator[TimeFound]:
    """The times of a batch's records at or after `from_offset`, in order. Where the batch cannot be decompressed
    further, the last result is not exact.
    """
    header = found.header
    offset = header.base_offset
    try:
        opened = open_records(found.buffer[HEADER_BYTES:], header.compression, MAX_OPENED_BYTES)
        for offset, timestamp in iterate_times(opened, header):
            if offset >= from_offset:
                yield TimeFound(offset, timestamp)
            offset += 1
    except CorruptBatch:
        yield TimeFound(max(offset, from_offset), header.max_timestamp, exact=False)

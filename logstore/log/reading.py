"""Catch-up reads: from chunk files, in large pieces, every batch checked before it is served.

Invariants:
* What is returned is whole batches that pass `check_batch`; damage raises CorruptChunk with the offsets that are lost.
* Control batches are replaced by empty batches over the same offsets unless the reader asks for them.
* Runs on reader threads: it sees chunks through unchanging views, and touches nothing of the streams.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logstore.errors import CorruptBatch, CorruptChunk, UnsupportedBatchFormat
from logstore.format.batch import (
    COMPRESSION_MASK,
    HEADER,
    HEADER_BYTES,
    LEADER_EPOCH,
    BatchHeader,
    check_batch,
    empty_batch,
    parse_header,
    seal_batch,
)
from logstore.format.control import known_type
from logstore.format.index import IndexEntry
from logstore.format.records import Record, decode_batch, iterate_times
from logstore.interfaces import Buffer, FileSystem
from logstore.log.chunks import ChunkView, IndexBuilder, IndexCache, SparseIndex

READ_BYTES = 256 * 1024
"""A catch-up read never asks the disk for less (CEC paper, section II.B)."""
SEEK_READ_BYTES = 32 * 1024
"""A look-up reads about one index interval."""
WINDOW_LIMIT_BYTES = 4 << 20
"""One read never holds more than this, however much a reader asks for."""
WALK_LIMIT_BYTES = 16 << 20
"""A reader who does not see control batches is answered at the latest when it has passed so much of them."""
MAX_INFLATED_BYTES = 64 << 20
"""A gzip batch that opens to more is not opened."""
_GZIP = 1


class ReadResult(NamedTuple):
    """Batches, the offset behind the last of them, and their size."""

    buffers: list[Buffer]
    next_offset: int
    size_bytes: int


class _Found(NamedTuple):
    """A checked batch, and where it stands in the piece of the file that was read."""

    position: int
    header: BatchHeader
    buffer: memoryview
    window: memoryview
    window_at: int


def read_chunk(
    fs: FileSystem, cache: IndexCache, view: ChunkView, offset: int, max_bytes: int, *, include_control: bool
) -> ReadResult:
    """Batches of one chunk from the one that holds `offset` on: at least one, up to `max_bytes`.

    Raises CorruptChunk if a batch among them is damaged and nothing good stands before it.
    """
    start = load_index(fs, cache, view).position_of(offset)
    buffers: list[Buffer] = []
    size = run_bytes = walked_bytes = 0
    run: _Found | None = None
    next_offset = offset
    try:
        for found in _walk(fs, view, start, offset, max(READ_BYTES, min(max_bytes, WINDOW_LIMIT_BYTES))):
            if buffers and size + len(found.buffer) > max_bytes:
                break
            if found.header.is_control and not include_control:
                buffers.append(empty_batch(found.header))
                run = None
                size += HEADER_BYTES
            else:
                # Neighbours leave as one buffer: less to join and to send.
                if run is None or run.window is not found.window:
                    run, run_bytes = found, 0
                    buffers.append(found.buffer)
                run_bytes += len(found.buffer)
                buffers[-1] = run.window[run.window_at : run.window_at + run_bytes]
                size += len(found.buffer)
            next_offset = found.header.next_offset
            walked_bytes += len(found.buffer)
            if size >= max_bytes or walked_bytes >= max(max_bytes, WALK_LIMIT_BYTES):
                break
    except CorruptChunk:
        if not buffers:
            raise
    return ReadResult(buffers, next_offset, size)


def load_index(fs: FileSystem, cache: IndexCache, view: ChunkView) -> SparseIndex:
    """The index of a chunk; a lost or damaged one is made again from the chunk, as far as that holds."""
    index = cache.load(fs, view)
    if index is None:
        index = SparseIndex()
        builder, entries = IndexBuilder(), list[IndexEntry]()
        position, due = 0, view.base_offset
        try:
            for found in _walk(fs, view, None, view.base_offset, READ_BYTES):
                kind = known_type(found.buffer) if found.header.is_control else 0
                builder.note(found.header, found.header.base_offset, found.position, entries, kind)
                position, due = found.position + len(found.buffer), found.header.next_offset
        except CorruptChunk:
            # What stands in front of the damage is indexed; who reads the damage is told.
            builder.note_damage(due, position, entries)
        index.add(entries)
        cache.keep(view.index_path, index)
    return index


def _walk(
    fs: FileSystem, view: ChunkView, start: tuple[int, int] | None, offset: int, window_bytes: int
) -> Iterator[_Found]:
    """Checked batches from `start` (position, base offset; None: the chunk's first) on that end behind `offset`.

    Those in front of it are skipped with a look at their headers only. Each batch must start where the one before it
    ended: the base offset and the leader epoch are outside the checksum.
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
                if header.next_offset > offset:
                    at = position - window_at
                    yield _Found(position, *_checked(view, window, at, header, offset), window, at)
                position += need
                due = header.next_offset
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


def _checked(
    view: ChunkView, window: memoryview, at: int, header: BatchHeader, offset: int
) -> tuple[BatchHeader, memoryview]:
    try:
        check_batch(window, at)
    except CorruptBatch as error:
        raise _corrupt(view, max(offset, header.base_offset), str(error)) from error
    return header, window[at : at + header.size_bytes]


def _corrupt(view: ChunkView, offset: int, why: str) -> CorruptChunk:
    return damaged(view, offset, view.next_offset - 1, why)


def damaged(view: ChunkView, first_offset: int, last_offset: int, why: str) -> CorruptChunk:
    """The error for a place in a chunk that does not hold: these offsets, at most, are lost."""
    return CorruptChunk(
        f"{view.log_path}: durable data is damaged ({why}); offsets {first_offset} to at most {last_offset} cannot "
        "be read; restore the chunk from a copy, or move past it",
        first_offset=first_offset,
        last_offset=last_offset,
    )


def find_timestamp(
    fs: FileSystem, cache: IndexCache, view: ChunkView, timestamp_ms: int, from_offset: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the chunk's first record at or behind `from_offset` with that timestamp or a later one.

    A compressed batch that cannot be opened here (snappy, lz4, zstd) answers with its first offset: early, never late.
    Raises CorruptChunk.
    """
    start = load_index(fs, cache, view).position_before_timestamp(timestamp_ms)
    for found in _walk(fs, view, start, from_offset, SEEK_READ_BYTES):
        if found.header.is_control or found.header.max_timestamp < timestamp_ms:
            continue
        for offset, found_ms in _times(found):
            if found_ms >= timestamp_ms and offset >= from_offset:
                return offset, found_ms
    return None


def _times(found: _Found) -> Iterable[tuple[int, int]]:
    """Offsets and timestamps of a batch's records, as far as it can be opened."""
    header = found.header
    if header.compression == 0:
        return iterate_times(found.buffer, header)
    if header.compression == _GZIP:
        opened = _open_gzip(found.buffer, header)
        if opened is not None:
            return [(record.offset, record.timestamp) for record in opened]
    return [(header.base_offset, max(header.base_timestamp, header.max_timestamp))]


def _open_gzip(batch: memoryview, header: BatchHeader) -> list[Record] | None:
    """The records of a gzip batch, or None if it does not open within a bound."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        body = inflater.decompress(batch[HEADER_BYTES:], MAX_INFLATED_BYTES)
    except zlib.error:
        return None
    if inflater.unconsumed_tail:
        return None
    plain = header._replace(attributes=header.attributes & ~COMPRESSION_MASK)
    try:
        return decode_batch(seal_batch(bytearray(HEADER.pack(*plain)) + body))
    except CorruptBatch:
        return None

"""Catch-up reads: read chunk files in large pieces and check every batch before it is served.

Invariants:
* Reads return whole batches that pass `check_batch`; damage raises CorruptChunk with the offsets that are lost.
* Control batches are replaced by empty batches over the same offsets unless the reader asks for them.
* What a read gives keeps at most KEPT_TIMES its bytes in memory, however much of the file was read (`compact`).
* Reads chunks through immutable views and does not touch the streams, so it may run on reader threads. On the event
  loop it runs with `CachedFiles` and within the limits of a quick read; the code, and so the result, is the same.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from logstore.errors import CorruptBatch, CorruptChunk, UnsupportedBatchFormat
from logstore.format.batch import (
    HEADER_BYTES,
    BatchHeader,
    check_batch,
    empty_batch,
    intact_run,
    parse_header,
)
from logstore.format.compression import open_records
from logstore.format.control import known_type
from logstore.format.index import IndexEntry
from logstore.format.records import first_since, iterate_times
from logstore.format.snapshot import BLOCK
from logstore.interfaces import Buffer, FileSystem, ReadableFiles
from logstore.log.chunks import ChunkView, IndexBuilder, IndexCache, SparseIndex
from logstore.log.tail import TailEntry

READ_BYTES = 256 * 1024
"""Smallest request of a catch-up read to the disk: the size in which the CEC paper (section II.B) reads a log back to
construct an EC; of catch-up reads it names none.
"""
SEEK_READ_BYTES = 32 * 1024
"""Size of a look-up's reads: about one index interval."""
WINDOW_LIMIT_BYTES = 4 << 20
"""Largest piece that is read from a file at a time, however much a reader asks for, unless one batch is larger."""
WALK_LIMIT_BYTES = 16 << 20
"""A read that hides control batches ends at the latest after it has walked this many bytes."""
KEPT_TIMES = 4
"""A reader that asks for less than a piece at a time pays for each copy: with two, up to as much as for the read."""
MANY_BATCHES = 1 << 30
"""No limit on the batches of a read: its bytes limit them."""
QUICK_READ_BYTES = 1 << 20
QUICK_READ_BATCHES = 400
"""A read on the event loop takes at most so many bytes, and checks at most so many batches: half a millisecond."""
QUICK_LOOK_UP_BYTES = 256 * 1024
QUICK_LOOK_UP_RECORDS = 500
"""The same for a look-up: one usual batch behind one index interval, and the records of one batch."""
MAX_OPENED_BYTES = 64 << 20
"""A look-up decompresses at most this much: memory stays bounded whatever a batch of a few KiB claims to hold."""


class NotQuick(Exception):
    """A read on the event loop would have to wait for the disk, or would take long: it is made on a thread instead."""


class CachedFiles:
    """`ReadableFiles` for one read on the event loop: gives what is in memory, `limit_bytes` at most.

    Any other call raises NotQuick; so an index that is not in memory is loaded on a thread.
    """

    def __init__(self, fs: FileSystem, limit_bytes: int) -> None:
        self._fs = fs
        self._left_bytes = limit_bytes

    def exists(self, path: str) -> bool:
        """See ReadableFiles."""
        raise NotQuick(path)

    def size(self, path: str) -> int:
        """See ReadableFiles."""
        raise NotQuick(path)

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> Buffer:
        """See ReadableFiles."""
        self._left_bytes -= length
        data = None if drop_cache or self._left_bytes < 0 else self._fs.read_cached(path, position, length)
        if data is None:
            raise NotQuick(path)
        return data


class ReadResult(NamedTuple):
    """Batches, the offset after the last of them, and their size."""

    buffers: list[Buffer]
    next_offset: int
    size_bytes: int


class FoundBatch(NamedTuple):
    """A checked batch, or a run of them, and its place in the piece of the file that was read.

    A run has the header of its first batch; `next_offset` is the offset after the last of its `batches` batches.
    """

    position: int
    header: BatchHeader
    buffer: memoryview
    window: memoryview
    window_at: int
    next_offset: int
    batches: int = 1


def read_chunk(
    fs: ReadableFiles,
    cache: IndexCache,
    view: ChunkView,
    offset: int,
    max_bytes: int,
    *,
    include_control: bool,
    max_batches: int = MANY_BATCHES,
) -> ReadResult:
    """Batches of one chunk, starting with the one that holds `offset`: at least one, up to `max_bytes`.

    It ends early once it has walked `max_batches` (the run that reaches the number is whole).

    Raises CorruptChunk if damage leaves no batch to return; otherwise returns the batches before the damage.
    """
    start = load_index(fs, cache, view).position_of(offset)
    buffers: list[Buffer] = []
    size = run_bytes = walked_bytes = walked = 0
    run: FoundBatch | None = None
    next_offset = offset

    def fits(header: BatchHeader) -> bool:
        return not buffers or size + header.size_bytes <= max_bytes

    try:
        limits = RunLimits(max_bytes, max_batches, fits)
        window_bytes = max(READ_BYTES, min(max_bytes, WINDOW_LIMIT_BYTES))
        for found in walk_batches(fs, view, start, offset, window_bytes, runs=limits):
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
            walked += found.batches
            if size >= max_bytes or walked_bytes >= max(max_bytes, WALK_LIMIT_BYTES) or walked >= max_batches:
                break
    except CorruptChunk:
        if not buffers:
            raise
    return compact(ReadResult(buffers, next_offset, size))


def compact(result: ReadResult) -> ReadResult:
    """The result in memory of its own if it keeps more than KEPT_TIMES as many bytes alive as it has: answers that wait
    for their clients, and pieces for their readers, are counted by what they have.
    """
    buffers = in_own_memory(result.buffers, result.size_bytes)
    return result if buffers is result.buffers else result._replace(buffers=buffers)


def in_own_memory(buffers: list[Buffer], counted_bytes: int) -> list[Buffer]:
    """The buffers, or one copy of them if they keep more than KEPT_TIMES the bytes alive that are counted for them."""
    if len(buffers) == 1:
        kept_bytes = memoryview(memoryview(buffers[0]).obj).nbytes
    else:
        owners = [memoryview(buffer).obj for buffer in buffers]
        kept_bytes = sum({id(owner): memoryview(owner).nbytes for owner in owners}.values())
    return buffers if kept_bytes <= KEPT_TIMES * counted_bytes else [b"".join(buffers)]


def load_index(fs: ReadableFiles, cache: IndexCache, view: ChunkView) -> SparseIndex:
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


class RunLimits(NamedTuple):
    """How a walk joins batches without control records into runs: as long as all that was found together has at most
    `max_bytes` bytes, and up to `max_batches` in one run. The walk ends, without an error, at a batch that is not
    wanted; that batch is not checked, and no more than its header is read for it.
    """

    max_bytes: int
    max_batches: int
    wanted: Callable[[BatchHeader], bool]


_NO_RUNS = RunLimits(0, 0, lambda header: True)


def walk_batches(
    fs: ReadableFiles,
    view: ChunkView,
    start: tuple[int, int] | None,
    offset: int,
    window_bytes: int,
    *,
    runs: RunLimits = _NO_RUNS,
) -> Iterator[FoundBatch]:
    """Checked batches from `start` (position, base offset; None: the chunk's first) on that end after `offset`.

    Batches before `offset` are skipped: only their headers are checked. Each batch must start where the previous one
    ended, because the checksum does not cover base offset and leader epoch.
    """
    position, due = start or (0, view.base_offset)
    run_bytes, has_control = runs.max_bytes, False
    window = memoryview(b"")
    window_at = position
    while position < view.size_bytes:
        need = HEADER_BYTES
        available = window_at + len(window) - position
        if available >= HEADER_BYTES:
            header = _header(view, window, position - window_at, due, offset)
            need = header.size_bytes
            if header.next_offset > offset and not runs.wanted(header):
                return
            if available >= need:
                due = header.next_offset
                if due > offset:
                    at = position - window_at
                    end = at + need
                    _check(view, window, at, header, offset)
                    run_bytes -= need
                    has_control = has_control or header.is_control
                    count = 0
                    if run_bytes > 0 and not header.is_control:
                        limit = min(len(window), end + run_bytes)
                        end, due, count = intact_run(
                            window, end, limit, due, view.next_offset, runs.max_batches, view.leader_epoch
                        )
                        run_bytes -= end - at - need
                    yield FoundBatch(position, header, window[at:end], window, at, due, 1 + count)
                    need = end - at
                position += need
                continue
        # What lies behind the wanted bytes is not needed. Control batches may not count: then their end is not known.
        most = window_bytes if has_control or run_bytes <= 0 else max(READ_BYTES, min(window_bytes, run_bytes))
        length = min(max(most, need), view.size_bytes - position)
        window = memoryview(fs.read(view.log_path, position, length, drop_cache=view.is_cold))
        window_at = position
        if len(window) < min(need, length) or length < need:
            raise _corrupt(view, offset, "the file ends within a batch")
    if due <= offset < view.next_offset:
        raise _corrupt(view, offset, f"its batches end at offset {due}")


def _header(view: ChunkView, window: memoryview, at: int, due: int, offset: int) -> BatchHeader:
    try:
        header = parse_header(window, at)
    except (CorruptBatch, UnsupportedBatchFormat) as error:
        raise _corrupt(view, offset, str(error)) from error
    is_in_place = header.base_offset == due and 0 <= header.partition_leader_epoch <= view.leader_epoch
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


def lost(name: str, first_offset: int, last_offset: int) -> CorruptChunk:
    """The error for records of a stream that are in no chunk any more."""
    return CorruptChunk(
        f"{name}: offsets {first_offset} to {last_offset} were lost; move past them or restore the chunk",
        first_offset=first_offset,
        last_offset=last_offset,
    )


def from_tail(entries: Sequence[TailEntry], offset: int, *, include_control: bool) -> ReadResult:
    """Batches from memory as a read gives them."""
    buffers: list[Buffer] = []
    size = 0
    for entry in entries:
        hidden = entry.is_control and not include_control
        buffer: Buffer = empty_batch(parse_header(entry.buffer)) if hidden else entry.buffer
        buffers.append(buffer)
        size += len(buffer)
    return ReadResult(buffers, entries[-1].next_offset if entries else offset, size)


class TimeFound(NamedTuple):
    """A record found by its time. `exact`: the record itself was read. Otherwise its batch could not be decompressed
    far enough: `offset` is at or before the record, and `timestamp` (ms) is the latest in its batch.
    """

    offset: int
    timestamp: int
    exact: bool = True

    @property
    def rank(self) -> tuple[int, int]:
        """A sort key: higher for a later timestamp, and for the lower offset of two equal timestamps."""
        return self.timestamp, -self.offset


def find_timestamp(
    fs: ReadableFiles,
    cache: IndexCache,
    view: ChunkView,
    timestamp_ms: int,
    from_offset: int,
    *,
    max_records: int | None = None,
) -> TimeFound | None:
    """The chunk's first record at or after `from_offset` with this timestamp or a later one.

    Trusts the latest timestamp in a batch's header; decompresses compressed batches. Raises CorruptChunk; with
    `max_records`, NotQuick at a batch that has more records, or is compressed.
    """
    index = load_index(fs, cache, view)
    start = index.position_before_timestamp(timestamp_ms)
    # The record is in front of the next entry: one piece holds it, unless batches are large.
    stretch_bytes = index.stretch_bytes(start, view.size_bytes)
    window_bytes = stretch_bytes if SEEK_READ_BYTES < stretch_bytes <= QUICK_LOOK_UP_BYTES else SEEK_READ_BYTES
    for found in walk_batches(fs, view, start, from_offset, window_bytes):
        header = found.header
        if not header.is_control and header.max_timestamp >= timestamp_ms:
            if max_records is not None and (header.compression or header.record_count > max_records):
                raise NotQuick(view.log_path)
            moment = first_moment(header, found.buffer, timestamp_ms, from_offset)
            if moment is not None:
                return moment
    return None


def first_moment(header: BatchHeader, batch: memoryview, timestamp_ms: int, from_offset: int) -> TimeFound | None:
    """The first record of a checked batch at or after `from_offset` with this timestamp or a later one. A batch that
    cannot be decompressed as far as that gives one that is not exact, if its latest timestamp is as late.
    """
    try:
        opened = open_records(batch[HEADER_BYTES:], header.compression, MAX_OPENED_BYTES)
        first = first_since(opened, header, timestamp_ms, from_offset)
    except CorruptBatch:  # how far the batch can be read, the walk over all its records says
        times = batch_times(header, batch, from_offset)
        return next((moment for moment in times if moment.timestamp >= timestamp_ms), None)
    return None if first is None else TimeFound(*first)


def find_newest(fs: ReadableFiles, cache: IndexCache, view: ChunkView, from_offset: int) -> TimeFound | None:
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
            for moment in batch_times(found.header, found.buffer, from_offset):
                if newest is None or moment.timestamp > newest.timestamp:
                    newest = moment
    return newest


def batch_times(header: BatchHeader, batch: memoryview, from_offset: int) -> Iterator[TimeFound]:
    """The times of a checked batch's records at or after `from_offset`, in order. Where the batch cannot be
    decompressed further, the last result is not exact.
    """
    offset = header.base_offset
    try:
        opened = open_records(batch[HEADER_BYTES:], header.compression, MAX_OPENED_BYTES)
        for offset, timestamp in iterate_times(opened, header):
            if offset >= from_offset:
                yield TimeFound(offset, timestamp)
            offset += 1
    except CorruptBatch:
        yield TimeFound(max(offset, from_offset), header.max_timestamp, exact=False)


def founding_block(files: FileSystem, path: str) -> bytes:
    """The first block of producers' state in a file, as long as its head says, and no longer than the file: a head that
    is damaged may claim four gigabytes, for which there may be no memory. Raises OSError.
    """
    head = files.read(path, 0, BLOCK.size)
    body_bytes = BLOCK.unpack(head)[6] if len(head) == BLOCK.size else 0
    return files.read(path, 0, min(BLOCK.size + body_bytes, files.size(path)))

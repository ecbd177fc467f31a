"""Scans of control batches backwards: newest first, found through the index, whatever data lies between them.

The cost depends on the control batches alone: the index has their places, types and ends, adjacent batches share one
read, and a read spans at most `GAP_BYTES` of other data between two of them.

Invariants:
* Scans return whole control batches that pass `check_batch`, at the offsets in the index. A damaged batch raises
  CorruptChunk with the offsets that are lost; no batch is left out silently.
* A batch whose type in the index is not one of the wanted types is not read: the index has its own checksums.
* Runs on reader threads: reads chunks through immutable views and does not touch the streams.

Source: CEC paper, section II.B ("Constructing an EC": the output queue is read backwards until all open windows are
found). The paper reads all of it; the index that leaves results out is ours.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from logstore.errors import CorruptBatch, CorruptChunk, UnsupportedBatchFormat
from logstore.format.batch import check_batch, iterate_batches
from logstore.format.control import END_TYPE, known_type
from logstore.interfaces import Buffer, ReadableFiles
from logstore.log.chunks import ChunkView, ControlPlace, IndexCache, SparseIndex
from logstore.log.reading import WINDOW_LIMIT_BYTES, damaged, load_index
from logstore.log.tail import StreamTail

GAP_BYTES = 16 * 1024
"""Reading up to this much other data costs less than a second read."""
JOIN_BELOW_BYTES = 16 * 1024
LOOK_BYTES = 16 << 20
"""Most bytes that one scan of a chunk reads, data between the control batches included, unless one batch is larger."""
ENDS_BYTES = 1 << 20
"""Control batches that one step of a search for ENDs takes."""
MAX_LOOKS = 50_000
"""Most control batches that one scan of a chunk, or of the tail, passes: then other requests get their turn."""


class ScanResult(NamedTuple):
    """Control batches, newest first, end to end in `buffers`; older ones start before `next_before`."""

    buffers: list[Buffer]
    next_before: int
    size_bytes: int


class ScanRange(NamedTuple):
    """The wanted control batches: base offset from `from_offset` up to, not including, `before_offset`, and one of
    `types` (empty: all types).
    """

    from_offset: int
    before_offset: int
    types: Collection[int]


def scan_chunk(
    fs: ReadableFiles, cache: IndexCache, view: ChunkView, wanted: ScanRange, max_bytes: int, *, at_least_one: bool
) -> ScanResult:
    """Control batches of one chunk, newest first, up to `max_bytes`; `at_least_one`: one batch even if it is larger.

    Raises CorruptChunk if the newest of them is damaged.
    """
    index = load_index(fs, cache, view)
    places, next_before = _choose(index, view, wanted, max_bytes, at_least_one=at_least_one)
    buffers: list[Buffer] = []
    size = 0
    try:
        for kind, buffer in _read(fs, view, places):
            # An index that an older Cairn wrote does not hold the types.
            if not wanted.types or kind in wanted.types:
                buffers.append(buffer)
                size += len(buffer)
    except CorruptChunk as error:
        if not buffers:
            raise
        next_before = error.first_offset + 1
    return ScanResult(_joined(buffers, size), next_before, size)


def _joined(buffers: list[Buffer], size: int) -> list[Buffer]:
    """The batches, copied into one buffer if copying small batches is cheaper than sending them one by one."""
    return [b"".join(buffers)] if len(buffers) > 1 and size < JOIN_BELOW_BYTES * len(buffers) else buffers


def _choose(
    index: SparseIndex, view: ChunkView, wanted: ScanRange, max_bytes: int, *, at_least_one: bool
) -> tuple[list[ControlPlace], int]:
    """The places to read, newest first, and the offset before which the scan continues."""
    places: list[ControlPlace] = []
    size = read_bytes = 0
    for looked, place in enumerate(index.controls_down(wanted.from_offset, wanted.before_offset, view)):
        if looked == MAX_LOOKS:
            return places, place.base_offset + 1
        if wanted.types and place.kind and place.kind not in wanted.types:
            continue
        extent = place.end - place.position
        gap = places[-1].position - place.end if places else 0
        size += extent
        read_bytes += extent + (gap if gap <= GAP_BYTES else 0)
        if (size > max_bytes and (places or not at_least_one)) or (read_bytes > LOOK_BYTES and places):
            return places, place.base_offset + 1
        places.append(place)
    return places, max(wanted.from_offset, view.base_offset)


def _read(fs: ReadableFiles, view: ChunkView, places: Sequence[ControlPlace]) -> Iterator[tuple[int, memoryview]]:
    """Types and bytes of the batches at these places (in falling order), with few and large reads."""
    at = 0
    while at < len(places):
        end, last = places[at].end, at + 1
        while last < len(places) and _joins(places[last - 1], places[last], end):
            last += 1
        start = places[last - 1].position
        window = memoryview(fs.read(view.log_path, start, end - start, drop_cache=view.is_cold))
        for place in places[at:last]:
            yield _checked(view, place, window, place.position - start)
        at = last


def _joins(newer: ControlPlace, older: ControlPlace, end: int) -> bool:
    """Whether the older batch is read with the newer one, in a read up to `end`."""
    return newer.position - older.end <= GAP_BYTES and end - older.position <= WINDOW_LIMIT_BYTES


def _checked(view: ChunkView, place: ControlPlace, window: memoryview, at: int) -> tuple[int, memoryview]:
    """Type and bytes of the batch at a place. Raises CorruptChunk."""
    last_offset = place.next_offset - 1
    try:
        header = check_batch(window, at)
    except (CorruptBatch, UnsupportedBatchFormat) as error:
        raise damaged(view, place.base_offset, last_offset, str(error)) from error
    batch = window[at : at + header.size_bytes]
    in_place = header.base_offset == place.base_offset and 0 <= header.partition_leader_epoch <= view.leader_epoch
    fits = header.size_bytes <= place.end - place.position and header.next_offset <= place.next_offset
    if not in_place or not fits or not header.is_control:
        why = f"the control batch at offset {place.base_offset} is not the one that the index knows"
        raise damaged(view, place.base_offset, last_offset, why)
    return place.kind or known_type(batch), batch


def scan_tail(tail: StreamTail, wanted: ScanRange, max_bytes: int) -> ScanResult | None:
    """Control batches from memory, newest first, at least one if any; None if the newest may be older than the tail."""
    start = tail.start_offset
    if start is None or start >= wanted.before_offset:
        return None
    buffers: list[Buffer] = []
    size = 0
    for looked, entry in enumerate(tail.controls()):
        if entry.base_offset < wanted.from_offset:
            break
        if looked == MAX_LOOKS:
            return ScanResult(_joined(buffers, size), entry.base_offset + 1, size)
        if entry.base_offset >= wanted.before_offset or (wanted.types and entry.kind not in wanted.types):
            continue
        if buffers and size + len(entry.buffer) > max_bytes:
            return ScanResult(_joined(buffers, size), entry.base_offset + 1, size)
        buffers.append(entry.buffer)
        size += len(entry.buffer)
    return ScanResult(_joined(buffers, size), max(start, wanted.from_offset), size)


TakeEnd = Callable[[int, bytes], None]
"""Takes an END control batch: its base offset and its bytes."""


class ScannedStream(Protocol):
    """A stream whose control batches are looked for."""

    high_watermark: int
    log_start_offset: int


async def find_ends(
    scan_controls: Callable[..., Awaitable[ScanResult]],
    stream: ScannedStream,
    from_offset: int,
    before_offset: int = -1,
    *,
    take: TakeEnd,
) -> None:
    """Give `take` a stream's END control batches at or after `from_offset`, and before `before_offset` (-1: the high
    watermark), newest first, by the scan of an engine. One piece of ENDS_BYTES is in memory at a time.
    """
    before = stream.high_watermark if before_offset == -1 else before_offset
    while before > max(from_offset, stream.log_start_offset):
        piece = await scan_controls(before, (END_TYPE,), ENDS_BYTES, from_offset=from_offset)
        whole = b"".join(piece.buffers)
        for at, head in sorted(iterate_batches(whole), key=lambda each: -each[1].base_offset):
            take(head.base_offset, whole[at : at + head.size_bytes])
        before = piece.next_before

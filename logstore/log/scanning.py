"""Control batches read backwards: newest first, by the index, whatever lies between them.

What is read follows the control batches alone: their places, types and ends come from the index, neighbours become one
read, and a read reaches over at most `GAP_BYTES` of other data between two of them.

Invariants:
* What is returned is whole control batches that pass `check_batch`, at the offsets that the index says. What does not
  hold raises CorruptChunk with the offsets that are lost; nothing is ever left out silently.
* A batch that the index says is of another type than asked for is not read: the index has its own checksums.
* Runs on reader threads: it sees chunks through unchanging views, and touches nothing of the streams.

Source: CEC paper, section III (the output queue is read backwards until all open windows are found).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from logstore.errors import CorruptBatch, CorruptChunk, UnsupportedBatchFormat
from logstore.format.batch import LEADER_EPOCH, check_batch
from logstore.format.control import known_type
from logstore.interfaces import Buffer, FileSystem
from logstore.log.chunks import ChunkView, ControlPlace, IndexCache, SparseIndex
from logstore.log.reading import WINDOW_LIMIT_BYTES, damaged, load_index
from logstore.log.tail import StreamTail

GAP_BYTES = 16 * 1024
"""Reading over so much other data costs less than a second read."""
JOIN_BELOW_BYTES = 16 * 1024
LOOK_BYTES = 16 << 20
"""What one look at a chunk reads at most, other data between the control batches included."""
MAX_LOOKS = 50_000
"""Control batches that one look at a chunk, or the tail, passes over at most: then others get their turn."""


class ScanResult(NamedTuple):
    """Control batches, newest first, end to end in `buffers`; what is older starts in front of `next_before`."""

    buffers: list[Buffer]
    next_before: int
    size_bytes: int


class ScanRange(NamedTuple):
    """Which control batches: those with a base offset of `from_offset` up to, not including, `before_offset`, of these
    types (none: all).
    """

    from_offset: int
    before_offset: int
    types: Collection[int]


def scan_chunk(
    fs: FileSystem, cache: IndexCache, view: ChunkView, wanted: ScanRange, max_bytes: int, *, at_least_one: bool
) -> ScanResult:
    """Control batches of one chunk, newest first: up to `max_bytes`, but one if that is asked for and there is one.

    Raises CorruptChunk if the newest of them is damaged.
    """
    index = load_index(fs, cache, view)
    places, next_before = _choose(index, view, wanted, max_bytes, at_least_one=at_least_one)
    buffers: list[Buffer] = []
    size = 0
    try:
        for kind, buffer in _read(fs, view, places):
            # The index of an older Cairn does not know the types.
            if not wanted.types or kind in wanted.types:
                buffers.append(buffer)
                size += len(buffer)
    except CorruptChunk as error:
        if not buffers:
            raise
        next_before = error.first_offset + 1
    return ScanResult(_joined(buffers, size), next_before, size)


def _joined(buffers: list[Buffer], size: int) -> list[Buffer]:
    """The same bytes in one buffer, if it is cheaper to copy small batches than to send them one by one."""
    return [b"".join(buffers)] if len(buffers) > 1 and size < JOIN_BELOW_BYTES * len(buffers) else buffers


def _choose(
    index: SparseIndex, view: ChunkView, wanted: ScanRange, max_bytes: int, *, at_least_one: bool
) -> tuple[list[ControlPlace], int]:
    """What to read, newest first, and in front of which offset to go on."""
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


def _read(fs: FileSystem, view: ChunkView, places: Sequence[ControlPlace]) -> Iterator[tuple[int, memoryview]]:
    """Types and bytes of the batches at these places, which fall; few and large reads."""
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
    in_place = header.base_offset == place.base_offset and header.partition_leader_epoch == LEADER_EPOCH
    fits = header.size_bytes <= place.end - place.position and header.next_offset <= place.next_offset
    if not in_place or not fits or not header.is_control:
        why = f"the control batch at offset {place.base_offset} is not the one that the index knows"
        raise damaged(view, place.base_offset, last_offset, why)
    return place.kind or known_type(batch), batch


def scan_tail(tail: StreamTail, wanted: ScanRange, max_bytes: int) -> ScanResult | None:
    """The same from memory, at least one if there is one; None if the newest may be older than the tail."""
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

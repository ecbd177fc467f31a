"""Chunks: the files of a stream, their sparse indexes, and the names of both.

Invariants:
* A chunk holds batches end to end; its name is its base offset. It is valid only up to the base offset of the next
  chunk.
* `size_bytes` and `next_offset` count synced, visible data only; bytes after them are not part of the chunk.
* A sealed chunk that is cleaned gets another content over the same offsets; `revision` counts these. A view of an older
  revision reads valid batches or raises CorruptChunk.
* A `SparseIndex` only grows, so a reader thread may search it while the loop's thread appends to it.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.format.batch import LEADER_EPOCH, BatchHeader
from logstore.format.index import (
    CONTROL_FLAG,
    NO_TIMESTAMP,
    TYPE_SHIFT,
    UNKNOWN_TIME,
    IndexBlock,
    IndexColumns,
    IndexEntry,
    decode_columns,
    encode_block,
)
from logstore.interfaces import ReadableFiles
from logstore.log.ticket import Ticket

OFFSET_DIGITS = 20
LOG_SUFFIX, INDEX_SUFFIX, PRODUCERS_SUFFIX = ".log", ".index", ".producers"
CLEANED_SUFFIX = ".cleaned"
"""Of a chunk's new content until it gets the chunk's name (`logstore.log.cleaning`)."""
INDEX_INTERVAL_BYTES = 16 * 1024
"""Data between two sparse entries: small enough that a seek reads little, large enough that 10 GiB need 20 MB of index.
"""
INDEX_CACHE_BYTES = 12 << 20
"""Indexes of sealed chunks in memory: at 24 bytes per entry they cover 8 GiB, and much more if batches are large."""
WRITE_BYTES = 1 << 20
"""Pending appends are joined into writes of about this size."""
WARM_BYTES = 1 << 30
"""The newest data of a stream, which several readers may read: the operating system may keep its pages cached."""
MAX_APPEND_BYTES = 96 << 20
"""Largest append, and so the largest batch, whatever the settings allow."""
MAX_WRITE_BYTES = 16 << 20
"""Largest single write, unless one batch alone is larger. More bytes than this from the start of a damaged batch on
prove that the batch had been synced, unless its header claims a larger size.
"""


def fits_one_write(parts: Sequence[bytearray], part: bytearray) -> bool:
    """Whether one write may take `part` after `parts`.

    A larger write that a power cut tears at its start looks like damage to synced data to recovery, which then keeps
    what follows the tear.
    """
    return not parts or sum(map(len, parts)) + len(part) <= MAX_WRITE_BYTES


def chunk_name(base_offset: int, suffix: str) -> str:
    """The file name of the chunk that starts at `base_offset`."""
    return f"{base_offset:0{OFFSET_DIGITS}d}{suffix}"


def parse_chunk_name(name: str) -> tuple[int, str] | None:
    """Base offset and suffix of a chunk's file name; None for any other name."""
    digits, suffix = name[:OFFSET_DIGITS], name[OFFSET_DIGITS:]
    if (
        len(digits) == OFFSET_DIGITS
        and digits.isdigit()
        and suffix in (LOG_SUFFIX, INDEX_SUFFIX, PRODUCERS_SUFFIX, CLEANED_SUFFIX)
    ):
        return int(digits), suffix
    return None


class ControlPlace(NamedTuple):
    """The place of a control batch. `end` and `next_offset` are those of the next entry, or of the chunk."""

    position: int
    base_offset: int
    kind: int
    end: int
    next_offset: int


class SparseIndex:
    """Positions of batches in one chunk: a sparse search table, and every control batch."""

    __slots__ = ("control_offsets", "control_positions", "control_types", "max_before", "offsets", "positions")

    def __init__(self, columns: IndexColumns | None = None) -> None:
        self.offsets = columns.offsets if columns else array("q")
        self.positions = columns.positions if columns else array("q")
        self.max_before = columns.max_before if columns else array("q")
        self.control_offsets = columns.control_offsets if columns else array("q")
        self.control_positions = columns.control_positions if columns else array("q")
        self.control_types = columns.control_types if columns else array("H")

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return 24 * len(self.offsets) + 18 * len(self.control_offsets)

    def add(self, entries: Sequence[IndexEntry]) -> None:
        """Append entries, in rising order of offset and position."""
        for entry in entries:
            # Offsets last: a reader on another thread searches them first, and must then find the other columns filled.
            if entry.flags & CONTROL_FLAG:
                self.control_types.append(entry.control_type)
                self.control_positions.append(entry.position)
                self.control_offsets.append(entry.base_offset)
            else:
                self.positions.append(entry.position)
                self.max_before.append(entry.max_timestamp_before)
                self.offsets.append(entry.base_offset)

    def position_of(self, offset: int) -> tuple[int, int] | None:
        """Position and base offset of a batch at or before the one that holds `offset`; None: the chunk's first."""
        at = bisect_right(self.offsets, offset) - 1
        plain = (self.positions[at], self.offsets[at]) if at >= 0 else None
        # A reader inside a long row of control batches must not walk through all of them again.
        at = bisect_right(self.control_offsets, offset) - 1
        control = (self.control_positions[at], self.control_offsets[at]) if at >= 0 else None
        return max(plain, control) if plain and control else plain or control

    def position_before_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Position and base offset of a batch before which no record has this timestamp or a later one."""
        at = bisect_left(self.max_before, timestamp_ms) - 1
        return (self.positions[at], self.offsets[at]) if at >= 0 else None

    def stretch_bytes(self, start: tuple[int, int] | None, size_bytes: int) -> int:
        """Bytes from a batch with an entry (None: the chunk's first) up to the next plain entry, or to the end of the
        chunk's `size_bytes`.
        """
        position = 0 if start is None else start[0]
        count = len(self.offsets)
        at = bisect_right(self.positions, position, hi=count)
        return (self.positions[at] if at < count else size_bytes) - position

    def controls_down(self, from_offset: int, before_offset: int, view: "ChunkView") -> Iterator[ControlPlace]:
        """The control batches from `from_offset` up to, not including, `before_offset`, newest first."""
        offsets, positions, plain = self.control_offsets, self.control_positions, self.positions
        low = bisect_left(offsets, from_offset)
        high = bisect_left(offsets, min(before_offset, view.next_offset), lo=low)
        end, next_offset = view.size_bytes, view.next_offset
        if high < len(offsets) and positions[high] < end:
            end, next_offset = positions[high], offsets[high]
        at = bisect_left(plain, end, hi=len(self.offsets))
        for number in range(high - 1, low - 1, -1):
            position, offset = positions[number], offsets[number]
            if at and plain[at - 1] > position:  # other data between this control batch and the next
                at = bisect_right(plain, position, hi=at)
                end, next_offset = plain[at], self.offsets[at]
            yield ControlPlace(position, offset, self.control_types[number], end, next_offset)
            end, next_offset = position, offset


class IndexBuilder:
    """Decides which batches get an index entry; each chunk that is being written or scanned has its own builder."""

    __slots__ = ("_last_position", "max_timestamp")

    def __init__(self, max_timestamp: int = NO_TIMESTAMP, last_position: int = -INDEX_INTERVAL_BYTES) -> None:
        self.max_timestamp = max_timestamp
        self._last_position = last_position

    def note(
        self, header: BatchHeader, base_offset: int, position: int, entries: list[IndexEntry], kind: int = 0
    ) -> None:
        """Take a batch into account; append its entry, if it gets one, to `entries`.

        `kind`: the type of a control batch's record, 0 if unknown.
        """
        if header.is_control:
            flags = CONTROL_FLAG | kind << TYPE_SHIFT
            entries.append(IndexEntry(base_offset, self.max_timestamp, position, header.crc, flags))
            self._last_position = position - INDEX_INTERVAL_BYTES  # the next entry shows where this batch ends
            return
        if position - self._last_position >= INDEX_INTERVAL_BYTES:
            entries.append(IndexEntry(base_offset, self.max_timestamp, position, header.crc, 0))
            self._last_position = position
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp

    def note_damage(self, base_offset: int, position: int, entries: list[IndexEntry]) -> None:
        """Take a damaged place into account; it may have been a control batch."""
        entries.append(IndexEntry(base_offset, self.max_timestamp, position, 0, CONTROL_FLAG))
        self._last_position = position - INDEX_INTERVAL_BYTES


@dataclass(slots=True)
class Chunk:
    """One chunk as the loop's thread sees it."""

    directory: str
    base_offset: int
    next_offset: int
    size_bytes: int = 0
    max_timestamp: int = NO_TIMESTAMP
    written_ms: int = UNKNOWN_TIME
    """The retention clock at the last append to the chunk (`logstore.log.retention`)."""
    opened_ms: int = UNKNOWN_TIME
    """The retention clock at the first append to the chunk, or a little later; of sealed chunks it may be unknown."""
    index: SparseIndex | None = field(default_factory=SparseIndex)
    """Kept in memory while the chunk is written; the index of a sealed chunk is loaded when a reader needs it."""
    index_bytes: int = 0
    producers_bytes: int = 0
    index_damaged: bool = False
    """A block could not be written; no more are written, so that the file never looks whole with entries missing."""
    revision: int = 0
    rewriting: Ticket[None] | None = None
    """Unsettled while the names of a cleaned chunk are exchanged: positions of the old content may not fit."""
    state_bytes: int | None = None
    """At most so many bytes are control records of state, those of `cleaned_for` not counted; None: not known."""
    cleaned_for: frozenset[str] = frozenset()
    """The queries whose control records of state are not in the chunk any more."""
    leader_epoch: int = LEADER_EPOCH
    """Of a replica: its batches have leader epochs up to this one."""

    @property
    def log_path(self) -> str:
        """Path of the batches."""
        return f"{self.directory}/{chunk_name(self.base_offset, LOG_SUFFIX)}"

    @property
    def index_path(self) -> str:
        """Path of the index."""
        return f"{self.directory}/{chunk_name(self.base_offset, INDEX_SUFFIX)}"

    @property
    def cleaned_path(self) -> str:
        """Path of the content that replaces the chunk's."""
        return f"{self.directory}/{chunk_name(self.base_offset, CLEANED_SUFFIX)}"

    @property
    def producers_path(self) -> str:
        """Path of the producer snapshots."""
        return f"{self.directory}/{chunk_name(self.base_offset, PRODUCERS_SUFFIX)}"

    def note_write(self, now_ms: int) -> None:
        """Note when the chunk was written, by the retention clock."""
        self.written_ms = now_ms
        if self.opened_ms == UNKNOWN_TIME and self.size_bytes:
            self.opened_ms = now_ms

    def seal(self) -> bytes:
        """The index block that says that nothing follows in the index."""
        return encode_block(IndexBlock(self.size_bytes, self.next_offset, self.max_timestamp, [], self.written_ms))

    def view(self, *, is_cold: bool = False) -> "ChunkView":
        """An immutable view of the chunk for a reader thread."""
        return ChunkView(
            self.log_path,
            self.index_path,
            self.base_offset,
            self.next_offset,
            self.size_bytes,
            self.max_timestamp,
            self.index,
            is_cold,
            self.revision,
            self.leader_epoch,
        )


@dataclass(frozen=True, slots=True)
class ChunkView:
    """A chunk as of one moment, safe to pass to another thread."""

    log_path: str
    index_path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp: int
    index: SparseIndex | None
    is_cold: bool = False
    """Far enough from the newest data that its pages are dropped after a read, so that they do not evict warm pages."""
    revision: int = 0
    leader_epoch: int = LEADER_EPOCH


def newest(chunks: Sequence[Chunk], is_wanted: Callable[[Chunk], bool]) -> ChunkView | None:
    """The newest chunk of a stream that is wanted, as of now; None if there is none."""
    newer_bytes = 0
    for chunk in reversed(chunks):
        if is_wanted(chunk):
            return chunk.view(is_cold=newer_bytes > WARM_BYTES)
        newer_bytes += chunk.size_bytes
    return None


class IndexCache:
    """Indexes of sealed chunks; evicts the least recently loaded. For reader threads; a lost race costs one load.

    An index belongs to one length of the chunk: cleaning makes it shorter.
    """

    def __init__(self, max_bytes: int = INDEX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._indexes: OrderedDict[tuple[str, int], SparseIndex] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """Approximate size of all indexes in memory."""
        return sum(kept.size_bytes for kept in list(self._indexes.values()))

    def load(self, fs: ReadableFiles, view: ChunkView) -> SparseIndex | None:
        """The index of a chunk, from memory or from its file; None if the file does not hold all of it."""
        if view.index is not None:
            return view.index
        index = self._indexes.get((view.index_path, view.size_bytes))
        if index is None and fs.exists(view.index_path):
            data = fs.read(view.index_path, 0, fs.size(view.index_path))
            columns = decode_columns(data)
            # Whole only if every block is intact and the last one seals the chunk: no control batch may be missing.
            if columns.end == len(data) and columns.durable_end == view.size_bytes and columns.is_sealed:
                index = SparseIndex(columns)
                self.keep(view, index)
        return index

    def keep(self, view: ChunkView, index: SparseIndex) -> None:
        """Keep an index; evict the least recently loaded ones if the cache exceeds its limit."""
        self._indexes[view.index_path, view.size_bytes] = index
        total = self.size_bytes
        while total > self._max_bytes and len(self._indexes) > 1:
            total -= self._indexes.popitem(last=False)[1].size_bytes

    def forget(self, index_path: str) -> None:
        """Drop an index whose file is being removed or changed."""
        for key in [key for key in list(self._indexes) if key[0] == index_path]:
            self._indexes.pop(key, None)

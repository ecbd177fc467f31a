"""Checks a chunk: every batch, the append groups, and the index.

A batch is intact by the same rules as in recovery: checksum, base offset, leader epoch. A batch that is not intact is
damage if it was proven durable: a later chunk exists, a valid index block covers the batch, or more bytes follow than
one write can have. After damage the check continues at the next intact batch.

Invariants: each byte is read once, except near damage. Memory is bounded by a window, and near damage and for a control
batch also by one batch.
"""

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptBatch, UnsupportedBatchFormat
from logstore.format.batch import (
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LEADER_EPOCH,
    LENGTH_OVERHEAD,
    MAGIC_OFFSET,
    BatchHeader,
    check_batch,
    parse_header,
)
from logstore.format.control import BEGIN_TYPE, END_TYPE, Begin, End, control_type, decode_control
from logstore.format.journal_block import JournalPart
from logstore.interfaces import FileSystem
from logstore.log import chunks
from logstore.log.chunks import INDEX_SUFFIX, LOG_SUFFIX, MAX_APPEND_BYTES, PRODUCERS_SUFFIX, chunk_name
from logstore.verify.derived import NEVER, IndexCheck, check_producers
from logstore.verify.findings import Findings
from logstore.verify.journal import ReplayedChunk
from logstore.verify.window import ChunkWindow, window_buffer

SEARCH_WINDOW_BYTES: Final = 4 << 20
"""Read at once where an intact batch is looked for."""
SEARCH_BYTES: Final = 64 << 20
"""How far behind damage the next intact batch is looked for, if no index says where it is: a whole default chunk."""
_EMPTY_LENGTH: Final = HEADER_BYTES - LENGTH_OVERHEAD
_FIELDS: Final = struct.Struct(">qiibIhi8xq14xi")
"""The fields of a batch's header that decide whether it is intact, and the latest time of its records."""


class ChunkPlace(NamedTuple):
    """A chunk to check: `following` is the base offset of the next one, None for a stream's last; `leader_epoch` the
    highest one that its batches may have.
    """

    directory: str
    base_offset: int
    following: int | None
    leader_epoch: int = LEADER_EPOCH

    def path(self, suffix: str) -> str:
        """The path of one of its files."""
        return f"{self.directory}/{chunk_name(self.base_offset, suffix)}"


class EndedEpoch(NamedTuple):
    """Which epoch an END says is there whole."""

    query: str
    epoch: int
    incarnation: int


@dataclass(slots=True)
class ChunkResult:
    """What a check of a chunk found: findings, where its offsets end, and the ENDs that were asked for."""

    findings: Findings = field(default_factory=Findings)
    next_offset: int = 0
    ends: set[EndedEpoch] = field(default_factory=set)


class _OpenGroup(NamedTuple):
    """An append group whose END has not come yet."""

    begin: Begin
    position: int
    offset: int
    body_position: int
    batches_before: int


def check_chunk(
    fs: FileSystem,
    place: ChunkPlace,
    *,
    is_live: bool = False,
    wanted: Collection[EndedEpoch] = (),
    journaled: Sequence[JournalPart] = (),
    progress: Callable[[int], None] = lambda _: None,
    buffer: memoryview | None = None,
) -> ChunkResult:
    """Check one chunk with its index and its producer snapshots.

    `is_live`: a sidecar may be writing it, so that its newest end proves nothing. `wanted`: ENDs to look out for.
    `journaled`: what the journal holds of the stream; a start would bring it into the stream's last chunk. `progress`
    is told the bytes of each piece that was read. `buffer`: of `window_buffer`, to be used again. Raises OSError,
    UnknownFormatVersion.
    """
    chunk_files = _ChunkFiles(fs, place, journaled)
    check = _ChunkCheck(chunk_files, is_live, wanted, progress, window_buffer() if buffer is None else buffer)
    check.run()
    check_producers(fs, place.path(PRODUCERS_SUFFIX), check.result.findings, is_live=is_live)
    return check.result


class _ChunkFiles(NamedTuple):
    """Where a chunk is, and what the journal holds of its stream."""

    fs: FileSystem
    place: ChunkPlace
    journaled: Sequence[JournalPart]


class _ChunkCheck:
    def __init__(
        self,
        files: _ChunkFiles,
        is_live: bool,
        wanted: Collection[EndedEpoch],
        progress: Callable[[int], None],
        buffer: memoryview,
    ) -> None:
        fs, place, journaled = files
        self._place = place
        self._is_live = is_live
        self._wanted = wanted
        self._progress = progress
        self.result = ChunkResult(next_offset=place.base_offset)
        self._findings = self.result.findings
        self._path = place.path(LOG_SUFFIX)
        # The index first: what is written meanwhile must not look as if the index were ahead of its chunk.
        self._index = IndexCheck(fs, place.path(INDEX_SUFFIX), self._findings)
        self._chunk = ReplayedChunk(fs, self._path, place.base_offset, self._index.durable_end, journaled)
        self._size_bytes = self._chunk.size_bytes
        self._window = ChunkWindow(self._chunk, buffer, self._note_read)
        self._group: _OpenGroup | None = None
        self._group_unknown = False
        self._batches = 0
        self._has_gaps = False

    def run(self) -> None:
        """Walk from the chunk's first batch to its last."""
        counts = self._findings.counts
        counts.chunks += 1
        counts.files += 1
        position, offset = self._walk(0, self._place.base_offset)
        while position < self._size_bytes and not self._is_over(offset):
            resumed = self._behind_damage(position, offset)
            if resumed is None:
                break
            self._group, self._group_unknown = None, True
            position, offset = self._walk(*resumed)
        counts.batches += self._batches
        self._finish(position, offset)

    def _is_over(self, offset: int) -> bool:
        return self._place.following is not None and offset >= self._place.following

    def _walk(self, position: int, offset: int) -> tuple[int, int]:
        """Check batches from here on; position and offset behind the last intact one."""
        while position < self._size_bytes and not self._is_over(offset):
            behind, next_offset = self._run(position, offset)
            if behind == position:
                behind, next_offset = self._single(position, offset)
            if behind == position:
                break
            position, offset = behind, next_offset
        self._index.at_batch(position, offset)
        return position, offset

    def _run(self, position: int, offset: int) -> tuple[int, int]:
        """Check plain batches as far as the window has them whole; what is out of the ordinary is left to `_single`.

        Small batches come by the hundred thousand: whatever need not be done for each of them is not.
        """
        window = self._window.bytes_at(position, HEADER_BYTES)
        index, unpack, checksum = self._index, _FIELDS.unpack_from, crc32c
        before_offset = NEVER if self._place.following is None else self._place.following
        at, end, last, batches = 0, len(window), len(window) - HEADER_BYTES, 0
        max_timestamp, next_event = index.max_timestamp, index.next_event - position
        leader_epoch = self._place.leader_epoch
        while at <= last and offset < before_offset:
            base, length, epoch, magic, crc, attributes, delta, max_ms, count = unpack(window, at)
            behind = at + length + LENGTH_OVERHEAD
            if base != offset or magic != 2 or length < _EMPTY_LENGTH or behind > end:
                break
            if epoch != leader_epoch and not 0 <= epoch < leader_epoch:
                break
            if attributes & CONTROL_BIT or not 0 < count <= delta + 1:
                break
            if checksum(window[at + CRC_START : behind]) != crc:
                break
            if at >= next_event:
                next_event = index.meet(position + at, offset, max_timestamp, crc) - position
            if max_ms > max_timestamp:
                max_timestamp = max_ms
            batches += 1
            at = behind
            offset += delta + 1
        index.max_timestamp = max_timestamp
        self._batches += batches
        return position + at, offset

    def _single(self, position: int, offset: int) -> tuple[int, int]:
        """Check a batch of any kind and size; position and offset behind it, the same as before if it is not intact."""
        window = self._window.bytes_at(position, HEADER_BYTES)
        if len(window) < HEADER_BYTES:
            return position, offset
        header = BatchHeader._make(HEADER.unpack_from(window))
        size_bytes, delta, count = header.size_bytes, header.last_offset_delta, header.record_count
        if (header.base_offset, header.magic) != (offset, 2):
            return position, offset
        if not 0 <= header.partition_leader_epoch <= self._place.leader_epoch:
            return position, offset
        if not HEADER_BYTES <= size_bytes <= min(self._size_bytes - position, MAX_APPEND_BYTES):
            return position, offset
        if not 0 <= count <= delta + 1:
            return position, offset
        if self._window.checksum(position + CRC_START, size_bytes - CRC_START) != header.crc:
            return position, offset
        index = self._index
        if position >= index.next_event:
            index.meet(position, offset, index.max_timestamp, header.crc)
        if header.is_control:
            self._control(memoryview(self._chunk.read(position, size_bytes)), position, offset)
        else:
            index.max_timestamp = max(index.max_timestamp, header.max_timestamp)
        if not count:
            self._has_gaps = True
        self._batches += 1
        return position + size_bytes, header.next_offset

    def _note_read(self, count: int) -> None:
        self._progress(count)
        self._findings.counts.bytes += count

    # ---- append groups

    def _control(self, batch: memoryview, position: int, offset: int) -> None:
        """Take a control batch, whose checksum is right, into account."""
        try:
            kind = control_type(batch)
            record = decode_control(batch) if kind in (BEGIN_TYPE, END_TYPE) else None
        except CorruptBatch as error:
            self._findings.damage(
                "control-record-damaged", self._path, str(error), position=position, lost=(offset, offset)
            )
            return
        self._index.control_at(position, offset, kind or 0)
        if isinstance(record, Begin):
            if self._group is not None:
                self._without_end(self._group, offset)
            self._group = _OpenGroup(record, position, offset, position + len(batch), self._batches)
            self._group_unknown = self._has_gaps = False
        elif isinstance(record, End):
            self._end(record, position, offset)

    def _end(self, end: End, position: int, offset: int) -> None:
        found = EndedEpoch(end.query, end.epoch, end.incarnation)
        if found in self._wanted:
            self.result.ends.add(found)
        group, self._group = self._group, None
        if group is None:
            if not self._group_unknown:
                self._findings.damage(
                    "end-without-begin",
                    self._path,
                    f"END of epoch {end.epoch} of query {end.query!r} without its BEGIN",
                    position=position,
                    lost=(offset, offset),
                )
            self._group_unknown = False
            return
        begin = group.begin
        if (begin.query, begin.epoch, begin.incarnation) != found:
            self._mismatch(group, offset, f"its END is that of epoch {end.epoch} of query {end.query!r}")
            return
        batches, size_bytes = self._batches - group.batches_before - 1, position - group.body_position
        # Cleaning puts one empty batch in place of several: then neither number is BEGIN's.
        if not self._has_gaps and (batches, size_bytes) != (begin.batch_count, begin.byte_count):
            self._mismatch(
                group,
                offset,
                f"it has {batches} batches with {size_bytes} bytes, BEGIN says {begin.batch_count} with "
                f"{begin.byte_count}",
            )

    def _mismatch(self, group: _OpenGroup, last_offset: int, why: str) -> None:
        what = f"group of epoch {group.begin.epoch} of query {group.begin.query!r}: {why}"
        lost = (group.offset, last_offset)
        self._findings.damage("group-mismatch", self._path, what, position=group.position, lost=lost)

    def _without_end(self, group: _OpenGroup, before_offset: int) -> None:
        what = f"group of epoch {group.begin.epoch} of query {group.begin.query!r} without END"
        lost = (group.offset, before_offset - 1)
        self._findings.damage("group-without-end", self._path, what, position=group.position, lost=lost)

    # ---- damage, or the end

    def _largest_write(self, position: int, offset: int) -> int:
        """The largest size in bytes that one write at `position` may have had."""
        try:
            header = parse_header(self._chunk.read(position, HEADER_BYTES))
        except (CorruptBatch, UnsupportedBatchFormat):
            return chunks.MAX_WRITE_BYTES
        is_large = header.base_offset == offset and header.size_bytes <= MAX_APPEND_BYTES
        return max(chunks.MAX_WRITE_BYTES, header.size_bytes) if is_large else chunks.MAX_WRITE_BYTES

    def _is_proven(self, position: int, offset: int) -> bool:
        return (
            self._place.following is not None
            or position < max(self._index.durable_end, self._chunk.journaled_end)
            or self._size_bytes - position > self._largest_write(position, offset)
        )

    def _behind_damage(self, position: int, offset: int) -> tuple[int, int] | None:
        """Report a batch that is not intact; where to go on, None: nowhere, or it may be a write that was under way."""
        if not self._is_proven(position, offset):
            return None
        found = self._find_batch(position + 1, offset)
        if found is None and position < self._index.durable_end < self._size_bytes:
            found = self._index.durable_end, self._index.next_offset
        last = found[1] - 1 if found else self._known_end(offset) - 1
        if found is None and last < offset:  # nothing is known to be behind it
            return None
        if found is None and self._size_bytes < self._index.durable_end:
            return None  # the file was cut here: reported as too short
        self._findings.damage(
            "batch-damaged",
            self._path,
            f"a batch does not match its checksum or its place; offsets {offset} to {last} are lost",
            position=position,
            lost=(offset, last),
        )
        self._index.skip(found[0] if found else self._size_bytes)
        return found if found else (self._size_bytes, last + 1)

    def _known_end(self, offset: int) -> int:
        """The offset behind the last one that is known to have been here."""
        return max(offset, self._place.following or 0, self._index.next_offset, self._chunk.known_offset)

    def _find_batch(self, start: int, after_offset: int) -> tuple[int, int] | None:
        """Position and base offset of the first intact batch behind damage."""
        last = self._place.following if self._place.following is not None else 1 << 63
        stop = min(self._size_bytes, start + max(SEARCH_BYTES, 4 * chunks.MAX_WRITE_BYTES))
        at = start
        while at < stop:
            window = self._chunk.read(at, min(SEARCH_WINDOW_BYTES + HEADER_BYTES, self._size_bytes - at))
            self._progress(0)
            found = window.find(b"\x02", MAGIC_OFFSET, SEARCH_WINDOW_BYTES + MAGIC_OFFSET)
            while found >= 0:
                position = at + found - MAGIC_OFFSET
                header = self._batch_at(position, memoryview(window)[found - MAGIC_OFFSET :])
                if header is not None and after_offset < header.base_offset < last:
                    return position, header.base_offset
                found = window.find(b"\x02", found + 1, SEARCH_WINDOW_BYTES + MAGIC_OFFSET)
            at += SEARCH_WINDOW_BYTES
        return None

    def _batch_at(self, position: int, data: memoryview) -> BatchHeader | None:
        """The header of the intact batch at `position`, whose first bytes are in `data`; None if there is none."""
        try:
            header = parse_header(data)
            if not 0 <= header.partition_leader_epoch <= self._place.leader_epoch or header.last_offset_delta < 0:
                return None
            if header.base_offset < 0 or header.size_bytes > min(self._size_bytes - position, MAX_APPEND_BYTES):
                return None
            whole = data if header.size_bytes <= len(data) else self._chunk.read(position, header.size_bytes)
            return check_batch(whole)
        except (CorruptBatch, UnsupportedBatchFormat):
            return None

    def _finish(self, position: int, offset: int) -> None:
        following, index, findings = self._place.following, self._index, self._findings
        self.result.next_offset = offset
        if offset < index.next_offset and self._size_bytes < index.durable_end:
            lost = (offset, index.next_offset - 1)
            findings.damage(
                "chunk-short",
                self._path,
                f"the file has {self._size_bytes} bytes, {index.durable_end} were synced; offsets {lost[0]} to "
                f"{lost[1]} are lost",
                position=self._size_bytes,
                lost=lost,
            )
            self.result.next_offset = offset = index.next_offset
        if following is not None and offset < following:
            lost = (offset, following - 1)
            what = f"offsets {lost[0]} to {lost[1]} are in no chunk: it ends before the next one begins"
            findings.damage("offsets-missing", self._path, what, position=position, lost=lost)
        if following is not None and offset > following:
            what = f"a batch reaches up to offset {offset - 1}, where the next chunk has begun at {following}"
            findings.damage("chunks-overlap", self._path, what, position=position, lost=(following, offset - 1))
        self._finish_group(position, offset)
        if following is None and position < self._size_bytes and not self._is_live:
            findings.note(
                "torn-end",
                self._path,
                f"{self._size_bytes - position} bytes behind offset {offset} are no whole batch: a write was under "
                "way, the next start cuts them",
                position=position,
            )
        index.finish(is_sealed=following is not None, is_live=self._is_live)

    def _finish_group(self, position: int, offset: int) -> None:
        group = self._group
        if group is None:
            return
        if self._place.following is not None or group.position < self._index.durable_end:
            self._without_end(group, offset)
        elif not self._is_live:
            self._findings.note(
                "group-torn",
                self._path,
                f"epoch {group.begin.epoch} of query {group.begin.query!r} was being published; the next start cuts "
                "it, and publishes it again if it is committed",
                position=group.position,
                lost=(group.offset, offset - 1),
            )

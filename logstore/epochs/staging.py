"""Staged output: the output of Spark's tasks for epochs that are not committed yet, one file per task attempt.

Invariants:
* A ticket of `stage` settles only when the segment is durable, and with the first segment the file's name. Waiting
  segments of one attempt share one write and one sync; attempts do not wait for each other.
* An attempt whose write or sync failed is dead: its file is removed, its segments never count, the file is never synced
  again. The client stages the output again under another attempt.
* A segment counts after a restart only if its checksums match; a torn end is cut, and the kept segments are synced
  before use.
* All staged bytes together stay below `limit_bytes` and one segment header.
* A batch leaves the staging area only if its own CRC-32C still matches.

This module does not know which epochs are committed: `logstore.epochs.epochs` names the attempts to drop.
"""

import enum
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.base.events import Report
from logstore.base.states import following
from logstore.errors import CorruptFile, StagePosition, StorageFailed
from logstore.events import STAGING_CUT
from logstore.format.epoch_api import Part
from logstore.format.staged import (
    HEADER_BYTES,
    AttemptKey,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    table_bytes,
)
from logstore.interfaces import Buffer, FileSystem
from logstore.log.jobs import Create, DiskJob, JobSource, Operation, RemoveFile, Sync, SyncDirectory, WriteFile
from logstore.log.rewrite import rewrite
from logstore.log.ticket import Ticket

DIRECTORY: Final = "staging"
READ_BYTES: Final = 1024 * 1024
"""The most staged bytes that one read takes and passes to a stream (a larger batch is read alone)."""
LAST_WRITE_BYTES: Final = 64 * 1024 * 1024
"""More than one write of an attempt can hold: segments arrive one after the other, each at most one request large."""
DEFAULT_LIMIT_BYTES: Final = 4 * 1024 * 1024 * 1024
_READABLE_CHARACTERS: Final = 40
_NAME: Final = re.compile(r".*-(\d+)\.staged")

Ready = Callable[[JobSource], None]


class AttemptState(enum.Enum):
    """The state of an attempt's file."""

    EMPTY = "empty"  # there is no file, and no write is in flight
    WRITING = "writing"  # a write is in flight
    DURABLE = "durable"  # the file holds all written segments, synced
    DROPPING = "dropping"  # a write is in flight; the file will be removed after it
    DOOMED = "doomed"  # the file will be removed
    REMOVING = "removing"  # the removal is in flight
    GONE = "gone"  # there is no file, and none will be created


class AttemptEvent(enum.Enum):
    """What happens to an attempt's file."""

    WRITE = "write"
    SYNCED = "synced"
    FAILED = "failed"
    DROP = "drop"
    REMOVE = "remove"
    REMOVED = "removed"


TRANSITIONS: Final[Mapping[tuple[AttemptState, AttemptEvent], AttemptState]] = {
    (AttemptState.EMPTY, AttemptEvent.WRITE): AttemptState.WRITING,
    (AttemptState.DURABLE, AttemptEvent.WRITE): AttemptState.WRITING,
    (AttemptState.WRITING, AttemptEvent.SYNCED): AttemptState.DURABLE,
    (AttemptState.WRITING, AttemptEvent.FAILED): AttemptState.DOOMED,
    (AttemptState.WRITING, AttemptEvent.DROP): AttemptState.DROPPING,
    (AttemptState.DROPPING, AttemptEvent.SYNCED): AttemptState.DOOMED,
    (AttemptState.DROPPING, AttemptEvent.FAILED): AttemptState.DOOMED,
    (AttemptState.EMPTY, AttemptEvent.DROP): AttemptState.GONE,
    (AttemptState.DURABLE, AttemptEvent.DROP): AttemptState.DOOMED,
    (AttemptState.DOOMED, AttemptEvent.DROP): AttemptState.DOOMED,
    (AttemptState.DOOMED, AttemptEvent.REMOVE): AttemptState.REMOVING,
    (AttemptState.REMOVING, AttemptEvent.DROP): AttemptState.REMOVING,
    (AttemptState.REMOVING, AttemptEvent.REMOVED): AttemptState.GONE,
    (AttemptState.GONE, AttemptEvent.DROP): AttemptState.GONE,
}
_IN_FLIGHT: Final = frozenset((AttemptState.WRITING, AttemptState.DROPPING, AttemptState.REMOVING))


class StoredSegment(NamedTuple):
    """A segment in its attempt's file."""

    header: SegmentHeader
    start: int
    ticket: Ticket[int]


class Extent(NamedTuple):
    """Batches of one stream, end to end in a staging file."""

    path: str
    position: int
    length: int
    batches: int


class StagedAttempt:
    """One attempt's file: appends segments with group commit, and removes the file when dropped."""

    def __init__(self, key: AttemptKey, path: str, ready: Ready, settled: "Callable[[StagedAttempt], None]") -> None:
        self.key = key
        self.path = path
        self.segments: list[StoredSegment] = []
        self.durable_segments = 0
        self.size_bytes = 0
        self.failure: StorageFailed | None = None
        self.state = AttemptState.EMPTY
        self._ready = ready
        self._settled = settled
        self._data: dict[int, Sequence[Buffer]] = {}

    @classmethod
    def recovered(
        cls, headers: Sequence[SegmentHeader], path: str, ready: Ready, settled: "Callable[[StagedAttempt], None]"
    ) -> "StagedAttempt":
        """An attempt whose file holds exactly these segments, durably."""
        attempt = cls(headers[0].key, path, ready, settled)
        attempt.state = AttemptState.DURABLE
        for header in headers:
            segment = StoredSegment(header, attempt.size_bytes, Ticket.succeeded(header.position + 1))
            attempt.segments.append(segment)
            attempt.size_bytes += header.size_bytes
        attempt.durable_segments = len(headers)
        return attempt

    @property
    def last_staged_ms(self) -> int:
        """Wall time of the newest segment, in ms."""
        return self.segments[-1].header.staged_ms if self.segments else 0

    def stage(self, position: int, parts: tuple[Part, ...], data: Buffer, now_ms: int) -> Ticket[int]:
        """Append a segment, or return the ticket of the same segment. Raises StagePosition, StorageFailed."""
        if self.failure is not None:
            raise self.failure
        if position < len(self.segments):
            segment = self.segments[position]
            if segment.header.data_bytes != len(data) or segment.header.data_crc != crc32c(data):
                raise StagePosition(
                    f"segment {position} of attempt {self.key.attempt!r} is here with other bytes; an attempt's output "
                    "must not change: use a new attempt",
                    length=len(self.segments),
                )
            return segment.ticket
        if position > len(self.segments):
            raise StagePosition(
                f"segment {position} of attempt {self.key.attempt!r} does not follow the {len(self.segments)} segments "
                "here",
                length=len(self.segments),
            )
        head, header = encode_segment_header(self.key, position=position, staged_ms=now_ms, parts=parts, data=data)
        ticket: Ticket[int] = Ticket()
        self.segments.append(StoredSegment(header, self.size_bytes, ticket))
        self._data[position] = (head, data)
        self.size_bytes += header.size_bytes
        self._ready(self)
        return ticket

    def extents(self, segments: int) -> dict[tuple[str, int], list[Extent]]:
        """The extents of each stream's batches in the first `segments` segments, by topic and partition."""
        found: dict[tuple[str, int], list[Extent]] = {}
        for segment in self.segments[:segments]:
            position = segment.start + segment.header.header_bytes
            for part in segment.header.parts:
                if part.length_bytes:
                    extent = Extent(self.path, position, part.length_bytes, part.batches)
                    found.setdefault((part.topic, part.partition), []).append(extent)
                position += part.length_bytes
        return found

    def move(self, event: AttemptEvent) -> None:
        """Take the step for `event` in TRANSITIONS."""
        self.state = following(TRANSITIONS, self.state, event, f"attempt {self.key.attempt!r}")

    def drop(self) -> None:
        """Forget the segments and remove the file, after any operation in flight."""
        self.move(AttemptEvent.DROP)
        if self.state is AttemptState.GONE:
            self._forget()
            self._settled(self)
        elif self.state is AttemptState.DOOMED:
            self._ready(self)

    def take_job(self) -> DiskJob | None:
        """The write of all waiting segments, or the removal of the file."""
        if self.state is AttemptState.DOOMED:
            return self._removal()
        waiting = self.segments[self.durable_segments :]
        if self.state in _IN_FLIGHT or not waiting:
            return None
        is_new = self.state is AttemptState.EMPTY
        buffers = [buffer for segment in waiting for buffer in self._data.pop(segment.header.position)]
        operations: list[Operation] = [Create(self.path)] if is_new else []
        operations += [WriteFile(self.path, waiting[0].start, buffers), Sync(self.path)]
        if is_new:
            operations.append(SyncDirectory(DIRECTORY))
        self.move(AttemptEvent.WRITE)
        return DiskJob(operations, partial(self._written, waiting), self._failed)

    def _written(self, segments: Sequence[StoredSegment]) -> None:
        self.move(AttemptEvent.SYNCED)
        self.durable_segments += len(segments)
        self._ready(self)
        for segment in segments:
            segment.ticket.succeed(segment.header.position + 1)

    def _failed(self, operation: Operation, error: OSError) -> None:
        self.move(AttemptEvent.FAILED)
        self.failure = StorageFailed(
            f"staging for task {self.key.task} of epoch {self.key.epoch}: {type(operation).__name__} of "
            f"{self.path} failed ({error}); nothing of attempt {self.key.attempt!r} counts; "
            "stage the output again under another attempt's name"
        )
        self._ready(self)
        self._forget(self.failure)

    def _forget(self, reason: StorageFailed | None = None) -> None:
        """Forget all segments; the tickets of waiting segments fail."""
        waiting = self.segments[self.durable_segments :]
        self.segments.clear()
        self._data.clear()
        self.durable_segments = 0
        for segment in waiting:
            segment.ticket.fail(
                reason or StorageFailed(f"attempt {self.key.attempt!r} was dropped before it was staged")
            )

    def _removal(self) -> DiskJob:
        """The job that removes the file, without a directory sync: a file that reappears is dropped again."""
        self.move(AttemptEvent.REMOVE)
        self._forget()
        return DiskJob([RemoveFile(self.path, optional=True)], self._removed, lambda *_: self._removed())

    def _removed(self) -> None:
        self.move(AttemptEvent.REMOVED)
        self._settled(self)


class Staging:
    """The files of all attempts, and the limit on their total size."""

    def __init__(self, ready: Ready, report: Report, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._ready = ready
        self._report = report
        self._attempts: dict[AttemptKey, StagedAttempt] = {}
        self._removing: set[StagedAttempt] = set()
        self._limit_bytes = limit_bytes
        self._next_serial = 0
        self.used_bytes = 0
        """Bytes of all files, including files being written or removed."""

    @classmethod
    def open(cls, fs: FileSystem, ready: Ready, report: Report, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> "Staging":
        """Open the staging area of a data directory with all whole segments. Blocks. Raises OSError,
        UnknownFormatVersion.
        """
        staging = cls(ready, report, limit_bytes=limit_bytes)
        fs.make_directory(DIRECTORY)
        fs.sync_directory("")
        serials = sorted(
            (int(match[1]), name) for name in fs.list_directory(DIRECTORY) if (match := _NAME.fullmatch(name))
        )
        for serial, name in serials:
            staging._recover(fs, f"{DIRECTORY}/{name}")
            staging._next_serial = serial + 1
        fs.sync_directory(DIRECTORY)
        return staging

    def _recover(self, fs: FileSystem, path: str) -> None:
        size_bytes = fs.size(path)
        headers = list(_scan(fs, path))
        whole_bytes = sum(header.size_bytes for header in headers)
        if whole_bytes < size_bytes:
            cut_bytes = size_bytes - whole_bytes
            self._report(STAGING_CUT, path=path, kept_bytes=whole_bytes, cut_bytes=cut_bytes)
        if not headers:
            fs.remove(path)
            return
        if whole_bytes < size_bytes:
            fs.truncate(path, whole_bytes)
        # A killed process leaves segments that only the page cache holds, and after a failed sync even a successful
        # sync does not write them to the disk: the bytes that the last write may have held are written again.
        rewrite(fs, path, max(0, whole_bytes - LAST_WRITE_BYTES), whole_bytes)
        fs.sync(path)
        older = self._attempts.get(headers[0].key)
        if older is not None:  # dropped earlier, but its removal was not durable; the later file counts
            fs.remove(older.path)
            self.used_bytes -= older.size_bytes
        self._attempts[headers[0].key] = StagedAttempt.recovered(headers, path, self._ready, self._removed)
        self.used_bytes += whole_bytes

    def stage(
        self, key: AttemptKey, position: int, parts: tuple[Part, ...], data: Buffer, *, now_ms: int
    ) -> Ticket[int]:
        """Stage the segment `position` of an attempt; the result is `position` + 1, once the segment is durable.

        The caller has checked the batches. `data` is kept until it is written. Raises StagePosition, or StorageFailed
        if a write of the attempt failed or the area is full.
        """
        attempt = self._attempts.get(key)
        if (attempt is None or position >= len(attempt.segments)) and self.used_bytes + len(data) > self._limit_bytes:
            raise StorageFailed(
                f"{self.used_bytes} bytes are staged, and {len(data)} more would exceed staging.limit_bytes = "
                f"{self._limit_bytes}; commit or stop queries, or raise the limit"
            )
        if attempt is None:
            attempt = StagedAttempt(key, self._new_path(key), self._ready, self._removed)
        before_bytes = attempt.size_bytes
        ticket = attempt.stage(position, parts, data, now_ms)
        self._attempts[key] = attempt
        self.used_bytes += attempt.size_bytes - before_bytes
        return ticket

    def _new_path(self, key: AttemptKey) -> str:
        """A new file name: starts with readable text, unique by hash and serial number, of bounded length."""
        readable = re.sub(r"[^A-Za-z0-9_.]", "_", key.query)[:_READABLE_CHARACTERS]
        digest = hashlib.blake2s(repr(tuple(key)).encode(), digest_size=8).hexdigest()
        serial = self._next_serial
        self._next_serial += 1
        return f"{DIRECTORY}/{readable}-e{key.epoch}-t{key.task}-{digest}-{serial}.staged"

    def get(self, key: AttemptKey) -> StagedAttempt | None:
        """The attempt with this key, or None if it has staged nothing."""
        return self._attempts.get(key)

    def attempts(self, query: str) -> list[StagedAttempt]:
        """The attempts of a query."""
        return [attempt for attempt in self._attempts.values() if attempt.key.query == query]

    def all_attempts(self) -> list[StagedAttempt]:
        """Every attempt."""
        return list(self._attempts.values())

    def drop(self, keys: Iterable[AttemptKey]) -> int:
        """Remove the files of these attempts in the background; returns their total bytes."""
        dropped_bytes = 0
        for key in keys:
            attempt = self._attempts.pop(key, None)
            if attempt is not None:
                self._removing.add(attempt)
                dropped_bytes += attempt.size_bytes
                attempt.drop()
        return dropped_bytes

    def _removed(self, attempt: StagedAttempt) -> None:
        self.used_bytes -= attempt.size_bytes
        attempt.size_bytes = 0
        self._removing.discard(attempt)


def _scan(fs: FileSystem, path: str) -> Iterator[SegmentHeader]:
    """Headers of the segments of a file, up to the first segment that is not whole."""
    start, expected = 0, 0
    key: AttemptKey | None = None
    while True:
        try:
            fixed = fs.read(path, start, HEADER_BYTES)
            length = table_bytes(fixed)
            header = decode_segment_header(fixed + fs.read(path, start + HEADER_BYTES, length))
        except CorruptFile:
            return
        if header.position != expected or (key is not None and header.key != key):
            return
        if not is_data_whole(fs, path, start + header.header_bytes, header):
            return
        yield header
        key, expected, start = header.key, expected + 1, start + header.size_bytes


def is_data_whole(fs: FileSystem, path: str, position: int, header: SegmentHeader) -> bool:
    """Whether the data of a segment is there, from a position of its file on, and has its checksum. Raises OSError."""
    crc, left = 0, header.data_bytes
    while left:
        data = fs.read(path, position, min(left, READ_BYTES))
        if not data:
            return False
        crc = crc32c(data, crc)
        position, left = position + len(data), left - len(data)
    return crc == header.data_crc

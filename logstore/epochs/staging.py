"""Staged output: the output of Spark's tasks for epochs that are not decided yet, one file per task attempt.

Invariants:
* A ticket of `stage` settles only when the frame is durable, and with the first frame the file's name. Waiting frames
  of one attempt share one write and one sync; attempts do not wait for each other.
* An attempt whose write or sync failed is dead: its file is removed, its frames never count, the file is never synced
  again. The client stages the output again under another attempt.
* A frame counts after a restart only if its checksums match; a torn end is cut, and the kept frames are synced before
  use.
* All staged bytes together stay below `limit_bytes` and one frame header.
* A batch leaves the staging area only if its own CRC-32C still matches.

This module does not know which epochs are decided: `logstore.epochs.epochs` names the attempts to drop.
"""

import enum
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.base.events import Report
from logstore.errors import CorruptFile, StagePosition, StorageFailed
from logstore.events import STAGING_CUT
from logstore.format.epoch_api import Part
from logstore.format.staged import (
    HEADER_BYTES,
    AttemptKey,
    FrameHeader,
    decode_frame_header,
    encode_frame_header,
    table_bytes,
)
from logstore.interfaces import Buffer, FileSystem
from logstore.log.jobs import Create, DiskJob, JobSource, Operation, RemoveFile, Sync, SyncDirectory, WriteFile
from logstore.log.rewrite import rewrite
from logstore.log.ticket import Ticket

DIRECTORY: Final = "staging"
PIECE_BYTES: Final = 1024 * 1024
"""Size of the pieces that are read, checked and passed to a stream (one batch, if a batch is larger)."""
LAST_WRITE_BYTES: Final = 64 * 1024 * 1024
"""More than one write of an attempt can hold: frames arrive one after the other, each at most one request large."""
DEFAULT_LIMIT_BYTES: Final = 4 * 1024 * 1024 * 1024
_READABLE_CHARACTERS: Final = 40
_NAME: Final = re.compile(r".*-(\d+)\.staged")

Ready = Callable[[JobSource], None]


class AttemptState(enum.Enum):
    """The state of an attempt's file."""

    EMPTY = "empty"  # there is no file, and no write is in flight
    WRITING = "writing"  # a write is in flight
    DURABLE = "durable"  # the file holds all written frames, synced
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


class Frame(NamedTuple):
    """A frame in its attempt's file."""

    header: FrameHeader
    start: int
    ticket: Ticket[int]


class Extent(NamedTuple):
    """Batches of one stream, end to end in a staging file."""

    path: str
    position: int
    length: int
    batches: int


class Attempt:
    """One attempt's file: appends staged frames with group commit, and removes the file when dropped."""

    def __init__(self, key: AttemptKey, path: str, ready: Ready, settled: "Callable[[Attempt], None]") -> None:
        self.key = key
        self.path = path
        self.frames: list[Frame] = []
        self.durable_frames = 0
        self.size_bytes = 0
        self.failure: StorageFailed | None = None
        self.state = AttemptState.EMPTY
        self._ready = ready
        self._settled = settled
        self._data: dict[int, Sequence[Buffer]] = {}

    @classmethod
    def recovered(
        cls, headers: Sequence[FrameHeader], path: str, ready: Ready, settled: "Callable[[Attempt], None]"
    ) -> "Attempt":
        """An attempt whose file holds exactly these frames, durably."""
        attempt = cls(headers[0].key, path, ready, settled)
        attempt.state = AttemptState.DURABLE
        for header in headers:
            frame = Frame(header, attempt.size_bytes, Ticket.succeeded(header.position + 1))
            attempt.frames.append(frame)
            attempt.size_bytes += header.size_bytes
        attempt.durable_frames = len(headers)
        return attempt

    @property
    def last_staged_ms(self) -> int:
        """Wall time of the newest frame."""
        return self.frames[-1].header.staged_ms if self.frames else 0

    def stage(self, position: int, parts: tuple[Part, ...], data: Buffer, now_ms: int) -> Ticket[int]:
        """Append a frame, or return the ticket of the same frame. Raises StagePosition, StorageFailed."""
        if self.failure is not None:
            raise self.failure
        if position < len(self.frames):
            frame = self.frames[position]
            if frame.header.data_bytes != len(data) or frame.header.data_crc != crc32c(data):
                raise StagePosition(
                    f"piece {position} of attempt {self.key.attempt!r} is here with other bytes; an attempt's output "
                    "must not change: use a new attempt",
                    length=len(self.frames),
                )
            return frame.ticket
        if position > len(self.frames):
            raise StagePosition(
                f"piece {position} of attempt {self.key.attempt!r} does not follow the {len(self.frames)} pieces here",
                length=len(self.frames),
            )
        head, header = encode_frame_header(self.key, position=position, staged_ms=now_ms, parts=parts, data=data)
        ticket: Ticket[int] = Ticket()
        self.frames.append(Frame(header, self.size_bytes, ticket))
        self._data[position] = (head, data)
        self.size_bytes += header.size_bytes
        self._ready(self)
        return ticket

    def extents(self, topic: str, partition: int, frames: int) -> Iterator[Extent]:
        """The extents of one stream's batches in the first `frames` frames."""
        for frame in self.frames[:frames]:
            position = frame.start + frame.header.header_bytes
            for part in frame.header.parts:
                if part.topic == topic and part.partition == partition and part.length_bytes:
                    yield Extent(self.path, position, part.length_bytes, part.batches)
                position += part.length_bytes

    def move(self, event: AttemptEvent) -> None:
        """Take the step for `event` in TRANSITIONS."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise AssertionError(f"attempt {self.key.attempt!r}: {event.value} in state {self.state.value}")
        self.state = following

    def drop(self) -> None:
        """Forget the frames and remove the file, after any operation in flight."""
        self.move(AttemptEvent.DROP)
        if self.state is AttemptState.GONE:
            self._forget()
            self._settled(self)
        elif self.state is AttemptState.DOOMED:
            self._ready(self)

    def take_job(self) -> DiskJob | None:
        """The write of all waiting frames, or the removal of the file."""
        if self.state is AttemptState.DOOMED:
            return self._removal()
        waiting = self.frames[self.durable_frames :]
        if self.state in _IN_FLIGHT or not waiting:
            return None
        is_new = self.state is AttemptState.EMPTY
        buffers = [buffer for frame in waiting for buffer in self._data.pop(frame.header.position)]
        operations: list[Operation] = [Create(self.path)] if is_new else []
        operations += [WriteFile(self.path, waiting[0].start, buffers), Sync(self.path)]
        if is_new:
            operations.append(SyncDirectory(DIRECTORY))
        self.move(AttemptEvent.WRITE)
        return DiskJob(operations, partial(self._written, waiting), self._failed)

    def _written(self, frames: Sequence[Frame]) -> None:
        self.move(AttemptEvent.SYNCED)
        self.durable_frames += len(frames)
        self._ready(self)
        for frame in frames:
            frame.ticket.succeed(frame.header.position + 1)

    def _failed(self, operation: Operation, error: OSError) -> None:
        self.move(AttemptEvent.FAILED)
        self.failure = StorageFailed(
            f"staging for task {self.key.task} of epoch {self.key.epoch}: {type(operation).__name__} of "
            f"{self.path} failed ({error}); nothing of attempt {self.key.attempt!r} counts, stage again anew"
        )
        self._ready(self)
        self._forget(self.failure)

    def _forget(self, reason: StorageFailed | None = None) -> None:
        """Forget all frames; the tickets of waiting frames fail."""
        waiting = self.frames[self.durable_frames :]
        self.frames.clear()
        self._data.clear()
        self.durable_frames = 0
        for frame in waiting:
            frame.ticket.fail(reason or StorageFailed(f"attempt {self.key.attempt!r} was dropped before it was staged"))

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
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._removing: set[Attempt] = set()
        self._limit_bytes = limit_bytes
        self._next_serial = 0
        self.used_bytes = 0
        """Bytes of all files, including files being written or removed."""

    @classmethod
    def open(cls, fs: FileSystem, ready: Ready, report: Report, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> "Staging":
        """Open the staging area of a data directory with all whole frames. Blocks. Raises OSError,
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
        # A killed process leaves frames that only the page cache holds, and after a failed sync even a successful sync
        # does not write them to the disk: the bytes that the last write may have held are written again.
        rewrite(fs, path, max(0, whole_bytes - LAST_WRITE_BYTES), whole_bytes)
        fs.sync(path)
        older = self._attempts.get(headers[0].key)
        if older is not None:  # dropped earlier, but its removal was not durable; the later file counts
            fs.remove(older.path)
            self.used_bytes -= older.size_bytes
        self._attempts[headers[0].key] = Attempt.recovered(headers, path, self._ready, self._removed)
        self.used_bytes += whole_bytes

    def stage(
        self, key: AttemptKey, position: int, parts: tuple[Part, ...], data: Buffer, *, now_ms: int
    ) -> Ticket[int]:
        """Stage the frame `position` of an attempt; the result is `position` + 1, once the frame is durable.

        The caller has checked the batches. `data` is kept until it is written. Raises StagePosition, or StorageFailed
        if a write of the attempt failed or the area is full.
        """
        attempt = self._attempts.get(key)
        if (attempt is None or position >= len(attempt.frames)) and self.used_bytes + len(data) > self._limit_bytes:
            raise StorageFailed(
                f"{self.used_bytes} bytes are staged, and {len(data)} more would exceed staging.limit_bytes = "
                f"{self._limit_bytes}; commit or stop queries, or raise the limit"
            )
        if attempt is None:
            attempt = Attempt(key, self._new_path(key), self._ready, self._removed)
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

    def get(self, key: AttemptKey) -> Attempt | None:
        """The attempt with this key, or None if it has staged nothing."""
        return self._attempts.get(key)

    def attempts(self, query: str) -> list[Attempt]:
        """The attempts of a query."""
        return [attempt for attempt in self._attempts.values() if attempt.key.query == query]

    def all_attempts(self) -> list[Attempt]:
        """Every attempt."""
        return list(self._attempts.values())

    def drop(self, attempts: Iterable[Attempt]) -> int:
        """Remove the files of these attempts in the background; returns their total bytes."""
        dropped_bytes = 0
        for attempt in attempts:
            if self._attempts.get(attempt.key) is attempt:
                del self._attempts[attempt.key]
                self._removing.add(attempt)
                dropped_bytes += attempt.size_bytes
                attempt.drop()
        return dropped_bytes

    def _removed(self, attempt: Attempt) -> None:
        self.used_bytes -= attempt.size_bytes
        attempt.size_bytes = 0
        self._removing.discard(attempt)


def _scan(fs: FileSystem, path: str) -> Iterator[FrameHeader]:
    """Headers of the frames of a file, up to the first frame that is not whole."""
    start, expected = 0, 0
    key: AttemptKey | None = None
    while True:
        try:
            fixed = fs.read(path, start, HEADER_BYTES)
            length = table_bytes(fixed)
            header = decode_frame_header(fixed + fs.read(path, start + HEADER_BYTES, length))
        except CorruptFile:
            return
        if header.position != expected or (key is not None and header.key != key):
            return
        if not _data_is_whole(fs, path, start + header.header_bytes, header):
            return
        yield header
        key, expected, start = header.key, expected + 1, start + header.size_bytes


def _data_is_whole(fs: FileSystem, path: str, position: int, header: FrameHeader) -> bool:
    crc, left = 0, header.data_bytes
    while left:
        piece = fs.read(path, position, min(left, PIECE_BYTES))
        if not piece:
            return False
        crc = crc32c(piece, crc)
        position, left = position + len(piece), left - len(piece)
    return crc == header.data_crc

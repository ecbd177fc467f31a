"""What a scrub checks, how fast, and how far it is: the check of sealed chunks that nobody reads.

Invariants:
* A piece ends where a whole batch ends, and is one read of the file, unless a batch is larger than a piece.
* Nothing is faster than the highest rate. Below it a walk over all chunks is planned to take WALK_SHARE of the period,
  so that it ends within the period although each piece may be put off for as long as the pieces lie apart.
* A chunk takes no longer than LONGEST_CHUNK_S, unless that is faster than the highest rate.
* What is kept of the progress is a hint: if it is lost, a walk begins anew.
* No clock, no I/O: reads go through `ReadableFiles`, so they may run on a reader thread.
"""

import json
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.format.batch import HEADER_BYTES
from logstore.format.snapshot import decode_snapshots
from logstore.interfaces import Buffer, FileSystem, ReadableFiles
from logstore.log.chunks import ChunkView
from logstore.log.reading import MANY_BATCHES, READ_BYTES, RunLimits, damaged, founding_block, walk_batches

PIECE_BYTES: Final = READ_BYTES
LEAST_BYTES: Final = 4096
"""A chunk counts as so much at least: opening a file is what a small chunk costs."""
WALK_SHARE: Final = 0.45
"""Of the period, for a walk that nothing delays."""
LONGEST_PAUSE_S: Final = 600.0
"""Between two pieces: a host with little to check has it all checked more often than it must."""
LONGEST_CHUNK_S: Final = 3_600.0
"""For a chunk that nothing delays: a restart begins it anew, and a host that never runs for long must get past it."""
DEFAULT_PERIOD_DAYS: Final = 21
"""As HDFS scans the blocks of a DataNode."""
DEFAULT_MAX_RATE: Final = 4 << 20
DAY_S: Final = 86_400
KEY: Final = "scrub"
"""The catalogue's entry with the progress."""
VERSION: Final = 1
_BATCH_LENGTH_AT: Final = 8
_BATCH_OVERHEAD_BYTES: Final = 12
"""A batch is so much longer than its length field says, which comes after the base offset."""


class ScrubSettings(NamedTuple):
    """Within `period_s` seconds all is to be checked, with at most so many bytes a second; a period of 0: never."""

    period_s: float = DEFAULT_PERIOD_DAYS * DAY_S
    max_bytes_per_s: int = DEFAULT_MAX_RATE

    def rate(self, total_bytes: int) -> float:
        """Bytes a second, with so many bytes to check."""
        return min(self.max_bytes_per_s, max(1, total_bytes) / (WALK_SHARE * self.period_s))

    def pause_s(self, size_bytes: int, total_bytes: int, chunk_bytes: int) -> float:
        """From the start of a piece of so many bytes, of a chunk of so many, to the start of the next one."""
        counted_bytes = max(size_bytes, LEAST_BYTES)
        of_chunk_s = LONGEST_CHUNK_S * counted_bytes / max(counted_bytes, chunk_bytes)
        pause_s = min(LONGEST_PAUSE_S, of_chunk_s, counted_bytes / self.rate(total_bytes))
        return max(pause_s, counted_bytes / self.max_bytes_per_s)


class ScrubPlace(NamedTuple):
    """How far a file is checked: to a position in it, an offset, and the CRC-32C of all that was checked before."""

    position: int
    next_offset: int
    checksum: int


class ScrubProgress(NamedTuple):
    """How far the walk is. `after`: the key of the last chunk that was checked; times are ms since 1970. 0: never."""

    after: str = ""
    begun_ms: int = 0
    completed_ms: int = 0
    """When the last walk over all chunks ended."""

    def encode(self) -> bytes:
        """The catalogue's value."""
        fields = {"v": VERSION, "after": self.after, "begun": self.begun_ms, "completed": self.completed_ms}
        return json.dumps(fields).encode()


def decode_progress(value: bytes | None) -> ScrubProgress:
    """The progress that was kept; none, if nothing was, or if it cannot be read."""
    try:
        fields = json.loads(value or b"{}")
        if fields["v"] != VERSION:
            return ScrubProgress()
        return ScrubProgress(str(fields["after"]), int(fields["begun"]), int(fields["completed"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ScrubProgress()


def check_piece(files: ReadableFiles, view: ChunkView, at: ScrubPlace) -> ScrubPlace:
    """Check the next piece of a chunk's file, at least one batch; returns the place behind it.

    Raises CorruptChunk, OSError.
    """
    limits = RunLimits(PIECE_BYTES, MANY_BATCHES, lambda header: True)
    start = (at.position, at.next_offset)
    for found in walk_batches(files, view, start, at.next_offset, PIECE_BYTES, runs=limits):
        size_bytes = len(found.buffer)
        checksum = crc32c(found.buffer, at.checksum)
        at = ScrubPlace(found.position + size_bytes, found.next_offset, checksum)
        if _ends_within_next(found.window, found.window_at + size_bytes):
            break
    return at


def _ends_within_next(window: Buffer, end: int) -> bool:
    """Whether what was read ends within the next batch: that is the next piece's."""
    left_bytes = len(window) - end
    length_at = end + _BATCH_LENGTH_AT
    length = int.from_bytes(window[length_at : length_at + 4], "big", signed=True)
    return left_bytes < HEADER_BYTES or length + _BATCH_OVERHEAD_BYTES > left_bytes


def check_founding(files: FileSystem, path: str, view: ChunkView) -> None:
    """Check the producers' state as of a replica's start, which copies of it need. Raises CorruptChunk, OSError, and
    UnknownFormatVersion if a newer Cairn has written it.
    """
    block = founding_block(files, path)
    snapshots, end = decode_snapshots(block)
    if end != len(block) or not snapshots or snapshots[0][:2] != (0, view.base_offset):
        raise damaged(view, view.base_offset, view.next_offset - 1, f"{path}: the producers' state is damaged")

"""Retention: the clock that measures the age of records, and the choice of chunks beyond a topic's retention.

Invariants:
* A chunk's age counts from the last append to it, whatever timestamps its records carry: a back-fill of old records
  stays as long as other records. The open chunk is also never older than its newest record's timestamp.
* Age is the time that sidecars have run on the data directory, not wall time. So neither a jump of the wall clock nor
  an outage deletes records: a reader has the whole time that the retention promises.
* Whole chunks are trimmed, oldest first, and never at or after a pin or a registered reader's held offset.
* A last chunk whose first append is old is sealed, also when nothing is appended any more: so retention reaches every
  record, and a stream whose records have all expired keeps no bytes of them.

Sources: docs/decisions/0015-retention-counts-served-time.md, docs/decisions/0033-space.md.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple, Protocol

from logstore.base.clock import Clock
from logstore.format.index import UNKNOWN_TIME
from logstore.log.chunks import Chunk
from logstore.log.readers import HeldRecords
from logstore.log.topics import TopicConfig


class RetentionClock:
    """Counts the ms that sidecars have run on a data directory. The clock never goes back within a life. A crash loses
    the time since the clock was last saved, so records then stay longer.
    """

    def __init__(self, clock: Clock, past_ms: int) -> None:
        self._clock = clock
        self._past_ms = past_ms
        self._started_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """The time in ms that sidecars have run, this one included."""
        return self._past_ms + int((self._clock.monotonic_s() - self._started_s) * 1000)

    def is_behind(self, past_ms: int) -> None:
        """Note that earlier sidecars ran for at least `past_ms`."""
        self._past_ms = max(self._past_ms, past_ms)


class AgedChunk(Protocol):
    """What retention asks of a chunk: its records, its bytes, when it was last written, its newest record's time."""

    @property
    def base_offset(self) -> int:
        """Of the first record."""

    @property
    def next_offset(self) -> int:
        """Behind the last record."""

    @property
    def size_bytes(self) -> int:
        """Of all batches."""

    @property
    def written_ms(self) -> int:
        """Of the last append, on the retention clock; UNKNOWN_TIME: not known."""

    @property
    def max_timestamp(self) -> int:
        """Of the newest record."""


class RetentionTime(NamedTuple):
    """The present time on both clocks, in ms."""

    served_ms: int
    wall_ms: int


class Excess(NamedTuple):
    """What retention trims: all records before an offset; `why` is "age", "size" or "age and size"."""

    before_offset: int
    why: str


def excess(
    chunks: Sequence[AgedChunk],
    config: TopicConfig,
    pinned_offset: int,
    now: RetentionTime,
    limit: Callable[[int], int],
    total_bytes: int | None = None,
) -> Excess | None:
    """The oldest chunks beyond a topic's retention, up to the first chunk within it; None if there are none.

    `limit` gives the offset up to which registered readers let the stream be trimmed, from the offset that is wanted.
    `total_bytes`: of all chunks, if the caller knows it. Then only the chunks are looked at that go, and a few more.
    """
    if total_bytes is None:
        total_bytes = sum(chunk.size_bytes for chunk in chunks) if config.retention_bytes >= 0 else 0
    wanted = _excess(chunks, config, pinned_offset, now, total_bytes)
    if wanted is None:
        return None
    allowed_offset = limit(wanted.before_offset)
    is_allowed = allowed_offset >= wanted.before_offset
    return wanted if is_allowed else _excess(chunks, config, allowed_offset, now, total_bytes)


def _excess(
    chunks: Sequence[AgedChunk], config: TopicConfig, pinned_offset: int, now: RetentionTime, total: int
) -> Excess | None:
    before_offset = None
    reasons: dict[str, None] = {}
    known_at, written_ms = -1, UNKNOWN_TIME
    for at, chunk in enumerate(chunks):
        if known_at < at:
            known_at, written_ms = _written(chunks, at)
        is_open = at == len(chunks) - 1
        is_too_big = 0 <= config.retention_bytes <= total - chunk.size_bytes and not is_open
        is_too_old = 0 <= config.retention_ms < now.served_ms - written_ms and written_ms != UNKNOWN_TIME
        if is_open:
            is_too_old = is_too_old and now.wall_ms - chunk.max_timestamp > config.retention_ms
        if chunk.next_offset > pinned_offset or chunk.size_bytes == 0 or not (is_too_big or is_too_old):
            break
        before_offset = chunk.next_offset
        total -= chunk.size_bytes
        reasons.update(dict.fromkeys(["age"] * is_too_old + ["size"] * is_too_big))
    return None if before_offset is None else Excess(before_offset, " and ".join(sorted(reasons)))


def _written(chunks: Sequence[AgedChunk], first: int) -> tuple[int, int]:
    """When a chunk was last written, and the number of the chunk that says so: the next one with a known time, which
    counts for those in front of it. Without one: the number of chunks, and UNKNOWN_TIME.
    """
    for at in range(first, len(chunks)):
        written_ms = chunks[at].written_ms
        if written_ms != UNKNOWN_TIME:
            return at, written_ms
    return len(chunks), UNKNOWN_TIME


def must_roll(chunks: Sequence[Chunk], config: TopicConfig, log_start_offset: int, served_ms: int) -> bool:
    """Whether the last chunk is to be sealed now, so that retention can reach its records or remove its files.

    It is if all its records are trimmed, and if its first append is older than `segment.ms` or `retention.ms`. It is
    not while its last append is older than the retention: then a registered reader, a pin or the timestamp of its
    newest record keeps it, and that timestamp counts for an open chunk only.
    """
    if not chunks or not chunks[-1].size_bytes:
        return False
    last = chunks[-1]
    if last.next_offset <= log_start_offset:
        return True
    opened_ms = last.opened_ms if last.opened_ms != UNKNOWN_TIME else last.written_ms
    if UNKNOWN_TIME in (opened_ms, last.written_ms):
        return False
    is_beyond_retention = 0 <= config.retention_ms < served_ms - last.written_ms
    oldest_ms = config.segment_ms if config.retention_ms < 0 else min(config.segment_ms, config.retention_ms)
    return served_ms - opened_ms > oldest_ms and not is_beyond_retention


def held_records(chunks: Sequence[AgedChunk], end_offset: int) -> Callable[[int], HeldRecords]:
    """The chunks with records from an offset up to `end_offset`; whole chunks, for only these are trimmed."""
    found = list(takewhile(lambda chunk: chunk.base_offset < end_offset, chunks))
    ends = [chunk.next_offset for chunk in found]
    total_bytes = list(accumulate((chunk.size_bytes for chunk in found), initial=0))

    def held(offset: int) -> HeldRecords:
        at = bisect_right(ends, offset)
        return HeldRecords(total_bytes[-1] - total_bytes[at], found[at].written_ms if at < len(found) else 0)

    return held

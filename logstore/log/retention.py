"""How long records stay: the clock that their age is counted by, and which chunks are beyond a topic's retention.

Invariants:
* A chunk's age counts from the last append to it, whatever times its records carry: a back-fill of old records stays as
  long as anything else. The open chunk is no older than its newest record's time either.
* Age is counted in time that sidecars have run on the data directory, not by the wall clock. So no jump of that clock
  deletes anything, and neither does an outage: a reader has the whole time that the retention promises.
* Whole chunks go, oldest first, and nothing at or behind a pin.

Source: docs/decisions/0015-retention-counts-served-time.md.
"""

from collections.abc import Sequence
from typing import NamedTuple

from logstore.format.index import UNKNOWN_TIME
from logstore.interfaces import Clock
from logstore.log.chunks import Chunk
from logstore.log.topics import TopicConfig


class RetentionClock:
    """Counts the ms that sidecars have run on a data directory. It never goes back within a life; what a crash takes
    from it (the time since it was last saved) makes records stay longer.
    """

    def __init__(self, clock: Clock, past_ms: int) -> None:
        self._clock = clock
        self._past_ms = past_ms
        self._started_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """The time that sidecars have run, this one included."""
        return self._past_ms + int((self._clock.monotonic_s() - self._started_s) * 1000)

    def is_behind(self, past_ms: int) -> None:
        """Learn that earlier sidecars had run at least so long."""
        self._past_ms = max(self._past_ms, past_ms)


class Moment(NamedTuple):
    """Now, by both clocks, in ms."""

    served_ms: int
    wall_ms: int


class Excess(NamedTuple):
    """What retention trims: everything in front of an offset; `why` is "age", "size" or "age and size"."""

    before_offset: int
    why: str


def excess(chunks: Sequence[Chunk], config: TopicConfig, pinned_offset: int, now: Moment) -> Excess | None:
    """The chunks beyond a topic's retention, up to the first that is not; None if there are none."""
    written_ms = _written(chunks)
    total = sum(chunk.size_bytes for chunk in chunks)
    before_offset = None
    reasons: dict[str, None] = {}
    for at, chunk in enumerate(chunks):
        is_open = at == len(chunks) - 1
        is_too_big = 0 <= config.retention_bytes <= total - chunk.size_bytes and not is_open
        is_too_old = 0 <= config.retention_ms < now.served_ms - written_ms[at] and written_ms[at] != UNKNOWN_TIME
        if is_open:
            is_too_old = is_too_old and now.wall_ms - chunk.max_timestamp > config.retention_ms
        if chunk.next_offset > pinned_offset or chunk.size_bytes == 0 or not (is_too_big or is_too_old):
            break
        before_offset = chunk.next_offset
        total -= chunk.size_bytes
        reasons.update(dict.fromkeys(["age"] * is_too_old + ["size"] * is_too_big))
    return None if before_offset is None else Excess(before_offset, " and ".join(sorted(reasons)))


def _written(chunks: Sequence[Chunk]) -> list[int]:
    """When each chunk was last written to; one that does not know was so before the first behind it that does."""
    known = UNKNOWN_TIME
    found: list[int] = []
    for chunk in reversed(chunks):
        known = chunk.written_ms if chunk.written_ms != UNKNOWN_TIME else known
        found.append(known)
    return found[::-1]

"""The tail: the newest batches of all streams, in bounded memory.

Invariants:
* A stream's tail is contiguous and ends at its high watermark; eviction drops the batch that was added first over all
  streams.
* The tail holds only synced, visible batches, so reads from it need no second check.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from logstore.format.batch import HEADER_BYTES

ENTRY_OVERHEAD_BYTES = 700
"""Memory of an entry beside its bytes, as measured: two objects for the buffer, two for its view, the entry, its
offsets, its place in the order. It is counted so that many small batches do not exceed the bound."""
_COMPACT_AT = 256


class TailEntry(NamedTuple):
    """One batch in memory."""

    base_offset: int
    next_offset: int
    buffer: memoryview
    is_control: bool
    kind: int = 0
    """The type of Cairn's control record; 0 for any other batch."""


class StreamTail:
    """The newest batches of one stream."""

    __slots__ = ("_controls", "_entries", "_ghosts", "_head")

    def __init__(self) -> None:
        self._entries: list[TailEntry] = []
        self._head = 0
        self._ghosts = 0
        self._controls: deque[TailEntry] = deque()

    @property
    def start_offset(self) -> int | None:
        """The first offset in the tail, or None if the tail is empty."""
        return self._entries[self._head].base_offset if self._head < len(self._entries) else None

    def push(self, entry: TailEntry) -> None:
        """Append the next batch."""
        self._entries.append(entry)
        if entry.is_control:
            self._controls.append(entry)

    def pop_oldest(self) -> None:
        """Drop the oldest batch."""
        if self._ghosts:
            self._ghosts -= 1
            return
        if self._entries[self._head].is_control:
            self._controls.popleft()
        self._entries[self._head] = _GONE
        self._head += 1
        if self._head > _COMPACT_AT and 2 * self._head > len(self._entries):
            del self._entries[: self._head]
            self._head = 0

    def drop_before(self, offset: int) -> None:
        """Drop the batches that end at or before an offset; the next reads of them go to the disk."""
        ghosts, self._ghosts = self._ghosts, 0
        while self._head < len(self._entries) and self._entries[self._head].next_offset <= offset:
            self.pop_oldest()
            ghosts += 1
        self._ghosts = ghosts

    def reset(self) -> None:
        """Drop all batches; the next batch starts a new contiguous tail."""
        self._ghosts += len(self._entries) - self._head
        self._entries.clear()
        self._controls.clear()
        self._head = 0

    def controls(self) -> Iterable[TailEntry]:
        """The control batches, newest first."""
        return reversed(self._controls)

    def read(self, offset: int, max_bytes: int) -> list[TailEntry]:
        """Batches starting with the one that holds `offset`: at least one, up to `max_bytes` in total."""
        at = bisect_right(self._entries, offset, lo=self._head, key=_base_offset) - 1
        found: list[TailEntry] = []
        size = 0
        for index in range(max(at, self._head), len(self._entries)):
            entry = self._entries[index]
            size += len(entry.buffer)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found


def _base_offset(entry: TailEntry) -> int:
    return entry.base_offset


_GONE = TailEntry(-1, -1, memoryview(b""), False)
"""Replaces an evicted entry until the list is compacted, so that the entry's bytes are freed at once."""


class Tail:
    """The bound on the memory of all tails: first in, first out."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._order: deque[tuple[StreamTail, int]] = deque()

    def push(self, stream: StreamTail, entry: TailEntry) -> None:
        """Add a stream's next batch, and evict batches until the bound holds."""
        cost = max(len(entry.buffer), HEADER_BYTES) + ENTRY_OVERHEAD_BYTES
        stream.push(entry)
        self._order.append((stream, cost))
        self.used_bytes += cost
        while self.used_bytes > self.max_bytes:
            oldest, freed = self._order.popleft()
            oldest.pop_oldest()
            self.used_bytes -= freed

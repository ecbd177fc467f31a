"""The tail: the newest batches of all streams, in bounded memory.

Invariants:
* A stream's tail is contiguous and ends at its high watermark; eviction drops the batch that was added first over all
  streams.
* The tail holds only synced, visible batches, so reads from it need no second check.
* One bound is for the tail and for the requests that come to it: the tail gives way to these, up to 1/GIVEN_SHARE of
  it, as soon as a large one is there. A batch is added before its request counts as done, and lies in the memory of
  that request: so the bound is kept by `evict` behind both, and no byte counts twice. Where a request is done later (it
  has batches for other streams, or waits for other hosts), it counts twice until then, and the tail has less.
* Not in the bound: batches of the backlog (`logstore.log.backlog`), which are in memory until they are in their chunks,
  evicted or not.
* Small batches lie in the C library's heap and large ones in pages of their own. Whenever large ones have replaced
  HOLES_BYTES of small ones, net of the small ones that came meanwhile, the tail says so; other loads cost it nothing.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from logstore.format.batch import HEADER_BYTES

ENTRY_OVERHEAD_BYTES = 700
"""Memory of an entry beside its bytes, as measured: two objects for the buffer, two for its view, the entry, its
offsets, its place in the order. It is counted so that many small batches do not exceed the bound."""
GIVEN_SHARE = 2
"""The tail keeps 1/GIVEN_SHARE of the bound however much is on its way to it."""
LARGE_BYTES = 32 * 1024
"""From here on a batch came in a frame with pages of its own (`SMALL_BYTES` of `kafka/frames.py`), which go back to the
operating system with it."""
HOLES_BYTES = 4 << 20
"""Small batches that leave so much behind leave holes in the heap that large ones do not fill."""
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
    """The bound on the memory of all tails and of what comes to them: first in, first out."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.coming_bytes: Callable[[], int] = _nothing_comes
        """Bytes of requests that are in memory, and whose batches are not in the tail yet."""
        self.on_holes: Callable[[], None] = _nothing
        """Called when small batches have left another HOLES_BYTES of holes in the heap."""
        self._order: deque[tuple[StreamTail, int]] = deque()
        self._large_bytes = 0
        self._has_large = False
        """Since the last `evict`; only large batches replace small ones, so only they look for holes."""
        self._most_small_bytes = 0
        """Since `on_holes` was called last."""

    def push(self, stream: StreamTail, entry: TailEntry) -> None:
        """Add a stream's next batch; `evict` follows when the requests are done that it is from."""
        cost = max(len(entry.buffer), HEADER_BYTES) + ENTRY_OVERHEAD_BYTES
        stream.push(entry)
        self._order.append((stream, cost))
        self.used_bytes += cost
        if cost >= LARGE_BYTES:
            self._large_bytes += cost
            self._has_large = True

    def make_room(self) -> None:
        """A large request has come: evict batches until the bound holds."""
        self._has_large = True
        self.evict()

    def evict(self) -> None:
        """Drop batches until the bound holds."""
        if self._has_large:
            self._most_small_bytes = max(self._most_small_bytes, self.used_bytes - self._large_bytes)
        limit_bytes = self.max_bytes - min(self.coming_bytes(), self.max_bytes // GIVEN_SHARE)
        while self.used_bytes > limit_bytes:
            oldest, freed = self._order.popleft()
            oldest.pop_oldest()
            self.used_bytes -= freed
            if freed >= LARGE_BYTES:
                self._large_bytes -= freed
        if self._has_large:
            self._has_large = False
            self._look_for_holes()

    def _look_for_holes(self) -> None:
        small_bytes = self.used_bytes - self._large_bytes
        if self._most_small_bytes - small_bytes >= HOLES_BYTES:
            self._most_small_bytes = small_bytes
            self.on_holes()


def _nothing_comes() -> int:
    """Nobody says what comes."""
    return 0


def _nothing() -> None:
    """Nobody gives memory back."""

"""The owner's batches that are not acknowledged: their offsets never change, their places change with the chunk.

A batch is *placed* when it has been given a place in the open chunk, and is sent from then on; batches behind the
placed ones wait.

Invariants:
* Offsets are given once, in the order of appending, without gaps. When a chunk is sealed at the acknowledged length,
  the rest is placed anew in the next chunk, at the same offsets.
* `acked` ≤ `placed` ≤ everything in the window, and `acked` never goes back within a chunk.
* Bounded: the caller checks `has_room` before it appends.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from logstore.replica.messages import BatchEntry
from logstore.replica.registrations import Prefix


@dataclass(slots=True)
class _WindowBatch:
    entry: BatchEntry
    offset: int
    start: Prefix | None = None
    end: Prefix | None = None
    placed_ms: int = 0


class AppendWindow:
    """The window of one owner, in front of one chunk after the other."""

    def __init__(self, base_offset: int, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: deque[_WindowBatch] = deque()
        self._placed_count = 0
        self.size_bytes = 0
        self.next_offset = base_offset
        self.acked = self.placed = Prefix.empty(base_offset)

    def __len__(self) -> int:
        return len(self._batches)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a batch of this size may be appended now; one batch always may."""
        return not self._batches or self.size_bytes + size_bytes <= self._max_bytes

    def append(self, entry: BatchEntry) -> int:
        """Take a batch; returns its offset."""
        offset = self.next_offset
        self._batches.append(_WindowBatch(entry, offset))
        self.next_offset += entry.record_count
        self.size_bytes += len(entry.data)
        return offset

    @property
    def is_all_acked(self) -> bool:
        """Whether nothing that was placed waits for its acknowledgement."""
        return self._placed_count == 0

    @property
    def is_all_placed(self) -> bool:
        """Whether no batch waits for its place."""
        return self._placed_count == len(self._batches)

    @property
    def is_empty(self) -> bool:
        """Whether everything is acknowledged."""
        return not self._batches

    def place(self, now_ms: int, max_bytes: int) -> tuple[Prefix, tuple[BatchEntry, ...]]:
        """Place the next batches, about `max_bytes` of them. Returns the prefix in front of them, and them."""
        at = self.placed
        entries: list[BatchEntry] = []
        size = 0
        while self._placed_count < len(self._batches) and size < max_bytes:
            batch = self._batches[self._placed_count]
            batch.start = self.placed
            batch.end = self.placed = self.placed.followed_by(batch.entry.data, batch.entry.record_count)
            batch.placed_ms = now_ms
            size += len(batch.entry.data)
            entries.append(batch.entry)
            self._placed_count += 1
        return at, tuple(entries)

    def entries_from(self, length_bytes: int, max_bytes: int) -> tuple[Prefix, tuple[BatchEntry, ...]] | None:
        """Placed batches from a place on, about `max_bytes` of them; None if no batch in the window begins there."""
        at: Prefix | None = None
        entries: list[BatchEntry] = []
        size = 0
        for batch in self._placed():
            start = batch.start
            if at is None and start is not None and start.length_bytes == length_bytes:
                at = start
            if at is not None:
                if size >= max_bytes:
                    break
                entries.append(batch.entry)
                size += len(batch.entry.data)
        return None if at is None else (at, tuple(entries))

    def waits_since_ms(self, length_bytes: int) -> int | None:
        """When the first batch behind a place was placed; None if there is none."""
        for batch in self._placed():
            if batch.end is not None and batch.end.length_bytes > length_bytes:
                return batch.placed_ms
        return None

    def oldest_ms(self, now_ms: int) -> int:
        """When the first batch that waits for its acknowledgement was placed; now, if none does."""
        return self._batches[0].placed_ms if self._placed_count else now_ms

    def _placed(self) -> Iterator[_WindowBatch]:
        return islice(self._batches, self._placed_count)

    def ack(self, durable: Prefix) -> bool:
        """Everything up to `durable` is acknowledged. Returns whether that is news."""
        before = self.acked
        while self._placed_count:
            batch = self._batches[0]
            if batch.end is None or batch.end.length_bytes > durable.length_bytes:
                break
            self.acked = batch.end
            self.size_bytes -= len(batch.entry.data)
            self._batches.popleft()
            self._placed_count -= 1
        return self.acked != before

    def begin_chunk(self) -> None:
        """The chunk was sealed at `acked`: what is not acknowledged waits to be placed in the next one."""
        self.acked = self.placed = Prefix.empty(self.acked.next_offset)
        self._placed_count = 0
        for batch in self._batches:
            batch.start = batch.end = None

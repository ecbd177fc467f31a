"""Read-ahead: batches that a catch-up read found beyond the requested size, or that a reader will request next.

Invariants:
* Entries are checked and contiguous from their key's offset on; each is handed out once.
* Bounded: `max_bytes` and MAX_POSITIONS entries over all readers; the oldest entry is evicted first. Losing an entry
  only costs a read. An entry keeps at most KEPT_TIMES its bytes (`compact`); who takes of it and does not send that at
  once sees to that itself.

Source: CEC paper, section IX (a replay reads stored events asynchronously, apart from sending them).
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from logstore.format.batch import HEADER_BYTES, parse_header
from logstore.interfaces import Buffer
from logstore.log.reading import ReadResult, compact

MAX_POSITIONS = 256
"""Readers whose place is remembered, to tell sequential reads from seeks, and entries at a time."""


class ReadPosition(NamedTuple):
    """A reader's place: the stream, the offset, and whether it reads control batches."""

    stream: Hashable
    offset: int
    include_control: bool


class ReadAhead:
    """Checked batches that readers will request soon."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._entries: OrderedDict[ReadPosition, ReadResult] = OrderedDict()
        self._positions: OrderedDict[ReadPosition, None] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not self._entries

    def holds(self, place: ReadPosition) -> bool:
        """Whether there is an entry for this place."""
        return place in self._entries

    def put(self, place: ReadPosition, result: ReadResult) -> None:
        """Keep the batches that follow a place."""
        result = compact(result)
        if not result.buffers or result.size_bytes > self._max_bytes:
            return
        self._forget(place)
        self._entries[place] = result
        self._used_bytes += result.size_bytes
        while self._used_bytes > self._max_bytes or len(self._entries) > MAX_POSITIONS:
            self._forget(next(iter(self._entries)))

    def _forget(self, place: ReadPosition) -> None:
        gone = self._entries.pop(place, None)
        if gone is not None:
            self._used_bytes -= gone.size_bytes

    def take(self, place: ReadPosition, max_bytes: int) -> ReadResult | None:
        """Take the entry of a place, up to `max_bytes` (at least one batch); the rest stays for the next place."""
        found = self._entries.get(place)
        if found is None:
            return None
        self._forget(place)
        served, rest = split(found, max_bytes)
        self.put(place._replace(offset=served.next_offset), rest)
        return served

    def is_sequential(self, place: ReadPosition) -> bool:
        """Whether a reader was served up to exactly this place, and so is reading sequentially."""
        return place in self._positions

    def note(self, place: ReadPosition, next_offset: int) -> None:
        """Note that a reader was served from `place` up to `next_offset`."""
        self._positions.pop(place, None)
        self._positions[place._replace(offset=next_offset)] = None
        while len(self._positions) > MAX_POSITIONS:
            self._positions.popitem(last=False)


def split(result: ReadResult, max_bytes: int) -> tuple[ReadResult, ReadResult]:
    """Whole batches of `result` up to `max_bytes` (at least one), and the rest; both in the memory of `result`."""
    if result.size_bytes <= max_bytes:
        return result, ReadResult([], result.next_offset, 0)
    buffers: list[Buffer] = []
    size = 0
    next_offset = -1
    for number, buffer in enumerate(result.buffers):
        if size + len(buffer) <= max_bytes:
            buffers.append(buffer)
            size += len(buffer)
            continue
        view = memoryview(buffer)
        cut = 0
        while len(view) - cut >= HEADER_BYTES:
            header = parse_header(view, cut)
            if (buffers or cut) and size + cut + header.size_bytes > max_bytes:
                break
            cut += header.size_bytes
            next_offset = header.next_offset
        if cut:
            buffers.append(view[:cut])
        else:
            next_offset = parse_header(view).base_offset
        rest = [view[cut:], *result.buffers[number + 1 :]] if cut < len(view) else list(result.buffers[number + 1 :])
        served = ReadResult(buffers, next_offset, size + cut)
        left = ReadResult(rest, result.next_offset, result.size_bytes - served.size_bytes)
        return served, left
    return result, ReadResult([], result.next_offset, 0)

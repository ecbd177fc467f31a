"""A stream's backlog: acknowledged batches that are durable in the journal, but not in the stream's chunk yet.

Invariants:
* Three ends of the last chunk, `synced` ≤ the chunk's own (`Chunk.size_bytes`, what its file holds) ≤ `acked`. What is
  behind `synced` is in the journal; what is behind the chunk's own end is in `unwritten`, in memory, too.
* `unwritten` is contiguous: it starts at the chunk's next offset and ends at `acked`.
* `holds` names every generation of the journal with data of the stream behind `synced`: such a file is not reused.
"""

from bisect import bisect_right
from typing import NamedTuple

from logstore.format.index import NO_TIMESTAMP, IndexEntry
from logstore.log.chunks import Chunk
from logstore.log.tail import TailEntry

ENTRY_OVERHEAD_BYTES = 300
"""Memory of an unwritten batch beside its bytes."""


class ChunkEnd(NamedTuple):
    """An end of a chunk: position in the file, next offset, and the latest timestamp before it (ms)."""

    position: int
    next_offset: int
    max_timestamp: int = NO_TIMESTAMP


def end_of(chunk: Chunk) -> ChunkEnd:
    """The end of what a chunk's file holds."""
    return ChunkEnd(chunk.size_bytes, chunk.next_offset, chunk.max_timestamp)


class Backlog:
    """What the journal has of one stream and the chunk has not."""

    __slots__ = ("acked", "entries", "holds", "indexed", "synced", "unwritten", "unwritten_bytes")

    def __init__(self, end: ChunkEnd) -> None:
        self.synced = end
        self.acked = end
        self.unwritten: list[TailEntry] = []
        self.unwritten_bytes = 0
        self.entries: list[IndexEntry] = []
        """Index entries of batches behind the last block of the index."""
        self.indexed = 0
        """So many of `entries` are in the chunk's index in memory."""
        self.holds: dict[int, int] = {}
        """Generation of the journal, and the offset after the stream's last batch in it."""

    @property
    def is_unsynced(self) -> bool:
        """Whether acknowledged data is durable in the journal only."""
        return self.synced.position < self.acked.position

    def add(self, batches: list[TailEntry], entries: list[IndexEntry], end: ChunkEnd, generation: int) -> None:
        """Take batches that are durable in the journal now, up to `end`."""
        self.unwritten += batches
        self.unwritten_bytes += sum(len(batch.buffer) + ENTRY_OVERHEAD_BYTES for batch in batches)
        self.entries += entries
        self.acked = end
        self.holds[generation] = end.next_offset

    def take_unwritten(self, batches: list[TailEntry]) -> None:
        """Replace the unwritten batches."""
        self.unwritten = batches
        self.unwritten_bytes = sum(len(batch.buffer) + ENTRY_OVERHEAD_BYTES for batch in batches)

    def written(self, count: int) -> None:
        """Forget the oldest `count` unwritten batches: the file holds them now."""
        self.unwritten_bytes -= sum([len(batch.buffer) + ENTRY_OVERHEAD_BYTES for batch in self.unwritten[:count]])
        del self.unwritten[:count]

    def unindexed(self, count: int) -> list[IndexEntry]:
        """Of the first `count` entries those that the index in memory does not have yet; it has them from now on."""
        found = self.entries[self.indexed : count]
        self.indexed = max(self.indexed, count)
        return found

    def proven(self, count: int) -> None:
        """Forget the first `count` entries: the index file has them, or will never have them."""
        del self.entries[:count]
        self.indexed = max(0, self.indexed - count)

    def released(self, next_offset: int) -> list[int]:
        """The generations that the stream holds no more, as its chunk is synced up to an offset."""
        if next(iter(self.holds.values()), next_offset) > next_offset:  # the oldest, which has the lowest end
            return []
        gone = [generation for generation, end in self.holds.items() if end <= next_offset]
        for generation in gone:
            del self.holds[generation]
        return gone

    def read(self, offset: int, max_bytes: int) -> list[TailEntry] | None:
        """Batches from the one that holds `offset` on: at least one, up to `max_bytes`; None if it is not here."""
        if not self.unwritten or offset < self.unwritten[0].base_offset:
            return None
        at = bisect_right(self.unwritten, offset, key=_base_offset) - 1
        found: list[TailEntry] = []
        size = 0
        for entry in self.unwritten[at:]:
            size += len(entry.buffer)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found


def _base_offset(entry: TailEntry) -> int:
    return entry.base_offset

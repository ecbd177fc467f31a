"""The disk of one host in the simulation of replication: chunks, fences and the label, each durable only once synced.

Model: operations on one chunk are carried out in order, each one with its sync. A crash keeps of each chunk a random
number of the operations that were not reported, and of the next one a random part; a fence that was not reported is
kept or not. What a start finds is synced before it is used, as the log's recovery does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from random import Random

from logstore.replica.effects import CutChunk, DiskOperation, Load, RemoveChunk, RemoveFence, WriteEntries, WriteFence
from logstore.replica.identity import DiskLabel
from logstore.replica.known_replicas import StoredChunk, StoredReplicas
from logstore.replica.messages import BatchEntry
from logstore.replica.registrations import Prefix

Key = tuple[str, int]


def founding_of(base_offset: int) -> bytes:
    """What the owner gives a chunk at its start."""
    return b"state at %d" % base_offset


@dataclass
class ChunkFile:
    """The synced entries of a chunk."""

    base_offset: int
    entries: list[BatchEntry] = field(default_factory=list)
    is_sealed: bool = False
    founding: bytes = b""
    prefixes: list[Prefix] = field(init=False)
    """The prefix in front of each entry, and the one behind all."""

    def __post_init__(self) -> None:
        self.prefixes = [Prefix.empty(self.base_offset)]
        written, self.entries = self.entries, []
        self.write(written)

    def write(self, entries: Iterable[BatchEntry]) -> None:
        """Append entries."""
        for entry in entries:
            self.entries.append(entry)
            self.prefixes.append(self.prefixes[-1].followed_by(*entry))

    def cut(self, count: int) -> None:
        """Keep some entries, and seal the chunk."""
        del self.entries[count:]
        del self.prefixes[count + 1 :]
        self.is_sealed = True

    @property
    def end(self) -> Prefix:
        """The prefix behind all entries."""
        return self.prefixes[-1]


class DiskError(Exception):
    """An operation failed: the disk refuses."""


class Damage(DiskError):
    """A checksum does not fit."""


class ReplicaDisk:
    """A disk; it outlives its host."""

    def __init__(self, label: DiskLabel) -> None:
        self.label = label
        self.chunks: dict[Key, ChunkFile] = {}
        self.fences: dict[str, int] = {}
        self.fails = False
        self.knows_founding = True
        """Whether owners give chunks what `founding_of` says; streams with real producers give other things."""
        """Every write fails from now on, until the host starts again."""
        self.is_full = False
        """There is no room for entries."""
        self._pending: dict[Key, deque[DiskOperation]] = {}
        self._pending_fences: list[WriteFence | RemoveFence] = []

    # ---- as the host uses it

    def begin(self, operation: DiskOperation) -> None:
        """An operation was asked for."""
        if isinstance(operation, WriteFence | RemoveFence):
            self._pending_fences.append(operation)
        else:
            self._pending.setdefault((operation.stream, operation.epoch), deque()).append(operation)

    def finish(self, operation: DiskOperation) -> None:
        """The operation is carried out and synced. Raises DiskError."""
        if isinstance(operation, WriteFence | RemoveFence):
            self._pending_fences.remove(operation)
        else:
            first = self._pending[operation.stream, operation.epoch].popleft()
            assert first is operation, "operations of a chunk end in order"
        if self.fails:
            raise DiskError(f"{operation} failed")
        self._apply(operation)

    def _apply(self, operation: DiskOperation) -> None:
        if isinstance(operation, WriteFence):
            self.fences[operation.stream] = max(operation.fence_epoch, self.fences.get(operation.stream, 0))
            return
        if isinstance(operation, RemoveFence):
            self.fences.pop(operation.stream, None)
            return
        key = (operation.stream, operation.epoch)
        if isinstance(operation, RemoveChunk):
            self.chunks.pop(key, None)
        elif isinstance(operation, WriteEntries):
            if key not in self.chunks:
                self.chunks[key] = ChunkFile(operation.at.next_offset, founding=operation.founding)
            chunk = self.chunks[key]
            assert not self.knows_founding or chunk.founding == founding_of(chunk.base_offset), (
                "a copy has what its owner gave it at its start"
            )
            chunk.write(operation.entries)
        elif isinstance(operation, CutChunk):
            self._cut(self.chunks[key], operation.end)

    def _cut(self, chunk: ChunkFile, end: Prefix) -> None:
        if end not in chunk.prefixes:
            raise Damage(f"the chunk has no prefix {end}")
        chunk.cut(chunk.prefixes.index(end))

    def load(self, load: Load) -> tuple[Prefix, list[BatchEntry], int, bytes]:
        """Entries from an offset on, in front of the limit, the limit's offset, and what was founded if they are the
        first. Raises DiskError.
        """
        chunk = self.chunks.get((load.stream, load.epoch))
        prefixes = chunk.prefixes if chunk is not None else [Prefix.empty(load.offset)]
        limit = prefixes[bisect_right(prefixes, load.limit_bytes, key=attrgetter("length_bytes")) - 1]
        number = bisect_left(prefixes, load.offset, key=attrgetter("next_offset"))
        at = (
            prefixes[number]
            if number < len(prefixes) and prefixes[number].length_bytes <= limit.length_bytes
            else limit
        )
        entries: list[BatchEntry] = []
        size = 0
        while chunk is not None and number < len(chunk.entries) and size < load.max_bytes:
            if prefixes[number].length_bytes >= limit.length_bytes:
                break
            entry = chunk.entries[number]
            if entry.data.startswith(b"!"):
                raise Damage(f"a bit has flipped in {entry.data!r}")
            entries.append(entry)
            size += len(entry.data)
            number += 1
        is_first = chunk is not None and at.length_bytes == 0
        return at, entries, limit.next_offset, chunk.founding if chunk is not None and is_first else b""

    # ---- as the world treats it

    def crash(self, random: Random) -> None:
        """The power goes: see the model."""
        for operations in self._pending.values():
            for operation in list(operations)[: random.randint(0, len(operations))]:
                kept = self._torn(operation, random)
                try:
                    self._apply(kept)
                except (DiskError, KeyError):
                    break
                if kept != operation:
                    break  # recovery cuts at the first batch that is not whole, and all behind it
        for fence in self._pending_fences:
            if random.random() < 0.5:
                self._apply(fence)
        self._pending.clear()
        self._pending_fences.clear()
        self.fails = False

    def _torn(self, operation: DiskOperation, random: Random) -> DiskOperation:
        if not isinstance(operation, WriteEntries) or random.random() < 0.7:
            return operation
        kept = operation.entries[: random.randint(0, len(operation.entries))]
        return replace(operation, entries=kept)

    def found(self) -> StoredReplicas:
        """What a start finds."""
        chunks = {}
        for key, chunk in self.chunks.items():
            whole = next((number for number, entry in enumerate(chunk.entries) if entry.data.startswith(b"!")), None)
            durable = chunk.end if whole is None else chunk.prefixes[whole]
            if chunk.entries:
                chunks[key] = StoredChunk(chunk.base_offset, durable, chunk.is_sealed, is_damaged=whole is not None)
        return StoredReplicas(dict(self.fences), chunks)

    def rot(self, key: Key, number: int) -> None:
        """A bit flips in an entry: reading it fails from now on."""
        entry = self.chunks[key].entries[number]
        self.chunks[key].entries[number] = BatchEntry(b"!" + entry.data[1:], entry.record_count)

    def copy(self) -> ReplicaDisk:
        """A snapshot of what is synced."""
        made = ReplicaDisk(self.label)
        made.fences = dict(self.fences)
        made.chunks = {
            key: ChunkFile(chunk.base_offset, list(chunk.entries), chunk.is_sealed, chunk.founding)
            for key, chunk in self.chunks.items()
        }
        return made

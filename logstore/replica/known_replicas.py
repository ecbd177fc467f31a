"""A host's replicas of chunks: the states of one, and all of them by stream.

Invariants:
* A replica is *settled* when a registration is unable to change anything about it before its own entry there changes:
  it is sealed and whole, another chunk follows it, and the registration that was seen last lists it. All others are
  looked at with each registration, and settled ones only where two registrations differ: so a roll costs the same
  however many chunks a stream has.
* What a stream's registration was is kept for `MAX_SEEN_CHUNKS` at most; without it all replicas of the stream are
  looked at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from logstore.replica.messages import CopyChunk, Fence, Reason
from logstore.replica.registrations import (
    MAX_CHUNKS,
    ChunkRegistration,
    Member,
    Prefix,
    StreamRegistration,
    differing_chunks,
)

MAX_SEEN_CHUNKS: Final = 4 * MAX_CHUNKS
"""Of all streams together. They are shared with what the host keeps of registrations anyway."""


class ReplicaState(Enum):
    """The life of one host's replica of a chunk."""

    OPEN = "open"
    """Takes appends, if its epoch is not fenced."""
    SEALING = "sealing"
    """Is being cut to the length that the registration says."""
    SEALED = "sealed"
    """Holds the whole chunk, durably."""
    FAILED = "failed"
    """A write or a sync has failed, or a read found damage: what is whole is served, nothing is added, until the next
    start of the host, which looks at it anew; a copy takes its place when the registration has dropped it."""
    REMOVING = "removing"
    """The stream's registration does not list it."""


class ReplicaEvent(Enum):
    """What moves a replica of a chunk to another state."""

    SEAL = "registration shows the end"
    CUT = "cut"
    FAIL = "write, sync or read failed"
    UNLIST = "registration lists it no more"


TRANSITIONS: Final = {
    (ReplicaState.OPEN, ReplicaEvent.SEAL): ReplicaState.SEALING,
    (ReplicaState.SEALING, ReplicaEvent.CUT): ReplicaState.SEALED,
    (ReplicaState.OPEN, ReplicaEvent.FAIL): ReplicaState.FAILED,
    (ReplicaState.FAILED, ReplicaEvent.FAIL): ReplicaState.FAILED,
    (ReplicaState.SEALED, ReplicaEvent.FAIL): ReplicaState.FAILED,
    (ReplicaState.SEALING, ReplicaEvent.FAIL): ReplicaState.FAILED,
    (ReplicaState.OPEN, ReplicaEvent.UNLIST): ReplicaState.REMOVING,
    (ReplicaState.SEALED, ReplicaEvent.UNLIST): ReplicaState.REMOVING,
    (ReplicaState.FAILED, ReplicaEvent.UNLIST): ReplicaState.REMOVING,
    (ReplicaState.REMOVING, ReplicaEvent.FAIL): ReplicaState.FAILED,
}


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """What a start finds of a chunk on the disk: whole entries, whose checksums are right."""

    base_offset: int
    durable: Prefix
    is_sealed: bool
    is_damaged: bool = False
    """Behind `durable` there is data that was once durable, and cannot be read: the copy counts for nothing."""


@dataclass(frozen=True, slots=True)
class StoredReplicas:
    """What a start finds on the disk: the fence of each stream, and chunks by stream and epoch."""

    fences: dict[str, int] = field(default_factory=dict)
    chunks: dict[tuple[str, int], StoredChunk] = field(default_factory=dict)


@dataclass(slots=True)
class CopyOrdered:
    """A copy in progress, or done: for whom, from whom, up to where."""

    owner: str
    order: CopyChunk


@dataclass(slots=True)
class ReplicaChunk:
    """A replica of one chunk. `end`: with what is not durable yet. `readable_bytes`: what readers may see."""

    stream: str
    epoch: int
    base_offset: int
    end: Prefix
    durable: Prefix
    state: ReplicaState = ReplicaState.OPEN
    acked_bytes: int = 0
    is_followed: bool = False
    is_damaged: bool = False
    was_sealed: bool = False
    """When damage was found: its end is known, whatever of it cannot be read."""
    copy: CopyOrdered | None = None
    copy_revision: int = 0
    asked_at: int = 0
    """How many operations of the disk were done when the owner was answered last."""
    fences: list[tuple[str, Fence]] = field(default_factory=list)
    """Fences that are not answered yet, with who asked."""

    @property
    def failure(self) -> Reason:
        """Why a replica that has failed takes nothing."""
        return Reason.DAMAGED if self.is_damaged else Reason.DISK_FAILED

    def is_settled(self, me: Member, shown: ChunkRegistration | None) -> bool:
        """Whether a registration that shows the chunk so has nothing more to say about it."""
        is_listed = shown is not None and shown.names(me)
        is_whole = self.state is ReplicaState.SEALED and not self.is_damaged
        return is_listed and is_whole and self.is_followed and not self.fences and self.copy is None


class KnownReplicas:
    """All replicas of one host. See the module."""

    def __init__(self) -> None:
        self._by_stream: dict[str, dict[int, ReplicaChunk]] = {}
        self._unsettled: dict[str, dict[int, ReplicaChunk]] = {}
        self._seen: dict[str, StreamRegistration] = {}
        self._seen_chunks = 0

    def __iter__(self) -> Iterator[ReplicaChunk]:
        for chunks in self._by_stream.values():
            yield from chunks.values()

    def get(self, stream: str, epoch: int) -> ReplicaChunk | None:
        """The replica of a chunk, or None."""
        return self._by_stream.get(stream, {}).get(epoch)

    def of_stream(self, stream: str) -> Mapping[int, ReplicaChunk]:
        """The replicas of a stream's chunks, by epoch."""
        return self._by_stream.get(stream, {})

    def streams(self) -> list[str]:
        """The streams with a replica here."""
        return sorted(self._by_stream)

    def add(self, chunk: ReplicaChunk) -> None:
        """A replica that is not known yet."""
        self._by_stream.setdefault(chunk.stream, {})[chunk.epoch] = chunk
        self.unsettle(chunk)

    def drop(self, chunk: ReplicaChunk) -> None:
        """A replica is gone."""
        for by_stream in (self._by_stream, self._unsettled):
            chunks = by_stream.get(chunk.stream, {})
            chunks.pop(chunk.epoch, None)
            if not chunks:
                by_stream.pop(chunk.stream, None)
        if chunk.stream not in self._by_stream:
            self._forget(chunk.stream)

    # ---- what registrations are to say

    def unsettle(self, chunk: ReplicaChunk) -> None:
        """Something has happened to a replica: the next registration is to say what follows."""
        self._unsettled.setdefault(chunk.stream, {})[chunk.epoch] = chunk

    def unsettled(self, stream: str) -> list[ReplicaChunk]:
        """The replicas of a stream that are not settled."""
        return list(self._unsettled.get(stream, {}).values())

    def shown(self, stream: str, registration: StreamRegistration) -> list[ReplicaChunk]:
        """A registration is seen: the replicas about which it may say something. `settle` them afterwards."""
        chunks, unsettled = self._by_stream.get(stream, {}), self._unsettled.get(stream, {})
        before = self._seen.get(stream)
        if chunks:
            self._keep(stream, registration)
        if before is None:
            return list(chunks.values())
        if before.chunks is registration.chunks:
            return list(unsettled.values())
        gone, _, fresh = differing_chunks(before, registration)
        changed = dict.fromkeys(chunk.epoch for chunk in (*gone, *fresh))
        return [*unsettled.values(), *(chunks[each] for each in changed if each in chunks and each not in unsettled)]

    def settle(self, chunk: ReplicaChunk, me: Member, shown: ChunkRegistration | None) -> None:
        """A registration has been looked at for a replica, which it shows so."""
        if not chunk.is_settled(me, shown):
            self.unsettle(chunk)
        elif chunk.stream in self._unsettled:
            self._unsettled[chunk.stream].pop(chunk.epoch, None)
            if not self._unsettled[chunk.stream]:
                del self._unsettled[chunk.stream]

    def _keep(self, stream: str, registration: StreamRegistration) -> None:
        self._forget(stream)
        self._seen[stream] = registration
        self._seen_chunks += len(registration.chunks) + 1
        while self._seen_chunks > MAX_SEEN_CHUNKS and len(self._seen) > 1:
            self._forget(next(iter(self._seen)))

    def _forget(self, stream: str) -> None:
        known = self._seen.pop(stream, None)
        self._seen_chunks -= 0 if known is None else len(known.chunks) + 1

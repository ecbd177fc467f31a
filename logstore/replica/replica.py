"""The replicas of chunks on a host. The module accepts appends in order, fences chunks, serves reads and copies, and
removes replicas that registrations no longer list.

Invariants:
* An append is accepted only if its epoch is at or above the stream's fence, and only directly after the end of the
  replica, with the same checksum before it. So a replica is always a prefix of the bytes that the owner has sent.
* `AppendDone` names only durable bytes.
* `FenceDone` is sent when the fence and every append accepted before it are durable; the length that it names is final.
  A received fence refuses appends at once, also before it is durable.
* Only the registration of a stream causes a cut, a seal or a removal of a chunk, never a message from an owner. The
  registration of a sealed chunk never changes its end, so an old registration does no harm. A chunk that the
  registration does not list is removed only if the registration's epoch is above the chunk's epoch (a chunk is listed
  before its first append), and if its revision is not below the revision that named the replica for a copy.
* While the disk has no room, entries are refused and the chunk stays as it is. Fences, cuts and removals are carried
  out: they make room, or let other hosts continue.
* A failed write or sync is final for the chunk: its earlier durable bytes are served, nothing is added.
* A replica with damage in durable bytes reports the damage, and never a shorter length. Its owner removes it from the
  registration, then the replica is removed and copied again.
* Readers see acknowledged bytes: up to the acknowledged length while the chunk is open or the last chunk, and all of a
  sealed chunk that another chunk follows.

Bounded: `max_unsynced_bytes` of entries that are not durable, over all chunks; further entries are dropped, and the
owner sends them again. One copy of each chunk at a time. Memory for each chunk does not depend on its size.

Sources: Apache BookKeeper's bookies (fencing, last add confirmed); HDFS's pipeline (data along a chain); etcd's raft
(messages that carry everything needed to judge them).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from logstore.base.states import following
from logstore.replica.effects import (
    CutChunk,
    DiskOperation,
    Effect,
    Load,
    RemoveChunk,
    RemoveFence,
    Send,
    StoreDurably,
    WriteEntries,
    WriteFence,
)
from logstore.replica.known_replicas import (
    TRANSITIONS,
    CopyOrdered,
    KnownReplicas,
    ReplicaChunk,
    ReplicaEvent,
    ReplicaState,
    StoredReplicas,
)
from logstore.replica.messages import (
    Append,
    AppendDone,
    BatchEntry,
    CopyChunk,
    CopyDone,
    CopyProgress,
    EntriesRead,
    Fence,
    FenceDone,
    LookAtRegistration,
    OutOfOrder,
    ReadEntries,
    Reason,
    Refused,
    ToReplica,
    end_after,
    unknown_entries,
)
from logstore.replica.register import ReadRegistration
from logstore.replica.registrations import ChunkRegistration, Member, Prefix, StreamRegistration

MAX_UNSYNCED_BYTES: Final = 64 << 20
"""Entries in memory that are not durable yet, for all streams of a host."""
COPY_BYTES: Final = 1 << 20
"""What a copy asks for at a time, at most: the host may make it less."""


class Replica:
    """All replicas of one host, on one disk."""

    def __init__(
        self,
        me: Member,
        stored: StoredReplicas,
        max_unsynced_bytes: int = MAX_UNSYNCED_BYTES,
        has_room: Callable[[int], bool] = lambda size_bytes: True,
    ) -> None:
        """`has_room`: whether the disk may take so many bytes of entries now."""
        self.me = me
        self._has_room = has_room
        self._max_unsynced_bytes = max_unsynced_bytes
        self._fences = dict(stored.fences)
        self._durable_fences = dict(stored.fences)
        self._chunks = KnownReplicas()
        for (stream, epoch), chunk in stored.chunks.items():
            state = ReplicaState.SEALED if chunk.is_sealed else ReplicaState.OPEN
            found = ReplicaChunk(stream, epoch, chunk.base_offset, chunk.durable, chunk.durable, state)
            self._chunks.add(found)
            if chunk.is_damaged:
                self._fail(found, is_damaged=True)
        self._tokens = 0
        self._stores: dict[int, tuple[DiskOperation, str, Prefix | None]] = {}
        """Operations under way, who is answered, and, of a write, where its entries end."""
        self._loads: dict[int, tuple[str, ReadEntries]] = {}
        self._unsynced_bytes = self._operations = 0
        self._begun: dict[str, None] = {}
        self._owner_hosts: dict[str, str] = {}
        """Who gets reports of damage."""
        self._handlers: dict[type, Callable[[str, Any], list[Effect]]] = {
            Append: self._append,
            Fence: self._fence,
            CopyChunk: self._copy,
            ReadEntries: self._read,
            EntriesRead: self._piece,
            Refused: self._piece_refused,
        }

    # ---- events

    def receive(self, sender: str, message: ToReplica | EntriesRead | Refused) -> list[Effect]:
        """A message from another host, or from this one."""
        if isinstance(message, LookAtRegistration):
            return [ReadRegistration(message.stream)]
        return self._handlers[type(message)](sender, message)

    def streams(self) -> list[str]:
        """The streams of which there is a chunk here: whose registrations the host should look at when it starts."""
        return self._chunks.streams()

    def fenced_streams(self) -> list[str]:
        """The streams with a fence here, which stays until their topic is deleted."""
        return sorted(self._fences)

    @property
    def counts(self) -> tuple[int, int]:
        """How many replicas take entries still, and how many are sealed; each look counts them all."""
        states = [chunk.state for chunk in self._chunks]
        return states.count(ReplicaState.OPEN), states.count(ReplicaState.SEALED)

    def has_chunks_of(self, stream: str) -> bool:
        """Whether there is a chunk of the stream here."""
        return bool(self._chunks.of_stream(stream))

    def has_end_of(self, stream: str, open_chunk: ChunkRegistration) -> bool:
        """Whether the last records of a stream are here: some of its open chunk, or all of the chunk in front of it."""
        chunks = self._chunks.of_stream(stream)
        own = chunks.get(open_chunk.epoch)
        if own is not None and own.durable.length_bytes and own.state is not ReplicaState.FAILED:
            return True
        return any(
            chunk.state is ReplicaState.SEALED and chunk.durable.next_offset == open_chunk.base_offset
            for chunk in chunks.values()
        )

    def has_anything_of(self, stream: str) -> bool:
        """Whether there is a chunk of the stream here, or a fence."""
        return stream in self._fences or self.has_chunks_of(stream)

    def has_failed(self, stream: str) -> bool:
        """Whether a replica of the stream takes nothing more: another copy may take its place when the registration has
        dropped it.
        """
        return any(chunk.state is ReplicaState.FAILED for chunk in self._chunks.unsettled(stream))

    def begun(self) -> dict[str, None]:
        """The streams with a replica that was begun since the last call, as a message said, which may have come from an
        owner that was replaced: a registration, as the host knows it, is to be shown after a while.
        """
        begun, self._begun = self._begun, {}
        return begun

    def fence_of(self, stream: str) -> int:
        """The lowest epoch from which appends are taken."""
        return self._fences.get(stream, 0)

    def _step(self, chunk: ReplicaChunk, event: ReplicaEvent) -> None:
        chunk.state = following(TRANSITIONS, chunk.state, event, f"replica of {chunk.stream} epoch {chunk.epoch}")

    def _fail(self, chunk: ReplicaChunk, *, is_damaged: bool) -> None:
        """Nothing is added any more. `is_damaged`: what was durable cannot be read."""
        self._step(chunk, ReplicaEvent.FAIL)
        self._chunks.unsettle(chunk)
        chunk.end = chunk.durable
        chunk.is_damaged = chunk.is_damaged or is_damaged

    def _fail_damaged(self, chunk: ReplicaChunk) -> None:
        """A part cannot be read. Readers of a sealed chunk see the other parts still: it may be the last copy."""
        chunk.was_sealed = chunk.state is ReplicaState.SEALED
        self._fail(chunk, is_damaged=True)

    # ---- appends

    def _append(self, sender: str, message: Append) -> list[Effect]:
        refused = self._refusal(message)
        if refused is not None:
            return [Send(message.owner, refused)]
        chunk = self._chunks.get(message.stream, message.epoch)
        if chunk is None:
            chunk = self._new_chunk(message.stream, message.epoch, message.base_offset)
        forward = self._forward(message)
        if message.at.length_bytes > chunk.end.length_bytes:  # something in front of it was lost
            return [*forward, Send(message.owner, OutOfOrder(message.stream, message.epoch, self.me, chunk.end))]
        entries = self._unknown_entries(chunk, message)
        if entries is None:
            return [Send(message.owner, self._refused(message.stream, message.epoch, Reason.DIVERGED))]
        chunk.acked_bytes = max(chunk.acked_bytes, min(message.acked_bytes, chunk.end.length_bytes))
        if not message.entries:
            return forward
        if not entries:
            return [*forward, Send(message.owner, self._append_done(chunk))]
        size = sum(len(entry.data) for entry in entries)
        if self._unsynced_bytes + size > self._max_unsynced_bytes:
            return forward
        if not self._has_room(size):
            return [*forward, Send(message.owner, self._refused(message.stream, message.epoch, Reason.DISK_FULL))]
        self._unsynced_bytes += size
        chunk.asked_at = self._operations
        founding = b"" if chunk.end.length_bytes else message.founding
        operation = WriteEntries(message.stream, message.epoch, chunk.end, entries, founding)
        chunk.end = end_after(chunk.end, entries)
        return [*forward, self._store(operation, message.owner, chunk.end)]

    def _refusal(self, message: Append) -> Refused | None:
        """Why an append is not taken, whatever it holds; None if it may be."""
        chunk = self._chunks.get(message.stream, message.epoch)
        reason: Reason | None = None
        if message.disk != self.me.disk:
            reason = Reason.WRONG_DISK
        elif message.epoch < self.fence_of(message.stream):
            reason = Reason.FENCED
        elif chunk is not None and chunk.state is ReplicaState.FAILED:
            reason = chunk.failure
        elif chunk is not None and (chunk.state is not ReplicaState.OPEN or chunk.copy is not None):
            reason = Reason.SEALED
        return None if reason is None else self._refused(message.stream, message.epoch, reason)

    def _unknown_entries(self, chunk: ReplicaChunk, message: Append) -> tuple[BatchEntry, ...] | None:
        return unknown_entries(chunk.end, message)

    def _forward(self, message: Append) -> list[Effect]:
        if not message.forward:
            return []
        following_member, *rest = message.forward
        onward = replace(message, disk=following_member.disk, forward=tuple(rest))
        return [Send(following_member.host, onward)]

    def _new_chunk(self, stream: str, epoch: int, base_offset: int) -> ReplicaChunk:
        nothing = Prefix.empty(base_offset)
        chunk = ReplicaChunk(stream, epoch, base_offset, nothing, nothing)
        self._chunks.add(chunk)
        self._begun[stream] = None
        return chunk

    def _replica(self, stream: str, epoch: int) -> ReplicaChunk:
        chunk = self._chunks.get(stream, epoch)
        if chunk is None:
            raise AssertionError(f"there is no replica of {stream} epoch {epoch}")
        return chunk

    def was_copied(self, stream: str, epoch: int) -> bool:
        """Whether a copy of the sealed chunk was ordered here: entries for it may come, also from behind its end."""
        chunk = self._chunks.get(stream, epoch)
        return chunk is not None and chunk.copy_revision > 0

    def _refused(self, stream: str, epoch: int, reason: Reason) -> Refused:
        return Refused(stream, epoch, self.me, reason, self.fence_of(stream))

    # ---- fences

    def _fence(self, sender: str, message: Fence) -> list[Effect]:
        if message.disk != self.me.disk:
            return [Send(sender, self._refused(message.stream, message.epoch, Reason.WRONG_DISK))]
        if message.fence_epoch < self.fence_of(message.stream):
            return [Send(sender, self._refused(message.stream, message.epoch, Reason.FENCED))]
        chunk = self._chunks.get(message.stream, message.epoch)
        if chunk is None:
            # On the right disk: nothing of this chunk was ever durable here, so nothing of it was acknowledged.
            chunk = self._new_chunk(message.stream, message.epoch, message.base_offset)
        self._fences[message.stream] = message.fence_epoch
        if chunk.is_damaged:
            # Never a shorter length: the chunk would be sealed there, and what others still have would be gone.
            return [Send(sender, self._refused(message.stream, message.epoch, Reason.DAMAGED))]
        chunk.fences = [(sender, message)]
        self._chunks.unsettle(chunk)
        if self._durable_fences.get(message.stream, 0) >= message.fence_epoch:
            return self._fence_answers(chunk)
        return [self._store(WriteFence(message.stream, message.fence_epoch), sender)]

    def _fence_answers(self, chunk: ReplicaChunk) -> list[Effect]:
        """The answers to fences that are durable, once every append taken before them is."""
        if not self._is_settled(chunk):
            return []
        effects: list[Effect] = []
        waiting, chunk.fences = chunk.fences, []
        for sender, fence in waiting:
            if self._durable_fences.get(chunk.stream, 0) < fence.fence_epoch:
                chunk.fences.append((sender, fence))
                continue
            done = FenceDone(chunk.stream, chunk.epoch, self.me, fence.fence_epoch, chunk.durable, chunk.acked_bytes)
            effects.append(Send(sender, done))
        return effects

    def _is_settled(self, chunk: ReplicaChunk) -> bool:
        return chunk.durable == chunk.end

    # ---- the disk

    def _store(self, operation: DiskOperation, asker: str, end: Prefix | None = None) -> StoreDurably:
        self._tokens += 1
        self._stores[self._tokens] = (operation, asker, end)
        return StoreDurably(self._tokens, operation)

    def stored(self, token: int) -> list[Effect]:
        """An operation is done and durable."""
        operation, asker, end = self._stores.pop(token)
        self._operations += 1
        if isinstance(operation, RemoveFence):
            self._fences.pop(operation.stream, None)
            self._durable_fences.pop(operation.stream, None)
            return []
        if isinstance(operation, WriteFence):
            fence = max(operation.fence_epoch, self._durable_fences.get(operation.stream, 0))
            self._durable_fences[operation.stream] = fence
            fenced = self._chunks.unsettled(operation.stream)
            return [effect for chunk in fenced for effect in self._fence_answers(chunk)]
        chunk = self._replica(operation.stream, operation.epoch)
        if isinstance(operation, WriteEntries):
            return self._written(chunk, operation, asker, end or end_after(operation.at, operation.entries))
        if isinstance(operation, RemoveChunk):
            self._chunks.drop(chunk)
            return []
        chunk.end = chunk.durable = operation.end
        self._step(chunk, ReplicaEvent.CUT)
        return self._copy_done(chunk)

    def store_failed(self, token: int, *, is_damaged: bool = False) -> list[Effect]:
        """An operation failed: the chunk, or the fence, is as it was durable before. `is_damaged`: a cut has found that
        the bytes do not match their checksum. A cut that the disk refused is no damage: the copy is whole.
        """
        operation, asker, _ = self._stores.pop(token)
        if isinstance(operation, RemoveFence):
            return []  # it is tried again
        if isinstance(operation, WriteFence):
            return [Send(asker, self._refused(operation.stream, 0, Reason.DISK_FAILED))]
        chunk = self._replica(operation.stream, operation.epoch)
        if isinstance(operation, WriteEntries):
            self._forget_unsynced(operation)
        self._fail(chunk, is_damaged=is_damaged)
        asked_by = chunk.copy.owner if chunk.copy is not None else asker
        chunk.copy = None
        refused = Send(asked_by, self._refused(chunk.stream, chunk.epoch, chunk.failure))
        return [refused, *self._fence_answers(chunk)]

    def _written(self, chunk: ReplicaChunk, operation: WriteEntries, owner: str, end: Prefix) -> list[Effect]:
        self._forget_unsynced(operation)
        if chunk.state is ReplicaState.FAILED:
            return []  # an earlier write failed: what lies behind a hole counts for nothing
        chunk.durable = end
        if chunk.state is ReplicaState.REMOVING:
            return []
        if chunk.copy is not None:
            progress = self.progress_of(chunk.stream, chunk.epoch)
            return [*self._fence_answers(chunk), *progress, *self._continue_copy(chunk)]
        return [Send(owner, self._append_done(chunk)), *self._fence_answers(chunk)]

    def _append_done(self, chunk: ReplicaChunk) -> AppendDone:
        is_working = chunk.durable != chunk.end and chunk.asked_at < self._operations
        chunk.asked_at = self._operations
        return AppendDone(chunk.stream, chunk.epoch, self.me, chunk.durable, is_working)

    def _forget_unsynced(self, operation: WriteEntries) -> None:
        self._unsynced_bytes -= sum(len(entry.data) for entry in operation.entries)

    # ---- what the registration says

    def registration_seen(self, stream: str, revision: int, registration: StreamRegistration) -> list[Effect]:
        """A stream's registration, as it is or was: seals what it shows as sealed, removes what it does not list."""
        effects: list[Effect] = []
        self._owner_hosts[stream] = registration.owner.host
        for chunk in self._chunks.shown(stream, registration):
            shown = registration.chunk(chunk.epoch)
            if shown is None or not shown.names(self.me):
                self._chunks.unsettle(chunk)
                if registration.epoch > chunk.epoch and revision >= chunk.copy_revision:
                    effects += self._remove(chunk)
                continue
            chunk.is_followed = chunk.is_followed or registration.settled_offset > chunk.base_offset
            if shown.end is not None and chunk.is_damaged:
                effects.append(Send(registration.owner.host, self._refused(stream, chunk.epoch, Reason.DAMAGED)))
            elif shown.end is not None and chunk.state is ReplicaState.OPEN:
                effects += self._seal(chunk, shown.end, registration.owner.host)
            self._chunks.settle(chunk, self.me, shown)
        return effects

    def is_in_line(self, stream: str, registration: StreamRegistration) -> bool:
        """Whether nothing is left to do here about the stream's sealed chunks, by the registration that was seen last.
        Otherwise the host shows it again after a while: appends were under way, an operation failed, or a report was
        lost.
        """
        for chunk in self._chunks.unsettled(stream):
            shown = registration.chunk(chunk.epoch)
            if shown is None or not shown.names(self.me):
                if registration.epoch > chunk.epoch:
                    return False
            elif shown.end is not None and (chunk.state is ReplicaState.OPEN or chunk.is_damaged):
                return False
        return True

    def _remove(self, chunk: ReplicaChunk) -> list[Effect]:
        if chunk.state in (ReplicaState.SEALING, ReplicaState.REMOVING) or not self._is_settled(chunk):
            return []  # the next registration that is seen will do it
        self._step(chunk, ReplicaEvent.UNLIST)
        chunk.copy = None
        return [self._store(RemoveChunk(chunk.stream, chunk.epoch), self.me.host)]

    def _seal(self, chunk: ReplicaChunk, end: Prefix, owner: str) -> list[Effect]:
        """Cut the chunk to its end, if it has that much; if not, it waits for a copy of the rest."""
        if not self._is_settled(chunk) or chunk.durable.length_bytes < end.length_bytes:
            return []
        self._step(chunk, ReplicaEvent.SEAL)
        return [self._store(CutChunk(chunk.stream, chunk.epoch, end), owner)]

    def stream_deleted(self, stream: str) -> list[Effect]:
        """The stream's topic was deleted, and its name will never be used again: nothing of it is kept, its fence at
        last. This has to be said again until nothing is left: appends may be under way, or an operation fails.
        """
        chunks = list(self._chunks.of_stream(stream).values())
        if not chunks and stream in self._fences:
            return [self._store(RemoveFence(stream), self.me.host)]
        return [effect for chunk in chunks for effect in self._remove(chunk)]

    # ---- copies of sealed chunks

    def _copy(self, sender: str, message: CopyChunk) -> list[Effect]:
        if message.disk != self.me.disk:
            return [Send(sender, self._refused(message.stream, message.epoch, Reason.WRONG_DISK))]
        chunk = self._chunks.get(message.stream, message.epoch)
        if chunk is None:
            chunk = self._new_chunk(message.stream, message.epoch, message.base_offset)
        if chunk.state in (ReplicaState.REMOVING, ReplicaState.SEALING):
            return []  # the owner asks again
        if chunk.state is ReplicaState.FAILED:
            return [Send(sender, self._refused(message.stream, message.epoch, chunk.failure))]
        chunk.copy_revision = max(chunk.copy_revision, message.revision)
        chunk.copy = CopyOrdered(sender, message)
        if chunk.state is ReplicaState.SEALED:
            return self._copy_done(chunk)
        return self._continue_copy(chunk)

    def _continue_copy(self, chunk: ReplicaChunk) -> list[Effect]:
        """Ask for the next piece, or seal the chunk when all are there."""
        if chunk.copy is None or not self._is_settled(chunk):
            return []
        order = chunk.copy.order
        if chunk.durable.length_bytes >= order.end.length_bytes:
            # The registration says that the chunk is sealed, and where: the message alone would not do.
            return [ReadRegistration(chunk.stream, chunk.copy_revision)]
        if order.source is None:
            return self._end_copy(chunk, Reason.SHORT)
        asked = ReadEntries(
            chunk.stream, order.source.disk, chunk.epoch, chunk.durable.next_offset, COPY_BYTES, for_copy=True,
            is_urgent=order.is_urgent,
        )  # fmt: skip
        return [Send(order.source.host, asked)]

    def progress_of(self, stream: str, epoch: int) -> list[Effect]:
        """Tells who has ordered a copy how far it is; nothing if there is none under way."""
        chunk = self._chunks.get(stream, epoch)
        if chunk is None or chunk.copy is None:
            return []
        copied_bytes, revision = chunk.durable.length_bytes, chunk.copy.order.revision
        return [Send(chunk.copy.owner, CopyProgress(stream, epoch, self.me, copied_bytes, revision))]

    def _piece(self, sender: str, message: EntriesRead) -> list[Effect]:
        chunk = self._chunks.get(message.stream, message.epoch)
        if chunk is None or chunk.copy is None or message.member != chunk.copy.order.source:
            return []
        if chunk.state is not ReplicaState.OPEN or not self._is_settled(chunk):
            return []
        if message.at != chunk.end:
            at, end = message.at, chunk.end
            if at.next_offset != end.next_offset and at.length_bytes != end.length_bytes:
                return []  # a repeated or late piece
            self._fail(chunk, is_damaged=True)  # the source has other bytes in front of this place
            return self._end_copy(chunk, chunk.failure)
        if not message.entries:
            return []
        end = end_after(chunk.end, message.entries)
        if end.length_bytes > chunk.copy.order.end.length_bytes:
            return self._end_copy(chunk, Reason.DIVERGED)
        size = sum(len(entry.data) for entry in message.entries)
        if not self._has_room(size):
            return self._end_copy(chunk, Reason.DISK_FULL)
        self._unsynced_bytes += size
        founding = b"" if chunk.end.length_bytes else message.founding
        operation = WriteEntries(chunk.stream, chunk.epoch, chunk.end, message.entries, founding)
        chunk.end = end
        return [self._store(operation, chunk.copy.owner, end)]

    def _piece_refused(self, sender: str, message: Refused) -> list[Effect]:
        """The source does not send: the owner hears of it, as if the source had told it."""
        chunk = self._chunks.get(message.stream, message.epoch)
        if chunk is None or chunk.copy is None or message.member != chunk.copy.order.source:
            return []
        owner, chunk.copy = chunk.copy.owner, None
        return [Send(owner, message)]

    def _copy_done(self, chunk: ReplicaChunk) -> list[Effect]:
        if chunk.copy is None:
            return []
        copy, chunk.copy = chunk.copy, None
        if chunk.durable != copy.order.end:
            return [Send(copy.owner, self._refused(chunk.stream, chunk.epoch, Reason.DIVERGED))]
        return [Send(copy.owner, CopyDone(chunk.stream, chunk.epoch, self.me, chunk.durable, copy.order.revision))]

    def _end_copy(self, chunk: ReplicaChunk, reason: Reason) -> list[Effect]:
        if chunk.copy is None:
            return []
        owner, chunk.copy = chunk.copy.owner, None
        return [Send(owner, self._refused(chunk.stream, chunk.epoch, reason))]

    # ---- reads

    def _read(self, sender: str, message: ReadEntries) -> list[Effect]:
        if message.disk != self.me.disk:
            return [Send(sender, self._refused(message.stream, message.epoch, Reason.WRONG_DISK))]
        chunk = self._chunks.get(message.stream, message.epoch)
        if chunk is None or chunk.state is ReplicaState.REMOVING:
            return [Send(sender, self._refused(message.stream, message.epoch, Reason.ABSENT))]
        self._tokens += 1
        self._loads[self._tokens] = (sender, message)
        limit_bytes = chunk.durable.length_bytes if message.for_copy else self._readable_bytes(chunk)
        place = (chunk.stream, chunk.epoch, message.offset)
        return [Load(self._tokens, *place, limit_bytes, message.max_bytes, message.for_copy, message.is_urgent)]

    def _readable_bytes(self, chunk: ReplicaChunk) -> int:
        """How much of a chunk readers may see."""
        if (chunk.state is ReplicaState.SEALED or chunk.was_sealed) and chunk.is_followed:
            return chunk.durable.length_bytes
        return min(chunk.acked_bytes, chunk.durable.length_bytes)

    def loaded(
        self, token: int, at: Prefix, entries: Sequence[BatchEntry], limit_offset: int, founding: bytes = b""
    ) -> list[Effect]:
        """Entries that a `Load` asked for; `limit_offset` is the offset behind the limit. `founding`: see `Append`."""
        sender, message = self._loads.pop(token)
        answer = EntriesRead(message.stream, message.epoch, self.me, at, tuple(entries), limit_offset, founding)
        return [Send(sender, answer)]

    def load_dropped(self, token: int) -> None:
        """A `Load` is not carried out, because too much waits for the disk: who wants it asks again."""
        del self._loads[token]

    def found_damaged(self, stream: str, epoch: int) -> list[Effect]:
        """A sealed chunk was read by this host for itself, and does not match its checksum: the owner hears of it, now
        or when its registration is seen.
        """
        chunk = self._chunks.get(stream, epoch)
        if chunk is None or chunk.state is not ReplicaState.SEALED:
            return []
        self._fail_damaged(chunk)
        owner = self._owner_hosts.get(stream)
        return [] if owner is None else [Send(owner, self._refused(stream, epoch, Reason.DAMAGED))]

    def load_failed(self, token: int) -> list[Effect]:
        """What a `Load` asked for cannot be read, or does not match its checksum. The stream's owner hears of it."""
        sender, message = self._loads.pop(token)
        chunk = self._chunks.get(message.stream, message.epoch)
        refused = self._refused(message.stream, message.epoch, Reason.DAMAGED)
        if chunk is not None and chunk.state in (ReplicaState.OPEN, ReplicaState.SEALED):
            self._fail_damaged(chunk)
        owner = self._owner_hosts.get(message.stream, sender)
        return [Send(host, refused) for host in dict.fromkeys((sender, owner))]

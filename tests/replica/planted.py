"""Bugs of replication, one class each: the mistakes of other systems and of our own drafts, put back one at a time.

Invariant: a bug changes as little as it can; everything else is the product's code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from logstore.replica.appending import Appending, MemberProgress
from logstore.replica.effects import Effect, Readable, Send, StreamUnavailable, WriteFence
from logstore.replica.fencing import SealPlan
from logstore.replica.known_replicas import ReplicaChunk, ReplicaState
from logstore.replica.messages import (
    Append,
    AppendDone,
    BatchEntry,
    Fence,
    LookAtRegistration,
    OutOfOrder,
    Refused,
    end_after,
)
from logstore.replica.owner import Owner
from logstore.replica.owner_states import OwnerState
from logstore.replica.register import SwapAnswer, SwapRegistration
from logstore.replica.registrations import ChunkRegistration, Member, Prefix, StreamRegistration
from logstore.replica.replica import Replica
from logstore.replica.trimming import Trimming
from tests.replica.cluster import Planted
from tests.replica.disk import founding_of


class CountsAllButOne(Appending):
    """Says that every member has what all but the slowest one have."""

    def confirmed_by_all(self) -> Prefix:
        lengths = sorted((progress.durable for progress in self.progress.values()), key=lambda one: one.length_bytes)
        return lengths[min(1, len(lengths) - 1)]


class CountsItself(Appending):
    """Says that every member has what this host has."""

    def confirmed_by_all(self) -> Prefix:
        own = self.members_of(self._host)
        return self.progress[own[0]].durable if own else super().confirmed_by_all()


class SendsAgainInAnotherOrder(Appending):
    """What is sent again in the next chunk gets other offsets than before."""

    def begin(self, chunk: ChunkRegistration, now_ms: int) -> None:
        if len(self.window._batches) > 1:
            self.window._batches.rotate(1)
        super().begin(chunk, now_ms)


class AcksBeforeTheLastMember(Owner):
    """An acknowledgement does not wait for the slowest member."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._appending = CountsAllButOne(self.stream, self.me.host, self.limits, founding_of)


class AcksFromLocalSyncAlone(Owner):
    """What the owner's own disk has is acknowledged."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._appending = CountsItself(self.stream, self.me.host, self.limits, founding_of)


class ResendsAtOtherOffsets(Owner):
    """What is sent again in the next chunk gets other offsets than before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._appending = SendsAgainInAnotherOrder(self.stream, self.me.host, self.limits, founding_of)


class SealsAtTheLongest(Owner):
    """When a member fails, the chunk is sealed at what was sent, and the rest is sent again all the same."""

    def _rolled_registration(self, members: tuple[Member, ...]) -> StreamRegistration:
        window, progress = self._appending.window, self._appending.progress.values()
        acked = window.acked
        window.acked = max(acked, *(member.durable for member in progress))
        wanted = super()._rolled_registration(members)
        window.acked = acked
        return wanted


class TakesTheLongest(Owner):
    """A takeover seals at the longest answer, and names all that answered as holders."""

    def _sealed_registration(self, plan: SealPlan) -> StreamRegistration:
        assert self._fencing is not None
        end = max((answer.durable for answer in self._fencing.answers.values()), key=lambda one: one.length_bytes)
        return self.registration.sealed(end, plan.holders, plan.candidates)


class SealsAtTheConfirmedLength(Owner):
    """A takeover seals at the length that members know to be acknowledged: it lags behind the acknowledgements."""

    def _sealed_registration(self, plan: SealPlan) -> StreamRegistration:
        assert self._fencing is not None
        known = max(answer.acked_bytes for answer in self._fencing.answers.values())
        if known == 0:
            return self.registration.sealed(
                Prefix.empty(self._fencing.chunk.base_offset), plan.holders, plan.candidates
            )
        return super()._sealed_registration(plan)


class KeepsTheEpoch(Owner):
    """A failed member is replaced in the open chunk, under the same epoch."""

    def _rolled_registration(self, members: tuple[Member, ...]) -> StreamRegistration:
        chunk = self.registration.open_chunk
        assert chunk is not None
        return replace(self.registration, chunks=(*self.registration.chunks[:-1], replace(chunk, members=members)))

    def _begin_chunk(self, now_ms: int) -> ChunkRegistration:
        appending = self._appending
        before, known, acked = appending.chunk, dict(appending.progress), appending.window.acked
        chunk = super()._begin_chunk(now_ms)
        if before is not None and before.epoch == chunk.epoch:
            appending.window.acked = appending.window.placed = acked
            for member in appending.progress:
                appending.progress[member] = known.get(member, MemberProgress(acked))
        return chunk


class BelievesItsCachedRegistration(Owner):
    """A swap that is refused is tried again with the new revision, and the old registration."""

    def _overtaken(self, answer: SwapAnswer, now_ms: int) -> list[Effect]:
        assert self._swap is not None
        self._swap.expected_revision = answer.revision
        return [SwapRegistration(self.stream, answer.revision, self._swap.wanted)]


class FencesNobody(Owner):
    """A takeover asks for lengths, and fences nothing."""

    def _send_fences(self, now_ms: int) -> list[Effect]:
        return [
            Send(effect.host, replace(effect.message, fence_epoch=0))
            for effect in super()._send_fences(now_ms)
            if isinstance(effect, Send) and isinstance(effect.message, Fence)
        ]

    def _member_fenced(self, message: object, now_ms: int) -> list[Effect]:
        answer = replace(message, fence_epoch=self.registration.epoch)  # type: ignore[type-var]
        return super()._member_fenced(answer, now_ms)  # type: ignore[arg-type]


class AcksWhileItSeals(Owner):
    """Confirmations still count after the seal was asked for."""

    def _is_open(self, epoch: int) -> bool:
        chunk = self.registration.open_chunk
        taking = self.state in (OwnerState.APPENDING, OwnerState.ROLLING)
        return taking and chunk is not None and chunk.epoch == epoch


class StartsAtZero(Owner):
    """A takeover that reaches nobody goes on with an empty stream."""

    def _seal_when_fenced(self, now_ms: int) -> list[Effect]:
        effects = super()._seal_when_fenced(now_ms)
        if not any(isinstance(effect, StreamUnavailable) for effect in effects):
            return effects
        chunk = self.registration.open_chunk
        assert chunk is not None
        self.state = OwnerState.SEALING
        return self._swap_in(self.registration.sealed(Prefix.empty(chunk.base_offset), chunk.members), now_ms)


class SealsByMessage(Owner):
    """The owner tells the members where the chunk ends before the metadata store has agreed."""

    def _roll(self, members: tuple[Member, ...], now_ms: int) -> list[Effect]:
        chunk = self.registration.open_chunk
        assert chunk is not None
        hints = [
            Send(
                member.host,
                LookAtRegistration(f"{self.stream}/{chunk.epoch}/{self._appending.window.acked.length_bytes}", -1),
            )
            for member in chunk.members
        ]
        return [*hints, *super()._roll(members, now_ms)]


class CutsByMessage(Replica):
    """The replica cuts an open chunk where an owner says."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._known: dict[tuple[str, int, int], Prefix] = {}

    def receive(self, sender: str, message: object) -> list[Effect]:
        if isinstance(message, LookAtRegistration) and message.revision == -1:
            stream, epoch, length = message.stream.rsplit("/", 2)
            chunk = self._chunks.get(stream, int(epoch))
            stored = self._prefix_of(stream, int(epoch), int(length))
            if chunk is None or stored is None or chunk.state is not ReplicaState.OPEN or not stored.length_bytes:
                return []
            return self._seal(chunk, stored, sender)
        return super().receive(sender, message)  # type: ignore[arg-type]

    def _prefix_of(self, stream: str, epoch: int, length: int) -> Prefix | None:
        return self._known.get((stream, epoch, length))

    def _append(self, sender: str, message: Append) -> list[Effect]:
        self._known[message.stream, message.epoch, message.at.length_bytes] = message.at
        end = end_after(message.at, message.entries)
        self._known[message.stream, message.epoch, end.length_bytes] = end
        return super()._append(sender, message)


class RollsUnasked(Owner):
    """A full chunk ends whether the metadata store answers or not."""

    def _end_chunk_if_due(self, now_ms: int) -> list[Effect]:
        self._appending.end.store_answered(may_end=True)
        return super()._end_chunk_if_due(now_ms)


class RemovesBeforeItIsRegistered(Owner):
    """The owner tells replicas what it drops before the metadata store has agreed."""

    def _trim_if_due(self, now_ms: int) -> list[Effect]:
        effects = super()._trim_if_due(now_ms)
        if self._swap is None or not self._swap.is_trim:
            return effects
        kept = self._swap.wanted.chunks[0].epoch
        hosts = {member.host: None for chunk in self.registration.chunks for member in chunk.members}
        return [*effects, *(Send(host, LookAtRegistration(f"{self.stream}/{kept}", -2)) for host in hosts)]


class RemovesByMessage(Replica):
    """The replica removes what an owner says."""

    def receive(self, sender: str, message: object) -> list[Effect]:
        if isinstance(message, LookAtRegistration) and message.revision == -2:
            stream, kept = message.stream.rsplit("/", 1)
            chunks = [chunk for chunk in self._chunks.of_stream(stream).values() if chunk.epoch < int(kept)]
            return [effect for chunk in chunks for effect in self._remove(chunk)]
        return super().receive(sender, message)  # type: ignore[arg-type]


class ForgetsTheLogStart(Owner):
    """A claim keeps what chunks there are, and not where the log starts in them."""

    def _swap_in(self, wanted: StreamRegistration, now_ms: int, **kind: bool) -> list[Effect]:
        if self.state is OwnerState.CLAIMING and wanted.chunks:
            wanted = replace(wanted, log_start=wanted.chunks[0].base_offset)
        return super()._swap_in(wanted, now_ms, **kind)


class StartsAnewWhenAllIsTrimmed(Owner):
    """A stream without chunks begins at 0."""

    def _end_offset(self) -> int:
        return super()._end_offset() if self._fencing is not None or self.registration.chunks else 0


class OtherTrims(Owner):
    """An owner that trims otherwise."""

    trims: type[Trimming] = Trimming

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.trimming = self.trims()


class DropsTheLast(Trimming):
    """Every sealed chunk goes, though nothing of the open one is acknowledged."""

    def want(self, log_start: int, *, keeps_last: bool) -> None:
        super().want(log_start, keeps_last=False)


class TrimsTheUnacked(Trimming):
    """A client may trim what is not acknowledged."""

    def _limited(self, high_watermark: int) -> int:
        return self._log_start


class DropsTooMuch(Trimming):
    """The chunk in which the log starts goes as well."""

    def next_step(
        self, registration: StreamRegistration, high_watermark: int, acked: Prefix
    ) -> StreamRegistration | None:
        wanted = super().next_step(registration, high_watermark, acked)
        if wanted is None or len(wanted.chunks) < 2 or wanted.log_start == wanted.chunks[0].base_offset:
            return wanted
        return replace(wanted, chunks=wanted.chunks[1:], log_start=wanted.chunks[1].base_offset)


class DropsTheLastChunk(OtherTrims):
    """See DropsTheLast."""

    trims = DropsTheLast


class TrimsUnacked(OtherTrims):
    """See TrimsTheUnacked."""

    trims = TrimsTheUnacked


class DropsTheChunkOfTheLogStart(OtherTrims):
    """See DropsTooMuch."""

    trims = DropsTooMuch


class KeepsWhatWasDropped(Replica):
    """What lies in front of the stream's first chunk is not removed."""

    def _remove(self, chunk: ReplicaChunk) -> list[Effect]:
        return super()._remove(chunk) if chunk.epoch >= self._first.get(chunk.stream, 0) else []

    def registration_seen(self, stream: str, revision: int, registration: StreamRegistration) -> list[Effect]:
        self._first[stream] = registration.chunks[0].epoch if registration.chunks else 0
        return super().registration_seen(stream, revision, registration)

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._first: dict[str, int] = {}


class SettlesTooEarly(Replica):
    """A registration has nothing to say about a replica that it was looked at for once."""

    def registration_seen(self, stream: str, revision: int, registration: StreamRegistration) -> list[Effect]:
        effects = super().registration_seen(stream, revision, registration)
        self._chunks._unsettled.pop(stream, None)
        return effects


class AcceptsGaps(Replica):
    """An append is taken wherever it belongs."""

    def _append(self, sender: str, message: Append) -> list[Effect]:
        if self._refusal(message) is None:
            chunk = self._chunks.get(message.stream, message.epoch)
            if chunk is None:
                chunk = self._new_chunk(message.stream, message.epoch, message.base_offset)
            if message.at.length_bytes > chunk.end.length_bytes:
                chunk.end = message.at
        return super()._append(sender, message)


class AppliesTwice(Replica):
    """A repeated append is appended again."""

    def _unknown_entries(self, chunk: ReplicaChunk, message: Append) -> tuple[BatchEntry, ...] | None:
        return message.entries


class IgnoresTheFence(Replica):
    """A fence is kept, and not looked at."""

    def _refusal(self, message: Append) -> Refused | None:
        fence = self._fences.pop(message.stream, 0)
        refused = super()._refusal(message)
        if fence:
            self._fences[message.stream] = fence
        return refused


class AnswersFencesEarly(Replica):
    """The answer to a fence names what is durable now, while appends are being synced, which are confirmed later."""

    def _is_settled(self, chunk: ReplicaChunk) -> bool:
        return True


class ConfirmsBeforeTheSync(Replica):
    """An append is confirmed when it is written."""

    def _append(self, sender: str, message: Append) -> list[Effect]:
        effects = super()._append(sender, message)
        chunk = self._chunks.get(message.stream, message.epoch)
        if chunk is None or chunk.durable == chunk.end or not message.at.length_bytes <= chunk.end.length_bytes:
            return effects
        kept = [
            effect for effect in effects if not (isinstance(effect, Send) and isinstance(effect.message, OutOfOrder))
        ]
        return [*kept, Send(message.owner, AppendDone(message.stream, message.epoch, self.me, chunk.end))]


class ServesUnackedBatches(Replica):
    """Readers see everything that is durable."""

    def _readable_bytes(self, chunk: ReplicaChunk) -> int:
        return chunk.durable.length_bytes


class LetsReadBeforeTheFence(Owner):
    """Readers are served up to where the open chunk begins, before anybody has said how far it goes."""

    def _send_fences(self, now_ms: int) -> list[Effect]:
        chunk = self.registration.open_chunk
        read = [] if chunk is None else [Readable(self.stream, self.registration.epoch, chunk.base_offset, True)]
        return [*read, *super()._send_fences(now_ms)]


class BelievesACopyDone(Owner):
    """A host that was asked for a copy is a member at once."""

    def _go_on_repairing(self, now_ms: int) -> list[Effect]:
        effects = super()._go_on_repairing(now_ms)
        if self._swap is not None and self._swap.is_repair:
            chunks = tuple(
                replace(chunk, members=tuple(dict.fromkeys((*chunk.members, *chunk.candidates))), candidates=())
                for chunk in self._swap.wanted.chunks
            )
            self._swap.wanted = replace(self._swap.wanted, chunks=chunks)
            return [SwapRegistration(self.stream, self._swap.expected_revision, self._swap.wanted)]
        return effects


PLANTED = {
    "fence is not durable": Planted(forgets=(WriteFence,)),
    "ack before the last member": Planted(owner=AcksBeforeTheLastMember),
    "ack from local sync alone": Planted(owner=AcksFromLocalSyncAlone),
    "ack while the seal is asked for": Planted(owner=AcksWhileItSeals),
    "roll seals at the longest length": Planted(owner=SealsAtTheLongest),
    "takeover seals at the longest length": Planted(owner=TakesTheLongest),
    "takeover seals below the acked length": Planted(owner=SealsAtTheConfirmedLength),
    "replica set changes within an epoch": Planted(owner=KeepsTheEpoch),
    "cached registration is believed": Planted(owner=BelievesItsCachedRegistration),
    "stream is read before it is fenced": Planted(owner=LetsReadBeforeTheFence),
    "takeover fences nobody": Planted(owner=FencesNobody),
    "batches are sent again in another order": Planted(owner=ResendsAtOtherOffsets),
    "unreachable stream starts anew": Planted(owner=StartsAtZero),
    "target is a member before it has the copy": Planted(owner=BelievesACopyDone),
    "truncation by a message": Planted(owner=SealsByMessage, replica=CutsByMessage),
    "gap is accepted": Planted(replica=AcceptsGaps),
    "repeated append is applied twice": Planted(replica=AppliesTwice),
    "append below the fence is accepted": Planted(replica=IgnoresTheFence),
    "fence is answered before appends are synced": Planted(replica=AnswersFencesEarly),
    "confirmed before the sync": Planted(replica=ConfirmsBeforeTheSync),
    "unacked batches are served": Planted(replica=ServesUnackedBatches),
    "roll without an answer of the metadata store": Planted(owner=RollsUnasked),
    "removal before the registration": Planted(owner=RemovesBeforeItIsRegistered, replica=RemovesByMessage),
    "takeover forgets the log start": Planted(owner=ForgetsTheLogStart),
    "stream without chunks starts anew": Planted(owner=StartsAnewWhenAllIsTrimmed),
    "trim drops the last chunk": Planted(owner=DropsTheLastChunk),
    "trim drops what is not acknowledged": Planted(owner=TrimsUnacked),
    "trim drops the chunk of the log start": Planted(owner=DropsTheChunkOfTheLogStart),
    "dropped chunks stay on disks": Planted(replica=KeepsWhatWasDropped),
    "registrations are looked at once for each replica": Planted(replica=SettlesTooEarly),
    "wiped disk keeps its name": Planted(disk_keeps_its_name=True),
    "old disk is judged by its new label": Planted(judges_disks_late=True),
    "damaged copy passes for a shorter one": Planted(hides_damage=True),
}

"""Copies of sealed chunks, up to the number of copies of the stream. The owner of the stream runs this module.

It repairs one chunk at a time: the chunk with the fewest live copies, the last chunk among equals. While the stream
waits for a copy, only the last chunk counts: as long as it has fewer than `min_copies` holders, no chunk may follow it.
A repair has three steps, and a crash may come after each of them:
1. the registration names the target as a candidate (a swap), so that the target never has an unlisted replica;
2. the target gets the missing bytes from a live member, piece by piece, and checks the whole chunk;
3. the registration names the target as a member (a swap).

Invariants:
* A member is dropped only if `copies` live members stay, if its copy is damaged and another member is alive whose copy
  is not, as far as is known, or if its host was removed. So absent members leave the registration when there are enough
  others, and not before; and what one damaged copy lacks, another damaged one may have still.
* A target becomes a member only after it has reported that it holds the whole chunk durably.
* A copy needs a permission (`CopyTokens`) from its naming to its end; without a permission the repair rests. A copy for
  which the stream waits needs none. A wanted copy stays the same while it is possible.
* If a chunk lacks only copies of hosts that have gone recently (`Placing.awaits`) and has two live members, it is not
  copied yet: such a host usually comes back with all but the tail of its chunks.
* A target is given up if it reports no progress for `timeout_ms`, and then does not answer one more order; waiting for
  its turn is progress. So an owner whose host stood still first reads what has arrived meanwhile.
* While a copy is made the repair rests: answers move it on, and orders are repeated at `wake_ms`.
* A copy that is whole waits up to GATHER_MS for those that share its go, to be registered in one call with them. A copy
  for which the stream waits does not.
* Copies that lie too close together move only when nothing is missing, the same hosts have lived for a while, and the
  set is strictly less crowded then (`spreading`). The member that is too many is dropped when the new copy is there.
  After a move that failed none is tried for REST_MS, so a host without room is not asked again and again.
* The copy of a leaving host counts as long as there are too few others: it is dropped when `copies` others are alive,
  so a leaving host never lowers the number of copies. The copy of a removed host is dropped as soon as every other live
  host has the chunk, or the tier has it and no copy can be made now.

If no member is alive, a candidate may still have the chunk: candidates are asked. If no candidate has it, the chunk is
reported as unavailable, and its records keep their offsets in the log.

Costs: two swaps for a copy, a write and a sync for each piece. The target asks for pieces, at its own pace. Peace
decides where copies go (`Placing`).

Sources: SGuard, section 2 (chunks that lack replicas get new replicas); HDFS's re-replication; Apache BookKeeper's
auto-recovery, which changes the ledger's metadata after the copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

from logstore.base.states import following
from logstore.replica.copy_tokens import CopyTokens, CopyWish
from logstore.replica.effects import Effect, Send, StreamUnavailable
from logstore.replica.messages import CopyChunk, CopyDone, CopyProgress, Reason, Refused
from logstore.replica.placing import ANYWHERE, Placing
from logstore.replica.registrations import ChunkRegistration, Member, StreamRegistration, differing_chunks
from logstore.replica.spreading import Crowding, better_hosts, hosts_of, least_crowded


class RepairState(Enum):
    """The steps of the repair of one chunk."""

    IDLE = "idle"
    NAMING = "naming"
    COPYING = "copying"
    CHECKED = "checked"
    PROMOTING = "promoting"
    DROPPING = "dropping"


class RepairEvent(Enum):
    """What moves a repair on."""

    NAME = "target chosen"
    COPY = "target is a candidate"
    DONE = "target holds the chunk"
    PROMOTE = "swap asked for"
    DROP = "damaged copy, or one too many"
    REGISTERED = "swap done"
    GIVE_UP = "target or source failed, or chunk dropped"


TRANSITIONS: Final = {
    (RepairState.IDLE, RepairEvent.NAME): RepairState.NAMING,
    (RepairState.IDLE, RepairEvent.COPY): RepairState.COPYING,
    (RepairState.IDLE, RepairEvent.DROP): RepairState.DROPPING,
    (RepairState.NAMING, RepairEvent.REGISTERED): RepairState.COPYING,
    (RepairState.COPYING, RepairEvent.DONE): RepairState.CHECKED,
    (RepairState.COPYING, RepairEvent.GIVE_UP): RepairState.IDLE,
    (RepairState.CHECKED, RepairEvent.PROMOTE): RepairState.PROMOTING,
    (RepairState.CHECKED, RepairEvent.GIVE_UP): RepairState.IDLE,
    (RepairState.PROMOTING, RepairEvent.REGISTERED): RepairState.IDLE,
    (RepairState.DROPPING, RepairEvent.REGISTERED): RepairState.IDLE,
}


class Job(NamedTuple):
    """The chunk that is repaired, who gets a copy, and from whom (None: the target may have all of it).

    `revision`: of the registration when the copy began, which tells its answers from those to an earlier one; 0 before
    that. `is_spreading`: the chunk has all its copies, and lies further apart with this one.
    """

    epoch: int
    target: Member
    source: Member | None
    revision: int = 0
    is_spreading: bool = False


@dataclass(frozen=True, slots=True)
class RepairStep:
    """What a repair asks for: effects, and a registration to swap in."""

    effects: tuple[Effect, ...] = ()
    wanted: StreamRegistration | None = None


NOTHING: Final = RepairStep()
SAFE_COPIES: Final = 2
"""With so many live copies a chunk waits for hosts that may come back in a moment."""
ORDERS_PER_TIMEOUT: Final = 4
"""A target that makes progress is asked again so often only."""
GATHER_MS: Final = 2_000
"""A chunk has its copy for so long before it is registered, at most: as long as what shares a go takes at the least
rate.
"""
REST_MS: Final = 600_000
"""After a move for the sake of distance that failed."""


class Repair:
    """The repair of one stream's sealed chunks."""

    def __init__(self, stream: str, resend_ms: int, timeout_ms: int, tokens: CopyTokens | None = None) -> None:
        self._stream = stream
        self._tokens = tokens or CopyTokens()
        self._wished: tuple[int, Member] | None = None
        """The chunk and the target that a go was asked for last."""
        self._is_waiting = self._is_urgent = False
        """Whether there was no token for a copy; whether the stream waits for its copy."""
        self._resend_ms = resend_ms
        self._timeout_ms = timeout_ms
        self.state = RepairState.IDLE
        self._job: Job | None = None
        self._since_ms = 0
        self._sent_ms = 0
        self._checked_ms = 0
        """When the target had the whole chunk."""
        self._is_last_order = False
        """The target's time was over when the last order was sent."""
        self._bad: dict[tuple[int, Member], int] = {}
        """Targets and sources that failed, by chunk, until when they are not asked again."""
        self._rest_until_ms: int | None = None
        """A move that was to bring copies further apart has failed: no other one until then."""
        self._damaged: dict[tuple[int, Member], None] = {}
        self._reported: dict[int, None] = {}
        self.placing = ANYWHERE
        self._seen: tuple[int, tuple[Member, ...], Placing] | None = None
        """Revision, live members and placing with which there was nothing to do: no need to look through all chunks
        again.
        """
        self._seen_registration: StreamRegistration | None = None
        """As it was then."""
        self._waited: tuple[int, tuple[Member, ...], Placing] | None = None
        """The same when a go was asked for."""
        self._is_damage_seen = True
        """Whether nothing can be done about the damaged copies that are known, before something else changes."""

    def _step(self, event: RepairEvent) -> None:
        self.state = following(TRANSITIONS, self.state, event, f"repair of {self._stream}")

    def is_at_rest(self, revision: int, live: tuple[Member, ...]) -> bool:
        """Whether there is nothing to do for this registration and these live members before `wake_ms`."""
        is_known = self._is_waiting or self._seen == (revision, live, self.placing)
        is_idle = self.state is RepairState.IDLE and is_known and self._is_damage_seen
        return is_idle or self.state is RepairState.COPYING or self._gathers

    @property
    def _gathers(self) -> bool:
        """Whether a whole copy may wait for others."""
        return self.state is RepairState.CHECKED and not self._is_urgent and self._tokens.awaits_others(self._stream)

    @property
    def wake_ms(self) -> int | None:
        """When the order of a copy is repeated, or its target given up; when a whole copy is registered at the latest;
        or when a target or a source that failed may be asked again. None: nothing is due by time alone.
        """
        if self._gathers:
            return self._checked_ms + GATHER_MS
        return self._sent_ms + self._resend_ms if self.state is RepairState.COPYING else self._forget_ms

    @property
    def _forget_ms(self) -> int | None:
        """When the next failure is over; None: there is none."""
        rest = () if self._rest_until_ms is None else (self._rest_until_ms,)
        return min((*self._bad.values(), *rest), default=None)

    # ---- events

    def tick(
        self,
        registration: StreamRegistration,
        revision: int,
        live: tuple[Member, ...],
        now_ms: int,
        *,
        is_urgent: bool = False,
    ) -> RepairStep:
        """Go on: choose a chunk, ask for a copy again, give a target up. `revision` is that of the registration;
        `is_urgent`: no chunk can be opened until there is another copy of the last one.
        """
        self._is_urgent = is_urgent
        if self._job is not None and _is_nobodys(registration.chunk(self._job.epoch)):
            self._end_with_its_chunk()
        if self.state is RepairState.CHECKED:
            is_early = self._gathers and now_ms - self._checked_ms < GATHER_MS
            if is_early:
                return NOTHING
            self._tokens.registers(self._stream)
            return self._promote(registration, live)
        is_copying = self.state is RepairState.COPYING
        if is_copying and self._job is not None and now_ms - self._sent_ms >= self._resend_ms:
            if not self._is_last_order:
                self._is_last_order = now_ms - self._since_ms > self._timeout_ms
                self._job = self._job._replace(revision=self._job.revision or revision)
                return self._ask(self._job, registration, now_ms)
            self._give_up(self._job.target, now_ms)
        if self.state is not RepairState.IDLE:
            return NOTHING
        self._forget_old_failures(now_ms)
        dropped = self._drop_damaged(registration, live)
        if dropped is not None:
            return dropped
        return self._choose(registration, revision, live, now_ms)

    def receive(self, message: CopyDone | CopyProgress | Refused, now_ms: int) -> None:
        """An answer of a target, or of a source by way of the target. The next tick goes on."""
        if isinstance(message, Refused) and message.reason is Reason.DAMAGED:
            self._damaged[message.epoch, message.member] = None
            self._is_damage_seen = False
        job = self._job
        if job is None or self.state is not RepairState.COPYING or message.epoch != job.epoch:
            return
        if isinstance(message, CopyDone | CopyProgress):
            if message.member != job.target or message.revision != job.revision:
                return
            if isinstance(message, CopyDone):
                self._step(RepairEvent.DONE)
                self._checked_ms = now_ms
                self._tokens.checked(self._stream)
            else:
                self._since_ms, self._is_last_order = now_ms, False
                self._sent_ms = now_ms - self._resend_ms + self._timeout_ms // ORDERS_PER_TIMEOUT
        elif message.member in (job.target, job.source):
            self._give_up(message.member, now_ms)

    def registered(self, now_ms: int) -> None:
        """The swap that the last step asked for is done."""
        self._step(RepairEvent.REGISTERED)
        self._since_ms, self._sent_ms, self._is_last_order = now_ms, now_ms - self._resend_ms, False
        if self.state is RepairState.IDLE and self._job is not None:
            self._job = None
            self._tokens.made(self._stream)

    def chunks_dropped(self, registration: StreamRegistration) -> None:
        """The stream was trimmed: forget what is known of chunks that are not listed any more."""
        first = registration.chunks[0].epoch if registration.chunks else registration.epoch + 1
        for key in [key for key in self._bad if key[0] < first]:
            del self._bad[key]
        for key in [key for key in self._damaged if key[0] < first]:
            del self._damaged[key]
        for epoch in [epoch for epoch in self._reported if epoch < first]:
            del self._reported[epoch]

    def _end_with_its_chunk(self) -> None:
        """The chunk that is repaired was dropped, or lies in the tier alone; a swap for it cannot be in flight, because
        that was one.
        """
        self._step(RepairEvent.GIVE_UP)
        self._job = None
        self._tokens.give_back(self._stream)

    # ---- steps

    def _choose(
        self, registration: StreamRegistration, revision: int, live: tuple[Member, ...], now_ms: int
    ) -> RepairStep:
        if self._seen == (revision, live, self.placing):
            self._is_waiting = False
            self._tokens.give_back(self._stream)  # it was wished for while a host was away
            return NOTHING
        if self._is_waiting and self._waited == (revision, live, self.placing):
            if self._stream not in self._tokens.held:
                return NOTHING
        self._is_waiting, self._waited = False, (revision, live, self.placing)
        effects: list[Effect] = []
        short = self._short(registration, live)
        surplus = self._surplus(registration, live) if not (self._is_urgent and short) else None
        if surplus is not None:
            self._step(RepairEvent.DROP)
            return RepairStep((), surplus)
        missing = ((chunk, None) for chunk in short)
        for chunk, others in chain(missing, self._crowded(registration, live)):
            holders = [member for member in chunk.members if member in live]
            sources = [member for member in holders if (chunk.epoch, member) not in self._bad]
            target = self._target(chunk, next(iter(sources), None), live, others)
            if not holders and chunk.tiered is None:
                effects += self._report(chunk)
            if target is None and others is not None:
                continue
            if target is None:
                removed = self._without_removed(registration, chunk, live)
                if removed is not None:
                    self._step(RepairEvent.DROP)
                    return RepairStep(tuple(effects), removed)
                continue
            source = self._granted(registration, chunk, target, sources, holders)
            if self._is_waiting:
                return RepairStep(tuple(effects))
            self._job = Job(chunk.epoch, target, source, is_spreading=others is not None)
            if chunk.names(target):
                self._job = self._job._replace(revision=revision)
                self._step(RepairEvent.COPY)
                self._since_ms, self._is_last_order = now_ms, False
                asked = self._ask(self._job, registration, now_ms)
                return RepairStep((*effects, *asked.effects))
            self._step(RepairEvent.NAME)
            wanted = registration.with_copies(chunk.epoch, chunk.members, (*chunk.candidates, target))
            return RepairStep(tuple(effects), wanted)
        self._seen, self._seen_registration = (revision, live, self.placing), registration
        self._tokens.give_back(self._stream)
        return RepairStep(tuple(effects))

    def _surplus(self, registration: StreamRegistration, live: tuple[Member, ...]) -> StreamRegistration | None:
        """The registration without the copies of a chunk that are too many, or on hosts that leave; None: no chunk has
        any.
        """
        for chunk in reversed(self._unseen(registration, live)):
            if not chunk.is_open and len(chunk.members) + len(chunk.candidates) > registration.copies:
                staying = self.placing.staying(member for member in chunk.members if member in live)
                if len(staying) >= registration.copies:
                    crowding = self._crowding(registration, live)
                    kept = least_crowded(staying, registration.copies, crowding)
                    return registration.with_copies(chunk.epoch, kept)
        return None

    def _crowding(self, registration: StreamRegistration, live: tuple[Member, ...]) -> Crowding:
        """How crowded sets of this stream's copies are."""
        return self.placing.crowding(hosts_of(self.placing.staying(live)), registration.copies)

    def _crowded(
        self, registration: StreamRegistration, live: tuple[Member, ...]
    ) -> Iterator[tuple[ChunkRegistration, list[Member]]]:
        """The sealed chunks that have their copies, too close together, each with the hosts that make it less so."""
        if not self.placing.is_steady or self._is_urgent or self._rest_until_ms is not None:
            return
        crowding = self._crowding(registration, live)
        better: dict[tuple[Member, ...], list[Member]] = {}  # thousands of chunks have a few sets
        for chunk in reversed(self._unseen(registration, live)):
            if chunk.is_open or chunk.is_tiered_alone:
                continue
            if chunk.members not in better:
                staying = self.placing.staying(member for member in chunk.members if member in live)
                hosts = hosts_of(staying) if len(staying) >= registration.copies else hosts_of(live)
                others = self.placing.staying(member for member in live if member.host not in hosts)
                better[chunk.members] = better_hosts(staying, others, crowding)
            if better[chunk.members]:
                yield chunk, better[chunk.members]

    def _short(self, registration: StreamRegistration, live: tuple[Member, ...]) -> list[ChunkRegistration]:
        """The sealed chunks that lack copies, in the order in which they are copied."""
        found: list[tuple[int, ChunkRegistration]] = []
        for chunk in reversed(self._unseen(registration, live)):
            if chunk.is_open or chunk.is_tiered_alone:
                continue
            holders = [member for member in chunk.members if member in live]
            missing = registration.copies - len(self.placing.staying(holders))
            if missing > 0 and not self._may_wait(chunk, live, len(holders), missing):
                found.append((0 if self._is_urgent else len(holders), chunk))
        found.sort(key=lambda each: each[0])
        return [chunk for _, chunk in found]

    def _may_wait(self, chunk: ChunkRegistration, live: tuple[Member, ...], holders: int, missing: int) -> bool:
        """Whether hosts that have gone a moment ago may bring back all copies that a chunk lacks."""
        if self._is_urgent or holders < SAFE_COPIES or not self.placing.may_await:
            return False
        there = {member.host for member in live}
        gone = {member.host for member in (*chunk.members, *chunk.candidates)} - there
        return sum(map(self.placing.awaits, gone)) >= missing  # a host with two disks brings one copy back

    def _granted(
        self,
        registration: StreamRegistration,
        chunk: ChunkRegistration,
        target: Member,
        sources: list[Member],
        holders: list[Member],
    ) -> Member | None:
        """Where a copy may come from, if it has a go; if not, `_is_waiting` is set."""
        if self._is_urgent:
            return next(iter(sources), None)
        self._wished = (chunk.epoch, target)
        is_move = len(holders) >= registration.copies  # some are on hosts that leave, or too close together
        size_bytes = chunk.end.length_bytes if chunk.end is not None else 0
        hosts = tuple(each.host for each in sources)
        wish = CopyWish(chunk.epoch, target.host, hosts, len(holders), is_move, size_bytes)
        go = self._tokens.take(self._stream, wish)
        self._is_waiting = go is None
        granted = (each for each in sources if go is not None and each.host == go.source)
        return next(granted, next(iter(sources), None))

    def _unseen(self, registration: StreamRegistration, live: tuple[Member, ...]) -> tuple[ChunkRegistration, ...]:
        """The chunks that may want something: with the same live members and placing those that have changed, such as
        one of thousands in a roll.
        """
        before = self._seen_registration
        if before is None or self._seen is None or self._seen[1:] != (live, self.placing):
            return registration.chunks
        return differing_chunks(before, registration)[2]

    def _target(
        self,
        chunk: ChunkRegistration,
        source: Member | None,
        live: tuple[Member, ...],
        others: Sequence[Member] | None = None,
    ) -> Member | None:
        """Who gets the copy: a candidate, which may have most of it; else a host that has none, and is among the
        `others` if they are given. A host that leaves gets none, unless it is a candidate and nobody holds the chunk.
        """
        candidates = [member for member in chunk.candidates if member in live]
        hosts = {member.host for member in chunk.members if member in live}
        if source is not None:
            candidates = list(self.placing.staying(candidates))
        if others is not None:
            candidates = [member for member in candidates if member in others]
        usable = [member for member in candidates if (chunk.epoch, member) not in self._bad]
        if source is not None and not usable:
            if others is None:
                others = self.placing.staying(member for member in live if member.host not in hosts)
            usable = [member for member in others if (chunk.epoch, member) not in self._bad]
            if self._wished is not None and self._wished[0] == chunk.epoch and self._wished[1] in usable:
                return self._wished[1]
            holders = self.placing.staying(member for member in chunk.members if member in live)
            usable = list(self.placing.choose(self._stream, usable, holders, 1, is_new=False))
        return next(iter(usable), None)

    def _without_removed(
        self, registration: StreamRegistration, chunk: ChunkRegistration, live: tuple[Member, ...]
    ) -> StreamRegistration | None:
        """The registration without the removed hosts' copies of a chunk; None if none is named, or another host that is
        alive is still to get a copy. What the tier has may lose its last member: it then lies there alone.
        """
        removed = self.placing.removed
        members = tuple(member for member in chunk.members if member.host not in removed)
        candidates = tuple(member for member in chunk.candidates if member.host not in removed)
        holders = {member for member in members if member in live and (chunk.epoch, member) not in self._damaged}
        if len(members) + len(candidates) == len(chunk.members) + len(chunk.candidates):
            return None
        if chunk.tiered is not None:
            return registration.with_copies(chunk.epoch, members, candidates if members else ())
        if not holders or any(member not in holders for member in self.placing.staying(live)):
            return None
        return registration.with_copies(chunk.epoch, members, candidates)

    def _ask(self, job: Job, registration: StreamRegistration, now_ms: int) -> RepairStep:
        chunk = registration.chunk(job.epoch)
        if chunk is None or chunk.end is None:
            self._give_up(job.target, now_ms)
            return NOTHING
        self._sent_ms = now_ms
        order = CopyChunk(
            self._stream, job.target.disk, chunk.epoch, chunk.base_offset, chunk.end, job.source, job.revision,
            self._is_urgent,
        )  # fmt: skip
        return RepairStep((Send(job.target.host, order),))

    def _promote(self, registration: StreamRegistration, live: tuple[Member, ...]) -> RepairStep:
        job = self._job
        chunk = registration.chunk(job.epoch) if job is not None else None
        if job is None or chunk is None:
            raise AssertionError(f"repair of {self._stream}: the chunk of {job} is gone")
        self._step(RepairEvent.PROMOTE)
        members = (*(member for member in chunk.members if member != job.target), job.target)
        candidates = tuple(member for member in chunk.candidates if member != job.target)
        alive = tuple(member for member in members if member in live)
        if len(alive) >= registration.copies:
            staying = self.placing.staying(alive)
            if job.is_spreading:
                staying = least_crowded(staying, registration.copies, self._crowding(registration, live))
            members, candidates = staying if len(staying) >= registration.copies else alive, ()
        self._reported.pop(chunk.epoch, None)
        return RepairStep((), registration.with_copies(chunk.epoch, members, candidates))

    def _drop_damaged(self, registration: StreamRegistration, live: tuple[Member, ...]) -> RepairStep | None:
        for epoch, member in list(self._damaged):
            chunk = registration.chunk(epoch)
            if chunk is None or chunk.is_open or not chunk.names(member):
                del self._damaged[epoch, member]
                continue
            members = tuple(other for other in chunk.members if other != member)
            candidates = tuple(other for other in chunk.candidates if other != member)
            able = [other for other in members if member in chunk.candidates or (epoch, other) not in self._damaged]
            if any(other in live for other in able):
                del self._damaged[epoch, member]
                self._step(RepairEvent.DROP)
                return RepairStep((), registration.with_copies(epoch, members, candidates))
        self._is_damage_seen = True
        return None

    # ---- failures

    def _give_up(self, member: Member, now_ms: int) -> None:
        if self._job is not None:
            self._bad[self._job.epoch, member] = now_ms + self._timeout_ms
            if self._job.is_spreading:
                self._rest_until_ms = now_ms + REST_MS
        self._step(RepairEvent.GIVE_UP)
        self._job = None
        self._tokens.give_back(self._stream)

    def _forget_old_failures(self, now_ms: int) -> None:
        """Targets and sources whose time is over may be asked again: look through all chunks for what they are for."""
        if self._forget_ms is not None and self._forget_ms <= now_ms:
            if self._rest_until_ms is not None and self._rest_until_ms <= now_ms:
                self._rest_until_ms = None
            self._bad = {key: until_ms for key, until_ms in self._bad.items() if until_ms > now_ms}
            self._seen = self._seen_registration = self._waited = None

    def _report(self, chunk: ChunkRegistration) -> list[Effect]:
        """Once for each chunk, until it is there again."""
        if chunk.epoch in self._reported:
            return []
        self._reported[chunk.epoch] = None
        hosts = ", ".join(member.host for member in chunk.members)
        reason = f"no member of the chunk from offset {chunk.base_offset} on is alive ({hosts}); bring one back"
        return [StreamUnavailable(self._stream, chunk.epoch, reason)]


def _is_nobodys(chunk: ChunkRegistration | None) -> bool:
    """Whether no host is to have a chunk: it was dropped, or lies in the tier alone."""
    return chunk is None or chunk.is_tiered_alone

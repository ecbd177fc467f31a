"""The owner of a stream: claims it, fences and seals the last owner's open chunk, appends, and begins new chunks.

Invariants:
* A batch is acknowledged when every member of the open chunk has it durably, and only in the state APPENDING: from the
  moment the owner asks for the chunk to be sealed at the acknowledged length, nothing more is acknowledged in it.
* The owner's registration is the last registration that it has written, or the registration that it read before its
  claim. Every change is a swap on the revision of that registration. If a swap is refused and the register does not
  hold the requested registration, another host has claimed the stream: the owner is deposed for good.
* The replica set of a chunk is the set that the metadata store had before the first append. A member that fails is not
  replaced: the chunk is sealed at the acknowledged length, and the owner sends unacknowledged batches again in the next
  chunk, at the same offsets. Clients do not notice this.
* A claim never leads to an empty stream: if no member of the open chunk can be fenced, the owner waits, and reports
  that it waits.
* Only a swap trims the front of the stream, at most up to the acknowledged end; replicas remove unlisted chunks then.

A replaced owner learns that it is replaced if an append or a fence is refused as FENCED, if a swap is refused, or if
the registration that it watches names another owner. It then reports `Deposed` once; the fate of unacknowledged batches
is unknown. Before that it cannot acknowledge a batch, because the new owner has fenced a member.

Bounded: `max_in_flight_bytes` of unacknowledged batches; `append_bytes` in a message; one swap in flight.

Costs with r members. An append without failures: r messages, r syncs, r answers. A failed member: one swap, and the
unacknowledged batches again, with r messages each. A takeover: three swaps, r fences with one sync each, and the copies
of `repair` if fewer than `min_copies` members answered. A lost message: one more message after `resend_ms`.

Sources: Apache BookKeeper (ensemble changes, the last add confirmed); SGuard, section 2 (done when all replicas have
it); KIP-101, KIP-279 and KIP-320 (a length without an epoch, or an epoch not from the metadata, loses records).
"""

from collections.abc import Callable
from dataclasses import replace

from logstore.base.states import following
from logstore.replica.appending import Appending, Founding, OwnerLimits
from logstore.replica.better_sets import BetterSets
from logstore.replica.early_reads import EarlyReads
from logstore.replica.effects import Acked, Deposed, Effect, Ready, Registered, Send
from logstore.replica.fencing import Fencing, SealPlan
from logstore.replica.host_state import HostState
from logstore.replica.messages import (
    AppendDone,
    BatchEntry,
    CopyDone,
    CopyProgress,
    Fence,
    FenceDone,
    LookAtRegistration,
    Reason,
    Refused,
    ToOwner,
)
from logstore.replica.owner_reports import OwnerReports
from logstore.replica.owner_states import TAKING, TRANSITIONS, OwnerEvent, OwnerState
from logstore.replica.placing import ANYWHERE, NextSet, Placing
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapInFlight, SwapRegistration
from logstore.replica.registrations import (
    MAX_CHUNKS,
    SPARE_CHUNKS,
    UNKNOWN_TIME,
    ChunkRegistration,
    Member,
    OwnerId,
    Prefix,
    StreamRegistration,
)
from logstore.replica.repair import Repair
from logstore.replica.shortage import Shortage
from logstore.replica.suspects import Suspects
from logstore.replica.trimming import Trimming


class Owner:
    """One host as the owner of one stream, from its claim until it is deposed. An owner that is deposed is not used
    again: the host makes a new one to claim the stream again.
    """

    def __init__(
        self,
        stream: str,
        me: OwnerId,
        limits: OwnerLimits | None = None,
        founding: Founding = lambda base_offset: b"",
        written_ms: Callable[[], int] = lambda: UNKNOWN_TIME,
        shared: HostState | None = None,
    ) -> None:
        """`written_ms`: when the last batch of the open chunk was appended, or later; asked when it is sealed."""
        self._shared = shared = shared or HostState()
        self.stream = stream
        self.me = me
        self.limits = limits or OwnerLimits()
        self.state = OwnerState.IDLE
        self._registration: StreamRegistration | None = None
        self.revision = 0
        self._live: tuple[Member, ...] = ()
        self._swap: SwapInFlight | None = None
        self._fencing: Fencing | None = None
        self._sent_ms = self._since_ms = self._copies = 0
        self._required: int | None = None
        self._reports = OwnerReports(stream, self.limits.suspect_ms)
        self._written_ms = written_ms
        self.trimming = Trimming()
        self._appending = Appending(stream, me.host, self.limits, founding, shared.progress)
        self._shortage = Shortage(stream, self.limits, self._appending, self._reports)
        self._early_reads = EarlyReads(stream, self.limits.short_after_ms)
        self._suspects, self._better = Suspects(), BetterSets()
        self._repair = Repair(stream, self.limits.resend_ms * 4, self.limits.repair_timeout_ms, shared.copies)

    # ---- what the log sees

    def size_chunks(self, chunk_bytes: int) -> None:
        """A chunk is full at this size from now on."""
        self._appending.end.chunk_bytes = chunk_bytes

    def require(self, min_copies: int, now_ms: int, copies: int = 0) -> list[Effect]:
        """Chunks opened from now on have so many members at least; `copies` are wanted, if more than registered."""
        if (self._required, self._copies) == (min_copies, copies):
            return []
        self._required, self._copies = min_copies, copies
        return self._advance(now_ms)

    @property
    def registration(self) -> StreamRegistration:
        """The stream's registration, as this owner has read or written it last."""
        if self._registration is None:
            raise AssertionError(f"{self.stream}: the registration has not been read")
        return self._registration

    @property
    def min_copies(self) -> int:
        """Without that many members no chunk is opened: as the topic says now, or else the registration."""
        least = self.registration.min_copies if self._required is None else self._required
        return min(least, max(self.registration.copies, self._copies))

    @property
    def _wanted(self) -> StreamRegistration:
        """The registration, with as many copies as the topic wants now: registered with the next chunk."""
        return replace(self.registration, copies=max(self.registration.copies, self._copies))

    @property
    def high_watermark(self) -> int:
        """Below this offset every batch is acknowledged."""
        return self._appending.window.acked.next_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next batch."""
        return self._appending.window.next_offset

    @property
    def acked(self) -> Prefix:
        """How much of the open chunk is acknowledged."""
        return self._appending.window.acked

    @property
    def waiting_batches(self) -> int:
        """Batches that are not acknowledged."""
        return len(self._appending.window)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is due by time alone before `wake_ms`: until the next event a tick would do nothing."""
        if self.state is not OwnerState.APPENDING:
            return self.state is OwnerState.DEPOSED
        is_ending = self._appending.end.is_due and len(self.registration.chunks) < MAX_CHUNKS
        is_quiet = self._swap is None and self._appending.is_at_rest and not (self.trimming.is_wanted or is_ending)
        is_quiet = is_quiet and not self._shared.growths.has(self.stream)
        return is_quiet and self._repair.is_at_rest(self.revision, self._live)

    @property
    def wake_ms(self) -> int | None:
        """When an owner at rest is to have a tick, as when a host that failed may be chosen again; None: never."""
        parts = (self._repair, self._shortage, self._better)
        wakes = (self._suspects.wake_ms(self._live), *(part.wake_ms for part in parts))
        return min((at for at in wakes if at is not None), default=None) if self.state is OwnerState.APPENDING else None

    def may_append(self, size_bytes: int) -> bool:
        """Whether `append` takes a batch of this size now; if not, the log keeps it and asks again later."""
        return self.state in TAKING and self._appending.window.has_room(size_bytes)

    # ---- events

    def start(self, now_ms: int) -> list[Effect]:
        """Claim the stream."""
        self._step(OwnerEvent.START)
        self._sent_ms = now_ms
        return [ReadRegistration(self.stream)]

    def registration_read(self, answer: RegistrationRead, now_ms: int) -> list[Effect]:
        """The stream's register, as the metadata store has told it now. After its claim the owner looks in it for
        another claim only; and it knows that the store answers, so that a chunk which is due may end.
        """
        if answer.registration is None or self.state in (OwnerState.IDLE, OwnerState.DEPOSED):
            return []
        if self.state is not OwnerState.READING:
            if answer.revision > self.revision and answer.registration.owner != self.me:
                return self._depose(answer.registration.epoch)
            return self._store_answered(now_ms)
        self._registration, self.revision = answer.registration, answer.revision
        self._step(OwnerEvent.READ)
        return self._swap_in(self.registration.claimed(self.me), now_ms)

    def live_members(self, live: tuple[Member, ...], now_ms: int, placing: Placing = ANYWHERE) -> list[Effect]:
        """The members whose leases hold, in an order of preference, and where chunks may lie."""
        self._live, self._repair.placing = live, placing
        return self._advance(now_ms)

    def append(self, data: bytes, record_count: int, now_ms: int) -> list[Effect]:
        """Append a batch; its offset is `next_offset` before the call. See `may_append`."""
        if not self.may_append(len(data)):
            raise AssertionError(f"{self.stream}: no room for {len(data)} bytes in state {self.state.value}")
        self._appending.window.append(BatchEntry(data, record_count))
        return self._send_placed(now_ms)

    def trim(self, log_start: int, now_ms: int, *, keeps_last: bool) -> list[Effect]:
        """Let readers see nothing below an offset, and drop the chunks in front of it, never the open one. What is not
        acknowledged stays.

        `keeps_last`: the last sealed chunk stays as long as nothing of the open one is acknowledged, because the log
        needs what is founded on it. `Registered` follows when it is done; a deposed owner does nothing.
        """
        self.trimming.want(log_start, keeps_last=keeps_last)
        return self._advance(now_ms)

    def roll(self, now_ms: int) -> list[Effect]:
        """Seal the open chunk, if it has anything, when the metadata store answers and all that was sent is
        acknowledged, and open the next one.
        """
        self._appending.end.is_over |= self.acked.length_bytes > 0 and self.state is OwnerState.APPENDING
        return self._advance(now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """Time has passed: send again what was not answered, give up what takes too long."""
        effects: list[Effect] = []
        if self._swap is not None and now_ms - self._swap.sent_ms >= self.limits.resend_ms:
            self._swap.sent_ms = now_ms
            self._shared.growths.waits_for_store(self.stream, now_ms)
            effects.append(SwapRegistration(self.stream, self._swap.expected_revision, self._swap.wanted))
        if self.state is OwnerState.READING and now_ms - self._sent_ms >= self.limits.resend_ms:
            self._sent_ms = now_ms
            effects.append(ReadRegistration(self.stream))
        if self.state is OwnerState.FENCING and now_ms - self._sent_ms >= self.limits.resend_ms:
            effects += self._send_fences(now_ms)
        effects += self._advance(now_ms)
        if self.state is OwnerState.APPENDING:
            effects += self._go_on_repairing(now_ms)
        return effects

    def receive(self, message: ToOwner, now_ms: int) -> list[Effect]:
        """A member's message."""
        if self.state in (OwnerState.IDLE, OwnerState.READING, OwnerState.DEPOSED):
            return []
        if isinstance(message, Refused) and message.reason is Reason.FENCED:
            return self._fenced(message)
        if isinstance(message, CopyDone | CopyProgress):
            self._repair.receive(message, now_ms)
            return self._advance(now_ms)
        if isinstance(message, FenceDone):
            return self._member_fenced(message, now_ms)
        if isinstance(message, Refused):
            return self._refused(message, now_ms)
        if message.member not in self._appending.progress or not self._is_open(message.epoch):
            if isinstance(message, AppendDone) and self._appending.patience.answered(message, now_ms):
                self._suspects.answered(message.member)
            return []
        if isinstance(message, AppendDone):
            return self._confirmed(message, now_ms)
        return self._appending.out_of_order(message, now_ms)

    def _is_open(self, epoch: int) -> bool:
        """Whether batches are acknowledged in the chunk of this epoch now."""
        chunk = self.registration.open_chunk
        return self.state is OwnerState.APPENDING and chunk is not None and chunk.epoch == epoch

    def _step(self, event: OwnerEvent) -> None:
        self.state = following(TRANSITIONS, self.state, event, f"owner of {self.stream}")

    # ---- the metadata store

    def _swap_in(
        self, wanted: StreamRegistration, now_ms: int, *, is_repair: bool = False, is_trim: bool = False
    ) -> list[Effect]:
        wanted.check(self.registration)
        self._swap = SwapInFlight(wanted, self.revision, now_ms, is_repair, is_trim)
        return [SwapRegistration(self.stream, self.revision, wanted)]

    def swap_answered(self, answer: SwapAnswer, now_ms: int) -> list[Effect]:
        """The outcome of a swap. A repeated request finds its own registration in the register: it was done."""
        swap = self._swap
        if swap is None or answer.expected_revision != swap.expected_revision:
            return []
        if not (answer.is_done or answer.registration == swap.wanted):
            return self._overtaken(answer, now_ms)
        self._swap = None
        self._registration, self.revision = swap.wanted, answer.revision
        self._appending.end.store_answered(may_end=self._may_roll(now_ms))
        changed = Registered(self.stream, swap.wanted)
        if swap.is_repair:
            self._repair.registered(now_ms)
        elif swap.is_trim:
            self._repair.chunks_dropped(swap.wanted)
        else:
            return [changed, *self._registered(now_ms)]
        return [changed, *self._advance(now_ms)]

    def _store_answered(self, now_ms: int) -> list[Effect]:
        """The metadata store answers: a chunk that is due is drained, unless a swap waits for the store still."""
        if self.state is not OwnerState.APPENDING or self._swap is not None or not self._appending.end.is_due:
            return []
        self._appending.end.store_answered(may_end=self._may_roll(now_ms))
        return self._advance(now_ms)

    def _overtaken(self, answer: SwapAnswer, now_ms: int) -> list[Effect]:
        """The register holds what another owner has written."""
        return self._depose(answer.registration.epoch if answer.registration is not None else 0)

    def _registered(self, now_ms: int) -> list[Effect]:
        """The next step after a swap of the owner's own."""
        if self.state is OwnerState.CLAIMING:
            return self._claimed(now_ms)
        if self.state is OwnerState.SEALING:
            self._step(OwnerEvent.SEALED)
            self._early_reads.begin(now_ms)
            return [*self._look_hints(), *self._advance(now_ms)]
        if self.state is OwnerState.OPENING:
            self._step(OwnerEvent.OPENED)
            chunk = self._begin_chunk(now_ms)
            ready = Ready(self.stream, self.registration.epoch, chunk.base_offset)
            return [ready, *self._look_hints(), *self._advance(now_ms)]
        if self.state is OwnerState.ROLLING:
            self._step(OwnerEvent.ROLLED)
            self._shared.growths.give_back(self.stream, now_ms)
            hints = self._look_hints() if self.acked.length_bytes else []  # an empty chunk was not sealed
            self._begin_chunk(now_ms)
            return [*hints, *self._look_for_shortage(now_ms), *self._send_placed(now_ms)]
        raise AssertionError(f"owner of {self.stream}: a swap in state {self.state.value}")

    def _look_hints(self) -> list[Effect]:
        """Tells the holders of the last two chunks that the registration has changed: one is sealed, or followed."""
        hosts = {member.host: None for chunk in self.registration.chunks[-2:] for member in chunk.members}
        return [Send(host, LookAtRegistration(self.stream, self.revision)) for host in hosts]

    def _depose(self, newer_epoch: int) -> list[Effect]:
        self._step(OwnerEvent.OVERTAKEN)
        self._swap = None
        self._shared.leave(self.stream)
        return [Deposed(self.stream, newer_epoch, self.high_watermark)]

    def _fenced(self, message: Refused) -> list[Effect]:
        """A member takes only newer epochs. It may be an old answer, about an epoch that this owner has replaced."""
        return self._depose(message.fence_epoch) if message.fence_epoch > self.registration.epoch else []

    # ---- takeover

    def _claimed(self, now_ms: int) -> list[Effect]:
        chunk = self.registration.open_chunk
        if chunk is None:
            self._step(OwnerEvent.CLAIMED_CLOSED)
            self._early_reads.begin(now_ms)
            return self._advance(now_ms)
        self._step(OwnerEvent.CLAIMED)
        self._fencing = Fencing(chunk, self.registration.epoch, self.registration.log_start)
        self._since_ms = now_ms
        return self._send_fences(now_ms)

    def _send_fences(self, now_ms: int) -> list[Effect]:
        fencing = self._fencing
        if fencing is None:
            return []
        self._sent_ms = now_ms
        chunk = fencing.chunk
        return [
            Send(member.host, Fence(self.stream, member.disk, chunk.epoch, chunk.base_offset, self.registration.epoch))
            for member in fencing.waiting()
        ]

    def _member_fenced(self, message: FenceDone, now_ms: int) -> list[Effect]:
        if self.state is not OwnerState.FENCING or self._fencing is None or message.epoch != self._fencing.chunk.epoch:
            return []
        self._fencing.answered(message)
        return self._advance(now_ms)

    def _seal_when_fenced(self, now_ms: int) -> list[Effect]:
        """Seal the chunk when every member that lives has answered, or when the others have had their time."""
        fencing = self._fencing
        if fencing is None or self._swap is not None:
            return []
        is_late = now_ms - self._since_ms >= self.limits.fence_wait_ms
        if not is_late and any(not self._live or member in self._live for member in fencing.waiting()):
            return []
        plan = fencing.plan()
        if plan is None:
            return self._reports.no_member(fencing) if is_late or fencing.is_lost else []
        self._step(OwnerEvent.FENCED)
        damaged = self._reports.damaged(self.registration.epoch, plan.damaged)
        return [*damaged, *self._swap_in(self._sealed_registration(plan), now_ms)]

    def _sealed_registration(self, plan: SealPlan) -> StreamRegistration:
        return self.registration.sealed(plan.end, plan.holders, plan.candidates, self._written_ms())

    # ---- chunks

    def _advance(self, now_ms: int) -> list[Effect]:
        """What can be done now, after any event."""
        if self.state is OwnerState.FENCING:
            return self._seal_when_fenced(now_ms)
        if self.state is OwnerState.RESTORING:
            return self._open_or_restore(now_ms)
        if self.state is OwnerState.APPENDING:
            return self._keep_up(now_ms)
        return []

    def _open_or_restore(self, now_ms: int) -> list[Effect]:
        """Open the next chunk when the last one has copies enough, or lies in the tier; until then, copy it."""
        if self._swap is not None:
            return []
        last = self.registration.last_chunk
        is_safe = last is None or last.tiered is not None or len(last.members) >= self.min_copies
        following = self._next_set(now_ms)
        has_hosts = following.size >= self.min_copies
        if has_hosts and is_safe:
            self._step(OwnerEvent.OPEN)
            members = self._repair.placing.members(self.stream, following)
            return self._swap_in(self._wanted.opened(members, self._end_offset()), now_ms)
        effects: list[Effect] = []
        if not has_hosts:
            effects = self._reports.too_few(self.registration.epoch, self.min_copies, following, now_ms)
        early = self._early_reads.look(self.registration, self._end_offset(), self.min_copies, now_ms, is_safe=is_safe)
        return [*effects, *early, *self._go_on_repairing(now_ms)]

    def _end_offset(self) -> int:
        """Where the next chunk begins, when none is open."""
        if self._fencing is not None and self.registration.chunk(self._fencing.chunk.epoch) is None:
            return self._fencing.chunk.base_offset  # the chunk was empty, and is not listed
        last = self.registration.last_chunk
        return last.end.next_offset if last is not None and last.end is not None else self.registration.log_start

    def _next_set(self, now_ms: int) -> NextSet:
        """Who may be in the set of the next chunk, and how many are to be; no suspects."""
        copies, least, able = self._wanted.copies, self.min_copies, self._suspects.able(self._live)
        usable = [member for member in self._live if not self._suspects.is_suspect(member, now_ms)]
        return self._repair.placing.next_set(self.me.host, able, usable, copies, least)

    def _choose_members(self, now_ms: int) -> tuple[Member, ...]:
        """The set of the next chunk."""
        return self._repair.placing.members(self.stream, self._next_set(now_ms))

    def _begin_chunk(self, now_ms: int) -> ChunkRegistration:
        """Start appending to the chunk that was just opened. A chunk behind all spare ones stays empty, so that it is
        not listed by the next owner: the stream waits until it is trimmed.
        """
        chunk = self.registration.open_chunk
        if chunk is None:
            raise AssertionError(f"owner of {self.stream}: no chunk is open in {self.registration}")
        self._reports.chunk_opened()
        self._better.begun(now_ms)
        self._appending.begin(chunk, now_ms)
        if len(self.registration.chunks) > MAX_CHUNKS + SPARE_CHUNKS:
            self._appending.end.take_no_more()
        return chunk

    def _go_on_repairing(self, now_ms: int) -> list[Effect]:
        if self._swap is not None or self._is_about_to_roll(now_ms):
            return []
        is_urgent = self.state is OwnerState.RESTORING
        step = self._repair.tick(self.registration, self.revision, self._live, now_ms, is_urgent=is_urgent)
        swap = self._swap_in(step.wanted, now_ms, is_repair=True) if step.wanted is not None else []
        return [*step.effects, *swap]

    # ---- appending

    def _send_placed(self, now_ms: int) -> list[Effect]:
        return self._appending.send_placed(now_ms) if self.state is OwnerState.APPENDING else []

    def _confirmed(self, message: AppendDone, now_ms: int) -> list[Effect]:
        if self._appending.is_progress(message):
            self._suspects.confirmed(message.member)
            self._reports.confirmed(message.member)
        if not self._appending.confirmed(message, now_ms):
            return []
        self._reports.acknowledged()
        acked = Acked(self.stream, self.registration.epoch, self.high_watermark)
        # What is left then is due by time alone, and the next tick does it: a client waits for its answer now.
        is_steady = self._swap is None and not self.trimming.is_wanted and self._appending.is_steady
        return [acked] if is_steady else [acked, *self._advance(now_ms)]

    def _refused(self, message: Refused, now_ms: int) -> list[Effect]:
        if self.state is OwnerState.FENCING and self._fencing is not None:
            if message.reason in (Reason.WRONG_DISK, Reason.DAMAGED) and message.epoch == self._fencing.chunk.epoch:
                members = [member for member in self._fencing.chunk.members if member.host == message.member.host]
                self._fencing.gone.update(dict.fromkeys(members))
            return self._advance(now_ms)
        if self._is_open(message.epoch):
            failed = self._appending.members_of(message.member.host)
            for member in failed:
                is_other = message.reason in (Reason.WRONG_DISK, Reason.DIVERGED, Reason.DAMAGED)
                self._appending.progress[member].is_doubtful |= is_other
            effects = self._fail(failed, message.reason.value, now_ms)
            for member in failed:
                self._appending.progress[member].has_refused = True
            return effects
        self._repair.receive(message, now_ms)
        return self._advance(now_ms)

    # ---- members that fail

    def _keep_up(self, now_ms: int) -> list[Effect]:
        """Roll to a better set where that is due; send what waits, and again what was lost.

        Sending does not wait for a swap in flight, which is a repair's: the metadata store may be away.
        """
        effects = self._roll_if_due(now_ms) if self._swap is None else []
        if self.state is not OwnerState.APPENDING:
            return effects
        effects += self._look_for_shortage(now_ms)
        if self._swap is None and not self._is_about_to_roll(now_ms):
            effects += self._trim_if_due(now_ms)
        return [*effects, *self._appending.send_again(now_ms), *self._send_placed(now_ms)]

    def _look_for_shortage(self, now_ms: int) -> list[Effect]:
        """Tell whether the open chunk, and the next one, have fewer members than `min_copies`."""
        lacks = self._shortage.lacks_members(self._live, self.min_copies)
        following = self._next_set(now_ms) if lacks else None
        return self._shortage.look(self.registration.epoch, self.min_copies, self._live, following, now_ms)

    def _roll_if_due(self, now_ms: int) -> list[Effect]:
        gone = [member for member in self._appending.progress if self._live and member not in self._live]
        late = [member for member in self._appending.late(now_ms) if member not in gone]
        effects: list[Effect] = []
        if late:
            effects = self._fail(late, self._appending.lateness(late[0], now_ms), now_ms, is_slow=True)
        if self.state is OwnerState.APPENDING and gone:
            effects += self._fail(gone, "it is gone", now_ms)
        if self.state is OwnerState.APPENDING:
            effects += self._end_chunk_if_due(now_ms)
        return effects

    def _is_about_to_roll(self, now_ms: int) -> bool:
        """Whether the next swap is that of a roll: another one would hold it up if the metadata store went away."""
        return self._appending.end.is_draining and self._may_roll(now_ms)

    def _may_roll(self, now_ms: int) -> bool:
        """Whether a chunk that is due may be followed by another one now."""
        return len(self.registration.chunks) < MAX_CHUNKS and self._next_set(now_ms).size >= self.min_copies

    def _trim_if_due(self, now_ms: int) -> list[Effect]:
        """Swap in what is left of a trim; batches go on meanwhile."""
        wanted = self.trimming.next_step(self.registration, self.high_watermark, self.acked)
        return [] if wanted is None else self._swap_in(wanted, now_ms, is_trim=True)

    def _fail(self, members: list[Member], reason: str, now_ms: int, *, is_slow: bool = False) -> list[Effect]:
        """Members of the open chunk fail: go on with another set, if there is one; else wait for them. One that has
        refused is no suspect again for this chunk, for it will never take it: it may take the next.
        """
        gone = [member for member in members if self._live and member not in self._live]
        trusted = [member for member in members if not self._suspects.is_suspect(member, now_ms)]
        progress = self._appending.progress
        news = [member for member in trusted if member in gone or not progress[member].has_refused]
        self._suspects.add_all(news, gone, self.limits.suspect_ms, now_ms, is_slow=is_slow)
        reports = self._reports.failed(self.registration.epoch, news, reason)
        if self._swap is not None:
            return reports  # a repair is being registered; the next tick finds the members late again
        following = self._next_set(now_ms)
        if following.size < self.min_copies:
            return reports + self._reports.too_few(self.registration.epoch, self.min_copies, following, now_ms)
        if is_slow:
            self._appending.give_up(members, now_ms)
        return [*reports, *self._roll(self._choose_members(now_ms), now_ms)]

    def _end_chunk_if_due(self, now_ms: int) -> list[Effect]:
        """Roll a chunk that is due once it is drained, for which the metadata store has to answer first. A chunk for
        which there is a better set now is due too, in the stream's turn.
        """
        following, end, growths = self._next_set(now_ms), self._appending.end, self._shared.growths
        is_full = len(self.registration.chunks) >= MAX_CHUNKS
        progress, placing = self._appending.progress, self._repair.placing
        is_better = self._better.is_better(following, progress, self.min_copies, placing, now_ms) and not is_full
        if not is_better:
            growths.give_back(self.stream, now_ms)
        elif end.has_turn or not end.is_due:
            end.has_turn = growths.take(self.stream, now_ms, len(progress)) or end.is_draining
        if not end.is_due or following.size < self.min_copies:
            end.go_on()
            return []
        if is_full:
            return self._reports.full(self.registration.epoch)
        if end.is_draining and self._appending.window.is_all_acked:
            return self._roll(self._choose_members(now_ms), now_ms)
        return [ReadRegistration(self.stream)] if end.asks_store(now_ms) else []

    def _roll(self, members: tuple[Member, ...], now_ms: int) -> list[Effect]:
        """Seal the chunk at the acknowledged length, and open the next one, in one swap."""
        if len(self.registration.chunks) >= MAX_CHUNKS + SPARE_CHUNKS:
            return self._reports.full(self.registration.epoch)
        self._step(OwnerEvent.ROLL)
        return self._swap_in(self._rolled_registration(members), now_ms)

    def _rolled_registration(self, members: tuple[Member, ...]) -> StreamRegistration:
        holders, doubtful = self._appending.holders()
        return self._wanted.rolled(self.acked, holders, doubtful, members, self._written_ms())

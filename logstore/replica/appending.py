"""The open chunk as its owner sees it: what was sent, what each member has confirmed, who lags, what is acknowledged.

Invariants:
* What is acknowledged is what every member has confirmed as durable; the members are those of the chunk's registration.
* A batch is sent once: a small one that is alone (nothing else is in flight) to all members at once, which spares it
  the way from one member to the next; any other along the chain. Small ones behind it go to all as well, while few
  bytes are in flight: along the chain they would often be at the last member before it, which cannot take them then. A
  member that lags gets what it lacks directly from the owner, so that a member in front of it that stands still does
  not make it fail as well.
* Members hear what is acknowledged with the next batch, or after `tell_ms` without one; at once, if this host is none
  of them: members show readers nothing beyond what they have heard of.
* A member is late when its host has confirmed nothing of any stream for some time while it had a batch, or when it has
  a batch for longer than that: a host that is busy with many streams is slow, and does not fail for that. `patience`
  says for how long, from what hosts are seen to take.
* A member that asks for what it has confirmed, or that has another disk or other bytes now, is doubtful: it is not
  named as a holder when the chunk is sealed.

Costs: a batch is one message to this host's own member, and one to each other member, from the owner or from the member
in front; a member that lags gets one more message after `resend_ms`, of at most `append_bytes`, and further ones after
pauses that double, up to `LONGEST_RESEND` times as long.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from logstore.replica.chunk_end import OpenChunkEnd
from logstore.replica.effects import Effect, Send
from logstore.replica.host_state import HostProgress
from logstore.replica.messages import Append, AppendDone, BatchEntry, OutOfOrder
from logstore.replica.patience import TIMES_LONGEST, MemberPatience, PatienceLimits
from logstore.replica.registrations import ChunkRegistration, Member, Prefix
from logstore.replica.window import AppendWindow

Founding = Callable[[int], bytes]
"""What the log keeps beside a chunk that begins at an offset, everything in front of which is acknowledged; asked when
the first batch of a chunk is sent.
"""
NOTHING: Final = Prefix(0, 0, 0)
LONGEST_RESEND: Final = 4
"""Times `resend_ms`: what is sent again and again to a host that is busy keeps it busy. Shorter than the time for which
a host may be silent, since the answer says whether its disk works.
"""
SMALL_BYTES: Final = 64 << 10
"""A batch up to this size goes to all members at once: what is larger takes the owner's link longer than a member needs
to pass it on.
"""
MANY_BYTES: Final = 256 << 10
"""With more in flight, batches take the chain until all are acknowledged: the owner's link carries each byte once."""


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """Bounds and times of an owner. `member_timeout_ms`: a member that has a batch, and whose host has confirmed
    nothing of any stream for so long, has failed; `busy_timeout_ms`: so has one that has not confirmed a batch after
    that long. Both are the least times, `longest_timeout_ms` is the longest one, of a host that is seen to be slow.
    """

    chunk_bytes: int = 64 << 20
    largest_chunk_bytes: int = 1 << 30
    """What a full chunk may grow to while the metadata store is away."""
    min_chunk_ms: int = 100
    """A chunk takes batches for that long, however small chunks are to be: this bounds what a stream writes to the
    metadata store.
    """
    max_in_flight_bytes: int = 4 << 20
    append_bytes: int = 1 << 20
    resend_ms: int = 50
    tell_ms: int = 20
    """Members hear what is acknowledged after so long without another batch."""
    member_timeout_ms: int = 300
    busy_timeout_ms: int = 2_000
    longest_timeout_ms: int = 5_000
    fence_wait_ms: int = 300
    """How long a takeover waits for members behind the first one that has answered."""
    suspect_ms: int = 5_000
    """A member that failed is not chosen for that long."""
    short_after_ms: int = 3_000
    """Producers hear after so long that a stream has too few members: no failover that ends well takes longer, and a
    host that is started again at once is back by then; clients give a request ten times as long.
    """
    slow_after_ms: int = 10_000
    """The same while as many hosts live as the stream needs: a disk that hangs for some seconds costs time, and no
    error. With `longest_timeout_ms` in front of it, this is half of what clients give a request.
    """
    repair_timeout_ms: int = 10_000


@dataclass(slots=True)
class MemberProgress:
    """What is known of a member."""

    durable: Prefix
    resent_ms: int = 0
    resent_from: int = -1
    resends: int = 0
    """Since the member has confirmed something."""
    is_doubtful: bool = False
    has_refused: bool = False
    """The member takes nothing more of this chunk: a disk that was full, say, and its copy is what it is."""


class Appending:
    """The batches of a stream that are not acknowledged, and the members of its open chunk."""

    def __init__(
        self,
        stream: str,
        host: str,
        limits: OwnerLimits,
        founding: Founding = lambda base_offset: b"",
        hosts: HostProgress | None = None,
    ) -> None:
        self._stream = stream
        self._host = host
        self._limits = limits
        self._hosts = hosts or HostProgress()
        least_ms = (limits.member_timeout_ms, limits.busy_timeout_ms)
        self.patience = MemberPatience(PatienceLimits(*least_ms, limits.longest_timeout_ms), self._hosts)
        self._notable_ms = min(least_ms) // TIMES_LONGEST
        """A batch that waits for less teaches nothing."""
        self.window = AppendWindow(0, limits.max_in_flight_bytes)
        self.chunk: ChunkRegistration | None = None
        self.progress: dict[Member, MemberProgress] = {}
        self.end = OpenChunkEnd(limits.chunk_bytes, limits.largest_chunk_bytes, limits.min_chunk_ms)
        self._has_copy = False
        """This host is a member."""
        self._sending_order: list[Member] = []
        """All members, this host's own behind the others: what goes to these leaves before this disk is asked."""
        self._told_acked_bytes = self._acked_ms = 0
        self._is_to_all = False
        """Everything in flight went to all members at once."""
        self._ask_founding = founding
        self._founding: bytes | None = None

    def begin(self, chunk: ChunkRegistration, now_ms: int) -> None:
        """Go on in a chunk that was just opened: what is not acknowledged is sent there again, at its offsets."""
        self._founding = None
        if self.window.next_offset < chunk.base_offset:
            self.window = AppendWindow(chunk.base_offset, self._limits.max_in_flight_bytes)
        self.window.begin_chunk()
        self.chunk = chunk
        nothing = Prefix.empty(chunk.base_offset)
        self.progress = {member: MemberProgress(nothing) for member in chunk.members}
        self._has_copy = bool(self.members_of(self._host))
        self._sending_order = sorted(self.progress, key=lambda member: member.host == self._host)
        self.end.begin(now_ms)
        self._told_acked_bytes = 0

    @property
    def is_at_rest(self) -> bool:
        """Whether every batch is acknowledged, and every member was told so."""
        is_told = self._told_acked_bytes >= self.window.acked.length_bytes
        return self.chunk is not None and self.window.is_empty and is_told

    @property
    def is_steady(self) -> bool:
        """Whether nothing waits to be sent, or to be told at once, and the chunk goes on."""
        return self.window.is_all_placed and not self.end.is_due and self.tells_later

    # ---- sending

    def send_placed(self, now_ms: int) -> list[Effect]:
        """Place the batches that wait, and send them, to all members at once or along the chain."""
        effects: list[Effect] = []
        while self.chunk is not None:
            self.end.grown(self.window.placed.length_bytes, now_ms)
            if self.end.is_draining:
                break
            self._is_to_all |= self.window.is_all_acked
            at, entries = self.window.place(now_ms, self._limits.append_bytes)
            if not entries:
                break
            in_flight_bytes = self.window.placed.length_bytes - self.window.acked.length_bytes
            is_small = self.window.is_all_placed and _size_of(entries) <= SMALL_BYTES
            self._is_to_all &= is_small and in_flight_bytes <= MANY_BYTES
            if self._is_to_all:
                effects += [self._append_to(self.chunk, member, at, entries) for member in self._sending_order]
            else:
                effects += self._send_chain(self.chunk, at, entries)
        return effects

    def _send_chain(self, chunk: ChunkRegistration, at: Prefix, entries: tuple[BatchEntry, ...]) -> list[Effect]:
        """To the first of the other members and to this host's own; the rest get it one from the other."""
        own = [self._append_to(chunk, member, at, entries) for member in chunk.members if member.host == self._host]
        others = [member for member in chunk.members if member.host != self._host]
        return [*([self._append_to(chunk, others[0], at, entries, tuple(others[1:]))] if others else []), *own]

    def _append_to(
        self,
        chunk: ChunkRegistration,
        member: Member,
        at: Prefix,
        entries: tuple[BatchEntry, ...],
        forward: tuple[Member, ...] = (),
    ) -> Send:
        acked_bytes = self._told_acked_bytes = self.window.acked.length_bytes
        founding = b"" if at.length_bytes or not entries else self._founded(chunk)
        message = Append(
            self._stream, member.disk, chunk.epoch, chunk.base_offset, self._host, at, entries, acked_bytes, forward,
            founding,
        )  # fmt: skip
        return Send(member.host, message)

    def _founded(self, chunk: ChunkRegistration) -> bytes:
        """Asked for with the first batch: until then nothing of the chunk is acknowledged, so it is as of its start."""
        if self._founding is None:
            self._founding = self._ask_founding(chunk.base_offset)
        return self._founding

    def send_again(self, now_ms: int) -> list[Effect]:
        """To members that lag: what they lack. To all, when nothing is in flight for a while: what is acknowledged."""
        effects: list[Effect] = []
        if self.chunk is None:
            return []
        for member, progress in self.progress.items():
            since_ms = self.window.waits_since_ms(progress.durable.length_bytes)
            pause_ms = self._limits.resend_ms * min(1 << progress.resends, LONGEST_RESEND)
            if since_ms is not None and now_ms - max(since_ms, progress.resent_ms) >= pause_ms:
                progress.resends = min(progress.resends + 1, LONGEST_RESEND)
                effects += self._resend(member, progress.durable.length_bytes, now_ms)
        is_told = self._told_acked_bytes >= self.window.acked.length_bytes
        if self.window.is_all_acked and not is_told and now_ms - self._acked_ms >= self._tell_ms():
            effects += self._send_chain(self.chunk, self.window.placed, ())
        return effects

    @property
    def tells_later(self) -> bool:
        """Whether members need not hear at once what is acknowledged; without a copy here they serve the readers."""
        return self._has_copy

    def _tell_ms(self) -> int:
        """How long members may hear of nothing."""
        return self._limits.tell_ms if self.tells_later else 0

    def _resend(self, member: Member, length_bytes: int, now_ms: int) -> list[Effect]:
        found = self.window.entries_from(length_bytes, self._limits.append_bytes)
        if self.chunk is None or found is None:
            return []
        progress = self.progress[member]
        progress.resent_ms, progress.resent_from = now_ms, length_bytes
        return [self._append_to(self.chunk, member, *found)]

    # ---- what members say

    def is_progress(self, message: AppendDone) -> bool:
        """Whether a member has more than before: one whose disk hangs answers what is repeated, too."""
        return message.durable.length_bytes > self.progress[message.member].durable.length_bytes

    def confirmed(self, message: AppendDone, now_ms: int) -> bool:
        """A member has more. Returns whether something is acknowledged that was not."""
        progress = self.progress[message.member]
        if self.is_progress(message):
            self._learn_pace(message.member, now_ms)
            progress.durable = message.durable
            progress.is_doubtful = progress.has_refused = False
            progress.resends = 0
            self._hosts.note(message.member.host, now_ms)
        elif message.is_working:
            self._hosts.note(message.member.host, now_ms)
        is_news = self.window.ack(self.confirmed_by_all())
        if is_news:
            self._acked_ms = now_ms
        return is_news

    def _learn_pace(self, member: Member, now_ms: int) -> None:
        """A member confirms what it lacked. Mostly nothing waits for long, and there is nothing to learn."""
        if now_ms - self.window.oldest_ms(now_ms) > self._notable_ms:
            since_ms = self.window.waits_since_ms(self.progress[member].durable.length_bytes)
            if since_ms is not None:
                self.patience.confirmed(member.host, since_ms, now_ms)

    def give_up(self, members: list[Member], now_ms: int) -> None:
        """The stream goes on without members that are late: what they confirm still says how slow they are."""
        self.patience.rolled(now_ms)
        for member in members:
            length_bytes = self.progress[member].durable.length_bytes
            since_ms = self.window.waits_since_ms(length_bytes)
            if since_ms is not None and self.chunk is not None:
                self.patience.gave_up(member, self.chunk.epoch, length_bytes, since_ms, now_ms)

    def confirmed_by_all(self) -> Prefix:
        """What every member has durably."""
        least: Prefix | None = None
        for progress in self.progress.values():
            if least is None or progress.durable.length_bytes < least.length_bytes:
                least = progress.durable
        return NOTHING if least is None else least

    def out_of_order(self, message: OutOfOrder, now_ms: int) -> list[Effect]:
        """A member lacks what lies in front of what it got."""
        progress = self.progress[message.member]
        length = message.end.length_bytes
        is_repeated = progress.resent_from == length and now_ms - progress.resent_ms < self._limits.resend_ms
        if length < self.window.acked.length_bytes:
            progress.is_doubtful = True  # or the message is late: its next confirmation will tell
        return [] if is_repeated else self._resend(message.member, length, now_ms)

    def members_of(self, host: str) -> list[Member]:
        """The members on a host: one, or none."""
        return [member for member in self.progress if member.host == host]

    def late(self, now_ms: int) -> list[Member]:
        """The members that have had a batch for too long."""
        return [
            member
            for member, progress in self.progress.items()
            if self._is_late(member, self.window.waits_since_ms(progress.durable.length_bytes), now_ms)
        ]

    def lateness(self, member: Member, now_ms: int) -> str:
        """Why a late member has failed, for the operator."""
        since_ms = self.window.waits_since_ms(self.progress[member].durable.length_bytes)
        waited_ms = 0 if since_ms is None else now_ms - since_ms
        silent_ms = 0 if since_ms is None else self._hosts.silent_ms(member.host, since_ms, now_ms)
        return f"no confirmation for {waited_ms} ms; the host has confirmed nothing of any stream for {silent_ms} ms"

    def _is_late(self, member: Member, since_ms: int | None, now_ms: int) -> bool:
        patience, host = self.patience, member.host
        if since_ms is None or now_ms - since_ms <= patience.least_ms:
            return False
        is_silent = self._hosts.silent_ms(host, since_ms, now_ms) > patience.silent_ms(host, now_ms)
        return is_silent or now_ms - since_ms > patience.wait_ms(host, now_ms)

    def holders(self) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        """Who has what is acknowledged, the failed ones too, and who may have lost it. If all may, all are named."""
        sure = tuple(member for member, progress in self.progress.items() if not progress.is_doubtful)
        doubtful = tuple(member for member, progress in self.progress.items() if progress.is_doubtful)
        return (sure, doubtful) if sure else (doubtful, ())


def _size_of(entries: tuple[BatchEntry, ...]) -> int:
    return sum(len(entry.data) for entry in entries)

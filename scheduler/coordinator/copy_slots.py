"""Copy slots: for a second and a half, copies of log chunks from one host to another may be faster than they must.

A slot is a request of the plan: a copy of one chunk from a host to a given host, with tokens of both disks, of what one
sends and the other receives, and of the links between, from its go to its end. It is told to the target, which asks for
it again and again while copies flow there (`logstore.cluster.copies.slot_calls`).

Invariants:
* A slot that was told lasts here until the time that was told has passed, or the target says that it has no slot any
  more; at the target, which counts from when it asked, it has ended by then. So a token that a slot gives back is in
  use by no copy.
* A slot is told for SLOT_MS at most, and never for longer than `sure_ms`: for that long no other host can lead. So
  slots are in no store, and outlive no coordinator.
* One that is not told within UNTOLD_MS of its go ends: its target is away. From its go a slot holds tokens for
  UNTOLD_MS + SLOT_MS and a tick at most; after that it goes to the end of the queue.
* A pair of hosts has one slot, MAX_SOURCES to one target; what is asked for no more leaves the queue after FORGET_MS.
* Slots are no requests of clients: nobody sees them but in the status, and the registry never.
* An answer to an older call never counts: a call with a lower number than the last of that life changes nothing.

Sources: SGuard, section 5 (requests, capacities, callbacks that say when); decision 0093.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from logstore.base.copy_slots import MAX_NEEDY, MAX_SOURCES, SLOT_MS
from scheduler.errors import RequestError
from scheduler.peace.online import OnlineScheduler, Submission
from scheduler.peace.online.records import ChunkRecord, EventOutcome, RequestRecord
from scheduler.peace.plan import TransferKind

UNTOLD_MS: Final = 1_000
FORGET_MS: Final = 3_000
NEEDY_PRIORITY: Final = 9
"""Where one copy of a chunk is left; for others 0, as checkpoints have it."""
LEAST_MS: Final = 200
"""A shorter slot is not worth telling."""
MAX_PAIRS: Final = 4_096
"""With one copy left, that are known at a time."""
QUEUE_FULL: Final = "requests"
"""The field of the error of a full queue; with any other error a pair cannot be planned."""

Pair = tuple[str, str]
"""Source and target, hosts of the network."""
Event = Callable[[OnlineScheduler], EventOutcome]


class SlotCall(NamedTuple):
    """What a host says: for copies from which hosts it wants to be faster, from which it is, and between which hosts
    copies flow of chunks that have one copy left. Hosts of the network; `life`, `number`: calls of one life count up.
    """

    target: str
    life: str
    number: int
    wanted: Collection[str]
    held: Collection[str]
    needy: Collection[Pair] = ()


class SlotsTold(NamedTuple):
    """For how many milliseconds copies from which hosts may be faster, and from which they may be anyway, because the
    plan does not have this pair of hosts.
    """

    slots: Mapping[str, int]
    unplanned: tuple[str, ...]


@dataclass(slots=True)
class _CopySlot:
    """`attempt`: of its go, 0 while it waits. `until_ms`: as told, 0: not told yet."""

    name: str
    is_needy: bool
    asked_ms: int
    attempt: int = 0
    since_ms: int = 0
    until_ms: int = 0

    def lasts_to_ms(self) -> int:
        """When a slot with a go ends by itself."""
        return self.until_ms or self.since_ms + UNTOLD_MS


class CopySlots:
    """See the module. `change`: runs an event of the plan, and has its effects taken (`apart`)."""

    def __init__(self, change: Callable[[Event], EventOutcome], now_ms: Callable[[], int]) -> None:
        self._change = change
        self._now_ms = now_ms
        self._slots: dict[Pair, _CopySlot] = {}
        self._pairs: dict[str, Pair] = {}
        """By the names of their requests."""
        self._needy_ms: dict[Pair, int] = {}
        self._calls: dict[str, tuple[str, int]] = {}
        """The life and the number of the last call of each host."""
        self.told = 0
        """Slots that were told, since the start."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many slots have a go, and how many wait."""
        going = sum(slot.attempt > 0 for slot in self._slots.values())
        return going, len(self._slots) - going

    @property
    def left_ms(self) -> int:
        """For how long slots last that were told; 0: none does."""
        return max(0, max((slot.until_ms for slot in self._slots.values()), default=0) - self._now_ms())

    def forget(self) -> None:
        """The plan was made anew, without slots; `left_ms` was 0."""
        self._slots.clear()
        self._pairs.clear()

    # ---- calls

    def ask(self, call: SlotCall) -> tuple[str, ...] | None:
        """A host says what it wants; returns the hosts that cannot be planned with it. None: an old call.

        What may begin is in the plan after the events that this makes; `tell` says it.
        """
        if self._is_old(call):
            return None
        now_ms = self._now_ms()
        for pair in list(call.needy)[:MAX_NEEDY]:
            if pair in self._needy_ms or len(self._needy_ms) < MAX_PAIRS:
                self._needy_ms[pair] = now_ms
        for source, target in list(self._slots):  # what the host has no more ends, and another may begin with it
            slot = self._slots.get((source, target))
            if slot is not None and target == call.target and slot.until_ms and source not in call.held:
                self._end((source, target))
        self.end_over()
        unplanned = [source for source in list(call.wanted)[:MAX_SOURCES] if not self._want((source, call.target))]
        return tuple(unplanned)

    def tell(self, call: SlotCall, sure_ms: int) -> dict[str, int]:
        """The slots of a host, each with the milliseconds for which it may use it from now on."""
        now_ms, told = self._now_ms(), {}
        for source in call.wanted:
            slot = self._slots.get((source, call.target))
            if slot is None or not slot.attempt or (not slot.until_ms and now_ms >= slot.lasts_to_ms()):
                continue
            if not slot.until_ms and sure_ms >= LEAST_MS:
                slot.until_ms = now_ms + min(SLOT_MS, sure_ms)
                self.told += 1
            if slot.until_ms > now_ms:
                told[source] = slot.until_ms - now_ms
        return told

    def _is_old(self, call: SlotCall) -> bool:
        life, number = self._calls.get(call.target, ("", 0))
        if life == call.life and call.number <= number:
            return True
        self._calls[call.target] = (call.life, call.number)
        return False

    def _want(self, pair: Pair) -> bool:
        """Have a slot for a pair in the plan; whether it can be planned."""
        now_ms, slot = self._now_ms(), self._slots.get(pair)
        is_needy = now_ms - self._needy_ms.get(pair, -FORGET_MS) < FORGET_MS
        if slot is not None and not slot.attempt and slot.is_needy != is_needy:
            self._end(pair)  # it gets another rank
            slot = None
        if slot is not None:
            slot.asked_ms = now_ms
            return True
        source, target = pair
        slot = _CopySlot(f"copies from {source} to {target}", is_needy, now_ms)
        submission = Submission(
            slot.name, None, 1, 1, None, NEEDY_PRIORITY if is_needy else 0, TransferKind.COPY, ((source,),)
        )
        self._slots[pair], self._pairs[slot.name] = slot, pair
        try:
            self._change(lambda scheduler: scheduler.submit(submission, now_ms, target))
        except RequestError as error:
            self._drop(slot.name)
            return error.field == QUEUE_FULL
        return True

    # ---- ends

    def end_over(self) -> None:
        """End slots whose time has passed, and forget what nobody asks for any more."""
        now_ms = self._now_ms()
        stale = [pair for pair, slot in self._slots.items() if not slot.attempt and now_ms - slot.asked_ms >= FORGET_MS]
        over = [pair for pair, slot in self._slots.items() if slot.attempt and now_ms >= slot.lasts_to_ms()]
        for pair in (*stale, *over):  # what nobody wants has no turn when others end
            if pair in self._slots:
                self._end(pair)
        for pair in [pair for pair, told_ms in self._needy_ms.items() if now_ms - told_ms >= FORGET_MS]:
            del self._needy_ms[pair]

    def _end(self, pair: Pair) -> None:
        slot, now_ms = self._slots[pair], self._now_ms()
        if slot.attempt:
            self._change(lambda scheduler: scheduler.done(slot.name, 0, slot.attempt, now_ms))
        else:
            self._change(lambda scheduler: scheduler.cancel(slot.name, now_ms))
        self._drop(slot.name)

    def _drop(self, name: str) -> None:
        pair = self._pairs.pop(name, None)
        if pair is not None:
            del self._slots[pair]

    # ---- effects of events

    def apart(self, outcome: EventOutcome) -> EventOutcome:
        """Take what concerns slots out of the effects of an event of the plan; the rest is stored and told."""
        mine = self._pairs
        if not mine:
            return outcome
        for go in outcome.revoked:
            if go.request in mine:
                slot = self._slots[mine[go.request]]
                slot.attempt = slot.until_ms = 0
        for go in outcome.go:
            if go.request in mine:
                slot = self._slots[mine[go.request]]
                slot.attempt, slot.since_ms, slot.until_ms = go.attempt, self._now_ms(), 0
        others = EventOutcome(
            tuple(go for go in outcome.go if go.request not in mine),
            tuple(go for go in outcome.revoked if go.request not in mine),
            tuple(name for name in outcome.finished if name not in mine),
            tuple(record for record in outcome.changed if _name(record) not in mine),
            tuple(name for name in outcome.given_up if name not in mine),
            outcome.ignored,
        )
        for name in (*outcome.finished, *outcome.given_up):
            self._drop(name)
        return others


def _name(record: RequestRecord | ChunkRecord) -> str:
    """The request that a record is of."""
    return record.name if isinstance(record, RequestRecord) else record.request

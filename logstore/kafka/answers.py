"""The answers of one connection: a place for each request, and answers sent in the order of the requests.

The steps of an answer: when a request's work ends, it calls `mark_ready`; once all tickets that settle together have
settled (`ServingEngine.after_settling`), `_flush` hands all ready answers at the head of the line to the socket in one
system call; `send_answers` sends the bytes that the socket did not take, and waits for the client.

Invariants:
* Answers leave in the order of their requests.
* A request's bytes count for this connection until its answer is sent, and in the total of all connections (if
  `AnswerSlot.is_shared`) only until its work is done; `RequestBudget.keep` counts those whose answer comes earlier.
* A Produce request whose time limit is over is answered when the server looks (`expire`), and its batches stay.
* `Sending` is the state of the sender; every change of it is in TRANSITIONS.
* The bytes of an answer that its client does not take count in `AnswerBudget.unsent`, except those that the answer
  budget has reserved already. Reserved bytes are given back once, when the answer is sent or the connection ends.
"""

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from logstore.base.connected_socket import ConnectedSocket
from logstore.base.states import following
from logstore.interfaces import Buffer
from logstore.kafka import produce
from logstore.kafka.budgets import AnswerBudget, RequestBudget
from logstore.kafka.frames import ClosedError
from logstore.kafka.framing import frame
from logstore.log.reading import in_own_memory
from logstore.log.served import ServingEngine
from logstore.log.stream_state import AppendTicket

SLOT_BYTES = 2048
"""Bytes that a request counts on top of its frame: for its place in the line of answers, and for its answer."""


class Sending(enum.Enum):
    """Who sends a connection's answers."""

    IDLE = "idle"
    """No answer is ready; `send_answers` waits."""
    PLANNED = "planned"
    """Answers are ready; `_flush` sends them once everything that settles now has settled, or all requests that arrived
    together are begun.
    """
    BUSY = "busy"
    """`send_answers` is at work, or about to look for work."""
    OVER = "over"
    """No request will come, and every answer is sent."""
    __hash__ = object.__hash__
    """As quick as can be: each answer looks into TRANSITIONS twice."""


class SendEvent(enum.Enum):
    """What changes the state of the sender."""

    READY = "head ready while tickets settle or requests begin"
    FLUSHED = "socket took all"
    BLOCKED = "socket took a part"
    SENT = "nothing left to send"
    LOOK = "requests ended"
    ANSWERED = "queue empty"
    __hash__ = object.__hash__


TRANSITIONS: Final[Mapping[tuple[Sending, SendEvent], Sending]] = {
    (Sending.IDLE, SendEvent.READY): Sending.PLANNED,
    (Sending.IDLE, SendEvent.FLUSHED): Sending.IDLE,
    (Sending.IDLE, SendEvent.BLOCKED): Sending.BUSY,
    (Sending.IDLE, SendEvent.LOOK): Sending.BUSY,
    (Sending.PLANNED, SendEvent.FLUSHED): Sending.IDLE,
    (Sending.PLANNED, SendEvent.BLOCKED): Sending.BUSY,
    (Sending.PLANNED, SendEvent.LOOK): Sending.BUSY,
    (Sending.BUSY, SendEvent.SENT): Sending.IDLE,
    (Sending.BUSY, SendEvent.LOOK): Sending.BUSY,
    (Sending.BUSY, SendEvent.ANSWERED): Sending.OVER,
}


@dataclass(slots=True)
class AnswerSlot:
    """The place of one request in the order of answers.

    `is_shared`: the request counts among all connections' requests. `is_greeting`: the client only introduces itself by
    it. `reserved_bytes`: what the answer budget has reserved for the answer.
    """

    correlation_id: int
    size_bytes: int
    is_shared: bool = True
    flexible_header: bool = False
    is_ready: bool = False
    is_greeting: bool = False
    body: list[Buffer] | None = None
    reserved_bytes: int = 0
    answer: produce.ProduceAnswer | None = None

    def expire(self, now_s: float) -> None:
        """If the time limit of a Produce request is over, let it be answered: `mark_early`."""
        if self.answer is not None:
            self.answer.expire(now_s)

    def add_to(self, parts: list[Buffer]) -> str | None:
        """Append the buffers of the answer's frame to `parts`. A request with acks=0 has no answer; if it failed, the
        reason is returned.
        """
        body = self.answer.body() if self.answer is not None else self.body
        if body is not None:
            parts += frame(self.correlation_id, body, flexible_header=self.flexible_header)
            return None
        return None if self.answer is None else self.answer.failure


class _AnswerBatch(NamedTuple):
    """Answers to send together, the bytes of their requests, the bytes that the answer budget has reserved for the
    answers, and the failure of a request that wants no answer. `is_service`: the client does more than introduce itself
    by one of the requests.
    """

    parts: Sequence[Buffer]
    is_service: bool
    request_bytes: int
    reserved_bytes: int
    failure: str | None


class AnswerLine:
    """The places of one connection's requests, in order, and the sending of their answers."""

    def __init__(
        self,
        client: ConnectedSocket,
        engine: ServingEngine,
        requests: RequestBudget,
        answers: AnswerBudget,
        idle_s: float,
        give_up: Callable[[], None],
    ) -> None:
        """`requests` counts the requests of all connections. `give_up` ends the connection when memory for answers is
        short and its client takes nothing. A client that takes nothing for `idle_s` seconds is disconnected.
        """
        self._client = client
        self._engine = engine
        self._requests = requests
        self._answers = answers
        self._idle_s = idle_s
        self._give_up = give_up
        self._slots: deque[AnswerSlot] = deque()
        self._sending = Sending.BUSY
        self._is_ended = False
        self._is_gathering = False
        self._work = trio.Event()
        self._progress: trio.Event | None = None
        self._left: _AnswerBatch | None = None
        self.request_bytes = 0
        """Bytes of the requests whose answers are not sent."""
        self.has_served = False
        """Whether a request is answered, or wants no answer, by which the client does more than introduce itself."""
        self._reserved_bytes = 0

    def _move(self, event: SendEvent) -> None:
        """Make the transition in the table; wake `send_answers` if it has work now."""
        before, self._sending = self._sending, following(TRANSITIONS, self._sending, event, "sender of answers")
        if self._sending is Sending.BUSY and before is not Sending.BUSY:
            self._work.set()

    # ---- requests

    @property
    def waiting(self) -> int:
        """Requests without a sent answer."""
        return len(self._slots)

    @property
    def is_working(self) -> bool:
        """Whether an answer is not sent yet, other than those of requests that may wait for long."""
        waiting_bytes = sum(slot.size_bytes for slot in self._slots if not (slot.is_shared or slot.is_ready))
        return self.request_bytes > waiting_bytes

    @property
    def sends_at_once(self) -> bool:
        """Whether an answer that becomes ready now is handed to the socket before any task waits."""
        return self._sending is Sending.IDLE and not self._slots

    def push(self, slot: AnswerSlot) -> None:
        """A request has arrived; its answer follows the answers of all earlier places."""
        self._slots.append(slot)
        self.request_bytes += slot.size_bytes
        if slot.is_shared:
            self._requests.take(slot.size_bytes)

    def drop(self, slot: AnswerSlot) -> None:
        """The last request gets no answer; earlier requests still do."""
        self._slots.pop()
        self.request_bytes -= slot.size_bytes
        if slot.is_shared:
            self._requests.give(slot.size_bytes)

    def mark_ready(self, slot: AnswerSlot) -> None:
        """A request's work is done, and its answer may be sent."""
        slot.is_ready = True
        self._reserved_bytes += slot.reserved_bytes
        if slot.is_shared:
            self._requests.give(slot.size_bytes)
        if self._sending is Sending.IDLE and self._slots and self._slots[0] is slot:
            if self._is_gathering or self._engine.after_settling(self._flush):
                self._move(SendEvent.READY)
            else:
                self._flush()

    def mark_early(self, slot: AnswerSlot, tickets: Sequence[AppendTicket]) -> None:
        """A request may be answered although batches of it, which have these tickets, are not acknowledged."""
        if slot.is_shared:
            slot.is_shared = False
            self._requests.keep(slot.size_bytes, tickets)
        self.mark_ready(slot)

    def expire(self, now_s: float) -> None:
        """Answer the Produce requests whose time limit is over."""
        for slot in [slot for slot in self._slots if not slot.is_ready]:
            slot.expire(now_s)

    def gather(self) -> None:
        """Until `flush_gathered`, keep the answers that become ready. The caller must not wait in between."""
        self._is_gathering = True

    def flush_gathered(self) -> None:
        """Send the answers that became ready since `gather`, all at once."""
        if self._is_gathering:
            self._is_gathering = False
            if self._sending is Sending.PLANNED:
                self._flush()

    def end(self) -> None:
        """No more requests will come: `send_answers` returns when every answer is sent."""
        self._is_ended = True
        self._is_gathering = False
        self._move(SendEvent.LOOK)

    async def wait_sent(self, limit_bytes: int) -> None:
        """Wait until the requests without a sent answer have at most `limit_bytes` bytes."""
        if self.request_bytes > limit_bytes:
            self._engine.kick()
        while self.request_bytes > limit_bytes:
            self._progress = trio.Event()
            await self._progress.wait()

    # ---- sending

    def _flush(self) -> None:
        """Send the ready answers at once, without waiting for the socket."""
        batch = self._ready_batch()
        try:
            rest: Sequence[Buffer] = self._client.send_nowait(batch.parts)
        except OSError:
            rest = batch.parts  # `send_answers` meets the same error, and ends the connection
        if rest or batch.failure is not None:
            counted_bytes = max(batch.reserved_bytes, sum(map(len, rest)))
            self._left = batch._replace(parts=in_own_memory(list(rest), counted_bytes))
            self._move(SendEvent.BLOCKED)
        else:
            self._move(SendEvent.LOOK if self._is_ended else SendEvent.FLUSHED)
            self._note_sent(batch)

    async def send_answers(self) -> None:
        """Send the bytes that the socket does not take at once, until no more requests come and every answer is sent.

        Raises ClosedError if a request with acks=0 failed, OSError when the client is gone or takes nothing.
        """
        while True:
            if self._left is not None or (self._slots and self._slots[0].is_ready):
                batch, self._left = self._left or self._ready_batch(), None
                await self._send(batch)
                if batch.failure is not None:
                    raise ClosedError(f"acks=0, so the connection is closed to report the failure: {batch.failure}")
                self._note_sent(batch)
            elif self._is_ended and not self._slots:
                self._move(SendEvent.ANSWERED)
                return
            else:
                self._work = trio.Event()
                self._move(SendEvent.SENT)
                await self._work.wait()

    async def _send(self, batch: _AnswerBatch) -> None:
        unsent = self._answers.unsent.begin(self._give_up)
        try:
            await self._client.send(
                batch.parts,
                self._idle_s,
                lambda size: self._answers.unsent.hold(unsent, max(0, size - batch.reserved_bytes)),
            )
        finally:
            self._answers.unsent.end(unsent)

    def _note_sent(self, batch: _AnswerBatch) -> None:
        self.has_served = self.has_served or batch.is_service
        self.request_bytes -= batch.request_bytes
        if batch.reserved_bytes:
            self._give_back(batch.reserved_bytes)
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def close(self) -> None:
        """Give back the bytes that the answer budget has reserved for unsent answers."""
        self._give_back(self._reserved_bytes)

    def _give_back(self, reserved_bytes: int) -> None:
        self._reserved_bytes -= reserved_bytes
        self._answers.give(reserved_bytes)

    def _ready_batch(self) -> _AnswerBatch:
        """Take the ready answers at the head of the line."""
        parts: list[Buffer] = []
        request_bytes = reserved_bytes = 0
        is_service = False
        while self._slots and self._slots[0].is_ready:
            slot = self._slots.popleft()
            is_service = is_service or not slot.is_greeting
            request_bytes += slot.size_bytes
            reserved_bytes += slot.reserved_bytes
            failure = slot.add_to(parts)
            if failure is not None:
                return _AnswerBatch(parts, is_service, request_bytes, reserved_bytes, failure)
        return _AnswerBatch(parts, is_service, request_bytes, reserved_bytes, None)

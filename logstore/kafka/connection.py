"""One client's connection: frames in, answers out, in order.

Produce requests are pipelined: the next is read and appended while earlier ones wait for their sync. Every other
request waits until the answers in front of it are sent, and holds back what follows, as in Kafka.

Invariants:
* Answers leave in the order of their requests.
* Bytes of requests and answers are bounded, per connection and over all (`logstore.kafka.budgets`); how they come in
  is the matter of `logstore.kafka.frames`. A client that does not read its answers stops being read from, and nobody
  else notices; one that takes nothing for `idle_s` is closed.
* A request that only waits (a fetch for records, a join for members) weighs on its connection, not on the others.
* A frame above the limit, a request that cannot be decoded, an API key nobody knows or a fault of ours ends this
  connection, and only it.
"""

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import trio

from logstore.errors import CairnError, MalformedRequest
from logstore.interfaces import Buffer
from logstore.kafka import codec, fetch, produce
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.dispatch import Caller, Front, Handlers
from logstore.kafka.frames import Arrivals, ClosedError, Deadlines, FrameReader
from logstore.kafka.framing import Reader, frame
from logstore.kafka.link import Link, TooSlow
from logstore.kafka.pace import STEPS, Pace, collecting
from logstore.kafka.versions import api_versions_body, served_versions

LINGER_BYTES = 16 * 1024
LINGER_S = 1.0
"""How long a client may go on sending after our last answer; closing earlier could destroy that answer on its way."""
SLOT_BYTES = 2048
"""What a request counts beside its bytes: its place in line and its answer."""
GROUP_KEYS = frozenset((11, 14))
"""JoinGroup, SyncGroup: they wait for the other members."""
MAX_WAITING_BYTES = 64 << 20
"""Of them, over all connections: twice what the members of all groups may be. Who comes beyond it is closed."""
WAITING_KEYS = GROUP_KEYS | {fetch.KEY}
"""They may wait for long, and do not stand in the way of others; fetches have a bound of their own."""
LONG_ANSWER_KEYS = frozenset((3, 9, 15, 32, 35, 75))
"""Metadata, OffsetFetch, DescribeGroups, DescribeConfigs, DescribeLogDirs, DescribeTopicPartitions: short questions,
long answers."""


@dataclass(slots=True)
class _Slot:
    """The place of one request in the order of answers. `is_shared`: it counts among all connections' requests."""

    correlation_id: int
    size_bytes: int
    is_shared: bool = True
    flexible_header: bool = False
    is_ready: bool = False
    body: list[Buffer] | None = None
    answer: produce.Answer | None = None


class Connection:
    """Serves one client until it goes, misbehaves or is idle for too long."""

    def __init__(
        self,
        link: Link,
        front: Front,
        handlers: Handlers,
        caller: Caller,
        arrivals: Arrivals,
        answers: AnswerBudget,
        on_request: Callable[[Callable[[], None]], None],
    ) -> None:
        """`on_request` is called with `give_way` at every request that comes, before it is served."""
        self._link = link
        self._front = front
        self._handlers = handlers
        self._caller = caller
        self._requests = arrivals.requests
        self._waiting = arrivals.waiting
        self._answers = answers
        self._unsent_answers = answers.unsent
        self._on_request = on_request
        self._slots: deque[_Slot] = deque()
        self._unsent_bytes = 0
        self._answer_bytes = 0
        self._send_wanted: trio.Event | None = None
        self._sent: trio.Event | None = None
        self._unsent: _Answers | None = None
        self._is_flush_planned = False
        self._life = trio.CancelScope()
        self._receiving = trio.CancelScope()
        self._why_ended: str | None = None
        self._is_stopping = False
        self._is_over = False
        settings = front.settings
        deadlines = Deadlines(settings.handshake_s, settings.idle_s)
        limit = settings.max_frame_bytes
        self._frames = FrameReader(link, limit, deadlines, arrivals, self._receiving, self._give_up_frame)

    def give_way(self) -> None:
        """End at once, whatever is unanswered: another client needs the place."""
        self._why_ended = "it was idle the longest, and its place went to a new connection (max-connections)"
        self._life.cancel()

    def _give_up_frame(self) -> None:
        """The frame that is coming in is not waited for; what was read before is still answered."""
        self._why_ended = (
            "its frame came slower than others while memory for requests was short (total-in-flight-bytes)"
        )
        self._receiving.cancel()

    def _give_up_answer(self) -> None:
        self._why_ended = "it did not read its answers while memory for them was short (total-answer-bytes)"
        self._life.cancel()

    def stop(self) -> None:
        """Take no more requests; what is being written is still answered, what only waits is not."""
        self._is_stopping = True
        self._receiving.cancel()

    async def run(self) -> None:
        """Serve; returns when the connection is over."""
        try:
            with self._life:
                await self._serve()
            if self._life.cancelled_caught:
                self._report_close(self._why_ended)
        except* TooSlow as group:
            self._report_close(group.exceptions[0])
        except* (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            pass  # the client went away; what it had sent is appended all the same
        except* ClosedError as group:
            self._report_close(group.exceptions[0])
        except* Exception as group:  # noqa: BLE001  a fault of ours must not cost the other clients their connections
            trace = "".join(traceback.format_exception(group))
            self._front.engine.store.report("request crashed", client=self._caller.host, trace=trace)
        finally:
            self._answers.give(self._answer_bytes)
            self._link.close()

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_answers)
            with self._receiving:
                try:
                    await self._receive()
                except (MalformedRequest, ClosedError) as error:
                    self._report_close(error)
            if self._receiving.cancelled_caught and not self._is_stopping:
                self._report_close(self._why_ended or "no whole request came in time")
            self._is_over = True
            self._want_send()
            self._front.engine.kick()
        if not self._frames.is_ended:
            await self._linger()

    def _report_close(self, why: object) -> None:
        self._front.engine.store.report("connection closed", client=self._caller.host, why=str(why))

    async def _linger(self) -> None:
        self._link.end_sending()
        rest = memoryview(bytearray(LINGER_BYTES))
        with trio.move_on_after(LINGER_S):
            while await self._link.receive(rest):
                pass

    # ---- in

    async def _receive(self) -> None:
        while True:
            request = self._frames.next_nowait()
            if request is None:
                self._front.engine.kick()
                if not await self._frames.receive():
                    return
                continue
            self._on_request(self.give_way)
            header = codec.decode_header(request)
            if header.api_key == produce.KEY and produce.MIN_VERSION <= header.version <= produce.MAX_VERSION:
                await self._produce(request, header)
            else:
                await self._serve_alone(request, header)
            if self._unsent_bytes > self._front.settings.connection_in_flight_bytes or not self._requests.has_room:
                await self._wait_for_room()

    async def _serve_alone(self, request: memoryview, header: codec.RequestHeader) -> None:
        """Any request but Produce: once its predecessors are answered, and before what follows."""
        self._frames.pause()
        if header.client_id != self._caller.client_id:
            self._caller = self._caller._replace(client_id=header.client_id)
        slot = _Slot(header.correlation_id, len(request) + SLOT_BYTES, header.api_key not in WAITING_KEYS)
        self._push(slot)
        try:
            await self._wait_unsent(slot.size_bytes)
            slot.body = await self._answer(request, header, slot)
            self._mark_ready(slot)
        finally:
            if not slot.is_ready:
                self._drop(slot)

    async def _wait_for_room(self) -> None:
        """Read nothing more until there is room for it."""
        self._let_others_run()
        await self._wait_unsent(self._front.settings.connection_in_flight_bytes)
        await self._requests.wait_room()

    async def _produce(self, request: memoryview, header: codec.RequestHeader) -> None:
        slot = _Slot(header.correlation_id, len(request) + SLOT_BYTES)
        flexible = header.version >= produce.FIRST_FLEXIBLE
        decoded = produce.decode(request, _body_at(request, header, flexible=flexible), header.version)
        slot.flexible_header = flexible
        self._push(slot)
        slot.answer = answer = produce.Answer(decoded.version, decoded.acks)
        is_appended = False
        try:
            await self._append(decoded, len(request), answer)
            is_appended = True
        finally:
            if not is_appended:  # the connection ends here; what is appended stays
                self._drop(slot)
        if slot.answer.waiting:
            slot.answer.on_ready = lambda: self._mark_ready(slot)
        else:
            self._mark_ready(slot)

    async def _append(self, request: produce.ProduceRequest, frame_bytes: int, answer: produce.Answer) -> None:
        if produce.needs_check_apart(self._front, request):
            self._let_others_run()
            request = await produce.check_apart(self._front, request)
        if request.partitions <= STEPS:
            produce.start(self._front, request, frame_bytes, answer)
        else:
            self._let_others_run()
            pace = Pace()
            for _ in produce.steps(self._front, request, frame_bytes, answer):
                await pace.step()

    def _let_others_run(self) -> None:
        """A request takes long to append: its client cannot be late meanwhile, and what is appended is written."""
        self._frames.pause()
        self._front.engine.kick()

    async def _answer(self, request: memoryview, header: codec.RequestHeader, slot: _Slot) -> list[Buffer]:
        """The body of the answer to any request but Produce."""
        raw = self._handlers.raw.get(header.api_key)
        try:
            if raw is not None:
                body, self._answer_bytes = await raw.handle(request[header.body_at :], self._answers)
                return body
            if header.api_key == codec.API_VERSIONS_KEY:
                return api_versions_body(self._handlers, header.version)
            if header.api_key == fetch.KEY and fetch.MIN_VERSION <= header.version <= fetch.MAX_VERSION:
                slot.flexible_header = header.version >= fetch.FIRST_FLEXIBLE
                at = _body_at(request, header, flexible=slot.flexible_header)
                decoded = await fetch.decode_large(request, at, header.version)
                body, self._answer_bytes = await fetch.handle(self._front, decoded, self._answers)
                return body
            with self._counted_waiting(len(request)) if header.api_key in GROUP_KEYS else nullcontext():
                return await self._answer_decoded(request, header, slot)
        except (MalformedRequest, ClosedError):
            raise
        except (CairnError, OSError) as error:
            raise ClosedError(f"request {header.api_key} failed: {error}") from error

    async def _answer_decoded(self, request: memoryview, header: codec.RequestHeader, slot: _Slot) -> list[Buffer]:
        api = self._handlers.kafka.get(header.api_key)
        if api is None or not api.min_version <= header.version <= api.max_version:
            return self._refuse_version(header, slot)
        flexible = bool(codec.request_type(header.api_key, header.version).__flexible__)
        decoded = await codec.decode_large(request, header, _body_at(request, header, flexible=flexible))
        async with collecting() if header.api_key in LONG_ANSWER_KEYS else nullcontext():
            response = await api.handle(decoded, self._caller)
            slot.flexible_header = codec.has_flexible_response_header(response)
            return await codec.encode_large(response)

    def _refuse_version(self, header: codec.RequestHeader, slot: _Slot) -> list[Buffer]:
        """UNSUPPORTED_VERSION in the nearest version served; answers without room for a code close the connection."""
        offered = {key: (lowest, highest) for key, lowest, highest in served_versions(self._handlers)}
        if header.api_key in offered:
            lowest, highest = offered[header.api_key]
            refusal = codec.refuse_version(header.api_key, min(max(header.version, lowest), highest))
            if refusal is not None:
                slot.flexible_header = codec.has_flexible_response_header(refusal)
                return codec.encode(refusal)
        raise ClosedError(f"request {header.api_key} version {header.version} is not served here")

    # ---- out

    def _push(self, slot: _Slot) -> None:
        self._slots.append(slot)
        self._unsent_bytes += slot.size_bytes
        if slot.is_shared:
            self._requests.take(slot.size_bytes)

    @contextmanager
    def _counted_waiting(self, size: int) -> Iterator[None]:
        """Around a request that may wait for a group and keeps its frame meanwhile."""
        if not self._waiting.has_room:
            raise ClosedError("requests that wait for their groups hold too much memory")
        self._waiting.take(size)
        try:
            yield
        finally:
            self._waiting.give(size)

    def _drop(self, slot: _Slot) -> None:
        """The last request gets no answer; those in front of it still do."""
        self._slots.pop()
        self._unsent_bytes -= slot.size_bytes
        if slot.is_shared:
            self._requests.give(slot.size_bytes)

    def _mark_ready(self, slot: _Slot) -> None:
        """A request's work is done: it weighs on this connection until its answer is sent, but no longer on the
        others.
        """
        slot.is_ready = True
        if slot.is_shared:
            self._requests.give(slot.size_bytes)
        if self._slots and self._slots[0] is slot and self._send_wanted is not None and not self._is_flush_planned:
            self._is_flush_planned = self._front.engine.after_settling(self._flush)
            if not self._is_flush_planned:
                self._flush()

    def _want_send(self) -> None:
        if self._send_wanted is not None:
            self._send_wanted.set()
            self._send_wanted = None

    async def _wait_unsent(self, limit_bytes: int) -> None:
        """Wait until requests of at most `limit_bytes` are without a sent answer."""
        if self._unsent_bytes > limit_bytes:
            self._front.engine.kick()
        while self._unsent_bytes > limit_bytes:
            if self._sent is None:
                self._sent = trio.Event()
            await self._sent.wait()

    def _flush(self) -> None:
        """Send what is ready without a turn of the event loop; what the socket does not take is left to the sender."""
        self._is_flush_planned = False
        if self._send_wanted is None:
            return  # the sender is at work, and will look again
        answers = self._ready_answers()
        try:
            rest: Sequence[Buffer] = self._link.send_nowait(answers.parts)
        except OSError:
            rest = answers.parts  # the sender will meet the same error, where it belongs
        if rest or answers.failure is not None:
            self._unsent = answers._replace(parts=rest)
            self._want_send()
        else:
            self._note_sent(answers)

    def _note_sent(self, answers: "_Answers") -> None:
        self._unsent_bytes -= answers.request_bytes
        self._answers.give(self._answer_bytes)
        self._answer_bytes = 0
        if self._sent is not None:
            self._sent.set()
            self._sent = None
        if self._is_over:
            self._want_send()

    async def _send_answers(self) -> None:
        """Send what could not be sent at once, until the connection is over and everything is answered."""
        while True:
            while self._unsent is None and not (self._slots and self._slots[0].is_ready):
                if self._is_over and not self._slots:
                    return
                self._send_wanted = trio.Event()
                await self._send_wanted.wait()
            answers, self._unsent = self._unsent or self._ready_answers(), None
            await self._send(answers.parts)
            if answers.failure is not None:
                raise ClosedError(f"acks=0, so closing is all it can be told: {answers.failure}")
            self._note_sent(answers)

    async def _send(self, parts: Sequence[Buffer]) -> None:
        """Send to the end; what the client does not take counts, but for what the answer budget knows of."""
        unsent = self._unsent_answers.begin(self._give_up_answer)
        try:
            await self._link.send(
                parts,
                self._front.settings.idle_s,
                lambda size: self._unsent_answers.hold(unsent, max(0, size - self._answer_bytes)),
            )
        finally:
            self._unsent_answers.end(unsent)

    def _ready_answers(self) -> "_Answers":
        """The answers at the head of the line."""
        parts: list[Buffer] = []
        request_bytes = 0
        while self._slots and self._slots[0].is_ready:
            slot = self._slots.popleft()
            request_bytes += slot.size_bytes
            body = slot.answer.body() if slot.answer is not None else slot.body
            if body is not None:
                parts += frame(slot.correlation_id, body, flexible_header=slot.flexible_header)
            elif slot.answer is not None and slot.answer.failure is not None:
                return _Answers(parts, request_bytes, slot.answer.failure)
        return _Answers(parts, request_bytes, None)


class _Answers(NamedTuple):
    """Answers to send, what their requests weigh, and what went wrong in one that wants no answer."""

    parts: Sequence[Buffer]
    request_bytes: int
    failure: str | None


def _body_at(request: memoryview, header: codec.RequestHeader, *, flexible: bool) -> int:
    reader = Reader(request, header.body_at, flexible=flexible)
    reader.tags()
    return reader.at

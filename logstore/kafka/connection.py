"""One client's connection: frames in, answers out, in order.

Produce requests are pipelined: the next is read and appended while earlier ones wait for their sync. Every other
request waits until the answers in front of it are sent, and holds back what follows, as in Kafka.

Invariants:
* Answers leave in the order of their requests.
* Bytes of requests and answers are bounded, per connection and over all (`logstore.kafka.budgets`). A client that
  does not read its answers stops being read from, and nobody else notices; one that takes nothing for `idle_s` is
  closed.
* A frame must be whole in time: the first within `handshake_s`, others at `SLOWEST_BYTES_PER_S` or better.
* A frame above the limit, a request that cannot be decoded, an API key nobody knows or a fault of ours ends this
  connection, and only it.
"""

import math
import struct
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import trio

from logstore.errors import CairnError, MalformedRequest
from logstore.interfaces import Buffer
from logstore.kafka import codec, fetch, produce
from logstore.kafka.budgets import AnswerBudget, RequestBudget
from logstore.kafka.dispatch import Caller, Front, Handlers
from logstore.kafka.framing import Reader, frame
from logstore.kafka.link import Link, TooSlow
from logstore.kafka.versions import api_versions_body, served_versions

FIRST_RECEIVE_BYTES = 16 * 1024
RECEIVE_BYTES = 256 * 1024
"""The receive buffer of a client that fills the first one; larger frames are received into place."""
FRAME_PATIENCE_S = 30.0
DEADLINE_SLACK_S = 1.0
"""A deadline is moved only if it would move by more."""
SLOWEST_BYTES_PER_S = 64 * 1024
"""A frame may take FRAME_PATIENCE_S, and a second more for each of these bytes."""
LINGER_S = 1.0
"""How long a client may go on sending after our last answer; closing earlier could destroy that answer on its way."""
SLOT_BYTES = 2048
"""What a request counts beside its bytes: its place in line and its answer."""
_LENGTH = struct.Struct(">i")


@dataclass(slots=True)
class _Slot:
    """The place of one request in the order of answers."""

    correlation_id: int
    size_bytes: int
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
        requests: RequestBudget,
        answers: AnswerBudget,
    ) -> None:
        self._link = link
        self._front = front
        self._handlers = handlers
        self._caller = caller
        self._requests = requests
        self._answers = answers
        self._slots: deque[_Slot] = deque()
        self._unsent_bytes = 0
        self._answer_bytes = 0
        self._send_wanted: trio.Event | None = None
        self._sent: trio.Event | None = None
        self._unsent: _Answers | None = None
        self._is_flush_planned = False
        self._receiving = trio.CancelScope()
        self._is_stopping = False
        self._is_over = False
        self._client_ended = False

    def stop(self) -> None:
        """Take no more requests; what is being written is still answered, what only waits is not."""
        self._is_stopping = True
        self._receiving.cancel()

    async def run(self) -> None:
        """Serve; returns when the connection is over."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_answers)
                with self._receiving:
                    try:
                        await self._receive()
                    except (MalformedRequest, _Closed) as error:
                        self._report_close(error)
                if self._receiving.cancelled_caught and not self._is_stopping:
                    self._report_close(_Closed("no whole request came in time"))
                self._is_over = True
                self._want_send()
                self._front.engine.kick()
            if not self._client_ended:
                await self._linger()
        except* TooSlow as group:
            self._report_close(group.exceptions[0])
        except* (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            pass  # the client went away; what it had sent is appended all the same
        except* _Closed as group:
            self._report_close(group.exceptions[0])
        except* Exception as group:  # noqa: BLE001  a fault of ours must not cost the other clients their connections
            trace = "".join(traceback.format_exception(group))
            self._front.engine.store.report("request crashed", client=self._caller.host, trace=trace)
        finally:
            self._answers.give(self._answer_bytes)
            self._link.close()

    def _report_close(self, error: BaseException) -> None:
        self._front.engine.store.report("connection closed", client=self._caller.host, why=str(error))

    async def _linger(self) -> None:
        self._link.end_sending()
        rest = memoryview(bytearray(FIRST_RECEIVE_BYTES))
        with trio.move_on_after(LINGER_S):
            while await self._link.receive(rest):
                pass

    # ---- in

    async def _receive(self) -> None:
        settings = self._front.settings
        buffer = bytearray(FIRST_RECEIVE_BYTES)
        filled = 0
        is_greeted = False
        deadline_s = trio.current_time() + settings.handshake_s
        while True:
            if filled == len(buffer):
                buffer = buffer + bytes(RECEIVE_BYTES - filled)
            view = memoryview(buffer)
            received = await self._receive_some(view[filled:], deadline_s)
            if not received:
                return
            begins = filled == 0
            filled += received
            at = await self._take_frames(view, filled, deadline_s if not is_greeted else None)
            self._front.engine.kick()
            is_greeted = is_greeted or at > 0
            if at or (begins and is_greeted):
                is_partial = at < filled
                deadline_s = trio.current_time() + (_frame_patience_s(RECEIVE_BYTES) if is_partial else settings.idle_s)
            if at:
                view[: filled - at] = bytes(view[at:filled])
                filled -= at

    async def _receive_some(self, target: memoryview, deadline_s: float) -> int:
        """Receive something before the deadline, or be cancelled; 0 at the client's end."""
        # One scope for the whole connection, moved rarely: a scope for each call would cost more than the call.
        if not 0 <= deadline_s - self._receiving.deadline < DEADLINE_SLACK_S:
            self._receiving.deadline = deadline_s
        received = await self._link.receive(target)
        self._client_ended = received == 0
        return received

    async def _take_frames(self, view: memoryview, filled: int, deadline_s: float | None) -> int:
        """Serve the frames that begin in the buffer, but for a last one that fits into it; returns where it begins."""
        at = 0
        while filled - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(view, at)
            limit = self._front.settings.max_frame_bytes
            if not codec.FIXED_HEADER_BYTES <= size <= limit:
                raise _Closed(f"a frame of {size} bytes; allowed are {limit} (max-frame-bytes)")
            start = at + _LENGTH.size
            have = filled - start
            if have >= size:
                at = start + size
                request = memoryview(bytearray(view[start:at]))
            elif size <= RECEIVE_BYTES - _LENGTH.size:
                break
            else:
                at = filled
                request = await self._large_frame(view[start:filled], size, deadline_s)
            header = codec.decode_header(request)
            if header.api_key == produce.KEY and produce.MIN_VERSION <= header.version <= produce.MAX_VERSION:
                self._produce(request, header)
            else:
                await self._serve_alone(request, header)
            if self._unsent_bytes > self._front.settings.connection_in_flight_bytes or not self._requests.has_room:
                await self._wait_for_room()
        return at

    async def _large_frame(self, first: memoryview, size: int, deadline_s: float | None) -> memoryview:
        """Receive the rest of a frame into place. Its bytes are counted before they are allocated."""
        self._front.engine.kick()
        self._receiving.deadline = math.inf
        await self._requests.wait_room()
        self._requests.take(size)
        try:
            whole = memoryview(bytearray(size))
            whole[: len(first)] = first
            rest = whole[len(first) :]
            if deadline_s is None:
                deadline_s = trio.current_time() + _frame_patience_s(size)
            while rest:
                received = await self._receive_some(rest, deadline_s)
                if not received:
                    raise _Closed("the connection ended inside a frame")
                rest = rest[received:]
            return whole
        finally:
            self._requests.give(size)  # whoever serves it counts it again, before anybody else runs

    async def _serve_alone(self, request: memoryview, header: codec.RequestHeader) -> None:
        """Any request but Produce: once its predecessors are answered, and before what follows."""
        self._receiving.deadline = math.inf  # the client cannot be late while it waits for us
        if header.client_id != self._caller.client_id:
            self._caller = self._caller._replace(client_id=header.client_id)
        slot = _Slot(header.correlation_id, len(request) + SLOT_BYTES)
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
        self._receiving.deadline = math.inf
        self._front.engine.kick()
        await self._wait_unsent(self._front.settings.connection_in_flight_bytes)
        await self._requests.wait_room()

    def _produce(self, request: memoryview, header: codec.RequestHeader) -> None:
        slot = _Slot(header.correlation_id, len(request) + SLOT_BYTES)
        flexible = header.version >= produce.FIRST_FLEXIBLE
        decoded = produce.decode(request, _body_at(request, header, flexible=flexible), header.version)
        slot.flexible_header = flexible
        self._push(slot)
        slot.answer = produce.start(self._front, decoded, len(request))
        if slot.answer.waiting:
            slot.answer.on_ready = lambda: self._mark_ready(slot)
        else:
            self._mark_ready(slot)

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
                decoded = fetch.decode(request, at, header.version)
                body, self._answer_bytes = await fetch.handle(self._front, decoded, self._answers)
                return body
            return await self._answer_decoded(request, header, slot)
        except (MalformedRequest, _Closed):
            raise
        except (CairnError, OSError) as error:
            raise _Closed(f"request {header.api_key} failed: {error}") from error

    async def _answer_decoded(self, request: memoryview, header: codec.RequestHeader, slot: _Slot) -> list[Buffer]:
        api = self._handlers.kafka.get(header.api_key)
        if api is None or not api.min_version <= header.version <= api.max_version:
            return self._refuse_version(header, slot)
        flexible = bool(codec.request_type(header.api_key, header.version).__flexible__)
        decoded = codec.decode(request, header, _body_at(request, header, flexible=flexible))
        response = await api.handle(decoded, self._caller)
        slot.flexible_header = codec.has_flexible_response_header(response)
        return codec.encode(response)

    def _refuse_version(self, header: codec.RequestHeader, slot: _Slot) -> list[Buffer]:
        """UNSUPPORTED_VERSION in the nearest version served; answers without room for a code close the connection."""
        offered = {key: (lowest, highest) for key, lowest, highest in served_versions(self._handlers)}
        if header.api_key in offered:
            lowest, highest = offered[header.api_key]
            refusal = codec.refuse_version(header.api_key, min(max(header.version, lowest), highest))
            if refusal is not None:
                slot.flexible_header = codec.has_flexible_response_header(refusal)
                return codec.encode(refusal)
        raise _Closed(f"request {header.api_key} version {header.version} is not served here")

    # ---- out

    def _push(self, slot: _Slot) -> None:
        self._slots.append(slot)
        self._unsent_bytes += slot.size_bytes
        self._requests.take(slot.size_bytes)

    def _drop(self, slot: _Slot) -> None:
        """The last request gets no answer; those in front of it still do."""
        self._slots.pop()
        self._unsent_bytes -= slot.size_bytes
        self._requests.give(slot.size_bytes)

    def _mark_ready(self, slot: _Slot) -> None:
        """A request's work is done: it weighs on this connection until its answer is sent, but no longer on the
        others.
        """
        slot.is_ready = True
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
            await self._link.send(answers.parts, self._front.settings.idle_s)
            if answers.failure is not None:
                raise _Closed(f"acks=0, so closing is all it can be told: {answers.failure}")
            self._note_sent(answers)

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


def _frame_patience_s(size_bytes: int) -> float:
    return FRAME_PATIENCE_S + size_bytes / SLOWEST_BYTES_PER_S


def _body_at(request: memoryview, header: codec.RequestHeader, *, flexible: bool) -> int:
    reader = Reader(request, header.body_at, flexible=flexible)
    reader.tags()
    return reader.at


class _Closed(CairnError):
    """This connection ends; the message says why."""

    blame = "client"

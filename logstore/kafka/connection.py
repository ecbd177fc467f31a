"""One client's connection: frames in, answers out, in order.

Produce requests are pipelined: the next is read and appended while earlier ones wait for their sync. Every other request waits
until its predecessors are answered, and holds back what follows, as in Kafka.

Invariants:
* Answers leave in the order of their requests.
* Bytes of requests that are not answered yet are bounded, per connection and over all; a reader that reaches the bound stops
  reading, which slows its client down and nobody else.
* A frame above the limit, a request that cannot be decoded or an API key nobody knows ends this connection, and only it.
"""

import struct
from collections import deque
from dataclasses import dataclass

import trio

from logstore.errors import CairnError, MalformedRequest
from logstore.interfaces import Buffer
from logstore.kafka import codec, fetch, produce
from logstore.kafka.dispatch import Caller, Front, Handlers
from logstore.kafka.framing import Reader, frame
from logstore.kafka.versions import api_versions_body

RECEIVE_BYTES = 256 * 1024
SEND_JOIN_BYTES = 256 * 1024
_LENGTH = struct.Struct(">i")
_SENTINEL_BYTES = 512
"""What an answer without a body to speak of counts."""


class InFlight:
    """The bound over all connections on bytes of requests that are not answered yet."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._freed = trio.Event()

    def take(self, size: int) -> None:
        """Count a request."""
        self._used_bytes += size

    def give(self, size: int) -> None:
        """A request is answered."""
        self._used_bytes -= size
        if self._used_bytes <= self._limit_bytes:
            self._freed.set()
            self._freed = trio.Event()

    async def wait_room(self) -> None:
        """Wait until there is room for another request."""
        while self._used_bytes > self._limit_bytes:
            await self._freed.wait()


@dataclass(slots=True)
class _Slot:
    """The place of one request in the order of answers."""

    correlation_id: int
    request_bytes: int
    flexible_header: bool = False
    is_ready: bool = False
    body: list[Buffer] | None = None
    answer: produce.Answer | None = None


class Connection:
    """Serves one client until it goes, misbehaves or is idle for too long."""

    def __init__(
        self, sock: trio.socket.SocketType, front: Front, handlers: Handlers, caller: Caller, in_flight: InFlight
    ) -> None:
        self._socket = sock
        self._front = front
        self._handlers = handlers
        self._caller = caller
        self._total = in_flight
        self._slots: deque[_Slot] = deque()
        self._in_flight_bytes = 0
        self._ready = trio.Event()
        self._moved = trio.Event()
        self._is_over = False

    async def run(self) -> None:
        """Serve; returns when the connection is over."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_answers)
                try:
                    await self._receive()
                except (MalformedRequest, _Closed) as error:
                    self._front.engine.store.report("connection closed", client=self._caller.host, why=str(error))
                    self._drop_unanswerable()
                self._is_over = True
                self._ready.set()
        except* (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            pass  # the client went away; what it had sent is appended all the same
        finally:
            self._total.give(self._in_flight_bytes)
            self._socket.close()

    def _drop_unanswerable(self) -> None:
        """The last request gets no answer; those in front of it still do."""
        if self._slots and not self._slots[-1].is_ready and self._slots[-1].answer is None:
            size = self._slots.pop().request_bytes
            self._in_flight_bytes -= size
            self._total.give(size)

    # ---- in

    async def _receive(self) -> None:
        settings = self._front.settings
        buffer = bytearray(RECEIVE_BYTES)
        view = memoryview(buffer)
        filled = 0
        patience_s = settings.handshake_s
        while True:
            with trio.move_on_after(patience_s) as scope:
                received = await self._socket.recv_into(view[filled:])
            if scope.cancelled_caught:
                raise _Closed(f"nothing received for {patience_s:g} s")
            if not received:
                return
            patience_s = settings.idle_s
            filled += received
            at = 0
            while filled - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(buffer, at)
                if not codec.FIXED_HEADER_BYTES <= size <= settings.max_frame_bytes:
                    raise _Closed(f"a frame of {size} bytes; allowed are {settings.max_frame_bytes} (max-frame-bytes)")
                whole = bytearray(size)
                have = min(size, filled - at - _LENGTH.size)
                start = at + _LENGTH.size
                if have < size:
                    if size <= RECEIVE_BYTES - _LENGTH.size:
                        break
                    whole[:have] = view[start : start + have]
                    await self._fill(memoryview(whole)[have:])
                else:
                    whole[:] = view[start : start + size]
                at = start + have
                await self._serve(memoryview(whole))
            self._front.engine.kick()
            if at:
                view[: filled - at] = bytes(view[at:filled])
                filled -= at

    async def _fill(self, rest: memoryview) -> None:
        self._front.engine.kick()
        while rest:
            with trio.move_on_after(self._front.settings.idle_s) as scope:
                received = await self._socket.recv_into(rest)
            if scope.cancelled_caught or not received:
                raise _Closed("the connection ended inside a frame")
            rest = rest[received:]

    async def _serve(self, request: memoryview) -> None:
        header = codec.decode_header(request)
        slot = _Slot(header.correlation_id, len(request) + _SENTINEL_BYTES)
        self._caller = self._caller._replace(client_id=header.client_id)
        if header.api_key == produce.KEY and produce.MIN_VERSION <= header.version <= produce.MAX_VERSION:
            self._produce(request, header, slot)
        else:
            while self._slots:
                self._front.engine.kick()
                await self._wait_moved()
            self._push(slot)
            slot.body = await self._answer(request, header, slot)
            self._mark_ready(slot)
        while self._in_flight_bytes > self._front.settings.connection_in_flight_bytes:
            self._front.engine.kick()
            await self._wait_moved()
        await self._total.wait_room()

    def _produce(self, request: memoryview, header: codec.RequestHeader, slot: _Slot) -> None:
        flexible = header.version >= produce.FIRST_FLEXIBLE
        decoded = produce.decode(request, _body_at(request, header, flexible=flexible), header.version)
        slot.flexible_header = flexible
        self._push(slot)
        slot.answer = produce.start(self._front, decoded)
        if slot.answer.waiting:
            slot.answer.on_ready = lambda: self._mark_ready(slot)
        else:
            self._mark_ready(slot)

    async def _answer(self, request: memoryview, header: codec.RequestHeader, slot: _Slot) -> list[Buffer]:
        """The body of the answer to any request but Produce."""
        raw = self._handlers.raw.get(header.api_key)
        if raw is not None:
            return await raw.handle(request[header.body_at :], self._caller)
        if header.api_key == codec.API_VERSIONS_KEY:
            return api_versions_body(self._handlers, header.version)
        if header.api_key == fetch.KEY and fetch.MIN_VERSION <= header.version <= fetch.MAX_VERSION:
            slot.flexible_header = header.version >= fetch.FIRST_FLEXIBLE
            at = _body_at(request, header, flexible=slot.flexible_header)
            return await fetch.handle(self._front, fetch.decode(request, at, header.version))
        api = self._handlers.kafka.get(header.api_key)
        if api is None or not api.min_version <= header.version <= api.max_version:
            raise _Closed(f"request {header.api_key} version {header.version} is not served here")
        flexible = bool(codec.request_type(header.api_key, header.version).__flexible__)
        decoded = codec.decode(request, header, _body_at(request, header, flexible=flexible))
        try:
            response = await api.handle(decoded, self._caller)
        except CairnError as error:
            raise _Closed(f"request {header.api_key} failed: {error}") from error
        slot.flexible_header = codec.has_flexible_response_header(response)
        return codec.encode(response)

    # ---- out

    def _push(self, slot: _Slot) -> None:
        self._slots.append(slot)
        self._in_flight_bytes += slot.request_bytes
        self._total.take(slot.request_bytes)

    def _mark_ready(self, slot: _Slot) -> None:
        slot.is_ready = True
        if self._slots and self._slots[0] is slot:
            self._ready.set()

    async def _wait_moved(self) -> None:
        await self._moved.wait()

    async def _send_answers(self) -> None:
        while True:
            await self._ready.wait()
            self._ready = trio.Event()
            parts: list[Buffer] = []
            while self._slots and self._slots[0].is_ready:
                slot = self._slots.popleft()
                self._in_flight_bytes -= slot.request_bytes
                self._total.give(slot.request_bytes)
                body = slot.answer.body() if slot.answer is not None else slot.body
                if body is not None:
                    parts += frame(slot.correlation_id, body, flexible_header=slot.flexible_header)
            self._moved.set()
            self._moved = trio.Event()
            await self._send(parts)
            if self._slots and self._slots[0].is_ready:
                self._ready.set()
            elif self._is_over and not self._slots:
                return
            elif self._is_over:
                self._front.engine.kick()

    async def _send(self, parts: list[Buffer]) -> None:
        for data in _joined(parts):
            rest = memoryview(data)
            while rest:
                rest = rest[await self._socket.send(rest) :]


def _joined(parts: list[Buffer]) -> list[Buffer]:
    """Few buffers out of many: small neighbours are joined, large ones are left alone."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < SEND_JOIN_BYTES:
            small.append(part)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined


def _body_at(request: memoryview, header: codec.RequestHeader, *, flexible: bool) -> int:
    reader = Reader(request, header.body_at, flexible=flexible)
    reader.tags()
    return reader.at


class _Closed(CairnError):
    """This connection ends; the message says why."""

    blame = "client"

"""Calls between hosts: one host asks another one to do something, and gets an answer.

They have connections of their own, beside those of replication: a large group of an epoch does not hold up the
confirmations of other streams. The host that calls connects, when it calls first. A frame is that of a link
(`logstore.cluster.links.wire`); its body is a head and a payload, of which this module knows nothing.

| field of the head | |
|---|---|
| is it an answer | u8, 0 or 1 |
| kind of the call | u8 |
| number of the call, of this connection | u64 |

Invariants:
* A call ends with its answer, or with HostUnreachable: the connection has ended, and whether the other host did what
  was asked for is not known. So everything that is called for may be called for again.
* To one host MAX_CALLS of a kind are under way at most, with MAX_KIND_BYTES, or one larger one; more wait for their
  turn here. A call that is given up here is under way until the other host has answered it: who gives up calls makes
  that host serve no more of them. Kinds do not wait for each other: a call that is served may need another kind of
  call to end.
* A host serves at most MAX_SERVED calls of one connection at a time, and reads no more of it meanwhile.
* A call to this host itself needs no connection.
"""

import struct
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import trio
from crc32c import crc32c

from logstore.base.connected_socket import ConnectedSocket
from logstore.base.errors import TlsError
from logstore.cluster.links.connecting import connect, greet
from logstore.cluster.links.peers import OwnEnd, Peer
from logstore.cluster.links.wire import FRAME, FrameBuffer
from logstore.cluster.streams.owner_calls import Handler
from logstore.errors import HostUnreachable, LinkRefused, MalformedMessage
from logstore.events import PEER_MESSAGE_CRASHED
from logstore.interfaces import Buffer

MAX_CALLS: Final = 256
MAX_KIND_BYTES: Final = 8 << 20
"""Of calls of one kind to one host that have no answer: two segments of staged output."""
MAX_SERVED: Final = 4096
"""More than the kinds that there are, times MAX_CALLS."""
RECEIVE_BYTES: Final = 256 * 1024
_HEAD: Final = struct.Struct(">BBQ")
_SIZES: Final = struct.Struct(">II")


class CallHead(NamedTuple):
    """What is in front of the payload."""

    is_answer: bool
    kind: int
    number: int


def encode_call(call: CallHead, payload: Sequence[Buffer], max_body_bytes: int) -> list[Buffer]:
    """The buffers of a frame. Raises HostUnreachable if it is longer than a frame may be."""
    head = _HEAD.pack(*call)
    size = len(head) + sum(map(len, payload))
    if size > max_body_bytes:
        raise HostUnreachable(f"a call of {size} bytes, at most {max_body_bytes}: the other host would not take it")
    checksum = crc32c(head)
    for buffer in payload:
        checksum = crc32c(buffer, checksum)
    sizes = _SIZES.pack(size, checksum)
    return [FRAME.pack(size, checksum, crc32c(sizes)) + head, *payload]


def decode_call(body: memoryview) -> tuple[CallHead, memoryview]:
    """The head, and a copy of the payload. Raises MalformedMessage."""
    if len(body) < _HEAD.size:
        raise MalformedMessage(f"a call of {len(body)} bytes, less than its head")
    is_answer, kind, number = _HEAD.unpack_from(body)
    if is_answer > 1:
        raise MalformedMessage(f"a call that is neither one nor an answer, but {is_answer}")
    return CallHead(bool(is_answer), kind, number), memoryview(bytes(body[_HEAD.size :]))


class _CallTurns:
    """Who of one kind may call one host: MAX_CALLS with MAX_KIND_BYTES, first come, first served."""

    def __init__(self) -> None:
        self._calls = self._bytes = 0
        self._line = trio.Lock()
        self._left = trio.lowlevel.ParkingLot()

    def _has_room(self, size_bytes: int) -> bool:
        return not self._calls or (self._calls < MAX_CALLS and self._bytes + size_bytes <= MAX_KIND_BYTES)

    async def enter(self, size_bytes: int) -> None:
        """Wait for room."""
        async with self._line:
            while not self._has_room(size_bytes):
                await self._left.park()
        self._calls += 1
        self._bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """The call has ended."""
        self._calls -= 1
        self._bytes -= size_bytes
        self._left.unpark_all()


@dataclass(eq=False)
class _WaitingCall:
    """A call without an answer; whoever made it may have given it up. `leave`: its turn is over."""

    leave: Callable[[], None]
    ended: trio.Event = field(default_factory=trio.Event)
    answer: memoryview | None = None

    def end(self, answer: memoryview | None = None) -> None:
        """The answer has come, or none will come."""
        self.answer = answer
        self.leave()
        self.ended.set()


class _CallConnection:
    """A connection on which this host calls."""

    def __init__(self, link: ConnectedSocket, own: OwnEnd) -> None:
        self._link = link
        self._own = own
        self._turn = trio.Lock()
        self._waiting: dict[int, _WaitingCall] = {}
        self._number = 0
        self.why_ended = ""

    async def call(self, kind: int, payload: Sequence[Buffer], leave: Callable[[], None]) -> memoryview:
        """The answer. `leave` is called once: when the call is answered, cannot be any more, or is not sent at all.

        Raises HostUnreachable.
        """
        self._number += 1
        number, is_sent = self._number, False
        waiting = self._waiting[number] = _WaitingCall(leave)
        try:
            parts = encode_call(CallHead(False, kind, number), payload, self._own.settings.max_body_bytes)
            async with self._turn:
                if not self.why_ended:
                    await self._send(parts)
                    is_sent = True
        finally:
            if not is_sent and self._waiting.pop(number, None) is not None:
                waiting.end()
        await waiting.ended.wait()
        if waiting.answer is None:
            raise HostUnreachable(self.why_ended)
        return waiting.answer

    async def _send(self, parts: list[Buffer]) -> None:
        try:
            await self._link.send(parts, self._own.settings.stall_s)
        except OSError as error:
            self.end(error.strerror or str(error))
        except trio.ClosedResourceError:
            self.end("this host has ended the connection")
        except trio.Cancelled:
            self.end("a call was given up in the middle of its bytes")
            raise

    async def receive(self) -> None:
        """Take answers to the end of the connection."""
        frames = FrameBuffer(self._own.settings.max_body_bytes, RECEIVE_BYTES)
        why = "it ended the connection"
        try:
            while not self.why_ended and (received := await self._link.receive(frames.room())):
                frames.add(received)
                while (body := frames.next()) is not None:
                    head, payload = decode_call(body)
                    waiting = self._waiting.pop(head.number, None) if head.is_answer else None
                    if waiting is not None:
                        waiting.end(payload)
        except (OSError, MalformedMessage) as error:
            why = str(error)
        except trio.ClosedResourceError:
            why = "this host has ended the connection"
        self.end(why)

    def end(self, why: str) -> None:
        """The connection is of no use any more."""
        if not self.why_ended:
            self.why_ended = why
            self._link.close()
            unanswered, self._waiting = self._waiting, {}
            for waiting in unanswered.values():
                waiting.end()


class HostCalls:
    """Calls other hosts, and serves their calls. `peers`: the other members now."""

    def __init__(self, own: OwnEnd, peers: Mapping[str, Peer]) -> None:
        self._own = own
        self._peers = peers
        self._handlers: dict[int, Handler] = {}
        self._connections: dict[str, _CallConnection] = {}
        self._connecting: dict[str, trio.Lock] = {}
        self._turns: dict[tuple[str, int], _CallTurns] = {}
        self._nursery: trio.Nursery | None = None

    def handle(self, kind: int, handler: Handler) -> None:
        """Serve calls of this kind from now on."""
        self._handlers[kind] = handler

    async def run(self) -> None:
        """Needed for calls to other hosts; until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
        finally:
            self._nursery = None
            for connection in self._connections.values():
                connection.end("this host stops")

    async def call(self, host: str, kind: int, payload: Sequence[Buffer]) -> memoryview:
        """Call a host, and return the payload of its answer. Raises HostUnreachable."""
        if host == self._own.me.host:
            whole = memoryview(b"".join(payload))
            return memoryview(b"".join(await self._handlers[kind](host, whole)))
        turns = self._turns.setdefault((host, kind), _CallTurns())
        size_bytes = sum(map(len, payload))
        await turns.enter(size_bytes)
        leave, connection = partial(turns.leave, size_bytes), None
        try:
            connection = await self._connected(host)
            return await connection.call(kind, payload, leave)
        except HostUnreachable as error:
            raise HostUnreachable(f"host {host!r}: {error}") from error
        finally:
            if connection is None:
                leave()

    async def _connected(self, host: str) -> _CallConnection:
        async with self._connecting.setdefault(host, trio.Lock()):
            known = self._connections.get(host)
            if known is not None and not known.why_ended:
                return known
            peer = self._peers.get(host)
            if peer is None or self._nursery is None:
                raise HostUnreachable("it is not a member of the cluster now, or this host stops")
            try:
                link = await connect(self._own, peer.address)
            except OSError as error:
                raise HostUnreachable(f"{peer.address}: {error.strerror or error}") from error
            is_greeted = False
            try:
                await greet(link, self._own, host, peer, for_calls=True)
                is_greeted = True
            except (OSError, MalformedMessage, LinkRefused, TlsError) as error:
                raise HostUnreachable(f"{peer.address}: {error}") from error
            finally:
                if not is_greeted:
                    link.close()
            connection = self._connections[host] = _CallConnection(link, self._own)
            self._nursery.start_soon(connection.receive)
            return connection

    # ---- serving

    async def serve(self, host: str, link: ConnectedSocket) -> None:
        """Serve a host's calls to the end of the connection. Raises OSError, MalformedMessage."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                await self._take_calls(_Serving(host, link, nursery))
            except (OSError, MalformedMessage) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _take_calls(self, serving: "_Serving") -> None:
        frames = FrameBuffer(self._own.settings.max_body_bytes, RECEIVE_BYTES)
        while received := await serving.link.receive(frames.room()):
            frames.add(received)
            while (body := frames.next()) is not None:
                head, payload = decode_call(body)
                if head.is_answer or head.kind not in self._handlers:
                    raise MalformedMessage(f"call {head.number} of kind {head.kind}, which this host does not serve")
                await serving.places.acquire()
                serving.nursery.start_soon(self._answer, serving, head, payload)

    async def _answer(self, serving: "_Serving", head: CallHead, payload: memoryview) -> None:
        try:
            answer = await self._handlers[head.kind](serving.host, payload)
            parts = encode_call(head._replace(is_answer=True), answer, self._own.settings.max_body_bytes)
            async with serving.turn:
                await serving.link.send(parts, self._own.settings.stall_s)
        except (OSError, HostUnreachable):
            serving.nursery.cancel_scope.cancel()
        except Exception:  # noqa: BLE001  a defect must not end this host
            report, trace = self._own.report, traceback.format_exc()
            report(PEER_MESSAGE_CRASHED, host=serving.host, message=f"call of kind {head.kind}", trace=trace)
            serving.nursery.cancel_scope.cancel()
        finally:
            serving.places.release()


class _Serving:
    """A connection on which another host calls."""

    def __init__(self, host: str, link: ConnectedSocket, nursery: trio.Nursery) -> None:
        self.host = host
        self.link = link
        self.nursery = nursery
        self.places = trio.Semaphore(MAX_SERVED)
        self.turn = trio.Lock()
        """Of answers: one after the other."""

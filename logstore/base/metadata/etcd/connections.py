"""Requests over HTTP/1.1, and their answers: h11 has the protocol, trio the connections; which one is used is here.

Invariants:
* One request at a time on each connection, sent in one piece. A connection is used again only if the answer was read to
  its end, the endpoint wants that too, less than KEEP_IDLE_S have passed, and nothing has arrived meanwhile: that would
  be its end.
* At most `most` connections are open, those that nobody uses included. Who needs a further one waits; those that nobody
  uses are closed for it.
* Waiting for an answer may be given up at any moment and taken up again, and nothing of the answer is lost.
* Whatever becomes of an exchange, `end` gives back all that it has; it waits for nobody.
"""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import h11
import trio

MAX_ANSWER_BYTES: Final = 32 << 20
"""A page of the largest values is 22 MiB in base64."""
MAX_HEAD_BYTES: Final = 64 << 10
"""Of an answer's headers."""
KEEP_IDLE_S: Final = 30.0
"""Connections are kept between calls: a lease is kept alive every few seconds."""
RECEIVE_BYTES: Final = 64 << 10
Connect = Callable[[str], Awaitable[trio.abc.Stream]]
"""Connects to an endpoint. Raises OSError, trio.BrokenResourceError."""
Headers = Sequence[tuple[bytes, bytes]]


class ConnectionFailed(Exception):
    """There is no connection, or it gives no answer."""


def _protocol() -> h11.Connection:
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)


@dataclass(eq=False, slots=True)
class _Connection:
    """A stream, and where its protocol stands. `idle_since_s`: when it was used last."""

    endpoint: str
    stream: trio.abc.Stream
    http: h11.Connection = field(default_factory=_protocol)
    idle_since_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it cannot be used again, though its last answer was read to the end."""
        if trio.current_time() - self.idle_since_s > KEEP_IDLE_S:
            return True
        stream: object = self.stream
        while isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        return isinstance(stream, trio.SocketStream) and stream.socket.is_readable()


class EtcdConnections:
    """Connections to the endpoints, at most `most`; `connect` makes them."""

    def __init__(self, connect: Connect, most: int) -> None:
        self._connect = connect
        self._slots = trio.Semaphore(most, max_value=most)
        """One for each connection in use; no fewer are free than there are connections that nobody uses."""
        self._idle: list[_Connection] = []
        """The one that was used last is at the end."""
        self._in_use: set[_Connection] = set()
        self._is_closed = False

    def exchange(self, endpoint: str) -> "EtcdExchange":
        """One request to an endpoint; the caller ends it."""
        return EtcdExchange(self, endpoint)

    async def close(self) -> None:
        """Close all connections, those in use too; there are no further ones."""
        self._is_closed = True
        connections = [*self._in_use, *self._idle]
        self._idle.clear()
        for connection in connections:
            await _close(connection.stream)

    # ---- for exchanges

    async def kept(self, endpoint: str) -> _Connection | None:
        """A connection to an endpoint that nobody uses, if there is one; it counts as used. Waits for nobody."""
        if self._slots.value == 0:
            return None
        self._slots.acquire_nowait()
        connection = await self._pick(endpoint)
        if connection is None:
            self._slots.release()
        return connection

    async def opened(self, endpoint: str, limit_s: float, connect_s: float) -> _Connection:
        """A connection, if need be a new one, which counts as used. Waits for `limit_s` if there are too many, and for
        `connect_s` for a new one. Raises ConnectionFailed.
        """
        with trio.move_on_after(limit_s) as scope:
            await self._slots.acquire()
        if scope.cancelled_caught:
            raise ConnectionFailed(f"no connection was free within {limit_s:.3g} s")
        connection = None
        try:
            connection = await self._pick(endpoint)
            while connection is None and len(self._idle) > self._slots.value:
                await _close(self._idle.pop(0).stream)
            if connection is None:
                connection = _Connection(endpoint, await self._connected(endpoint, connect_s))
                self._in_use.add(connection)
            return connection
        finally:
            if connection is None:
                self._slots.release()

    async def give_back(self, connection: _Connection) -> None:
        """Keep a connection for later, or close it, if it cannot be used again."""
        self._in_use.remove(connection)
        self._slots.release()
        http = connection.http
        is_whole = http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]
        if is_whole and not self._is_closed:
            http.start_next_cycle()
            connection.idle_since_s = trio.current_time()
            self._idle.append(connection)
        else:
            await _close(connection.stream)

    async def _pick(self, endpoint: str) -> _Connection | None:
        while self._idle and self._idle[0].is_over:
            await _close(self._idle.pop(0).stream)
        for connection in reversed(self._idle):
            if connection.endpoint == endpoint:
                self._idle.remove(connection)
                if not connection.is_over:
                    self._in_use.add(connection)
                    return connection
                await _close(connection.stream)
                return await self._pick(endpoint)
        return None

    async def _connected(self, endpoint: str, connect_s: float) -> trio.abc.Stream:
        stream = None
        with trio.move_on_after(connect_s):
            try:
                stream = await self._connect(endpoint)
            except (OSError, trio.BrokenResourceError) as error:
                raise ConnectionFailed(said(error)) from error
        if stream is None:
            raise ConnectionFailed(f"no connection within {connect_s:.3g} s")
        if self._is_closed:  # a host that ends gives its lease back when its connections are closed already
            await _close(stream)
            raise ConnectionFailed("the store is closed")
        return stream


class EtcdExchange:
    """One request and its answer: `take_kept` or `open`, `send`, then `answer`, or `status` and `part`s; `end` in any
    case. `is_sent`: the request may have arrived.
    """

    def __init__(self, connections: EtcdConnections, endpoint: str) -> None:
        self._connections = connections
        self._endpoint = endpoint
        self._connection: _Connection | None = None
        self._status = 0
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self.is_sent = False

    async def take_kept(self) -> bool:
        """Use a connection that is there; False: there is none."""
        self._connection = await self._connections.kept(self._endpoint)
        return self._connection is not None

    async def open(self, limit_s: float, connect_s: float) -> None:
        """Make a connection. Raises ConnectionFailed."""
        self._connection = await self._connections.opened(self._endpoint, limit_s, connect_s)

    async def send(self, target: bytes, headers: Headers, content: bytes) -> None:
        """Send a request. Raises ConnectionFailed."""
        connection = self._open()
        request = h11.Request(method=b"POST", target=target, headers=list(headers))
        sent = [connection.http.send(each) or b"" for each in (request, h11.Data(data=content), h11.EndOfMessage())]
        self.is_sent = True
        try:
            await connection.stream.send_all(b"".join(sent))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionFailed(said(error)) from error

    async def status(self) -> int:
        """The HTTP status of the answer. Raises ConnectionFailed."""
        while not self._status:
            event = await self._next()
            if isinstance(event, h11.Response):
                self._status = event.status_code
            elif not isinstance(event, h11.InformationalResponse):
                raise ConnectionFailed("the connection has ended without an answer")
        return self._status

    async def part(self) -> bytes:
        """The next part of the answer, as it arrives; nothing at its end. Raises ConnectionFailed."""
        event = await self._next()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return b""
        raise ConnectionFailed("the connection has ended in an answer")

    async def answer(self) -> tuple[int, bytes]:
        """HTTP status and body. Raises ConnectionFailed, also for an answer above MAX_ANSWER_BYTES."""
        status = await self.status()
        while part := await self.part():
            self._parts.append(part)
            self._size_bytes += len(part)
            if self._size_bytes > MAX_ANSWER_BYTES:
                raise ConnectionFailed(f"an answer above {MAX_ANSWER_BYTES} bytes")
        return status, b"".join(self._parts)

    async def end(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._connections.give_back(connection)

    def _open(self) -> _Connection:
        if self._connection is None:
            raise ConnectionFailed("the connection is closed")
        return self._connection

    async def _next(self) -> object:
        """The next event of the protocol."""
        connection = self._open()
        try:
            while (event := connection.http.next_event()) is h11.NEED_DATA:
                data = bytes(await connection.stream.receive_some(RECEIVE_BYTES))
                if not data and not self._status:
                    raise ConnectionFailed("the connection has ended without an answer")
                connection.http.receive_data(data)
        except (h11.RemoteProtocolError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionFailed(said(error)) from error
        return event


async def connect(context: ssl.SSLContext | None, endpoint: str) -> trio.abc.Stream:
    """Connect to an endpoint, by TLS if it is one of https. Raises OSError, trio.BrokenResourceError."""
    parts = urlsplit(endpoint)
    stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 0)
    if parts.scheme != "https" or context is None:
        return stream
    encrypted = trio.SSLStream(stream, context, server_hostname=parts.hostname, https_compatible=True)
    is_open = False
    try:
        await encrypted.do_handshake()
        is_open = True
    finally:
        if not is_open:
            await _close(stream)
    return encrypted


def said(error: BaseException) -> str:
    """What an exception says, or else what the exception that caused it says: TLS errors are wrapped in silent ones."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


async def _close(stream: trio.abc.Stream) -> None:
    """Close a stream at once, also where the caller is cancelled."""
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)

"""The HTTP server: a bounded number of connections, a task for each, and a graceful end.

Invariants: connections are bounded, in total and per address (except loopback); a connection beyond the limit is
answered with 503 and closed at once, or gets the place of another (`HttpSettings.gives_way`). Where no other has been
silent for long, it gets a reserved place, in which an urgent request is answered, and any other only if a client gives
way then. No address gets a reserved place beyond its own limit. If the listener cannot be opened, `serve` raises
OSError before it serves any client. Nothing that a client sends ends the server.
"""

import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from traceback import format_exception

import trio

from logstore.base.addresses import Address, is_loopback
from logstore.base.events import Report
from logstore.base.failures import cannot_listen
from logstore.base.http.connection import HttpConnection, HttpStream
from logstore.base.http.events import CANNOT_ACCEPT, CONNECTION_CRASHED, CONNECTION_REFUSED
from logstore.base.http.messages import (
    Handler,
    HttpRequest,
    HttpResponse,
    HttpSettings,
    IsUrgent,
    MayWait,
    TakesLarge,
    error_response,
)
from logstore.base.tls import ServerTls

BACKLOG = 2048
"""A thousand writers may connect at the same moment."""
ACCEPT_AGAIN_S = 0.1
"""How long to wait after a client could not be accepted, as when the process has no descriptor left."""
UNAVAILABLE = 503
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 33\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n"
    b'{"error":"too many connections"}\n'
)


class _Place:
    """The place of a connection; a reserved one may become another."""

    __slots__ = ("is_reserved",)

    def __init__(self, is_reserved: bool) -> None:
        self.is_reserved = is_reserved


class HttpServer:
    """Serves HTTP on one address. `may_wait` names the requests that may take long, `is_urgent` those for which there
    are reserved connections.
    """

    def __init__(
        self,
        settings: HttpSettings,
        handler: Handler,
        report: Report,
        *,
        may_wait: MayWait = lambda _: False,
        takes_large: TakesLarge = lambda *_: True,
        is_urgent: IsUrgent = lambda _: False,
        tls: ServerTls | None = None,
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._report = report
        self._may_wait = may_wait
        self._takes_large = takes_large
        self._is_urgent = is_urgent
        self._tls = tls
        self._handshake_at_s = -math.inf
        self._clients: Counter[str] = Counter()
        self._connections: dict[HttpConnection, _Place] = {}
        self._reserved = 0
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._ended = trio.Event()
        self._given_up: set[HttpConnection] = set()
        self._refused = 0

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return self._clients.total()

    @property
    def refused(self) -> int:
        """The number of clients that were refused because of a limit."""
        return self._refused

    async def serve(
        self, address: Address, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled or drained; reports the address with its real port once it is open. Raises OSError."""
        sock = await _open(address)
        try:
            with self._serving:
                async with trio.open_nursery() as clients:
                    with self._accepting:
                        task_status.started(address._replace(port=sock.getsockname()[1]))
                        await self._accept(sock, clients)
                    sock.close()
        finally:
            sock.close()
            self._ended.set()

    async def drain(self, patience_s: float) -> None:
        """Accept no more clients and answer the requests in work; after `patience_s` seconds, cut all connections."""
        self._accepting.cancel()
        for connection in self._connections:
            connection.stop()
        with trio.move_on_after(patience_s):
            await self._ended.wait()
        self._serving.cancel()
        await self._ended.wait()

    async def _accept(self, sock: trio.socket.SocketType, clients: trio.Nursery) -> None:
        while True:
            try:
                client, address = await sock.accept()
            except OSError as error:
                # Out of descriptors, or a client that is gone already: neither ends a listener.
                self._report(CANNOT_ACCEPT, error=str(error))
                await trio.sleep(ACCEPT_AGAIN_S)
                continue
            self._admit(client, str(address[0]), clients)

    def _admit(self, client: trio.socket.SocketType, host: str, clients: trio.Nursery) -> None:
        place = self._place(host)
        if place is None:
            self._refused += 1
            self._report(CONNECTION_REFUSED, client=host, why="too many connections")
            _refuse(client, speaks_tls=self._tls is not None)
            return
        self._clients[host] += 1
        self._reserved += place.is_reserved
        clients.start_soon(self._serve_client, client, host, place)

    def _place(self, host: str) -> _Place | None:
        """A place for a new connection, None if there is none."""
        limits = self._settings
        if not is_loopback(host) and self._clients[host] >= limits.max_connections_per_address:
            return self._freed(lambda one: one.client == host)
        if not self._is_full:
            return _Place(False)
        # The request of a client that has just come may not have been read yet: it keeps its place if it can.
        silent_since_s = trio.current_time() - limits.silent_s
        freed = self._freed(lambda one: one.since_s <= silent_since_s and not self._connections[one].is_reserved)
        if freed is None and self._reserved < limits.reserved_connections:
            return _Place(True)
        return self._freed(lambda _: True) if freed is None else freed

    @property
    def _is_full(self) -> bool:
        return self._clients.total() - self._reserved >= self._settings.max_connections

    def _freed(self, may_end: Callable[[HttpConnection], bool]) -> _Place | None:
        """A place like that of the connection that has sent or taken nothing for longest, of those that may end, which
        gives way; None if none does.
        """
        if not self._settings.gives_way:
            return None
        waiting = [one for one in self._connections if one.may_give_way and may_end(one)]
        longest = min(waiting, key=lambda one: one.since_s, default=None)
        if longest is None:
            return None
        longest.give_way()
        # Its task ends in the next turn of the event loop; until then it must not be chosen again.
        place = self._connections.pop(longest)
        self._leave(longest.client, place)
        self._given_up.add(longest)
        return _Place(place.is_reserved)

    def _leave(self, host: str, place: _Place) -> None:
        self._reserved -= place.is_reserved
        self._clients[host] -= 1
        if not self._clients[host]:
            del self._clients[host]

    async def _serve_client(self, client: trio.socket.SocketType, host: str, place: _Place) -> None:
        connection: HttpConnection | None = None
        try:
            with suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream, handshake = self._stream(client)
            handler = partial(self._answer_reserved, place) if place.is_reserved else self._handler
            connection = HttpConnection(
                stream, host, self._settings, handler, self._may_wait, self._takes_large, handshake
            )
            self._connections[connection] = place
            if self._accepting.cancel_called:
                connection.stop()
            try:
                await connection.run()
            except Exception as error:  # noqa: BLE001  a fault of ours must not cost the other clients their service
                self._report(CONNECTION_CRASHED, client=host, trace="".join(format_exception(error)))
            finally:
                self._connections.pop(connection, None)
                with trio.move_on_after(1) as scope:
                    scope.shield = True
                    with suppress(trio.BrokenResourceError):
                        await stream.aclose()
        finally:
            client.close()
            if connection is not None and connection in self._given_up:
                self._given_up.discard(connection)
            else:
                self._leave(host, place)

    async def _answer_reserved(self, place: _Place, request: HttpRequest) -> HttpResponse:
        """An answer to a client that had a reserved place: the only one, while it has."""
        if place.is_reserved and not self._is_urgent(request):
            freed = self._freed(lambda one: not self._connections[one].is_reserved) if self._is_full else _Place(False)
            if freed is not None:
                place.is_reserved = False
                self._reserved -= 1
        if not place.is_reserved:
            return await self._handler(request)
        if self._is_urgent(request):
            response = await self._handler(request)
        else:
            self._refused += 1
            self._report(CONNECTION_REFUSED, client=request.client, why="too many connections")
            response = error_response(UNAVAILABLE, "too many connections", headers={"Retry-After": "1"})
        headers = {**response.headers, "Connection": "close"}
        return HttpResponse(response.status, response.body, response.content_type, headers)

    def _stream(self, client: trio.socket.SocketType) -> tuple[HttpStream, Callable[[], Awaitable[None]] | None]:
        """The client's stream, and with TLS its handshake, which raises BrokenResourceError if it fails."""
        plain = trio.SocketStream(client)
        if self._tls is None:
            return plain, None
        secured = trio.SSLStream(plain, self._tls.context, server_side=True, https_compatible=True)

        async def handshake() -> None:
            # In turn: the arithmetic keeps the event loop from all other work.
            at_s = self._handshake_at_s = max(
                self._handshake_at_s + 1 / self._settings.handshakes_per_s, trio.current_time()
            )
            await trio.sleep_until(at_s)
            await secured.do_handshake()

        return secured, handshake


def _refuse(client: trio.socket.SocketType, *, speaks_tls: bool) -> None:
    """Answer a client beyond the limit with 503, without waiting for it."""
    if not speaks_tls:
        with suppress(OSError), socket.socket(fileno=client.detach()) as sock:
            sock.setblocking(False)
            sock.send(TOO_MANY)
            sock.shutdown(socket.SHUT_WR)
    client.close()


async def _open(address: Address) -> trio.socket.SocketType:
    try:
        found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise cannot_listen(str(address), error) from error
    family, kind, protocol, _, place = found[0]
    sock = trio.socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await sock.bind(place)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise cannot_listen(str(address), error) from error
    return sock

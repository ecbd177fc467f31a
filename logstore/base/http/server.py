"""The HTTP server: a bounded number of connections, a task for each, and a graceful end.

Invariants: connections are bounded, in total and per address (except loopback); a connection beyond the limit is
answered with 503 and closed at once, or gets the place of another (`HttpSettings.gives_way`). If the listener cannot be
opened, `serve` raises OSError before it serves any client. Nothing that a client sends ends the server.
"""

import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from traceback import format_exception

import trio

from logstore.base.addresses import Address, is_loopback
from logstore.base.events import Report
from logstore.base.http.connection import HttpConnection, HttpStream
from logstore.base.http.events import CANNOT_ACCEPT, CONNECTION_CRASHED, CONNECTION_REFUSED
from logstore.base.http.messages import Handler, HttpSettings, MayWait, TakesLarge
from logstore.base.tls import ServerTls

BACKLOG = 2048
"""A thousand writers may connect at the same moment."""
ACCEPT_AGAIN_S = 0.1
"""How long to wait after a client could not be accepted, as when the process has no descriptor left."""
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 33\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n"
    b'{"error":"too many connections"}\n'
)


class HttpServer:
    """Serves HTTP on one address. `may_wait` names the requests that may take long."""

    def __init__(
        self,
        settings: HttpSettings,
        handler: Handler,
        report: Report,
        *,
        may_wait: MayWait = lambda _: False,
        takes_large: TakesLarge = lambda *_: True,
        tls: ServerTls | None = None,
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._report = report
        self._may_wait = may_wait
        self._takes_large = takes_large
        self._tls = tls
        self._handshake_at_s = -math.inf
        self._clients: Counter[str] = Counter()
        self._connections: dict[HttpConnection, None] = {}
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
        limits = self._settings
        is_too_many = not is_loopback(host) and self._clients[host] >= limits.max_connections_per_address
        if (is_too_many or self._clients.total() >= limits.max_connections) and not self._free_a_place(
            host if is_too_many else None
        ):
            self._refused += 1
            self._report(CONNECTION_REFUSED, client=host, why="too many connections")
            _refuse(client, speaks_tls=self._tls is not None)
            return
        self._clients[host] += 1
        clients.start_soon(self._serve_client, client, host)

    def _free_a_place(self, host: str | None) -> bool:
        """Whether a connection (of this address, or None: of any) gave up its place for a new one."""
        if not self._settings.gives_way:
            return False
        waiting = [one for one in self._connections if one.may_give_way and host in (None, one.client)]
        longest = min(waiting, key=lambda one: one.since_s, default=None)
        if longest is None:
            return False
        longest.give_way()
        # Its task ends in the next turn of the event loop; until then it must not be chosen again.
        del self._connections[longest]
        self._leave(longest.client)
        self._given_up.add(longest)
        return True

    def _leave(self, host: str) -> None:
        self._clients[host] -= 1
        if not self._clients[host]:
            del self._clients[host]

    async def _serve_client(self, client: trio.socket.SocketType, host: str) -> None:
        connection: HttpConnection | None = None
        try:
            with suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream, handshake = self._stream(client)
            connection = HttpConnection(
                stream, host, self._settings, self._handler, self._may_wait, self._takes_large, handshake
            )
            self._connections[connection] = None
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
                self._leave(host)

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
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error
    family, kind, protocol, _, place = found[0]
    sock = trio.socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await sock.bind(place)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error
    return sock

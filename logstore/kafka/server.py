"""Listens on the Kafka addresses, and serves each client in a task of its own.

One task more begins the common requests of all clients without TLS (`logstore.base.readiness`).

Invariants:
* The number of connections is bounded (`logstore.kafka.places` chooses the connection to end for a new one).
* A listener that cannot be opened raises OSError before any client is served.
* A drain first refuses: who waits in a backlog is accepted once, then the listeners close. All that are connected are
  served on until those that have just come have their first answer (`ClientConnection.owes_first_answer`), for
  FIRST_ANSWER_S at most; then connections end. So a client is refused, or has an answer before the end of its
  connection, or its connection is reset.
"""

import socket
from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from logstore.base.addresses import ANY_ADDRESS, canonical_host
from logstore.base.connected_socket import ConnectedSocket
from logstore.base.failures import cannot_listen
from logstore.base.readiness import Readiness
from logstore.base.tls import ServerTls
from logstore.base.tls_handshakes import Handshakes
from logstore.base.tls_socket import TlsSocket
from logstore.events import CANNOT_ACCEPT
from logstore.kafka.api_types import ApiHandlers, Broker, Caller
from logstore.kafka.arrivals import ArrivalBudget
from logstore.kafka.budgets import AnswerBudget, RequestBudget
from logstore.kafka.connection import MAX_WAITING_BYTES, ClientConnection
from logstore.kafka.frames import SMALL_BYTES, Arrivals
from logstore.kafka.places import Places
from logstore.kafka.security.login import Authenticator, Login
from logstore.kafka.security.protocols import SecurityProtocol
from logstore.log.tail import Tail

BACKLOG = 1024
ACCEPT_AGAIN_S = 0.1
"""How long to wait after a client could not be accepted, for example because the process has no descriptor left."""
FIRST_ANSWER_S: Final = 0.5
"""For how long a drain waits for the first answers: some round trips, with TLS and a login."""
HAND_OVER_S: Final = 0.1
"""For how long a drain of a host in a cluster serves who is connected at least: they are told who leads now, and need
not look for that when their connection has ended."""
LOOK_S: Final = 0.005
"""Between two looks at clients without a first answer."""
EXPIRE_S = 1.0
"""Between two looks at the time limits of Produce requests, so an answer is as much late at most."""


class Listener(NamedTuple):
    """An address to listen on (port 0: any free port), and the address that clients are told (None: the same)."""

    host: str
    port: int
    advertised_host: str | None = None
    advertised_port: int | None = None
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT


class _OpenListener(NamedTuple):
    """A listener with its real port, and its socket, for trio and as it is."""

    listener: Listener
    waiting: trio.socket.SocketType
    plain: socket.socket


class ServerSecurity(NamedTuple):
    """What listeners of other protocols than PLAINTEXT need: TLS, and who may log in."""

    tls: ServerTls | None = None
    authenticator: Authenticator | None = None


NO_SECURITY: Final = ServerSecurity()


class KafkaServer:
    """Serves Kafka clients on one or more listeners."""

    def __init__(self, broker: Broker, handlers: ApiHandlers, security: ServerSecurity = NO_SECURITY) -> None:
        self._broker = broker
        self._security = security
        self._handshakes = Handshakes()
        self._handlers = handlers
        settings = broker.settings
        self._requests = RequestBudget(settings.total_in_flight_bytes)
        self._arrivals = Arrivals(
            ArrivalBudget(settings.total_in_flight_bytes // 2),
            ArrivalBudget(settings.total_in_flight_bytes // 2),
            self._requests,
            RequestBudget(MAX_WAITING_BYTES),
            memoryview(bytearray(SMALL_BYTES)),
            Readiness(broker.engine.begin),
        )
        self._answers = AnswerBudget(settings.total_answer_bytes)
        self._places = Places(settings.max_connections, settings.max_connections_per_address)
        self._connections: dict[ClientConnection, None] = {}
        self.accepted = 0
        """Clients that have connected since the start."""
        self._accepting = trio.CancelScope()
        self._refusing = trio.Event()
        self._is_stopping = False
        self._ended = trio.Event()

    @property
    def connections(self) -> int:
        """Clients that are connected now."""
        return len(self._connections)

    @property
    def given_way(self) -> int:
        """Connections that were ended for a new one since the start."""
        return self._places.given_way

    @property
    def request_bytes(self) -> int:
        """Bytes of requests that are being handled now."""
        return self._requests.used_bytes

    def share_memory(self, tail: Tail) -> None:
        """Have the tail give way to requests."""
        tail.coming_bytes = self._coming_bytes
        self._requests.on_large = tail.make_room

    def _coming_bytes(self) -> int:
        arrivals, requests = self._arrivals, self._requests
        arriving_bytes = arrivals.ordinary.used_bytes + arrivals.long.used_bytes
        return arriving_bytes + requests.used_bytes + requests.kept_bytes

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        task_status: trio.TaskStatus[list[Listener]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until cancelled or drained; reports the listeners with their real ports once all are open. Raises
        OSError.
        """
        for listener in listeners:
            lacks_tls = listener.protocol.is_encrypted and self._security.tls is None
            if lacks_tls or (listener.protocol.needs_login and self._security.authenticator is None):
                raise AssertionError(f"a listener of {listener.protocol.value} without what it needs")
        opened: list[_OpenListener] = []
        try:
            for listener in listeners:
                opened.append(await _open(listener))  # noqa: PERF401  (what is open must be closed if the next is not)
            async with trio.open_nursery() as waiting:
                waiting.start_soon(self._arrivals.readiness.run)
                waiting.start_soon(self._expire)
                waiting.start_soon(self._answers.unsent.run)
                async with trio.open_nursery() as clients:
                    with self._accepting:
                        async with trio.open_nursery() as acceptors:
                            for each in opened:
                                acceptors.start_soon(self._accept, each, clients)
                            task_status.started([each.listener for each in opened])
                    for each in opened:
                        self._accept_rest(each, clients)
                        each.waiting.close()
                    self._refusing.set()
                waiting.cancel_scope.cancel()
        finally:
            self._refusing.set()
            self._ended.set()
            for each in opened:
                each.waiting.close()

    async def _expire(self) -> None:
        """Look at the time limits of Produce requests again and again; runs until cancelled."""
        while True:
            await trio.sleep(EXPIRE_S)
            now_s = self._broker.clock.monotonic_s()
            for connection in list(self._connections):
                connection.expire(now_s)

    async def drain(self, patience_s: float) -> None:
        """Accept no more clients, and answer those that have just come; then read no more requests, and wait until the
        appends under way are answered. All that takes at most `patience_s` seconds.
        """
        end_s = trio.current_time() + patience_s
        self._accepting.cancel()
        with trio.move_on_at(end_s):
            await self._answer_first()
        self._is_stopping = True
        for connection in self._connections:
            connection.stop()
        with trio.move_on_at(end_s):
            await self._ended.wait()

    async def _answer_first(self) -> None:
        """Serve on once no client is accepted any more; see the module."""
        await self._refusing.wait()
        end_s = trio.current_time() + FIRST_ANSWER_S
        if self._connections and self._broker.placement is not None:
            await trio.sleep(HAND_OVER_S)
        left = list(self._connections)
        while (now_s := trio.current_time()) < end_s:
            left = [connection for connection in left if connection.owes_first_answer(now_s - FIRST_ANSWER_S)]
            if not left:
                break
            await trio.sleep(LOOK_S)

    async def _accept(self, opened: _OpenListener, clients: trio.Nursery) -> None:
        while True:
            try:
                accepted, address = await opened.waiting.accept()
            except OSError as error:
                # Out of descriptors, or the client is gone already: neither ends the listener.
                self._broker.engine.store.report(CANNOT_ACCEPT, error=str(error))
                await trio.sleep(ACCEPT_AGAIN_S)
                continue
            self._admit(opened.listener, socket.socket(fileno=accepted.detach()), str(address[0]), clients)

    def _accept_rest(self, opened: _OpenListener, clients: trio.Nursery) -> None:
        """Accept who waits in the backlog: the system resets the connections that are there when a listener closes."""
        for _ in range(BACKLOG):
            try:
                client, address = opened.plain.accept()
            except OSError:  # nobody waits, or there is no room: who is left is reset
                return
            self._admit(opened.listener, client, str(address[0]), clients)

    def _admit(self, listener: Listener, client: socket.socket, address: str, clients: trio.Nursery) -> None:
        host = canonical_host(address)
        try:
            connection = self._connection(listener, client, host)
        except OSError:  # gone already
            client.close()
            return
        self._connections[connection] = None
        self.accepted += 1
        self._places.enter(host, connection.give_way)
        if self._is_stopping:
            connection.stop()
        clients.start_soon(self._serve, connection)

    async def _serve(self, connection: ClientConnection) -> None:
        try:
            await connection.run()
        finally:
            self._places.leave(connection.give_way)
            del self._connections[connection]

    def _connection(self, listener: Listener, client: socket.socket, host: str) -> ClientConnection:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client of a listener on any address is told the address that it used.
        own_host = canonical_host(client.getsockname()[0]) if listener.host in ANY_ADDRESS else listener.host
        caller = Caller("", host, listener.advertised_host or own_host, listener.advertised_port or listener.port)
        tls, authenticator = self._security
        if listener.protocol.is_encrypted and tls is not None:
            client_socket: ConnectedSocket = TlsSocket(client, tls.context, self._handshakes)
        else:
            client_socket = ConnectedSocket(client)
        connection = ClientConnection(
            client_socket,
            self._broker,
            self._handlers,
            caller,
            self._arrivals,
            self._answers,
            self._places.touch,
        )
        if listener.protocol.needs_login and authenticator is not None:
            connection.require_login(Login(authenticator, host, is_encrypted=listener.protocol.is_encrypted))
        return connection


async def _open(listener: Listener) -> _OpenListener:
    try:
        found = await trio.socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise cannot_listen(f"{listener.host}:{listener.port}", error) from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise cannot_listen(f"{listener.host}:{listener.port}", error) from error
    port = sock.getsockname()[1]
    named = listener._replace(port=port, advertised_port=listener.advertised_port or port)
    return _OpenListener(named, trio.socket.from_stdlib_socket(sock), sock)

"""Listening: which addresses, how many clients, and one task for each.

Invariants: connections are bounded, over all and per address (loopback excepted); one that is too many is closed at once. A
listener that cannot be opened is an OSError before anything is served.
"""

import errno
import socket
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import trio

from logstore.kafka.connection import Connection, InFlight
from logstore.kafka.dispatch import Caller, Front, Handlers

BACKLOG = 128
ACCEPT_AGAIN_S = 0.1
"""How long to wait when the process has no descriptor left for another client."""
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener(NamedTuple):
    """An address to listen on (port 0: any free one), and the address that clients are told (None: the same)."""

    host: str
    port: int
    advertised_host: str | None = None
    advertised_port: int | None = None


class KafkaServer:
    """Serves Kafka clients on some listeners."""

    def __init__(self, front: Front, handlers: Handlers) -> None:
        self._front = front
        self._handlers = handlers
        self._total = InFlight(front.settings.total_in_flight_bytes)
        self._clients: Counter[str] = Counter()

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        task_status: trio.TaskStatus[list[Listener]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until cancelled; reports the listeners with their real ports once all are open. Raises OSError."""
        opened: list[tuple[Listener, trio.socket.SocketType]] = []
        try:
            for listener in listeners:
                opened.append(await _open(listener))
            async with trio.open_nursery() as nursery:
                for listener, sock in opened:
                    nursery.start_soon(self._accept, listener, sock, nursery)
                task_status.started([listener for listener, _ in opened])
        finally:
            for _, sock in opened:
                sock.close()

    async def _accept(self, listener: Listener, sock: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            try:
                client, address = await sock.accept()
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                self._front.engine.store.report("cannot accept", error=str(error))
                await trio.sleep(ACCEPT_AGAIN_S)
                continue
            nursery.start_soon(self._serve, listener, client, str(address[0]))

    async def _serve(self, listener: Listener, client: trio.socket.SocketType, host: str) -> None:
        settings = self._front.settings
        is_local = host in ("::1", "::ffff:127.0.0.1") or host.startswith("127.")
        too_many = self._clients.total() >= settings.max_connections
        if too_many or (not is_local and self._clients[host] >= settings.max_connections_per_address):
            self._front.engine.store.report("connection refused", client=host, why="too many connections")
            client.close()
            return
        self._clients[host] += 1
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            caller = Caller(
                "", host, listener.advertised_host or listener.host, listener.advertised_port or listener.port
            )
            await Connection(client, self._front, self._handlers, caller, self._total).run()
        finally:
            self._clients[host] -= 1
            if not self._clients[host]:
                del self._clients[host]
            client.close()


async def _open(listener: Listener) -> tuple[Listener, trio.socket.SocketType]:
    found = await trio.socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    sock = trio.socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    port = sock.getsockname()[1]
    return listener._replace(port=port, advertised_port=listener.advertised_port or port), sock

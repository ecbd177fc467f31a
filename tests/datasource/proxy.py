"""A proxy between Spark and a sidecar that stops at a chosen request, so that a test can kill one of them exactly
there.

Invariant: bytes pass unchanged, one connection here for each connection there. Whatever a `Trap` does
happens before the request (or its answer) travels on.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tests.support.limits import PATIENCE_S

Moment = Literal["before", "after"]


@dataclass
class Trap:
    """Fires at the `nth` request with `api_key`: before it reaches the sidecar, or after it was answered.

    What fires decides by its result whether the request (or the answer) then travels on; if not, the connection is cut.
    `again`: every later request of the kind fires it too, as those of a client that lost patience and asks again.
    """

    api_key: int
    moment: Moment
    fire: Callable[[], bool]
    nth: int = 1
    again: bool = False
    fired: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Listens on a port of its own and hands everything on to `target`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._trap: Trap | None = None
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """HOST:PORT to connect to."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def set(self, trap: Trap | None) -> None:
        """Watch for this request from now on."""
        with self._lock:
            self._trap = trap

    def close(self) -> None:
        """Cut everything."""
        self._closed = True
        self._listener.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            _cut(connection)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._closed:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        try:
            with client, socket.create_connection(("127.0.0.1", self._target_port), timeout=PATIENCE_S) as server:
                server.settimeout(None)
                while True:
                    request = _frame(client)
                    trap = self._due(request)
                    if trap is not None and trap.moment == "before" and not trap.fire():
                        return
                    server.sendall(request)
                    answer = _frame(server)
                    if trap is not None and trap.moment == "after" and not trap.fire():
                        return
                    client.sendall(answer)
        except (OSError, EOFError):
            return
        finally:
            with self._lock:
                self._open.discard(client)

    def _due(self, request: bytes) -> Trap | None:
        (api_key,) = struct.unpack_from(">h", request, 4)
        with self._lock:
            trap = self._trap
            if trap is None or api_key != trap.api_key or (trap.fired.is_set() and not trap.again):
                return None
            trap.nth -= 1
            if trap.nth > 0:
                return None
            trap.fired.set()
            return trap


def _frame(connection: socket.socket) -> bytes:
    """One frame with its length in front. Raises EOFError at the end."""
    head = _exactly(connection, 4)
    return head + _exactly(connection, struct.unpack(">i", head)[0])


def _exactly(connection: socket.socket, length: int) -> bytes:
    whole = bytearray()
    while len(whole) < length:
        piece = connection.recv(min(length - len(whole), 1 << 20))
        if not piece:
            raise EOFError
        whole += piece
    return bytes(whole)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

"""Clients that connect to a server while it stops, and what each of them sees.

Invariant: a newcomer asks for the versions and then for metadata, as clients do on each connection, and goes away when
it has both answers.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.support.limits import PATIENCE_S

ANSWERED, REFUSED, RESET, ENDED = "answered", "refused", "reset", "ended before its first answers"
_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_METADATA: Final = struct.pack(">ihhihi", 14, 3, 1, 2, -1, 0)

_ENDED_BY_SERVER: Final = frozenset((8, 9))
"""CLOSE_WAIT and LAST_ACK: states of TCP in which the other end has ended the connection."""


def connect(port: int) -> socket.socket:
    """A connection. Raises OSError."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def served(sock: socket.socket, context: ssl.SSLContext | None = None) -> str:
    """What a newcomer sees on a new connection, which is closed then; with TLS if a context is given."""
    with sock.dup() as probe:  # as it is, whatever TLS makes of it
        try:
            with sock if context is None else context.wrap_socket(sock, server_hostname="127.0.0.1") as wrapped:
                if all(_is_answered(wrapped, request) for request in (_VERSIONS, _METADATA)):
                    return ANSWERED
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
            pass
        # Python's TLS takes a reset for an end; the system knows better.
        state: int = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return ENDED if state in _ENDED_BY_SERVER else RESET


def _is_answered(sock: socket.socket, request: bytes) -> bool:
    """Whether a request has a whole answer. Raises OSError."""
    sock.sendall(request)
    head = _received(sock, 4)
    return len(head) == 4 and len(_received(sock, size := int.from_bytes(head, "big"))) == size


def _received(sock: socket.socket, size: int) -> bytes:
    """So many bytes; fewer at the end of the connection."""
    found = b""
    while len(found) < size and (piece := sock.recv(size - len(found))):
        found += piece
    return found


@contextmanager
def newcomers(port: int, clients: int, context: ssl.SSLContext | None = None) -> Iterator[Counter[str]]:
    """Clients that come and go within the block, each until it is refused; behind it, what they have seen. Each was
    answered before the block begins.
    """
    seen: list[Counter[str]] = [Counter() for _ in range(clients)]
    ready = threading.Barrier(clients + 1, timeout=PATIENCE_S)

    def come(mine: Counter[str]) -> None:
        mine[served(connect(port), context)] += 1
        ready.wait()
        while not mine[REFUSED]:
            try:
                sock = connect(port)
            except ConnectionRefusedError:
                mine[REFUSED] += 1
            except ConnectionResetError:
                mine[RESET] += 1
            else:
                mine[served(sock, context)] += 1

    threads = [threading.Thread(target=come, args=(mine,), daemon=True) for mine in seen]
    for thread in threads:
        thread.start()
    found: Counter[str] = Counter()
    ready.wait()
    yield found
    for thread in threads:
        thread.join(PATIENCE_S)
    for mine in seen:
        found.update(mine)

"""A DataNode that takes no bytes for a while is waited for as long as it may be silent, not as long as a connection may
take to open.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from scheduler.hdfs.errors import HdfsError
from scheduler.hdfs.webhdfs import ChunkClient, DataNodeFailed, HdfsAway, Timeouts, put
from tests.support.limits import PATIENCE_S

PIECE = bytes(1 << 20)
PIECES = 32
"""More than the buffers of two sockets hold."""
CONNECT_S = 0.2


class StallingNode:
    """Sends a writer to itself, and takes the bytes only after `stall_s`."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self.taken = 0
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self.ended.set()
        with socket.create_connection(self._listener.getsockname()):  # for one that waits for a connection
            pass
        self._listener.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        leads, _ = self._listener.accept()
        with leads:
            _until(leads, b"\r\n\r\n")
            head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {self.url}/node\r\n"
            leads.sendall(f"{head}Connection: close\r\nContent-Length: 0\r\n\r\n".encode())
        takes, _ = self._listener.accept()
        with takes:
            self.ended.wait(self._stall_s)
            self.taken = _until(takes, b"0\r\n\r\n")
            if self.taken > PIECES * len(PIECE):
                takes.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")


def _until(sock: socket.socket, end: bytes) -> int:
    """Take bytes up to those that end a message, or the connection; how many."""
    taken, tail = 0, b""
    while not tail.endswith(end):
        try:
            data = sock.recv(1 << 20)
        except ConnectionError:
            break
        if not data:
            break
        taken, tail = taken + len(data), (tail + data)[-len(end) :]
    return taken


def pieces() -> Iterator[bytes]:
    """The chunk."""
    for _ in range(PIECES):
        yield PIECE


def test_a_node_that_stalls_for_less_than_its_silence_is_waited_for() -> None:
    """It takes nothing for five times as long as a connection may take, and then the whole chunk, once."""
    node = StallingNode(5 * CONNECT_S)
    client = ChunkClient(node.url, "cairn", Timeouts(CONNECT_S, PATIENCE_S))
    put(client, "/chunk", pieces(), PIECES * len(PIECE), 1)
    client.close()
    node.close()
    assert node.taken > PIECES * len(PIECE)


def test_a_node_that_stalls_for_longer_has_failed() -> None:
    """The bound of silence holds for sending, too, and the error names the node."""
    for silence_s in (CONNECT_S, 20 * CONNECT_S, PATIENCE_S / 4):
        node = StallingNode(PATIENCE_S)
        client = ChunkClient(node.url, "cairn", Timeouts(PATIENCE_S, silence_s))
        with pytest.raises(HdfsError, match=r"127\.0\.0\.1") as caught:
            put(client, "/chunk", pieces(), PIECES * len(PIECE), 1)
        client.close()
        node.close()
        if not isinstance(caught.value, HdfsAway):  # the bound is one for the node that leads, too, which may be slow
            break
    assert isinstance(caught.value, DataNodeFailed)

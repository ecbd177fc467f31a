"""A server that answers Produce requests at once: what a load generator reaches against it is the generator's limit.

`python -m benchmarks.harness.instant TOPIC` prints its port, and serves until it is killed. It counts the
bytes that arrive, and looks at nothing but the length of the first request: all requests of a load have one length.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys

from benchmarks.harness.generator import RECEIVE_BYTES


def answer(topic: str) -> bytes:
    """An acknowledgement by Produce 7."""
    name = topic.encode()
    body = struct.pack(f">iih{len(name)}siihqqqi", 0, 1, len(name), name, 1, 0, 0, 0, -1, 0, 0)
    return struct.pack(">i", len(body)) + body


class _Client:
    """One connection: the length of its requests, and how many bytes of the next one are here."""

    def __init__(self, sock: socket.socket, reply: bytes) -> None:
        self._socket = sock
        self._reply = reply
        self._request_bytes = 0
        self._left = 0

    def serve(self) -> bool:
        """Answer what has come; False when the client has gone."""
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            return False
        if not self._request_bytes:
            self._request_bytes = 4 + int.from_bytes(data[:4], "big")
        count, self._left = divmod(self._left + len(data), self._request_bytes)
        if count:
            self._socket.sendall(self._reply * count)
        return True


def main() -> None:
    """Serve until killed."""
    reply = answer(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as listening, selectors.DefaultSelector() as selector:
        print(listening.getsockname()[1], flush=True)
        selector.register(listening, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    sock, _ = listening.accept()
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(sock, selectors.EVENT_READ, _Client(sock, reply))
                elif not key.data.serve():
                    selector.unregister(key.fileobj)


if __name__ == "__main__":
    main()

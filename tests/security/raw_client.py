"""A client that sends what it likes: bytes, frames and SASL messages, right and wrong ones."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any, Self

from kio.schema.errors import ErrorCode

from tests.kafka.front_driver import decode_answer, kio_frame, request_frame
from tests.support.limits import PATIENCE_S

API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36


class RawClient:
    """A connection to 127.0.0.1, with TLS if a context is given."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """That many bytes. Raises EOFError at the end of the connection."""
        found = b""
        while len(found) < size:
            piece = self.socket.recv(size - len(found))
            if not piece:
                raise EOFError
            found += piece
        return found

    def answer(self) -> bytes:
        """What the next answer has behind its correlation id."""
        (size,) = struct.unpack(">i", self.receive(4))
        return self.receive(size)[4:]

    def is_ended(self) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            return not self.socket.recv(1)
        except OSError:
            return True

    def ask(self, key: int, version: int, **values: Any) -> Any:
        """Send a request; the decoded answer."""
        self.send(kio_frame(key, version, values))
        return decode_answer(key, version, self.answer())

    def choose(self, mechanism: str) -> ErrorCode:
        """SaslHandshake 1; the answer's error code."""
        code: ErrorCode = self.ask(HANDSHAKE, 1, mechanism=mechanism).error_code
        return code

    def token(self, message: str | bytes) -> Any:
        """SaslAuthenticate 2; the answer."""
        data = message.encode() if isinstance(message, str) else message
        return self.ask(AUTHENTICATE, 2, auth_bytes=data)

    def is_served(self) -> bool:
        """Whether a request that needs a login is answered."""
        try:
            self.send(request_frame(3, 4, struct.pack(">i?", 0, False)))
            return bool(self.answer())
        except (EOFError, OSError):
            return False

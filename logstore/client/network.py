"""What a blocking client needs of the world: connections, a clock and a way to wait; as a protocol and on this machine.

Invariant: this is the only module of the client that touches sockets' creation or time, so that tests may bring their
own.
"""

import socket
import time
from typing import NamedTuple, Protocol


class Address(NamedTuple):
    """Where a sidecar listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Network(Protocol):
    """Connections, time and waiting, as arguments."""

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """A connected stream socket. Raises OSError."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class HostNetwork:
    """The operating system's."""

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """A connected TCP socket without Nagle's delay. Raises OSError."""
        connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def monotonic_s(self) -> float:
        """Seconds since some moment in the past."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

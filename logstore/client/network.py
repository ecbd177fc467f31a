"""The blocking client's interface to the operating system: connections, a clock and sleep, as a protocol and for real.

Invariant: only this module of the client opens sockets, reads a clock or sleeps, so that tests can replace all three.
"""

import socket
import time
from typing import Protocol

from logstore.base.addresses import Address


class Network(Protocol):
    """Connections, time and waiting, passed in by the caller."""

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """A connected stream socket. Raises OSError."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""


class HostNetwork:
    """The network and clock of the operating system."""

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """A connected TCP socket without Nagle's delay. Raises OSError."""
        connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def monotonic_s(self) -> float:
        """Seconds since some moment in the past."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        time.sleep(seconds)

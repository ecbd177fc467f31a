"""What the adapter needs of the machine it runs on: the clock, unique names and connections. Its composition root.

Invariant: sources and sinks get time and uniqueness from here only, and take a substitute in tests.
"""

import secrets
from socket import gethostname
from typing import Protocol

from logstore.base.system import SystemClock
from logstore.client.network import HostNetwork, Network

_TOKEN_BYTES = 12


def host_name() -> str:
    """What this machine is called."""
    return gethostname()


class Host(Protocol):
    """The world, as an argument."""

    network: Network

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""

    def new_token(self) -> str:
        """A name that nobody else has."""


class ThisHost:
    """The machine this runs on."""

    def __init__(self) -> None:
        self.network: Network = HostNetwork()

    def wall_ms(self) -> int:
        """The system's clock."""
        return SystemClock().wall_ms()

    def new_token(self) -> str:
        """96 random bits in hexadecimal."""
        return secrets.token_hex(_TOKEN_BYTES)

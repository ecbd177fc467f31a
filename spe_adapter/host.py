"""The adapter's interface to its machine: the clock, unique names and connections. Its composition root.

Invariant: the adapter takes time and unique names from here alone; tests pass a substitute.
"""

import secrets
from socket import gethostname
from typing import Protocol

from logstore.base.system import SystemClock
from logstore.client.network import HostNetwork, Network

_TOKEN_BYTES = 12
_SEED_BITS = 63


def host_name() -> str:
    """The name of this machine."""
    return gethostname()


def new_seed() -> int:
    """A random key for hashes, which the producers of keys do not know."""
    return secrets.randbits(_SEED_BITS)


class Host(Protocol):
    """A clock, unique names and a network."""

    network: Network

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""

    def new_token(self) -> str:
        """A unique name."""


class ThisHost:
    """The machine on which this process runs."""

    def __init__(self, network: Network | None = None) -> None:
        self.network: Network = network or HostNetwork()

    def wall_ms(self) -> int:
        """The system's clock."""
        return SystemClock().wall_ms()

    def new_token(self) -> str:
        """96 random bits in hexadecimal."""
        return secrets.token_hex(_TOKEN_BYTES)

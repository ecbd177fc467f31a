"""The network of a command: it tells whoever waits at a terminal that nobody answers at an address.

Invariants: an address is named once, TELL_S to SILENT_S after the first try, and not if it answers before; a sidecar
that is restarted, which takes about a second, is no news. What is told changes nothing: who asks goes on trying until
its limit. A connection takes no longer than that limit.
"""

import socket
import sys
from collections.abc import Callable
from typing import Final

from logstore.base.addresses import Address
from logstore.client.network import HostNetwork, Network

TELL_S: Final = 1.0
"""After which a refused connection is told."""
SILENT_S: Final = 2.0
"""After which an address that says nothing is told."""


def _to_standard_error(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class ToldNetwork:
    """See Network, and the module. `limit_s`: how long the command tries, for the message."""

    def __init__(
        self, limit_s: float, network: Network | None = None, tell: Callable[[str], None] = _to_standard_error
    ) -> None:
        self._limit_s = limit_s
        self._network = network or HostNetwork()
        self._tell = tell
        self._since_s: dict[Address, float] = {}
        """The first try of an address that has not answered since."""
        self._told: set[Address] = set()

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """See Network."""
        timeout_s = min(timeout_s, self._limit_s)
        self._since_s.setdefault(address, self.monotonic_s())
        try:
            found = self._connect(address, timeout_s)
        except OSError as error:
            if self.monotonic_s() - self._since_s[address] >= TELL_S:
                self._tell_once(address, error.strerror or str(error))
            raise
        del self._since_s[address]
        return found

    def _connect(self, address: Address, timeout_s: float) -> socket.socket:
        if timeout_s <= SILENT_S:
            return self._network.connect(address, timeout_s)
        try:
            return self._network.connect(address, SILENT_S)
        except TimeoutError:
            self._tell_once(address, "no answer")
            return self._network.connect(address, timeout_s - SILENT_S)

    def _tell_once(self, address: Address, why: str) -> None:
        if address not in self._told:
            self._told.add(address)
            self._tell(f"cairn: no answer from {address} ({why}); retrying for {self._limit_s:g} s in all")

    def monotonic_s(self) -> float:
        """See Network."""
        return self._network.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """See Network."""
        self._network.sleep(seconds)

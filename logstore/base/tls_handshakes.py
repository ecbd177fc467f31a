"""The TLS handshakes of all connections that are under way: how many compute at a time, and how much they may hold.

Invariants:
* What has been received of handshakes that are not done is at most HELD_BYTES in all, and MAX_BYTES of one. Beyond the
  first, those that hold most end, and among equals the oldest: an honest handshake holds some kilobytes.
* A handshake that ended or was given up holds nothing.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import trio

from logstore.base.connected_socket import HandshakeFailed

AT_A_TIME: Final = 2
"""A handshake is a millisecond of arithmetic without the interpreter's lock; more at a time would crowd out others."""
MAX_BYTES: Final = 128 * 1024
"""OpenSSL takes a first message, and a client's certificates, of about 100 KB."""
HELD_BYTES: Final = 16 << 20
"""The first messages of 10,000 clients that come at the same moment take half of it."""
KEPT_SHARE: Final = 8
"""Beyond HELD_BYTES so many end that 1/KEPT_SHARE of it is free again: to choose them costs a walk over all."""


class Handshake:
    """One handshake; `received_bytes` is what it holds."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.received_bytes = 0


class Handshakes:
    """All of one sidecar."""

    def __init__(self, held_bytes: int = HELD_BYTES) -> None:
        self.threads = trio.CapacityLimiter(AT_A_TIME)
        self.held_bytes = self.total_bytes = 0  # now, and since the start
        self._limit_bytes = held_bytes
        self._under_way: dict[Handshake, None] = {}

    @contextmanager
    def one(self) -> Generator[Handshake, None, None]:
        """The block is a handshake. Raises HandshakeFailed if it was given up."""
        handshake = Handshake()
        self._under_way[handshake] = None
        try:
            with handshake.scope:
                yield handshake
        finally:
            self._end(handshake)
        if handshake.scope.cancelled_caught:
            raise HandshakeFailed(f"a TLS handshake of {handshake.received_bytes} bytes that is not complete gives way")

    def received(self, handshake: Handshake, size_bytes: int) -> None:
        """So much more was received in a handshake. Raises HandshakeFailed if that is too much for one."""
        handshake.received_bytes += size_bytes
        self.total_bytes += size_bytes
        if handshake not in self._under_way:  # given up, and not yet ended
            return
        self.held_bytes += size_bytes
        if handshake.received_bytes > MAX_BYTES:
            raise HandshakeFailed(f"a TLS handshake of more than {MAX_BYTES} bytes")
        if self.held_bytes > self._limit_bytes:
            # Sorting is stable: the oldest come first among those that hold as much.
            for longest in sorted(self._under_way, key=lambda one: -one.received_bytes):
                longest.scope.cancel()
                self._end(longest)
                if self.held_bytes <= self._limit_bytes - self._limit_bytes // KEPT_SHARE:
                    break

    def _end(self, handshake: Handshake) -> None:
        if handshake in self._under_way:
            del self._under_way[handshake]
            self.held_bytes -= handshake.received_bytes

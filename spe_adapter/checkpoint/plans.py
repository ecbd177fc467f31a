"""Asks Peace when and through which hosts the chunks of a checkpoint are written.

Invariants:
* A request that is not needed any more is cancelled, as far as the coordinator can be reached.
* What a writer that was killed had requested holds its host's capacity until it is cancelled: the next writer of the
  same `owner` cancels it before its own first request.
* A coordinator that is away, refuses, or gives no go within a bound, costs a checkpoint its plan: errors are
  CoordinatorError, and the caller writes without a plan.

Source: SGuard, section 5 (requests (w, r, k), callbacks).
"""

import itertools
import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from scheduler.client import CoordinatorClient, CoordinatorError, CoordinatorRequest, Go

MAX_WAIT_S: Final = 600.0
"""How long the first go is waited for. Then the checkpoint is written without a plan: the log behind the last one grows
meanwhile, and with the log the time of a recovery.
"""


class Grant:
    """A request to write chunks. `chunks`: how many; `is_waiting`: Peace has told to wait."""

    def __init__(self, request: CoordinatorRequest, chunks: int, max_wait_s: float = MAX_WAIT_S) -> None:
        self._max_wait_s = max_wait_s
        self.chunks = chunks
        self.is_waiting = request.state == "waiting"
        self._request = request

    def wait(self) -> None:
        """Wait for the first go. Raises CoordinatorError, also if none comes within the bound."""
        if not self._request.wait(self._max_wait_s):
            raise CoordinatorError(f"request {self._request.name!r}: no go for {self._max_wait_s:g} s")

    def goes(self) -> Iterator[Go]:
        """The go of each chunk as it comes, until all chunks are done. Raises CoordinatorError."""
        return self._request.goes()

    def cancel(self) -> None:
        """Give the request up."""
        with suppress(CoordinatorError):
            self._request.cancel()


class PeaceRequests:
    """The coordinator as a writer of checkpoints on `host` sees it; each chunk is written to `replicas` hosts. The
    first go is waited for at most `max_wait_s`. `owner`: the name of this writer and of those before it, of which one
    lives at a time; empty: it has none.
    """

    def __init__(
        self, client: CoordinatorClient, host: str, replicas: int, max_wait_s: float = MAX_WAIT_S, owner: str = ""
    ) -> None:
        self._max_wait_s = max_wait_s
        self._owner = owner
        self._life = secrets.token_hex(8)
        self._submitted = itertools.count()
        self._lock = threading.Lock()
        self._is_first = bool(owner)
        self._client = client
        self._host = host
        self._replicas = replicas

    def ask(self, chunks: int) -> Grant:
        """Submit (host, replicas, chunks). Raises CoordinatorError."""
        with self._lock:
            is_first, self._is_first = self._is_first, False
        if is_first:
            try:
                self._cancel_former()
            except CoordinatorError:
                self._is_first = True
                raise
        name = f"{self._owner}.{self._life}.{next(self._submitted)}" if self._owner else None
        return Grant(self._client.submit(self._host, chunks, self._replicas, name=name), chunks, self._max_wait_s)

    def _cancel_former(self) -> None:
        """Cancel what earlier lives of this writer had requested, as far as the coordinator lists it."""
        for request in self._client.status()["queue"]:
            name = request["request"]
            if name.startswith(f"{self._owner}.") and not name.startswith(f"{self._owner}.{self._life}."):
                self._client.cancel(name)


def chain_of(go: Go) -> tuple[str, ...]:
    """The addresses of the hosts that a chunk is written to, in order."""
    return tuple(address or name for name, address in zip(go.hosts, go.addresses, strict=True))[1:]


def suspects_of(go: Go, address: str) -> list[str]:
    """The hosts of a chain that have an address."""
    named = zip(go.hosts[1:], chain_of(go), strict=True)
    return [name for name, known in named if known == address]

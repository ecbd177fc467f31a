"""The pace of what one machine cannot give 17 hosts each of: a disk of the paper's, a client of the paper's.

Invariants:
* Over any time, what passes is what the total rate for the number of users at that moment allows, and at most
  `ahead_bytes` more: what a host's memory holds of what its disk has not written yet.
* Who asks first passes first; a user whose data comes slowly leaves the rest of the rate to the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TotalRate = Callable[[int], float]
"""What passes in all with so many users at work, in bytes/s."""


class Pace:
    """One host's disk or client. `total` None: unpaced. Safe to use from many threads."""

    def __init__(
        self,
        total: TotalRate | None,
        ahead_bytes: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._total = total
        self._ahead_bytes = ahead_bytes
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._users = 0
        self._held_bytes = 0.0
        self._at = clock()

    @contextmanager
    def using(self) -> Iterator[None]:
        """One more user is at work meanwhile."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def fill(self, at_s: float) -> None:
        """Memory is full at the moment `at_s`, which may be to come: no use begins before it."""
        with self._lock:
            self._held_bytes = self._ahead_bytes
            self._at = at_s

    def wait(self, size_bytes: int) -> None:
        """Let `size_bytes` pass, and wait until not more than `ahead_bytes` are ahead of the rate."""
        if self._total is None:
            return
        with self._lock:
            rate = self._drain()
            self._held_bytes += size_bytes
            left = (self._held_bytes - self._ahead_bytes) / rate
        if left > 0:
            self._sleep(left)

    def _change(self, users: int) -> None:
        with self._lock:
            self._drain()
            self._users += users

    def _drain(self) -> float:
        """Account for the time since the last look; the rate from now on."""
        if self._total is None:
            return 0.0
        now = self._clock()
        rate = self._total(self._users)
        self._held_bytes = max(0.0, self._held_bytes - max(0.0, now - self._at) * rate)
        self._at = now
        return rate

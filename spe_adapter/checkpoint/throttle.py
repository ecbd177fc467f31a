"""A bound on the rate at which checkpoints are written, shared by all threads of a writer.

Invariant: over any time the bytes let through are at most the rate times the time, and BURST_S seconds of it more.
"""

import threading
from collections.abc import Callable
from typing import Final

from logstore.base.clock import Clock
from spe_adapter.checkpoint.errors import CheckpointFailed

BURST_S: Final = 0.5
MAX_PAUSE_S: Final = 1.0


class Throttle:
    """Lets `bytes_per_s` through, 0: without a bound. `pause` waits for seconds; True: the writer is to end."""

    def __init__(self, bytes_per_s: int, clock: Clock, pause: Callable[[float], bool]) -> None:
        self._rate = bytes_per_s
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()
        self._free_at_s = clock.monotonic_s()

    def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may pass. Raises CheckpointFailed if the writer is to end."""
        if not self._rate:
            return
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._free_at_s = max(self._free_at_s, now_s - BURST_S) + size_bytes / self._rate
            due_s = self._free_at_s
        while (left_s := due_s - self._clock.monotonic_s()) > 0:
            if self._pause(min(left_s, MAX_PAUSE_S)):
                raise CheckpointFailed("the writer of checkpoints ends")

"""The operating system's clocks, as `logstore.base.clock.Clock`.

Invariant: only composition roots and tests import this module.
"""

import time


class SystemClock:
    """Wall time and monotonic time."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()

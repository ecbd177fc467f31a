"""The source of time, as a protocol: code that needs time takes a `Clock` from its caller.

Invariant: no clock is read here. `logstore.base.system` reads the operating system's clocks, `logstore.testing.clock`
is set by tests.
"""

from typing import Protocol


class Clock(Protocol):
    """The source of time, passed in by the caller."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump, so correctness must not depend on it."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""

"""A clock that moves only when a test advances it.

Invariants: `monotonic_s` never goes back; the wall clock may be set to any time, like a real one.
"""


class ManualClock:
    """Implements `logstore.base.clock.Clock`."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = 0.0

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._wall_ms

    def monotonic_s(self) -> float:
        """Seconds since this clock was made."""
        return self._monotonic_s

    def advance(self, milliseconds: int) -> None:
        """Let time pass on both clocks."""
        self._wall_ms += milliseconds
        self._monotonic_s += milliseconds / 1000

    def jump(self, wall_ms: int) -> None:
        """Set the wall clock, forward or back; the monotonic clock does not notice."""
        self._wall_ms = wall_ms

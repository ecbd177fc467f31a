"""The time of a host's owners: it does not pass while the host stands still, and so cannot hear its members.

Invariants: the time never goes back. A host that asks for no time in STANDSTILL_TICKS ticks has stood still, or was
idle.
"""

from typing import Final

import trio

TICK_S: Final = 0.02
STANDSTILL_TICKS: Final = 4


class OwnersTime:
    """See the module."""

    def __init__(self) -> None:
        self._last_s = trio.current_time()
        self._stood_still_s = 0.0
        self._longest_gap_s = STANDSTILL_TICKS * TICK_S

    def now_ms(self) -> int:
        """The time now."""
        now_s = trio.current_time()
        gap_s, self._last_s = now_s - self._last_s, now_s
        if gap_s > self._longest_gap_s:
            self._stood_still_s += gap_s - TICK_S
        return int((now_s - self._stood_still_s) * 1000)

    def expect(self, pause_s: float) -> None:
        """Ticks come this far apart from now on."""
        self._longest_gap_s = STANDSTILL_TICKS * pause_s

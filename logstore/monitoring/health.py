"""Whether a sidecar lives, and whether it serves.

Invariants: `/health` is about this process and its disk, `/ready` about whether clients should be sent here. Both are
answered by the event loop itself: a loop that does not turn answers neither.
"""

import enum
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from logstore.base.histogram import Histogram

BEAT_S: Final = 0.5
"""How often the loop's lateness is looked at."""
WORST_OF: Final = 20
"""Looks of which the worst is told: the last ten seconds."""
LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Phase(enum.Enum):
    """Where the sidecar is in its life; the value is what `/ready` says."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Health:
    """The phase of a sidecar, and how late its event loop is."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.lateness = Histogram(LAG_BOUNDS_S)
        self._latest: deque[float] = deque(maxlen=WORST_OF)

    @property
    def worst_lag_s(self) -> float:
        """How late the loop was at most in the last ten seconds."""
        return max(self._latest, default=0.0)

    async def watch_loop(self, sleep: Callable[[float], Awaitable[object]], now_s: Callable[[], float]) -> None:
        """Measure how late the loop wakes a task; runs until cancelled."""
        while True:
            due_s = now_s() + BEAT_S
            await sleep(BEAT_S)
            lag_s = max(0.0, now_s() - due_s)
            self.lateness.add(lag_s)
            self._latest.append(lag_s)

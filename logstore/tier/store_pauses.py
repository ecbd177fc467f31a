"""Whether an object store is away, as uploads and sweeps find it, and for how long they wait then.

Invariants: pauses grow from FIRST_PAUSE_S to MAX_PAUSE_S while the store is away; that it is away, and that it is back,
is reported once.
"""

from typing import Final

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.errors import CairnError
from logstore.events import TIER_AWAY, TIER_BACK
from logstore.tier.figures import TierFigures

FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0


class StorePauses:
    """See the module."""

    def __init__(self, figures: TierFigures, clock: Clock, report: Report) -> None:
        self._figures = figures
        self._clock = clock
        self._report = report
        self._pause_s = 0.0
        self._resume_at_s = 0.0

    @property
    def is_pause(self) -> bool:
        """Whether the store is not to be asked yet."""
        return self._clock.monotonic_s() < self._resume_at_s

    def note_away(self, error: CairnError) -> None:
        """The store has failed: a pause begins."""
        figures = self._figures
        figures.failures += 1
        if figures.away_since_ms is None:
            figures.away_since_ms = self._clock.wall_ms()
            self._report(TIER_AWAY, why=str(error))
        figures.away_because = str(error)
        self._pause_s = min(MAX_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self._resume_at_s = self._clock.monotonic_s() + self._pause_s

    def note_back(self) -> None:
        """The store has done all that was asked."""
        self._pause_s = 0.0
        if self._figures.away_since_ms is not None:
            self._figures.away_since_ms, self._figures.away_because = None, ""
            self._report(TIER_BACK)

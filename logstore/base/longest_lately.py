"""The longest of the times that something has taken lately: what a limit goes by that follows how slow others are seen.

Invariants:
* What was noted counts for `window` at least, and twice as long at most. Two numbers are kept, whatever is noted.
* No clock: who calls says what time it is, in one unit of its choice for all times. Time that goes back counts as none.
"""


class LongestLately:
    """See the module. `at` is 0 while nothing was noted lately."""

    __slots__ = ("_before", "_begun", "_longest", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._begun = 0.0
        self._longest = self._before = 0.0
        """Of the window that has begun last, and of the one in front of it."""

    def note(self, took: float, now: float) -> None:
        """Something has ended, and took so long."""
        self._turn(now)
        self._longest = max(self._longest, took)

    def at(self, now: float) -> float:
        """The longest time that was noted lately."""
        self._turn(now)
        return max(self._longest, self._before)

    def _turn(self, now: float) -> None:
        passed = now - self._begun
        if passed < self._window:
            return
        is_next = passed < 2 * self._window
        self._before, self._longest = self._longest if is_next else 0.0, 0.0
        self._begun = self._begun + self._window if is_next else now

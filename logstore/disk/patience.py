"""Whether the event loop waits for a short job of the disk, instead of doing other work meanwhile; and whether such a
job begins at once, instead of behind all tasks that are to run.

To wait spares a turn of the event loop, and two threads do not compete for the interpreter. It is worth that while the
disk is fast: what a slow disk takes is better spent on other requests. To begin at once spares another turn. It is
worth that while nothing else happens in the same turn: what happens together is to share a write.

Invariants: no clock, no I/O; what is noted decides alone. One job that hangs ends the waiting at once, and many fast
ones begin it again. At most one job begins at once in a turn of the event loop.
"""

from typing import Final

LIMIT_S: Final = 0.0005
"""Jobs that take longer on average are not waited for: the loop serves about ten requests in that time."""
WEIGHT: Final = 8
"""Of the average: each job counts one part in so many."""
LONGEST_S: Final = 1.0
"""No job counts as longer: after a hang, some forty fast jobs come before a job is waited for again."""
CROWDED: Final = 64
"""So many jobs wait for the tasks that are to run, after one that might have shared its write: with many requests in
flight one write in so many is begun too early.
"""


class Patience:
    """The average of how long short jobs took, the later ones counting more."""

    def __init__(self) -> None:
        self._average_s = LIMIT_S
        """Nothing is known at first: it must be seen that the disk is fast."""

    @property
    def is_worth_it(self) -> bool:
        """Whether the next short job is likely to end soon."""
        return self._average_s < LIMIT_S

    def note(self, took_s: float) -> None:
        """A short job has ended."""
        self._average_s += (min(took_s, LONGEST_S) - self._average_s) / WEIGHT


class Solitude:
    """Whether jobs are alone in their turns of the event loop, which the caller numbers."""

    def __init__(self) -> None:
        self._turn = -1
        """In which a job was to begin last."""
        self._crowded = 0

    def may_begin(self, turn: int) -> bool:
        """Whether a job that is to begin in this turn begins at once."""
        if turn == self._turn:
            self._crowded = CROWDED
            return False
        self._turn = turn
        if self._crowded:
            self._crowded -= 1
        return not self._crowded

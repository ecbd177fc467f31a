"""Time in which an event loop was running: a process that stood still does not count that against others.

A process may get no processor, or be stopped, for any time. What has arrived meanwhile lies in its sockets, unread:
whoever judges by a clock alone how long others were silent judges how long it was itself away.

Invariants:
* A turn of the loop counts for `longest_turn` at most, however long it was. Time never goes back.
* Turns are what the user says: often enough that a loop which runs has one in less than `longest_turn`.
* No clock: who calls says what time it is, by a clock that does not go back, in one unit of its choice for all times.
"""


class RunningTime:
    """See the module. Begins at `now`."""

    __slots__ = ("_latest", "_longest_turn", "_time", "_turn")

    def __init__(self, now: float, longest_turn: float) -> None:
        self._time = self._turn = self._latest = now
        self._longest_turn = longest_turn

    def at(self, now: float) -> float:
        """The time, in the turn that has begun last."""
        self._latest = max(self._latest, self._time + min(now - self._turn, self._longest_turn))
        return self._latest

    def turn(self, now: float, *, is_idle: bool = False) -> float:
        """Another turn begins; returns the time at its beginning. `is_idle`: until now nobody waited for anything."""
        passed = now - self._turn
        self._time += passed if is_idle else min(passed, self._longest_turn)
        self._turn = now
        return self.at(now)

"""Whose turn it is, of the streams on one host that go on with more members because a host has come.

A host that comes is to be a member of all streams' next chunks. Each of these changes costs every member and the
metadata store some work, and hundreds of them behind one another would leave no time for producers.

Invariants:
* At most one stream has the turn, and streams that wait get it first come, first served.
* Behind each turn is a pause PAUSES times as long as the turn took, so changes take a quarter of the time, on a quick
  machine and on a slow one. It is no longer than LONGEST_PAUSE_MS: a turn that had to wait itself, for the metadata
  store say, does not hold up the others for long.
* A stream keeps the turn through its pause, and gives it back again in every tick until the pause is over.
* No clock: who calls says what time it is, in milliseconds of the owners' time.
"""

from collections.abc import Callable
from typing import Final

PAUSES: Final = 3
LONGEST_PAUSE_MS: Final = 500


class Growths:
    """See the module. `wake` is told of a stream that waited and has the turn now: its owner is to have a tick."""

    def __init__(self, wake: Callable[[str], None] = lambda stream: None) -> None:
        self._wake = wake
        self._waiting: dict[str, None] = {}
        self._turn = ""
        """The stream that has the turn, or its pause; empty: none."""
        self._begun_ms = 0
        self._free_ms: int | None = None
        """When its pause ends; None: its turn is not over."""

    @property
    def waiting(self) -> int:
        """How many streams wait for a turn."""
        return len(self._waiting)

    def has(self, stream: str) -> bool:
        """Whether a stream has the turn, or its pause."""
        return self._turn == stream

    def take(self, stream: str, now_ms: int) -> bool:
        """Whether a stream may change its members now; if not, it waits for its turn. So does one that wants others
        again behind its pause, as when a second host comes: it never says that it wants none.
        """
        if self._turn == stream and self._free_ms is not None and now_ms >= self._free_ms:
            self._end(now_ms)
        if self._turn == stream:
            return self._free_ms is None
        if self._turn or (self._waiting and stream not in self._waiting):
            self._waiting.setdefault(stream)
            return False
        self._begin(stream, now_ms)
        return True

    def give_back(self, stream: str, now_ms: int) -> None:
        """The stream has the members that it wanted, or wants no others: the next has its turn after the pause."""
        self._waiting.pop(stream, None)
        if self._turn != stream:
            return
        if self._free_ms is None:
            self._free_ms = now_ms + min(PAUSES * (now_ms - self._begun_ms), LONGEST_PAUSE_MS)
        if now_ms >= self._free_ms:
            self._end(now_ms)

    def leave(self, stream: str) -> None:
        """The stream is not owned here any more: if it had the turn, there is no pause."""
        self._waiting.pop(stream, None)
        if self._turn == stream:
            self._end(self._begun_ms)

    def _begin(self, stream: str, now_ms: int) -> None:
        self._waiting.pop(stream, None)
        self._turn, self._begun_ms, self._free_ms = stream, now_ms, None

    def _end(self, now_ms: int) -> None:
        self._turn = ""
        if self._waiting:
            following = next(iter(self._waiting))
            self._begin(following, now_ms)
            self._wake(following)

"""Whose turn it is, of the streams on one host that go on with more members because a host has come.

A host that comes is to be a member of all streams' next chunks. Each of these changes costs every member and the
metadata store some work, and hundreds of them behind one another would leave no time for producers.

Invariants:
* Up to TOGETHER streams have the turn at the same time, and a stream may join the others for GATHER_MS only: what they
  ask of the metadata store is asked together. Streams that wait get their turn first come, first served, but those
  whose chunk has one member only before all others: the loss of one host would cost them what they acknowledge.
* Behind each turn is a pause PAUSES times as long as the turn took, so changes take a quarter of the time, on a quick
  machine and on a slow one. It is no longer than LONGEST_PAUSE_MS: a turn that had to wait itself, for the metadata
  store say, does not hold up the others for long.
* While producers write to this host, the pause has STEP_MS for each stream of the turn at least, unless a stream with
  one member waits. Any other lacks nothing but a further member, so it has time.
* Of the streams that had the turn the last one keeps its pause, and gives it back again in every tick until it is over.
* A stream has the turn for LONGEST_TURN_MS, and asks for it in every tick, or says that it waits for the metadata
  store. Then it waits again, behind those that wait, or is without a turn until the store has answered, and there is no
  pause: the registration of one stream that cannot be read or swapped, say, does not keep all others from it.
* No clock: who calls says what time it is, in milliseconds of the owners' time.
"""

from collections.abc import Callable
from itertools import chain, islice
from typing import Final

TOGETHER: Final = 8
"""As many as share a call of the metadata store (`logstore.cluster.streams.registration_requests`)."""
GATHER_MS: Final = 20
"""A tick: who hears of the host in the same moment asks in it."""
PAUSES: Final = 3
LONGEST_PAUSE_MS: Final = 500
LONGEST_TURN_MS: Final = 10_000
"""A turn takes some dozen milliseconds, and a metadata store that restarts some seconds."""
STEP_MS: Final = 100
"""Ten streams in a second, of each owner's host."""
ENOUGH: Final = 2
"""Members of a chunk that survives the loss of a host."""


class Growths:
    """See the module. `wake` is told of a stream that waited and has the turn now: its owner is to have a tick.
    `is_busy` says whether producers write to this host.
    """

    def __init__(
        self,
        wake: Callable[[str], None] = lambda stream: None,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._wake = wake
        self._is_busy = is_busy
        self._waiting: dict[str, None] = {}
        self._needy: dict[str, None] = {}
        """Streams that wait, too, and whose chunks have one member."""
        self._turn: dict[str, None] = {}
        """The streams that have the turn."""
        self._size = 0
        """How many have the turn, or have had it."""
        self._pausing = ""
        """The stream that keeps the pause; empty: there is none."""
        self._begun_ms = self._free_ms = 0
        """When the turn has begun, and when its pause ends."""

    @property
    def waiting(self) -> int:
        """How many streams wait for a turn."""
        return len(self._needy) + len(self._waiting)

    def has(self, stream: str) -> bool:
        """Whether a stream has the turn, or keeps its pause."""
        return stream in self._turn or self._pausing == stream

    def take(self, stream: str, now_ms: int, members: int = ENOUGH) -> bool:
        """Whether a stream, whose open chunk has so many members, may change them now; if not, it waits for its turn.
        So does one that wants others again behind its pause, as when a second host comes: it never says that it wants
        none.
        """
        if self._pausing == stream and now_ms >= self._free_ms:
            self._end(now_ms)
        queue, other = (self._needy, self._waiting) if members < ENOUGH else (self._waiting, self._needy)
        if stream in self._turn and now_ms - self._begun_ms >= LONGEST_TURN_MS:
            del self._turn[stream]
            if not self._turn:
                self._end(now_ms)
            if self._turn:
                queue[stream] = None
                return False
        if self.has(stream):
            return stream in self._turn
        other.pop(stream, None)
        is_first = (not queue or stream in queue) and (queue is self._needy or not self._needy)
        if self._turn and is_first and self._size < TOGETHER and now_ms - self._begun_ms <= GATHER_MS:
            self._join(stream)
        elif self._turn or self._pausing or not is_first:
            queue.setdefault(stream)
        else:
            self._begin([stream], now_ms)
        return stream in self._turn

    def waits_for_store(self, stream: str, now_ms: int) -> None:
        """The stream waits for an answer of the metadata store, which may never come: its turn ends if it is long."""
        if stream in self._turn and now_ms - self._begun_ms >= LONGEST_TURN_MS:
            del self._turn[stream]
            if not self._turn:
                self._end(now_ms)

    def give_back(self, stream: str, now_ms: int) -> None:
        """The stream has the members that it wanted, or wants no others: the next ones have their turn after the
        pause.
        """
        self._forget(stream)
        if stream in self._turn:
            del self._turn[stream]
            if not self._turn:
                self._pausing, self._free_ms = stream, now_ms + self._pause_ms(now_ms)
        if self._pausing == stream and now_ms >= self._free_ms:
            self._end(now_ms)

    def leave(self, stream: str) -> None:
        """The stream is not owned here any more: if it was the last that had the turn, there is no pause."""
        self._forget(stream)
        if self.has(stream):
            self._turn.pop(stream, None)
            if not self._turn:
                self._end(self._begun_ms)

    def _pause_ms(self, now_ms: int) -> int:
        pause_ms = min(PAUSES * (now_ms - self._begun_ms), LONGEST_PAUSE_MS)
        return max(pause_ms, STEP_MS * self._size) if self._is_busy() and not self._needy else pause_ms

    def _begin(self, streams: list[str], now_ms: int) -> None:
        self._begun_ms, self._size = now_ms, 0
        for stream in streams:
            self._join(stream)

    def _join(self, stream: str) -> None:
        self._forget(stream)
        self._turn[stream] = None
        self._size += 1

    def _forget(self, stream: str) -> None:
        """It waits no more."""
        self._needy.pop(stream, None)
        self._waiting.pop(stream, None)

    def _end(self, now_ms: int) -> None:
        self._pausing = ""
        following = list(islice(chain(self._needy, self._waiting), TOGETHER))
        if following:
            self._begin(following, now_ms)
        for stream in following:
            self._wake(stream)

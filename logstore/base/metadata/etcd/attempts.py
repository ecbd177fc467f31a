"""How long one attempt waits for the answer of one endpoint, and how that time is counted.

A limit is there to leave an endpoint that does not answer for another one. Where etcd is only slow, as on a machine
with too little processor time, a limit that is too short makes it slower: it does work whose answers nobody takes,
again and again. So the limit follows what answers took.

Invariants:
* The limit is `TIMES_LONGEST` times the longest answer of the last `LATELY_S` to twice that, from `least_s` to
  `longest_s`; each round over all endpoints of one call doubles it, up to `longest_s` as well.
* Only time in which this process's event loop was running counts (`RunningTime`), for the limit and for what an answer
  took: behind a stall of its own, an answer that has arrived meanwhile is read, and teaches that etcd was quick.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from logstore.base.longest_lately import LongestLately
from logstore.base.running_time import RunningTime

LATELY_S: Final = 30.0
TIMES_LONGEST: Final = 3
MAX_DOUBLINGS: Final = 10
SLICE_S: Final = 0.1
"""Between two looks at whether the limit is over; a stall counts for two of them at most."""
T = TypeVar("T")


class AttemptOver(Exception):
    """The time of an attempt has passed."""


class AttemptLimits:
    """See the module."""

    def __init__(self, least_s: float, longest_s: float) -> None:
        self._least_s = least_s
        self.longest_s = max(least_s, longest_s)
        self._answers = LongestLately(LATELY_S)

    def limit_s(self, rounds: int = 0) -> float:
        """The limit of an attempt, behind so many rounds over all endpoints that failed."""
        limit_s = max(self._least_s, TIMES_LONGEST * self._answers.at(trio.current_time()))
        return min(limit_s * 2.0 ** min(rounds, MAX_DOUBLINGS), self.longest_s)

    def answered(self, took_s: float) -> None:
        """An endpoint has answered an attempt."""
        self._answers.note(took_s, trio.current_time())

    def share_of(self, limit_s: float) -> float:
        """By how much a limit is longer than the least one."""
        return limit_s / self._least_s


class AttemptTime:
    """The time of one attempt, which begins now: time in which the loop runs, while `wait` or `in_slices` does."""

    def __init__(self) -> None:
        self._begun_s = trio.current_time()
        self._time = RunningTime(self._begun_s, 2 * SLICE_S)

    @property
    def passed_s(self) -> float:
        """How much has passed."""
        return self._time.at(trio.current_time()) - self._begun_s

    async def wait(self, limit_s: float) -> None:
        """Return when so much has passed since the beginning."""
        while (left_s := self._begun_s + limit_s - self._time.turn(trio.current_time())) > 0:  # noqa: ASYNC110 - no event
            await trio.sleep(min(left_s, SLICE_S))

    async def in_slices(self, limit_s: float, step: Callable[[], Awaitable[T]]) -> T:
        """What a step returns that may be given up at any moment and taken up again. Raises AttemptOver when so much
        has passed since the beginning.
        """
        while (left_s := self._begun_s + limit_s - self._time.turn(trio.current_time())) > 0:
            with trio.move_on_after(min(left_s, SLICE_S)):
                return await step()
        raise AttemptOver

    async def cancel_after(self, limit_s: float, scope: trio.CancelScope) -> None:
        """Cancel a scope when so much has passed. Runs beside the attempt."""
        await self.wait(limit_s)
        scope.cancel()

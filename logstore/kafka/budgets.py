"""What all connections share, so that clients together cannot make the sidecar grow: bytes of requests, bytes of
answers.

Invariants: what is taken is given back exactly once; a waiting connection costs nothing and is woken when there is
room.
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio


class RequestBudget:
    """Bytes of requests that are read or being worked on.

    The bound is soft by one frame per connection: who is inside may finish, nobody new gets in.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._freed: trio.Event | None = None

    @property
    def used_bytes(self) -> int:
        """What is taken now."""
        return self._used_bytes

    @property
    def has_room(self) -> bool:
        """Whether another request may be read."""
        return self._used_bytes <= self._limit_bytes

    def take(self, size: int) -> None:
        """Count a request."""
        self._used_bytes += size

    def give(self, size: int) -> None:
        """A request's bytes are no longer its connection's: done, or in the log's hands."""
        self._used_bytes -= size
        if self._freed is not None and self.has_room:
            self._freed.set()
            self._freed = None

    async def wait_room(self) -> None:
        """Wait until another request may be read."""
        while not self.has_room:
            if self._freed is None:
                self._freed = trio.Event()
            await self._freed.wait()


class AnswerBudget:
    """Bytes of Fetch answers that are read and not sent yet. It never blocks: when it runs low, answers get smaller."""

    LEAST_BYTES = 256 * 1024
    """What an answer may have even then: one efficient read."""

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes
        self._waiting_parts = 0
        self.unsent = UnsentBudget(limit_bytes)
        """Of all other answers."""

    def begin_wait(self, parts: int, limit: int) -> bool:
        """Whether one more request may wait for something in `parts` places, if all together wait in up to `limit`; if
        so, call `end_wait` when it has ended.
        """
        if self._waiting_parts + parts > limit:
            return False
        self._waiting_parts += parts
        return True

    def end_wait(self, parts: int) -> None:
        """A request waits no more."""
        self._waiting_parts -= parts

    @property
    def free_bytes(self) -> int:
        """What is left; below zero when many have taken the least."""
        return self._free_bytes

    def take(self, wanted_bytes: int) -> int:
        """Reserve up to `wanted_bytes`, and at most half of what is free; returns how much."""
        granted = min(wanted_bytes, max(self.LEAST_BYTES, self._free_bytes // 2))
        self._free_bytes -= granted
        return granted

    def give(self, size: int) -> None:
        """Give back what was reserved, or take (`size` < 0) what an answer has beyond it."""
        self._free_bytes += size


@dataclass(slots=True, eq=False)
class Unsent:
    """An answer whose client has not taken all of it. `give_up` ends its connection."""

    give_up: Callable[[], None]
    since_s: float
    """When the client took something, or the answer began to wait."""
    size_bytes: int = 0


class UnsentBudget:
    """What answers hold that their clients do not take, but for those of the answer budget.

    When that is more than the limit, those whose clients have taken nothing for SLOW_ANSWER_S are given up, the longest
    waiting first, until an eighth of the limit is free. Who reads is never given up.
    """

    SLOW_ANSWER_S = 1.0
    FREED_SHARE = 8

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[Unsent, None] = {}
        self._short = trio.Event()
        self.used_bytes = 0

    async def run(self) -> None:
        """Look again, as long as memory is short, whose client has taken nothing; for ever."""
        while True:
            await self._short.wait()
            await trio.sleep(self.SLOW_ANSWER_S / 2)
            self._give_up_slow()
            if self.used_bytes <= self._limit_bytes:
                self._short = trio.Event()

    def begin(self, give_up: Callable[[], None]) -> Unsent:
        """An answer begins to wait."""
        unsent = Unsent(give_up, trio.current_time())
        self._waiting[unsent] = None
        return unsent

    def hold(self, unsent: Unsent, size: int) -> None:
        """So much of an answer is left; less than before if the client took something."""
        if unsent not in self._waiting:
            return  # it is given up
        if size < unsent.size_bytes:
            unsent.since_s = trio.current_time()
        self.used_bytes += size - unsent.size_bytes
        unsent.size_bytes = size
        if self.used_bytes > self._limit_bytes:
            self._short.set()
            self._give_up_slow()

    def end(self, unsent: Unsent) -> None:
        """An answer is sent, or its connection is over."""
        if unsent in self._waiting:
            del self._waiting[unsent]
            self.used_bytes -= unsent.size_bytes

    def _give_up_slow(self) -> None:
        goal_bytes = self._limit_bytes - self._limit_bytes // self.FREED_SHARE
        latest_s = trio.current_time() - self.SLOW_ANSWER_S
        slow = [unsent for unsent in self._waiting if unsent.since_s <= latest_s]
        for unsent in sorted(slow, key=lambda unsent: unsent.since_s):
            if self.used_bytes <= goal_bytes:
                break
            self.end(unsent)
            unsent.give_up()

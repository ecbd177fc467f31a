"""What all connections share, so that clients together cannot make the sidecar grow: bytes of requests, bytes of
answers.

Invariants: what is taken is given back exactly once; a waiting connection costs nothing and is woken when there is
room.
"""

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

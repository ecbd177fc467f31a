"""Long walks give way: whoever walks over many parts of a request or an answer lets other clients run in between.

Invariants: nothing here changes what is walked over; a short walk costs no switch.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

T = TypeVar("T")
STEPS: Final = 100
"""Parts between two turns of the others: about a millisecond."""
LARGE_PARTS: Final = 500
"""What has more parts is decoded, built and encoded on a thread, where the interpreter takes turns by itself."""
LARGE_BYTES: Final = 16 * 1024
"""A request of that size may have so many."""
_WALKERS: Final = 2
"""Threads for that; more would only take turns from the event loop."""


class Pace:
    """Counts the steps of one walk."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, count: int = 1) -> None:
        """Some parts are done; every STEPS of them, others get their turn."""
        self._steps += count
        if self._steps >= STEPS:
            self._steps = 0
            await trio.lowlevel.checkpoint()


class Walkers:
    """The threads for large walks; one set for each event loop."""

    _limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("walkers")

    @classmethod
    async def run(cls, work: Callable[[], T]) -> T:
        """Run what touches nothing that others see on a thread."""
        try:
            limiter = cls._limiter.get()
        except LookupError:
            limiter = trio.CapacityLimiter(_WALKERS)
            cls._limiter.set(limiter)
        return await trio.to_thread.run_sync(work, limiter=limiter)

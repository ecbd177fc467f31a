"""Long walks yield: a task that iterates over many parts of a request or an answer lets other clients run in between.

Invariants:
* This module never changes the data that is walked; a short walk costs no task switch.
* However many walks wait, one of them makes about STEPS steps in each turn of the event loop, first come, first served;
  all other tasks run in every turn.
* At most _WALKS of the walks that collect an answer hold more than WALK_PARTS parts; the others wait before they do.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

import trio

T = TypeVar("T")
STEPS: Final = 100
"""Parts that a walk handles before it yields: about a millisecond."""
LARGE_PARTS: Final = 500
"""Messages of more parts are decoded, built and encoded on a thread, where the interpreter switches by itself."""
LARGE_BYTES: Final = 16 * 1024
"""A request above this size may have LARGE_PARTS parts."""
_WALKERS: Final = 2
"""Threads for large messages; more would only take time from the event loop."""


WALK_PARTS: Final = 1_000
"""At most _WALKS requests at a time collect answers of more parts: until it is encoded, a part takes some 500 bytes."""
_WALKS: Final = 2


class _Limiters:
    """The limiters of one event loop."""

    def __init__(self) -> None:
        self.walkers = trio.CapacityLimiter(_WALKERS)
        self.walks = trio.CapacityLimiter(_WALKS)
        self.turns = trio.CapacityLimiter(1)

    _current: trio.lowlevel.RunVar["_Limiters"] = trio.lowlevel.RunVar("pace")

    @classmethod
    def current(cls) -> "_Limiters":
        """The limiters of the running event loop."""
        try:
            return cls._current.get()
        except LookupError:
            cls._current.set(cls())
            return cls._current.get()


class _Collecting:
    """A walk that collects an answer."""

    __slots__ = ("has_place", "parts")

    def __init__(self) -> None:
        self.parts = 0
        self.has_place = False


_collecting: ContextVar[_Collecting | None] = ContextVar("collecting", default=None)


@asynccontextmanager
async def collecting() -> AsyncGenerator[None, None]:
    """Wraps the code that collects and encodes an answer. If the answer becomes long, `Pace.step` waits for a place."""
    walk = _Collecting()
    token = _collecting.set(walk)
    try:
        yield
    finally:
        _collecting.reset(token)
        if walk.has_place:
            _Limiters.current().walks.release_on_behalf_of(walk)


class Pace:
    """Counts the steps of one walk."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, count: int = 1) -> None:
        """Count `count` parts as done; every STEPS parts, yield to other tasks."""
        self._steps += count
        walk = _collecting.get()
        if walk is not None:
            walk.parts += count
            if walk.parts > WALK_PARTS and not walk.has_place:
                await _Limiters.current().walks.acquire_on_behalf_of(walk)
                walk.has_place = True
        if self._steps >= STEPS:
            self._steps = 0
            # First come, first served: one walk goes on in each turn of the event loop.
            async with _Limiters.current().turns:
                await trio.lowlevel.checkpoint()


class Walkers:
    """The threads for large messages; one set for each event loop."""

    @classmethod
    async def run(cls, work: Callable[[], T]) -> T:
        """Run `work` on a thread; it must not touch data that other tasks see."""
        return await trio.to_thread.run_sync(work, limiter=_Limiters.current().walkers)

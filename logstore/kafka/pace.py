"""Long walks give way: whoever walks over many parts of a request or an answer lets other clients run in between.

Invariants:
* Nothing here changes what is walked over; a short walk costs no switch.
* However many walks there are, one of them makes a few steps in each turn of the event loop, in the order in which they
  came; everybody else runs in each turn.
* Of the walks that collect an answer, few at a time hold more than WALK_PARTS parts; the others wait before they do.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
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


WALK_PARTS: Final = 1_000
"""An answer of more parts is collected by few requests at a time: until it is encoded, a part takes some 500 bytes."""
_WALKS: Final = 2


class _Limiters:
    """Of one event loop."""

    def __init__(self) -> None:
        self.walkers = trio.CapacityLimiter(_WALKERS)
        self.walks = trio.CapacityLimiter(_WALKS)
        self.turns = trio.CapacityLimiter(1)

    _current: trio.lowlevel.RunVar["_Limiters"] = trio.lowlevel.RunVar("pace")

    @classmethod
    def current(cls) -> "_Limiters":
        """Those of the event loop that runs."""
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
    """Around what collects an answer, and encodes it. If it becomes long, it waits for its place (see `Pace`)."""
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
        """Some parts are done; every STEPS of them, others get their turn."""
        self._steps += count
        walk = _collecting.get()
        if walk is not None:
            walk.parts += count
            if walk.parts > WALK_PARTS and not walk.has_place:
                await _Limiters.current().walks.acquire_on_behalf_of(walk)
                walk.has_place = True
        if self._steps >= STEPS:
            self._steps = 0
            # Who comes here first goes on first, one in each turn of the event loop.
            async with _Limiters.current().turns:
                await trio.lowlevel.checkpoint()


class Walkers:
    """The threads for large walks; one set for each event loop."""

    @classmethod
    async def run(cls, work: Callable[[], T]) -> T:
        """Run what touches nothing that others see on a thread."""
        return await trio.to_thread.run_sync(work, limiter=_Limiters.current().walkers)

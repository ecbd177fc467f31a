"""Memory goes back when the tail says that there are holes, and not otherwise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from logstore.base.heap import Heap
from logstore.disk.heap_watch import LOOK_S, watch_heap
from logstore.disk.meter import DiskMeter
from logstore.log.tail import HOLES_BYTES
from tests.support.tails import PushedTail
from tests.support.virtual_time import run_virtual

NEVER_BYTES = 1 << 40
THREADS_TURNS = 1_000
"""Of the event loop: enough for a thread to get its own."""


class _LookedHeap(Heap):
    """Counts looks."""

    looks = 0

    def tidy(self) -> bool:
        """See Heap."""
        self.looks += 1
        return super().tidy()


class _Watched:
    """A heap that is watched, and the tail that says when to give it back."""

    def __init__(self) -> None:
        self.heap, self.tail, self.meter = _LookedHeap(holes_bytes=NEVER_BYTES), PushedTail(16 << 20), DiskMeter()

    async def until_given_back(self, times: int) -> None:
        """Time stands still meanwhile: a thread works."""
        while self.heap.times_given_back < times:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()


def _run(check: Callable[[_Watched, trio.testing.MockClock], Awaitable[None]]) -> None:
    clock, watched = trio.testing.MockClock(), _Watched()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_heap, watched.heap, watched.tail, watched.meter)
            await trio.testing.wait_all_tasks_blocked()
            await check(watched, clock)
            nursery.cancel_scope.cancel()

    run_virtual(main, clock=clock)


def test_holes_of_the_tail_are_given_back_at_once() -> None:
    """No time passes between large batches that replace small ones and the giving back; as often as they do, once for
    all holes of one moment.
    """

    async def check(watched: _Watched, clock: trio.testing.MockClock) -> None:
        for times in (1, 2):
            watched.tail.push_all(16_000, 16 << 20)
            watched.tail.push_all(1_000_000, 16 << 20)
            await watched.until_given_back(times)
        assert watched.heap.times_given_back == 2
        assert clock.current_time() == 0

    _run(check)


def test_a_steady_load_gives_nothing_back() -> None:
    """Of a load that stays as it is, with less than the allowed holes, no look gives back memory."""

    async def check(watched: _Watched, clock: trio.testing.MockClock) -> None:
        for _ in range(10):
            watched.tail.push_all(16_000, 16 << 20)
            watched.tail.push_all(1_000_000, HOLES_BYTES // 2)
            watched.meter.note_write(1 << 20)
            clock.jump(LOOK_S)
            await trio.testing.wait_all_tasks_blocked()
        assert watched.heap.times_given_back == 0

    _run(check)


def test_behind_a_load_there_is_one_more_look() -> None:
    """What it leaves does not stay; and as long as nothing is written or read there is no look."""

    async def check(watched: _Watched, clock: trio.testing.MockClock) -> None:
        for looks in (1, 2):
            for _ in range(3):
                clock.jump(LOOK_S)
                await trio.testing.wait_all_tasks_blocked()
            assert watched.heap.looks == looks - 1
            watched.meter.note_write(1)
            # The look before may still be on its thread, and not see the first jump.
            while watched.heap.looks < looks:
                clock.jump(LOOK_S)
                for _ in range(THREADS_TURNS):
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
        assert watched.heap.looks == 2

    _run(check)

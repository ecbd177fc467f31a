"""The clock of virtual time does what trio's MockClock does: the same tasks, in the same order, at the same times."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
import trio.testing

from tests.support.virtual_clock import VirtualClock
from tests.support.virtual_time import AnyClock, Trace, run_virtual


async def pauses(random: Random) -> None:
    """Tasks that begin others, sleep, and end others."""

    async def task(depth: int) -> None:
        with trio.move_on_after(random.choice((0.5, 1, 2))):
            async with trio.open_nursery() as nursery:
                for _ in range(random.randint(0, 3) if depth else 0):
                    nursery.start_soon(task, depth - 1)
                await trio.sleep(random.choice((0, 0.1, 0.25, 1.5)))

    for _ in range(10):
        await task(3)


async def idleness(random: Random) -> None:
    """Tasks that wait until all others are blocked: no time passes before they go on."""

    async def task() -> None:
        for _ in range(5):
            await trio.sleep(random.random())
            before_s = trio.current_time()
            await trio.testing.wait_all_tasks_blocked()
            assert trio.current_time() == before_s

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(task)


async def sockets(random: Random) -> None:
    """What has been sent arrives before time passes."""
    one, other = socket.socketpair()
    with one, other:
        for number in range(20):
            before_s = trio.current_time()
            one.send(b"%03d" % number)
            with trio.fail_after(random.random() / 1_000):
                await trio.lowlevel.wait_readable(other)
            assert other.recv(100) == b"%03d" % number
            assert trio.current_time() == before_s
            await trio.sleep(random.random())


async def calls_from_outside(random: Random) -> None:
    """What is to be called in the loop's next turn is called before time passes."""
    token = trio.lowlevel.current_trio_token()
    for is_idempotent in (False, True) * 5:
        called_s: list[float] = []
        await trio.sleep(random.random())
        token.run_sync_soon(lambda: called_s.append(trio.current_time()), idempotent=is_idempotent)  # noqa: B023
        before_s = trio.current_time()
        await trio.sleep(0.001)
        assert called_s == [before_s]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("main", [pauses, idleness, sockets, calls_from_outside])
def test_a_run_is_the_same_as_with_trios_clock(main: Callable[[Random], Awaitable[None]], seed: int) -> None:
    """Step by step."""
    traces = [Trace(), Trace()]
    clocks: list[AnyClock] = [VirtualClock(), trio.testing.MockClock(autojump_threshold=0)]
    for clock, trace in zip(clocks, traces, strict=True):
        run_virtual(main, Random(seed), seed=seed, clock=clock, trace=trace)
    assert str(traces[0]) == str(traces[1])
    assert traces[0].steps > 20


def test_it_jumps_as_it_is_told() -> None:
    """Forward, also while tasks run; not back."""
    clock = VirtualClock()

    async def main() -> None:
        clock.jump(2.5)
        assert trio.current_time() == 2.5
        await trio.sleep(1)
        assert trio.current_time() == 3.5
        with pytest.raises(ValueError, match=r"cannot go back by 1 s"):
            clock.jump(-1)

    run_virtual(main, clock=clock)

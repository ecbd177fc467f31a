"""Runs in virtual time end: a run that hangs is told from one that takes long, and says what it waits for."""

from __future__ import annotations

import re

import pytest
import trio
import trio.testing

from tests.support.virtual_time import StuckRun, Trace, run_virtual


async def wait_for_ever() -> None:
    """An event that nobody sets, looked at every second."""
    while True:
        with trio.move_on_after(1):
            await trio.Event().wait()


async def turn_for_ever() -> None:
    """A task that never lets time pass."""
    while True:
        await trio.lowlevel.checkpoint()


def test_a_run_that_waits_for_ever_ends_and_says_where() -> None:
    """Behind its limit of virtual time a run fails with its seed and the place where each task waits."""
    with pytest.raises(StuckRun, match=re.compile("seed 5, at .*not over after 100.*test_virtual_time.py:", re.DOTALL)):
        run_virtual(wait_for_ever, seed=5, limit_s=100)


def test_a_run_in_which_no_time_passes_ends() -> None:
    """A task that turns for ever keeps time from passing: a limit of virtual time alone would never be reached."""
    with pytest.raises(StuckRun, match=re.compile("stood still for .*test_virtual_time.py:", re.DOTALL)):
        run_virtual(turn_for_ever, still_s=0.2)


def test_what_a_run_raises_has_its_seed() -> None:
    """A failure can be repeated: the error says with which seed."""

    async def fail() -> None:
        await trio.sleep(3)
        raise ValueError("as told")

    with pytest.raises(ValueError, match="as told") as failure:
        run_virtual(fail, seed=11)
    assert failure.value.__notes__ == ["virtual time: seed 11, at 3.000 s"]


def test_the_order_of_tasks_comes_from_the_seed() -> None:
    """Tasks that can run at the same moment run in the same order with the same seed, and in others with others."""

    async def order() -> list[int]:
        ran: list[int] = []

        async def note(number: int) -> None:
            await trio.sleep(1)
            ran.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(note, number)
        return ran

    def run(seed: int) -> tuple[list[int], str]:
        trace = Trace()
        return run_virtual(order, seed=seed, trace=trace), str(trace)

    assert run(1) == run(1)
    assert run(1) != run(2)

"""When Python's collector searches all objects of a sidecar: when nothing is served, or when it is high time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import trio

from logstore.base.collector import DUE, LATE, LOOK_S, MANY, Collector, FullCollections
from tests.support.virtual_time import run_virtual

LOOKS_S = 3.5 * LOOK_S


class Process:
    """What the collector does in this process, and what is served in it."""

    def __init__(self) -> None:
        self.full = 0
        self.served = 0

    def note(self, phase: str, details: dict[str, int]) -> None:
        """Called by the collector."""
        self.full += phase == "start" and details["generation"] == 2

    async def make(self, young: int, *, is_busy: bool) -> int:
        """So much garbage that the young are searched so many times; how many full searches there were in some looks
        behind that.
        """
        before = self.full
        for _ in range(young):
            gc.collect(1)
        end_s = trio.current_time() + LOOKS_S
        while trio.current_time() < end_s:
            self.served += is_busy
            await trio.sleep(LOOK_S / 4)
        return self.full - before


@pytest.fixture
def process() -> Iterator[Process]:
    """This process, with little in the collector's sight."""
    found, thresholds = Process(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.callbacks.append(found.note)
    yield found
    gc.callbacks.remove(found.note)
    gc.unfreeze()
    assert gc.get_threshold() == thresholds


def test_all_objects_are_searched_when_nothing_is_served(process: Process) -> None:
    """Where clients are served, a full collection waits for a moment without them, and comes then."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(FullCollections(lambda: process.served).run, trio.sleep)
            await trio.testing.wait_all_tasks_blocked()
            assert await process.make(DUE // 2, is_busy=False) == 0, "so little is new that nothing is worth a search"
            assert await process.make(DUE, is_busy=True) == 0
            assert await process.make(0, is_busy=False) == 1
            assert await process.make(0, is_busy=False) == 0
            nursery.cancel_scope.cancel()

    run_virtual(main, seed=1)


def test_garbage_is_bounded_where_something_is_served_all_the_time(process: Process) -> None:
    """Without a moment of quiet a full collection comes all the same, a few times later."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(FullCollections(lambda: process.served).run, trio.sleep)
            assert await process.make(DUE * (LATE - 1), is_busy=True) == 0
            assert await process.make(DUE, is_busy=True) == 1
            nursery.cancel_scope.cancel()

    run_virtual(main, seed=1)


def test_streams_that_are_made_are_not_searched(process: Process) -> None:
    """While many streams are made there is no full collection, in a moment of quiet neither; and blocks of two tasks
    leave the thresholds as they found them.
    """

    async def main() -> None:
        collector = Collector()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(FullCollections(lambda: process.served).run, trio.sleep)
            await trio.testing.wait_all_tasks_blocked()
            chosen = gc.get_threshold()
            first, second = collector.making(MANY), collector.making(MANY)
            first.__enter__()
            second.__enter__()
            assert await process.make(2 * DUE, is_busy=False) == 0
            first.__exit__(None, None, None)
            assert gc.get_threshold() != chosen
            second.__exit__(None, None, None)
            assert gc.get_threshold() == chosen
            assert await process.make(DUE, is_busy=False) == 1
            nursery.cancel_scope.cancel()

    run_virtual(main, seed=1)


def test_streams_that_are_being_made_at_its_start_leave_the_choice_to_it(process: Process) -> None:
    """A block that began before it ends in it: then it searches in a moment of quiet, as otherwise; and one that ends
    behind it leaves the thresholds to Python.
    """

    async def main() -> None:
        collector = Collector()
        async with trio.open_nursery() as nursery:
            early, late = collector.making(MANY), collector.making(MANY)
            early.__enter__()
            nursery.start_soon(FullCollections(lambda: process.served).run, trio.sleep)
            await trio.testing.wait_all_tasks_blocked()
            assert await process.make(2 * DUE, is_busy=False) == 0
            early.__exit__(None, None, None)
            assert await process.make(DUE, is_busy=False) == 1
            late.__enter__()
            nursery.cancel_scope.cancel()
        late.__exit__(None, None, None)

    run_virtual(main, seed=1)

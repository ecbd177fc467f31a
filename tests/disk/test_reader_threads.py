"""Reads on threads: results, errors, the bound, and what a cancellation waits for."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from logstore.disk.readers import ReaderThreads
from tests.support.limits import PATIENCE_S


@asynccontextmanager
async def running(count: int) -> AsyncIterator[ReaderThreads]:
    """Reader threads at work; they are ended with the block."""
    readers = ReaderThreads(count)
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(readers.run_wake_ups)
                yield readers
                nursery.cancel_scope.cancel()
    finally:
        readers.stop()


async def test_every_task_gets_its_own_result_or_error() -> None:
    """Of many reads at once, on fewer threads."""
    found: dict[int, int | str] = {}

    async with running(2) as readers:

        async def read(number: int) -> None:
            try:
                found[number] = await readers.run(lambda: 60 // number)
            except ZeroDivisionError as error:
                found[number] = str(error)

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(read, number)
    expected: dict[int, int | str] = {number: 60 // number for number in range(1, 30)}
    assert found == expected | {0: "integer division or modulo by zero"}


async def test_no_more_reads_at_a_time_than_threads() -> None:
    """The third of three reads begins when one of two threads is free."""
    gate = threading.Event()
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        assert gate.wait(PATIENCE_S)

    async with running(2) as readers:
        try:
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(readers.run, lambda number=number: work(number))
                while len(begun) < 2:
                    await trio.testing.wait_all_tasks_blocked()
                assert len(begun) == 2
                gate.set()
        finally:
            gate.set()
        assert len(begun) == 3


async def test_a_cancelled_task_waits_for_its_read() -> None:
    """Also when whoever wakes it is cancelled with it; and a task that is cancelled already begins no read."""
    gate, is_done = threading.Event(), threading.Event()

    def work() -> None:
        assert gate.wait(PATIENCE_S)
        is_done.set()

    readers = ReaderThreads(1)
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(readers.run_wake_ups)
                nursery.start_soon(readers.run, work)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                trio.lowlevel.current_trio_token().run_sync_soon(gate.set)
        assert is_done.is_set()
        with trio.CancelScope() as scope:
            scope.cancel()
            await readers.run(lambda: pytest.fail("a cancelled task began a read"))
        assert scope.cancelled_caught
    finally:
        gate.set()
        readers.stop()

"""One task waits for the data of many sockets, and wakes the tasks of those sockets that need it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from logstore.base.readiness import AT_ONCE, LOOKS, Readiness
from tests.support.limits import PATIENCE_S


class Rounds:
    """A Readiness that runs, with what has been served in each round."""

    def __init__(self, stack: ExitStack) -> None:
        self.readiness = Readiness(self._end_round)
        self.ended: list[list[str]] = []
        self._served: list[str] = []
        self._stack = stack

    def _end_round(self) -> None:
        self.ended.append(self._served)
        self._served = []

    def served(self, name: str) -> None:
        """Note that a socket was served."""
        self._served.append(name)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Two ends of a connection, neither of which blocks."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
            self._stack.callback(end.close)
        return ours, theirs


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Rounds, trio.Nursery]]:
    """Rounds that are served, and a nursery for those who wait."""
    with ExitStack() as stack, trio.fail_after(PATIENCE_S):
        rounds = Rounds(stack)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.readiness.run)
            yield rounds, nursery
            nursery.cancel_scope.cancel()


async def test_the_task_sleeps_while_its_call_serves() -> None:
    """The call takes what comes, as often as something comes; the task goes on when the call says so."""
    async with running() as (rounds, nursery):
        ours, theirs = rounds.pair()
        taken: list[bytes] = []
        woken = trio.Event()

        def arrived(now_s: float) -> bool:
            assert now_s <= trio.current_time()
            taken.append(ours.recv(100))
            return taken[-1] != b"end"

        async def wait() -> None:
            await rounds.readiness.watch(ours.fileno()).wait(arrived)
            woken.set()

        nursery.start_soon(wait)
        for data in (b"one", b"two"):
            theirs.send(data)
            await trio.testing.wait_all_tasks_blocked()
            assert taken[-1] == data
            assert not woken.is_set()
        theirs.send(b"end")
        await woken.wait()
        assert taken == [b"one", b"two", b"end"]


async def test_what_a_call_raises_reaches_the_task_that_waits() -> None:
    """And nobody else: the others are served as before."""
    async with running() as (rounds, nursery):
        (broken, at_broken), (whole, at_whole) = rounds.pair(), rounds.pair()
        served = trio.Event()

        def fails(_: float) -> bool:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

        def serves(_: float) -> bool:
            whole.recv(100)
            served.set()
            return True

        async def wait_broken() -> None:
            with pytest.raises(ConnectionResetError):
                await rounds.readiness.watch(broken.fileno()).wait(fails)
            at_whole.send(b"data")

        nursery.start_soon(rounds.readiness.watch(whole.fileno()).wait, serves)
        nursery.start_soon(wait_broken)
        at_broken.send(b"data")
        await served.wait()


async def test_data_that_nobody_waits_for_keeps_nobody_busy() -> None:
    """The socket is looked at once; the data is found by the next wait, and so is the end behind it."""
    async with running() as (rounds, _):
        ours, theirs = rounds.pair()
        watched = rounds.readiness.watch(ours.fileno())
        with trio.CancelScope() as scope:
            scope.cancel()
            await watched.wait(lambda now_s: True)
        theirs.send(b"data")
        await trio.testing.wait_all_tasks_blocked()
        assert rounds.ended == [[]]
        await watched.wait(lambda now_s: False)
        assert ours.recv(100) == b"data"
        theirs.close()
        await watched.wait(lambda now_s: False)
        assert ours.recv(100) == b""


async def test_a_cancelled_wait_is_not_served() -> None:
    """Neither by data that has come already, nor by later data."""
    async with running() as (rounds, _):
        ours, theirs = rounds.pair()
        watched = rounds.readiness.watch(ours.fileno())

        def never(_: float) -> bool:
            raise AssertionError("it was served")

        with trio.CancelScope() as scope:
            theirs.send(b"data")
            scope.cancel()
            await watched.wait(never)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        watched.close()
        theirs.send(b"data")
        await trio.testing.wait_all_tasks_blocked()
        assert not any(rounds.ended)


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
async def test_a_call_may_cancel_its_own_task(fails: bool) -> None:
    """The task is cancelled, once, and the round goes on; its next wait raises nothing of the earlier one."""
    async with running() as (rounds, _):
        ours, theirs = rounds.pair()
        watched = rounds.readiness.watch(ours.fileno())
        scope = trio.CancelScope()

        def arrived(_: float) -> bool:
            scope.cancel()
            if fails:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            return False

        with scope:
            theirs.send(b"data")
            await watched.wait(arrived)
        assert scope.cancelled_caught
        await watched.wait(lambda now_s: False)
        await trio.testing.wait_all_tasks_blocked()
        assert rounds.ended


async def test_a_closed_descriptor_may_be_another_sockets() -> None:
    """The number that a closed socket had is taken by another one, which is served by its own call."""
    async with running() as (rounds, _):
        first, _ = rounds.pair()
        watched = rounds.readiness.watch(first.fileno())
        with trio.CancelScope() as scope:
            scope.cancel()
            await watched.wait(lambda now_s: True)
        number = first.fileno()
        watched.close()
        first.close()
        second, theirs = rounds.pair()
        assert number in (second.fileno(), theirs.fileno())
        if second.fileno() != number:
            second, theirs = theirs, second
        theirs.send(b"data")
        await rounds.readiness.watch(number).wait(lambda now_s: False)
        assert second.recv(100) == b"data"


async def test_a_socket_that_cannot_be_watched_ends_its_own_task_only() -> None:
    """The system refuses to watch one more: whoever wanted to wait is told, and can still end in order."""
    async with running() as (rounds, _):
        ours, theirs = rounds.pair()
        unwatchable = os.open(__file__, os.O_RDONLY)  # epoll refuses files, with an error as that of its limit
        try:
            watched = rounds.readiness.watch(unwatchable)
            with pytest.raises(PermissionError):
                await watched.wait(lambda now_s: True)
            watched.close()
        finally:
            os.close(unwatchable)
        theirs.send(b"data")
        await rounds.readiness.watch(ours.fileno()).wait(lambda now_s: False)


async def test_what_comes_while_others_are_served_is_in_the_same_round() -> None:
    """A call makes another socket's data come: both are served before the round ends, each of them once."""
    async with running() as (rounds, nursery):
        pairs = {name: rounds.pair() for name in ("first", "second")}

        def serve(name: str, _: float) -> bool:
            rounds.served(name)
            if name == "first":
                pairs["second"][1].send(b"data")
            return True  # with its data still there: it is not served again before others had their turn

        async def wait(name: str) -> None:
            served = trio.Event()

            def arrived(now_s: float) -> bool:
                served.set()
                return serve(name, now_s)

            nursery.start_soon(rounds.readiness.watch(pairs[name][0].fileno()).wait, arrived)

        for name in pairs:
            await wait(name)
        await trio.testing.wait_all_tasks_blocked()
        pairs["first"][1].send(b"data")
        while not rounds.ended:
            await trio.lowlevel.checkpoint()
        assert rounds.ended[0] == ["first", "second"]


async def test_a_round_is_bounded() -> None:
    """More sockets than a round serves, each with data that is not taken: others have a turn after each round."""
    count = AT_ONCE + 10
    async with running() as (rounds, nursery):
        for number in range(count):
            ours, theirs = rounds.pair()
            theirs.send(b"data")

            def arrived(_: float, name: str = str(number)) -> bool:
                rounds.served(name)
                return True

            nursery.start_soon(rounds.readiness.watch(ours.fileno()).wait, arrived)
        seen: set[str] = set()
        turns = 0
        while len(seen) < count:
            await trio.lowlevel.checkpoint()
            turns += 1
            for names in rounds.ended:
                assert len(names) == len(set(names)) <= AT_ONCE
                seen.update(names)
        assert turns > 1
        assert LOOKS > 1

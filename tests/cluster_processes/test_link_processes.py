"""Links to a host in another process: killed, stopped for a while, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from logstore.base.addresses import Address
from logstore.cluster.links.peers import Peer
from tests.cluster.links_world import LOOPBACK, LinkedHost, look
from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


async def line_of(process: trio.Process) -> str:
    """The next line that the process writes."""
    line = b""
    with trio.fail_after(PATIENCE_S):
        while not line.endswith(b"\n"):
            line += await process.stdout.receive_some(1)  # type: ignore[union-attr]
    return line.decode().rstrip()


@asynccontextmanager
async def other_process(a: LinkedHost) -> AsyncIterator[trio.Process]:
    """Host b in a process of its own, which host a is connected with."""
    command = [sys.executable, "-m", "tests.cluster_processes.link_process", "b", "a", str(a.address.port)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        port = int(await line_of(process))
        a.links.set_peers({"b": Peer(Address(LOOPBACK, port), "disk-b")})
        await a.until_connected(["b"])
        assert await line_of(process) == "connected"
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()  # type: ignore[union-attr]


async def test_a_killed_process_is_noticed_at_once() -> None:
    """Kill -9 of a host is an end of its connection and a refusal of the next, without any time limit that passes; the
    host is reached again when it is back.
    """
    a = LinkedHost("a")
    async with trio.open_nursery() as nursery:
        await a.start(nursery)
        async with other_process(a) as process:
            a.links.send("b", look(1))
            await a.seen.until(lambda: a.seen.messages == [("b", look(1))])
            os.kill(process.pid, signal.SIGKILL)
            await a.seen.until(lambda: a.seen.news[:3] == [("connected", "b"), ("lost", "b"), ("refused", "b")])
        async with other_process(a):
            a.links.send("b", look(2))
            await a.seen.until(lambda: ("b", look(2)) in a.seen.messages)
        nursery.cancel_scope.cancel()


async def test_a_process_that_pauses() -> None:
    """A host that is stopped for a moment keeps its connection, and gets what was sent meanwhile."""
    a = LinkedHost("a")
    async with trio.open_nursery() as nursery:
        await a.start(nursery)
        async with other_process(a) as process:
            os.kill(process.pid, signal.SIGSTOP)
            for number in range(1000):
                a.links.send("b", look(number))
                if number % 100 == 0:
                    await trio.lowlevel.checkpoint()
            assert a.links.is_reachable("b")
            os.kill(process.pid, signal.SIGCONT)
            await a.seen.until(lambda: len(a.seen.messages) == 1000)
            assert a.seen.messages == [("b", look(number)) for number in range(1000)]
            assert a.seen.news == [("connected", "b")]
        nursery.cancel_scope.cancel()

"""Names of hosts are looked up on threads of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from logstore.base.addresses import Address
from logstore.base.events import ignore
from logstore.base.metadata.etcd.connections import connect as connect_to_etcd
from logstore.base.name_lookups import AGAIN_S, MAX_LOOKUPS, MAX_OF_ONE, THREAD, NameLookups, look_names_up_apart
from logstore.cluster.links.connecting import connect as connect_to_host
from logstore.cluster.links.peers import OwnEnd
from logstore.replica.registrations import Member
from scheduler.client.trio_client import TrioCoordinatorClient
from tests.cluster.links_world import Observer
from tests.support.limits import PATIENCE_S
from tests.support.programs import ROOT

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))]


class HangingResolver:
    """A resolver that answers no question until `go_on`; `asked` counts them by name."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.failing: set[str] = set()
        """Names that do not exist, which it says at once."""
        self._may_go_on = threading.Event()

    def __call__(self, host: bytes | None, *_: object) -> Any:
        """See socket.getaddrinfo."""
        name = (host or b"").decode()
        self.asked[name] += 1
        if name in self.failing:
            raise socket.gaierror(socket.EAI_NONAME, f"no {name}")
        self._may_go_on.wait()
        return FOUND

    def go_on(self) -> None:
        """Answer all questions."""
        self._may_go_on.set()


@pytest.fixture
def resolver() -> Iterator[HangingResolver]:
    """One that hangs as long as the test."""
    hanging = HangingResolver()
    yield hanging
    hanging.go_on()


async def give_up(connect: Any) -> None:
    """Try to connect for a moment, as where a connection is tried again and again."""
    with trio.move_on_after(0.001), suppress(OSError):
        await connect()


async def test_a_resolver_that_hangs_leaves_threads_to_others(resolver: HangingResolver) -> None:
    """Whoever connects by name gives up in time, again and again: to etcd, other hosts, a coordinator. The threads of
    all who do something else, such as looks at files, stay free; the resolver has few questions.
    """
    look_names_up_apart(resolver)
    own = OwnEnd("cluster", Member("a", "disk"), Observer(), ignore)
    coordinator = TrioCoordinatorClient("http://coordinator.example:1")
    others = trio.to_thread.current_default_thread_limiter()
    for _ in range(60):
        await give_up(partial(connect_to_etcd, None, "http://etcd.example:1"))
        await give_up(partial(connect_to_host, own, Address("localhost", 1)))
        await give_up(coordinator.status)
    assert others.borrowed_tokens == 0
    with trio.fail_after(PATIENCE_S):
        assert await trio.to_thread.run_sync(lambda: 7) == 7
    assert set(resolver.asked) == {"etcd.example", "localhost", "coordinator.example"}
    assert max(resolver.asked.values()) <= MAX_OF_ONE


async def test_who_asks_the_same_hears_the_same(resolver: HangingResolver) -> None:
    """One thread asks for all, also for those who come later; each gets the addresses, or an error of its own."""
    lookups, found = NameLookups(resolver), []
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            found.append(await lookups.getaddrinfo(b"a.example", 1))

        for _ in range(10):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert lookups.threads == 1
        resolver.go_on()
    assert found == [FOUND] * 10
    assert resolver.asked["a.example"] == 1
    resolver.failing.add("b.example")
    errors: list[socket.gaierror] = []

    async def fail() -> None:
        with pytest.raises(socket.gaierror, match=r"no b\.example") as caught:
            await lookups.getaddrinfo(b"b.example", 1)
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        nursery.start_soon(fail)
    assert errors[0] is not errors[1]
    assert lookups.threads == 0


async def test_a_lost_question_is_asked_again(
    resolver: HangingResolver, autojump_clock: trio.testing.MockClock
) -> None:
    """Who asks a second later begins another look-up, up to four; the first answer is the answer to all."""
    lookups = NameLookups(resolver)
    async with trio.open_nursery() as nursery:
        for _ in range(2 * MAX_OF_ONE):
            nursery.start_soon(lookups.getaddrinfo, b"a.example", 1)
            await trio.sleep(AGAIN_S)
        assert lookups.threads == MAX_OF_ONE
        resolver.go_on()
    assert resolver.asked["a.example"] <= MAX_OF_ONE


async def test_threads_are_bounded(resolver: HangingResolver) -> None:
    """However many names hang. Who asks for a further one waits for a thread, and goes on when there is one."""
    lookups = NameLookups(resolver)
    async with trio.open_nursery() as nursery:
        for number in range(2 * MAX_LOOKUPS):
            nursery.start_soon(lookups.getaddrinfo, b"%d.example" % number, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert lookups.threads == MAX_LOOKUPS
        resolver.go_on()
    assert sum(resolver.asked.values()) == 2 * MAX_LOOKUPS
    assert lookups.threads == 0


def test_a_run_that_ends_waits_for_no_resolver(resolver: HangingResolver) -> None:
    """Nor does an answer that comes later disturb anybody, or the next run."""

    async def main() -> None:
        look_names_up_apart(resolver)
        await give_up(partial(trio.open_tcp_stream, "a.example", 1))

    trio.run(main)
    resolver.go_on()
    trio.run(main)


PROGRAM = """
import socket, sys, threading
known = socket.getaddrinfo
def told(host, *more, **named):
    if host == b"localhost":  # before it asks a thread, trio looks whether a text is a number
        print("looked up on:", threading.current_thread().name, file=sys.stderr, flush=True)
    return known(host, *more, **named)
socket.getaddrinfo = told
from logstore.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "words",
    [
        "serve --data-dir {}/data --kafka localhost:0",
        "coordinate --topology docs/topologies/figure5.toml --data-dir {}/data --listen localhost:0",
        "topology agent --directory {} --listen localhost:0",
    ],
    ids=["sidecar", "coordinator", "agent"],
)
def test_programs_look_names_up_apart(tmp_path: Path, words: str) -> None:
    """Sidecar, coordinator and agent."""
    command = [sys.executable, "-c", PROGRAM, *words.format(tmp_path).split()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        guard = threading.Timer(PATIENCE_S, process.kill)
        guard.start()
        lines, printed = [], ""
        for line in process.stdout or ():
            printed += line
            lines += [line] if line.startswith("looked up on:") else []
            if "ready" in line:
                process.terminate()
        guard.cancel()
    assert lines, printed
    assert set(lines) == {f"looked up on: {THREAD}\n"}

"""Hosts with real links between them on loopback, in one event loop; what each observes can be waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

from logstore.base.addresses import Address
from logstore.base.events import LogEvent
from logstore.base.tls import PeerTls
from logstore.cluster.links.links import HostLinks
from logstore.cluster.links.peers import LinkSettings, OwnEnd, Peer
from logstore.replica.messages import Append, BatchEntry, LookAtRegistration, Message
from logstore.replica.registrations import Member, Prefix
from tests.support.limits import PATIENCE_S

LOOPBACK = "127.0.0.1"
SETTINGS = LinkSettings(
    connect_s=PATIENCE_S,
    handshake_s=PATIENCE_S,
    stall_s=PATIENCE_S,
    min_pause_s=0.005,
    max_pause_s=0.05,
    trouble_s=0.0,
)
"""Pauses are short, so that a test does not wait for them, and no link ends because the machine is slow; all limits of
sizes are the product's.
"""


class Observer:
    """Keeps what links say."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Message]] = []
        self.news: list[tuple[str, str]] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        self.on_received: Callable[[str, Message], None] = lambda host, message: None
        self._changed = trio.lowlevel.ParkingLot()

    def received(self, host: str, message: Message) -> None:
        self.messages.append((host, message))
        self._changed.unpark_all()
        self.on_received(host, message)

    def connected(self, host: str) -> None:
        self._note("connected", host)

    def lost(self, host: str) -> None:
        self._note("lost", host)

    def refused(self, host: str) -> None:
        self._note("refused", host)

    def _note(self, news: str, host: str) -> None:
        self.news.append((news, host))
        self._changed.unpark_all()

    def report(self, event: LogEvent, /, **fields: object) -> None:
        self.events.append((event.name, fields))
        self._changed.unpark_all()

    async def until(self, is_true: Callable[[], Any]) -> None:
        """Wait until it is so; looked at whenever something is observed."""
        with trio.fail_after(PATIENCE_S):
            while not is_true():
                await self._changed.park()

    async def event(self, name: str) -> dict[str, object]:
        """The fields of an event, when it has come."""
        await self.until(lambda: any(each == name for each, _ in self.events))
        return next(fields for each, fields in self.events if each == name)


class LinkedHost:
    """One host and its links."""

    def __init__(
        self,
        name: str,
        cluster: str = "cluster1",
        settings: LinkSettings = SETTINGS,
        disk: str = "",
        tls: PeerTls | None = None,
        address: str = LOOPBACK,
    ) -> None:
        self.me = Member(name, disk or f"disk-{name}")
        self.seen = Observer()
        self.links = HostLinks(OwnEnd(cluster, self.me, self.seen, self.seen.report, settings, tls))
        self.address = Address(address, 0)
        self.strangers: list[trio.SocketStream] = []
        """Connections to it that a test has made; `linked` closes them."""
        self._life = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def peer(self) -> Peer:
        """What others know of it."""
        return Peer(self.address, self.me.disk)

    async def start(self, nursery: trio.Nursery) -> None:
        """Begin to serve, at the address of before if there was one."""
        self.address = await nursery.start(self._run)

    async def _run(self, *, task_status: trio.TaskStatus[Address]) -> None:
        self._ended = trio.Event()
        with trio.CancelScope() as self._life:
            await self.links.serve(self.address, task_status=task_status)
        self._ended.set()

    async def until_connected(self, hosts: Iterable[str]) -> None:
        """Wait until all these hosts can be reached."""
        wanted = list(hosts)
        await self.seen.until(lambda: all(map(self.links.is_reachable, wanted)))

    async def until_received(self, count: int) -> None:
        """Wait for so many messages."""
        await self.seen.until(lambda: len(self.seen.messages) >= count)

    async def stop(self) -> None:
        """End all its sockets, as the end of its process does."""
        self._life.cancel()
        await self._ended.wait()


def know(*hosts: LinkedHost) -> None:
    """Each host knows all of them."""
    for host in hosts:
        host.links.set_peers({each.me.host: each.peer for each in hosts})


@asynccontextmanager
async def linked(*hosts: LinkedHost) -> AsyncIterator[trio.Nursery]:
    """Hosts that serve and are connected with each other."""
    async with trio.open_nursery() as nursery:
        for host in hosts:
            await host.start(nursery)
        know(*hosts)
        for host in hosts:
            await host.until_connected([each.me.host for each in hosts])
        try:
            yield nursery
        finally:
            nursery.cancel_scope.cancel()
            for host in hosts:
                for stream in host.strangers:
                    stream.socket.close()


def look(number: int) -> LookAtRegistration:
    """A small message, which is known by a number."""
    return LookAtRegistration("stream/0", number)


def append(*data: bytes, epoch: int = 3) -> Append:
    """A message with entries."""
    entries = tuple(BatchEntry(each, 1) for each in data)
    return Append(
        "stream/0", "disk-b", epoch, 0, "a", Prefix(7, 2, 5), entries, 4, (Member("c", "disk-c"),), b"founding"
    )

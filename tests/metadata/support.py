"""Stores for the tests of metadata: in an SQLite file, simulated, and on real etcd processes.

Invariant: an etcd listens on loopback alone, and is killed at the end of its context. Where no etcd is installed, tests
that need one are skipped, and say how to install it.
"""

import http.client
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from logstore.base.events import LogEvent, Report, ignore
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.etcd.settings import EtcdSettings
from logstore.base.metadata.etcd.store import EtcdMetadataStore, open_etcd
from logstore.base.metadata.interface import Transaction
from logstore.base.metadata.sqlite import open_sqlite
from logstore.testing.metadata_contract import PATIENCE_S, StoreUnderTest
from logstore.testing.ports import free_ports
from logstore.testing.processes import LONE_ETCD, etcd_answers, freeze
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata

ETCD = shutil.which("etcd")
NEEDS_ETCD = "no etcd is installed: apt-get install etcd-server"
needs_etcd = pytest.mark.skipif(ETCD is None, reason=NEEDS_ETCD)
SETTINGS: dict[str, Any] = {"attempt_s": PATIENCE_S, "watch_idle_s": 0.2}
"""A loaded machine may take its time; tests that freeze an etcd set HASTY."""
HASTY: dict[str, Any] = {"attempt_s": 1.0}
NOTHING = Transaction((), ())


@dataclass
class EtcdMember:
    """One etcd process. `options` are further flags."""

    name: str
    directory: Path
    client: str
    peer: str
    cluster: str
    options: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; it goes on with what its directory holds."""
        assert ETCD is not None, NEEDS_ETCD
        command = [
            ETCD, "--name", self.name, "--data-dir", str(self.directory / self.name), "--logger", "zap",
            "--listen-client-urls", self.client, "--advertise-client-urls", self.client,
            "--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer,
            "--initial-cluster", self.cluster, "--log-outputs", str(self.directory / f"{self.name}.log"), *self.options,
        ]  # fmt: skip
        environment = {"PATH": os.environ["PATH"]}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)

    def wait(self) -> None:
        """Wait until it answers."""
        process = self.process
        assert process is not None
        assert etcd_answers(self.client.removeprefix("http://"), PATIENCE_S, lambda: process.poll() is None), self.name

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill −9; nothing is left of the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def asks_to_keep_leases(member: EtcdMember) -> bool:
    """Whether this etcd, whose users log in, wants a login to keep a lease alive, as since 3.4.42, 3.5.28 and 3.6.9."""
    url = member.client.removeprefix("http://")
    connection = http.client.HTTPConnection(url, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/v3/lease/keepalive", b'{"ID":"1"}', {"Content-Type": "application/json"})
        return connection.getresponse().status != http.client.OK
    finally:
        connection.close()


@contextmanager
def etcd_members(
    directory: Path, number: int = 1, options: Sequence[str] = (), scheme: str = "http"
) -> Iterator[list[EtcdMember]]:
    """Processes of one etcd cluster, started. They answer, but those that ask for certificates: who asks those has to
    be patient.
    """
    ports = free_ports(2 * number)
    names = [f"e{index}" for index in range(number)]
    peers = [f"http://127.0.0.1:{port}" for port in ports[number:]]
    cluster = ",".join(f"{name}={peer}" for name, peer in zip(names, peers, strict=True))
    times = LONE_ETCD if number == 1 else ()
    members = [
        EtcdMember(name, directory, f"{scheme}://127.0.0.1:{port}", peer, cluster, [*times, *options])
        for name, port, peer in zip(names, ports, peers, strict=False)
    ]
    try:
        for member in members:
            member.start()
        for member in members if scheme == "http" else ():
            member.wait()
        yield members
    finally:
        for member in members:
            member.kill()


def settings_for(members: Sequence[EtcdMember], **changes: Any) -> EtcdSettings:
    """Settings for these members, patient enough for a start on a loaded machine."""
    values = {**SETTINGS, "patience_s": PATIENCE_S, **changes}
    return EtcdSettings(endpoints=tuple(member.client for member in members), **values)


@dataclass
class Reports:
    """Events that were reported, by name."""

    names: list[str] = field(default_factory=list)

    def __call__(self, event: LogEvent, /, **fields: object) -> None:
        """See Report."""
        self.names.append(event.name)


@asynccontextmanager
async def etcd_store(
    members: Sequence[EtcdMember], report: Report = ignore, **changes: Any
) -> AsyncIterator[EtcdMetadataStore]:
    """A store on these members; they answer, however little patience it has."""
    async with open_etcd(settings_for(members, **changes), Random(0), report) as store:
        with trio.fail_after(PATIENCE_S):
            while True:
                with suppress(MetadataUnavailable, OutcomeUnknown):
                    await store.commit(NOTHING)
                    break
        yield store


# ---- stores for the contract

Make = Callable[[], AbstractAsyncContextManager[StoreUnderTest]]


def making_sqlite(directory: Path, clock: trio.testing.MockClock) -> Make:
    """Stores in new files."""
    numbers = iter(range(1 << 30))

    @asynccontextmanager
    async def make() -> AsyncIterator[StoreUnderTest]:
        async with open_sqlite(directory / f"{next(numbers)}.db", Random(0)) as store:

            async def pass_time(seconds: float) -> None:
                clock.jump(seconds)
                await trio.testing.wait_all_tasks_blocked()
                await store.commit(NOTHING)  # comes behind the change under way

            yield StoreUnderTest(store, store, pass_time)

    return make


def making_simulated(clock: trio.testing.MockClock) -> Make:
    """Stores of new simulated services, without faults."""

    @asynccontextmanager
    async def make() -> AsyncIterator[StoreUnderTest]:
        service = SimulatedMetadata(Random(0), MetadataFaults())

        async def pass_time(seconds: float) -> None:
            clock.jump(seconds)
            await trio.testing.wait_all_tasks_blocked()

        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            yield StoreUnderTest(service.store("h1"), service.store("h2"), pass_time)
            nursery.cancel_scope.cancel()

    return make


def making_etcd(members: Sequence[EtcdMember]) -> Make:
    """Stores in new namespaces of one etcd. Its map has one revision for all: a compaction concerns all of them."""
    numbers = iter(range(1 << 30))

    @asynccontextmanager
    async def make() -> AsyncIterator[StoreUnderTest]:
        namespace = f"/test/{os.getpid()}/{next(numbers)}/"
        async with (
            etcd_store(members, namespace=namespace) as store,
            etcd_store(members, namespace=namespace) as other,
        ):
            yield StoreUnderTest(store, other, trio.sleep)

    return make


def stop(member: EtcdMember) -> None:
    """Freeze a process: its connections stay open and are silent. It stands still when this returns."""
    assert member.process is not None
    freeze(member.process.pid)


def go_on(member: EtcdMember) -> None:
    """Let a frozen process go on."""
    member.signal(signal.SIGCONT)

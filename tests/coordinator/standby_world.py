"""Hosts of a cluster with coordinators that stand by for each other, and a client of them, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import trio

from logstore.base.addresses import Address
from logstore.base.http.messages import HttpRequest, HttpResponse
from logstore.base.metadata.errors import LeaseEnded, MetadataUnavailable
from logstore.base.metadata.held_lease import HeldLease
from logstore.base.metadata.interface import MetadataStore
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from scheduler.coordinator.front_settings import FrontSettings, Security
from scheduler.coordinator.service import (
    CoordinatorSettings,
)
from scheduler.coordinator.standby.interface import StandbyEnvironment, StandbyPlanning
from scheduler.coordinator.standby.running import ClusterSide, StandingBy
from scheduler.peace.online import Settings
from scheduler.topology import Topology, racks
from tests.support.virtual_time import run_virtual

NETWORK = racks([4, 4], 4)
LEASE_S = 3
TOKEN = "a-token-of-the-cluster"
SETTINGS = CoordinatorSettings(Settings(gather_ms=0), host_deadline_ms=10_000, writer_deadline_ms=60_000)

HASTY = replace(SETTINGS, host_deadline_ms=4_500)


async def at_once(work: Callable[[], None]) -> None:
    """Run it here: virtual time does not wait for threads."""
    work()


class VirtualClock:
    """Trio's virtual time; each host's wall clock is wrong by some time."""

    def __init__(self, wrong_ms: int) -> None:
        self._wrong_ms = wrong_ms

    def wall_ms(self) -> int:
        """See Clock."""
        return 1_000_000_000 + self._wrong_ms + int(trio.current_time() * 1000)

    def monotonic_s(self) -> float:
        """See Clock."""
        return trio.current_time()


class HostLife:
    """A member of the cluster from a start to its end: it holds a lease, and takes another one when that has ended."""

    def __init__(self, name: str, start: str, store: MetadataStore, world: World) -> None:
        self.name, self.start = name, start
        self._former = world.former.get(name)
        self.reports = RecordedReports()
        self._store = store
        self._lease: HeldLease | None = None
        number = ord(name) - ord("a")
        environment = StandbyEnvironment(
            world.networks.get(name, NETWORK),
            VirtualClock(number * 7_000),
            Random(number),
            self.reports,
        )
        self.standing = StandingBy(
            environment,
            FrontSettings(Address("127.0.0.1", 0), security=world.security),
            StandbyPlanning("paper", world.settings),
            off_load=at_once,
        )
        self.url = f"http://{name}:9880"
        self.scope = trio.CancelScope()

    @property
    def lease_id(self) -> int:
        """See CandidateHost."""
        return self._lease.lease_id if self._lease is not None and self._lease.held else 0

    @property
    def side(self) -> ClusterSide:
        """What its coordinator has of the cluster."""
        return ClusterSide(self, self._store, former=self._former)

    async def run(self) -> None:
        """Until it is killed: its lease is not given back."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.standing.stand, self.side, self.url)
                while True:
                    lease = self._lease = HeldLease(StoreOfAKilledHost(self._store), LEASE_S)
                    try:
                        await lease.run()
                    except (LeaseEnded, MetadataUnavailable):
                        await trio.sleep(0.2)


class StoreOfAKilledHost:
    """The store of a host that is killed: nobody ends its lease."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        """Everything else."""
        return getattr(self._store, name)

    async def revoke_lease(self, lease_id: int) -> None:
        """See MetadataStore."""


class World:
    """Hosts with coordinators, the metadata store between them, and a client that knows all their addresses."""

    life: Callable[..., HostLife] = HostLife

    def __init__(self, service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        self.service = service
        self.hosts: dict[str, HostLife] = {}
        self.security = Security()
        self.settings = SETTINGS
        self.networks: dict[str, Topology] = {}
        self.former: dict[str, Path] = {}
        self._nursery = nursery
        self._starts = 0

    def start(self, *names: str) -> None:
        """Start hosts."""
        for name in names:
            self._starts += 1
            life = self.hosts[name] = self.life(name, f"s{self._starts}", self.service.store(name), self)
            self._nursery.start_soon(life.run)

    def kill(self, name: str) -> None:
        """The process of a host ends at once."""
        self.hosts.pop(name).scope.cancel()

    def leaders(self) -> list[str]:
        """The hosts that answer as the leader at this moment."""
        return [
            name
            for name, life in self.hosts.items()
            if life.standing.front.candidate is not None
            and life.standing.front.candidate.leads
            and life.standing.front.dispatch is not None
        ]

    async def leader(self) -> str:
        """The host that leads, when one does."""
        while not (found := self.leaders()):  # noqa: ASYNC110  many things may change it
            await trio.sleep(0.05)
        assert len(found) == 1, found
        return found[0]

    async def at(self, name: str, method: str, path: str, body: object = None, **headers: str) -> HttpResponse:
        """Ask one host."""
        data = b"" if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **headers} if data else headers
        return await self.hosts[name].standing.front(HttpRequest(method, path, sent, data, "10.0.0.9"))

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask until a leader answers; gives its answer's value."""
        while True:
            for name in list(self.hosts):
                if name not in self.hosts:
                    continue
                answer = await self.at(name, method, path, body)
                if answer.status == 307:
                    assert answer.headers["Location"].endswith(path)
                elif answer.status < 500:
                    assert answer.status in (200, 201), answer.body
                    return json.loads(answer.body)
            await trio.sleep(0.1)


def in_a_world(
    test: Callable[[World], Awaitable[None]],
    hosts: str = "abc",
    seed: int = 0,
    faults: MetadataFaults | None = None,
    settings: CoordinatorSettings = SETTINGS,
) -> None:
    """Run a test in virtual time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            service = SimulatedMetadata(Random(seed), faults or MetadataFaults(max_delay_s=0.01))
            await nursery.start(service.serve)
            world = World(service, nursery)
            world.settings = settings
            world.start(*hosts)
            await test(world)
            nursery.cancel_scope.cancel()

    run_virtual(main, seed=seed)


def submission(name: str, writer: str = "r1h1", chunks: int = 3) -> dict[str, Any]:
    """What a request is made of."""
    return {"name": name, "writer": writer, "chunks": chunks, "replicas": 2}


def checkpoint(seq: int) -> dict[str, Any]:
    """What is registered of a checkpoint."""
    return {
        "sink": "hdfs://nn:9870/c", "epoch": seq, "attempt": f"a{seq}", "state_bytes": 1000, "bases": [],
        "written_ms": 1, "files": [{"name": f"f{seq}", "bytes": 10, "crc32c": 1, "hosts": ["r1h1"]}],
    }  # fmt: skip

"""Whole hosts in virtual time: the product's assembly of a host, on a simulated machine, network and metadata store.

Invariants: nothing of the product is replaced but what touches the outside (`machine`, `network`, the metadata store's
simulation). A host that ends keeps its machine; what its tasks do after the end reaches neither disk nor network.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

import trio

from logstore import config
from logstore.base.addresses import Address
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.host import ClusterHost
from logstore.cluster.part import LocalParts
from logstore.cluster.running import Outside, RunningCluster, start_cluster
from logstore.cluster.settings import ClusterSettings
from logstore.cluster_front import FRONT
from logstore.config import SidecarConfig
from logstore.kafka.api_types import Broker
from logstore.kafka.connection import ClientConnection
from logstore.kafka.operators import HostFacts
from logstore.kafka.server import KafkaServer, Listener
from logstore.sidecar import _group_handlers, _groups
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.whole.machine import Machine, VirtualClock, no_threads
from tests.whole.network import SimulatedLinks, SimulatedNetwork

KAFKA_PORT = 9092
NAMES = ("a", "b", "c")
JOIN_S = 300.0


def settings_of(name: str, number: int) -> SidecarConfig:
    """What `cairn serve` makes of the flags of a host."""
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    flags = {
        "data-dir": "data", "kafka": f"127.0.0.1:{KAFKA_PORT}", "cluster": "etcd://127.0.0.1:2379", "host-name": name,
        "node-id": number, "peer-listen": "127.0.0.1:9192", "lease-s": 3,
    }  # fmt: skip
    return config.parse(parser.parse_args([f"--{key}={value}" for key, value in flags.items()]))


class SimulatedServer(KafkaServer):
    """The front, whose connections the simulated network brings."""

    async def run(self, listener: Listener, clients: trio.Nursery) -> None:
        """What `serve` runs beside its listeners."""
        self._listener, self._clients = listener, clients
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._arrivals.readiness.run)
            nursery.start_soon(self._expire)
            nursery.start_soon(self._answers.unsent.run)

    def admit(self, client: socket.socket, address: str) -> None:
        """A client has connected."""
        self._admit(self._listener, client, address, self._clients)

    def served(self) -> list[ClientConnection]:
        """The connections that there are."""
        return list(self._connections)


@dataclass
class WholeHost:
    """A host in one life."""

    name: str
    cluster: RunningCluster
    server: SimulatedServer
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def host(self) -> ClusterHost:
        """What carries out replication."""
        return self.cluster._host


class WholeCluster:
    """Hosts by name, each with a machine that outlives it."""

    def __init__(self, nursery: trio.Nursery, metadata: SimulatedMetadata, random: Random) -> None:
        self.nursery = nursery
        self.metadata = metadata
        self.random = random
        self.network = SimulatedNetwork(nursery, Random(random.getrandbits(64)))
        self.reports = RecordedReports()
        self.machines = {name: Machine(Random(random.getrandbits(64))) for name in NAMES}
        self.hosts: dict[str, WholeHost] = {}
        self.starting: set[str] = set()

    async def start(self, name: str) -> None:
        """A host starts, with its machine, and joins. It may wait for the metadata store."""
        self.starting.add(name)
        try:
            await self.nursery.start(self._live, name)
        finally:
            self.starting.discard(name)

    async def _live(self, name: str, task_status: trio.TaskStatus[None]) -> None:
        settings = settings_of(name, NAMES.index(name) + 1)
        machine = self.machines[name]
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                running = await self._assemble(settings, machine, scope, nursery)
                listener = running.server._listener
                await running.cluster.join({"plaintext_0": f"{name}:{listener.port}"}, nursery)
                self.hosts[name] = running
                self.network.hosts[name].admit = running.server.admit
                task_status.started()
        running.ended.set()

    async def _assemble(
        self, settings: SidecarConfig, machine: Machine, scope: trio.CancelScope, nursery: trio.Nursery
    ) -> WholeHost:
        """As `logstore.sidecar` does it."""
        wanted, clock = settings.cluster, VirtualClock()
        assert wanted is not None
        engine = await machine.open(settings.store, self.reports, nursery)
        cluster = await self._start_cluster(wanted, LocalParts(
            engine, machine.disk, clock, self.reports, machine.random, machine.new_id, nursery
        ))  # fmt: skip
        callers = FRONT.callers(cluster)
        alone = Broker(engine, clock, settings.broker, callers.authorizer(settings.super_users), callers.quotas.quotas)
        broker = alone._replace(engine=cluster.engine, placement=cluster.placement)
        listener = Listener(wanted.host, KAFKA_PORT)
        make_groups = partial(_group_handlers, settings, broker, self.reports)
        known = _groups(settings, alone, engine.store, self.reports).apis()
        facts = partial(HostFacts, "0", 1, 1)
        served = FRONT.serve(cluster, FRONT.parts(broker, engine.store, callers, [listener], facts, make_groups, known))
        server = SimulatedServer(broker, served.handlers)
        server._listener, server._clients = listener, nursery
        nursery.start_soon(served.run)
        nursery.start_soon(server.run, listener, nursery)
        return WholeHost(wanted.host, cluster, server, scope)

    async def _start_cluster(self, wanted: ClusterSettings, local: LocalParts) -> RunningCluster:
        @asynccontextmanager
        async def open_metadata(*_: object) -> AsyncIterator[MetadataStore]:
            yield self.metadata.store(wanted.host)

        links = partial(SimulatedLinks, network=self.network, nursery=local.nursery)
        return await start_cluster(wanted, local, Outside(open_metadata, links))

    async def kill(self, name: str, *, is_power_cut: bool) -> None:
        """A host ends at once: its process alone, or its machine, which says nothing and loses what is not synced."""
        running = self.hosts.pop(name)
        machine = self.machines[name]
        if is_power_cut:
            machine.cut_power()
        else:
            machine.end_process()
        self.metadata.cut_off(name)
        self.network.detach(name, is_silent=is_power_cut)
        running.scope.cancel()
        await running.ended.wait()
        self.metadata.heal(name)

    def close(self) -> None:
        """Close what is left of hosts; nothing runs any more."""
        self.network.close()
        for machine in self.machines.values():
            machine.close()

    def describe(self) -> str:
        """The state of the cluster, to be read by people."""
        lines = [f"at {trio.current_time():.3f} s: up {sorted(self.hosts)}, cuts {sorted(self.network.cuts)}"]
        for name, running in sorted(self.hosts.items()):
            for stream, owner in running.host.owners.items():
                chunks = [
                    (chunk.epoch, chunk.base_offset, [member.host for member in chunk.members])
                    for chunk in owner.registration.chunks[-3:]
                ]
                lines.append(f"  {name} {stream}: {owner.state.value}, epoch {owner.registration.epoch}, {chunks}")
        return "\n".join(lines)


@asynccontextmanager
async def whole_cluster(seed: int) -> AsyncIterator[WholeCluster]:
    """A cluster of three hosts, all members of it."""
    random = Random(f"cluster {seed}")
    metadata = SimulatedMetadata(Random(random.getrandbits(64)), MetadataFaults(max_delay_s=0.002))
    with no_threads():
        async with trio.open_nursery() as service:
            await service.start(metadata.serve)
            async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
                cluster = WholeCluster(nursery, metadata, random)
                stack.callback(cluster.close)
                async with trio.open_nursery() as starts:
                    for name in NAMES:
                        starts.start_soon(cluster.start, name)
                yield cluster
                nursery.cancel_scope.cancel()
            service.cancel_scope.cancel()


def kafka_address(name: str) -> Address:
    """Where a host listens for clients."""
    return Address(name, KAFKA_PORT)

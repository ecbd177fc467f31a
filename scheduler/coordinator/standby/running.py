"""A coordinator of a cluster, put together: a server for the life of this host, and a coordinator while it leads.

Invariants: the planner's code is compiled before this host may lead, so a takeover needs no more than the state; until
then it answers as a host that stands by. The state is read on a thread: this host serves others meanwhile, and holds
its lease. Each time that it leads it begins with the state in the metadata store, and with nothing of the time before.
A host that stands by follows the file of its network as the leader does, so that it leads with the network that the
file has by then.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from logstore.base.addresses import Address
from logstore.base.http.server import HttpServer
from logstore.base.metadata.interface import MetadataStore
from scheduler.coordinator.dispatch import Dispatch, may_wait
from scheduler.coordinator.errors import StoreError
from scheduler.coordinator.handlers import RouteHandlers
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.metadata.cluster import ClusterMetadata
from scheduler.coordinator.metadata.on_threads import OffLoad, in_a_thread
from scheduler.coordinator.network_file import NetworkFile
from scheduler.coordinator.running import DRAIN_S, ServeSettings
from scheduler.coordinator.service import Coordinator, CoordinatorEnvironment
from scheduler.coordinator.standby.candidate import Candidate, CandidateHost, LeadingCoordinator
from scheduler.coordinator.standby.former_database import take_database, warn_of_database
from scheduler.coordinator.standby.front import Front
from scheduler.coordinator.standby.networks import ComparedNetworks
from scheduler.coordinator.warm_up import warm_up_planner
from scheduler.peace.online.records import EventOutcome
from scheduler.peace.plan import Planner
from scheduler.topology import Topology

DATABASE_LOOK_S: Final = 1.0
"""Between two looks at who leads, until somebody does."""
MAX_REMEMBERED: Final = 1_000
"""Requests that are over: a takeover reads them too, some 8 MB with 20 chunks each."""


class ClusterSide(NamedTuple):
    """What a host has of its cluster. `advertised`: where clients reach its coordinator; None: where it listens.
    `former`: the database of a coordinator that was alone here, if there is one.
    """

    member: CandidateHost
    store: MetadataStore
    advertised: Address | None = None
    former: Path | None = None


class StandingBy:
    """A host that stands by, or leads; it serves on `address`."""

    def __init__(
        self,
        environment: CoordinatorEnvironment,
        settings: ServeSettings,
        network: NetworkFile | None = None,
        off_load: OffLoad = in_a_thread,
    ) -> None:
        self.environment = environment
        self._network = network
        self._off_load = off_load
        self._coordinator: Coordinator | None = None
        """While this host leads."""
        self.address = Address("", 0)
        planned = settings.coordinator
        remembered = min(planned.max_remembered, MAX_REMEMBERED)
        self._settings = replace(settings, coordinator=replace(planned, max_remembered=remembered))
        self._clients = settings.security.clients
        self.front = Front(self._clients, self)
        self._candidate: Candidate | None = None
        self._former: Path | None = None
        self._server = HttpServer(
            settings.http,
            self.front,
            environment.report,
            may_wait=may_wait,
            takes_large=self._clients.takes_large,
            tls=settings.security.tls,
        )

    async def run(
        self, cluster: ClusterSide, *, task_status: trio.TaskStatus["StandingBy"] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until drained or cancelled; started when it listens. Raises OSError."""
        async with trio.open_nursery() as background:
            async with trio.open_nursery() as front:
                self.address = await front.start(self._server.serve, self._settings.listen)
                scheme = "http" if self._settings.security.tls is None else "https"
                url = f"{scheme}://{cluster.advertised or self.address}"
                background.start_soon(self.stand, cluster, url)
                if self._network is not None:
                    background.start_soon(self._network.follow, self.change_network)
                task_status.started(self)
            background.cancel_scope.cancel()

    async def stand(self, cluster: ClusterSide, url: str) -> None:
        """Stand by and lead, as who is asked at this URL, until cancelled."""
        self._former = cluster.former
        report = self.environment.report
        candidate = self._candidate = self.front.candidate = Candidate(
            cluster.member, cluster.store, url, self._prepare, self._lead, report, self._off_load
        )
        networks = ComparedNetworks(candidate, cluster.store, lambda: self.environment.topology, report)
        self.front.networks = networks
        async with trio.open_nursery() as nursery:
            nursery.start_soon(networks.run)
            nursery.start_soon(self._look_for_database, candidate)
            await candidate.run()

    async def _look_for_database(self, candidate: Candidate) -> None:
        """Say of a former database that it is not taken, where another host leads."""
        while self._former is not None and not candidate.leads:
            followed = candidate.followed
            if followed is not None:
                if await trio.to_thread.run_sync(self._former.exists):
                    warn_of_database(self._former, f"host {followed.host} leads", self.environment.report)
                return
            await trio.sleep(DATABASE_LOOK_S)

    async def _prepare(self) -> None:
        await warm_up_planner(self.environment.planner, self.environment.report)

    async def _lead(
        self, metadata: ClusterMetadata, *, task_status: trio.TaskStatus[LeadingCoordinator] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See candidate.Lead."""
        stored = await metadata.load()
        if self._former is not None:
            try_with = partial(self._restored, metadata)
            stored = await take_database(self._former, metadata, stored, self.environment.report, try_with)
        environment = self.environment
        coordinator = await self._restored(metadata, stored)
        if self.environment is not environment:
            raise StoreError("the network has changed meanwhile: the state is read again")
        self._coordinator = coordinator
        handlers = RouteHandlers(coordinator, self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(coordinator.journal.run)
                nursery.start_soon(coordinator.run)
                self.front.dispatch = Dispatch(
                    handlers.operations(), self.environment.report, self._clients, self.front.answered
                )
                task_status.started(_Leading(coordinator))
        finally:
            self.front.dispatch = self._coordinator = None

    async def _restored(self, metadata: ClusterMetadata, stored: Mapping[str, str]) -> Coordinator:
        """A coordinator that goes on with these entries, and has stored nothing yet. Raises StartError."""
        journal = MetadataJournal(metadata, self.environment.report)
        coordinator = Coordinator(self.environment, self._settings.coordinator, journal)
        await self._off_load(lambda: coordinator.restore(stored))
        return coordinator

    async def change_network(self, topology: Topology, planner: Planner) -> EventOutcome:
        """Lead with another network from now on; see network_file.Apply."""
        coordinator, outcome = self._coordinator, EventOutcome()
        if coordinator is not None:
            outcome = await coordinator.change_network(topology, planner)
        self.environment = replace(self.environment, topology=topology, planner=planner)
        return outcome

    def look_again(self) -> None:
        """Read the file with the network again soon."""
        if self._network is not None:
            self._network.look_again()

    async def resign(self) -> None:
        """Let another host lead, before an end."""
        if self._candidate is not None:
            await self._candidate.resign()

    async def drain(self, patience_s: float = DRAIN_S) -> None:
        """Let another host lead, accept no more requests, and answer those in work."""
        await self.resign()
        await self._server.drain(patience_s)

    def answered(self) -> Mapping[tuple[str, int], int]:
        """See metrics.Traffic."""
        return self.front.answered

    def connections(self) -> tuple[int, int]:
        """See metrics.Traffic."""
        return self._server.connections, self._server.refused


class _Leading:
    """See LeadingCoordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def stop(self) -> None:
        """See LeadingCoordinator."""
        self._coordinator.stop()

    async def finish(self) -> None:
        """See LeadingCoordinator."""
        self._coordinator.stop()
        with suppress(StoreError):
            await self._coordinator.journal.durable()


async def stand_by(
    environment: CoordinatorEnvironment,
    cluster: ClusterSide,
    settings: ServeSettings,
    network: NetworkFile | None = None,
    *,
    task_status: trio.TaskStatus[StandingBy] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Stand by, and lead when nobody does, until drained or cancelled. `network`: the file of the environment's
    network, which is followed. Raises StartError, OSError.
    """
    settings.security.check(settings.listen)
    await StandingBy(environment, settings, network).run(cluster, task_status=task_status)

"""A coordinator of a cluster, put together: a server for the life of this host, and a coordinator while it leads.

Invariants: a host that has never led has loaded no planner, nor anything that plans (`leading`): a process of its own
has compiled the planner's code before this host may lead, so a takeover needs no more than to load it beside the state.
Where compiled code cannot be kept, this host compiles by itself, before it may lead. Until then it answers as a host
that stands by. The state is read on a thread: this host serves others meanwhile, and holds its lease. Each time that it
leads it begins with the state in the metadata store, and with nothing of the time before. A host that stands by follows
the file of its network as the leader does, so that it leads with the network that the file has by then.
"""

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from logstore.base.addresses import Address
from logstore.base.copy_slots import SlotDesk
from logstore.base.http.server import HttpServer
from logstore.base.metadata.interface import MetadataStore
from scheduler.coordinator.compiling import compile_ahead
from scheduler.coordinator.dispatch import Dispatch, may_wait
from scheduler.coordinator.errors import StoreError
from scheduler.coordinator.front_settings import DRAIN_S, FrontSettings
from scheduler.coordinator.log_events import WARMING
from scheduler.coordinator.metadata.cluster import ClusterMetadata
from scheduler.coordinator.metadata.on_threads import OffLoad, in_a_thread
from scheduler.coordinator.network_file import NetworkFile, NetworkOutcome
from scheduler.coordinator.planners import COMPILED, planner_name
from scheduler.coordinator.standby.candidate import Candidate, CandidateHost, LeadingCoordinator
from scheduler.coordinator.standby.former_database import take_database, warn_of_database
from scheduler.coordinator.standby.front import Front
from scheduler.coordinator.standby.interface import StandbyEnvironment, StandbyPlanning
from scheduler.coordinator.standby.networks import ComparedNetworks
from scheduler.topology import Topology

if TYPE_CHECKING:
    from scheduler.coordinator.standby.leading import LeadingHost
    from scheduler.peace.plan import Planner

LEADING_ROOM: Final = "scheduler.coordinator.standby.leading"
DATABASE_LOOK_S: Final = 1.0
"""Between two looks at who leads, until somebody does."""


class ClusterSide(NamedTuple):
    """What a host has of its cluster. `advertised`: where clients reach its coordinator; None: where it listens.
    `former`: the database of a coordinator that was alone here, if there is one. `slots`: where hosts ask for copies.
    """

    member: CandidateHost
    store: MetadataStore
    advertised: Address | None = None
    former: Path | None = None
    slots: SlotDesk | None = None


class StandingBy:
    """A host that stands by, or leads; it serves on `address`."""

    def __init__(
        self,
        environment: StandbyEnvironment,
        settings: FrontSettings,
        planning: StandbyPlanning,
        network: NetworkFile | None = None,
        off_load: OffLoad = in_a_thread,
    ) -> None:
        self.environment = environment
        self._planning = planning
        self._network = network
        self._off_load = off_load
        self._leading: LeadingHost | None = None
        """While this host leads."""
        self.address = Address("", 0)
        self._settings = settings
        self._clients = settings.security.clients
        self.front = Front(self._clients, self)
        self._candidate: Candidate | None = None
        self._former: Path | None = None
        self._slots: SlotDesk | None = None
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
                if self._settings.security.tokens is not None:
                    background.start_soon(self._settings.security.tokens.follow, self.environment.report)
                if self._network is not None:
                    background.start_soon(self._network.follow, self.change_network)
                task_status.started(self)
            background.cancel_scope.cancel()

    async def stand(self, cluster: ClusterSide, url: str) -> None:
        """Stand by and lead, as who is asked at this URL, until cancelled."""
        self._former, self._slots = cluster.former, cluster.slots
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
        """Have the planner's code compiled, by a process of its own if it can be kept on disk."""
        planner = planner_name(self._planning.planner, self.environment.topology)
        if planner in COMPILED:
            self.environment.report(WARMING, planner=planner)
            if not await compile_ahead(planner):
                await self._ready_planner(self.environment)

    async def _ready_planner(self, environment: StandbyEnvironment) -> "Planner":
        """Load what plans. Raises StartError."""
        await self._off_load(_load_room)
        planner: Planner = await import_module(LEADING_ROOM).ready_planner(environment, self._planning, self._off_load)
        return planner

    async def _lead(
        self, metadata: ClusterMetadata, *, task_status: trio.TaskStatus[LeadingCoordinator] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See candidate.Lead."""
        environment, planners = self.environment, list["Planner"]()

        async def load() -> None:
            planners.append(await self._ready_planner(environment))

        async with trio.open_nursery() as nursery:  # beside each other: a takeover waits for the longer one
            nursery.start_soon(load)
            stored = await metadata.load()
        restored = partial(self._restored, metadata, environment, planners[0])
        if self._former is not None:
            stored = await take_database(self._former, metadata, stored, environment.report, restored)
        leading = await restored(stored)
        if self.environment is not environment:
            raise StoreError("the network has changed meanwhile: the state is read again")
        self._leading = leading
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leading.run)
                self.front.dispatch = Dispatch(
                    leading.operations(self), environment.report, self._clients, self.front.answered
                )
                self._serve_slots(leading)
                task_status.started(leading)
        finally:
            self.front.dispatch = self._leading = None
            self._serve_slots(None)

    def _serve_slots(self, leading: "LeadingHost | None") -> None:
        """Have hosts that copy chunks ask a coordinator that leads, or nobody."""
        desk, candidate = self._slots, self._candidate
        if desk is None or candidate is None:
            return
        if leading is None:
            desk.serve_by(None)
        else:
            desk.serve_by(leading.slot_answers(lambda: candidate.leads, lambda: desk.sure_ms))

    async def _restored(
        self,
        metadata: ClusterMetadata,
        environment: StandbyEnvironment,
        planner: "Planner",
        stored: Mapping[str, str],
    ) -> "LeadingHost":
        """A coordinator that goes on with these entries, and has stored nothing yet. Raises StartError."""
        leading: LeadingHost = import_module(LEADING_ROOM).LeadingHost(environment, planner, self._planning, metadata)
        await self._off_load(lambda: leading.restore(stored))
        return leading

    async def change_network(self, topology: Topology) -> NetworkOutcome:
        """Lead with another network from now on; see network_file.Apply."""
        before, environment = self.environment.topology, self.environment._replace(topology=topology)
        leading, outcome = self._leading, NetworkOutcome()
        if leading is not None:
            outcome = await leading.change_network(environment, self._off_load)
        self.environment = environment
        name = self._planning.planner
        if leading is None and planner_name(name, topology) != planner_name(name, before):
            await self._prepare()
        return outcome

    def look_again(self) -> None:
        """Read the files with the network and with the token again soon."""
        if self._network is not None:
            self._network.look_again()
        if self._settings.security.tokens is not None:
            self._settings.security.tokens.look_again()

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


def _load_room() -> None:
    import_module(LEADING_ROOM)


async def stand_by(
    environment: StandbyEnvironment,
    cluster: ClusterSide,
    settings: FrontSettings,
    network: NetworkFile | None = None,
    *,
    task_status: trio.TaskStatus[StandingBy] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Stand by, and lead when nobody does, until drained or cancelled. `network`: the file of the environment's
    network, which is followed. Raises StartError, OSError.
    """
    settings.security.check(settings.listen)
    standing = StandingBy(environment, settings, StandbyPlanning(), network)
    await standing.run(cluster, task_status=task_status)

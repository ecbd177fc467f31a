"""What a host of a cluster needs to lead, and does not load while it stands by: planner, coordinator and handlers.

Invariants: it is loaded by name, on a thread. All code of the planner is compiled before a coordinator is made.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import trio

from scheduler.coordinator import metrics
from scheduler.coordinator.dispatch import Operation
from scheduler.coordinator.errors import StartError, StoreError
from scheduler.coordinator.handlers import RouteHandlers
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.metadata.interface import Metadata
from scheduler.coordinator.metadata.on_threads import OffLoad
from scheduler.coordinator.network_file import NetworkOutcome
from scheduler.coordinator.network_moves import move_network
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.service import Coordinator, CoordinatorEnvironment, CoordinatorSettings
from scheduler.coordinator.standby.interface import MAX_REMEMBERED, StandbyEnvironment, StandbyPlanning
from scheduler.coordinator.standby.slot_answers import SlotAnswers
from scheduler.coordinator.warm_up import warm_up_planner
from scheduler.errors import TopologyError
from scheduler.peace.plan import Planner


async def ready_planner(environment: StandbyEnvironment, planning: StandbyPlanning, off_load: OffLoad) -> Planner:
    """A planner of the network, with its code compiled. Raises StartError."""
    made: list[Planner] = []
    try:
        await off_load(lambda: made.append(make_planner(planning.planner, environment.topology)))
    except TopologyError as error:
        raise StartError(str(error)) from error
    await warm_up_planner(made[0], environment.report)
    return made[0]


class LeadingHost:
    """See LeadingCoordinator: a coordinator, and what answers its clients."""

    def __init__(
        self, environment: StandbyEnvironment, planner: Planner, planning: StandbyPlanning, metadata: Metadata
    ) -> None:
        settings = planning.settings or CoordinatorSettings()
        remembered = min(settings.max_remembered, MAX_REMEMBERED)
        topology, clock, random, report = environment
        self._planning = planning
        self._coordinator = Coordinator(
            CoordinatorEnvironment(topology, planner, clock, random, report),
            replace(settings, max_remembered=remembered),
            MetadataJournal(metadata, report),
        )

    def restore(self, stored: Mapping[str, str]) -> None:
        """Go on with what is stored. Raises StartError."""
        self._coordinator.restore(stored)

    def operations(self, traffic: metrics.Traffic) -> Mapping[str, Operation]:
        """What answers each request, by the name of its operation."""
        return RouteHandlers(self._coordinator, traffic).operations()

    def slot_answers(self, leads: Callable[[], bool], sure_ms: Callable[[], int]) -> SlotAnswers:
        """What hosts that copy chunks are answered; see SlotAnswers."""
        return SlotAnswers(self._coordinator, leads, sure_ms)

    async def run(self) -> None:
        """Coordinate until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._coordinator.journal.run)
            nursery.start_soon(self._coordinator.run)

    async def change_network(self, environment: StandbyEnvironment, off_load: OffLoad) -> NetworkOutcome:
        """Go on with this network. Raises TopologyError, StoreError, PlanNotMoved."""
        return await move_network(self._coordinator, self._planning.planner, environment.topology, off_load)

    def stop(self) -> None:
        """See LeadingCoordinator."""
        self._coordinator.stop()

    async def finish(self) -> None:
        """See LeadingCoordinator."""
        self._coordinator.stop()
        await trio.sleep(self._coordinator.copy_slots.left_ms / 1000)  # whoever leads next knows of no slot
        with suppress(StoreError):
            await self._coordinator.journal.durable()

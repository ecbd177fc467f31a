"""How a coordinator that plans goes on with another network.

Invariant: the planner of the new network is made, and its code compiled, before the plan moves.
"""

from scheduler.coordinator.metadata.on_threads import OffLoad, in_a_thread
from scheduler.coordinator.network_file import NetworkOutcome
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.service import Coordinator
from scheduler.coordinator.warm_up import warm_up_planner
from scheduler.peace.plan import Planner
from scheduler.topology import Topology


async def move_network(
    coordinator: Coordinator, planner: str | None, topology: Topology, off_load: OffLoad = in_a_thread
) -> NetworkOutcome:
    """Go on with this network, planned as `planner_name` says. Raises TopologyError, StoreError, PlanNotMoved."""
    made: list[Planner] = []
    await off_load(lambda: made.append(make_planner(planner, topology)))
    environment = coordinator.environment
    if type(made[0]) is not type(environment.planner):
        await warm_up_planner(made[0], environment.report)
    outcome = await coordinator.change_network(topology, made[0])
    return NetworkOutcome(len(outcome.revoked), len(outcome.given_up))

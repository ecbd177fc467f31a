"""A coordinator inside a sidecar that is no host of a cluster: it plans from the start.

`embedded` loads this module by name.
"""

from pathlib import Path

import trio

from scheduler.coordinator.front_settings import FrontSettings
from scheduler.coordinator.network_file import NetworkFile
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.running import RunningCoordinator, ServeSettings, opened, serve
from scheduler.coordinator.service import CoordinatorEnvironment
from scheduler.coordinator.standby.interface import StandbyEnvironment


async def serve_alone(
    environment: StandbyEnvironment,
    front: FrontSettings,
    network: NetworkFile,
    data_dir: Path,
    *,
    task_status: trio.TaskStatus[RunningCoordinator],
) -> None:
    """Serve until drained or cancelled; reports what runs. Raises CairnError, OSError."""
    topology, clock, random, report = environment
    planner = await trio.to_thread.run_sync(make_planner, None, topology)
    with opened(data_dir) as metadata:
        await serve(
            CoordinatorEnvironment(topology, planner, clock, random, report),
            metadata,
            ServeSettings(front.listen, http=front.http, security=front.security),
            network,
            task_status=task_status,
        )

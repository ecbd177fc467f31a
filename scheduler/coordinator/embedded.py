"""A coordinator inside another program's event loop: a sidecar's, on a single host.

The sidecar imports this module only if its settings ask for a coordinator; it uses `start`, `Refused`, and the result's
`address` and `drain`.

Invariant: the coordinator has neither TLS nor a token, so it listens on loopback unless `insecure`.
"""

from pathlib import Path
from random import Random, SystemRandom

import trio

from logstore.base.addresses import parse_address
from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.system import SystemClock
from scheduler.coordinator.running import RunningCoordinator, Security, ServeSettings, make_planner, opened, serve
from scheduler.coordinator.service import CoordinatorEnvironment
from scheduler.topology.description import load_topology

Refused = CairnError
"""What `start` raises besides OSError: one clear line says what to change."""


async def start(
    topology: Path,
    listen: str,
    data_dir: Path,
    report: Report,
    *,
    insecure: bool = False,
    task_status: trio.TaskStatus[RunningCoordinator] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until drained or cancelled; reports what runs. Raises Refused, OSError."""
    settings = ServeSettings(parse_address(listen), security=Security(insecure=insecure))
    settings.security.check(settings.listen)
    network = await trio.to_thread.run_sync(load_topology, topology)
    planner = await trio.to_thread.run_sync(make_planner, None, network)
    random = Random(SystemRandom().getrandbits(64))  # noqa: S311  the seed is random
    environment = CoordinatorEnvironment(network, planner, SystemClock(), random, report)
    with opened(data_dir) as metadata:
        await serve(environment, metadata, settings, task_status=task_status)

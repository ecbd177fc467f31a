"""A coordinator inside another program's event loop, a sidecar's: on a host alone, or in a cluster.

The sidecar imports this module only if its settings ask for a coordinator; it uses `start` on a host alone,
`stand_by_in` with `ClusterSide` and `DATABASE` in a cluster, `Access`, `Refused`, and the result's `address`,
`look_again`, `resign` and `drain`.

Invariant: without TLS, and a token or certificates of its clients, it listens on loopback unless `insecure`.
"""

from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import NamedTuple

import trio

from logstore.base.addresses import Address
from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.system import SystemClock
from logstore.base.tls import ServerTls
from scheduler.coordinator.network_file import NetworkFile
from scheduler.coordinator.running import DATABASE as DATABASE
from scheduler.coordinator.running import (
    RunningCoordinator,
    Security,
    ServeSettings,
    make_planner,
    opened,
    read_token,
    serve,
)
from scheduler.coordinator.service import CoordinatorEnvironment
from scheduler.coordinator.standby.running import ClusterSide, StandingBy, stand_by

Refused = CairnError
"""What `start` and `stand_by_in` raise besides OSError: one clear line says what to change."""


class Access(NamedTuple):
    """Who may talk to it: see `running.Security`."""

    token_file: Path | None = None
    tls: ServerTls | None = None
    """The sidecar's, which keeps it as new as its files."""
    insecure: bool = False


async def start(
    topology: Path,
    listen: Address,
    data_dir: Path,
    report: Report,
    access: Access,
    *,
    task_status: trio.TaskStatus[RunningCoordinator] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until drained or cancelled; reports what runs. Raises Refused, OSError."""
    environment, settings, network = await _prepare(topology, listen, report, access)
    with opened(data_dir) as metadata:
        await serve(environment, metadata, settings, network, task_status=task_status)


async def stand_by_in(
    cluster: ClusterSide,
    topology: Path,
    listen: Address,
    report: Report,
    access: Access,
    *,
    task_status: trio.TaskStatus[StandingBy] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Stand by in a cluster, and lead when no other host does, until drained or cancelled; reports what runs.

    Raises Refused, OSError.
    """
    environment, settings, network = await _prepare(topology, listen, report, access)
    await stand_by(environment, cluster, settings, network, task_status=task_status)


async def _prepare(
    topology: Path, listen: Address, report: Report, access: Access
) -> tuple[CoordinatorEnvironment, ServeSettings, NetworkFile]:
    """Raises Refused, OSError."""
    token = None if access.token_file is None else read_token(access.token_file)
    settings = ServeSettings(listen, security=Security(token, access.tls, access.insecure))
    settings.security.check(settings.listen)
    network = NetworkFile(topology, partial(make_planner, None), report)
    first = await trio.to_thread.run_sync(network.read)
    random = Random(SystemRandom().getrandbits(64))  # noqa: S311  the seed is random
    environment = CoordinatorEnvironment(first.topology, first.planner, SystemClock(), random, report)
    return environment, settings, network

"""A coordinator inside another program's event loop, a sidecar's: on a host alone, or in a cluster.

The sidecar imports this module only if its settings ask for a coordinator; it uses `start` on a host alone,
`stand_by_in` with `ClusterSide` and `DATABASE` in a cluster, `Access`, `Refused`, and the result's `address`,
`look_again`, `resign` and `drain`.

Invariants: without TLS, and a token or certificates of its clients, it listens on loopback unless `insecure`. A host
that stands by has loaded nothing that plans; where a package is missing that plans, this module cannot be imported.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from logstore.base.addresses import Address
from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.system import SystemClock
from logstore.base.tls import ServerTls
from scheduler.coordinator.front_settings import DATABASE as DATABASE
from scheduler.coordinator.front_settings import FrontSettings, Security
from scheduler.coordinator.network_file import NetworkFile
from scheduler.coordinator.standby.interface import StandbyEnvironment
from scheduler.coordinator.standby.running import ClusterSide, StandingBy, stand_by
from scheduler.coordinator.tokens import AcceptedTokens

if TYPE_CHECKING:
    from scheduler.coordinator.running import RunningCoordinator

ALONE_ROOM: Final = "scheduler.coordinator.embedded_alone"
for _package in ("numpy", "numba"):
    if find_spec(_package) is None:  # a host that stands by loads it when it leads, and shall not miss it then
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)
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
    task_status: trio.TaskStatus["RunningCoordinator"] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until drained or cancelled; reports what runs. Raises Refused, OSError."""
    environment, settings, network = await _prepare(topology, listen, report, access)
    room: Any = import_module(ALONE_ROOM)
    await room.serve_alone(environment, settings, network, data_dir, task_status=task_status)


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
) -> tuple[StandbyEnvironment, FrontSettings, NetworkFile]:
    """Raises Refused, OSError."""
    token = None if access.token_file is None else AcceptedTokens(access.token_file)
    settings = FrontSettings(listen, security=Security(token, access.tls, access.insecure))
    settings.security.check(settings.listen)
    network = NetworkFile(topology, report)
    first = await trio.to_thread.run_sync(network.read)
    random = Random(SystemRandom().getrandbits(64))  # noqa: S311  the seed is random
    return StandbyEnvironment(first, SystemClock(), random, report), settings, network

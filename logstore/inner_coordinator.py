"""The coordinator inside a sidecar, if its settings ask for one: with a database on a host alone; in a cluster one of
those that stand by for each other.

Invariant: nothing of it is loaded by a sidecar without `--coordinate`.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import trio

from logstore.base.addresses import Address, is_loopback, parse_address
from logstore.base.events import Report
from logstore.base.failures import leaves
from logstore.base.packages import how_to_get
from logstore.base.tls import ServerTls
from logstore.cluster.part import ClusterPart
from logstore.config import CoordinatorConfig, SidecarConfig
from logstore.errors import ConfigError
from logstore.refusals import COORDINATOR_DIRECTORY

ROOM: Final = "scheduler.coordinator.embedded"
"""Loaded only where a coordinator is wanted: it needs more than a sidecar does."""
EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - names what is refused


async def start_coordinator(
    settings: SidecarConfig,
    report: Report,
    tls: ServerTls | None,
    cluster: ClusterPart | None,
    nursery: trio.Nursery,
) -> Sequence[Any]:
    """The coordinator, once it serves, if one is wanted: its `address`, `resign` and `drain`. Raises ConfigError."""
    wanted = settings.coordinator
    if not wanted.topology:
        return ()
    room = _room()
    access = room.Access(
        Path(wanted.token_file) if wanted.token_file else None,
        tls if wanted.listen.is_encrypted else None,
        wanted.insecure,
    )
    topology, listen = Path(wanted.topology), wanted.listen.address

    async def run(*, task_status: trio.TaskStatus[Any]) -> None:
        try:
            if cluster is None or settings.cluster is None:
                directory = settings.data_dir / COORDINATOR_DIRECTORY
                await room.start(topology, listen, directory, report, access, task_status=task_status)
            else:
                side = _side(room, wanted, cluster, settings.cluster.listen)
                await room.stand_by_in(side, topology, listen, report, access, task_status=task_status)
        except* room.Refused as refusals:
            raise ConfigError("; ".join(str(refusal) for refusal in leaves(refusals))) from refusals

    return [await nursery.start(run)]


def _side(room: Any, wanted: CoordinatorConfig, cluster: ClusterPart, peers: Address) -> Any:
    """What the coordinator has of the cluster, whose hosts reach this one at `peers`. Raises ConfigError."""
    told = parse_address(wanted.advertise) if wanted.advertise else None
    host = wanted.listen.address.host
    if told is None and (host in EVERYWHERE or (is_loopback(host) and not is_loopback(peers.host))):
        raise ConfigError(
            f"coordinator={wanted.listen.address}: other hosts cannot send clients there: give --coordinator-advertise "
            "HOST:PORT, or have --coordinator listen where clients reach it"
        )
    return room.ClusterSide(cluster.member, cluster.metadata, told)


def _room() -> Any:
    try:
        return import_module(ROOM)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--coordinate needs {how_to_get(error.name, 'scheduler')}, or leave it out") from error

"""The coordinator inside a sidecar, if its settings ask for one: with a database on a host alone; in a cluster one of
those that stand by for each other.

Invariant: nothing of it is loaded by a sidecar without `--coordinate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from logstore.base.addresses import ANY_ADDRESS, Address, is_loopback, parse_address
from logstore.base.errors import AddressError
from logstore.base.events import Report
from logstore.base.failures import leaves
from logstore.base.packages import how_to_get
from logstore.base.tls import ServerTls
from logstore.config import SidecarConfig
from logstore.errors import ConfigError
from logstore.refusals import COORDINATOR_DIRECTORY

if TYPE_CHECKING:
    from logstore.cluster.part import ClusterPart

ROOM: Final = "scheduler.coordinator.embedded"
"""Loaded only where a coordinator is wanted: it needs more than a sidecar does."""


def told_address(settings: SidecarConfig) -> Address | None:
    """Where clients are told that the coordinator of a host of a cluster is; None: where it listens. Raises ConfigError
    if no host could send them there.
    """
    wanted = settings.coordinator
    try:
        told = parse_address(wanted.advertise) if wanted.advertise else None
    except AddressError as error:
        raise ConfigError(f"coordinator-advertise: {error}") from error
    if settings.cluster is None or not wanted.topology or told is not None:
        return told
    host, peers = wanted.listen.address.host, settings.cluster.advertise or settings.cluster.listen
    if host in ANY_ADDRESS or (is_loopback(host) and not is_loopback(peers.host)):
        raise ConfigError(
            f"coordinator={wanted.listen.address}: clients are redirected there by the other hosts of the cluster, but "
            "it cannot be reached from them: give --coordinator-advertise HOST:PORT, or a reachable --coordinator"
        )
    return None


async def start_coordinator(
    settings: SidecarConfig,
    report: Report,
    tls: ServerTls | None,
    cluster: ClusterPart | None,
    nursery: trio.Nursery,
) -> Sequence[Any]:
    """The coordinator, once it serves, if one is wanted: its `address`, `look_again`, `resign` and `drain`.

    Raises ConfigError.
    """
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
            directory = settings.data_dir / COORDINATOR_DIRECTORY
            if cluster is None or settings.cluster is None:
                await room.start(topology, listen, directory, report, access, task_status=task_status)
            else:
                told, former = told_address(settings), directory / room.DATABASE
                side = room.ClusterSide(cluster.member, cluster.metadata, told, former, cluster.slots)
                await room.stand_by_in(side, topology, listen, report, access, task_status=task_status)
        except* room.Refused as refusals:
            raise ConfigError("; ".join(str(refusal) for refusal in leaves(refusals))) from refusals

    return [await nursery.start(run)]


def _room() -> Any:
    try:
        return import_module(ROOM)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--coordinate needs {how_to_get(error.name, 'scheduler')}, or leave it out") from error

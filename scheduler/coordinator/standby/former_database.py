"""The database of a coordinator that was alone, taken into the state of a cluster by its host, when that leads first.

Invariants:
* Units of which the cluster has a checkpoint stay as the cluster has them; so does everything else that it plans. Only
  a cluster without any state gets requests and hosts too: of two plans the chunks under way may not fit together.
* The database has another name once everything of it is stored, so it is taken once; until then it is taken again.
* Nothing is stored with which no coordinator could go on: no host could lead then, nor take it out again.
* A file that cannot be read or renamed keeps this host from leading, and no other one.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import trio

from logstore.base.directory import sync_directory
from logstore.base.events import Report
from scheduler.coordinator.checkpoints.registry import CHECKPOINTS
from scheduler.coordinator.errors import StartError, StoreError
from scheduler.coordinator.log_events import COORDINATOR_DATABASE_TAKEN
from scheduler.coordinator.metadata.cluster import ClusterMetadata
from scheduler.coordinator.metadata.interface import SetValue
from scheduler.coordinator.metadata.sqlite import SqliteMetadata

TAKEN: Final = ".taken"
"""What the name of a database that was taken ends in."""
WITHOUT_IT: Final = "put it right, or move it away, and this host leads without it"
Try = Callable[[Mapping[str, str]], Awaitable[object]]
"""Tries whether a coordinator goes on with these entries. Raises StartError."""


async def take_database(
    path: Path, metadata: ClusterMetadata, stored: Mapping[str, str], report: Report, try_with: Try
) -> Mapping[str, str]:
    """Store what a database has and the cluster lacks; returns all that is stored then. Nothing, if there is none.

    Raises StartError, StoreError.
    """
    try:
        found = await trio.to_thread.run_sync(_read, path)
    except (StoreError, OSError) as error:
        raise StartError(f"{path} cannot be read ({error}): {WITHOUT_IT}") from error
    if found is None:
        return stored
    units = {_unit(key) for key in stored if key.startswith(CHECKPOINTS)}
    fresh = {
        key: text
        for key, text in found.items()
        if not stored or (key.startswith(CHECKPOINTS) and _unit(key) not in units)
    }
    size_bytes = sum(len(key) + len(text) for key, text in fresh.items())
    if size_bytes > metadata.left_bytes:
        raise StartError(
            f"{path} has {size_bytes} bytes, and {metadata.left_bytes:.0f} more are taken: remove old checkpoints, or "
            "move it away"
        )
    try:
        await try_with({**stored, **fresh})
    except StartError as error:
        raise StartError(f"{path} does not fit into the state of the cluster ({error}): {WITHOUT_IT}") from error
    await metadata.apply([SetValue(key, text) for key, text in fresh.items()])
    try:
        await trio.to_thread.run_sync(_rename, path)
    except OSError as error:
        raise StartError(f"{path} was taken, and cannot be renamed ({error}): {WITHOUT_IT}") from error
    report(COORDINATOR_DATABASE_TAKEN, file=path, entries=len(fresh), left_out=len(found) - len(fresh))
    return {**stored, **fresh}


def _read(path: Path) -> Mapping[str, str] | None:
    if not path.exists():
        return None
    with closing(SqliteMetadata(path)) as database:
        return database.load()


def _rename(path: Path) -> None:
    path.rename(f"{path}{TAKEN}")
    sync_directory(path.parent)


def _unit(key: str) -> str:
    return key.removeprefix(CHECKPOINTS).partition("/")[0]

"""The database of a coordinator that was alone, taken into the state of a cluster by its host, when that leads.

Invariants:
* Only a cluster without any state gets it: of two plans the chunks under way may not fit together, and a checkpoint
  that the cluster has removed, or never had, must not be recovered from.
* It is taken once: what is stored of it has a mark, by which it is known if its host ends before it has another name.
* A database that is not taken stays as it is, and is named in a warning with what to do.
* Nothing is stored with which no coordinator could go on: no host could lead then, nor take it out again.
* A file that the cluster wants and that cannot be read keeps this host from leading, and no other one.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import trio

from logstore.base.directory import sync_directory
from logstore.base.events import Report
from scheduler.coordinator.errors import StartError, StoreError
from scheduler.coordinator.log_events import COORDINATOR_DATABASE_LEFT, COORDINATOR_DATABASE_TAKEN
from scheduler.coordinator.metadata.cluster import ClusterMetadata
from scheduler.coordinator.metadata.interface import SetValue
from scheduler.coordinator.metadata.sqlite import SqliteMetadata

TAKEN: Final = ".taken"
"""What the name of a database that was taken ends in."""
MARKS: Final = "former/"
"""In front of the fingerprint of a database that was taken, among the keys of the state."""
WITHOUT_IT: Final = "put it right, or move it away, and this host leads without it"
WHAT_TO_DO: Final = (
    "register checkpoints that the cluster lacks with `cairn checkpoints register`, and move the file away"
)
Try = Callable[[Mapping[str, str]], Awaitable[object]]
"""Tries whether a coordinator goes on with these entries. Raises StartError."""


class _FoundDatabase(NamedTuple):
    entries: Mapping[str, str]
    mark: str
    """The key that the state has when the database was taken."""


async def take_database(
    path: Path, metadata: ClusterMetadata, stored: Mapping[str, str], report: Report, try_with: Try
) -> Mapping[str, str]:
    """Store what a database has, if the cluster has no state; returns all that is stored then.

    Raises StartError, StoreError.
    """
    if not await trio.to_thread.run_sync(path.exists):
        return stored
    has_state = any(not key.startswith(MARKS) for key in stored)
    try:
        found = await trio.to_thread.run_sync(_read, path)
    except (StoreError, StartError, OSError) as error:
        if not has_state:
            raise StartError(f"{path} cannot be read ({error}): {WITHOUT_IT}") from error
        warn_of_database(path, f"the cluster has a state of its own, and the file cannot be read ({error})", report)
        return stored
    entries = found.entries
    if found.mark in stored:
        await _put_aside(path, len(entries), report)  # it was taken, and this host ended before it was renamed
        return stored
    if has_state:
        warn_of_database(path, "the cluster has a state of its own", report)
        return stored
    size_bytes = sum(len(key) + len(text) for key, text in entries.items())
    if size_bytes > metadata.left_bytes:
        raise StartError(
            f"{path} has {size_bytes} bytes, and {metadata.left_bytes:.0f} more are taken: remove old checkpoints, or "
            "move it away"
        )
    try:
        await try_with(entries)
    except StartError as error:
        raise StartError(f"{path} does not fit into the state of the cluster ({error}): {WITHOUT_IT}") from error
    taken = {**entries, found.mark: path.name}
    await metadata.apply([SetValue(key, text) for key, text in taken.items()])
    await _put_aside(path, len(entries), report)
    return {**stored, **taken}


def warn_of_database(path: Path, why: str, report: Report) -> None:
    """Say that a database is not taken."""
    report(COORDINATOR_DATABASE_LEFT, file=path, why=why, advice=WHAT_TO_DO)


def _read(path: Path) -> _FoundDatabase:
    with closing(SqliteMetadata(path)) as database:
        entries = database.load()
    text = json.dumps(sorted(entries.items()), ensure_ascii=True)
    return _FoundDatabase(entries, MARKS + sha256(text.encode("ascii")).hexdigest())


async def _put_aside(path: Path, entries: int, report: Report) -> None:
    """Give the file of a database that was taken another name; it is not taken again without it either."""
    report(COORDINATOR_DATABASE_TAKEN, file=path, entries=entries)
    try:
        await trio.to_thread.run_sync(_rename, path)
    except OSError as error:
        report(
            COORDINATOR_DATABASE_LEFT,
            file=path,
            why=f"it was taken, and cannot be renamed ({error})",
            advice="move the file away",
        )


def _rename(path: Path) -> None:
    path.rename(f"{path}{TAKEN}")
    sync_directory(path.parent)

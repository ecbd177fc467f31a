"""Rebuilds a query's checkpoint from the log, if the checkpoint is lost, older than the log, or contradicts it.

The log notes the input of each epoch. From the note of the last epoch follow the files that Spark needs to continue
with the next batch: `metadata`, `offsets/N`, `commits/N`, the sources' notes of their first offsets, and `offsets/N-1`,
without which Spark does not start.

Invariants:
* Before the first change it is certain that the log has all that is needed, and that the directory belongs to this
  query or to none.
* No file of Spark's is deleted. A file that contradicts the log, or that has lost its content (Spark does not sync its
  files; a power cut leaves them empty), is moved to `replaced/K` below the checkpoint.
* Files and folders are synced in an order that lets an interrupted command be repeated.
* The state of Spark's own stateful operators (`state`) and the file lists of a file source are not in the log. They are
  used if they exist; a checkpoint that needs missing ones is refused.

Source: Spark's MicroBatchExecution.populateStartOffsets, OffsetSeqLog and CommitLog; docs/decisions/0016.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from logstore.client.blocking import Client
from logstore.errors import CorruptBatch, UnknownFormatVersion
from spe_adapter.epochs.client import describe
from spe_adapter.errors import CheckpointRefused
from spe_adapter.spark_checkpoint.files import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    LocalCheckpoint,
    file_list,
    local_path,
    query_of,
)
from spe_adapter.spark_checkpoint.planned import Planned, file_lists, lists_digest, offsets_digest, settings_of

_REPLACED: Final = "replaced"


class Rebuilt(NamedTuple):
    """The result: the last batch of the rebuilt checkpoint, the files written, and the files moved away."""

    batch: int
    written: tuple[str, ...]
    replaced: tuple[str, ...]


def planned_in_log(client: Client, query: str) -> Planned:
    """The input of the last batch that a query has committed. Raises CheckpointRefused if the log has no note of it."""
    known = describe(client, query)
    if known.last_epoch is None:
        raise CheckpointRefused(
            f"query {query} has committed nothing at {client.where}, so no checkpoint can be built; "
            "`cairn checkpoint show TOPIC` lists the queries that wrote into a topic"
        )
    planned = planned_of_positions(known.positions)
    if planned is None:
        raise CheckpointRefused(
            f"query {query}: the log does not record the input of its last epoch, {known.last_epoch}: it was "
            "written by a version of Cairn that did not record it, or Spark's checkpoint could not be read then (see "
            'docs/spark.md, "When the checkpoint and the log differ")'
        )
    return planned


def planned_of_positions(positions: str) -> Planned | None:
    """The planned input in the positions of an epoch; None if they hold none. Raises CorruptBatch."""
    if not positions:
        return None
    try:
        value = json.loads(positions)
    except (ValueError, RecursionError) as error:
        raise CorruptBatch(f"positions {positions[:80]!r} are not JSON") from error
    noted = value.get("input") if isinstance(value, dict) else None
    return None if noted is None else Planned.from_fields(noted)


def rebuild(directory: str | Path, query: str, planned: Planned) -> Rebuilt:
    """Rebuild the checkpoint in a directory of this machine, with `planned` as the query's last batch, committed.

    The query must not run. Raises CheckpointRefused before anything is changed.
    """
    root = local_path(str(directory))
    checkpoint = LocalCheckpoint(root)
    owner = query_of(checkpoint)
    if owner is not None and owner != query:
        raise CheckpointRefused(
            f"{root} is the checkpoint of query {owner}, not of {query}; name another directory, which may be empty"
        )
    if planned.offsets is None:
        raise CheckpointRefused(
            f"query {query}: the offsets of batch {planned.batch} were too long to be recorded in the log; restore a "
            "copy of its checkpoint"
        )
    _check_file_lists(checkpoint, planned, query)
    wanted = _files(checkpoint, query, planned)
    replaced = _move_away(root, planned.batch, wanted)
    written = [name for name, text in wanted.items() if _write(root / name, text)]
    return Rebuilt(planned.batch, tuple(written), tuple(replaced))


def _files(checkpoint: LocalCheckpoint, query: str, planned: Planned) -> dict[str, str]:
    """The text of each file to write, by name, in the order of writing."""
    batch = planned.batch
    noted = {f"{SOURCES}/{name}": text for name, text in planned.notes.items()}
    wanted = {name: text for name, text in noted.items() if checkpoint.read(name) != text}
    if query_of(checkpoint) is None:
        wanted[METADATA] = json.dumps({"id": query}, separators=(",", ":"))
    settings = _settings(checkpoint, batch)
    if batch:
        before = _digest_in(checkpoint, batch - 1)
        # Spark requires the file, but does not use it once batch N is committed; so it gets the end of batch N.
        if before not in (planned.start, planned.end):
            wanted[f"{OFFSETS}/{batch - 1}"] = planned.offsets_text(settings)
    if _digest_in(checkpoint, batch) != planned.end:
        wanted[f"{OFFSETS}/{batch}"] = planned.offsets_text(settings)
    if not _is_committed(checkpoint, batch) or f"{OFFSETS}/{batch}" in wanted:
        watermark_ms = json.loads(planned.metadata).get("batchWatermarkMs", 0)
        wanted[f"{COMMITS}/{batch}"] = "v1\n" + json.dumps({"nextBatchWatermarkMs": watermark_ms})
    return wanted


def _digest_in(checkpoint: LocalCheckpoint, batch: int) -> str | None:
    """The digest of a batch's offsets; None if the file is missing or damaged."""
    text = checkpoint.read(f"{OFFSETS}/{batch}")
    if text is None or settings_of(text) is None:
        return None
    with suppress(UnknownFormatVersion):
        return offsets_digest(text)
    return None


def _is_committed(checkpoint: LocalCheckpoint, batch: int) -> bool:
    """Whether the checkpoint has an undamaged file `commits/N` of a batch."""
    version, _, content = (checkpoint.read(f"{COMMITS}/{batch}") or "").partition("\n")
    try:
        return version.startswith("v") and isinstance(json.loads(content), dict)
    except ValueError:
        return False


def _settings(checkpoint: LocalCheckpoint, batch: int) -> object:
    """Spark's settings in the newest readable file of offsets, with which Spark made the state that exists."""
    numbers = [int(name) for name in checkpoint.names(OFFSETS) if name.isdigit() and int(name) <= batch]
    for number in sorted(numbers, reverse=True):
        text = checkpoint.read(f"{OFFSETS}/{number}")
        found = None if text is None else settings_of(text)
        if found is not None:
            return found
    return {}


def _check_file_lists(checkpoint: LocalCheckpoint, planned: Planned, query: str) -> None:
    """Raise CheckpointRefused if a file list of a file source is missing: the offsets hold only its number."""
    lists = file_lists(planned.offsets or ())
    texts = [file_list(checkpoint, source, number) for source, number in lists]
    if any(text is None for text in texts) or (texts and lists_digest([text or "" for text in texts]) != planned.files):
        names = ", ".join(f"{SOURCES}/{source}/{number}" for source, number in lists)
        raise CheckpointRefused(
            f"query {query} reads files, and the list of files it has read is only in its checkpoint: {names} in "
            f"{checkpoint.root} is missing or lists other files than batch {planned.batch} had. Restore a copy of "
            "the checkpoint that has it"
        )


def _move_away(root: Path, batch: int, wanted: Mapping[str, str]) -> list[str]:
    """Move the files of later batches and the files to be rewritten into a folder below `replaced`; their names."""
    contradicted = [name for name in wanted if (root / name).exists()]
    for folder in (COMMITS, OFFSETS):
        found = [name for name in LocalCheckpoint(root).names(folder) if name.isdigit() and int(name) > batch]
        contradicted += [f"{folder}/{name}" for name in sorted(found, key=int, reverse=True)]
    if not contradicted:
        return []
    number = sum(1 for _ in (root / _REPLACED).iterdir()) if (root / _REPLACED).exists() else 0
    target = root / _REPLACED / str(number)
    for name in contradicted:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (root / name).rename(place)
        _sync(place.parent)
        _sync((root / name).parent)
    for made in (target, target.parent, root):
        _sync(made)
    return contradicted


def _write(path: Path, text: str) -> bool:
    """Write a file durably, unless it exists; whether it was written. Removes Spark's checksum of a former file."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    fresh = path.with_name(f".{path.name}.rebuilt")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    _sync(path.parent)
    _sync(path.parent.parent)
    return True


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

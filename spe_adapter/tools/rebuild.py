"""The rebuilding of a query's checkpoint from the log: for a checkpoint that is lost, lags behind, or differs.

The log notes with each epoch what its input was. The note of the last epoch gives the files that Spark needs to go on
with the next batch: `metadata`, `offsets/N`, `commits/N`, the sources' notes of where they began, and `offsets/N-1`,
without which Spark does not start.

Invariants:
* Nothing is changed before it is certain that the log says enough and that the directory is this query's, or nobody's.
* Nothing of Spark's is deleted: what the log contradicts is moved to `replaced/K` below the checkpoint, and so is a
  file that has lost its content (Spark does not sync them; a power cut leaves them empty).
* Files are synced, and so are their folders, in an order in which a command that is cut short can be given again.
* What Spark's own stateful operators keep (`state`), and the lists of files of a file source, are not in the log: they
  are used if they are there, and a checkpoint that would need those that are not is refused.

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
from spe_adapter.checkpoint.files import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    LocalCheckpoint,
    file_list,
    local_path,
    query_of,
)
from spe_adapter.checkpoint.planned import Planned, file_lists, lists_digest, offsets_digest, settings_of
from spe_adapter.epochs.client import describe
from spe_adapter.errors import CheckpointRefused

_REPLACED: Final = "replaced"


class Rebuilt(NamedTuple):
    """The result: the last batch that counts now, files that were written, and files that were moved away."""

    batch: int
    written: tuple[str, ...]
    replaced: tuple[str, ...]


def planned_in_log(client: Client, query: str) -> Planned:
    """The input of the last batch that a query has committed. Raises CheckpointRefused if the log does not say."""
    known = describe(client, query)
    if known.last_epoch is None:
        raise CheckpointRefused(
            f"query {query} has committed nothing at {client.where}: there is nothing to make a checkpoint of; "
            "`cairn checkpoint show TOPIC` lists the queries that wrote into a topic"
        )
    planned = planned_of_positions(known.positions)
    if planned is None:
        raise CheckpointRefused(
            f"query {query}: the log does not say what the input of its last epoch, {known.last_epoch}, was: it was "
            "written by a version of Cairn that did not note it, or Spark's checkpoint could not be read then (see "
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
    """Make the checkpoint in a directory of this machine say that `planned` is the query's last batch, and is done.

    The query must not run. Raises CheckpointRefused; then nothing was changed.
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
            f"query {query}: the offsets of batch {planned.batch} were too long to be noted in the log; bring back a "
            "copy of its checkpoint"
        )
    _check_file_lists(checkpoint, planned, query)
    wanted = _files(checkpoint, query, planned)
    replaced = _move_away(root, planned.batch, wanted)
    written = [name for name, text in wanted.items() if _write(root / name, text)]
    return Rebuilt(planned.batch, tuple(written), tuple(replaced))


def _files(checkpoint: LocalCheckpoint, query: str, planned: Planned) -> dict[str, str]:
    """The files that have to be written, by name, in the order of writing."""
    batch = planned.batch
    noted = {f"{SOURCES}/{name}": text for name, text in planned.notes.items()}
    wanted = {name: text for name, text in noted.items() if checkpoint.read(name) != text}
    if query_of(checkpoint) is None:
        wanted[METADATA] = json.dumps({"id": query}, separators=(",", ":"))
    settings = _settings(checkpoint, batch)
    if batch:
        before = _digest_in(checkpoint, batch - 1)
        # Spark wants the file, and takes nothing from it once batch N is committed: N's end stands in.
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
    """Whether the checkpoint has Spark's note that a batch is done, undamaged."""
    version, _, content = (checkpoint.read(f"{COMMITS}/{batch}") or "").partition("\n")
    try:
        return version.startswith("v") and isinstance(json.loads(content), dict)
    except ValueError:
        return False


def _settings(checkpoint: LocalCheckpoint, batch: int) -> object:
    """Spark's settings in the newest file of offsets that is left: the state that is left was made with them."""
    numbers = [int(name) for name in checkpoint.names(OFFSETS) if name.isdigit() and int(name) <= batch]
    for number in sorted(numbers, reverse=True):
        text = checkpoint.read(f"{OFFSETS}/{number}")
        found = None if text is None else settings_of(text)
        if found is not None:
            return found
    return {}


def _check_file_lists(checkpoint: LocalCheckpoint, planned: Planned, query: str) -> None:
    """Raise CheckpointRefused if a file source's lists are missing: its offsets only number them."""
    lists = file_lists(planned.offsets or ())
    texts = [file_list(checkpoint, source, number) for source, number in lists]
    if any(text is None for text in texts) or (texts and lists_digest([text or "" for text in texts]) != planned.files):
        names = ", ".join(f"{SOURCES}/{source}/{number}" for source, number in lists)
        raise CheckpointRefused(
            f"query {query} reads files, and which of them it has taken stands in its checkpoint alone: {names} in "
            f"{checkpoint.root} is missing or lists other files than batch {planned.batch} had. Bring back a copy of "
            "the checkpoint that has it"
        )


def _move_away(root: Path, batch: int, wanted: Mapping[str, str]) -> list[str]:
    """Move files that contradict the log into a folder of their own; their names. These are files of later batches, and
    files that are written again.
    """
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
    """Write a file durably, unless it exists; whether it was written. Spark's checksum of a former file is removed."""
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

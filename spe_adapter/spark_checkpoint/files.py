"""The files of a checkpoint that determine the input of a batch.

    metadata          {"id": …}: the query's id
    offsets/N         the offsets at which batch N ends, a line for each source
    commits/N         batch N is committed
    sources/S/K       files of a source: its first offsets (K = 0), or the K-th list of files of a file source

Invariants:
* This module does not write. A missing file is read as None.
* A local directory counts as a query's checkpoint only if its metadata names that query.

Source: Spark's StreamExecution, HDFSMetadataLog and FileStreamSourceLog.
"""

import json
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from spe_adapter.spark_checkpoint.planned import MAX_NOTE_CHARACTERS, Planned, file_lists, offset_lines, planned_of

METADATA: Final = "metadata"
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
SOURCES: Final = "sources"
_FILE_SCHEMES: Final = ("file://", "file:")


class Checkpoint(Protocol):
    """A checkpoint to read, on any file system."""

    def read(self, name: str) -> str | None:
        """The text of a file, by its path below the checkpoint; None if the file is missing."""

    def names(self, folder: str) -> Sequence[str]:
        """The names in a folder; empty if the folder is missing."""


class LocalCheckpoint:
    """A checkpoint in a directory of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, name: str) -> str | None:
        """See Checkpoint."""
        try:
            return (self.root / name).read_text(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> Sequence[str]:
        """See Checkpoint."""
        try:
            return sorted(path.name for path in (self.root / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return ()


def local_checkpoint(location: str, query: str | None = None) -> LocalCheckpoint | None:
    """The checkpoint at a location; None if the location is not a directory of this machine with the metadata of a
    query (of `query`, if given).
    """
    found = LocalCheckpoint(local_path(location))
    owner = query_of(found)
    return found if owner is not None and query in (None, owner) else None


def local_path(location: str) -> Path:
    """A location as a path of this machine."""
    return Path(_without_scheme(location))


def _without_scheme(location: str) -> str:
    scheme = next((scheme for scheme in _FILE_SCHEMES if location.startswith(scheme)), "")
    return location.removeprefix(scheme)


def is_same_location(one: str, other: str) -> bool:
    """Whether two locations are equal but for the scheme of local files and a slash at the end.

    Links are not followed, and relative paths are not resolved.
    """
    return posixpath.normpath(_without_scheme(one)) == posixpath.normpath(_without_scheme(other))


def query_of(checkpoint: Checkpoint) -> str | None:
    """The id of the query in the checkpoint's metadata; None if the metadata is missing or damaged."""
    text = checkpoint.read(METADATA)
    try:
        value = json.loads(text or "")
    except ValueError:
        return None
    query = value.get("id") if isinstance(value, dict) else None
    return query if isinstance(query, str) else None


def planned_in(checkpoint: Checkpoint, batch: int, notes: Mapping[str, str] | None = None) -> Planned | None:
    """The input that the checkpoint plans for a batch; None if files are missing.

    `notes` are the notes of the sources, if known (`source_notes`). Raises UnknownFormatVersion.
    """
    text = checkpoint.read(f"{OFFSETS}/{batch}")
    before = checkpoint.read(f"{OFFSETS}/{batch - 1}") if batch else None
    if text is None or (batch and before is None):
        return None
    lists = file_lists(offset_lines(text))
    numbered = {source for source, _ in lists}
    return planned_of(
        batch,
        text,
        before,
        files=[file_list(checkpoint, source, number) or "" for source, number in lists],
        notes=source_notes(checkpoint, numbered) if notes is None else notes,
    )


def file_list(checkpoint: Checkpoint, source: int, number: int) -> str | None:
    """A list of files of a file source; None if the list is missing."""
    name = f"{SOURCES}/{source}/{number}"
    text = checkpoint.read(name)
    return text if text is not None else checkpoint.read(f"{name}.compact")


def source_notes(checkpoint: Checkpoint, numbered: set[int]) -> dict[str, str]:
    """The sources' notes of their first offsets, by name below `sources`, without the `numbered` sources, which list
    files.
    """
    notes: dict[str, str] = {}
    for source in checkpoint.names(SOURCES):
        if source.isdigit() and int(source) in numbered:
            continue
        text = checkpoint.read(f"{SOURCES}/{source}/0")
        if text is not None and len(text) <= MAX_NOTE_CHARACTERS:
            notes[f"{source}/0"] = text
    return notes

"""The input that Spark planned for a batch, from Spark's checkpoint or from the note in an epoch's END.

A batch has a number N. The checkpoint's file `offsets/N` has the offsets of each source at which the batch ends; the
batch begins where batch N - 1 ended. The number does not determine the input: from a checkpoint that has lost its
newest batches (by a power cut, since Spark does not sync them, or because a copy was restored), Spark plans the same
numbers again with other input.

Invariants:
* Two plans have the same input if they agree in the batch, in the offsets of its begin and its end, and, for a source
  that numbers its lists of files, in these lists. Spark's times and settings do not matter.
* Offsets are compared as JSON values; a line that is not JSON is compared as text.
* A note is not trusted: any client of the log may write one. So the names of sources' files, which become paths when a
  checkpoint is rebuilt, must match a pattern.
* Notes are bounded: of offsets longer than MAX_OFFSETS_CHARACTERS only the digest is noted. A digest can be compared,
  but no checkpoint can be rebuilt from it.

Source: Spark's OffsetSeqLog (a version, the metadata, a line for each source), MicroBatchExecution.populateStartOffsets
and FileStreamSource (offsets that only count lists of files); docs/format.md; docs/decisions/0016.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from logstore.errors import CorruptBatch, UnknownFormatVersion

MAX_OFFSETS_CHARACTERS: Final = 128 * 1024
"""Offsets of about 8,000 partitions. END holds them once in each stream of the epoch."""
MAX_NOTE_CHARACTERS: Final = 4096
"""A source's note of its first offsets: those of a few hundred partitions, or a time."""
_DIGEST_BYTES: Final = 16
_FIRST_OFFSET_LINE: Final = 2
_NOTE_NAME: Final = re.compile(r"[0-9]{1,9}/0")
"""The number of a source, and its first file. No name that matches leads out of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The input of one batch.

    `start` and `end` are digests of the offsets at which it begins ("" for the first batch) and ends. `files` is the
    digest of the lists of files that the offsets number ("" without such a source). `version`, `metadata` (without
    Spark's settings) and `offsets` (a line for each source; None if they are too long) are the content of `offsets/N`;
    `notes` are the sources' small files, by name below `sources`. A checkpoint is rebuilt from these.
    """

    batch: int
    start: str
    end: str
    files: str = ""
    version: str = "v1"
    metadata: str = "{}"
    offsets: tuple[str, ...] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def is_same_input(self, other: "Planned") -> bool:
        """Whether both plans are of the same batch with the same input."""
        return (self.batch, self.start, self.end, self.files) == (other.batch, other.start, other.end, other.files)

    def to_fields(self) -> dict[str, Any]:
        """The JSON fields for an END."""
        fields: dict[str, Any] = {"batch": self.batch, "start": self.start, "end": self.end}
        if self.files:
            fields["files"] = self.files
        fields |= {"version": self.version, "metadata": self.metadata}
        fields["offsets"] = None if self.offsets is None else list(self.offsets)
        if self.notes:
            fields["notes"] = dict(self.notes)
        return fields

    @classmethod
    def from_fields(cls, value: object) -> "Planned":
        """The inverse of `to_fields`. Raises CorruptBatch."""
        if not isinstance(value, dict):
            raise CorruptBatch(f"planned input {str(value)[:80]!r} is not an object")
        batch, offsets, notes = value.get("batch"), value.get("offsets"), value.get("notes", {})
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 0:
            raise CorruptBatch(f"planned input: field batch is {str(batch)[:80]!r}")
        if offsets is not None and not _are_texts(offsets):
            raise CorruptBatch(f"planned input: field offsets is {str(offsets)[:80]!r}")
        if not isinstance(notes, dict) or not _are_texts(list(notes.values())):
            raise CorruptBatch(f"planned input: field notes is {str(notes)[:80]!r}")
        for name in notes:
            if not _NOTE_NAME.fullmatch(name):
                raise CorruptBatch(f"planned input: field notes names {name[:80]!r}, which is no source's first file")
        texts = {name: value.get(name, "") for name in ("start", "end", "files", "version", "metadata")}
        if not _are_texts(list(texts.values())):
            raise CorruptBatch(f"planned input: fields {str(texts)[:160]} are not text")
        metadata = _value(texts["metadata"])
        if not isinstance(metadata, dict) or not isinstance(metadata.get("batchWatermarkMs", 0), int):
            raise CorruptBatch(f"planned input: field metadata is {texts['metadata'][:80]!r}")
        return cls(batch=batch, offsets=None if offsets is None else tuple(offsets), notes=notes, **texts)

    def offsets_text(self, settings: object) -> str:
        """The file `offsets/N`, with Spark's `settings` in its metadata. Raises ValueError if the offsets were not
        noted.
        """
        if self.offsets is None:
            raise ValueError("the offsets were too long to be noted")
        metadata = {**json.loads(self.metadata), "conf": settings}
        return "\n".join((self.version, json.dumps(metadata, separators=(",", ":")), *self.offsets))

    def said(self) -> str:
        """The offsets at which the batch ends, for a message."""
        text = "; ".join(self.offsets) if self.offsets is not None else f"digest {self.end}"
        return text if len(text) <= _SAID_CHARACTERS else f"{text[:_SAID_CHARACTERS]}… (digest {self.end})"


_SAID_CHARACTERS: Final = 400


def planned_of(
    batch: int, text: str, before: str | None, *, files: Sequence[str] = (), notes: Mapping[str, str] | None = None
) -> Planned:
    """The input of batch N, from the texts of `offsets/N` and `offsets/N-1` (None for the first batch).

    `files` are the lists that `file_lists` names, in its order; `notes` are the sources' small files. Raises
    UnknownFormatVersion.
    """
    version, metadata, lines = _parts(text)
    short = len(text) <= MAX_OFFSETS_CHARACTERS
    return Planned(
        batch=batch,
        start="" if before is None else offsets_digest(before),
        end=offsets_digest(text),
        files=lists_digest(files),
        version=version,
        metadata=metadata,
        offsets=tuple(lines) if short else None,
        notes={
            name: note
            for name, note in (notes or {}).items()
            if len(note) <= MAX_NOTE_CHARACTERS and _NOTE_NAME.fullmatch(name)
        },
    )


def offsets_digest(text: str) -> str:
    """A digest of the offsets in the text of a file `offsets/N`, without its metadata. Raises UnknownFormatVersion."""
    return _digest([_value(line) for line in offset_lines(text)])


def lists_digest(lists: Sequence[str]) -> str:
    """A digest of lists of files; "" of none."""
    return _digest(list(lists)) if lists else ""


def file_lists(offsets: Sequence[str]) -> list[tuple[int, int]]:
    """The sources that number their lists of files, each with the number of its newest list."""
    found: list[tuple[int, int]] = []
    for source, line in enumerate(offsets):
        value = _value(line)
        if isinstance(value, dict) and set(value) == {"logOffset"} and isinstance(value["logOffset"], int):
            found.append((source, value["logOffset"]))
    return found


def offset_lines(text: str) -> list[str]:
    """The line of each source in the text of a file `offsets/N`."""
    _, _, lines = _parts(text)
    return lines


def settings_of(text: str) -> object | None:
    """Spark's settings in the text of a file `offsets/N`; empty if it has none, None if the text is damaged."""
    lines = text.split("\n")
    metadata = _value(lines[1]) if len(lines) > 1 else None
    return metadata.get("conf", {}) if isinstance(metadata, dict) else None


def _parts(text: str) -> tuple[str, str, list[str]]:
    """Version, metadata without Spark's settings, and the sources' lines. Raises UnknownFormatVersion."""
    lines = text.split("\n")
    if len(lines) < _FIRST_OFFSET_LINE or not (lines[0].startswith("v") and lines[0][1:].isdigit()):
        raise UnknownFormatVersion(
            f"Spark's file of offsets begins with {text[:80]!r}, not with a version and metadata"
        )
    metadata = _value(lines[1])
    kept = {name: value for name, value in metadata.items() if name != "conf"} if isinstance(metadata, dict) else {}
    offsets = lines[_FIRST_OFFSET_LINE:]
    while offsets and not offsets[-1]:
        offsets.pop()
    return lines[0], json.dumps(kept, separators=(",", ":")), offsets


def _value(line: str) -> Any:
    """The JSON value of a line; the line itself if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line


def _digest(values: list[Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


# ---- contradictions between a checkpoint and the log


def repeated_problem(noted: Planned | None, planned: Planned) -> str | None:
    """The problem with a repeated batch that the log already has; None if its input is the same."""
    if noted is None:
        return (
            f"batch {planned.batch} comes again, and the log does not record its input: a version of Cairn that did "
            "not record inputs wrote it"
        )
    if planned.is_same_input(noted):
        return None
    if (planned.start, planned.end) == (noted.start, noted.end):
        where = "with the same offsets, but for different lists of files"
    elif planned.start != noted.start:
        where = f"from different offsets, up to {planned.said()}; the log has it up to {noted.said()}"
    else:
        where = f"up to {planned.said()}; the log has it up to {noted.said()}"
    return f"Spark's checkpoint has lost batch {noted.batch}, which is committed, and plans it again: {where}"


def following_problem(noted: Planned | None, planned: Planned) -> str | None:
    """The problem with the batch after the last one in the log; None if it begins where the last one ended, or if the
    log has no note of that.
    """
    if noted is None or planned.start == noted.end:
        return None
    return (
        f"batch {planned.batch} of Spark's checkpoint does not begin where batch {noted.batch} ended in the log, at "
        f"{noted.said()}: the checkpoint is another query's, or it has diverged since batch {noted.batch}"
    )


def way_out(query: str) -> str:
    """The advice for a checkpoint that contradicts the log."""
    return (
        f"nothing was written. Rebuild the checkpoint from the log ({rebuild_command(query)}) and start the query "
        "again, or restore the checkpoint that belongs to the query. To continue with this checkpoint, even if input "
        "is lost or read twice, set the option 'changedCheckpoint' to 'accept'"
    )


def rebuild_command(query: str) -> str:
    """The command that rebuilds a query's checkpoint."""
    return f"cairn checkpoint rebuild CHECKPOINT --query {query}"

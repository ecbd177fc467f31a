"""The note that a sink's driver writes with each epoch, and the checks against it when an epoch is repeated.

Spark gives a sink the number of a batch and the messages of its tasks, but not its input. The input is in Spark's
checkpoint, which the driver can read if the checkpoint is a directory of its machine. Otherwise a repeated epoch is
compared by its output: the number of its records, and their digest.

Invariants:
* A committed epoch is acknowledged again only if its input, or else its output, is known to be the same.
* A new query is refused in a topic with epochs of another query that had the same checkpoint location or the same name:
  in that case the checkpoint was lost, and all output of that query would be written a second time.

Source: docs/format.md; docs/decisions/0016.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import UNKNOWN_TOPIC_OR_PARTITION
from logstore.errors import CorruptBatch, UnknownFormatVersion
from spe_adapter.cec.control import End, holds_progress
from spe_adapter.epochs.scan import ends
from spe_adapter.errors import TopicTaken
from spe_adapter.spark_checkpoint.files import is_same_location
from spe_adapter.spark_checkpoint.planned import Planned, following_problem, rebuild_command, repeated_problem

_VERSION: Final = 2
_KIND: Final = "sink"
_RECENT_BYTES: Final = 256 * 1024
_RECENT_ENDS: Final = 1000
"""How many epochs of a partition, newest first and of any query, are searched for the query of a lost checkpoint."""


class WrittenOutput(NamedTuple):
    """The output of an epoch: the number of records, and the sum of their digests."""

    records: int
    digest: int


@dataclass(frozen=True, slots=True)
class SinkNote:
    """The positions that a sink notes in END.

    `checkpoint` (its location) and `name` are those of the query, None if unknown. `planned` is None if the checkpoint
    could not be read; `written` is None if it could.
    """

    checkpoint: str | None
    name: str | None
    planned: Planned | None = None
    written: WrittenOutput | None = None

    def to_json(self) -> str:
        """The JSON text for an END."""
        fields: dict[str, object] = {"v": _VERSION, "of": _KIND, "checkpoint": self.checkpoint, "name": self.name}
        if self.planned is not None:
            fields["input"] = self.planned.to_fields()
        if self.written is not None:
            fields["output"] = list(self.written)
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, positions: str) -> "SinkNote | None":
        """The inverse of `to_json`; None for positions that are empty or not those of a sink.

        Raises CorruptBatch or UnknownFormatVersion.
        """
        if not positions:
            return None
        try:
            fields = json.loads(positions)
        except (ValueError, RecursionError) as error:
            raise CorruptBatch(f"positions {positions[:80]!r} are not JSON") from error
        if not isinstance(fields, dict) or fields.get("of") != _KIND:
            return None
        if fields.get("v") != _VERSION:
            raise UnknownFormatVersion(f"a sink's note of version {fields.get('v')} is not {_VERSION}; upgrade Cairn")
        planned, written = fields.get("input"), fields.get("output")
        return cls(
            checkpoint=_text(fields, "checkpoint"),
            name=_text(fields, "name"),
            planned=None if planned is None else Planned.from_fields(planned),
            written=None if written is None else _written(written),
        )


def _text(fields: dict[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise CorruptBatch(f"a sink's note: field {name} is {str(value)[:80]!r}")


def _written(value: object) -> WrittenOutput:
    if isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value):
        return WrittenOutput(*value)
    raise CorruptBatch(f"a sink's note: field output is {str(value)[:80]!r}")


# ---- the checks of an epoch


def repeated_epoch_problem(noted: SinkNote | None, now: SinkNote, epoch: int) -> str | None:
    """The problem with a committed epoch that comes again; None if it is the same epoch."""
    if noted is not None and noted.planned is not None and now.planned is not None:
        return repeated_problem(noted.planned, now.planned)
    if noted is not None and noted.written is not None and now.written is not None:
        if noted.written == now.written:
            return None
        return (
            f"epoch {epoch} comes again with different output ({now.written.records} records; {noted.written.records} "
            "are committed, or their contents differ): the checkpoint lost the epoch and planned it again with "
            "different input, or the query is not deterministic"
        )
    return (
        f"epoch {epoch} comes again, and its input cannot be compared with the committed one: it was committed by a "
        "version of Cairn that did not record the input, the record was trimmed with the topic, the epoch had no "
        "output then, or the driver could read Spark's checkpoint only then, or only now"
    )


def following_epoch_problem(noted: SinkNote | None, now: SinkNote) -> str | None:
    """The problem with the epoch after the last committed one; None if none is known."""
    if noted is None or now.planned is None:
        return None
    return following_problem(noted.planned, now.planned)


def noted_epoch(client: Client, topics: Sequence[str], query: str, epoch: int) -> SinkNote | None:
    """The note of an epoch before the last one, from its END in any stream; None if no stream has its END, because the
    epoch had no output or was trimmed.
    """
    for stream in _streams(client, topics):
        with closing(ends(client, stream)) as found:
            for end, _ in found:
                if end.query == query and end.epoch == epoch:
                    return _note_of(end)
                if end.query == query and end.epoch < epoch:
                    break
    return None


def refuse_lost_self(client: Client, topics: Sequence[str], query: str, now: SinkNote) -> None:
    """Raise TopicTaken for a new query with the checkpoint, or the name, of another that wrote into these topics."""
    for stream in _streams(client, topics):
        with closing(ends(client, stream, first_bytes=_RECENT_BYTES)) as found:
            for end, _ in islice(found, _RECENT_ENDS):
                said = None if end.query == query else _same(_others_note(end), now)
                if said is not None:
                    raise TopicTaken(
                        f"query {query} is new (its checkpoint is empty), but {said} was query {end.query}'s, which "
                        f"has written into {stream}, up to epoch {end.epoch}. If this is the same query with a lost "
                        f"checkpoint, rebuild the checkpoint: {rebuild_command(end.query)}. Otherwise write to another "
                        "topic, or set the option 'allowOtherQueries' to true: the new query then writes all its "
                        "output, even what the other query has written already"
                    )


def _same(noted: SinkNote | None, now: SinkNote) -> str | None:
    if noted is None:
        return None
    if (
        now.checkpoint is not None
        and noted.checkpoint is not None
        and is_same_location(noted.checkpoint, now.checkpoint)
    ):
        return f"its checkpoint, {now.checkpoint},"
    if now.name is not None and noted.name == now.name:
        return f"its name, {now.name!r},"
    return None


def _note_of(end: End) -> SinkNote | None:
    return (
        None if not end.positions or holds_progress(end) else SinkNote.from_json(end.positions.decode(errors="replace"))
    )


def _others_note(end: End) -> SinkNote | None:
    """The note of an epoch of any client; None if it cannot be read."""
    try:
        return _note_of(end)
    except CorruptBatch:
        return None


def _streams(client: Client, topics: Sequence[str]) -> Iterator[TopicPartition]:
    found = client.topics(topics) if topics else {}
    for topic in topics:
        if topic in found and found[topic].error == UNKNOWN_TOPIC_OR_PARTITION:
            continue  # nothing was written there
        for partition in range(client.partitions(topic)):
            yield TopicPartition(topic, partition)

"""What a sink's driver notes with each epoch, and what it concludes when a number comes again.

The sink is told a batch's number and its tasks' messages, nothing of its input. What the input was stands in Spark's
checkpoint, which the driver can read if it is a directory of its machine. Otherwise the records themselves say whether
an epoch that comes again is the same: their number and a digest.

Invariants:
* An epoch that is committed is acknowledged again only if its input, or else its output, is known to be the same.
* A query that is new is refused where another's epochs say that they came from the same checkpoint, or from a query of
  the same name: its checkpoint was lost, and all of its output would come once more.

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
from spe_adapter.checkpoint.files import is_same_location
from spe_adapter.checkpoint.planned import Planned, following_problem, rebuild_command, repeated_problem
from spe_adapter.epochs.scan import ends
from spe_adapter.errors import TopicTaken

_VERSION: Final = 2
_KIND: Final = "sink"
_RECENT_BYTES: Final = 256 * 1024
_RECENT_ENDS: Final = 1000
"""How far a partition is searched for a lost checkpoint's query: about its last thousand epochs, of whichever query."""


class Written(NamedTuple):
    """An epoch's output: how many records, and the sum of their digests."""

    records: int
    digest: int


@dataclass(frozen=True, slots=True)
class SinkNote:
    """What stands in END's positions for a sink's epoch. `checkpoint` and `name` are the query's, as far as known;
    `planned` is None if the checkpoint could not be read, `written` if it could.
    """

    checkpoint: str | None
    name: str | None
    planned: Planned | None = None
    written: Written | None = None

    def to_json(self) -> str:
        """As END carries it."""
        fields: dict[str, object] = {"v": _VERSION, "of": _KIND, "checkpoint": self.checkpoint, "name": self.name}
        if self.planned is not None:
            fields["input"] = self.planned.to_fields()
        if self.written is not None:
            fields["output"] = list(self.written)
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, positions: str) -> "SinkNote | None":
        """The inverse; None for what is no sink's, or of a version that noted nothing.

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


def _written(value: object) -> Written:
    if isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value):
        return Written(*value)
    raise CorruptBatch(f"a sink's note: field output is {str(value)[:80]!r}")


# ---- what follows from it


def repeated_epoch_problem(noted: SinkNote | None, now: SinkNote, epoch: int) -> str | None:
    """What is wrong with an epoch that comes again although it is committed; None if it is the same one."""
    if noted is not None and noted.planned is not None and now.planned is not None:
        return repeated_problem(noted.planned, now.planned)
    if noted is not None and noted.written is not None and now.written is not None:
        if noted.written == now.written:
            return None
        return (
            f"epoch {epoch} comes again, with other output ({now.written.records} records; {noted.written.records} are "
            "committed, or their contents differ): the checkpoint lost the epoch and planned it anew with other input, "
            "or the query computes something else each time"
        )
    return (
        f"epoch {epoch} comes again, and it cannot be told whether its input is the same: it was committed by a "
        "version of Cairn that did not note it, what it noted was trimmed with the topic, it had no output then, or "
        "the driver could read Spark's checkpoint only then, or only now"
    )


def following_epoch_problem(noted: SinkNote | None, now: SinkNote) -> str | None:
    """What is wrong with an epoch right behind the last committed one; None if nothing is known to be."""
    if noted is None or now.planned is None:
        return None
    return following_problem(noted.planned, now.planned)


def noted_epoch(client: Client, topics: Sequence[str], query: str, epoch: int) -> SinkNote | None:
    """What was noted with an epoch that is not the last one, from its END in any stream; None without one, as after an
    epoch without output, or where it was trimmed.
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
    """Refuse a new query whose checkpoint, or name, was another query's that wrote into these topics. TopicTaken."""
    for stream in _streams(client, topics):
        with closing(ends(client, stream, first_bytes=_RECENT_BYTES)) as found:
            for end, _ in islice(found, _RECENT_ENDS):
                said = None if end.query == query else _same(_others_note(end), now)
                if said is not None:
                    raise TopicTaken(
                        f"query {query} is new (its checkpoint is empty), but {said} was query {end.query}'s, which "
                        f"has written into {stream}, up to epoch {end.epoch}. If that is this query's former self, "
                        f"whose checkpoint was lost, make the checkpoint anew: {rebuild_command(end.query)}; otherwise "
                        "write to another topic, or set the option 'allowOtherQueries' to true: then all that the new "
                        "query reads is written, whatever the other has written before"
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
    """The same of a query that need not be one of Cairn's: what cannot be read says nothing."""
    try:
        return _note_of(end)
    except CorruptBatch:
        return None


def _streams(client: Client, topics: Sequence[str]) -> Iterator[TopicPartition]:
    found = client.topics(topics) if topics else {}
    for topic in topics:
        if topic in found and found[topic].error == UNKNOWN_TOPIC_OR_PARTITION:
            continue  # nobody has written there
        for partition in range(client.partitions(topic)):
            yield TopicPartition(topic, partition)

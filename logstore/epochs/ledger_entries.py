"""The ledger entries of queries and their epochs, and the states of an epoch.

Each query has three entries: `runs/QUERY` (its incarnations, newest last), `last/QUERY` (its last committed epoch) and,
while an epoch is being published, `decision/QUERY` (the commit record). They are separate so that an incarnation that
fences another never overwrites a commit record. Keys and fields are spelled on disk as in their first version.

Invariants:
* `decision/QUERY` and `last/QUERY` change in one put, or are found in one block of the journal; the removal of
  `decision/QUERY` marks the epoch as published. An epoch whose block is durable has never had the first.
* The start offset of a target was the stream's high watermark when the commit record was made, so it is durable: the
  epoch's BEGIN is at or after it, whatever a crash cuts off.
* TRANSITIONS lists every allowed step of a query; any other step is a bug and raises at once.
"""

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from logstore.errors import CorruptFile, MalformedRequest, UnknownFormatVersion
from logstore.format.epoch_api import TaskOutput
from logstore.format.fields import (
    MAX_POSITIONS_CHARACTERS,
    Fields,
    get_bool,
    get_int,
    get_name,
    get_objects,
    get_positions,
    get_text,
    parse_object,
)
from logstore.format.host_summaries import get_texts

INCARNATIONS: Final = "runs/"
LAST: Final = "last/"
COMMIT_RECORD: Final = "decision/"
MAX_INCARNATIONS: Final = 64
"""Incarnations of a query that are remembered. An older token would look like a new incarnation; none returns after 64
restarts.
"""
MAX_TOPICS: Final = 8
"""Topics of a query that are remembered, for operators: a query writes to one or two."""
_VERSION: Final = 1
_INT64_MAX: Final = 2**63 - 1
T = TypeVar("T")


class EpochState(enum.Enum):
    """The state of a query's newest epoch. The values are those of `DescribeReply.state` on the wire."""

    IDLE = "idle"
    COMMITTING = "deciding"  # the commit record is being written, to a block with its groups or to the ledger
    UNSURE = "unsure"  # the ledger failed; the commit record may or may not be on disk
    COMMITTED = "decided"  # found in the ledger at start; the streams that have it are not known yet
    PUBLISHING = "publishing"  # committed; groups are being appended
    STUCK = "stuck"  # committed; a stream, the staged data or, behind a failed block, the ledger failed; to be retried
    PUBLISHED = "published"  # in all streams; that the ledger says so is not durable yet


class EpochEvent(enum.Enum):
    """What happens to the epoch."""

    COMMIT = "commit"
    RECORDED = "recorded"
    JOURNALED = "journaled"
    REFUSED = "refused"
    RETRACTED = "retracted"
    RECOVERED = "recovered"
    SEARCHED = "searched"
    APPENDED = "appended"
    FAILED = "failed"
    RETRY = "retry"
    FINISHED = "finished"


TRANSITIONS: Final[Mapping[tuple[EpochState, EpochEvent], EpochState]] = {
    (EpochState.IDLE, EpochEvent.COMMIT): EpochState.COMMITTING,
    (EpochState.IDLE, EpochEvent.RECOVERED): EpochState.COMMITTED,
    (EpochState.COMMITTING, EpochEvent.RECORDED): EpochState.PUBLISHING,
    (EpochState.COMMITTING, EpochEvent.REFUSED): EpochState.UNSURE,
    (EpochState.COMMITTING, EpochEvent.JOURNALED): EpochState.PUBLISHED,
    (EpochState.COMMITTING, EpochEvent.FAILED): EpochState.STUCK,
    (EpochState.UNSURE, EpochEvent.COMMIT): EpochState.COMMITTING,
    (EpochState.UNSURE, EpochEvent.RETRACTED): EpochState.IDLE,
    (EpochState.COMMITTED, EpochEvent.SEARCHED): EpochState.PUBLISHING,
    (EpochState.PUBLISHING, EpochEvent.APPENDED): EpochState.PUBLISHED,
    (EpochState.PUBLISHING, EpochEvent.FAILED): EpochState.STUCK,
    (EpochState.STUCK, EpochEvent.RETRY): EpochState.PUBLISHING,
    (EpochState.STUCK, EpochEvent.COMMIT): EpochState.COMMITTING,
    (EpochState.PUBLISHED, EpochEvent.FINISHED): EpochState.IDLE,
    (EpochState.PUBLISHED, EpochEvent.COMMIT): EpochState.COMMITTING,
}
BUSY: Final = frozenset((EpochState.COMMITTING, EpochState.COMMITTED, EpochState.PUBLISHING, EpochState.STUCK))
"""States in which the next commit of the query has to wait."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream that gets an epoch's output. The topic id distinguishes the topic from a later one of the same name."""

    topic: str
    topic_id: str
    partition: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The attempts that make up an epoch, and its target streams. `incarnation_number` counts from 1."""

    query: str
    incarnation: str
    incarnation_number: int
    epoch: int
    positions: str
    tasks: tuple[TaskOutput, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The remembered incarnations of a query, newest last, and the number of all incarnations so far."""

    tokens: tuple[str, ...]
    count: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class LastEpoch:
    """The last committed epoch of a query. `forget`: it belongs to a batch job, so it may be forgotten after a while.

    `positions` are those of the commit record and outlive it: an epoch without output records them nowhere else.
    `topics` are those that this epoch has output for, or the newest one before it that has output; sorted, the first
    MAX_TOPICS.
    """

    epoch: int
    committed_ms: int
    forget: bool
    positions: str = ""
    topics: tuple[str, ...] = ()


def last_of(record: CommitRecord, before: LastEpoch | None, now_ms: int, *, forget: bool) -> LastEpoch:
    """What is kept of an epoch that is committed now, behind the one before."""
    topics = tuple(sorted({target.topic for target in record.targets})[:MAX_TOPICS])
    return LastEpoch(
        record.epoch, now_ms, forget, record.positions, topics or (() if before is None else before.topics)
    )


def encode_commit_record(record: CommitRecord) -> bytes:
    """The ledger entry of a commit record."""
    return _encode(
        {
            "run": record.incarnation,
            "run_number": record.incarnation_number,
            "epoch": record.epoch,
            "positions": record.positions,
            "tasks": [{"task": t.task, "attempt": t.attempt, "frames": t.segments} for t in record.tasks],
            "targets": [
                {"topic": t.topic, "topic_id": t.topic_id, "partition": t.partition, "start": t.start_offset}
                for t in record.targets
            ],
        }
    )


def decode_commit_record(query: str, value: bytes) -> CommitRecord:
    """The inverse of `encode_commit_record`. Raises CorruptFile, UnknownFormatVersion."""

    def build(fields: Fields) -> CommitRecord:
        return CommitRecord(
            query=query,
            incarnation=get_name(fields, "run"),
            incarnation_number=get_int(fields, "run_number", 0, _INT64_MAX),
            epoch=get_int(fields, "epoch", 0, _INT64_MAX),
            positions=get_text(fields, "positions", MAX_POSITIONS_CHARACTERS),
            tasks=tuple(
                TaskOutput(
                    get_int(entry, "task", 0, _INT64_MAX),
                    get_name(entry, "attempt"),
                    get_int(entry, "frames", 0, _INT64_MAX),
                )
                for entry in get_objects(fields, "tasks")
            ),
            targets=tuple(
                Target(
                    get_name(entry, "topic"),
                    get_name(entry, "topic_id"),
                    get_int(entry, "partition", 0, _INT64_MAX),
                    get_int(entry, "start", 0, _INT64_MAX),
                )
                for entry in get_objects(fields, "targets")
            ),
        )

    return _decode(f"{COMMIT_RECORD}{query}", value, build)


def decision_entries(record: CommitRecord, last: LastEpoch) -> dict[str, bytes]:
    """The entries that decide an epoch, for one put or one block of the journal."""
    return {
        f"{COMMIT_RECORD}{record.query}": encode_commit_record(record),
        f"{LAST}{record.query}": encode_last_epoch(last),
    }


def encode_incarnations(incarnations: Incarnations) -> bytes:
    """The ledger entry of a query's incarnations."""
    return _encode({"tokens": list(incarnations.tokens), "count": incarnations.count, "seen_ms": incarnations.seen_ms})


def decode_incarnations(query: str, value: bytes) -> Incarnations:
    """The inverse of `encode_incarnations`. Raises CorruptFile, UnknownFormatVersion."""

    def build(fields: Fields) -> Incarnations:
        tokens = fields.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise MalformedRequest("'tokens' is not a list of strings")
        count, seen_ms = (get_int(fields, key, 0, _INT64_MAX) for key in ("count", "seen_ms"))
        return Incarnations(tuple(tokens), count, seen_ms)

    return _decode(f"{INCARNATIONS}{query}", value, build)


def encode_last_epoch(last: LastEpoch) -> bytes:
    """The ledger entry of the last epoch."""
    fields = {"epoch": last.epoch, "decided_ms": last.committed_ms, "forget": last.forget}
    return _encode({**fields, "positions": last.positions, "topics": last.topics})


def decode_last_epoch(query: str, value: bytes) -> LastEpoch:
    """The inverse of `encode_last_epoch`. Raises CorruptFile, UnknownFormatVersion."""

    def build(fields: Fields) -> LastEpoch:
        return LastEpoch(
            get_int(fields, "epoch", 0, _INT64_MAX),
            get_int(fields, "decided_ms", 0, _INT64_MAX),
            get_bool(fields, "forget"),
            get_positions(fields),
            get_texts({"topics": [], **fields}, "topics"),
        )

    return _decode(f"{LAST}{query}", value, build)


def _encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps({"version": _VERSION, **fields}, ensure_ascii=False, separators=(",", ":")).encode()


def _decode(name: str, value: bytes, build: Callable[[Fields], T]) -> T:
    try:
        fields = parse_object(value)
        version = get_int(fields, "version", 0, _INT64_MAX)
        if version != _VERSION:
            raise UnknownFormatVersion(
                f"ledger entry {name!r} has version {version}, known is {_VERSION}; upgrade Cairn"
            )
        return build(fields)
    except MalformedRequest as error:
        raise CorruptFile(f"ledger entry {name!r}: {error}") from None

"""The ledger entries of queries and their epochs, and the states of an epoch.

Each query has three entries: `runs/QUERY` (its runs, newest last), `last/QUERY` (its last decided epoch) and, while an
epoch is being published, `decision/QUERY`. They are separate so that a run that fences another never overwrites a
decision.

Invariants:
* `decision/QUERY` and `last/QUERY` change in one put; the removal of `decision/QUERY` marks the epoch as published.
* The start offset of a target was the stream's high watermark when the decision was made, so it is durable: the epoch's
  BEGIN is at or after it, whatever a crash cuts off.
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

RUNS: Final = "runs/"
LAST: Final = "last/"
DECISION: Final = "decision/"
MAX_RUNS: Final = 64
"""Runs of a query that are remembered. An older token would look like a new run; no run returns after 64 restarts."""
_VERSION: Final = 1
_INT64_MAX: Final = 2**63 - 1
T = TypeVar("T")


class EpochState(enum.Enum):
    """The state of a query's newest epoch."""

    IDLE = "idle"
    DECIDING = "deciding"  # the decision is being written to the ledger
    UNSURE = "unsure"  # the ledger failed; the decision may or may not be on disk
    DECIDED = "decided"  # found in the ledger at start; the streams that have it are not known yet
    PUBLISHING = "publishing"  # decided; groups are being appended
    STUCK = "stuck"  # decided; a stream or the staged data failed, to be retried
    PUBLISHED = "published"  # in all streams; the mark is not durable yet


class EpochEvent(enum.Enum):
    """What happens to the epoch."""

    DECIDE = "decide"
    RECORDED = "recorded"
    REFUSED = "refused"
    RETRACTED = "retracted"
    RECOVERED = "recovered"
    SEARCHED = "searched"
    APPENDED = "appended"
    FAILED = "failed"
    RETRY = "retry"
    MARKED = "marked"


TRANSITIONS: Final[Mapping[tuple[EpochState, EpochEvent], EpochState]] = {
    (EpochState.IDLE, EpochEvent.DECIDE): EpochState.DECIDING,
    (EpochState.IDLE, EpochEvent.RECOVERED): EpochState.DECIDED,
    (EpochState.DECIDING, EpochEvent.RECORDED): EpochState.PUBLISHING,
    (EpochState.DECIDING, EpochEvent.REFUSED): EpochState.UNSURE,
    (EpochState.UNSURE, EpochEvent.DECIDE): EpochState.DECIDING,
    (EpochState.UNSURE, EpochEvent.RETRACTED): EpochState.IDLE,
    (EpochState.DECIDED, EpochEvent.SEARCHED): EpochState.PUBLISHING,
    (EpochState.PUBLISHING, EpochEvent.APPENDED): EpochState.PUBLISHED,
    (EpochState.PUBLISHING, EpochEvent.FAILED): EpochState.STUCK,
    (EpochState.STUCK, EpochEvent.RETRY): EpochState.PUBLISHING,
    (EpochState.PUBLISHED, EpochEvent.MARKED): EpochState.IDLE,
    (EpochState.PUBLISHED, EpochEvent.DECIDE): EpochState.DECIDING,
}
BUSY: Final = frozenset((EpochState.DECIDING, EpochState.DECIDED, EpochState.PUBLISHING, EpochState.STUCK))
"""States in which the next decision of the query has to wait."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream that gets an epoch's output. The topic id distinguishes the topic from a later one of the same name."""

    topic: str
    topic_id: str
    partition: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The attempts that make up an epoch, and its target streams. `run_number` counts the query's runs from 1."""

    query: str
    run: str
    run_number: int
    epoch: int
    positions: str
    tasks: tuple[TaskOutput, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """The remembered runs of a query, newest last, and the number of all runs so far."""

    tokens: tuple[str, ...]
    count: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class Last:
    """The last decided epoch of a query. `forget`: it belongs to a batch job, so it may be forgotten after a while.

    `positions` are those of the decision and outlive it: an epoch without output records them nowhere else.
    """

    epoch: int
    decided_ms: int
    forget: bool
    positions: str = ""


def encode_decision(decision: Decision) -> bytes:
    """The ledger entry of a decision."""
    return _encode(
        {
            "run": decision.run,
            "run_number": decision.run_number,
            "epoch": decision.epoch,
            "positions": decision.positions,
            "tasks": [{"task": t.task, "attempt": t.attempt, "frames": t.frames} for t in decision.tasks],
            "targets": [
                {"topic": t.topic, "topic_id": t.topic_id, "partition": t.partition, "start": t.start_offset}
                for t in decision.targets
            ],
        }
    )


def decode_decision(query: str, value: bytes) -> Decision:
    """The inverse of `encode_decision`. Raises CorruptFile, UnknownFormatVersion."""

    def build(fields: Fields) -> Decision:
        return Decision(
            query=query,
            run=get_name(fields, "run"),
            run_number=get_int(fields, "run_number", 0, _INT64_MAX),
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

    return _decode(f"{DECISION}{query}", value, build)


def encode_runs(runs: Runs) -> bytes:
    """The ledger entry of a query's runs."""
    return _encode({"tokens": list(runs.tokens), "count": runs.count, "seen_ms": runs.seen_ms})


def decode_runs(query: str, value: bytes) -> Runs:
    """The inverse of `encode_runs`. Raises CorruptFile, UnknownFormatVersion."""

    def build(fields: Fields) -> Runs:
        tokens = fields.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise MalformedRequest("'tokens' is not a list of strings")
        return Runs(tuple(tokens), get_int(fields, "count", 0, _INT64_MAX), get_int(fields, "seen_ms", 0, _INT64_MAX))

    return _decode(f"{RUNS}{query}", value, build)


def encode_last(last: Last) -> bytes:
    """The ledger entry of the last epoch."""
    fields = {"epoch": last.epoch, "decided_ms": last.decided_ms, "forget": last.forget}
    return _encode({**fields, "positions": last.positions})


def decode_last(query: str, value: bytes) -> Last:
    """The inverse of `encode_last`. Raises CorruptFile, UnknownFormatVersion."""

    def build(fields: Fields) -> Last:
        return Last(
            get_int(fields, "epoch", 0, _INT64_MAX),
            get_int(fields, "decided_ms", 0, _INT64_MAX),
            get_bool(fields, "forget"),
            get_positions(fields),
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

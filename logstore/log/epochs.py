"""Exactly-once output: runs, decisions, and an epoch's way into all its streams.

A query stages its tasks' output, then decides an epoch: which attempts count. The decision is one durable record; from
then on the epoch is published stream by stream, by this life of the sidecar or by the next.

Invariants:
* An epoch of a query is decided at most once, and only above the last decided one; a decided epoch reaches each of its
  streams exactly once, from the attempts that were named.
* A new run of a query is durable before it is answered, and from then on no older run stages or decides.
* `decide` answers "committed" only when END is synced in every stream. Staged data goes only after that; until the mark is
  durable, streams are pinned where a restart would search for the END.
* A decision whose record failed counts as possible until another put of the ledger succeeded; its staged data stays.
* One epoch per query is under way; later decisions wait for it. States and events: `decisions.TRANSITIONS`.

It knows no sockets, no clock and no event loop. Source: DESIGN "Exactly once"; the CEC paper's append groups.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from logstore.errors import (
    CairnError,
    FencedRun,
    StagedMissing,
    StaleEpoch,
    StorageFailed,
    UnknownTopicOrPartition,
)
from logstore.format.private import (
    AbortReply,
    AbortRequest,
    DecideReply,
    DecideRequest,
    DescribeReply,
    StageReply,
    StageRequest,
    TaskOutput,
)
from logstore.format.staged import AttemptKey
from logstore.interfaces import Buffer
from logstore.log.decisions import (
    BUSY,
    DECISION,
    LAST,
    MAX_RUNS,
    RUNS,
    TRANSITIONS,
    Decision,
    Event,
    Last,
    Runs,
    State,
    Target,
    decode_decision,
    decode_last,
    decode_runs,
    encode_decision,
    encode_last,
    encode_runs,
)
from logstore.log.publication import Limits, Publication, check_part, holds_end
from logstore.log.staging import Attempt, Ready, Report, Staging
from logstore.log.ticket import Ticket

PUBLISH_WINDOW: Final = 4
"""Streams of one epoch published at a time: each holds two pieces of 1 MiB."""
DEFAULT_STAGED_AGE_MS: Final = 24 * 3600 * 1000
"""Staged output nobody decided upon for so long is dropped; its query would stage it again."""
DEFAULT_FORGET_MS: Final = 7 * 24 * 3600 * 1000
"""How long a batch job, or a query that never decided anything, is remembered."""


class Pin(Protocol):
    """Holds back trimming."""

    def release(self) -> None:
        """Let go."""


class GroupStream(Protocol):
    """What an epoch needs of a stream."""

    @property
    def high_watermark(self) -> int:
        """The offset behind the last durable record."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that is there."""

    def append_group(self, group: Publication) -> Ticket["Appended"]:
        """Append a group."""

    def pin(self, offset: int) -> Pin:
        """Hold back trimming at an offset."""


Appended = object
"""Whatever a stream says of an append; nothing of it is needed here."""


class Streams(Protocol):
    """The streams by name."""

    def stream(self, topic: str, partition: int) -> GroupStream:
        """A stream. UnknownTopicOrPartition."""

    def limits(self, topic: str) -> Limits:
        """The settings of a topic that exists."""

    def topic_id(self, topic: str) -> str:
        """What tells a topic from another of the same name. UnknownTopicOrPartition."""


class Map(Protocol):
    """The ledger, as far as it is needed here (`logstore.log.ledger.Ledger`)."""

    def items(self, prefix: str = "") -> Iterable[tuple[str, bytes]]:
        """Pairs whose key starts with a prefix."""

    def put(self, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        """Set keys (None deletes), all or nothing."""


@dataclass(slots=True)
class Search:
    """A stream in which a decided epoch's END has to be looked for after a restart, from an offset on."""

    query: str
    target: Target


@dataclass(eq=False, slots=True)
class _Commit:
    """An epoch under way: what is decided, and which streams still lack it.

    `earlier` are commits whose record is not known to be superseded; their pins and staged data are held with this one's.
    """

    decision: Decision
    last: Last
    remaining: list[Target]
    pins: list[Pin] = field(default_factory=list)
    earlier: list["_Commit"] = field(default_factory=list)
    waiters: list[Callable[[CairnError | None], None]] = field(default_factory=list)
    in_flight: int = 0
    error: CairnError | None = None
    done: set[Target] = field(default_factory=set)

    def covers(self, key: AttemptKey) -> bool:
        """Whether an attempt's staged data may be needed for this commit."""
        decision = self.decision
        if (key.query, key.run, key.epoch) == (decision.query, decision.run, decision.epoch):
            return TaskKey(key.task, key.attempt) in self.attempts
        return any(commit.covers(key) for commit in self.earlier)

    @property
    def attempts(self) -> "set[TaskKey]":
        return {TaskKey(task.task, task.attempt) for task in self.decision.tasks}

    def release_pins(self) -> None:
        """Let go of the streams."""
        for commit in (self, *self.earlier):
            for pin in commit.pins:
                pin.release()
            commit.pins.clear()
        self.earlier.clear()


TaskKey = tuple

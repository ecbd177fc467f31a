"""A query as the epochs know it: its incarnations, its last epoch, the commit in progress, and where this commit is.

Invariant: `state` changes by `move` alone, along `ledger_entries.TRANSITIONS`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.base.states import following
from logstore.epochs.commit_in_progress import CommitInProgress
from logstore.epochs.epoch_block import EpochBlock
from logstore.epochs.ledger_entries import TRANSITIONS, EpochEvent, EpochState, Incarnations, LastEpoch, Target
from logstore.format.operator_api import QuerySummary
from logstore.format.staged import AttemptKey
from logstore.log.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Search:
    """A stream that must be searched for a committed epoch's END after a restart."""

    query: str
    target: Target
    from_offset: int


class QueryProgress(NamedTuple):
    """Where a query is: its incarnations so far, and its last committed epoch with the time in ms since the Unix epoch
    (None: it has none).
    """

    name: str
    state: EpochState
    incarnation_number: int
    epoch: int | None
    committed_ms: int | None


@dataclass(eq=False, slots=True)
class Query:
    """The state of a query.

    `admitted` settles once the newest incarnation is durable. `tried` settles once it is known whether a block of the
    journal has the commit in progress. `carried_out` settles once the epoch in progress is in all its streams, or fails
    with the error that prevented that. `narrowed` settles when the ledger was given a commit record without the streams
    that have the epoch. `block`: the last epoch's decision is in the journal, and not in the ledger.
    `keeps_published`: an epoch's staged data is needed until the ledger says that the epoch is over.
    """

    name: str
    incarnations: Incarnations
    admitted: Ticket[None]
    last: LastEpoch | None = None
    state: EpochState = EpochState.IDLE
    commit: CommitInProgress | None = None
    tried: Ticket[bool] = field(default_factory=lambda: Ticket.succeeded(False))
    carried_out: Ticket[None] = field(default_factory=lambda: Ticket.succeeded(None))
    finished: Ticket[None] = field(default_factory=lambda: Ticket.succeeded(None))
    narrowed: Ticket[None] = field(default_factory=lambda: Ticket.succeeded(None))
    block: EpochBlock | None = None
    keeps_published: bool = False

    def move(self, event: EpochEvent) -> None:
        """Take the step for `event` in TRANSITIONS."""
        self.state = following(TRANSITIONS, self.state, event, f"query {self.name!r}")

    @property
    def under_way(self) -> CommitInProgress:
        """The commit in progress; only for states that have one."""
        if self.commit is None:
            raise AssertionError(f"query {self.name!r} has no commit in state {self.state.value}")
        return self.commit

    @property
    def is_certain(self) -> bool:
        """Whether no commit may be in the ledger that the query does not know to be there: only then a block may be
        tried, because a start would take the ledger's record of an epoch, and find the block's groups beside it.
        """
        return self.state is not EpochState.UNSURE

    @property
    def owes(self) -> bool:
        """Whether the commit in progress counts as decided, and neither journal nor ledger surely has it."""
        return self.commit is not None and self.commit.is_owed

    def hold(self, block: EpochBlock | None) -> None:
        """Hold the journal for this decision; it takes the place of the one before."""
        before, self.block = self.block, block
        if before is not None:
            before.release()

    def covers(self, key: AttemptKey) -> bool:
        """Whether the commit in progress may still need an attempt's staged data."""
        is_over = self.state is EpochState.PUBLISHED and not self.keeps_published
        return self.commit is not None and not is_over and self.commit.covers(key)

    @property
    def progress(self) -> QueryProgress:
        """What is told about the query."""
        last = self.last
        return QueryProgress(
            self.name,
            self.state,
            self.incarnations.count,
            None if last is None else last.epoch,
            None if last is None else last.committed_ms,
        )

    def summary(self, *, staged_bytes: int, staged_attempts: int) -> QuerySummary:
        """What operators see of the query, with what it has staged."""
        last = self.last
        return QuerySummary(
            query=self.name,
            incarnation=self.incarnations.tokens[-1],
            incarnation_number=self.incarnations.count,
            seen_ms=self.incarnations.seen_ms,
            last_epoch=None if last is None else last.epoch,
            committed_ms=None if last is None else last.committed_ms,
            state=self.state.value,
            streams_left=0 if self.commit is None else len(self.commit.remaining),
            staged_bytes=staged_bytes,
            staged_attempts=staged_attempts,
            is_batch_job=last is not None and last.forget,
            topics=() if last is None else last.topics,
        )

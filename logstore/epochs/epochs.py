"""Exactly-once output: runs, decisions, and the publication of an epoch in all its streams.

A query stages its tasks' output, then decides an epoch: it names the attempts that count. The decision is one durable
record; from then on this life of the sidecar, or the next, publishes the epoch stream by stream.

Invariants:
* An epoch of a query is decided at most once, and only above the last decided epoch; each of its streams gets a decided
  epoch exactly once, from the named attempts.
* A new run of a query is durable before its first request is answered; from then on no older run can stage or decide.
* `decide` answers "committed" only when END is synced in every stream. Staged data is removed only after that; until
  the mark is durable, streams are pinned from where a restart would search for the END.
* A decision whose record failed counts as possible until a later put of the ledger succeeds; its staged data stays.
* At most one epoch per query is in progress; later decisions wait for it. States and events: `decisions.TRANSITIONS`.

`_decide` shows the order of events, from the request to the answer. No sockets, no clock and no event loop.

Sources: docs/format.md, "Epochs"; CEC paper, section IX.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from logstore.base.events import Report
from logstore.epochs.append_group import check_part, holds_end
from logstore.epochs.decisions import (
    BUSY,
    DECISION,
    LAST,
    MAX_RUNS,
    RUNS,
    TRANSITIONS,
    Decision,
    EpochEvent,
    EpochState,
    Last,
    Runs,
    Target,
    decode_decision,
    decode_last,
    decode_runs,
    encode_decision,
    encode_last,
    encode_runs,
)
from logstore.epochs.publisher import Commit, Publisher
from logstore.epochs.staging import Attempt, Staging
from logstore.errors import CairnError, CorruptFile, FencedRun, MalformedRequest, StagedMissing, StaleEpoch
from logstore.events import EPOCH_ROLLED_FORWARD, EPOCH_STUCK, STAGED_DATA_EXPIRED
from logstore.format.epoch_api import (
    AbortReply,
    AbortRequest,
    DecideReply,
    DecideRequest,
    DescribeReply,
    StageReply,
    StageRequest,
)
from logstore.format.staged import AttemptKey
from logstore.interfaces import Buffer
from logstore.log.coroutines import all_settled, start
from logstore.log.store import Store
from logstore.log.ticket import Ticket

DEFAULT_STAGED_AGE_MS: Final = 24 * 3600 * 1000
"""Age at which staged output of undecided epochs is dropped; its query would stage it again."""
DEFAULT_FORGET_MS: Final = 7 * 24 * 3600 * 1000
"""How long a batch job, or a query that never decided an epoch, is remembered."""


@dataclass(frozen=True, slots=True)
class Search:
    """A stream that must be searched for a decided epoch's END after a restart."""

    query: str
    target: Target
    from_offset: int


@dataclass(eq=False, slots=True)
class _Query:
    """The state of a query.

    `admitted` settles once the newest run is durable. `carried_out` settles once the epoch in progress is in all its
    streams, or fails with the error that prevented that.
    """

    name: str
    runs: Runs
    admitted: Ticket[None]
    last: Last | None = None
    state: EpochState = EpochState.IDLE
    commit: Commit | None = None
    carried_out: Ticket[None] = field(default_factory=lambda: Ticket.succeeded(None))

    def move(self, event: EpochEvent) -> None:
        """Take the step for `event` in TRANSITIONS."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise AssertionError(f"query {self.name!r}: {event.value} in state {self.state.value}")
        self.state = following

    @property
    def under_way(self) -> Commit:
        """The commit in progress; only for states that have one."""
        if self.commit is None:
            raise AssertionError(f"query {self.name!r} has no commit in state {self.state.value}")
        return self.commit

    def covers(self, key: AttemptKey) -> bool:
        """Whether the commit in progress may still need an attempt's staged data."""
        return self.commit is not None and self.state is not EpochState.PUBLISHED and self.commit.covers(key)


class Epochs:
    """The epochs of all queries. `report` reports events to the operator."""

    def __init__(
        self,
        store: Store,
        staging: Staging,
        report: Report,
        *,
        staged_age_ms: int = DEFAULT_STAGED_AGE_MS,
        forget_ms: int = DEFAULT_FORGET_MS,
    ) -> None:
        self._store = store
        self._ledger = store.epochs
        self._staging = staging
        self._publisher = Publisher(staging, store, report)
        self._report = report
        self._staged_age_ms = staged_age_ms
        self._forget_ms = forget_ms
        self._queries: dict[str, _Query] = {}
        self._recover()

    # ---- at start

    def _recover(self) -> None:
        """Read the ledger; drop staged data that no run can decide now. Raises CorruptFile, UnknownFormatVersion."""
        for key, value in self._ledger.items(RUNS):
            name = key.removeprefix(RUNS)
            self._queries[name] = _Query(name, decode_runs(name, value), Ticket.succeeded(None))
        for key, value in self._ledger.items(LAST):
            name = key.removeprefix(LAST)
            self._known(name, key).last = decode_last(name, value)
        for key, value in self._ledger.items(DECISION):
            name = key.removeprefix(DECISION)
            query = self._known(name, key)
            if query.last is None:
                raise CorruptFile(f"the ledger has {key!r} without {LAST + name!r}; restore it from a copy")
            query.commit = Commit(decode_decision(name, value), query.last)
            query.move(EpochEvent.RECOVERED)
            self._pin(query.commit)
        for attempt in self._staging.all_attempts():
            owner = self._queries.get(attempt.key.query)
            if owner is None or (attempt.key.run != owner.runs.tokens[-1] and not owner.covers(attempt.key)):
                self._staging.drop([attempt])
        for query in self._queries.values():
            self._drop_old(query)

    def _known(self, name: str, key: str) -> _Query:
        query = self._queries.get(name)
        if query is None:
            raise CorruptFile(f"the ledger has {key!r} without {RUNS + name!r}; restore it from a copy")
        return query

    def searches(self) -> list[Search]:
        """Searches, before serving, for groups that a former life already published. Answer each with `found`."""
        searches = []
        for query in self._queries.values():
            if query.state is EpochState.DECIDED and query.commit is not None:
                for target in query.commit.remaining:
                    stream = self._publisher.find(target)
                    if stream is not None:
                        offset = max(target.start_offset, stream.log_start_offset)
                        searches.append(Search(query.name, target, min(offset, stream.high_watermark)))
        return searches

    def found(self, search: Search, controls: Iterable[tuple[int, Buffer]]) -> None:
        """Answer a search with the control batches (offset, bytes) from `search.from_offset` to the high watermark.

        Raises CorruptBatch or UnknownFormatVersion.
        """
        commit = self._queries[search.query].commit
        if commit is not None and holds_end(commit.decision, controls):
            commit.remaining.remove(search.target)

    def roll_forward(self) -> Ticket[None]:
        """Publish decided epochs that are not in all their streams; before serving, once all searches are answered.

        The ticket never fails: an epoch that cannot be published is reported, stays decided and is retried.
        """
        decided = [query for query in self._queries.values() if query.state is EpochState.DECIDED]
        for query in decided:
            commit = query.under_way
            query.move(EpochEvent.SEARCHED)
            self._report(
                EPOCH_ROLLED_FORWARD,
                query=query.name,
                epoch=commit.decision.epoch,
                streams=len(commit.remaining),
            )
            query.carried_out = start(self._publish(query, commit))
        return start(all_settled([query.carried_out for query in decided]))

    # ---- requests

    def stage(self, request: StageRequest, *, now_ms: int) -> Ticket[StageReply]:
        """Stage one piece of a task attempt's output; settles when the piece and the run are durable.

        Raises at once, or fails with: FencedRun, StaleEpoch (the epoch is decided, this attempt's part in it complete),
        StagePosition, UnknownTopicOrPartition, MalformedRequest, the errors of `append_group.check_part`,
        StorageFailed.
        """
        self._refuse_fenced(request.query, request.run)
        key = AttemptKey(request.query, request.run, request.epoch, request.task, request.attempt)
        known = self._staging.get(key)
        query = self._queries.get(request.query)
        if query is not None and query.covers(key) and (known is None or request.position >= len(known.frames)):
            raise StaleEpoch(f"epoch {request.epoch} of query {request.query!r} is decided; nothing can be added to it")
        data = memoryview(request.data)
        position = 0
        for part in request.parts:
            stream = self._store.stream(part.topic, part.partition)
            check_part(part, data[position : position + part.length_bytes], stream.config, now_ms)
            position += part.length_bytes
        if position != len(data):
            raise MalformedRequest(f"parts of {position} bytes in all, but {len(data)} bytes of data")
        query = self._admit(request.query, request.run, now_ms)
        staged = self._staging.stage(key, request.position, request.parts, request.data, now_ms=now_ms)
        return start(self._answer_staged(query.admitted, staged))

    @staticmethod
    async def _answer_staged(admitted: Ticket[None], staged: Ticket[int]) -> StageReply:
        await all_settled((admitted, staged))
        admitted.result()
        return StageReply(staged.result())

    def decide(self, request: DecideRequest, *, now_ms: int) -> Ticket[DecideReply]:
        """Commit an epoch; settles when the epoch is in all its streams, now or before the request.

        Raises or fails with: FencedRun, StaleEpoch (a checkpoint was rewound), StagedMissing, UnknownTopicOrPartition,
        StorageFailed (retry the same request), CorruptFile (decided, but staged data was damaged since: an operator has
        to act).
        """
        self._refuse_fenced(request.query, request.run)
        return start(self._decide(self._admit(request.query, request.run, now_ms), request, now_ms))

    async def _decide(self, query: _Query, request: DecideRequest, now_ms: int) -> DecideReply:
        """Take an epoch from the request to the answer."""
        await query.admitted
        await self._wait_for_turn(query)
        self._refuse_fenced(request.query, request.run)
        if query.last is not None and request.epoch <= query.last.epoch:
            return self._answer_old(query, request, query.last)
        decision = self._make_decision(query, request)
        commit = Commit(decision, Last(request.epoch, now_ms, request.forget, request.positions))
        self._replace_commit(query, commit)
        query.carried_out = start(self._carry_out(query, commit))
        await query.carried_out
        return DecideReply("committed", request.epoch)

    async def _wait_for_turn(self, query: _Query) -> None:
        """Wait until no epoch of the query is in progress. Raises the error of the epoch before, if it failed."""
        while query.state in BUSY:
            if query.state is EpochState.DECIDED:
                raise AssertionError("a sidecar rolls forward before it serves")
            if query.state is EpochState.STUCK:
                self._retry(query)
            await query.carried_out

    async def _carry_out(self, query: _Query, commit: Commit) -> None:
        """Record the decision, then publish it. Raises StorageFailed, CorruptFile, UnknownTopicOrPartition."""
        await self._record(query, commit)
        await self._publish(query, commit)

    def abort(self, request: AbortRequest) -> Ticket[AbortReply]:
        """Drop a run's staged output of an epoch, unless the epoch is or may be decided. Raises FencedRun."""
        self._refuse_fenced(request.query, request.run)
        query = self._queries.get(request.query)
        if query is None:
            return Ticket.succeeded(AbortReply(0))
        return start(self._abort(query, request))

    async def _abort(self, query: _Query, request: AbortRequest) -> AbortReply:
        await self._retract(query)
        attempts = [
            attempt
            for attempt in self._staging.attempts(request.query)
            if (attempt.key.run, attempt.key.epoch) == (request.run, request.epoch) and not query.covers(attempt.key)
        ]
        return AbortReply(self._staging.drop(attempts))

    def describe(self, query_name: str) -> DescribeReply:
        """The state of a query."""
        query = self._queries.get(query_name)
        attempts = self._staging.attempts(query_name)
        return DescribeReply(
            last_epoch=query.last.epoch if query is not None and query.last is not None else None,
            run=query.runs.tokens[-1] if query is not None else None,
            state=(query.state if query is not None else EpochState.IDLE).value,
            staged_bytes=sum(attempt.size_bytes for attempt in attempts),
            staged_attempts=len(attempts),
            positions=query.last.positions if query is not None and query.last is not None else "",
        )

    def tick(self, *, now_ms: int) -> None:
        """Retry failed steps, and drop staged data and queries that are too old. Call it every few seconds."""
        for query in list(self._queries.values()):
            if query.state is EpochState.STUCK:
                self._retry(query)
            elif query.state is EpochState.UNSURE:
                start(self._retract(query))
            elif query.state is EpochState.PUBLISHED:
                start(self._mark(query, query.under_way))
            self._expire(query, now_ms)

    # ---- runs

    def _refuse_fenced(self, name: str, run: str) -> None:
        query = self._queries.get(name)
        if query is not None and run in query.runs.tokens[:-1]:
            raise FencedRun(
                f"run {run!r} of query {name!r} has been replaced by run {query.runs.tokens[-1]!r}; stop this one"
            )

    def _admit(self, name: str, run: str, now_ms: int) -> _Query:
        """The query, with `run` as its newest run; `admitted` settles when the run is durable."""
        query = self._queries.get(name)
        if query is None:
            query = self._queries[name] = _Query(name, Runs((run,), 1, now_ms), Ticket())
        elif query.runs.tokens[-1] != run:
            query.runs = Runs((*query.runs.tokens, run)[-MAX_RUNS:], query.runs.count + 1, now_ms)
            fenced = [attempt for attempt in self._staging.attempts(name) if not query.covers(attempt.key)]
            self._staging.drop(fenced)
        elif not (query.admitted.done and query.admitted.error is not None):
            return query
        query.admitted = self._ledger.put({f"{RUNS}{name}": encode_runs(query.runs)})
        return query

    # ---- deciding

    def _answer_old(self, query: _Query, request: DecideRequest, last: Last) -> DecideReply:
        """The answer for an epoch that is not above the last one: duplicate, error (rewound), or skipped."""
        if request.epoch == last.epoch:
            self._drop_old(query)
            return DecideReply("duplicate", last.epoch, last.positions)
        if request.rewind == "error":
            raise StaleEpoch(
                f"epoch {request.epoch} of query {query.name!r} is older than the last committed epoch {last.epoch}: "
                "its checkpoint was rewound. Restore the newer checkpoint, or start with a new one and a new topic, or "
                "set the option that skips epochs up to the last committed one"
            )
        self._drop_old(query)
        return DecideReply("skipped", last.epoch)

    def _make_decision(self, query: _Query, request: DecideRequest) -> Decision:
        """The record of the decision that a request asks for. Raises StagedMissing, UnknownTopicOrPartition."""
        places: set[tuple[str, int]] = set()
        for task in request.tasks:
            if not task.frames:
                continue
            key = AttemptKey(request.query, request.run, request.epoch, task.task, task.attempt)
            attempt = self._staging.get(key)
            self._check_complete(key, attempt, task.frames)
            if attempt is not None:
                for frame in attempt.frames:
                    places.update((p.topic, p.partition) for p in frame.header.parts if p.length_bytes)
        targets = []
        for topic, partition in sorted(places):
            start_offset = self._store.stream(topic, partition).high_watermark
            targets.append(Target(topic, str(self._store.topic(topic).topic_id), partition, start_offset))
        return Decision(
            query=query.name,
            run=request.run,
            run_number=query.runs.count,
            epoch=request.epoch,
            positions=request.positions,
            tasks=tuple(sorted((task for task in request.tasks if task.frames), key=lambda task: task.task)),
            targets=tuple(targets),
        )

    def _check_complete(self, key: AttemptKey, attempt: Attempt | None, frames: int) -> None:
        here = attempt.durable_frames if attempt is not None and attempt.failure is None else 0
        if attempt is None or here != frames or len(attempt.frames) != frames:
            raise StagedMissing(
                f"task {key.task} of epoch {key.epoch} of query {key.query!r}: attempt {key.attempt!r} should have "
                f"{frames} staged pieces, {here} are here; nothing was committed, run the epoch again"
            )

    def _replace_commit(self, query: _Query, commit: Commit) -> None:
        """Set `commit` as the query's commit; it takes over earlier commits whose record may still be on disk."""
        self._pin(commit)
        if query.commit is not None:
            commit.earlier = [query.commit, *query.commit.earlier]
            query.commit.earlier = []
        query.commit = commit
        query.move(EpochEvent.DECIDE)

    async def _record(self, query: _Query, commit: Commit) -> None:
        """Make the decision durable; from then on this life or the next publishes the epoch. Raises StorageFailed."""
        try:
            await self._ledger.put(
                {
                    f"{DECISION}{query.name}": encode_decision(commit.decision),
                    f"{LAST}{query.name}": encode_last(commit.last),
                }
            )
        except CairnError:
            query.move(EpochEvent.REFUSED)
            raise
        query.move(EpochEvent.RECORDED)
        query.last = commit.last
        for earlier in commit.earlier:
            earlier.release_pins()
        commit.earlier.clear()

    async def _retract(self, query: _Query) -> None:
        """Make sure that a decision whose record failed is not on disk: the next put replaces that record.

        An older decision that may be on disk instead is already published, so this put is also its mark.
        """
        if query.state is not EpochState.UNSURE:
            return
        commit = query.under_way
        if await self._remove_decision(query) and query.commit is commit and query.state is EpochState.UNSURE:
            query.move(EpochEvent.RETRACTED)
            self._let_go(query)

    async def _remove_decision(self, query: _Query) -> bool:
        """Remove the query's decision from the ledger; returns whether the removal is durable."""
        removed = self._ledger.put({f"{DECISION}{query.name}": None})
        await removed.settled()
        return removed.error is None

    # ---- publishing

    def _pin(self, commit: Commit) -> None:
        for target in commit.decision.targets:
            stream = self._publisher.find(target)
            if stream is not None:
                commit.pins.append(stream.pin(target.start_offset))

    async def _publish(self, query: _Query, commit: Commit) -> None:
        """Append the epoch's groups, drop its staged data, and start the mark; the answer does not wait for the mark.

        Raises StorageFailed, CorruptFile or UnknownTopicOrPartition: the epoch stays decided, `_retry` continues.
        """
        try:
            await self._publisher.publish(commit)
        except CairnError as error:
            query.move(EpochEvent.FAILED)
            if commit.reported_error != str(error):
                commit.reported_error = str(error)
                self._report(EPOCH_STUCK, query=query.name, epoch=commit.decision.epoch, error=str(error))
            raise
        query.move(EpochEvent.APPENDED)
        self._drop_old(query)
        start(self._mark(query, commit))

    def _retry(self, query: _Query) -> None:
        query.move(EpochEvent.RETRY)
        query.carried_out = start(self._publish(query, query.under_way))

    async def _mark(self, query: _Query, commit: Commit) -> None:
        """Record durably that the epoch is in all its streams; the pins hold until then."""
        if commit.marking:
            return
        commit.marking = True
        removed = await self._remove_decision(query)
        commit.marking = False
        if removed and query.commit is commit and query.state is EpochState.PUBLISHED:
            query.move(EpochEvent.MARKED)
            self._let_go(query)

    def _let_go(self, query: _Query) -> None:
        if query.commit is not None:
            query.commit.release_pins()
            query.commit = None

    # ---- forgetting

    def _drop_old(self, query: _Query) -> None:
        """Drop staged data of epochs that are finished."""
        if query.last is not None:
            last_epoch = query.last.epoch
            attempts = self._staging.attempts(query.name)
            self._staging.drop([a for a in attempts if a.key.epoch <= last_epoch and not query.covers(a.key)])

    def _expire(self, query: _Query, now_ms: int) -> None:
        attempts = self._staging.attempts(query.name)
        old = [a for a in attempts if a.last_staged_ms + self._staged_age_ms < now_ms and not query.covers(a.key)]
        if old:
            dropped_bytes = self._staging.drop(old)
            self._report(STAGED_DATA_EXPIRED, query=query.name, attempts=len(old), bytes=dropped_bytes)
        over = query.state is EpochState.IDLE and len(attempts) == len(old) and query.admitted.done
        unused = query.last is None and query.runs.seen_ms + self._forget_ms < now_ms
        finished = query.last is not None and query.last.forget and query.last.decided_ms + self._forget_ms < now_ms
        if over and (unused or finished):
            del self._queries[query.name]
            self._ledger.put({f"{RUNS}{query.name}": None, f"{LAST}{query.name}": None})

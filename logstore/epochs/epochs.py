"""Exactly-once output: incarnations, commits, and the publication of an epoch in all its streams.

A query stages its tasks' output, then commits an epoch: it names the attempts that count. If all of it is small, the
decision and the groups of all streams are one block of the journal: one sync decides and publishes. Otherwise the
commit record is one durable record of the ledger; from then on this life of the sidecar, or the next, publishes the
epoch stream by stream.

Invariants:
* An epoch of a query is committed at most once, and only above the last committed epoch; each of its streams gets a
  committed epoch exactly once, from the named attempts.
* A new incarnation of a query is durable before its first request is answered; from then on no older incarnation can
  stage or commit.
* `commit` answers "committed" only when END is synced in every stream. Staged data is removed only after that, and in a
  cluster only when the ledger says durably that the epoch is over; until it does, the streams of a host alone are
  pinned from where a restart would search for the END. In a cluster a stream is pinned until the ledger says durably
  that the epoch is over, or that this stream has it.
* A commit whose record failed counts as possible until a later put of the ledger succeeds; its staged data stays.
* A commit whose block failed counts as made: the same record goes to the ledger, until that succeeds, and is published
  as any other. It is never taken back, and no block is tried while a record of another commit may be in the ledger.
* A newer incarnation is durable only once it is known whether a block has the commit in progress.
* At most one epoch per query is in progress; later commits wait for it. States and events:
  `ledger_entries.TRANSITIONS`.

`_commit` shows the order of events, from the request to the answer. No sockets, no clock and no event loop.

Sources: docs/format.md, "Epochs"; CEC paper, section IX (output is stored before it is forwarded).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from logstore.base.events import Report
from logstore.epochs.append_group import check_part, holds_end
from logstore.epochs.commit_in_progress import CommitInProgress
from logstore.epochs.commit_request import MayPublish, anybody, make_record, named_places
from logstore.epochs.epoch_block import BlockOutcome
from logstore.epochs.ledger_entries import (
    BUSY,
    COMMIT_RECORD,
    INCARNATIONS,
    LAST,
    MAX_INCARNATIONS,
    CommitRecord,
    EpochEvent,
    EpochState,
    Incarnations,
    LastEpoch,
    decision_entries,
    decode_commit_record,
    decode_incarnations,
    decode_last_epoch,
    encode_commit_record,
    encode_incarnations,
    encode_last_epoch,
    last_of,
)
from logstore.epochs.parts import EpochParts
from logstore.epochs.query import Query, QueryProgress, Search
from logstore.errors import (
    CairnError,
    CorruptFile,
    FencedIncarnation,
    MalformedRequest,
    StaleEpoch,
    StorageFailed,
)
from logstore.events import EPOCH_ROLLED_FORWARD, EPOCH_STUCK, STAGED_DATA_EXPIRED
from logstore.format.epoch_api import (
    AbortReply,
    AbortRequest,
    DescribeReply,
    EpochCommitReply,
    EpochCommitRequest,
    StageReply,
    StageRequest,
)
from logstore.format.ledger_frame import encode_changes
from logstore.format.operator_api import QuerySummary
from logstore.format.staged import AttemptKey
from logstore.interfaces import Buffer
from logstore.log.coroutines import all_settled, start
from logstore.log.ticket import Ticket

DEFAULT_STAGED_AGE_MS: Final = 24 * 3600 * 1000
"""Age at which staged output of uncommitted epochs is dropped; its query would stage it again."""
DEFAULT_FORGET_MS: Final = 7 * 24 * 3600 * 1000
"""How long a batch job, or a query that never committed an epoch, is remembered."""


class Epochs:
    """The epochs of all queries. `report` reports events to the operator."""

    def __init__(
        self,
        parts: EpochParts,
        report: Report,
        *,
        staged_age_ms: int = DEFAULT_STAGED_AGE_MS,
        forget_ms: int = DEFAULT_FORGET_MS,
    ) -> None:
        self._ledger, self._staging, self._publisher, self._space, self._clock = parts
        self._report = report
        self._staged_age_ms = staged_age_ms
        self._forget_ms = forget_ms
        self._queries: dict[str, Query] = {}
        self.committed = 0
        """Epochs whose commit became durable since the start."""
        self.aborted = 0
        """Requests since the start that dropped an epoch's staged output."""
        self._recover()
        self._space.promise(lambda: self._staging.used_bytes)
        self._space.when_short(self._expire_all)

    # ---- at start

    def _recover(self) -> None:
        """Read the ledger; drop staged data that no incarnation can commit now.

        Raises CorruptFile, UnknownFormatVersion.
        """
        for key, value in self._ledger.items(INCARNATIONS):
            name = key.removeprefix(INCARNATIONS)
            self._new_query(name, decode_incarnations(name, value), Ticket.succeeded(None))
        for key, value in self._ledger.items(LAST):
            name = key.removeprefix(LAST)
            self._known(name, key).last = decode_last_epoch(name, value)
        for key, value in self._ledger.items(COMMIT_RECORD):
            name = key.removeprefix(COMMIT_RECORD)
            query = self._known(name, key)
            if query.last is None:
                raise CorruptFile(f"the ledger has {key!r} without {LAST + name!r}; restore it from a copy")
            query.commit = CommitInProgress(decode_commit_record(name, value), query.last)
            query.move(EpochEvent.RECOVERED)
            query.commit.pins += self._publisher.pins(query.commit.record)
        for staged in [attempt.key for attempt in self._staging.all_attempts()]:
            owner = self._queries.get(staged.query)
            if owner is None or (staged.incarnation != owner.incarnations.tokens[-1] and not owner.covers(staged)):
                self._staging.drop([staged])
        for query in self._queries.values():
            self._drop_old(query)

    def _new_query(self, name: str, incarnations: Incarnations, admitted: Ticket[None]) -> Query:
        keeps_published = not self._publisher.finds_published
        return self._queries.setdefault(name, Query(name, incarnations, admitted, keeps_published=keeps_published))

    def _known(self, name: str, key: str) -> Query:
        query = self._queries.get(name)
        if query is None:
            raise CorruptFile(f"the ledger has {key!r} without {INCARNATIONS + name!r}; restore it from a copy")
        return query

    def searches(self) -> list[Search]:
        """Searches, before serving, for groups that a former life already published. Answer each with `found`."""
        searches = []
        for query in self._queries.values():
            if query.state is EpochState.COMMITTED and query.commit is not None:
                for target in query.commit.remaining:
                    offset = self._publisher.search_from(target)
                    if offset is not None:
                        searches.append(Search(query.name, target, offset))
        return searches

    def found(self, search: Search, controls: Iterable[tuple[int, Buffer]]) -> None:
        """Answer a search with control batches (offset, bytes): all from `search.from_offset` to the high watermark, in
        one call or in many.

        Raises CorruptBatch or UnknownFormatVersion.
        """
        commit = self._queries[search.query].commit
        if commit is not None and holds_end(commit.record, controls):
            commit.remaining.pop(search.target, None)

    def roll_forward(self) -> Ticket[None]:
        """Publish committed epochs that are not in all their streams; before serving, once all searches are answered.

        The ticket never fails: an epoch that cannot be published is reported, stays committed and is retried.
        """
        committed = [query for query in self._queries.values() if query.state is EpochState.COMMITTED]
        for query in committed:
            commit = query.under_way
            query.move(EpochEvent.SEARCHED)
            self._report(
                EPOCH_ROLLED_FORWARD,
                query=query.name,
                epoch=commit.record.epoch,
                streams=len(commit.remaining),
            )
            query.carried_out = start(self._publish(query, commit))
        return start(all_settled([query.carried_out for query in committed]))

    # ---- requests

    def stage(self, request: StageRequest, *, now_ms: int) -> Ticket[StageReply]:
        """Stage one segment of a task attempt's output; settles when the segment and the incarnation are durable.

        Raises at once, or fails with: FencedIncarnation, StaleEpoch (the epoch is committed with all that this attempt
        staged before), StagePosition, UnknownTopicOrPartition, MalformedRequest, the errors of
        `append_group.check_part`, StorageFailed.
        """
        self._refuse_fenced(request.query, request.incarnation)
        key = AttemptKey(request.query, request.incarnation, request.epoch, request.task, request.attempt)
        known = self._staging.get(key)
        query = self._queries.get(request.query)
        if query is not None and query.covers(key) and (known is None or request.position >= len(known.segments)):
            raise StaleEpoch(
                f"epoch {request.epoch} of query {request.query!r} is committed; nothing can be added to it"
            )
        data = memoryview(request.data)
        position = 0
        for part in request.parts:
            config = self._publisher.config(part.topic, part.partition)
            check_part(part, data[position : position + part.length_bytes], config, now_ms)
            position += part.length_bytes
        if position != len(data):
            raise MalformedRequest(f"parts of {position} bytes in all, but {len(data)} bytes of data")
        self._space.admit(len(data), promised_bytes=len(data))
        query = self._admit(request.query, request.incarnation, now_ms)
        staged = self._staging.stage(key, request.position, request.parts, request.data, now_ms=now_ms)
        return start(self._answer_staged(query.admitted, staged))

    @staticmethod
    async def _answer_staged(admitted: Ticket[None], staged: Ticket[int]) -> StageReply:
        await all_settled((admitted, staged))
        admitted.result()
        return StageReply(staged.result())

    def commit(
        self, request: EpochCommitRequest, *, now_ms: int, may_publish: MayPublish = anybody
    ) -> Ticket[EpochCommitReply]:
        """Commit an epoch; settles when the epoch is in all its streams, now or before the request. `may_publish` is
        asked for the topics that the epoch has output for, just before it is decided.

        Raises or fails with: FencedIncarnation, StaleEpoch (a checkpoint was rewound), StagedMissing, what
        `may_publish` raises, UnknownTopicOrPartition, StorageFailed (retry the same request), CorruptFile (committed,
        but staged data was damaged since: an operator has to act).
        """
        self._refuse_fenced(request.query, request.incarnation)
        return start(
            self._commit(self._admit(request.query, request.incarnation, now_ms), request, now_ms, may_publish)
        )

    async def _commit(
        self, query: Query, request: EpochCommitRequest, now_ms: int, may_publish: MayPublish
    ) -> EpochCommitReply:
        """Take an epoch from the request to the answer."""
        await query.admitted
        await self._take_turn(query, request)
        self._refuse_fenced(request.query, request.incarnation)
        if query.last is not None and request.epoch <= query.last.epoch:
            return self._answer_old(query, request, query.last)
        record = make_record(request, query.incarnations.count, self._staging, self._publisher, may_publish)
        commit = CommitInProgress(record, last_of(record, query.last, now_ms, forget=request.forget))
        is_certain = query.is_certain
        self._replace_commit(query, commit)
        query.tried = start(self._try_block(query, commit)) if is_certain else Ticket.succeeded(False)
        query.carried_out = start(self._carry_out(query, commit))
        await query.carried_out
        return EpochCommitReply("committed", request.epoch)

    async def _take_turn(self, query: Query, request: EpochCommitRequest) -> None:
        """Wait for the query's turn, and find out what a commit record needs of the streams, as it is then."""
        while True:
            await self._wait_for_turn(query)
            last = query.last
            await self._publisher.locate(named_places(request, self._staging))
            if query.state not in BUSY and query.last is last:
                return

    async def _wait_for_turn(self, query: Query) -> None:
        """Wait until no epoch of the query is in progress. Raises the error of the epoch before, if it failed."""
        while query.state in BUSY:
            if query.state is EpochState.COMMITTED:
                raise AssertionError("a sidecar rolls forward before it serves")
            if query.state is EpochState.STUCK:
                self._retry(query)
            await query.carried_out

    async def _carry_out(self, query: Query, commit: CommitInProgress) -> None:
        """Unless one block had all, write the record, then publish the epoch.

        Raises StorageFailed, CorruptFile, UnknownTopicOrPartition.
        """
        if not await query.tried:
            await self._record(query, commit)
            await self._publish(query, commit)

    def abort(self, request: AbortRequest) -> Ticket[AbortReply]:
        """Drop an incarnation's staged output of an epoch, unless the epoch is or may be committed.

        Raises FencedIncarnation.
        """
        self._refuse_fenced(request.query, request.incarnation)
        query = self._queries.get(request.query)
        if query is None:
            return Ticket.succeeded(AbortReply(0))
        return start(self._abort(query, request))

    async def _abort(self, query: Query, request: AbortRequest) -> AbortReply:
        await self._retract(query)
        attempts = [
            attempt.key
            for attempt in self._staging.attempts(request.query)
            if (attempt.key.incarnation, attempt.key.epoch) == (request.incarnation, request.epoch)
            and not query.covers(attempt.key)
        ]
        self.aborted += bool(attempts)
        return AbortReply(self._staging.drop(attempts))

    def progress(self) -> list[QueryProgress]:
        """All queries that are remembered, sorted by name."""
        return [query.progress for _, query in sorted(self._queries.items())]

    def describe(self, query_name: str) -> DescribeReply:
        """The state of a query."""
        query = self._queries.get(query_name)
        attempts = self._staging.attempts(query_name)
        return DescribeReply(
            last_epoch=query.last.epoch if query is not None and query.last is not None else None,
            incarnation=query.incarnations.tokens[-1] if query is not None else None,
            state=(query.state if query is not None else EpochState.IDLE).value,
            staged_bytes=sum(attempt.size_bytes for attempt in attempts),
            staged_attempts=len(attempts),
            positions=query.last.positions if query is not None and query.last is not None else "",
            incarnation_number=query.incarnations.count if query is not None else 0,
        )

    def names(self) -> list[str]:
        """The names of all queries, unordered."""
        return list(self._queries)

    def summaries(self, names: Iterable[str]) -> tuple[QuerySummary, ...]:
        """What operators see of these queries; names that are not known are left out."""
        staged_bytes: Counter[str] = Counter()
        attempts: Counter[str] = Counter()
        for attempt in self._staging.all_attempts():
            staged_bytes[attempt.key.query] += attempt.size_bytes
            attempts[attempt.key.query] += 1
        return tuple(
            query.summary(staged_bytes=staged_bytes[name], staged_attempts=attempts[name])
            for name in names
            if (query := self._queries.get(name)) is not None
        )

    @property
    def staged_bytes(self) -> int:
        """Bytes of all staged output that is not removed yet."""
        return self._staging.used_bytes

    def tick(self, *, now_ms: int) -> None:
        """Retry failed steps, and drop staged data and queries that are too old. Call it every few seconds."""
        for query in list(self._queries.values()):
            if query.state is EpochState.STUCK:
                self._retry(query)
            elif query.state is EpochState.UNSURE:
                start(self._retract(query))
            elif query.state is EpochState.PUBLISHED:
                self._settle(query)
            self._let_others_go(query)
            self._expire(query, now_ms)

    # ---- incarnations

    def _refuse_fenced(self, name: str, incarnation: str) -> None:
        query = self._queries.get(name)
        if query is not None and incarnation in query.incarnations.tokens[:-1]:
            raise FencedIncarnation(
                f"incarnation {incarnation!r} of query {name!r} has been replaced by incarnation "
                f"{query.incarnations.tokens[-1]!r}; stop this one"
            )

    def _admit(self, name: str, incarnation: str, now_ms: int) -> Query:
        """The query, with `incarnation` as its newest; `admitted` settles when the incarnation is durable."""
        query = self._queries.get(name)
        if query is None:
            query = self._new_query(name, Incarnations((incarnation,), 1, now_ms), Ticket())
        elif query.incarnations.tokens[-1] != incarnation:
            former = query.incarnations
            remembered = (*former.tokens, incarnation)[-MAX_INCARNATIONS:]
            query.incarnations = Incarnations(remembered, former.count + 1, now_ms)
            fenced = [each.key for each in self._staging.attempts(name) if not query.covers(each.key)]
            self._staging.drop(fenced)
        elif not (query.admitted.done and query.admitted.error is not None):
            return query
        query.admitted = start(self._fence(query))
        return query

    async def _fence(self, query: Query) -> None:
        """Make the newest incarnation durable, behind a decision under way: who takes over must see what became of it.

        Raises StorageFailed.
        """
        await query.tried.settled()
        if query.owes:
            if query.state is EpochState.STUCK:
                self._retry(query)
            await query.carried_out.settled()
        if query.owes:
            epoch = query.under_way.record.epoch
            raise StorageFailed(f"query {query.name!r}: epoch {epoch} is decided, its record cannot be written; retry")
        await self._ledger.put({f"{INCARNATIONS}{query.name}": encode_incarnations(query.incarnations)})

    # ---- committing

    def _answer_old(self, query: Query, request: EpochCommitRequest, last: LastEpoch) -> EpochCommitReply:
        """The answer for an epoch that is not above the last one: duplicate, error (rewound), or skipped."""
        if request.epoch == last.epoch:
            self._drop_old(query)
            return EpochCommitReply("duplicate", last.epoch, last.positions)
        if request.rewind == "error":
            raise StaleEpoch(
                f"epoch {request.epoch} of query {query.name!r} is older than the last committed epoch {last.epoch}: "
                "its checkpoint was rewound. Restore the newer checkpoint, or start with a new one and a new topic, or "
                "set the option that skips epochs up to the last committed one"
            )
        self._drop_old(query)
        return EpochCommitReply("skipped", last.epoch)

    def _replace_commit(self, query: Query, commit: CommitInProgress) -> None:
        """Set `commit` as the query's commit; it takes over earlier commits whose record may still be on disk."""
        commit.pins += self._publisher.pins(commit.record)
        if query.commit is not None:
            commit.earlier = [query.commit, *query.commit.earlier]
            query.commit.earlier = []
        query.commit = commit
        query.move(EpochEvent.COMMIT)

    async def _try_block(self, query: Query, commit: CommitInProgress) -> bool:
        """Decide and publish the epoch with one block of the journal, if it can have all; whether that is done."""
        changes = encode_changes(decision_entries(commit.record, commit.last))
        block = await self._publisher.prepare(commit, changes, lambda: self._settle(query))
        outcome = BlockOutcome.NOT_WRITTEN if block is None else await block.offer()
        if outcome is not BlockOutcome.DURABLE:
            commit.is_owed = outcome is BlockOutcome.FAILED
            return False
        commit.remaining.clear()
        query.hold(block)
        query.move(EpochEvent.JOURNALED)
        self._note_decided(query, commit)
        self._drop_old(query)
        self._settle(query)
        return True

    async def _record(self, query: Query, commit: CommitInProgress) -> None:
        """Make the commit record durable; from then on this life or the next publishes the epoch.

        Raises StorageFailed.
        """
        try:
            await self._ledger.put(decision_entries(commit.record, commit.last))
        except CairnError as error:
            if commit.is_owed:
                self._note_stuck(query, commit, error)
            else:
                query.move(EpochEvent.REFUSED)
            raise
        commit.is_owed = False
        query.hold(None)
        query.move(EpochEvent.RECORDED)
        self._note_decided(query, commit)

    def _note_decided(self, query: Query, commit: CommitInProgress) -> None:
        self.committed += 1
        query.last = commit.last
        commit.forget_earlier()

    async def _retract(self, query: Query) -> None:
        """Make sure that a commit record whose write failed is not on disk: the next put replaces it.

        An older commit record that may be on disk instead is already published, so this put also finishes it.
        """
        if query.state is not EpochState.UNSURE:
            return
        commit = query.under_way
        if await self._remove_record(query) and query.commit is commit and query.state is EpochState.UNSURE:
            query.move(EpochEvent.RETRACTED)
            self._let_go(query)

    async def _remove_record(self, query: Query) -> bool:
        """Remove the query's commit record from the ledger, which gets the last epoch if only the journal has it;
        returns whether that is durable.
        """
        block, changes = query.block, dict[str, bytes | None]({f"{COMMIT_RECORD}{query.name}": None})
        if block is not None and query.last is not None:
            changes[f"{LAST}{query.name}"] = encode_last_epoch(query.last)
        removed = self._ledger.put(changes)
        await removed.settled()
        if removed.error is None and query.block is block:
            query.hold(None)
        return removed.error is None

    # ---- publishing

    async def _publish(self, query: Query, commit: CommitInProgress) -> None:
        """Append the epoch's groups; then start dropping its staged data and removing its commit record.

        The answer awaits neither removal.

        Raises StorageFailed, CorruptFile or UnknownTopicOrPartition: the epoch stays committed, `_retry` continues.
        """
        try:
            await self._publisher.publish(commit)
        except CairnError as error:
            self._note_stuck(query, commit, error)
            raise
        query.move(EpochEvent.APPENDED)
        self._drop_old(query)
        self._settle(query)

    def _note_stuck(self, query: Query, commit: CommitInProgress, error: CairnError) -> None:
        query.move(EpochEvent.FAILED)
        if commit.reported_error != str(error):
            commit.reported_error = str(error)
            self._report(EPOCH_STUCK, query=query.name, epoch=commit.record.epoch, error=str(error))

    def _retry(self, query: Query) -> None:
        if query.owes:
            query.move(EpochEvent.COMMIT)
            query.carried_out = start(self._carry_out(query, query.under_way))
            return
        query.move(EpochEvent.RETRY)
        query.carried_out = start(self._publish(query, query.under_way))

    def _let_others_go(self, query: Query) -> None:
        """Where an epoch waits for some of its streams, have the ledger name these alone: the others have it for good,
        and are held no more. On a host alone a start finds out for itself which streams have it.
        """
        commit = query.commit
        is_waiting = query.state in (EpochState.PUBLISHING, EpochState.STUCK) and query.narrowed.done
        if commit is None or not is_waiting or self._publisher.finds_published:
            return
        record = commit.narrower()
        if record is not None:
            query.narrowed = start(self._narrow(query, commit, record))

    async def _narrow(self, query: Query, commit: CommitInProgress, record: CommitRecord) -> None:
        written = self._ledger.put({f"{COMMIT_RECORD}{query.name}": encode_commit_record(record)})
        await written.settled()
        if written.error is None and query.commit is commit:
            commit.narrow(record, self._publisher.pins(record))

    def _settle(self, query: Query) -> Ticket[None]:
        """Have the ledger say that the epoch is over, if it is in all its streams; settles when that was tried."""
        if query.state is EpochState.PUBLISHED and query.finished.done:
            query.finished = start(self._finish(query, query.under_way))
        return query.finished

    async def _finish(self, query: Query, commit: CommitInProgress) -> None:
        """Remove the commit record: the epoch is in all its streams. The pins hold until the removal is durable."""
        if await self._remove_record(query) and query.commit is commit and query.state is EpochState.PUBLISHED:
            query.move(EpochEvent.FINISHED)
            self._let_go(query)
            self._drop_old(query)

    def _let_go(self, query: Query) -> None:
        if query.commit is not None:
            query.commit.release_pins()
            query.commit = None

    # ---- forgetting

    def _drop_old(self, query: Query) -> None:
        """Drop staged data of epochs that are finished, but what is being staged: a fence has epoch 0."""
        if query.last is not None:
            last_epoch = query.last.epoch
            old = [a for a in self._staging.attempts(query.name) if a.key.epoch <= last_epoch]
            staged = [a.key for a in old if a.failure or a.durable_segments == len(a.segments)]
            self._staging.drop([key for key in staged if not query.covers(key)])

    def _expire_all(self) -> None:
        now_ms = self._clock.wall_ms()
        for query in list(self._queries.values()):
            self._expire(query, now_ms)

    def drop_uncommitted(self, keys: Iterable[AttemptKey]) -> None:
        """Drop staged output that its area cannot keep any longer, but what a commit may need."""
        by_query: dict[str, list[AttemptKey]] = {}
        for key in keys:
            by_query.setdefault(key.query, []).append(key)
        for name, some in by_query.items():
            query = self._queries.get(name)
            old = [] if query is None else [key for key in some if not query.covers(key)]
            if query is not None and old:
                self._drop_expired(query, old)

    def _drop_expired(self, query: Query, keys: Sequence[AttemptKey]) -> None:
        dropped_bytes = self._staging.drop(keys)
        self._report(STAGED_DATA_EXPIRED, query=query.name, attempts=len(keys), bytes=dropped_bytes)

    def _expire(self, query: Query, now_ms: int) -> None:
        attempts = self._staging.attempts(query.name)
        old = [a.key for a in attempts if a.last_staged_ms + self._staged_age_ms < now_ms and not query.covers(a.key)]
        if old:
            self._drop_expired(query, old)
        over = query.state is EpochState.IDLE and len(attempts) == len(old) and query.admitted.done
        unused = query.last is None and query.incarnations.seen_ms + self._forget_ms < now_ms
        finished = query.last is not None and query.last.forget and query.last.committed_ms + self._forget_ms < now_ms
        if over and (unused or finished):
            del self._queries[query.name]
            self._ledger.put({f"{INCARNATIONS}{query.name}": None, f"{LAST}{query.name}": None})

"""Publishing one decided epoch into its streams, a few at a time.

Invariants:
* A target leaves `Commit.remaining` only when its stream has the whole group durably, or is gone for good.
* After a failure nothing new is started; the outcome is told once everything in flight has settled.
* A stream whose topic was deleted (or made anew: another id) since the decision is passed over and reported.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from logstore.errors import CairnError, CorruptFile, UnknownTopicOrPartition
from logstore.format.staged import AttemptKey
from logstore.interfaces import Report
from logstore.log.decisions import Decision, Last, Target
from logstore.log.publication import Publication
from logstore.log.staging import Extent, Staging
from logstore.log.store import Store
from logstore.log.stream import Stream
from logstore.log.stream_state import AppendResult, Pin
from logstore.log.ticket import Ticket

PUBLISH_WINDOW: Final = 4
"""Streams of one epoch published at a time: each holds a few pieces of 1 MiB."""


class Commit:
    """An epoch under way: what is decided, and which streams still lack it.

    `earlier` are commits whose record may be on disk until this one's is; their pins and staged data are held too.
    """

    def __init__(self, decision: Decision, last: Last) -> None:
        self.decision = decision
        self.last = last
        self.remaining: list[Target] = list(decision.targets)
        self.pins: list[Pin] = []
        self.earlier: list[Commit] = []
        self.marking = False
        self.reported_error: str | None = None
        self._keys = frozenset(
            AttemptKey(decision.query, decision.run, decision.epoch, task.task, task.attempt) for task in decision.tasks
        )

    def covers(self, key: AttemptKey) -> bool:
        """Whether an attempt's staged data may be needed for this commit."""
        return key in self._keys or any(commit.covers(key) for commit in self.earlier)

    def release_pins(self) -> None:
        """Let go of the streams."""
        for commit in self.earlier:
            commit.release_pins()
        for pin in self.pins:
            pin.release()
        self.pins.clear()


@dataclass(slots=True)
class _Run:
    """One go at publishing a commit."""

    commit: Commit
    over: Callable[[CairnError | None], None]
    waiting: list[Target]
    in_flight: int = 0
    error: CairnError | None = None
    starting: bool = field(default=False)


class Publisher:
    """Makes groups of staged data and appends them."""

    def __init__(self, staging: Staging, store: Store, report: Report) -> None:
        self._staging = staging
        self._store = store
        self._report = report

    def find(self, target: Target) -> Stream | None:
        """The stream of a target, or None if its topic is gone."""
        try:
            if str(self._store.topic(target.topic).topic_id) != target.topic_id:
                return None
            return self._store.stream(target.topic, target.partition)
        except UnknownTopicOrPartition:
            return None

    def publish(self, commit: Commit, over: Callable[[CairnError | None], None]) -> None:
        """Append the epoch's group to every stream that lacks it; then call `over` with the first error, if any."""
        self._go_on(_Run(commit, over, list(commit.remaining)))

    def _go_on(self, run: _Run) -> None:
        """Start what the window allows; say so when all is settled."""
        if run.starting:  # a stream that answers at once must not start the next from within
            return
        run.starting = True
        while run.waiting and run.in_flight < PUBLISH_WINDOW and run.error is None:
            self._append(run, run.waiting.pop(0))
        run.starting = False
        if not run.in_flight and (run.error is not None or not run.waiting):
            run.over(run.error)

    def _append(self, run: _Run, target: Target) -> None:
        stream = self.find(target)
        if stream is None:
            decision = run.commit.decision
            fields = {"query": decision.query, "epoch": decision.epoch, "topic": target.topic}
            self._report("epoch_topic_gone", {**fields, "partition": target.partition})
            run.commit.remaining.remove(target)
            return

        def settled(ticket: Ticket[AppendResult]) -> None:
            run.in_flight -= 1
            if ticket.error is None:
                run.commit.remaining.remove(target)
            else:
                run.error = run.error or _as_cairn_error(ticket.error)
            self._go_on(run)

        run.in_flight += 1
        try:
            ticket = stream.append_group(self._publication(run.commit.decision, target))
        except CairnError as error:
            ticket = Ticket.failed(error)
        ticket.add_callback(settled)

    def _publication(self, decision: Decision, target: Target) -> Publication:
        """The group of one stream. CorruptFile if staged data that was decided upon is gone."""
        extents: list[Extent] = []
        attempts: list[str] = []
        for task in decision.tasks:
            key = AttemptKey(decision.query, decision.run, decision.epoch, task.task, task.attempt)
            attempt = self._staging.get(key)
            if attempt is None or attempt.durable_frames < task.frames:
                raise _gone(key)
            found = list(attempt.extents(target.topic, target.partition, task.frames))
            if found:
                extents += found
                attempts.append(f"{task.task}:{task.attempt}")
        return Publication(decision, attempts, extents, self._store.notify)


def _gone(key: AttemptKey) -> CorruptFile:
    return CorruptFile(
        f"epoch {key.epoch} of query {key.query!r} is decided, but the staged output of task {key.task}, attempt "
        f"{key.attempt!r}, is damaged or gone: the epoch cannot be published in full"
    )


def _as_cairn_error(error: Exception) -> CairnError:
    return error if isinstance(error, CairnError) else CairnError(str(error))

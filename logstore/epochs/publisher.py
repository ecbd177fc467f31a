"""Publishes one committed epoch in its streams, a few streams at a time.

Invariants:
* A target leaves `CommitInProgress.remaining` only when its stream holds the whole group durably, or is deleted.
* After a failure no further append starts; `publish` raises once all appends in flight have settled.
* A stream whose topic was deleted since the commit (or created again: another id) is skipped and reported.
"""

from functools import partial
from typing import Final

from logstore.base.events import Report
from logstore.epochs.append_group import EpochGroup
from logstore.epochs.ledger_entries import CommitRecord, LastEpoch, Target
from logstore.epochs.staging import Extent, Staging
from logstore.errors import CorruptFile, UnknownTopicOrPartition
from logstore.events import EPOCH_TOPIC_GONE
from logstore.format.staged import AttemptKey
from logstore.log.coroutines import for_each
from logstore.log.store import Store
from logstore.log.stream import Stream
from logstore.log.stream_state import Pin

PUBLISH_WINDOW: Final = 4
"""Streams of one epoch that are published at the same time: each holds a few pieces of 1 MiB."""


class CommitInProgress:
    """An epoch in progress: its commit record, and the streams that still lack it.

    `earlier` are commits whose record may be on disk until the record of this commit is; their pins and staged data
    are held too.
    """

    def __init__(self, record: CommitRecord, last: LastEpoch) -> None:
        self.record = record
        self.last = last
        self.remaining: list[Target] = list(record.targets)
        self.pins: list[Pin] = []
        self.earlier: list[CommitInProgress] = []
        self.marking = False
        self.reported_error: str | None = None
        self._keys = frozenset(
            AttemptKey(record.query, record.incarnation, record.epoch, task.task, task.attempt) for task in record.tasks
        )

    def covers(self, key: AttemptKey) -> bool:
        """Whether this commit may need an attempt's staged data."""
        return key in self._keys or any(commit.covers(key) for commit in self.earlier)

    def release_pins(self) -> None:
        """Release the pins of this commit and of the earlier ones."""
        for commit in self.earlier:
            commit.release_pins()
        for pin in self.pins:
            pin.release()
        self.pins.clear()


class EpochPublisher:
    """Builds append groups from staged data and appends them."""

    def __init__(self, staging: Staging, store: Store, report: Report) -> None:
        self._staging = staging
        self._store = store
        self._report = report

    def find(self, target: Target) -> Stream | None:
        """The stream of a target, or None if its topic was deleted."""
        try:
            if str(self._store.topic(target.topic).topic_id) != target.topic_id:
                return None
            return self._store.stream(target.topic, target.partition)
        except UnknownTopicOrPartition:
            return None

    async def publish(self, commit: CommitInProgress) -> None:
        """Append the epoch's group to every stream that lacks it.

        Raises the first error of a stream (StorageFailed, CorruptFile, UnknownTopicOrPartition), once all appends in
        flight have settled.
        """
        await for_each(list(commit.remaining), partial(self._append, commit), max_in_flight=PUBLISH_WINDOW)

    async def _append(self, commit: CommitInProgress, target: Target) -> None:
        stream = self.find(target)
        if stream is None:
            record = commit.record
            self._report(
                EPOCH_TOPIC_GONE,
                query=record.query,
                epoch=record.epoch,
                topic=target.topic,
                partition=target.partition,
            )
        else:
            await stream.append_group(self._group(commit.record, target))
        commit.remaining.remove(target)

    def _group(self, record: CommitRecord, target: Target) -> EpochGroup:
        """The append group of one stream. Raises CorruptFile if staged data of the epoch is missing."""
        extents: list[Extent] = []
        attempts: list[str] = []
        for task in record.tasks:
            key = AttemptKey(record.query, record.incarnation, record.epoch, task.task, task.attempt)
            attempt = self._staging.get(key)
            if attempt is None or attempt.durable_segments < task.segments:
                raise _gone(key)
            found = list(attempt.extents(target.topic, target.partition, task.segments))
            if found:
                extents += found
                attempts.append(f"{task.task}:{task.attempt}")
        return EpochGroup(record, attempts, extents, self._store.notify)


def _gone(key: AttemptKey) -> CorruptFile:
    return CorruptFile(
        f"epoch {key.epoch} of query {key.query!r} is committed, but the staged output of task {key.task}, attempt "
        f"{key.attempt!r}, is damaged or gone: the epoch cannot be published in full"
    )

"""Publishes one epoch in its streams: small groups many together, large ones a few at a time.

Small groups are read in one job, and those that are appended together share a write and a sync of the journal. If all
are small, the decision can go with them (`prepare`).

Invariants:
* A target leaves `CommitInProgress.remaining` only when its stream holds the whole group durably, or is deleted.
* After a failure no further append starts; `publish` raises once all appends in flight have settled.
* A stream whose topic was deleted since the commit (or created again: another id) is skipped and reported.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from logstore.base.events import Report
from logstore.epochs.append_group import EpochGroup
from logstore.epochs.commit_in_progress import CommitInProgress
from logstore.epochs.epoch_block import EpochBlock
from logstore.epochs.ledger_entries import CommitRecord, Target
from logstore.epochs.staged_reader import read_whole
from logstore.epochs.staging import Extent, Staging
from logstore.errors import CairnError, CorruptFile, UnknownTopicOrPartition
from logstore.events import EPOCH_TOPIC_GONE
from logstore.format.staged import AttemptKey
from logstore.log.coroutines import all_settled, for_each
from logstore.log.journal import MAX_BLOCK_BYTES, MAX_BUNDLE_PARTS
from logstore.log.store import Store
from logstore.log.stream import Stream
from logstore.log.stream_state import Pin
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig

SMALL_GROUP_BYTES: Final = 64 << 10
"""Of groups that are read and published together; one stream may have twice as much in one write of the journal."""
SMALL_GROUPS_BYTES: Final = 4 << 20
"""Small groups of one epoch that are in memory at the same time."""
LARGE_GROUPS: Final = 4
"""Larger groups that are published at the same time: each holds a few reads of 1 MiB."""


class EpochPublisher:
    """Builds append groups from staged data and appends them."""

    finds_published = True

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

    def config(self, topic: str, partition: int) -> TopicConfig:
        """The settings that staged batches of a stream have to keep. Raises UnknownTopicOrPartition."""
        return self._store.stream(topic, partition).config

    async def locate(self, places: Collection[tuple[str, int]]) -> None:
        """What `target` needs of these streams is here."""

    def target(self, topic: str, partition: int) -> Target:
        """A stream as a target of an epoch. Raises UnknownTopicOrPartition."""
        start_offset = self._store.stream(topic, partition).high_watermark
        return Target(topic, str(self._store.topic(topic).topic_id), partition, start_offset)

    def check_group(self, target: Target, size_bytes: int) -> None:
        """A group may have any size."""

    def pins(self, record: CommitRecord) -> list[Pin]:
        """Protect what a restart would search for the epoch's END."""
        found = [(self.find(target), target) for target in record.targets]
        return [stream.pin(target.start_offset) for stream, target in found if stream is not None]

    def search_from(self, target: Target) -> int | None:
        """Where a start begins to search a stream for the epoch's END; None: the stream is gone."""
        stream = self.find(target)
        if stream is None:
            return None
        return min(max(target.start_offset, stream.log_start_offset), stream.high_watermark)

    async def prepare(
        self, commit: CommitInProgress, changes: bytes, settle: Callable[[], Ticket[None]]
    ) -> EpochBlock | None:
        """The epoch's groups and its decision (`changes` of the ledger) as parts of one block; None if they are too
        large for that, if a stream or the journal cannot take part, or if staged output cannot be read.
        """
        journal, targets = self._store.journal, commit.record.targets
        most = min(journal.limits.max_part_bytes, SMALL_GROUP_BYTES)
        if not (journal.has_room and 0 < len(targets) < MAX_BUNDLE_PARTS):
            return None
        try:
            groups = self._groups(commit)
            sizes = [group.byte_count for _, group in groups]
            streams = [stream for target in targets if (stream := self.find(target)) is not None]
            is_small = max(sizes) <= most and sum(sizes) + len(changes) <= MAX_BLOCK_BYTES
            if not is_small or len(streams) < len(targets) or not all(stream.chunks for stream in streams):
                return None
            waking = [self._store.quiet.wake(stream) for stream in streams if not stream.is_awake]
            read = await read_whole([group.extents for _, group in groups], self._store.notify)
            await all_settled(waking)
        except CairnError:
            return None  # the epoch is decided without it, and meets the same error behind that
        parts = [(stream, group, batches) for stream, (_, group), batches in zip(streams, groups, read, strict=True)]
        return EpochBlock(journal, changes, parts, settle)

    async def publish(self, commit: CommitInProgress) -> None:
        """Append the epoch's group to every stream that lacks it.

        Raises the first error of a stream (StorageFailed, CorruptFile, UnknownTopicOrPartition), once all appends in
        flight have settled.
        """
        for target in [target for target in commit.remaining if self.find(target) is None]:
            self._skip(commit, target)
        if not commit.remaining:
            return  # a former life published all, and may have removed what was staged
        groups = self._groups(commit)
        small = [found for found in groups if found[1].byte_count <= SMALL_GROUP_BYTES]
        large = [found for found in groups if found[1].byte_count > SMALL_GROUP_BYTES]
        append = partial(self._append, commit)
        while small:
            some = _take(small)
            read = await read_whole([group.extents for _, group in some], self._store.notify)
            for (_, group), batches in zip(some, read, strict=True):
                group.in_memory = batches
            await for_each(some, append, max_in_flight=len(some))
        await for_each(large, append, max_in_flight=LARGE_GROUPS)

    async def _append(self, commit: CommitInProgress, found: tuple[Target, EpochGroup]) -> None:
        target, group = found
        stream = self.find(target)
        if stream is None:
            self._skip(commit, target)
        else:
            await stream.append_group(group)
            del commit.remaining[target]

    def _skip(self, commit: CommitInProgress, target: Target) -> None:
        """The target's topic is gone."""
        query, epoch = commit.record.query, commit.record.epoch
        self._report(EPOCH_TOPIC_GONE, query=query, epoch=epoch, topic=target.topic, partition=target.partition)
        del commit.remaining[target]

    def _groups(self, commit: CommitInProgress) -> list[tuple[Target, EpochGroup]]:
        """The append groups of the streams that lack the epoch. Raises CorruptFile if staged data of it is missing."""
        record = commit.record
        extents: dict[tuple[str, int], list[Extent]] = {}
        attempts: dict[tuple[str, int], list[str]] = {}
        for task in record.tasks:
            key = AttemptKey(record.query, record.incarnation, record.epoch, task.task, task.attempt)
            attempt = self._staging.get(key)
            if attempt is None or attempt.durable_segments < task.segments:
                raise output_gone(key)
            for stream, found in attempt.extents(task.segments).items():
                extents.setdefault(stream, []).extend(found)
                attempts.setdefault(stream, []).append(f"{task.task}:{task.attempt}")
        groups = []
        for target in commit.remaining:
            stream = target.topic, target.partition
            group = EpochGroup(record, attempts.get(stream, ()), extents.get(stream, ()), self._store.notify)
            groups.append((target, group))
        return groups


def _take(groups: list[tuple[Target, EpochGroup]]) -> list[tuple[Target, EpochGroup]]:
    """Take as many groups from the front as may be in memory, at least one."""
    taken, size_bytes = 1, groups[0][1].byte_count
    while taken < len(groups) and size_bytes + groups[taken][1].byte_count <= SMALL_GROUPS_BYTES:
        size_bytes += groups[taken][1].byte_count
        taken += 1
    some = groups[:taken]
    del groups[:taken]
    return some


def output_gone(key: AttemptKey) -> CorruptFile:
    """The error for staged output that a commit record names and that is not there."""
    return CorruptFile(
        f"epoch {key.epoch} of query {key.query!r} is committed, but the staged output of task {key.task}, attempt "
        f"{key.attempt!r}, is damaged or gone: the epoch cannot be published in full"
    )

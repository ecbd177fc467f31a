"""Publishes epochs in streams that other hosts own: it makes each stream's group, and gives it to be delivered.

Invariants:
* A target leaves `CommitInProgress.remaining` only when the stream's owner has said that the whole group is in the
  stream, durably, or that the topic is deleted. So a group may be delivered again and again: the owner appends it once
  (`stream_ends`).
* The start offset of a target is where the stream ended when its owner was asked, just before the commit record was
  made: END of the epoch lies at or behind it, and what was trimmed behind it was appended after the decision.
* Groups are in memory while their owners are asked, and no longer: what an owner has not taken is read again for the
  next try. All groups that are in memory have FIRST_TRIES_BYTES and MORE_TRIES_BYTES together, those of one epoch
  MAX_GROUPS_BYTES or one larger one; one segment at a time is read back for them. A group that no owner takes holds up
  those that are tried for the first time no longer than one call.
* A stream that refuses its group, or whose group cannot be read, holds up no other stream: all others are given theirs
  before the error is raised. Each refusal is reported once.
* No stream is asked to take what it refuses for its size (`check_group`): a decided epoch could not be published.

A cluster has no block of a journal over several hosts. Pins are holds (`stream_holds`): the owners of streams ask for
them before they trim.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from logstore.base.events import Report
from logstore.epochs.commit_in_progress import CommitInProgress
from logstore.epochs.epoch_block import EpochBlock
from logstore.epochs.group_order import GroupOrder
from logstore.epochs.ledger_entries import CommitRecord, Target
from logstore.epochs.memory_room import MemoryRoom
from logstore.epochs.publisher import output_gone
from logstore.epochs.replicated_staging import ReplicatedSegment, ReplicatedStaging
from logstore.epochs.stream_holds import StreamHolds
from logstore.errors import CairnError, TryAgain, UnknownTopicOrPartition
from logstore.events import EPOCH_TOPIC_GONE, GROUP_REFUSED
from logstore.format.staged import AttemptKey
from logstore.log.coroutines import all_settled, start
from logstore.log.stream_state import Pin
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig

MAX_GROUPS_BYTES: Final = 8 << 20
FIRST_TRIES_BYTES: Final = 32 << 20
"""Of groups of all queries that are sent for the first time: two of the largest."""
MORE_TRIES_BYTES: Final = 16 << 20
"""Of those that are sent again."""

Place = tuple[str, int]
"""A stream, by topic and partition."""


class TargetStream(NamedTuple):
    """A stream as the home of epochs knows it."""

    topic_id: str
    config: TopicConfig


class StreamEnd(NamedTuple):
    """Where the stream of a topic ends, as its owner says. A topic of the same name may have another id later."""

    topic_id: str
    offset: int


class Streams(Protocol):
    """The streams of a cluster, wherever they are."""

    def find(self, topic: str, partition: int) -> TargetStream:
        """A stream that queries may write to. Raises UnknownTopicOrPartition, InvalidTopic."""

    def check_group(self, name: str, size_bytes: int) -> None:
        """Raise MessageTooLarge if no stream takes a group of so many bytes. `name`: for the message."""

    def ends(self, places: Sequence[Place]) -> Ticket[Mapping[Place, StreamEnd]]:
        """Where these streams end. A stream that is gone is left out. Fails with TryAgain."""

    def append(self, order: GroupOrder) -> Ticket[bool]:
        """Have a group appended once; whether it is known to be in the stream: if it is not, it is to be sent again.

        Fails with UnknownTopicOrPartition if the topic is deleted, or with what the stream refuses it for.
        """

    def ready(self, query: str, targets: Sequence[Target], tries: int) -> Ticket[Sequence[Target]]:
        """Those of some streams, at least one, that may take the groups of a query now, after so many tries of all of
        them. Settles after a pause, when there is one. Fails with TryAgain.
        """


class RemotePublisher:
    """See the module, and `logstore.epochs.parts.Publisher`."""

    finds_published = False

    def __init__(self, staging: ReplicatedStaging, streams: Streams, holds: StreamHolds, report: Report) -> None:
        self._staging = staging
        self._streams = streams
        self._holds = holds
        self._report = report
        self._first_tries, self._more_tries = MemoryRoom(FIRST_TRIES_BYTES), MemoryRoom(MORE_TRIES_BYTES)
        self._reading = MemoryRoom(1)
        """One segment at a time."""
        self._ends: dict[Place, StreamEnd] = {}
        """Of the streams that were asked for last."""

    # ---- before a decision

    def config(self, topic: str, partition: int) -> TopicConfig:
        """See Publisher. Raises InvalidTopic as well."""
        return self._streams.find(topic, partition).config

    async def locate(self, places: Collection[Place]) -> None:
        """Ask the owners where these streams end now. Raises TryAgain."""
        if places:
            self._ends = dict(await self._streams.ends(sorted(places)))

    def target(self, topic: str, partition: int) -> Target:
        """See Publisher. Raises UnknownTopicOrPartition, TryAgain."""
        stream, end = self._streams.find(topic, partition), self._ends.get((topic, partition))
        if end is None or end.topic_id != stream.topic_id:
            raise TryAgain(f"{topic}-{partition}: where it ends is not known; commit again")
        return Target(topic, stream.topic_id, partition, end.offset)

    def check_group(self, target: Target, size_bytes: int) -> None:
        """See Publisher."""
        self._streams.check_group(f"{target.topic}-{target.partition}", size_bytes)

    def pins(self, record: CommitRecord) -> list[Pin]:
        """See `stream_holds`."""
        return self._holds.pins(record)

    def search_from(self, target: Target) -> int | None:
        """Nothing is searched by the home of epochs."""
        return None

    async def prepare(
        self, commit: CommitInProgress, changes: bytes, settle: Callable[[], Ticket[None]]
    ) -> EpochBlock | None:
        """There is no such block."""
        return None

    # ---- behind a decision

    async def publish(self, commit: CommitInProgress) -> None:
        """Have the epoch's group appended to every stream that lacks it.

        Raises the first error of a stream when all others were given their groups; CorruptFile, StorageFailed or
        NotLeader if staged output cannot be read.
        """
        failed: dict[Target, CairnError] = {}
        segments = self._segments(commit.record)
        sizes: Counter[Place] = Counter()
        for place, part in (each for _, segment in segments for each in segment.parts()):
            sizes[place] += part.length
        tries, room, left = 0, self._first_tries, list(commit.remaining)
        while left:
            waiting, left = left, []
            if tries:
                room, ready = self._more_tries, await self._streams.ready(commit.record.query, waiting, tries)
                left = [target for target in waiting if target not in ready]
                waiting = list(ready)
            tries += 1
            while waiting:
                some = _take(waiting, sizes)
                size_bytes = sum(sizes[target.topic, target.partition] for target in some)
                await room.enter(size_bytes)
                sent = start(self._send(commit, some, segments, failed))
                await sent.settled()
                room.leave(size_bytes)
                left += sent.result()
            if failed:
                raise next(iter(failed.values()))

    async def _send(
        self,
        commit: CommitInProgress,
        targets: Sequence[Target],
        segments: Sequence[tuple[str, ReplicatedSegment]],
        failed: dict[Target, CairnError],
    ) -> list[Target]:
        """Send the groups of some streams once; returns those to which it has to be sent again. `failed` gets those
        whose group cannot be read, or is refused.
        """
        groups = await self._groups(commit.record, targets, segments, failed)
        for target in targets:
            if target in failed:
                self._report_refusal(commit, target, failed[target])
        targets = [order.target for order in groups]
        sent = [start(self._append(commit, order)) for order in groups]
        del groups
        await all_settled(sent)
        left = []
        for target, each in zip(targets, sent, strict=True):
            if isinstance(each.error, CairnError):
                failed[target] = each.error
                self._report_refusal(commit, target, each.error)
            elif not each.result():
                left.append(target)
        return left

    def _report_refusal(self, commit: CommitInProgress, target: Target, error: CairnError) -> None:
        is_refusal = not isinstance(error, TryAgain)  # which says that this host has the epochs no more
        if is_refusal and commit.refusals.get(target) != str(error):
            commit.refusals[target] = str(error)
            record, stream = commit.record, {"topic": target.topic, "partition": target.partition}
            self._report(GROUP_REFUSED, query=record.query, epoch=record.epoch, **stream, error=str(error))

    async def _append(self, commit: CommitInProgress, order: GroupOrder) -> bool:
        target = order.target
        try:
            if not await self._streams.append(order):
                return False
        except UnknownTopicOrPartition:
            fields = {"query": order.query, "epoch": order.epoch, "topic": target.topic, "partition": target.partition}
            self._report(EPOCH_TOPIC_GONE, **fields)
        del commit.remaining[target]
        return True

    def _segments(self, record: CommitRecord) -> list[tuple[str, ReplicatedSegment]]:
        """The epoch's segments in their order, each with its task and attempt. Raises CorruptFile."""
        found: list[tuple[str, ReplicatedSegment]] = []
        for task in record.tasks:
            key = AttemptKey(record.query, record.incarnation, record.epoch, task.task, task.attempt)
            attempt = self._staging.get(key)
            if attempt is None or attempt.durable_segments < task.segments:
                raise output_gone(key)
            found += [(f"{task.task}:{task.attempt}", segment) for segment in attempt.segments[: task.segments]]
        return found

    async def _groups(
        self,
        record: CommitRecord,
        targets: Sequence[Target],
        segments: Sequence[tuple[str, ReplicatedSegment]],
        failed: dict[Target, CairnError],
    ) -> list[GroupOrder]:
        """The groups of some streams; each segment is read once for all of them. `failed` gets those that cannot be
        read.
        """
        groups = {(target.topic, target.partition): _Group([], bytearray(), 0) for target in targets}
        for attempt, segment in segments:
            parts = [(place, part) for place, part in segment.parts() if place in groups]
            if not parts:
                continue
            await self._reading.enter(1)
            read = start(self._staging.data(segment))
            await read.settled()
            if read.error is None:
                data = memoryview(read.result())
                for place, part in parts:
                    group = groups[place]
                    group.attempts += [attempt] if attempt not in group.attempts[-1:] else []
                    group.batches += data[part.position : part.position + part.length]
                    group.batch_count += part.batches
                data.release()
            self._reading.leave(1)
            if isinstance(read.error, CairnError):
                unread = {place for place, _ in parts if groups.pop(place, None) is not None}
                failed.update({each: read.error for each in targets if (each.topic, each.partition) in unread})
            del read
        return [
            GroupOrder(
                target,
                record.query,
                record.epoch,
                record.incarnation_number,
                record.positions,
                tuple(made.attempts),
                made.batches,
                made.batch_count,
            )
            for target in targets
            if (made := groups.get((target.topic, target.partition))) is not None
        ]


@dataclass(slots=True)
class _Group:
    """A group while it is put together."""

    attempts: list[str]
    batches: bytearray
    batch_count: int


def _take(waiting: list[Target], sizes: Mapping[Place, int]) -> list[Target]:
    """Take as many targets from the front as may be in memory, at least one."""
    taken, size_bytes = 0, 0
    for target in waiting:
        group_bytes = sizes[target.topic, target.partition]
        if taken and size_bytes + group_bytes > MAX_GROUPS_BYTES:
            break
        taken, size_bytes = taken + 1, size_bytes + group_bytes
    some = waiting[:taken]
    del waiting[:taken]
    return some

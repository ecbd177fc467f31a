"""Consumer groups as one thing: who may commit (`coordinator`) and what is committed (`offsets`), over existing topics.

Without I/O: calls take the time and return results or tickets. Invariants: a commit is checked against membership
before it is written; a group without members and offsets is forgotten at a sweep; offsets of topics that are gone are
never answered, and are removed when the deletion is told, or at the next sweep.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from logstore.format.topic_partition import TopicPartition
from logstore.kafka.groups.coordinator import GroupCoordinator
from logstore.kafka.groups.group import ConsumerGroup
from logstore.kafka.groups.offsets import LOAD_STEP, CommittedOffset, OffsetStore
from logstore.kafka.groups.state import GroupState
from logstore.log.ticket import Ticket

SWEEP_INTERVAL_S = 600.0
"""How often expired offsets and forgotten groups are looked for (offsets.retention.check.interval.ms)."""
SWEEP_STEP = 2_000
"""Offsets that are looked at in one go: some milliseconds."""
SWEEP_PAUSE_S = 0.02
"""Between two goes: requests are served meanwhile."""


@dataclass(frozen=True, slots=True)
class OffsetSettings:
    """Limits of committed offsets; the names in comments are Kafka's."""

    retention_ms: int = 7 * 24 * 3_600_000
    """offsets.retention.minutes: how long the offsets of a group without members are kept."""
    metadata_max_chars: int = 4_096
    """offset.metadata.max.bytes (Kafka counts characters, and so do we)."""


class CommitRequest(NamedTuple):
    """Who commits: OffsetCommit without its offsets. `retention_ms` is -1 but for versions 2 to 4."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    retention_ms: int = -1


class OffsetToCommit(NamedTuple):
    """A position to commit."""

    offset: int
    leader_epoch: int
    metadata: str


TopicLookup = Callable[[str], tuple[str, int] | None]
"""Topic name to (topic id, number of partitions); None if there is no such topic."""


@dataclass(frozen=True, slots=True)
class OffsetSnapshot:
    """Offsets of a group and the topics that they are of, both as they were at one moment."""

    known: Mapping[TopicPartition, CommittedOffset]
    topics: Mapping[str, tuple[str, int] | None]

    def of(self, where: TopicPartition) -> CommittedOffset | None:
        """What was committed for the topic that had the name at that moment, not for one that was gone by then."""
        committed = self.known.get(where)
        if committed is None or _id_of(self.topics.get(where.topic), where.partition) != committed.topic_id:
            return None
        return committed


class GroupService:
    """All consumer groups of one sidecar."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        offsets: OffsetStore,
        topics: TopicLookup,
        settings: OffsetSettings,
        now_s: float,
    ) -> None:
        self.coordinator = coordinator
        self._offsets = offsets
        self._topics = topics
        self._settings = settings
        self._sweep_at_s = now_s
        self._sweeping: Iterator[None] | None = None

    def recover(self, now: Callable[[], float]) -> Iterator[None]:
        """Take up what the ledger has, before anything else; pauses after some milliseconds of work, again and again.
        `now`: monotonic seconds. Raises CorruptFile.
        """
        yield from self._offsets.load()
        yield from self.coordinator.recover(now)
        for number, (group_id, protocol_type) in enumerate(self._offsets.groups(), start=1):
            self.coordinator.ensure(group_id, now(), protocol_type=protocol_type)
            if not number % LOAD_STEP:
                yield

    def recover_at_once(self, now_s: float) -> None:
        """The same in one go, before there is anybody who would wait."""
        for _ in self.recover(lambda: now_s):
            pass

    # ---- offsets

    def commit(
        self, request: CommitRequest, positions: Mapping[TopicPartition, OffsetToCommit], now_s: float, now_ms: int
    ) -> tuple[dict[TopicPartition, ErrorCode], Ticket[None]]:
        """OffsetCommit: what is refused at once, by partition, and a ticket for the rest (settled once synced).

        The ticket fails with StorageFailed if the disk refuses.
        """
        expires_ms = now_ms + request.retention_ms if request.retention_ms >= 0 else None
        refused: dict[TopicPartition, ErrorCode] = {}
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for where, position in positions.items():
            topic_id = self._topic_id(where)
            if topic_id is None:
                refused[where] = ErrorCode.unknown_topic_or_partition
            else:
                offsets[where] = CommittedOffset(
                    *position, committed_ms=now_ms, topic_id=topic_id, expires_ms=expires_ms
                )
        if not offsets:
            return refused, Ticket.succeeded(None)
        error = self.coordinator.check_commit(
            request.group_id, request.generation_id, request.member_id, request.instance_id, now_s
        )
        if error is not ErrorCode.none:
            return refused | dict.fromkeys(offsets, error), Ticket.succeeded(None)
        for where in [where for where in offsets if len(offsets[where].metadata) > self._settings.metadata_max_chars]:
            refused[where] = ErrorCode.offset_metadata_too_large
            del offsets[where]
        if not offsets:
            return refused, Ticket.succeeded(None)
        group = self.coordinator.find(request.group_id)
        protocol_type = None if group is None else group.protocol_type
        return refused, self._offsets.commit(request.group_id, protocol_type, offsets)

    def count(self, group_id: str) -> int:
        """How many offsets the group has."""
        return len(self._offsets.of_group(group_id))

    def committed(self, group_id: str, wanted: Iterable[TopicPartition] | None = None) -> OffsetSnapshot:
        """OffsetFetch: what the group has durably committed at this moment, for these partitions or (None) all.

        It takes as long as there are partitions wanted, whatever else the group has committed.
        """
        offsets = self._offsets.of_group(group_id)
        if wanted is None:
            known = dict(offsets)
        else:
            known = {where: found for where in wanted if (found := offsets.get(where)) is not None}
        return OffsetSnapshot(known, {name: self._topics(name) for name in {where.topic for where in known}})

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode], Ticket[None]]:
        """OffsetDelete: an error for all, or errors by partition; the ticket settles once the deletion is synced."""
        group = self.coordinator.find(group_id)
        if group is None:
            return ErrorCode.group_id_not_found, {}, Ticket.succeeded(None)
        if group.members and group.protocol_type != "consumer":
            return ErrorCode.non_empty_group, {}, Ticket.succeeded(None)
        errors = {where: self._check_offset_delete(group, where) for where in partitions}
        doomed = [where for where, error in errors.items() if error is ErrorCode.none]
        return ErrorCode.none, errors, self._offsets.delete(group_id, doomed)

    def _check_offset_delete(self, group: ConsumerGroup, where: TopicPartition) -> ErrorCode:
        if self._topic_id(where) is None:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.group_subscribed_to_topic if group.is_subscribed(where.topic) else ErrorCode.none

    def delete_group(self, group_id: str) -> tuple[ErrorCode, Ticket[None]]:
        """DeleteGroups, one group; gone at once, durably once the ticket settles."""
        error = self.coordinator.check_delete(group_id)
        if error is not ErrorCode.none:
            return error, Ticket.succeeded(None)
        group = self.coordinator.drop(group_id)
        ticket = self._offsets.delete_group(group_id)
        ticket.add_callback(lambda done: None if done.error is None else self._restore(group))
        return ErrorCode.none, ticket

    def _restore(self, group: ConsumerGroup) -> None:
        """The disk refused a deletion: the group with its offsets is still there."""
        self.coordinator.ensure(group.group_id, group.emptied_s, protocol_type=group.protocol_type)

    def forget_topic(self, topic: str, topic_id: str) -> list[Ticket[None]]:
        """Remove all offsets of a topic that was deleted; those of a later one of the same name stay. One ticket for
        each group that had some.
        """
        tickets = []
        for group_id, _ in self._offsets.groups():
            offsets = self._offsets.of_group(group_id)
            gone = [where for where, kept in offsets.items() if (where.topic, kept.topic_id) == (topic, topic_id)]
            if gone:
                tickets.append(self._offsets.delete(group_id, gone))
        return tickets

    def _topic_id(self, where: TopicPartition) -> str | None:
        return _id_of(self._topics(where.topic), where.partition)

    # ---- time

    def next_deadline(self) -> float:
        """When to call `expire`, in monotonic seconds."""
        deadline_s = self.coordinator.next_deadline()
        return self._sweep_at_s if deadline_s is None else min(deadline_s, self._sweep_at_s)

    def expire(self, now_s: float, now_ms: int) -> None:
        """Act on all deadlines up to now, and sweep when it is time, a part of the offsets at a time."""
        self.coordinator.expire(now_s)
        if now_s < self._sweep_at_s:
            return
        if self._sweeping is None:
            self._sweeping = self._sweep(now_s, now_ms)
        for _ in self._sweeping:
            self._sweep_at_s = now_s + SWEEP_PAUSE_S
            return
        self._sweeping = None
        self._sweep_at_s = now_s + SWEEP_INTERVAL_S

    def _sweep(self, now_s: float, now_ms: int) -> Iterator[None]:
        """Look at all groups and offsets; pauses after each SWEEP_STEP of them, and believes nothing from before it."""
        looked = 0
        for group in list(self.coordinator.groups()):
            partitions = list(self._offsets.of_group(group.group_id))
            for first in range(0, len(partitions), SWEEP_STEP):
                some = partitions[first : first + SWEEP_STEP]
                offsets = self._offsets.of_group(group.group_id)
                known = [(where, offsets[where]) for where in some if where in offsets]
                expired = [one for one, committed in known if self._is_expired(group, one, committed, now_s, now_ms)]
                self._offsets.delete(group.group_id, expired)
                looked += len(some)
                if looked >= SWEEP_STEP:
                    looked = 0
                    yield
            is_idle = group.state is GroupState.EMPTY and not group.pending_joins
            is_known = self.coordinator.find(group.group_id) is group
            is_old = now_s - group.emptied_s >= SWEEP_INTERVAL_S
            if is_known and is_idle and is_old and not self._offsets.is_used(group.group_id):
                self.coordinator.drop(group.group_id)

    def _is_expired(
        self, group: ConsumerGroup, where: TopicPartition, committed: CommittedOffset, now_s: float, now_ms: int
    ) -> bool:
        """Kafka's rules (KIP-211): from the last commit, for groups that had members from when the last one left.

        That moment is not kept over a restart; then the time of the restart stands for it, so offsets live longer.
        """
        if self._topic_id(where) != committed.topic_id:
            return True
        retention_ms = self._settings.retention_ms
        if group.state is not GroupState.EMPTY:
            is_stable_consumer = group.state is GroupState.STABLE and group.subscription is not None
            if not is_stable_consumer or group.is_subscribed(where.topic):
                return False
        elif group.protocol_type is not None and (now_s - group.emptied_s) * 1000 < retention_ms:
            return False
        if committed.expires_ms is not None:
            return now_ms >= committed.expires_ms
        return now_ms - committed.committed_ms >= retention_ms


def _id_of(topic: tuple[str, int] | None, partition: int) -> str | None:
    """The id of a topic that was looked up, if it has such a partition."""
    if topic is None or not 0 <= partition < topic[1]:
        return None
    return topic[0]

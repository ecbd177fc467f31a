"""What groups commit, as registered readers follow it: by ids of topics, as a later topic of the name is another one.

Invariant: an offset is told once it is durable.
"""

import uuid
from collections.abc import Callable, Mapping

from logstore.format.topic_partition import TopicPartition
from logstore.kafka.groups.offsets import CommitListener, CommittedOffset
from logstore.kafka.groups.service import GroupService
from logstore.log.readers import StreamId
from logstore.log.served import ServedStore


def commits_by_stream(note: Callable[[str, Mapping[StreamId, int]], None]) -> CommitListener:
    """A listener of commits that passes them on by streams."""

    def committed(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        note(group, {StreamId(entry.topic_id, at.partition): entry.offset for at, entry in offsets.items()})

    return committed


def committed_offsets(store: ServedStore, service: GroupService) -> Callable[[str, StreamId], int | None]:
    """What a group has committed of a stream; None: nothing, or the stream is gone."""

    def committed(group: str, stream: StreamId) -> int | None:
        topic = store.topic_by_id(uuid.UUID(hex=stream.topic_id))
        where = None if topic is None else TopicPartition(topic.name, stream.partition)
        found = None if where is None else service.committed(group, [where]).of(where)
        return None if found is None else found.offset

    return committed

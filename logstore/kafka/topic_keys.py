"""How a request names a topic: by name, or by id (KIP-516). Produce and Fetch do both, by version.

Invariants: an id means one topic for ever. A topic that is deleted and created again under its name has another id, so
a client that names the old one gets UNKNOWN_TOPIC_ID, and not the records of the new topic.
"""

import uuid
from typing import TypeAlias

from logstore.errors import UnknownTopicId, UnknownTopicOrPartition
from logstore.log.served import ServedStore, ServedStream, ServedTopic

TopicKey: TypeAlias = str | uuid.UUID
"""A topic's name, or its id."""


def find_topic(store: ServedStore, key: TopicKey) -> ServedTopic | None:
    """The topic, or None."""
    return store.topics.get(key) if isinstance(key, str) else store.topic_by_id(key)


def find_stream(store: ServedStore, key: TopicKey, partition: int) -> ServedStream:
    """One stream of a topic. Raises UnknownTopicOrPartition, and UnknownTopicId where no topic has the id."""
    if isinstance(key, str):
        return store.stream(key, partition)
    topic = store.topic_by_id(key)
    if topic is None:
        raise UnknownTopicId(f"no topic has the id {key}; ask for metadata again: it may be deleted, or another now")
    if not 0 <= partition < len(topic.partitions):
        raise UnknownTopicOrPartition(f"topic {topic.name!r} has no partition {partition}")
    return topic.partitions[partition]

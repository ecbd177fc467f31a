"""The entries of the ledger `catalogue`: topics, log starts, two numbers, and how far the scrub is.

Byte table in docs/format.md.
"""

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, Protocol

from logstore.errors import InvalidPartitions
from logstore.log.topics import MAX_PARTITIONS

TOPIC: Final = "topic/"
PRODUCER_IDS: Final = "producer-ids"
RETENTION_CLOCK: Final = "retention-clock"


class TopicIdentity(Protocol):
    """What of a topic is in its entry, beside its settings and the number of its partitions."""

    topic_id: uuid.UUID
    directory: str


def start_key(topic_id: uuid.UUID, partition: int) -> str:
    """The key of a stream's log start."""
    return f"start/{topic_id.hex}/{partition}"


def topic_entry(topic: TopicIdentity, partitions: int, overrides: Mapping[str, str]) -> bytes:
    """The value of a topic's entry."""
    entry: dict[str, Any] = {
        "id": topic.topic_id.hex,
        "directory": topic.directory,
        "partitions": partitions,
        "config": dict(overrides),
    }
    return json.dumps(entry).encode()


def check_partitions(count: int) -> None:
    """Raise InvalidPartitions unless a topic may have so many."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(f"{count} partitions: must be from 1 to {MAX_PARTITIONS}")

"""The name of a stream as Kafka's clients use it.

Invariant: a name is a value; it says nothing about whether the stream exists.
"""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A stream's name: topic and partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

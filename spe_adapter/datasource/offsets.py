"""Offsets in the form of Spark's Kafka source: `{"topic": {"0": 23, "1": -2}}`, with −2 for earliest and −1 for latest.

Invariants:
* Offsets from `to_json` are sorted, so that equal offsets are equal texts (Spark compares the texts).
* A mistake in an option raises InvalidConfig, which names the option.
* The end offsets of a query's first batch include its start offsets, under BEGAN, which is no valid topic name. Spark
  keeps no initial offset of a Python source, and asks for it again when the first batch runs again.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from logstore.client.wire import EARLIEST, LATEST, TopicPartition
from logstore.errors import InvalidConfig

Offsets = dict[TopicPartition, int]
JsonOffsets = dict[str, dict[str, int]]

BEGAN: Final = "(began)"

_EXAMPLE: Final = '{"topic": {"0": 23, "1": -2}}'
_ASSIGN_EXAMPLE: Final = '{"topic": [0, 1]}'

__all__ = ["EARLIEST", "LATEST", "JsonOffsets", "Offsets", "TopicPartition"]


def to_json(offsets: Mapping[TopicPartition, int], began: Mapping[TopicPartition, int] | None = None) -> JsonOffsets:
    """Offsets by topic and partition, both sorted; before them the start offsets of the query (`began`), if given."""
    found: JsonOffsets = {}
    if began is not None:
        found[BEGAN] = {f"{stream.topic}-{stream.partition}": began[stream] for stream in sorted(began)}
    for stream in sorted(offsets):
        found.setdefault(stream.topic, {})[str(stream.partition)] = offsets[stream]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The inverse of `to_json`, without the start offsets of the query."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        if topic != BEGAN
        for partition, offset in partitions.items()
    }


def began_of(offsets: Mapping[str, Mapping[str, int]]) -> Offsets | None:
    """The start offsets of the query; None if `offsets` are neither its start nor the end of its first batch."""
    if BEGAN not in offsets:
        return None
    streams = ((stream.rpartition("-"), offset) for stream, offset in offsets[BEGAN].items())
    return {TopicPartition(topic, int(partition)): offset for (topic, _, partition), offset in streams}


def parse_offsets(text: str, option: str) -> Offsets:
    """Offsets (or timestamps) per stream from an option's JSON. Raises InvalidConfig."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"option {option!r} is not JSON ({error}); write for example {_EXAMPLE}") from error
    offsets: Offsets = {}
    for topic, partitions in _object(value, option, _EXAMPLE).items():
        if topic == BEGAN:  # copied from the first batch of a checkpoint
            continue
        for partition, offset in _object(partitions, option, _EXAMPLE).items():
            if not partition.isdigit() or not isinstance(offset, int) or isinstance(offset, bool):
                raise InvalidConfig(
                    f"option {option!r}: {topic!r} has {partition!r}: {offset!r}; write for example {_EXAMPLE}"
                )
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def parse_assignment(text: str, option: str) -> tuple[TopicPartition, ...]:
    """Streams from an option's JSON, `{"topic": [0, 1]}`. Raises InvalidConfig."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"option {option!r} is not JSON ({error}); write for example {_ASSIGN_EXAMPLE}") from error
    streams: list[TopicPartition] = []
    for topic, partitions in _object(value, option, _ASSIGN_EXAMPLE).items():
        if not isinstance(partitions, list) or not all(isinstance(p, int) and p >= 0 for p in partitions):
            raise InvalidConfig(f"option {option!r}: {topic!r} has {partitions!r}; write for example {_ASSIGN_EXAMPLE}")
        streams += (TopicPartition(topic, partition) for partition in partitions)
    if not streams:
        raise InvalidConfig(f"option {option!r} names no partition; write for example {_ASSIGN_EXAMPLE}")
    return tuple(sorted(set(streams)))


def names(streams: Iterable[TopicPartition]) -> str:
    """The names of streams, for a message."""
    return ", ".join(map(str, sorted(streams)))


def _object(value: object, option: str, example: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidConfig(f"option {option!r} holds {value!r}; write for example {example}")
    return value

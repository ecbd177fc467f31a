"""Ranges of offsets to read: admission control and splitting, as pure functions over offsets.

Invariants:
* No offset is read twice or left out: ranges of one stream neither overlap nor leave gaps.
* Under a limit every stream with a backlog makes progress.

Source: Spark's `KafkaMicroBatchStream` (rate limit, delay) and `KafkaOffsetRangeCalculator` (splitting), whose
results users of Spark's Kafka source rely on.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from spe_adapter.datasource.offsets import Offsets, TopicPartition


class StreamRange(NamedTuple):
    """The offsets of one stream from `start` up to but not including `end`."""

    stream: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.end - self.start


def limited(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], max_offsets: int) -> Offsets:
    """The end offsets at which about `max_offsets` offsets are read, shared among the streams by their backlog.

    `start` has a position for every stream of `latest`. Every stream with a backlog gets at least one offset.
    """
    backlog = {stream: end - start[stream] for stream, end in latest.items() if end > start[stream]}
    total = sum(backlog.values())
    end: Offsets = dict(latest)
    for stream, size in backlog.items():
        share = max_offsets * size / total
        offsets = math.ceil(share) if share < 1 else math.floor(share)
        end[stream] = min(latest[stream], start[stream] + offsets)
    return end


def available(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """The number of offsets that can be read."""
    return sum(max(0, end - start.get(stream, 0)) for stream, end in latest.items())


def split(ranges: Iterable[StreamRange], min_parts: int | None, max_records: int | None) -> list[StreamRange]:
    """Split ranges into at least about `min_parts` ranges of at most `max_records` offsets, without empty ranges."""
    found = [piece for piece in ranges if piece.size > 0]
    if max_records is not None:
        found = [part for piece in found for part in _cut(piece, math.ceil(piece.size / max_records))]
    if min_parts is None or len(found) >= min_parts:
        return found
    total = sum(piece.size for piece in found)
    # Small ranges are not split, and do not count in the shares of the others.
    whole = {piece for piece in found if _parts(piece.size, total, min_parts) == 1}
    rest_total = total - sum(piece.size for piece in whole)
    rest_min_parts = max(min_parts - len(whole), 1)
    parts: list[StreamRange] = []
    for piece in found:
        parts += [piece] if piece in whole else _cut(piece, _parts(piece.size, rest_total, rest_min_parts))
    return parts


def _parts(size: int, total: int, min_parts: int) -> int:
    return max(math.floor(size / total * min_parts + 0.5), 1)


def _cut(piece: StreamRange, parts: int) -> list[StreamRange]:
    cuts = [piece.start + piece.size * part // parts for part in range(parts + 1)]
    return [StreamRange(piece.stream, start, end) for start, end in pairwise(cuts) if end > start]

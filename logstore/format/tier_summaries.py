"""What of a topic is in the tier: the answer's fields. Fields in, dataclasses out.

Invariants: invalid values raise MalformedRequest and no other error; an answer has TIERED_PER_REPLY partitions at most.
"""

from dataclasses import dataclass
from typing import Final

from logstore.format.fields import Fields, get_int, get_objects

TIERED_PER_REPLY: Final = 1_000
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TieredPartition:
    """What of a partition is in the tier. `local_start`: its first offset on the disk; `tiered_end`: the offset after
    the last one in the tier (−1: none is there); `chunks` and `size_bytes` are those in the tier.
    """

    partition: int
    local_start: int
    tiered_end: int
    chunks: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TierReply:
    """TIERED_PER_REPLY partitions in order; fewer: there are no more."""

    partitions: tuple[TieredPartition, ...]


def tier_fields(reply: TierReply) -> dict[str, object]:
    """The fields of an answer."""
    partitions = [
        {
            "partition": at.partition,
            "local_start": at.local_start,
            "tiered_end": at.tiered_end,
            "chunks": at.chunks,
            "bytes": at.size_bytes,
        }
        for at in reply.partitions
    ]
    return {"partitions": partitions}


def get_tier(fields: Fields) -> TierReply:
    """The answer in fields. Raises MalformedRequest."""
    return TierReply(tuple(_get_partition(entry) for entry in get_objects(fields, "partitions")))


def _get_partition(fields: Fields) -> TieredPartition:
    return TieredPartition(
        get_int(fields, "partition", 0, _INT32_MAX),
        get_int(fields, "local_start", 0, _INT64_MAX),
        get_int(fields, "tiered_end", -1, _INT64_MAX),
        get_int(fields, "chunks", 0, _INT64_MAX),
        get_int(fields, "bytes", 0, _INT64_MAX),
    )

"""A registered reader as it is kept: its positions in memory, and its entry of the ledger.

Invariant: an entry that cannot be decoded raises CorruptFile, and no other error.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.errors import CorruptFile


class StreamId(NamedTuple):
    """A stream of one topic for as long as that topic exists: hex topic id and partition."""

    topic_id: str
    partition: int


@dataclass(slots=True, eq=False)
class ReaderEntry:
    """`held` and `positions` have the same streams, and `released` some of them."""

    name: str
    group: str
    positions: dict[StreamId, int]
    """What it acknowledged, durable or not."""
    acknowledged_ms: int
    released: dict[StreamId, int] = field(default_factory=dict)
    state: str = ""
    """The query whose state it reads: control records of the query that no reader holds may go."""
    incarnation_number: int = 0
    held: dict[StreamId, int] = field(default_factory=dict)
    """The durable positions, and those that are about to be: records from there on stay."""


def encode_reader(reader: ReaderEntry) -> bytes:
    """The ledger's value."""
    return json.dumps(
        {
            "group": reader.group,
            **({"state": reader.state} if reader.state else {}),
            **({"run_number": reader.incarnation_number} if reader.incarnation_number else {}),
            "acknowledged_ms": reader.acknowledged_ms,
            "positions": [[*stream, offset] for stream, offset in reader.positions.items()],
            "released": [[*stream, offset] for stream, offset in reader.released.items()],
        },
        separators=(",", ":"),
    ).encode()


def decode_reader(name: str, value: bytes) -> ReaderEntry:
    """A reader from its ledger's value. Raises CorruptFile."""
    try:
        entry = json.loads(value)
        positions = _decode_offsets(entry["positions"])
        released = _decode_offsets(entry["released"])
        begun = (entry["group"], positions, entry["acknowledged_ms"], released)
        state, number = str(entry.get("state", "")), int(entry.get("run_number", 0))
        return ReaderEntry(name, *begun, state, number, held=dict(positions))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptFile(
            f"ledger readers: the entry of {name!r} is damaged ({error!r}); restore it from a copy"
        ) from error


def _decode_offsets(entries: Iterable[tuple[str, int, int]]) -> dict[StreamId, int]:
    return {StreamId(uuid.UUID(hex=topic_id).hex, int(partition)): int(at) for topic_id, partition, at in entries}

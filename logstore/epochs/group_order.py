"""An epoch's group on its way to the owner of a stream, as bytes and back.

Byte tables: docs/replication.md, "Calls between hosts".
"""

from dataclasses import dataclass

from logstore.epochs.append_group import begin_batch, end_batch
from logstore.epochs.ledger_entries import CommitRecord, Target
from logstore.errors import MalformedRequest
from logstore.format.batch import iterate_batches
from logstore.format.fields import (
    MAX_POSITIONS_CHARACTERS,
    Fields,
    decode_fields,
    encode_fields,
    get_int,
    get_name,
    get_text,
)
from logstore.interfaces import Buffer

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """Append this group to this stream, unless the stream has the epoch. `attempts`: as BEGIN has them. `batches`: all
    between BEGIN and END.
    """

    target: Target
    query: str
    epoch: int
    incarnation_number: int
    positions: str
    attempts: tuple[str, ...]
    batches: Buffer
    batch_count: int

    @property
    def byte_count(self) -> int:
        """Bytes between BEGIN and END."""
        return len(self.batches)

    @property
    def record_count(self) -> int:
        """How many offsets the whole group has."""
        return 2 + sum(header.last_offset_delta + 1 for _, header in iterate_batches(self.batches))

    def group(self, now_ms: int) -> bytearray:
        """The group, from BEGIN to END."""
        record = CommitRecord(self.query, "", self.incarnation_number, self.epoch, self.positions, (), (self.target,))
        group = begin_batch(record, self.attempts, self.byte_count, self.batch_count, now_ms)
        group += self.batches
        group += end_batch(record, now_ms)
        return group


def encode_order(order: GroupOrder) -> list[Buffer]:
    """The bytes of an order; the batches are not copied."""
    target = order.target
    fields: dict[str, object] = {"topic": target.topic, "topic_id": target.topic_id, "partition": target.partition}
    fields |= {"start": target.start_offset, "query": order.query, "epoch": order.epoch}
    fields |= {"run_number": order.incarnation_number, "positions": order.positions}
    fields |= {"attempts": list(order.attempts), "batches": order.batch_count}
    return [encode_fields(fields), order.batches]


def decode_order(payload: Buffer) -> GroupOrder:
    """The inverse of `encode_order`. Raises MalformedRequest."""
    fields, batches = decode_fields(payload)
    attempts = fields.get("attempts")
    if not isinstance(attempts, list) or not all(isinstance(each, str) for each in attempts):
        raise MalformedRequest("'attempts' is not a list of texts")
    return GroupOrder(
        _target(fields),
        get_name(fields, "query"),
        get_int(fields, "epoch", 0, _INT64_MAX),
        get_int(fields, "run_number", 0, _INT64_MAX),
        get_text(fields, "positions", MAX_POSITIONS_CHARACTERS),
        tuple(attempts),
        batches,
        get_int(fields, "batches", 0, _INT64_MAX),
    )


def _target(fields: Fields) -> Target:
    partition, start = (get_int(fields, key, 0, _INT64_MAX) for key in ("partition", "start"))
    return Target(get_name(fields, "topic"), get_name(fields, "topic_id"), partition, start)

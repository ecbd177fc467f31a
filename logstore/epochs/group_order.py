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
from logstore.log.ticket import Ticket

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

    def group(self) -> "OrderedGroup":
        """The group, to be appended."""
        return OrderedGroup(self)


class OrderedGroup:
    """An ordered group as a stream takes it (`logstore.log.stream_state.AppendGroup`)."""

    def __init__(self, order: GroupOrder) -> None:
        self.byte_count = order.byte_count
        self._order = order
        self._record = CommitRecord(
            order.query, "", order.incarnation_number, order.epoch, order.positions, (), (order.target,)
        )
        self._batches: bytearray | None = bytearray(order.batches)

    def begin(self, now_ms: int) -> bytearray:
        """The BEGIN control batch."""
        return begin_batch(self._record, self._order.attempts, self.byte_count, self._order.batch_count, now_ms)

    def next_batches(self) -> Ticket[bytearray | None]:
        """All batches at once, then None."""
        batches, self._batches = self._batches, None
        return Ticket.succeeded(batches or None)

    def end(self, now_ms: int) -> bytearray:
        """The END control batch."""
        return end_batch(self._record, now_ms)


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

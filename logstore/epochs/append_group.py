"""An epoch's output in one stream: the checks before it is staged, and its append group.

Invariants:
* Staging accepts only batches that the stream would accept from a client, so that a committed epoch is not refused
  later; and, in addition, control batches of the types that a query writes about its state. BEGIN and END belong to the
  log: staged ones would make recovery see groups that do not exist.
* A group holds the batches of the committed attempts in the order of tasks, then of staging. BEGIN states their bytes
  and number; END is the epoch marker.

Source: docs/format.md, "Append groups".
"""

from collections.abc import Iterable, Sequence

from logstore.epochs.ledger_entries import CommitRecord
from logstore.epochs.staged_reader import StagedReader
from logstore.epochs.staging import Extent, Ready
from logstore.errors import InvalidRecord, MessageTooLarge
from logstore.format.batch import HIGHEST_COMPRESSION, BatchHeader, check_batch
from logstore.format.control import STATE_TYPES, Begin, End, control_type, decode_control, encode_control
from logstore.format.epoch_api import Part
from logstore.interfaces import Buffer
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.log.validation import check_times


def check_part(part: Part, data: memoryview, limits: TopicConfig, now_ms: int) -> None:
    """Check the batches of one part as the stream would check a client's batches.

    Raises CorruptBatch, UnsupportedBatchFormat, InvalidRecord, MessageTooLarge or InvalidTimestamp.

    Control batches count among the part's batches, their records among its records.
    """
    where = f"{part.topic}-{part.partition}"
    position = batches = records = 0
    while position < len(data):
        header = check_batch(data, position)
        _check_header(header, where, limits)
        if header.is_control:
            _check_control(data, position, header, where)
        else:
            check_times(data[position:], header, where, limits, now_ms)
        position += header.size_bytes
        batches += 1
        records += header.record_count
    if (batches, records) != (part.batches, part.records):
        raise InvalidRecord(
            f"{where}: {batches} batches with {records} records are here, {part.batches} with {part.records} were "
            "announced"
        )


def _check_header(header: BatchHeader, where: str, limits: TopicConfig) -> None:
    if header.size_bytes > limits.max_message_bytes:
        raise MessageTooLarge(
            f"a batch of {header.size_bytes} bytes exceeds {where}'s max.message.bytes {limits.max_message_bytes}"
        )
    if header.is_transactional or header.producer_id != -1:
        raise InvalidRecord(f"{where}: staged batches have no transaction bit and no producer id")
    if header.record_count != header.last_offset_delta + 1 or header.compression > HIGHEST_COMPRESSION:
        raise InvalidRecord(f"{where}: a batch whose offsets have holes, or of unknown compression")


def _check_control(data: memoryview, position: int, header: BatchHeader, where: str) -> None:
    """Refuse all control batches except those of a query's state."""
    if header.compression or header.record_count != 1:
        raise InvalidRecord(f"{where}: a control batch holds one uncompressed record")
    kind = control_type(data, position)
    if kind not in STATE_TYPES:
        allowed = ", ".join(map(str, sorted(STATE_TYPES)))
        raise InvalidRecord(f"{where}: control records of type {kind} cannot be staged, only those of {allowed}")


class EpochGroup:
    """The append group of one committed epoch in one stream (`logstore.log.stream_state.AppendGroup`)."""

    def __init__(self, record: CommitRecord, attempts: Sequence[str], extents: Iterable[Extent], ready: Ready) -> None:
        self._record = record
        self._attempts = tuple(attempts)
        self.extents = tuple(extents)
        self.byte_count = sum(extent.length for extent in self.extents)
        self.batch_count = sum(extent.batches for extent in self.extents)
        self.in_memory: bytearray | None = None
        """All batches, if they have been read already; they are given out once."""
        self._reader = StagedReader(self.extents, ready)

    def begin(self, now_ms: int) -> bytearray:
        """The BEGIN control batch."""
        return begin_batch(self._record, self._attempts, self.byte_count, self.batch_count, now_ms)

    def next_batches(self) -> Ticket[bytearray | None]:
        """The next whole batches; None after the last."""
        if self.in_memory is None:
            return self._reader.next_batches()
        batches, self.in_memory = self.in_memory, bytearray()
        return Ticket.succeeded(batches or None)

    def end(self, now_ms: int) -> bytearray:
        """The END control batch: the epoch marker."""
        return end_batch(self._record, now_ms)


def begin_batch(
    record: CommitRecord, attempts: tuple[str, ...], byte_count: int, batch_count: int, now_ms: int
) -> bytearray:
    """The BEGIN control batch of a group with so many bytes and batches of these attempts."""
    begin = Begin(record.query, record.epoch, record.incarnation_number, attempts, byte_count, batch_count)
    return encode_control(begin, timestamp_ms=now_ms)


def end_batch(record: CommitRecord, now_ms: int) -> bytearray:
    """The END control batch of a group: the epoch marker."""
    end = End(record.query, record.epoch, record.incarnation_number, record.positions.encode())
    return encode_control(end, timestamp_ms=now_ms)


def holds_end(record: CommitRecord, controls: Iterable[tuple[int, Buffer]]) -> bool:
    """Whether the control batches (offset, bytes) of a stream contain the END of a committed epoch."""
    for _, batch in controls:
        control = decode_control(batch)
        if (
            isinstance(control, End)
            and (control.query, control.epoch) == (record.query, record.epoch)
            and control.incarnation == record.incarnation_number
        ):
            return True
    return False

"""The common form of Produce, one batch for one partition: from the frame to the log and to the answer's bytes at once.

Every other form (several topics or partitions, transactions, no records, records whose times must be checked) is left
to `logstore.kafka.produce`, and so is everything that is malformed: `start` then says False, and has done nothing.

Invariants:
* For a request of this form, log and answer are byte for byte what the general way leads to.
* Rights and quotas are not looked at here: the connection takes this way only while there are none.
* No object per request but the place of its answer, which is also what waits for the ticket.

Source: Kafka protocol guide, Produce 3 to 12.
"""

import struct
from functools import lru_cache

from logstore.base.clock import Clock
from logstore.base.histogram import Histogram
from logstore.errors import CairnError
from logstore.interfaces import Buffer
from logstore.kafka import produce
from logstore.kafka.answers import SLOT_BYTES, AnswerLine, AnswerSlot
from logstore.kafka.api_types import Broker
from logstore.kafka.errors import error_code
from logstore.kafka.framing import MAX_UVARINT_BYTES, frame
from logstore.kafka.leaders import Leaders
from logstore.log.stream_state import AnsweredEarly, AppendTicket
from logstore.log.topics import NO_LIMIT_MS

_HEAD = struct.Struct(">hhih")
"""API key, version, correlation id, length of the client id (-1: null)."""
_TOPIC = struct.Struct(">hhiih")
"""Length of the transactional id (-1: null), acks, time limit, topics, length of the topic's name."""
_PARTITION = struct.Struct(">iii")
"""Partitions, partition, length of the records."""
_FLEXIBLE_TOPIC = struct.Struct(">BBhiBB")
"""No tagged fields, no transactional id, acks, time limit; topics and length of the name, one more than they are."""
_FLEXIBLE_PARTITION = struct.Struct(">Bi")
"""Partitions, one more than they are; partition."""
_FLEXIBLE_END = b"\x00\x00\x00"
"""No tagged fields of partition, topic and request."""
_NO_BASE = -1
LAYOUTS = 256
"""Layouts of answers that are remembered: one for each version and length of a topic's name."""


class SingleBatch(AnswerSlot):
    """One request of this form, and the place of its answer."""

    __slots__ = (
        "_clock",
        "_error",
        "_leaders",
        "_limit_ms",
        "_line",
        "_message",
        "_meter",
        "_name",
        "_partition",
        "_since_s",
        "_ticket",
        "_version",
        "acks",
        "records",
        "topic",
    )

    _clock: Clock
    _leaders: Leaders | None
    _limit_ms: int
    _line: AnswerLine
    _meter: Histogram
    _since_s: float
    _ticket: AppendTicket | None
    _error: int
    _message: str | None
    _version: int
    _name: bytes
    _partition: int
    acks: int
    records: memoryview
    topic: str

    @classmethod
    def decode(cls, request: memoryview) -> "SingleBatch | None":
        """The request in a frame; None if it has another form, or is malformed."""
        try:
            api_key, version, correlation_id, client_bytes = _HEAD.unpack_from(request)
            if api_key != produce.KEY or not produce.MIN_VERSION <= version < produce.FIRST_WITH_IDS:
                return None
            at = _HEAD.size + max(client_bytes, 0)
            slot = cls(correlation_id, len(request) + SLOT_BYTES)
            slot._version = version
            is_read = slot._read_flexible(request, at) if version >= produce.FIRST_FLEXIBLE else slot._read(request, at)
            if not is_read or slot.acks not in (-1, 0, 1):
                return None
            slot.topic = slot._name.decode()
        except (struct.error, UnicodeDecodeError):
            return None
        return slot

    def _read(self, request: memoryview, at: int) -> bool:
        transactional_bytes, self.acks, self._limit_ms, topics, name_bytes = _TOPIC.unpack_from(request, at)
        if transactional_bytes != -1 or topics != 1 or name_bytes < 0:
            return False
        at += _TOPIC.size
        partition_at = at + name_bytes
        partitions, self._partition, size = _PARTITION.unpack_from(request, partition_at)
        records_at = partition_at + _PARTITION.size
        if partitions != 1 or size < 0 or records_at + size != len(request):
            return False
        self._name = bytes(request[at:partition_at])
        self.records = request[records_at:]
        return True

    def _read_flexible(self, request: memoryview, at: int) -> bool:
        tags, transactional, self.acks, self._limit_ms, topics, name_bytes = _FLEXIBLE_TOPIC.unpack_from(request, at)
        if tags or transactional or topics != 2 or not 0 < name_bytes < 0x80:
            return False
        at += _FLEXIBLE_TOPIC.size
        partition_at = at + name_bytes - 1
        partitions, self._partition = _FLEXIBLE_PARTITION.unpack_from(request, partition_at)
        records_at = partition_at + _FLEXIBLE_PARTITION.size
        size = shift = 0
        for byte in request[records_at : records_at + MAX_UVARINT_BYTES]:
            size |= (byte & 0x7F) << shift
            shift += 7
            records_at += 1
            if byte < 0x80:
                break
        end = records_at + size - 1
        if partitions != 2 or not size or request[end:] != _FLEXIBLE_END:
            return False
        self._name = bytes(request[at:partition_at])
        self.records = request[records_at:end]
        self.flexible_header = True
        return True

    def append(
        self, broker: Broker, line: AnswerLine, meter: Histogram, frame_bytes: int, leaders: Leaders | None
    ) -> None:
        """Take the place in the line of answers, and append the batch or note why it is refused."""
        self._line, self._ticket, self._error, self._message, self._leaders = line, None, 0, None, leaders
        self._clock, self._meter, self._since_s = broker.clock, meter, broker.clock.monotonic_s()
        line.push(self)
        records, self.records = self.records, _NOTHING
        if len(records) * produce.KEEP_SHARE < frame_bytes:
            records = memoryview(bytearray(records))
        is_done = False
        try:
            stream = broker.engine.store.stream(self.topic, self._partition)
            ticket = broker.engine.append(stream, records, now_ms=broker.clock.wall_ms())
            is_done = True
        except CairnError as error:
            self._refuse(error)
            is_done = True
            self._mark_ready()
            return
        finally:
            if not is_done:  # a bug, which ends the connection
                line.drop(self)
        self._ticket = ticket
        ticket.add_callback(self._note_settled)

    def _note_settled(self, ticket: AppendTicket) -> None:
        if ticket.error is not None:
            self._refuse(ticket.error)
            if isinstance(ticket.error, AnsweredEarly):
                self._mark_early(ticket.error.ticket)
                return
        self._mark_ready()

    def _mark_early(self, ticket: AppendTicket) -> None:
        self._meter.add(self._clock.monotonic_s() - self._since_s)
        self._line.mark_early(self, (ticket,))

    def expire(self, now_s: float) -> None:
        """See AnswerSlot."""
        ticket = self._ticket
        if ticket is not None and produce.is_over(self._limit_ms, now_s - self._since_s):
            ticket.remove_callback(self._note_settled)
            self._ticket = None
            if self.acks:
                self._refuse(produce.timed_out(self._limit_ms))
            self._mark_early(ticket)

    def _mark_ready(self) -> None:
        self._meter.add(self._clock.monotonic_s() - self._since_s)
        self._line.mark_ready(self)

    def _refuse(self, error: Exception) -> None:
        self._error = int(error_code(error))
        self._message = str(error)

    def add_to(self, parts: list[Buffer]) -> str | None:
        """Append the answer's frame to `parts`; acks=0 has none, and the reason of a refusal is returned instead."""
        if self.acks == 0:
            return None if self._error in produce.UNTOLD else self._message
        if self._message is not None and self._version >= produce.FIRST_WITH_MESSAGE:
            refused = (self._version, self.topic, self._partition, self._error, self._message, self._leaders)
            body = produce.refusal_body(*refused)
            parts += frame(self.correlation_id, body, flexible_header=self.flexible_header)
            return None
        base_offset = log_start = append_ms = _NO_BASE
        if self._ticket is not None and not self._error:
            base_offset, log_start, _, append_ms = self._ticket.result()
        name, version = self._name, self._version
        layout = _layout(version, len(name))
        outcome = (self._partition, self._error, base_offset, append_ms)
        if version >= produce.FIRST_FLEXIBLE:
            flexible = (layout.size - 4, self.correlation_id, 0, 2, len(name) + 1, name, 2)
            parts.append(layout.pack(*flexible, *outcome, log_start, 1, 0, 0, 0, 0, 0))
            return None
        head = (layout.size - 4, self.correlation_id, 1, len(name), name, 1)
        if version >= produce.FIRST_WITH_MESSAGE:
            parts.append(layout.pack(*head, *outcome, log_start, 0, -1, 0))
        elif version >= produce.FIRST_WITH_LOG_START:
            parts.append(layout.pack(*head, *outcome, log_start, 0))
        else:
            parts.append(layout.pack(*head, *outcome, 0))
        return None


_NOTHING = memoryview(b"")


@lru_cache(LAYOUTS)
def _layout(version: int, name_bytes: int) -> struct.Struct:
    """A whole answer: length, correlation id, one topic with one partition, and the time to wait."""
    if version >= produce.FIRST_FLEXIBLE:
        return struct.Struct(f">iiBBB{name_bytes}sBihqqqBBBBiB")
    log_start = "q" if version >= produce.FIRST_WITH_LOG_START else ""
    message = "ih" if version >= produce.FIRST_WITH_MESSAGE else ""
    return struct.Struct(f">iiih{name_bytes}siihqq{log_start}{message}i")


def start(
    broker: Broker, line: AnswerLine, meter: Histogram, request: memoryview, leaders: Leaders | None = None
) -> bool:
    """Append the batch of a request of this form; its answer follows in `line`, its time in `meter`. False: the request
    has another form.
    """
    slot = SingleBatch.decode(request)
    if slot is None:
        return False
    topic = broker.engine.store.topics.get(slot.topic)
    if topic is not None and topic.config.timestamp_before_max_ms != NO_LIMIT_MS:
        return False
    slot.append(broker, line, meter, len(request), leaders)
    return True

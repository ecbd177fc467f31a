"""Produce: checked, appended, and answered once everything in it is synced.

Invariants: requests of one connection enter the log in the order they came, for nothing is read behind a request until
`start` or `steps` has done all of it; the answer is ready when every partition's ticket has settled. One bad partition
fails alone. A request has at most MAX_PARTITIONS partitions.

Source: Kafka protocol guide, Produce 3 to 11; acks=1 means the same as acks=all.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from logstore.errors import CairnError, InvalidRecord, MalformedRequest
from logstore.interfaces import Buffer
from logstore.kafka.dispatch import Front
from logstore.kafka.errors import error_code
from logstore.kafka.framing import Reader, Writer
from logstore.kafka.pace import Walkers
from logstore.log.admission import check_produced, takes_long_to_check
from logstore.log.stream_state import AppendResult, AppendTicket
from logstore.log.topics import MAX_PARTITIONS, NO_LIMIT_MS, TopicConfig

KEY = 0
MIN_VERSION, MAX_VERSION = 3, 11
FIRST_FLEXIBLE = 9
KEEP_SHARE = 2
"""A batch of less than half its frame does not keep the frame: the tail counts batches, and must not hold more than
it counts.
"""
_TRANSACTIONAL_REFUSED = 53
"""TRANSACTIONAL_ID_AUTHORIZATION_FAILED: final for every client; transactions are not part of this."""
_INVALID_REQUIRED_ACKS = 21
_OUTCOME = struct.Struct(">ihqq")
"""Partition, error code, base offset, log append time."""


class PartitionData(NamedTuple):
    """Records for one partition, in place in the request's frame."""

    partition: int
    records: memoryview | None
    are_times_checked: bool = False
    problem: CairnError | None = None
    """What is wrong with them, if that was found out before."""


class ProduceRequest(NamedTuple):
    """A decoded Produce request."""

    version: int
    transactional_id: str | None
    acks: int
    topics: list[tuple[str, list[PartitionData]]]
    partitions: int


@dataclass(slots=True)
class _Outcome:
    partition: int
    error: int = 0
    message: str | None = None
    base_offset: int = -1
    log_start_offset: int = -1
    append_ms: int = -1


@dataclass(slots=True)
class Answer:
    """An answer on its way. `on_ready` is called once, when `body` may be asked for; a needless one (acks=0) is None
    then.
    """

    version: int
    acks: int
    waiting: int = 0
    topics: list[tuple[str, list[_Outcome]]] = field(default_factory=list)
    on_ready: Callable[[], None] | None = None

    @property
    def failure(self) -> str | None:
        """What went wrong with the first partition that failed."""
        failed = (outcome for _, outcomes in self.topics for outcome in outcomes if outcome.error)
        return next((outcome.message or f"error {outcome.error}" for outcome in failed), None)

    def body(self) -> list[Buffer] | None:
        """The response's body; None if the client wants none."""
        return None if self.acks == 0 else _encode(self)

    def settle(self, outcome: _Outcome, ticket: AppendTicket) -> None:
        """One partition's append has ended."""
        if ticket.error is None:
            result: AppendResult = ticket.result()
            outcome.base_offset, outcome.log_start_offset = result.base_offset, result.log_start_offset
            outcome.append_ms = result.append_ms
        else:
            _refuse(outcome, ticket.error)
        self.waiting -= 1
        if self.waiting == 0 and self.on_ready is not None:
            on_ready, self.on_ready = self.on_ready, None  # it knows who holds this answer: no cycle is left behind
            on_ready()


def decode(frame: memoryview, at: int, version: int) -> ProduceRequest:
    """A Produce request's body, from `at` on. Raises MalformedRequest."""
    reader = Reader(frame, at, flexible=version >= FIRST_FLEXIBLE)
    transactional_id = reader.nullable_string()
    acks = reader.int16()
    reader.int32()
    topics: list[tuple[str, list[PartitionData]]] = []
    total = 0
    for _ in range(_bounded(reader.count(3))):
        name = reader.string()
        partitions: list[PartitionData] = []
        count = reader.count(5)
        total = _bounded(total + count)
        for _ in range(count):
            partitions.append(PartitionData(reader.int32(), reader.nullable_bytes()))
            reader.tags()
        reader.tags()
        topics.append((name, partitions))
    reader.tags()
    return ProduceRequest(version, transactional_id, acks, topics, total)


def _bounded(count: int) -> int:
    if count > MAX_PARTITIONS:
        raise MalformedRequest(f"{count} topics or partitions in one Produce request; at most {MAX_PARTITIONS} can be")
    return count


async def check_apart(front: Front, request: ProduceRequest) -> ProduceRequest:
    """Have a thread look at what takes long to check: some hundred bytes may open to millions of records. The request
    with what was found.
    """
    now_ms = front.clock.wall_ms()
    topics: list[tuple[str, list[PartitionData]]] = []
    for name, partitions in request.topics:
        topic = front.engine.store.topics.get(name)
        if topic is not None:
            partitions = [await _checked_apart(name, topic.config, data, now_ms) for data in partitions]
        topics.append((name, partitions))
    return request._replace(topics=topics)


async def _checked_apart(topic: str, config: TopicConfig, data: PartitionData, now_ms: int) -> PartitionData:
    if data.records is None or not takes_long_to_check(data.records, config):
        return data
    try:
        await Walkers.run(partial(check_produced, data.records, f"{topic}-{data.partition}", config, now_ms))
    except CairnError as error:
        return data._replace(problem=error)
    return data._replace(are_times_checked=True)


def needs_check_apart(front: Front, request: ProduceRequest) -> bool:
    """Whether any of its batches takes long to check; none does in topics that do not look at records' times."""
    for name, partitions in request.topics:
        topic = front.engine.store.topics.get(name)
        if topic is not None and topic.config.timestamp_before_max_ms != NO_LIMIT_MS:
            batches = (data.records for data in partitions if data.records is not None)
            if any(takes_long_to_check(records, topic.config) for records in batches):
                return True
    return False


def start(front: Front, request: ProduceRequest, frame_bytes: int, answer: Answer) -> None:
    """Append everything at once; the answer settles with the last of its tickets (check `waiting`: it may have settled
    already). See `steps`.
    """
    for _ in steps(front, request, frame_bytes, answer):
        pass


def steps(front: Front, request: ProduceRequest, frame_bytes: int, answer: Answer) -> Iterator[None]:
    """Append everything, partition by partition; who appends many may let others run in between.

    Batches are kept in place, and their frame of `frame_bytes` with them; small parts of a large frame are copied out
    of it.
    """
    now_ms = front.clock.wall_ms()
    refused = 0
    if request.transactional_id is not None:
        refused = _TRANSACTIONAL_REFUSED
    elif request.acks not in (-1, 0, 1):
        refused = _INVALID_REQUIRED_ACKS
    for name, partitions in request.topics:
        outcomes: list[_Outcome] = []
        answer.topics.append((name, outcomes))
        for data in partitions:
            outcome = _Outcome(data.partition, refused)
            outcomes.append(outcome)
            if not refused:
                if data.records is not None and len(data.records) * KEEP_SHARE < frame_bytes:
                    data = data._replace(records=memoryview(bytearray(data.records)))
                _append(front, answer, name, data, outcome, now_ms)
            yield


def _append(front: Front, answer: Answer, topic: str, data: PartitionData, outcome: _Outcome, now_ms: int) -> None:
    try:
        if data.records is None:
            raise InvalidRecord(f"{topic}-{data.partition}: no records")
        stream = front.engine.store.stream(topic, data.partition)
        if data.problem is not None:
            raise data.problem
        ticket = stream.append(data.records, now_ms=now_ms, are_times_checked=data.are_times_checked)
    except CairnError as error:
        _refuse(outcome, error)
        return
    answer.waiting += 1
    ticket.add_callback(lambda settled: answer.settle(outcome, settled))


def _refuse(outcome: _Outcome, error: Exception) -> None:
    outcome.error = int(error_code(error))
    outcome.message = str(error)


def _encode(answer: Answer) -> list[Buffer]:
    version = answer.version
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)
    writer.count(len(answer.topics))
    for name, outcomes in answer.topics:
        writer.string(name)
        writer.count(len(outcomes))
        for outcome in outcomes:
            writer.fixed(_OUTCOME, outcome.partition, outcome.error, outcome.base_offset, outcome.append_ms)
            if version >= 5:
                writer.int64(outcome.log_start_offset)
            if version >= 8:
                writer.count(0)
                writer.string(outcome.message)
            writer.tags()
        writer.tags()
    writer.int32(0)
    writer.tags()
    return writer.finish()

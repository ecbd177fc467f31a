"""Produce: checks and appends the batches of a request, and answers once all of them are synced.

Invariants: requests of one connection enter the log in the order of their arrival, because the next request is read
only after `start` or `steps` has appended all of the current one; the answer is ready when every partition's ticket has
settled, or when the request's time limit is over. A refused partition does not affect the others. A request has at most
MAX_PARTITIONS partitions.

Source: Kafka protocol guide, Produce 3 to 13; acks=1 means the same as acks=all. KIP-516 (topic ids, from version 13);
KIP-951 (the current leader, from version 10).
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from logstore.errors import AppendTimedOut, CairnError, InvalidRecord, MalformedRequest
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker
from logstore.kafka.errors import error_code
from logstore.kafka.framing import Reader, Writer
from logstore.kafka.leaders import NOT_LEADER, CurrentLeader, Leaders, write_endpoints, write_leader
from logstore.kafka.pace import Walkers
from logstore.kafka.topic_keys import TopicKey, find_stream, find_topic
from logstore.log.stream_state import AnsweredEarly, AppendResult, AppendTicket
from logstore.log.topics import MAX_PARTITIONS, NO_LIMIT_MS, TopicConfig
from logstore.log.validation import check_produced, takes_long_to_check

KEY = 0
MIN_VERSION, MAX_VERSION = 3, 13
FIRST_FLEXIBLE = 9
FIRST_WITH_IDS = 13
"""Topics are named by id from this version on."""

FIRST_WITH_LOG_START, FIRST_WITH_MESSAGE, FIRST_WITH_LEADER = 5, 8, 10
"""Versions of the answer."""
KEEP_SHARE = 2
"""A batch smaller than 1/KEEP_SHARE of its frame is copied out of the frame: the tail counts the bytes of batches, and
must not hold much more memory than that.
"""
_TRANSACTIONAL_REFUSED = 53
"""TRANSACTIONAL_ID_AUTHORIZATION_FAILED, final for every client: transactions are not supported."""
_INVALID_REQUIRED_ACKS = 21
UNTOLD: Final = (ErrorCode.not_enough_replicas.value, ErrorCode.not_enough_replicas_after_append.value)
"""A client that wants no answers is not told of these: its connection would end for other topics too, and in Kafka the
members in sync do not count for it.
"""
_OUTCOME = struct.Struct(">ihqq")
"""Partition, error code, base offset, log append time."""
_LEADER_TAG = 0
_NOTHING = AppendResult(-1, -1, False, -1)
"""The result of a refused partition."""


class PartitionData(NamedTuple):
    """Records for one partition, in place in the request's frame."""

    partition: int
    records: memoryview | None
    are_times_checked: bool = False
    problem: CairnError | None = None
    """The error that an earlier check found, if any."""


class ProduceRequest(NamedTuple):
    """A decoded Produce request."""

    version: int
    transactional_id: str | None
    acks: int
    topics: list[tuple[TopicKey, list[PartitionData]]]
    partitions: int
    limit_ms: int = 0
    """How long the client waits for the members: see `timed_out`."""


@dataclass(slots=True)
class _Outcome:
    """The outcome for one partition's records: an append under way or done, or a refusal."""

    partition: int
    error: int = 0
    message: str | None = None
    ticket: AppendTicket | None = None


class ProduceAnswer:
    """The answer to one request: ready when every partition's append has settled."""

    __slots__ = (
        "_on_ready", "_waiting", "acks", "early", "leaders", "limit_ms", "since_s", "throttle_ms", "topics", "version",
    )  # fmt: skip

    def __init__(
        self, version: int, acks: int, leaders: Leaders | None = None, limit_ms: int = 0, since_s: float = 0.0
    ) -> None:
        """`leaders` says who leads what this host does not; None on a host alone. `limit_ms`: of the request, which has
        come at `since_s`.
        """
        self.limit_ms, self.since_s = limit_ms, since_s
        self.early: list[AppendTicket] = []
        """The tickets of batches that are answered, and not acknowledged."""
        self.version = version
        self.acks = acks
        self.leaders = leaders if version >= FIRST_WITH_LEADER else None
        self.topics: list[tuple[TopicKey, list[_Outcome]]] = []
        self.throttle_ms = 0
        """For how long the sidecar will not read from the client, whose quota is used up."""
        self._waiting = 0
        self._on_ready: Callable[[], None] | None = None

    def when_ready(self, on_ready: Callable[[], None]) -> None:
        """Call `on_ready` once `body` may be called; at once if all appends have settled."""
        if self._waiting:
            self._on_ready = on_ready
        else:
            on_ready()

    def wait_for(self, outcome: _Outcome, ticket: AppendTicket) -> None:
        """Make the answer wait for one partition's append."""
        outcome.ticket = ticket
        self._waiting += 1
        ticket.add_callback(self._note_settled)

    def expire(self, now_s: float) -> None:
        """Wait no longer if the time limit of the request is over."""
        on_ready = self._on_ready
        if on_ready is None or not is_over(self.limit_ms, now_s - self.since_s):
            return
        self._on_ready, self._waiting = None, 0
        for outcome in (outcome for _, outcomes in self.topics for outcome in outcomes):
            ticket = outcome.ticket
            if ticket is not None and not ticket.done:
                ticket.remove_callback(self._note_settled)
                self.early.append(ticket)
                outcome.ticket = None
                if self.acks:
                    _refuse(outcome, timed_out(self.limit_ms))
        on_ready()

    def _note_settled(self, ticket: AppendTicket) -> None:
        self._waiting -= 1
        if isinstance(ticket.error, AnsweredEarly):
            self.early.append(ticket.error.ticket)
        if not self._waiting and self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None  # it refers to this answer: leave no reference cycle
            on_ready()

    @property
    def failure(self) -> str | None:
        """The error of the first partition that failed; None if none failed, or for a reason in UNTOLD."""
        outcomes = [_settled(outcome) for _, outcomes in self.topics for outcome in outcomes]
        told = (outcome for outcome in outcomes if outcome.error and outcome.error not in UNTOLD)
        return next((outcome.message or f"error {outcome.error}" for outcome in told), None)

    def body(self) -> list[Buffer] | None:
        """The response's body; None if the client wants none (acks=0)."""
        return None if self.acks == 0 else _encode(self)


def _settled(outcome: _Outcome) -> _Outcome:
    """The outcome, with the error of its append if the append failed."""
    if outcome.ticket is not None and outcome.ticket.error is not None:
        _refuse(outcome, outcome.ticket.error)
    return outcome


def decode(frame: memoryview, at: int, version: int) -> ProduceRequest:
    """Decode a Produce request's body, from `at` on. Raises MalformedRequest."""
    reader = Reader(frame, at, flexible=version >= FIRST_FLEXIBLE)
    transactional_id = reader.nullable_string()
    acks = reader.int16()
    limit_ms = reader.int32()
    topics: list[tuple[TopicKey, list[PartitionData]]] = []
    total = 0
    for _ in range(_bounded(reader.count(3))):
        key = reader.uuid() if version >= FIRST_WITH_IDS else reader.string()
        partitions: list[PartitionData] = []
        count = reader.count(5)
        total = _bounded(total + count)
        for _ in range(count):
            partitions.append(PartitionData(reader.int32(), reader.nullable_bytes()))
            reader.tags()
        reader.tags()
        topics.append((key, partitions))
    reader.tags()
    return ProduceRequest(version, transactional_id, acks, topics, total, limit_ms)


def _bounded(count: int) -> int:
    if count > MAX_PARTITIONS:
        raise MalformedRequest(f"{count} topics or partitions in one Produce request; at most {MAX_PARTITIONS} can be")
    return count


async def check_apart(broker: Broker, request: ProduceRequest) -> ProduceRequest:
    """Check the batches that take long to check on a thread: a few hundred bytes may decompress to millions of records.
    Returns the request with the results of the checks.
    """
    now_ms = broker.clock.wall_ms()
    topics: list[tuple[TopicKey, list[PartitionData]]] = []
    for key, partitions in request.topics:
        topic = find_topic(broker.engine.store, key)
        if topic is not None and not any(data.problem for data in partitions):
            partitions = [await _checked_apart(topic.name, topic.config, data, now_ms) for data in partitions]
        topics.append((key, partitions))
    return request._replace(topics=topics)


async def _checked_apart(topic: str, config: TopicConfig, data: PartitionData, now_ms: int) -> PartitionData:
    if data.records is None or not takes_long_to_check(data.records, config):
        return data
    try:
        await Walkers.run(partial(check_produced, data.records, f"{topic}-{data.partition}", config, now_ms))
    except CairnError as error:
        return data._replace(problem=error)
    return data._replace(are_times_checked=True)


def needs_check_apart(broker: Broker, request: ProduceRequest) -> bool:
    """Whether any batch of the request takes long to check; none does in topics that do not check records' times."""
    for key, partitions in request.topics:
        topic = find_topic(broker.engine.store, key)
        if topic is not None and topic.config.timestamp_before_max_ms != NO_LIMIT_MS:
            batches = (data.records for data in partitions if data.records is not None and data.problem is None)
            if any(takes_long_to_check(records, topic.config) for records in batches):
                return True
    return False


def start(broker: Broker, request: ProduceRequest, frame_bytes: int, answer: ProduceAnswer) -> None:
    """Append all batches of a request without yielding, as `steps` does."""
    for _ in steps(broker, request, frame_bytes, answer):
        pass


def steps(broker: Broker, request: ProduceRequest, frame_bytes: int, answer: ProduceAnswer) -> Iterator[None]:
    """Append all batches of a request, one partition per step; between steps the caller may let other tasks run.

    Batches stay in their frame of `frame_bytes` bytes and keep it in memory; a batch that is a small part of its frame
    is copied out of it.
    """
    now_ms = broker.clock.wall_ms()
    refused = 0
    if request.transactional_id is not None:
        refused = _TRANSACTIONAL_REFUSED
    elif request.acks not in (-1, 0, 1):
        refused = _INVALID_REQUIRED_ACKS
    for key, partitions in request.topics:
        outcomes: list[_Outcome] = []
        answer.topics.append((key, outcomes))
        for data in partitions:
            outcome = _Outcome(data.partition, refused)
            outcomes.append(outcome)
            if not refused:
                if data.records is not None and len(data.records) * KEEP_SHARE < frame_bytes:
                    data = data._replace(records=memoryview(bytearray(data.records)))
                _append(broker, answer, key, data, outcome, now_ms)
            yield


def _append(
    broker: Broker, answer: ProduceAnswer, topic: TopicKey, data: PartitionData, outcome: _Outcome, now_ms: int
) -> None:
    try:
        if data.problem is not None:
            raise data.problem
        stream = find_stream(broker.engine.store, topic, data.partition)
        if data.records is None:
            raise InvalidRecord(f"{stream.name}: no records")
        ticket = stream.append(data.records, now_ms=now_ms, are_times_checked=data.are_times_checked)
    except CairnError as error:
        _refuse(outcome, error)
        return
    answer.wait_for(outcome, ticket)


def is_over(limit_ms: int, waited_s: float) -> bool:
    """Whether the time limit of a request is over. 0 or less is none: simple clients send it, and mean no haste."""
    return 0 < limit_ms <= waited_s * 1000


def timed_out(limit_ms: int) -> AppendTimedOut:
    """What a client is told whose batch was not acknowledged within the time limit of its request: the batch stays, and
    one with a producer id that is sent again is in the log once.
    """
    return AppendTimedOut(f"not acknowledged within the request's {limit_ms} ms; it may be later: send it again")


def _refuse(outcome: _Outcome, error: Exception) -> None:
    outcome.error = int(error_code(error))
    outcome.message = str(error)


def refusal_body(
    version: int, topic: str, partition: int, error: int, message: str | None, leaders: Leaders | None = None
) -> list[Buffer]:
    """The body of the answer to a request with one partition that is refused."""
    answer = ProduceAnswer(version, -1, leaders)
    answer.topics.append((topic, [_Outcome(partition, error, message)]))
    return _encode(answer)


def _encode(answer: ProduceAnswer) -> list[Buffer]:
    version, leaders = answer.version, answer.leaders
    told: list[CurrentLeader] = []
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)
    writer.count(len(answer.topics))
    for key, outcomes in answer.topics:
        if isinstance(key, str):
            writer.string(key)
        else:
            writer.raw(key.bytes)
        writer.count(len(outcomes))
        for outcome in outcomes:
            failed = outcome.ticket is None or _settled(outcome).error
            result = _NOTHING if failed or outcome.ticket is None else outcome.ticket.result()
            writer.fixed(_OUTCOME, outcome.partition, outcome.error, result.base_offset, result.append_ms)
            if version >= FIRST_WITH_LOG_START:
                writer.int64(result.log_start_offset)
            if version >= FIRST_WITH_MESSAGE:
                writer.count(0)
                writer.string(outcome.message)
            if outcome.error == NOT_LEADER and leaders is not None:
                leader = leaders.of(key, outcome.partition)
                told += [leader] if leader is not None else []
                write_leader(writer, _LEADER_TAG, leader)
            else:
                writer.tags()
        writer.tags()
    writer.int32(answer.throttle_ms)
    write_endpoints(writer, leaders.endpoints(told) if leaders is not None and told else ())
    return writer.finish()

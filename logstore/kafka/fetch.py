"""Fetch: returns whole batches up to the high watermark, and waits for them if the client asks for that.

Invariants: every requested partition is answered, in order, and no partition may be named twice; the limits of the
request hold, except for the first batch of the answer, which is sent whatever its size, so that a reader always
advances. What the reads wait for other hosts is limited for the whole request (`ReadPatience`), however many partitions
it has; up to TOGETHER reads wait at the same time (`reads_together`). Fetch sessions are declined with session id 0, as
by a Kafka broker whose session cache is full; so every request names all its partitions.

Source: Kafka protocol guide, Fetch 4 to 18; KIP-74 (limits), KIP-227 (sessions), KIP-516 (topic ids, from version 13),
KIP-595 (records that diverge, from version 12).
"""

import struct
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import trio

from logstore.errors import CairnError, ChunkUnreachable, MalformedRequest, NotLeader, OffsetOutOfRange, StorageFailed
from logstore.events import READ_FAILED
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.errors import error_code
from logstore.kafka.framing import Reader, Writer
from logstore.kafka.guard import MAX_ELEMENTS
from logstore.kafka.leaders import NOT_LEADER, CurrentLeader, Leaders, write_endpoints, write_leader
from logstore.kafka.offsets import refuse_leader_epoch
from logstore.kafka.pace import LARGE_BYTES, Pace, Walkers
from logstore.kafka.reads_together import NOTHING, ReadsTogether, WantedRead
from logstore.kafka.topic_keys import TopicKey, find_topic
from logstore.log.read_patience import ReadPatience
from logstore.log.served import NO_LEADER_EPOCH, LeaderEpochEnd, ServedStream

_THROTTLE = struct.Struct(">i")
KEY = 1
MIN_VERSION, MAX_VERSION = 4, 18
FIRST_FLEXIBLE = 12
FIRST_WITH_IDS = 13
"""Topics are named by id from this version on."""
FIRST_WITHOUT_REPLICA = 15
"""The replica's id is a tagged field from this version on; consumers have none."""
_FIRST_WITH_LEADER = 16
"""The current leader is told with the addresses that it needs."""
_LEADER_TAG = 1
_DIVERGING_TAG, _DIVERGING_BYTES = 0, 13
_DIVERGING = struct.Struct(">BBBiqB")
"""One tagged field, its number and its bytes: epoch and end, and no tagged fields of their own."""
MAX_WAIT_MS = 60_000
MAX_RESPONSE_BYTES = 16 << 20
"""Limit for any request: bounds the memory that one connection holds."""
STEP_BYTES = 16 * 1024
"""So many bytes of an answer count as a step of its walk: a MiB that is read from memory takes 100 µs."""
OTHERS_S, LEAST_OTHERS_S = 0.5, 0.05
"""For so long the reads of a Fetch wait for other hosts together, or for less if the client does; at least LEAST."""
MAX_WAITING_PARTITIONS = 200_000
"""Partitions that all waiting fetches together may name, at some 100 bytes each; further fetches do not wait."""
WAITING_PART_BYTES = 100
"""A waiting fetch keeps its frame, so it counts at least one partition per WAITING_PART_BYTES bytes of the frame."""
_UNKNOWN_TOPIC_OR_PARTITION = 3
_UNKNOWN_TOPIC_ID = 100
_TOPIC_AUTHORIZATION_FAILED = 29
_SESSION_NOT_FOUND = 70
_INVALID_SESSION_EPOCH = 71


class FetchPartition(NamedTuple):
    """A request for the batches of one partition."""

    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int
    last_epoch: int = NO_LEADER_EPOCH
    """Of the record in front of the offset, as far as the client knows; -1: it does not say."""


class FetchRequest(NamedTuple):
    """A decoded Fetch request."""

    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    weight: int
    """What the request counts while it waits, in partitions."""
    refused: frozenset[object] = frozenset()
    """The topics, as the request names them, that the caller may not read."""


class _PartitionAnswer(NamedTuple):
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    buffers: list[Buffer]
    size: int
    is_away: bool = False
    """The records are on no host that can be reached: the client hears of it when it would hear that there are none."""
    diverging: LeaderEpochEnd | None = None
    """The client's records differ from the stream's behind this end."""


def decode(frame: memoryview, at: int, version: int) -> FetchRequest:
    """Decode a Fetch request's body, from `at` on. Raises MalformedRequest."""
    reader = Reader(frame, at, flexible=version >= FIRST_FLEXIBLE)
    if version < FIRST_WITHOUT_REPLICA:
        reader.int32()
    max_wait_ms, min_bytes, max_bytes = reader.int32(), reader.int32(), reader.int32()
    reader.int8()
    session_id, session_epoch = (reader.int32(), reader.int32()) if version >= 7 else (0, -1)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    total = 0
    for _ in range(_bounded(reader.count(3))):
        key = reader.uuid() if version >= FIRST_WITH_IDS else reader.string()
        partitions: list[FetchPartition] = []
        count = reader.count(16)
        total = _bounded(total + count)
        for _ in range(count):
            partition = reader.int32()
            leader_epoch = reader.int32() if version >= 9 else -1
            offset = reader.int64()
            last_epoch = reader.int32() if version >= 12 else NO_LEADER_EPOCH
            if version >= 5:
                reader.int64()
            partitions.append(FetchPartition(partition, leader_epoch, offset, reader.int32(), last_epoch))
            reader.tags()
        reader.tags()
        topics.append((key, partitions))
    if len({(key, part.partition) for key, parts in topics for part in parts}) < total:
        raise MalformedRequest("a fetch names a partition twice")
    weight = max(total, len(frame) // WAITING_PART_BYTES)
    return FetchRequest(version, max_wait_ms, min_bytes, max_bytes, session_id, session_epoch, topics, weight)


async def decode_large(frame: memoryview, at: int, version: int) -> FetchRequest:
    """Like `decode`; a large request is decoded on a thread, so that other tasks run meanwhile."""
    if len(frame) > LARGE_BYTES:
        return await Walkers.run(partial(decode, frame, at, version))
    return decode(frame, at, version)


def _bounded(count: int) -> int:
    if count > MAX_ELEMENTS:
        raise MalformedRequest(f"{count} topics or partitions in one fetch; at most {MAX_ELEMENTS} can be")
    return count


async def handle(
    broker: Broker, request: FetchRequest, answers: AnswerBudget, leaders: Leaders | None = None
) -> tuple[list[Buffer], int]:
    """Answer a request; waits up to its `max_wait_ms` until there are `min_bytes` bytes. `leaders` says who leads what
    this host does not.

    Returns the body, and how many bytes of `answers` it holds until it is sent.
    """
    if request.session_id != 0:
        return await _encode(request.version, _SESSION_NOT_FOUND, []), 0
    if request.session_epoch > 0:
        return await _encode(request.version, _INVALID_SESSION_EPOCH, []), 0
    deadline = trio.current_time()
    if not answers.begin_wait(request.weight, MAX_WAITING_PARTITIONS):
        return await _answer(broker, request, answers, deadline, leaders)
    try:
        deadline += min(max(0, request.max_wait_ms), MAX_WAIT_MS) / 1000
        return await _answer(broker, request, answers, deadline, leaders)
    finally:
        answers.end_wait(request.weight)


async def _answer(
    broker: Broker, request: FetchRequest, answers: AnswerBudget, deadline: float, leaders: Leaders | None
) -> tuple[list[Buffer], int]:
    while True:
        # Register before reading, so that no change in between is missed.
        changed = trio.Event()
        found = _streams(broker, request)
        streams = [stream for partitions in found for stream in partitions if stream is not None]
        pace = Pace()
        room = kept = 0
        try:
            for stream in streams:
                stream.add_waiter(changed.set)
                await pace.step()
            room = answers.take(min(max(0, request.max_bytes), MAX_RESPONSE_BYTES))
            patience = ReadPatience(min(OTHERS_S, max(LEAST_OTHERS_S, deadline - trio.current_time())))
            topics, size, is_final = await _collect(broker, request, found, room, patience)
            # The answer cannot exceed the granted bytes: if min_bytes is larger, waiting would be useless.
            if is_final or size >= min(request.min_bytes, room) or trio.current_time() >= deadline:
                body = await _encode(request.version, 0, topics, leaders)
                kept = size  # a request that is cancelled before this point keeps nothing
                return body, size
            answers.give(room)
            room = 0
            with trio.move_on_at(deadline):
                await changed.wait()
        finally:
            answers.give(room - kept)
            for stream in streams:
                stream.remove_waiter(changed.set)


def _streams(broker: Broker, request: FetchRequest) -> list[list[ServedStream | None]]:
    """The streams of the request's partitions, topic by topic; None: there is no such stream."""
    found: list[list[ServedStream | None]] = []
    for key, partitions in request.topics:
        topic = None if key in request.refused else find_topic(broker.engine.store, key)
        streams = [] if topic is None else topic.partitions
        found.append([streams[p.partition] if 0 <= p.partition < len(streams) else None for p in partitions])
    return found


async def _collect(
    broker: Broker,
    request: FetchRequest,
    streams: list[list[ServedStream | None]],
    room: int,
    patience: ReadPatience,
) -> tuple[list[tuple[TopicKey, list[_PartitionAnswer]]], int, bool]:
    """Answers, their size in bytes, and whether waiting is useless (an error, or a request without partitions)."""
    reads = _FetchReads(broker, room, patience)
    wanted = await _wanted_reads(broker, request, streams)
    if wanted is None:
        return await _walk(broker, request, streams, reads)
    places = [
        (stream, part)
        for (_, parts), found in zip(request.topics, streams, strict=True)
        for part, stream in zip(parts, found, strict=True)
    ]
    async with trio.open_nursery() as nursery:
        reads.together = ReadsTogether(nursery, wanted, partial(reads.read_early, places))
        collected = await _walk(broker, request, streams, reads)
        nursery.cancel_scope.cancel()  # nobody takes what has not been taken
    return collected


async def _wanted_reads(
    broker: Broker, request: FetchRequest, streams: list[list[ServedStream | None]]
) -> list[WantedRead] | None:
    """What is to be read of each partition; None: all is read in turn, because at most one read waits for others."""
    elsewhere = broker.engine.elsewhere
    if elsewhere is None or sum(map(len, streams)) < 2:
        return None
    wanted: list[WantedRead] = []
    waiting = 0
    pace = Pace()
    for (key, partitions), found in zip(request.topics, streams, strict=True):
        for part, stream in zip(partitions, found, strict=True):
            await pace.step()
            if stream is None or key in request.refused or stream.deleted or part.offset >= stream.high_watermark:
                wanted.append(NOTHING)
                continue
            is_elsewhere = part.max_bytes > 0 and elsewhere(stream, part.offset)
            wanted.append(WantedRead(max(0, part.max_bytes), is_elsewhere))
            waiting += is_elsewhere
    return wanted if waiting > 1 else None


async def _walk(
    broker: Broker, request: FetchRequest, streams: list[list[ServedStream | None]], reads: "_FetchReads"
) -> tuple[list[tuple[TopicKey, list[_PartitionAnswer]]], int, bool]:
    """See `_collect`."""
    topics: list[tuple[TopicKey, list[_PartitionAnswer]]] = []
    is_final = not request.topics
    number = 0
    pace = Pace()
    for (key, partitions), found in zip(request.topics, streams, strict=True):
        answers: list[_PartitionAnswer] = []
        for wanted, stream in zip(partitions, found, strict=True):
            await pace.step()
            if key in request.refused:
                answer = _refused(wanted, _TOPIC_AUTHORIZATION_FAILED)
            elif stream is None or stream.deleted:
                answer = _refused(wanted, _unknown(broker, key))
            else:
                answer = await reads.read(number, stream, wanted)
                stream.fetched_bytes += answer.size
                await pace.step(answer.size // STEP_BYTES)
            is_final = is_final or (answer.error != 0 and not answer.is_away) or answer.diverging is not None
            answers.append(answer)
            number += 1
        topics.append((key, answers))
    return topics, reads.total_bytes, is_final


class _FetchReads:
    """The reads of one answer of up to `room` bytes. The first batch of the answer is given whatever its size."""

    def __init__(self, broker: Broker, room: int, patience: ReadPatience) -> None:
        self.together: ReadsTogether[_PartitionAnswer] | None = None
        self.total_bytes = 0
        self._broker = broker
        self._room = room
        self._patience = patience

    async def read(self, number: int, stream: ServedStream, wanted: FetchPartition) -> _PartitionAnswer:
        """The answer for a partition whose turn it is."""
        must_advance, left_bytes = self.total_bytes == 0, self._room - self.total_bytes
        limit = min(wanted.max_bytes, left_bytes)
        if must_advance:
            limit = max(1, limit)
        answer = None
        if self.together is not None and limit > 0:
            answer = await self.together.take(number, left_bytes)
        if answer is None:
            answer = await _read(self._broker, stream, wanted, limit, self._patience)
        if answer.size > limit and not must_advance:
            answer = answer._replace(buffers=[], size=0)
        self.total_bytes += answer.size
        return answer

    async def read_early(
        self, places: Sequence[tuple[ServedStream | None, FetchPartition]], number: int
    ) -> _PartitionAnswer:
        """The answer for a partition that may have all that it asks for."""
        stream, wanted = places[number]
        if stream is None:
            raise AssertionError("of a stream that is not there nothing is wanted")
        return await _read(self._broker, stream, wanted, wanted.max_bytes, self._patience)


async def _read(
    broker: Broker, stream: ServedStream, wanted: FetchPartition, limit: int, patience: ReadPatience
) -> _PartitionAnswer:
    """Batches of a partition, up to `limit` bytes but at least one; none if the limit is 0 or less."""
    if wanted.leader_epoch >= 0 and wanted.leader_epoch != stream.leader_epoch:
        refused = refuse_leader_epoch(stream, wanted.leader_epoch).value
        if refused:
            return _refused(wanted, refused)
    try:
        if wanted.last_epoch >= 0:
            diverging = await _diverging(broker, stream, wanted, patience)
            if diverging is not None:
                return _empty(stream, wanted)._replace(diverging=diverging)
        if limit <= 0:
            stream.check_offset(wanted.offset)
            return _empty(stream, wanted)
        result = await broker.engine.read(stream, wanted.offset, limit, patience=patience)
    except OffsetOutOfRange as error:
        return _empty(stream, wanted, int(error_code(error)))
    except NotLeader as error:
        return _refused(wanted, int(error_code(error)))
    except (CairnError, OSError) as error:
        broker.engine.store.report(READ_FAILED, stream=stream.name, offset=wanted.offset, error=str(error))
        failure = StorageFailed(str(error)) if isinstance(error, OSError) else error
        empty = _empty(stream, wanted, int(error_code(failure)))
        return empty._replace(is_away=isinstance(error, ChunkUnreachable))
    return _PartitionAnswer(
        wanted.partition, 0, stream.high_watermark, stream.log_start_offset, result.buffers, result.size_bytes
    )


async def _diverging(
    broker: Broker, stream: ServedStream, wanted: FetchPartition, patience: ReadPatience
) -> LeaderEpochEnd | None:
    """Where a client's records part from the stream's, by the epoch of the last one that it has; None: they do not.
    Raises OffsetOutOfRange if the stream does not have the epoch, or no longer the offset, as Kafka does; CairnError.
    An offset behind the end is that of a client that has more than the stream.
    """
    end = await broker.engine.end_of_epoch(stream, wanted.last_epoch, patience)
    if end is None or wanted.offset < stream.log_start_offset:
        raise OffsetOutOfRange(stream.name, wanted.offset, stream.log_start_offset, stream.high_watermark)
    return end if end.leader_epoch < wanted.last_epoch or end.end_offset < wanted.offset else None


def _unknown(broker: Broker, key: TopicKey) -> int:
    """The error where there is no stream: the topic's id is unknown, or else its name or the partition."""
    if not isinstance(key, str) and broker.engine.store.topic_by_id(key) is None:
        return _UNKNOWN_TOPIC_ID
    return _UNKNOWN_TOPIC_OR_PARTITION


def _refused(wanted: FetchPartition, error: int) -> _PartitionAnswer:
    """An error instead of a stream's offsets."""
    return _PartitionAnswer(wanted.partition, error, -1, -1, [], 0)


def _empty(stream: ServedStream, wanted: FetchPartition, error: int = 0) -> _PartitionAnswer:
    """A stream's offsets without batches."""
    return _PartitionAnswer(wanted.partition, error, stream.high_watermark, stream.log_start_offset, [], 0)


def throttled(body: list[Buffer], throttle_ms: int) -> list[Buffer]:
    """The body of an answer, with the time for which nothing will be read from the client; every version begins with
    it.
    """
    if not throttle_ms:
        return body
    return [_THROTTLE.pack(throttle_ms), memoryview(body[0])[_THROTTLE.size :], *body[1:]]


def _write_diverging(writer: Writer, end: LeaderEpochEnd) -> None:
    """End a partition's answer with where the client's records part from the stream's, as the only tagged field."""
    writer.fixed(_DIVERGING, 1, _DIVERGING_TAG, _DIVERGING_BYTES, *end, 0)


async def _encode(
    version: int, error: int, topics: list[tuple[TopicKey, list[_PartitionAnswer]]], leaders: Leaders | None = None
) -> list[Buffer]:
    told: list[CurrentLeader] = []
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)
    writer.int32(0)
    if version >= 7:
        writer.int16(error)
        writer.int32(0)
    writer.count(len(topics))
    pace = Pace()
    for key, answers in topics:
        if isinstance(key, str):
            writer.string(key)
        else:
            writer.raw(key.bytes)
        writer.count(len(answers))
        for answer in answers:
            await pace.step()
            writer.int32(answer.partition)
            writer.int16(answer.error)
            writer.int64(answer.high_watermark)
            writer.int64(answer.high_watermark)
            if version >= 5:
                writer.int64(answer.log_start_offset)
            writer.count(0)
            if version >= 11:
                writer.int32(-1)
            writer.records(answer.buffers, answer.size)
            if answer.diverging is not None:
                _write_diverging(writer, answer.diverging)
            elif answer.error == NOT_LEADER and leaders is not None and version >= _FIRST_WITH_LEADER:
                leader = leaders.of(key, answer.partition)
                told += [leader] if leader is not None else []
                write_leader(writer, _LEADER_TAG, leader)
            else:
                writer.tags()
        writer.tags()
    write_endpoints(writer, leaders.endpoints(told) if leaders is not None and told else ())
    return writer.finish()

"""Loads on one server: producers that keep a number of requests in flight, a paced one, and readers.

Invariants:
* The same bytes go to every server: a batch is built once, and stamped where a reader wants to know its age.
* A request that fails ends the measurement: there are no retries.
* Closed loops count what was acked while they ran; what was in flight at the end is waited for, and not counted.
"""

from __future__ import annotations

import functools
import select
import selectors
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from crc32c import crc32c

from benchmarks.harness.raw import RawConnection, RawFailed, make_batch, produce_frame, produced_error

BATCH_BYTES = 16 * 1024
"""Of records in one request: the batch.size of Kafka's Java producer."""
RECORD_OVERHEAD_BYTES = 10
FETCH_BYTES = 1 << 20
_RECEIVE_BYTES = 64 * 1024
_CRC_AT, _CRC_FROM = 17, 21
_STAMP = struct.Struct("<Q")
_BASE_AND_LENGTH = struct.Struct(">qi")
_BATCH_HEADER_BYTES = 61
_LAST_DELTA_AT = 23


class Payload(NamedTuple):
    """One batch, ready to be sent again and again."""

    batch: bytes
    records: int
    record_bytes: int


def payload(record_bytes: int, *, batch_bytes: int = BATCH_BYTES, timestamp_step_ms: int = 0) -> Payload:
    """A batch of records of `record_bytes` that fills `batch_bytes`."""
    count = max(1, batch_bytes // (record_bytes + RECORD_OVERHEAD_BYTES))
    values = [bytes((index + at) & 0xFF for at in range(record_bytes)) for index in range(count)]
    now_ms = time.time_ns() // 1_000_000
    return Payload(make_batch(values, timestamp_ms=now_ms, timestamp_step_ms=timestamp_step_ms), count, record_bytes)


class Produced(NamedTuple):
    """What a producer saw: requests acked, seconds, and each request's latency in seconds."""

    requests: int
    seconds: float
    latencies_s: list[float]


class Lane:
    """One connection with requests in flight."""

    def __init__(self, connection: RawConnection, topic: str, next_frame: Callable[[], bytes | bytearray]) -> None:
        self.connection = connection
        self.sent_at: deque[float] = deque()
        self._topic = topic
        self._next_frame = next_frame
        self._buffer = bytearray()

    def send(self, at: float) -> None:
        """Send one request; its latency counts from `at`."""
        self.sent_at.append(at)
        self.connection.socket.sendall(self._next_frame())

    def receive(self, latencies_s: list[float]) -> int:
        """Take what answers are there, waiting for some; give back how many. RawFailed on an error code."""
        data = self.connection.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise RawFailed("the server closed the connection")
        now = time.perf_counter()
        buffer = self._buffer
        buffer += data
        at = count = 0
        while len(buffer) - at >= 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if end > len(buffer):
                break
            error = produced_error(memoryview(bytes(buffer[at + 4 : end])), self._topic)
            if error:
                raise RawFailed(f"producing to {self._topic}: error {error}")
            latencies_s.append(now - self.sent_at.popleft())
            at = end
            count += 1
        del buffer[:at]
        return count


class Shape(NamedTuple):
    """How many requests are in flight: `depth` on each of the `connections`; connection n writes to partition n mod
    `partitions`.
    """

    depth: int
    connections: int = 1
    partitions: int = 1


def produce_closed(port: int, topic: str, load: Payload, shape: Shape, *, seconds: float) -> Produced:
    """Keep as many requests in flight as `shape` says, for `seconds`."""
    latencies_s: list[float] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        lanes: list[Lane] = []
        for number in range(shape.connections):
            request = bytes(produce_frame(topic, number % shape.partitions, load.batch))
            connection = stack.enter_context(RawConnection(port))
            lanes.append(Lane(connection, topic, functools.partial(bytes, request)))
            selector.register(connection.socket, selectors.EVENT_READ, lanes[-1])
        begin = time.perf_counter()
        for lane in lanes:
            for _ in range(shape.depth):
                lane.send(time.perf_counter())
        while (now := time.perf_counter()) - begin < seconds:
            ready = lanes if shape.connections == 1 else [key.data for key, _ in selector.select()]
            for lane in ready:
                for _ in range(lane.receive(latencies_s)):
                    lane.send(time.perf_counter())
        counted = len(latencies_s)
        rest: list[float] = []
        for lane in lanes:
            while lane.sent_at:
                lane.receive(rest)
    return Produced(counted, now - begin, latencies_s[:counted])


def produce_paced(port: int, topic: str, load: Payload, *, per_second: float, seconds: float) -> Produced:
    """One request every 1/`per_second`, answered or not; latency counts from when it was due."""
    frames = stamped(topic, load)
    latencies_s: list[float] = []
    with RawConnection(port) as connection:
        lane = Lane(connection, topic, lambda: next(frames))
        begin = time.perf_counter()
        due = begin
        while due - begin < seconds or lane.sent_at:
            now = time.perf_counter()
            while due <= now and due - begin < seconds:
                lane.send(due)
                due += 1 / per_second
            wait = max(0.0, due - time.perf_counter()) if due - begin < seconds else None
            if select.select([connection.socket], [], [], wait)[0]:
                lane.receive(latencies_s)
    return Produced(len(latencies_s), time.perf_counter() - begin, latencies_s)


def produce_stamped(port: int, topic: str, load: Payload, *, depth: int, seconds: float) -> Produced:
    """As `produce_closed` on one connection, each batch saying when it was sent."""
    frames = stamped(topic, load)
    return _until(port, topic, lambda: next(frames), depth, lambda begin, _: time.perf_counter() - begin >= seconds)


def produce_series(
    port: int, topic: str, load: Payload, *, total_bytes: int, first_ms: int, depth: int = 8
) -> Produced:
    """Fill a topic with `total_bytes`; each batch begins in time where the last one ended (1 ms a record)."""
    count = -(-total_bytes // len(load.batch))
    frames = _dated(topic, load, first_ms)
    return _until(port, topic, lambda: next(frames), depth, lambda _, sent: sent >= count)


def _until(
    port: int,
    topic: str,
    next_frame: Callable[[], bytes | bytearray],
    depth: int,
    is_over: Callable[[float, int], bool],
) -> Produced:
    latencies_s: list[float] = []
    with RawConnection(port) as connection:
        lane = Lane(connection, topic, next_frame)
        begin = time.perf_counter()
        sent = 0
        while not is_over(begin, sent):
            if len(lane.sent_at) < depth:
                lane.send(time.perf_counter())
                sent += 1
            else:
                lane.receive(latencies_s)
        while lane.sent_at:
            lane.receive(latencies_s)
    return Produced(len(latencies_s), time.perf_counter() - begin, latencies_s)


def _frame_and_batch(topic: str, load: Payload) -> tuple[bytearray, int]:
    request = produce_frame(topic, 0, load.batch)
    return request, len(request) - len(load.batch)


def stamped(topic: str, load: Payload) -> Iterator[bytearray]:
    """Produce requests whose last 9th to 2nd bytes say, in nanoseconds of the monotonic clock, when they were made."""
    request, at = _frame_and_batch(topic, load)
    stamp_at = len(request) - 1 - _STAMP.size
    checked = memoryview(request)[at + _CRC_FROM :]
    while True:
        _STAMP.pack_into(request, stamp_at, time.perf_counter_ns())
        struct.pack_into(">I", request, at + _CRC_AT, crc32c(checked))
        yield request


def _dated(topic: str, load: Payload, first_ms: int) -> Iterator[bytearray]:
    request, at = _frame_and_batch(topic, load)
    checked = memoryview(request)[at + _CRC_FROM :]
    while True:
        struct.pack_into(">qq", request, at + 27, first_ms, first_ms + load.records - 1)
        struct.pack_into(">I", request, at + _CRC_AT, crc32c(checked))
        yield request
        first_ms += load.records


class Walk(NamedTuple):
    """Whole batches in a fetched buffer: the offset after them, and where the last one ends."""

    next_offset: int
    end: int


def walk(records: memoryview, next_offset: int) -> Walk:
    """Step over the whole batches; a last one may be cut short, as Kafka allows."""
    at = 0
    size = len(records)
    while size - at >= _BATCH_HEADER_BYTES:
        base_offset, length = _BASE_AND_LENGTH.unpack_from(records, at)
        if at + 12 + length > size:
            break
        next_offset = base_offset + int.from_bytes(records[at + _LAST_DELTA_AT : at + _LAST_DELTA_AT + 4], "big") + 1
        at += 12 + length
    return Walk(next_offset, at)


def age_s(records: memoryview, end: int) -> float:
    """How long ago the last batch, which ends at `end` and was made by `stamped`, was made."""
    (stamp,) = _STAMP.unpack_from(records, end - 1 - _STAMP.size)
    return float(time.perf_counter_ns() - stamp) / 1e9


class Consumed(NamedTuple):
    """What a reader got."""

    records: int
    size_bytes: int
    seconds: float
    ages_s: list[float]


def catch_up(port: int, topic: str, end_offset: int, *, seconds: float = 600.0) -> Consumed:
    """Read from the beginning to `end_offset`, again and again until `seconds` are over if that comes first."""
    size = 0
    offset = 0
    begin = time.perf_counter()
    with RawConnection(port) as connection:
        while offset < end_offset and time.perf_counter() - begin < seconds:
            records = connection.fetch(topic, 0, offset, max_bytes=FETCH_BYTES).records
            offset, end = walk(records, offset)
            size += end
    return Consumed(offset, size, time.perf_counter() - begin, [])

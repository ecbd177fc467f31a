"""Load from plain sockets: produce with so many requests in flight, from so many connections, read a stream to its end.

As a program (`python -m benchmarks.harness.load PORT TOPIC SECONDS`) it is a reader that catches up over and over at full speed, in a
process of its own, and prints how many bytes it read.
"""

from __future__ import annotations

import select
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.harness.raw import RawConnection, RawFailed, fetch_frame, fetched, produce_frame, produced_error

NOT_LEADER = 6
"""Kafka's answer in the moment between naming a leader and having one."""
READY_SECONDS = 20.0
FETCH_BYTES = 1 << 20


class Produced(NamedTuple):
    """Requests answered in a time, and each one's latency."""

    requests: int
    seconds: float
    latencies_ns: list[int]


def ready_topic(port: int, topic: str, partitions: int = 1) -> None:
    """Create a topic and wait until each partition takes records."""
    with RawConnection(port) as connection:
        connection.create_topic(topic, partitions, {"retention.ms": "-1"})
        deadline = time.monotonic() + READY_SECONDS
        for partition in range(partitions):
            while True:
                try:
                    connection.list_offset(topic, partition, -1)
                    break
                except RawFailed:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)


def drop_topic(port: int, topic: str) -> None:
    """Delete a topic, so that a long run does not fill the disk."""
    with RawConnection(port) as connection:
        connection.delete_topic(topic)


def produce_pipelined(port: int, topic: str, records: bytes, *, depth: int, seconds: float) -> Produced:
    """One connection with `depth` requests in flight for `seconds`; each request is one batch. RawFailed on any error."""
    request = produce_frame(topic, 0, records)
    latencies: list[int] = []
    sent: deque[int] = deque()
    now = time.perf_counter_ns
    with RawConnection(port) as connection:
        send, receive = connection.send, connection.receive
        begun = now()
        until = begun + int(seconds * 1e9)
        for _ in range(depth):
            sent.append(now())
            send(request)
        while sent:
            answer = receive()
            at = now()
            latencies.append(at - sent.popleft())
            if produced_error(answer, topic):
                raise RawFailed(f"producing to {topic}: error {produced_error(answer, topic)}")
            if at < until:
                sent.append(now())
                send(request)
        return Produced(len(latencies), (now() - begun) / 1e9, latencies)


def produce_connections(port: int, topic: str, records: bytes, *, connections: int, partitions: int, seconds: float) -> Produced:
    """Many connections with one request in flight each, spread over the partitions."""
    opened = [RawConnection(port) for _ in range(connections)]
    requests = [produce_frame(topic, index % partitions, records) for index in range(connections)]
    by_handle = {connection.socket.fileno(): index for index, connection in enumerate(opened)}
    sent = [0] * connections
    latencies: list[int] = []
    now = time.perf_counter_ns
    with select.epoll() as poll:
        for handle in by_handle:
            poll.register(handle, select.EPOLLIN)
        begun = now()
        until = begun + int(seconds * 1e9)
        for index, connection in enumerate(opened):
            sent[index] = now()
            connection.send(requests[index])
        waiting = connections
        while waiting:
            for handle, _ in poll.poll():
                index = by_handle[handle]
                answer = opened[index].receive()
                at = now()
                latencies.append(at - sent[index])
                if produced_error(answer, topic):
                    raise RawFailed(f"producing to {topic}: error {produced_error(answer, topic)}")
                if at < until:
                    sent[index] = now()
                    opened[index].send(requests[index])
                else:
                    waiting -= 1
        seconds_taken = (now() - begun) / 1e9
    for connection in opened:
        connection.close()
    return Produced(len(latencies), seconds_taken, latencies)


def fill(port: int, topic: str, batches: Sequence[bytes], total_bytes: int, *, depth: int = 8) -> int:
    """Write the batches over and over until `total_bytes` are acked; gives back how many requests that took."""
    requests = [produce_frame(topic, 0, batch) for batch in batches]
    count = max(1, total_bytes // len(batches[0]))
    with RawConnection(port) as connection:
        for number in range(count + depth):
            if number < count:
                connection.send(requests[number % len(requests)])
            if number >= depth:
                error = produced_error(connection.receive(), topic)
                if error:
                    raise RawFailed(f"filling {topic}: error {error}")
    return count


def read_stream(port: int, topic: str, offset: int, end: int) -> tuple[int, float]:
    """Read from `offset` until `end`; the bytes read and the seconds it took."""
    total = 0
    begun = time.perf_counter()
    with RawConnection(port) as connection:
        while offset < end:
            records = fetched(connection.call(fetch_frame(topic, 0, offset, max_bytes=FETCH_BYTES)), topic).records
            total += len(records)
            offset = max(offset, _next_offset(records, offset))
    return total, time.perf_counter() - begun


def _next_offset(records: memoryview, offset: int) -> int:
    """The offset behind the last whole batch."""
    position = 0
    while position + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        if position + 12 + length > len(records):
            break
        offset = base + struct.unpack_from(">i", records, position + 23)[0] + 1
        position += 12 + length
    return int(offset)


def tail_latencies(port: int, topic: str, records: bytes, count: int) -> list[int]:
    """From sending a batch to a waiting reader having it, `count` times, in nanoseconds."""
    samples = []
    now = time.perf_counter_ns
    request = produce_frame(topic, 0, records)
    with RawConnection(port) as writer, RawConnection(port) as reader:
        offset = writer.list_offset(topic, 0, -1)[1]
        for _ in range(count):
            reader.send(fetch_frame(topic, 0, offset, max_wait_ms=10_000))
            begun = now()
            writer.send(request)
            got = fetched(reader.receive(), topic).records
            samples.append(now() - begun)
            offset = _next_offset(got, offset)
            writer.receive()
    return samples


def seek_latencies(port: int, topic: str, timestamps_ms: Sequence[int]) -> list[int]:
    """Time of each ListOffsets by timestamp, in nanoseconds."""
    samples = []
    with RawConnection(port) as connection:
        for timestamp_ms in timestamps_ms:
            begun = time.perf_counter_ns()
            connection.list_offset(topic, 0, timestamp_ms)
            samples.append(time.perf_counter_ns() - begun)
    return samples


def first_ack_seconds(port: int, topic: str, records: bytes, begun: float, timeout_seconds: float = 120.0) -> float:
    """Seconds from `begun` (perf_counter) until a produce request is acked, creating the topic if it is not there."""
    deadline = begun + timeout_seconds
    created = False
    while True:
        try:
            with RawConnection(port, timeout_seconds=timeout_seconds) as connection:
                if not created:
                    created = _create(connection, topic)
                connection.produce(topic, 0, records)
                return time.perf_counter() - begun
        except (OSError, RawFailed):
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.003)


def _create(connection: RawConnection, topic: str) -> bool:
    try:
        connection.create_topic(topic, 1, {"retention.ms": "-1"})
    except RawFailed as refused:
        if not str(refused).endswith("error 36"):  # TOPIC_ALREADY_EXISTS
            raise
    return True


def main(arguments: Sequence[str]) -> None:
    """Catch up from the beginning, over and over, for so many seconds."""
    port, topic, seconds = int(arguments[0]), arguments[1], float(arguments[2])
    with RawConnection(port) as connection:
        end = connection.list_offset(topic, 0, -1)[1]
    until = time.monotonic() + seconds
    total = 0
    while time.monotonic() < until:
        total += read_until(port, topic, end, until)
    print(total)


def read_until(port: int, topic: str, end: int, until: float) -> int:
    """Read from the beginning to `end`, or until that moment; the bytes read."""
    offset = total = 0
    with RawConnection(port) as connection:
        while offset < end and time.monotonic() < until:
            records = fetched(connection.call(fetch_frame(topic, 0, offset, max_bytes=FETCH_BYTES)), topic).records
            total += len(records)
            offset = max(offset, _next_offset(records, offset))
    return total


if __name__ == "__main__":
    main(sys.argv[1:])

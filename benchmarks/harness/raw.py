"""A Kafka client of plain sockets that spends as little as Python can on a request.

It writes the few requests that benchmarks need by hand, in versions that servers of Kafka 2.3 to 4.x answer, and knows
nothing of retries, leaders or compression: what it measures is the server.

Invariants:
* A produce frame is built once and sent many times; only its correlation id changes.
* A connection's answers are read in the order of its requests, as Kafka promises.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 19, 20
PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, CREATE_TOPICS_VERSION, DELETE_TOPICS_VERSION = 7, 11, 5, 4, 3
_BATCH = struct.Struct(">qiibIhiqqqhii")
_CLIENT_ID = b"raw"


class RawFailed(RuntimeError):
    """The server answered with an error code, or closed the connection."""


class Fetched(NamedTuple):
    """One partition's part of a fetch's answer."""

    high_watermark: int
    records: memoryview


def varint(value: int) -> bytes:
    """A zigzag varint, as records use it."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def make_batch(values: Sequence[bytes], *, timestamp_ms: int, timestamp_step_ms: int = 0) -> bytes:
    """A RecordBatch v2 of records without keys; the timestamps start at `timestamp_ms` and grow by the step."""
    records = bytearray()
    for index, value in enumerate(values):
        body = (
            b"\0" + varint(index * timestamp_step_ms) + varint(index) + varint(-1) + varint(len(value)) + value + b"\0"
        )
        records += varint(len(body)) + body
    count = len(values)
    last_ms = timestamp_ms + (count - 1) * timestamp_step_ms
    head = _BATCH.pack(0, 49 + len(records), -1, 2, 0, 0, count - 1, timestamp_ms, last_ms, -1, -1, -1, count)
    batch = bytearray(head) + records
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def stamp_batch(batch: bytearray, timestamp_ms: int) -> None:
    """Give a batch whose records have one timestamp another one."""
    struct.pack_into(">qq", batch, 27, timestamp_ms, timestamp_ms)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))


def string(text: str) -> bytes:
    """A STRING of the protocol."""
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def frame(api_key: int, version: int, body: bytes, correlation: int = 0) -> bytearray:
    """A whole request with header version 1, its length in front."""
    head = struct.pack(">hhih", api_key, version, correlation, len(_CLIENT_ID)) + _CLIENT_ID
    return bytearray(struct.pack(">i", len(head) + len(body)) + head + body)


def produce_frame(topic: str, partition: int, records: bytes, *, acks: int = -1) -> bytearray:
    """A Produce request with one partition's batches."""
    body = struct.pack(">hhi", -1, acks, 30_000) + struct.pack(">i", 1) + string(topic)
    body += struct.pack(">iii", 1, partition, len(records)) + records
    return frame(PRODUCE, PRODUCE_VERSION, body)


def fetch_frame(
    topic: str, partition: int, offset: int, *, max_wait_ms: int = 500, min_bytes: int = 1, max_bytes: int = 1 << 20
) -> bytearray:
    """A Fetch request for one partition, without a fetch session."""
    body = (
        struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, max_bytes, 0, 0, -1) + struct.pack(">i", 1) + string(topic)
    )
    body += struct.pack(">iiiqqi", 1, partition, -1, offset, -1, max_bytes)
    return frame(FETCH, FETCH_VERSION, body + struct.pack(">i", 0) + string(""))


class RawConnection:
    """One connection to a server, blocking."""

    def __init__(self, port: int, timeout_seconds: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, request: bytes | bytearray) -> None:
        """Send a whole frame."""
        self.socket.sendall(request)

    def receive(self) -> memoryview:
        """The next answer, from its correlation id on. Raises RawFailed when the connection ends."""
        buffer = self._buffer
        while len(buffer) < 4:
            self._fill()
        size = int.from_bytes(buffer[:4], "big") + 4
        if len(buffer) < size:
            return self._receive_long(size)
        answer = memoryview(bytes(memoryview(buffer)[4:size]))
        del buffer[:size]
        return answer

    def call(self, request: bytes | bytearray) -> memoryview:
        """Send a frame and wait for its answer."""
        self.send(request)
        return self.receive()

    def _fill(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise RawFailed("the server closed the connection")
        self._buffer += data

    def _receive_long(self, size: int) -> memoryview:
        """An answer that is not here yet, received into one buffer without copying it about."""
        answer = bytearray(size)
        have = len(self._buffer)
        answer[:have] = self._buffer
        self._buffer.clear()
        rest = memoryview(answer)
        while have < size:
            received = self.socket.recv_into(rest[have:])
            if not received:
                raise RawFailed("the server closed the connection")
            have += received
        return rest[4:]

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, *, replicas: int = 1
    ) -> None:
        """Create a topic. RawFailed if the server refuses."""
        body = struct.pack(">i", 1) + string(name) + struct.pack(">ihi", partitions, replicas, 0)
        body += struct.pack(">i", len(config or {}))
        for key, value in (config or {}).items():
            body += string(key) + string(value)
        answer = self.call(frame(CREATE_TOPICS, CREATE_TOPICS_VERSION, body + struct.pack(">ib", 30_000, 0)))
        error = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(name.encode()))[0]
        if error:
            raise RawFailed(f"creating {name}: error {error}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic. RawFailed if the server refuses."""
        answer = self.call(
            frame(DELETE_TOPICS, DELETE_TOPICS_VERSION, struct.pack(">i", 1) + string(name) + struct.pack(">i", 30_000))
        )
        error = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(name.encode()))[0]
        if error:
            raise RawFailed(f"deleting {name}: error {error}")

    def produce(self, topic: str, partition: int, records: bytes, *, acks: int = -1) -> int:
        """Produce and give back the base offset. RawFailed on an error code."""
        return produced_offset(self.call(produce_frame(topic, partition, records, acks=acks)), topic)

    def list_offset(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int]:
        """(timestamp, offset) of the first record at or after a timestamp; -1 stands for the end, -2 the beginning."""
        body = (
            struct.pack(">ib", -1, 0)
            + struct.pack(">i", 1)
            + string(topic)
            + struct.pack(">iiiq", 1, partition, -1, timestamp_ms)
        )
        answer = self.call(frame(LIST_OFFSETS, LIST_OFFSETS_VERSION, body))
        error, timestamp, offset = struct.unpack_from(">hqq", answer, 4 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4)
        if error:
            raise RawFailed(f"listing offsets of {topic}: error {error}")
        return timestamp, offset

    def fetch(self, topic: str, partition: int, offset: int, **limits: int) -> Fetched:
        """Fetch one partition. RawFailed on an error code."""
        return fetched(self.call(fetch_frame(topic, partition, offset, **limits)), topic)


def produced_error(answer: memoryview, topic: str) -> int:
    """The error code in a Produce answer for one partition."""
    return int(struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)[0])


def produced_offset(answer: memoryview, topic: str) -> int:
    """The base offset in a Produce answer for one partition (an ASCII topic). RawFailed on an error code."""
    error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    if error:
        raise RawFailed(f"producing to {topic}: error {error}")
    return int(offset)


def fetched(answer: memoryview, topic: str) -> Fetched:
    """One partition's records in a Fetch answer. RawFailed on an error code."""
    whole_error = struct.unpack_from(">h", answer, 8)[0]
    if whole_error:
        raise RawFailed(f"fetching {topic}: error {whole_error}")
    position = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4
    error, high_watermark, _, _, aborted = struct.unpack_from(">hqqqi", answer, position)
    if error:
        raise RawFailed(f"fetching {topic}: error {error}")
    position += 30 + max(aborted, 0) * 16 + 4
    size = struct.unpack_from(">i", answer, position)[0]
    return Fetched(high_watermark, answer[position + 4 : position + 4 + max(size, 0)])

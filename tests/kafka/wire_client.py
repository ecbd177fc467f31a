"""A client that speaks raw frames, so that tests can send what no proper client would."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from logstore.kafka.wire import build
from tests.support.limits import PATIENCE_S

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 19, 22


class Produced(NamedTuple):
    """What a Produce answer says of its one partition."""

    correlation_id: int
    error: int
    base_offset: int


class WireClient:
    """One connection. Requests are built and answers read with kio; frames can be sent as bare bytes too."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")
        self._correlation_id = 0

    def __enter__(self) -> WireClient:
        """Nothing to do: it is connected."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self._file.close()
        self.socket.close()

    # ---- frames

    def send_frame(self, frame: bytes) -> None:
        """One frame with its length."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive_frame(self) -> bytes:
        """One frame without its length; b"" if the server has closed the connection."""
        try:
            head = self._file.read(4)
            return self._file.read(struct.unpack(">i", head)[0]) if len(head) == 4 else b""
        except ConnectionResetError:
            return b""

    # ---- requests

    def request(self, key: int, version: int, /, **values: Any) -> Any:
        """Send a request and wait for its answer."""
        sent = self.send(key, version, **values)
        correlation_id, answer = self.receive(key, version)
        assert correlation_id == sent
        return answer

    def send(self, key: int, version: int, /, **values: Any) -> int:
        """Send a request; its correlation id."""
        self.send_frame(self.frame(key, version, **values))
        return self._correlation_id

    def frame(self, key: int, version: int, /, **values: Any) -> bytes:
        """A request's frame, with a correlation id of its own."""
        kind = load_request_schema(key, version)
        self._correlation_id += 1
        return self.header(key, version, flexible=bool(kind.__flexible__)) + encode(kind, values)

    def header(self, key: int, version: int, *, flexible: bool) -> bytes:
        """A request header."""
        tags = b"\x00" if flexible else b""
        return struct.pack(">hhih", key, version, self._correlation_id, 4) + b"test" + tags

    def receive(self, key: int, version: int) -> tuple[int, Any]:
        """The next answer, which must be of that kind: correlation id and kio's response."""
        frame = self.receive_frame()
        assert frame, "the server has closed the connection"
        kind = load_response_schema(key, version)
        at = 5 if kind.__flexible__ and key != API_VERSIONS else 4
        answer, size = entity_reader(kind)(memoryview(frame).toreadonly(), at)
        assert at + size == len(frame), "bytes follow the answer"
        return struct.unpack_from(">i", frame)[0], answer

    # ---- what many tests need

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> int:
        """Create a topic; the error code."""
        entries = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": entries}
        return int(self.request(CREATE_TOPICS, 5, topics=[topic]).topics[0].error_code)

    def send_produce(self, topic: str, batch: bytes, *, acks: int = -1, version: int = 8, partition: int = 0) -> int:
        """Send a Produce request of one batch; its correlation id."""
        parts = [{"index": partition, "records": batch}]
        return self.send(PRODUCE, version, acks=acks, topic_data=[{"name": topic, "partition_data": parts}])

    def receive_produced(self, version: int = 8) -> Produced:
        """The answer to a Produce request of one batch."""
        correlation_id, answer = self.receive(PRODUCE, version)
        part = answer.responses[0].partition_responses[0]
        return Produced(correlation_id, int(part.error_code), part.base_offset)

    def produce(self, topic: str, batch: bytes, *, version: int = 8, partition: int = 0) -> Produced:
        """Produce one batch and wait for the answer."""
        self.send_produce(topic, batch, version=version, partition=partition)
        return self.receive_produced(version)

    def fetch(self, topic: str, offset: int, *, version: int = 11, **limits: Any) -> Any:
        """Fetch from partition 0 of a topic; the answer's partition."""
        return self.request(FETCH, version, **fetch_values(topic, offset, **limits)).responses[0].partitions[0]

    def latest(self, topic: str) -> int:
        """The high watermark of partition 0."""
        part = {"partition_index": 0, "timestamp": -1}
        answer = self.request(LIST_OFFSETS, 5, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
        return int(answer.topics[0].partitions[0].offset)


def encode(kind: type, values: Mapping[str, Any]) -> bytes:
    """A request's body."""
    target = io.BytesIO()
    write: Any = entity_writer(kind)
    write(target, build(kind, values))
    return target.getvalue()


def fetch_values(
    topic: str,
    offset: int,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    partitions: Sequence[int] = (0,),
    **more: Any,
) -> dict[str, Any]:
    """A Fetch request's values."""
    parts = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes} for index in partitions
    ]
    return {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=max_wait_ms),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "topics": [{"topic": topic, "partitions": parts}],
        **more,
    }

"""A Kafka front in this process, and a client that writes raw frames to it, for tests.

Requests are encoded and answers decoded by kio's generated classes, so that our own framing is checked by somebody
else's.
"""

import io
import socket
import struct
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import trio
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from logstore.base.events import LogEvent
from logstore.base.system import SystemClock
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Api, Broker, BrokerSettings, PrivateApi, compose
from logstore.kafka.scans import scan_apis
from logstore.kafka.server import KafkaServer, Listener
from logstore.kafka.wire import build
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.testing.reports import RecordedReports
from tests.support.limits import PATIENCE_S

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
TOPIC = "orders"
NO_ID = uuid.UUID(int=0)
NOW_MS = SystemClock().wall_ms()
DATA = (".log", ".journal")
"""How the files end that hold records."""


class FailingFiles(OsFiles):
    """A disk whose chunks and journal can be held back from being synced (`gate`), or refuse to be written or read
    (`failure`).
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate: threading.Event | None = None
        self.failure: OSError | None = None

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Fail, if that is asked for."""
        if self.failure is not None and path.endswith(DATA):
            raise self.failure
        super().write(path, position, buffers)

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """Fail, if that is asked for."""
        if self.failure is not None and path.endswith(DATA):
            raise self.failure
        return super().read(path, position, length, drop_cache=drop_cache)

    def read_cached(self, path: str, position: int, length: int) -> Buffer | None:
        """Nothing, if it has to fail."""
        return None if self.failure is not None else super().read_cached(path, position, length)

    def sync(self, path: str) -> None:
        """Wait at the gate, if there is one."""
        if self.gate is not None and path.endswith(DATA):
            self.gate.wait(PATIENCE_S)
        super().sync(path)


@dataclass
class Server:
    """A running front: where it listens, what is behind it, and what it reported."""

    port: int
    engine: StoreEngine
    kafka: KafkaServer
    files: FailingFiles
    reports: RecordedReports = field(default_factory=RecordedReports)

    @property
    def topic_id(self) -> uuid.UUID:
        """The id of the topic that every test has."""
        return self.engine.store.topic(TOPIC).topic_id

    @property
    def stream(self) -> Stream:
        """The first partition of the topic that every test has."""
        return self.engine.store.stream(TOPIC, 0)

    async def connect(self, *, receive_buffer_bytes: int | None = None) -> "Peer":
        """A new client."""
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        return Peer(trio.SocketStream(sock))

    def reported(self, event: LogEvent) -> list[dict[str, object]]:
        """The fields of each report of an event."""
        return self.reports.of(event)


@asynccontextmanager
async def serving(
    root: Path,
    settings: BrokerSettings | None = None,
    *,
    store_settings: StoreSettings | None = None,
    partitions: int = 2,
    apis: Iterable[Api] = (),
    private: Iterable[PrivateApi] = (),
) -> AsyncIterator[Server]:
    """A front on a fresh store with one topic, at a free port."""
    reports = RecordedReports()
    clock, files = SystemClock(), FailingFiles(root)
    store = Store.open(files, clock, store_settings or StoreSettings(), new_id=uuid.uuid4, report=reports)
    async with open_engine(store, files) as engine:
        await engine.wait(store.create_topic(TOPIC, partitions, {}))
        broker = Broker(engine, clock, settings or BrokerSettings())
        kafka = KafkaServer(broker, compose(apis, [*private, *scan_apis(broker)]))
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(kafka.serve, [Listener("127.0.0.1", 0)])
            yield Server(listener.port, engine, kafka, files, reports)
            nursery.cancel_scope.cancel()
    files.close()


class Peer:
    """One client connection, frame by frame."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = bytearray()

    async def __aenter__(self) -> "Peer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stream.aclose()

    async def send(self, *frames: bytes) -> None:
        """Send bytes as they are."""
        with trio.fail_after(PATIENCE_S):
            await self.stream.send_all(b"".join(frames))

    async def answer(self) -> tuple[int, bytes]:
        """The next answer: correlation id, and what follows it. Raises EOFError at the end."""
        with trio.fail_after(PATIENCE_S):
            (size,) = struct.unpack(">i", await self._take(4))
            data = await self._take(size)
        return struct.unpack_from(">i", data)[0], data[4:]

    async def ask(self, frame: bytes) -> bytes:
        """Send one request and return what its answer has behind the correlation id."""
        await self.send(frame)
        return (await self.answer())[1]

    async def fetch(self, version: int = 11, **values: Any) -> Any:
        """Fetch; see `fetch_frame`."""
        return decode_answer(FETCH, version, await self.ask(fetch_frame(version, **values)))

    async def produce(self, *batches: bytes, version: int = 8, **values: Any) -> Any:
        """Produce to partition 0; the first partition's answer."""
        answer = await self.ask(produce_frame([b"".join(batches)], version, **values))
        return decode_answer(PRODUCE, version, answer).responses[0].partition_responses[0]

    async def ended(self) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            with trio.fail_after(PATIENCE_S):
                return not self._buffer and not await self.stream.receive_some()
        except trio.BrokenResourceError:
            return True

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


def batch(count: int = 1, size: int = 10, *, timestamp: int = NOW_MS, **values: Any) -> bytes:
    """A record batch as clients send it."""
    return bytes(encode_batch([Record(0, timestamp, None, b"x" * size)] * count, **values))


def request_frame(key: int, version: int, body: bytes, *, correlation_id: int = 7, flexible: bool = False) -> bytes:
    """A request frame, with its length."""
    head = struct.pack(">hhi", key, version, correlation_id) + struct.pack(">h", 4) + b"test"
    data = head + (b"\x00" if flexible else b"") + body
    return struct.pack(">i", len(data)) + data


def kio_frame(key: int, version: int, values: Mapping[str, Any], *, correlation_id: int = 7) -> bytes:
    """A request frame encoded by kio."""
    kind = load_request_schema(key, version)
    target = io.BytesIO()
    entity_writer(kind)(target, build(kind, values))  # type: ignore[arg-type]
    return request_frame(key, version, target.getvalue(), correlation_id=correlation_id, flexible=kind.__flexible__)


def produce_frame(
    records: Sequence[bytes | None],
    version: int = 8,
    *,
    correlation_id: int = 7,
    acks: int = -1,
    topic: str = TOPIC,
    topic_id: uuid.UUID = NO_ID,
    transactional_id: str | None = None,
    limit_ms: int = 30_000,
) -> bytes:
    """A Produce request for partitions 0, 1, … of one topic, named by its id from version 13 on."""
    partitions = [{"index": number, "records": data} for number, data in enumerate(records)]
    values = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timedelta(milliseconds=limit_ms),
        "topic_data": [{"name": topic, "topic_id": topic_id, "partition_data": partitions}],
    }
    return kio_frame(PRODUCE, version, values, correlation_id=correlation_id)


def fetch_frame(
    version: int = 11,
    *,
    offsets: Sequence[int] = (0,),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    correlation_id: int = 7,
    leader_epoch: int = -1,
    topic: str = TOPIC,
    topic_id: uuid.UUID = NO_ID,
    **values: Any,
) -> bytes:
    """A Fetch request for partitions 0, 1, … of one topic (by its id from version 13 on), from these offsets."""
    partitions = [
        {
            "partition": number,
            "fetch_offset": offset,
            "partition_max_bytes": partition_max_bytes,
            "current_leader_epoch": leader_epoch,
        }
        for number, offset in enumerate(offsets)
    ]
    request = {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=max_wait_ms),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": partitions}],
        "session_epoch": -1,
        **values,
    }
    return kio_frame(FETCH, version, request, correlation_id=correlation_id)


def decode_answer(key: int, version: int, data: bytes) -> Any:
    """An answer's body through kio, whole."""
    kind = load_response_schema(key, version)
    at = 1 if kind.__flexible__ and key != API_VERSIONS else 0
    answer, used = entity_reader(kind)(memoryview(data).toreadonly(), at)
    assert at + used == len(data), "bytes follow the answer"
    return answer


async def wait_until(condition: Callable[[], object]) -> None:
    """Until a condition of the server's own state holds."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (the server's own state, seen from outside)
            await trio.sleep(0.001)

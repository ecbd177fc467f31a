"""A sidecar without sockets: a real store on a real directory, and the handlers of all administrative requests.

Invariant: every request and answer passes through the wire format, so what a version cannot say is not said here.
"""

import io
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from kio.index import load_response_schema
from kio.serial import entity_reader, entity_writer

from logstore.base.clock import Clock
from logstore.base.system import SystemClock
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.format.records import Record, encode_batch
from logstore.kafka import codec
from logstore.kafka.api_types import Api, Broker, BrokerSettings, Caller
from logstore.kafka.cluster import ClusterHandlers
from logstore.kafka.configs import ConfigHandlers
from logstore.kafka.groups.coordinator import GroupCoordinator
from logstore.kafka.groups.offsets import OffsetStore
from logstore.kafka.groups.service import GroupService, OffsetSettings
from logstore.kafka.groups.settings import GroupSettings
from logstore.kafka.metadata import MetadataHandlers
from logstore.kafka.offsets import OffsetHandlers
from logstore.kafka.producer_ids import ProducerIdHandlers
from logstore.kafka.server import Listener
from logstore.kafka.topics import TopicHandlers
from logstore.kafka.wire import build
from logstore.log.store import Store, StoreSettings
from logstore.testing.reports import RecordedReports

CALLER = Caller("tests", "127.0.0.1", "log.example", 9092)
LISTENERS = (Listener("0.0.0.0", 9092), Listener("::1", 9094, "queue.example", 19094))
NOW_MS = 1_700_000_000_000


class Node:
    """Handlers over one engine."""

    def __init__(self, engine: StoreEngine, settings: BrokerSettings, reports: RecordedReports) -> None:
        self.engine = engine
        self.reports = reports
        self.store = engine.store
        broker = Broker(engine, SystemClock(), settings)
        apis: list[Api] = []
        for owner in (MetadataHandlers, OffsetHandlers, ProducerIdHandlers, ClusterHandlers):
            apis += owner(broker).apis()
        coordinator = GroupCoordinator(GroupSettings(), lambda: uuid.uuid4().hex)
        self.groups = GroupService(coordinator, OffsetStore(self.store.groups), self._look_up, OffsetSettings(), 0.0)
        self.groups.recover_at_once(0.0)
        apis += TopicHandlers(broker, self.groups.forget_topic).apis()
        apis += ConfigHandlers(broker, LISTENERS).apis()
        self.apis = {api.key: api for api in apis}

    def _look_up(self, name: str) -> tuple[str, int] | None:
        topic = self.store.topics.get(name)
        return None if topic is None else (topic.topic_id.hex, len(topic.partitions))

    def versions(self, key: int) -> range:
        """All versions that are offered of a request."""
        return range(self.apis[key].min_version, self.apis[key].max_version + 1)

    async def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """Send a request with those of the values that the version knows; returns the answer as a client decodes it."""
        kind = codec.request_type(key, version)
        request = over_the_wire(build(kind, values))
        answer = await self.apis[key].handle(request, CALLER)
        if isinstance(answer, codec.EncodedAnswer):
            kind = load_response_schema(key, version)
            assert answer.flexible_header == kind.__flexible__
            return _read(kind, b"".join(answer.body))
        return over_the_wire(answer)

    async def append(self, topic: str, timestamps: list[int], partition: int = 0) -> None:
        """One batch of records with those timestamps."""
        records = [Record(i, timestamp, None, b"value", ()) for i, timestamp in enumerate(timestamps)]
        await self.send(topic, encode_batch(records), now_ms=max(timestamps), partition=partition)

    async def send(self, topic: str, batch: bytearray, *, now_ms: int, partition: int = 0) -> None:
        """A batch as it is."""
        await self.engine.wait(self.store.stream(topic, partition).append(batch, now_ms=now_ms))


def over_the_wire(message: Any) -> Any:
    """What arrives of a message that is written and read."""
    target = io.BytesIO()
    cast(Any, entity_writer(type(message)))(target, message)
    return _read(type(message), target.getvalue())


def _read(kind: Any, data: bytes) -> Any:
    arrived, size = cast(Any, entity_reader(kind))(memoryview(data).toreadonly(), 0)
    if size != len(data):
        raise ValueError(f"{len(data) - size} bytes of a {kind.__name__} were not read back")
    return arrived


@asynccontextmanager
async def running(
    root: Path, settings: BrokerSettings | None = None, *, clock: Clock | None = None
) -> AsyncIterator[Node]:
    """A node on a directory, closed in order at the end of the block; `clock` is the store's, if not the system's."""
    files = OsFiles(root)
    reports = RecordedReports()
    store = Store.open(files, clock or SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=reports)
    async with open_engine(store, files) as engine:
        yield Node(engine, settings or BrokerSettings(), reports)
    files.close()

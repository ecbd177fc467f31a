"""Requests of registered readers while records are trimmed."""

from __future__ import annotations

import struct
import threading
import uuid
from pathlib import Path

import trio

from logstore.base.events import ignore
from logstore.base.system import SystemClock
from logstore.disk.files import OsFiles
from logstore.engine import open_engine
from logstore.format.reader_api import (
    LOG_START,
    REGISTER_READER,
    ReaderOffset,
    RegisterReaderReply,
    RegisterReaderRequest,
    decode_reply,
    encode_request,
)
from logstore.kafka.api_types import Broker, BrokerSettings
from logstore.kafka.readers import reader_apis
from logstore.log.store import Store, StoreSettings
from tests.kafka.front_driver import NOW_MS, batch, wait_until
from tests.kafka.node import CALLER
from tests.support.limits import PATIENCE_S

RECORDS = 10


class HeldLedger(OsFiles):
    """A disk whose ledger of readers can be held back from being synced."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.goes_on, self.is_held = threading.Event(), threading.Event()

    def sync(self, path: str) -> None:
        """Wait until it goes on, if the path is the ledger's."""
        if path.startswith("ledger/readers"):
            self.is_held.set()
            self.goes_on.wait(PATIENCE_S)
        super().sync(path)


async def test_a_start_that_is_trimmed_while_it_is_registered(tmp_path: Path) -> None:
    """A reader registers at the start of a log, which has moved on by the time the registration is durable: the reader
    is told of the new start, and holds the log from there.
    """
    files = HeldLedger(tmp_path)
    store = Store.open(files, SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=ignore)
    async with open_engine(store, files) as engine:
        (stream,) = (await engine.wait(store.create_topic("t", 1, {}))).partitions
        for _ in range(RECORDS):
            await engine.wait(stream.append(bytearray(batch()), now_ms=NOW_MS))
        apis = reader_apis(Broker(engine, SystemClock(), BrokerSettings()), store)
        (handle,) = (api.handle for api in apis if api.key == REGISTER_READER)
        request = RegisterReaderRequest("r", "", (ReaderOffset("t", 0, LOG_START),))
        _, body = encode_request(request, correlation_id=0)
        answers: list[bytes] = []

        async def register() -> None:
            buffers, _ = await handle(memoryview(bytes(body)), None, CALLER)  # type: ignore[arg-type]
            answers.append(b"".join(bytes(buffer) for buffer in buffers))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(register)
            await wait_until(files.is_held.is_set)
            trimmed = stream.delete_records(5)
            files.goes_on.set()
        await engine.wait(trimmed)
        _, reply = decode_reply(REGISTER_READER, struct.pack(">i", 7) + answers[0])
        assert reply == RegisterReaderReply((ReaderOffset("t", 0, 5),))
        assert stream.log_start_offset == 5
        assert list(store.readers.describe("r").held.values()) == [5]
    files.close()

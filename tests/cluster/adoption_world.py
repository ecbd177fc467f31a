"""An adoption in a temporary directory, which may be taken up again after whatever a test does to it."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from logstore.access.acls import Acl, Operation, PatternType, Permission, ResourceType
from logstore.access.entries import LedgerEntries
from logstore.base.events import ignore
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import Committed, ConditionFailed, Entry, MetadataStore, Transaction
from logstore.base.metadata.sqlite import open_sqlite
from logstore.base.system import SystemClock
from logstore.cluster.adoption.adoption import Adopted, AdoptionEnvironment, AdoptionPlaces, adopt
from logstore.cluster.members.own_files import ADOPTED_FILE, ADOPTION_FILE
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.errors import AdoptionRefused, CorruptChunk
from logstore.format.records import Record, encode_batch
from logstore.kafka.security.stores import open_stores
from logstore.log.store import Store, StoreSettings
from logstore.replica.register import ReadRegistration
from logstore.replica.registrations import StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S

NOW_MS = 1_700_000_000_000
RECORDS = 60
TRIMMED = 20
"""Of `orders`, partition 0."""
HEAD_MEMBER = "a"


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[StoreEngine]:
    """A sidecar's store on a directory; a clean stop at the end."""
    files = OsFiles(root)
    store = Store.open(files, SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=ignore)
    with trio.fail_after(PATIENCE_S):
        async with open_engine(store, files) as engine:
            yield engine
    files.close()


def made(root: Path) -> Path:
    """The directory, which is there then."""
    root.mkdir(exist_ok=True)
    return root


async def append(engine: StoreEngine, topic: str, partition: int, number: int) -> None:
    """One record."""
    batch = encode_batch([Record(0, NOW_MS, b"key", b"%0100d" % number)])
    await engine.wait(engine.store.stream(topic, partition).append(batch, now_ms=NOW_MS))


async def fill(root: Path) -> None:
    """A directory with two topics in several chunks, a user, an ACL, a quota, a group's offset."""
    async with opened(made(root)) as engine:
        store = engine.store
        await engine.wait(store.create_topic("orders", 2, {"segment.bytes": "2048"}))
        await engine.wait(store.create_topic("empty", 3, {"retention.ms": "86400000"}))
        for number in range(RECORDS):
            await append(engine, "orders", number % 2, number)
        await engine.wait(store.stream("orders", 0).delete_records(TRIMMED))
        await engine.wait(store.allocate_producer_id())
        offset = {"offset": 7, "time": NOW_MS, "topic": store.topic("orders").topic_id.hex}
        await engine.wait(store.groups.put({"offset/billing/orders/1": json.dumps(offset).encode()}))
        callers = open_stores(LedgerEntries(store.access), LedgerEntries(store.access), Random(1).randbytes)
        reads = Acl(
            ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:etl", "*", Operation.READ, Permission.ALLOW
        )
        await engine.wait(callers.acls.create([reads]))


def give_up(source: Path) -> None:
    """Let a directory be adopted again, as the refusal says."""
    (source / ADOPTED_FILE).unlink(missing_ok=True)


class Attempt:
    """An adoption in a temporary directory, with a metadata store in a file; it may be run again."""

    def __init__(self, directory: Path, source: Path, name: str = "target") -> None:
        self.source, self.target, self.metadata = source, directory / name, directory / f"{name}.sqlite"
        self.wrap: Callable[[MetadataStore], MetadataStore] = lambda store: store
        self.files: Callable[[Path], OsFiles] = OsFiles
        self.source_files: Callable[[Path], OsFiles] = OsFiles
        self.store: MetadataStore | None = None
        """Given, and open already."""
        self.planned: Callable[[int], None] = lambda _: None
        self.host, self.replicas = HEAD_MEMBER, 3
        self.random = Random(1)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[MetadataStore]:
        """Its metadata store."""
        async with open_sqlite(self.metadata, Random(2)) as store:
            yield store

    @asynccontextmanager
    async def _wrapped(self) -> AsyncIterator[MetadataStore]:
        if self.store is not None:
            yield self.store
            return
        async with self.open() as store:
            yield self.wrap(store)

    async def run(self) -> Adopted:
        """Take all steps that are left."""
        source, target = self.source_files(self.source), self.files(made(self.target))
        opens: Callable[[], AbstractAsyncContextManager[MetadataStore]] = self._wrapped
        places = AdoptionPlaces(source, target, opens)
        nothing: Callable[[int], None] = lambda _: None  # noqa: E731
        around = AdoptionEnvironment(SystemClock(), self.random, uuid.uuid4, ignore, self.planned, nothing)
        try:
            with trio.fail_after(PATIENCE_S):
                return await adopt(places, self.host, self.replicas, around)
        finally:
            source.close()
            target.close()

    async def refused(self) -> str:
        """Why it does not go on."""
        with pytest.raises((AdoptionRefused, CorruptChunk, ExceptionGroup)) as caught:
            await self.run()
        error: BaseException = caught.value
        while isinstance(error, ExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, AdoptionRefused | CorruptChunk)
        return str(error)

    async def entries(self) -> dict[str, bytes]:
        """What the metadata store has."""
        async with self.open() as store:
            return {entry.key: entry.value for entry in (await store.page("")).entries}

    async def registrations(self) -> dict[str, StreamRegistration]:
        """By stream."""
        async with self.open() as store:
            registrations = StoredRegistrations(store)
            found = {}
            for entry in (await store.page(schema.STREAMS)).entries:
                stream = entry.key.removeprefix(schema.STREAMS)
                found[stream] = (await registrations.read(ReadRegistration(stream))).registration
            return {stream: registration for stream, registration in found.items() if registration is not None}


async def complete(attempt: Attempt) -> None:
    """The cluster is as the source was: the chunks that are registered are those of the new directory, whole."""
    entries = await attempt.entries()
    assert schema.CLUSTER_KEY in entries
    assert schema.ADOPTION_KEY not in entries
    topics = {
        key.removeprefix(schema.TOPICS): schema.decode(schema.StoredTopic, Entry(key, value, 1, 0))
        for key, value in entries.items()
        if key.startswith(schema.TOPICS)
    }
    assert sorted(topics) == ["__cairn_groups", "empty", "orders"]
    assert topics["orders"].settings == {"segment.bytes": "2048"}
    assert topics["empty"].partitions == 3
    assert int(entries["producer-ids"]) > 0
    registrations = await attempt.registrations()
    first = registrations[f"{topics['orders'].topic_id}/0"]
    assert (first.log_start, first.chunks[-1].end and first.chunks[-1].end.next_offset) == (TRIMMED, RECORDS // 2)
    async with opened(attempt.target) as engine:
        replicas = {
            (stream, epoch): (found.base_offset, *found.end)
            for (stream, epoch), found in engine.store.replicas.stored().items()
            if found.is_sealed
        }
        for log in engine.store.replicas.logs():
            found = await engine.read(log, log.log_start_offset, 1 << 20)
            assert found.next_offset == log.high_watermark
    assert replicas == {
        (stream, chunk.epoch): (chunk.base_offset, *(chunk.end or ()))
        for stream, registration in registrations.items()
        for chunk in registration.chunks
    }
    assert not (attempt.target / ADOPTION_FILE).exists()
    assert cairn("verify", str(attempt.target), "--quiet").status == 0


class FailingStore:
    """A metadata store whose n-th transaction fails, before or after it was made."""

    def __init__(self, store: MetadataStore, at: int, *, made: bool) -> None:
        self._store = store
        self._left, self._made = at, made
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        self._left -= 1
        if self._left < 0 and not self.failed:
            self.failed = True
            if not self._made:
                raise MetadataUnavailable("no answer")
            await self._store.commit(transaction)
            raise OutcomeUnknown("no answer")
        return await self._store.commit(transaction)


class RacedStore(FailingStore):
    """A metadata store in which something else happens before the n-th transaction, once."""

    def __init__(self, store: MetadataStore, at: int, happens: Callable[[MetadataStore], Awaitable[None]]) -> None:
        super().__init__(store, 1_000, made=False)
        self._at, self._happens = at, happens

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        self._at -= 1
        if self._at == -1:
            await self._happens(self._store)
        return await self._store.commit(transaction)

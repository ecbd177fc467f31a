"""Each step of an adoption may be the last one before a crash; what a cluster cannot hold is refused by name."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from logstore.base.metadata.interface import Committed, Conflict, Entry, MetadataStore, Put, Transaction
from logstore.base.metadata.sqlite import open_sqlite
from logstore.base.system import SystemClock
from logstore.cluster.adoption import (
    Adopted,
    AdoptionEnvironment,
    AdoptionPlaces,
    adopt,
)
from logstore.cluster.adoption_entries import ADOPTION
from logstore.cluster.adoption_source import END_BYTES, MAX_PIECE_BYTES
from logstore.cluster.host_identity import ADOPTED_FILE, ADOPTION_FILE
from logstore.cluster.stored_access import decode_entry
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine, open_engine
from logstore.epochs.ledger_entries import COMMIT_RECORD
from logstore.errors import AdoptionRefused, CairnError, CorruptChunk
from logstore.format.batch import seal_batch
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer
from logstore.kafka.security.stores import open_stores
from logstore.log.ledger import Ledger
from logstore.log.store import Store, StoreSettings
from logstore.replica.register import ReadRegistration
from logstore.replica.registrations import StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations
from logstore.testing.metadata_contract import changing
from tests.support.cli import cairn
from tests.support.examples import is_long
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


class Attempt:
    """An adoption in a temporary directory, with a metadata store in a file; it may be run again."""

    def __init__(self, directory: Path, source: Path, name: str = "target") -> None:
        self.source, self.target, self.metadata = source, directory / name, directory / f"{name}.sqlite"
        self.wrap: Callable[[MetadataStore], MetadataStore] = lambda store: store
        self.files: Callable[[Path], OsFiles] = OsFiles
        self.host, self.replicas = HEAD_MEMBER, 3
        self.random = Random(1)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[MetadataStore]:
        """Its metadata store."""
        async with open_sqlite(self.metadata, Random(2)) as store:
            yield store

    @asynccontextmanager
    async def _wrapped(self) -> AsyncIterator[MetadataStore]:
        async with self.open() as store:
            yield self.wrap(store)

    async def run(self) -> Adopted:
        """Take all steps that are left."""
        source, target = OsFiles(self.source), self.files(made(self.target))
        opens: Callable[[], AbstractAsyncContextManager[MetadataStore]] = self._wrapped
        places = AdoptionPlaces(source, target, opens)
        nothing: Callable[[int], None] = lambda _: None  # noqa: E731
        around = AdoptionEnvironment(SystemClock(), self.random, uuid.uuid4, ignore, nothing, nothing)
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
    assert ADOPTION not in entries
    topics = {
        key.removeprefix(schema.TOPICS): schema.decode(schema.Topic, Entry(key, value, 1, 0))
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


async def test_everything_is_taken_over(tmp_path: Path) -> None:
    """Topics with their ids and settings, chunks, log starts, offsets of groups, ACLs; the source keeps its files, and
    says where its log is; a second adoption is refused.
    """
    source = tmp_path / "source"
    await fill(source)
    (tmp_path / "password").write_text("secret\n")
    words = ("user", "add", "etl", "--data-dir", str(source), "--password-file", str(tmp_path / "password"))
    assert cairn(*words, "--iterations", "4096").status == 0
    before = {path: path.read_bytes() for path in source.glob("streams/**/*.log")}
    assert len(before) > 2
    attempt = Attempt(tmp_path, source)
    adopted = await attempt.run()
    assert (adopted.topics, adopted.streams, adopted.was_done) == (3, 6, False)
    await complete(attempt)
    assert {path: path.read_bytes() for path in source.glob("streams/**/*.log")} == before
    entries = await attempt.entries()
    access = [
        decode_entry(Entry(key, value, 1, 0))
        for key, value in entries.items()
        if key.startswith("access/") and key != "access/head"
    ]
    assert any(key.startswith("acl/") and "User:etl" in key for key, _ in access)
    listed = await trio.to_thread.run_sync(lambda: cairn("user", "list", "--cluster", f"sqlite:{attempt.metadata}"))
    assert listed.out.startswith("etl: SCRAM-SHA-"), listed.err
    note = json.loads((source / ADOPTED_FILE).read_text())
    cluster = json.loads(entries[schema.CLUSTER_KEY])
    assert note["cluster_id"] == cluster["cluster_id"]
    label = json.loads((attempt.target / "host.json").read_text())
    assert (label["cluster_id"], label["host"], label["starts"]) == (cluster["cluster_id"], "a", 0)
    assert (await attempt.run()).was_done
    attempt.metadata = tmp_path / "wrong.sqlite"
    assert "of which the metadata store knows nothing" in await attempt.refused()
    attempt.metadata = tmp_path / "target.sqlite"
    other = Attempt(tmp_path, source, "other")
    other.metadata = attempt.metadata
    assert f"that of cluster {cluster['cluster_id']} already" in await other.refused()


class FailingStore:
    """A metadata store whose n-th transaction fails, before or after it was made."""

    def __init__(self, store: MetadataStore, at: int, *, made: bool) -> None:
        self._store = store
        self._left, self._made = at, made
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, transaction: Transaction) -> Committed | Conflict:
        self._left -= 1
        if self._left < 0 and not self.failed:
            self.failed = True
            if not self._made:
                raise MetadataUnavailable("no answer")
            await self._store.commit(transaction)
            raise OutcomeUnknown("no answer")
        return await self._store.commit(transaction)


@pytest.mark.parametrize("made", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["not made", "answer lost"])
async def test_a_metadata_store_that_fails_at_any_transaction(tmp_path: Path, made: bool) -> None:
    """An adoption that ends there is taken up again, and completed; a lost answer does not even end it."""
    source = tmp_path / "source"
    await fill(source)
    for at in range(20):
        attempt = Attempt(tmp_path, source, f"target{at}")
        failing: list[FailingStore] = []

        def wrap(store: MetadataStore, at: int = at, failing: list[FailingStore] = failing) -> MetadataStore:
            failing.append(FailingStore(store, at, made=made))
            return failing[-1]

        attempt.wrap = wrap
        try:
            await attempt.run()
        except* MetadataUnavailable:
            assert not made
        attempt.wrap = lambda store: store
        if (attempt.target / ADOPTION_FILE).exists():
            await attempt.run()
        if not failing[0].failed:
            assert at > 3
            return
        if at == 2:
            await complete(attempt)
    raise AssertionError("it never ended")


class FailingFiles(OsFiles):
    """Files whose n-th change fails."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(5, "Input/output error")

    def create(self, path: str) -> None:
        self._count()
        super().create(path)

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        self._count()
        super().write(path, position, buffers)

    def sync(self, path: str) -> None:
        self._count()
        super().sync(path)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


@pytest.mark.parametrize("seed", range(10 if is_long() else 1))
async def test_a_disk_that_fails_at_some_call(tmp_path: Path, seed: int) -> None:
    """Whatever call of the new directory fails, the next run completes it."""
    source, random = tmp_path / "source", Random(seed)
    await fill(source)
    for number in range(4):
        attempt = Attempt(tmp_path, source, f"target{number}")
        at = random.randrange(1, 120)
        attempt.files = lambda root, at=at: FailingFiles(root, at)  # type: ignore[misc]
        try:
            await attempt.run()
        except* (CairnError, OSError):
            pass
        attempt.files = OsFiles
        if (attempt.target / ADOPTION_FILE).exists() or not (attempt.target / "host.json").exists():
            await attempt.run()
        await complete(attempt)


async def test_a_source_that_was_used_between_two_tries(tmp_path: Path) -> None:
    """The second try has what the source has then: chunks that are longer, and a later log start."""
    source = tmp_path / "source"
    await fill(source)
    attempt = Attempt(tmp_path, source)
    attempt.wrap = lambda store: FailingStore(store, 0, made=False)
    with pytest.raises(ExceptionGroup) as caught:
        await attempt.run()
    assert caught.group_contains(MetadataUnavailable)
    (source / ADOPTED_FILE).unlink()  # as the refusal to start says
    async with opened(source) as engine:
        for number in range(RECORDS):
            await append(engine, "orders", 1, number)
        await engine.wait(engine.store.stream("orders", 0).delete_records(RECORDS // 2))
    attempt.wrap = lambda store: store
    await attempt.run()
    topic_id = json.loads((await attempt.entries())[schema.topic_key("orders")])["topic_id"]
    first, second = [(await attempt.registrations())[f"{topic_id}/{partition}"] for partition in range(2)]
    assert first.log_start == RECORDS // 2  # whether a chunk is left there depends on whether it was rolled
    ends = [chunk.end.next_offset for chunk in second.chunks if chunk.end]
    assert (second.log_start, ends[-1]) == (0, RECORDS // 2 + RECORDS)


async def test_the_end_of_a_large_chunk_is_a_chunk_of_its_own(tmp_path: Path) -> None:
    """Appends wait until enough hosts have the last chunk: it is short, whatever the size of the source's last one."""
    source = tmp_path / "source"
    async with opened(made(source)) as engine:
        await engine.wait(engine.store.create_topic("large", 1, {}))
        stream = engine.store.stream("large", 0)
        for number in range(40):
            batch = encode_batch([Record(0, NOW_MS, None, bytes([number]) * 65_536)])
            await engine.wait(stream.append(batch, now_ms=NOW_MS))
        size_bytes = stream.size_bytes
    attempt = Attempt(tmp_path, source)
    await attempt.run()
    (registration,) = (await attempt.registrations()).values()
    front, end = (chunk.end for chunk in registration.chunks if chunk.end is not None)
    assert front.length_bytes + end.length_bytes == size_bytes
    assert END_BYTES - 70_000 < end.length_bytes <= END_BYTES
    assert (registration.chunks[1].base_offset, end.next_offset) == (front.next_offset, 40)


async def test_a_host_that_starts_in_between(tmp_path: Path) -> None:
    """It has made another cluster: nothing more is written, and what to do is said."""
    source = tmp_path / "source"
    await fill(source)
    attempt = Attempt(tmp_path, source)

    class Intruded(FailingStore):
        async def commit(self, transaction: Transaction) -> Committed | Conflict:
            if any(isinstance(change, Put) and change.key.startswith(schema.STREAMS) for change in transaction.changes):
                value = schema.encode(schema.Cluster(cluster_id="another"))
                await self._store.commit(changing(Put(schema.CLUSTER_KEY, value)))
            return await self._store.commit(transaction)

    attempt.wrap = lambda store: Intruded(store, 99, made=False)
    assert "a host has started on the metadata store meanwhile" in await attempt.refused()
    assert not any(key.startswith(schema.TOPICS) for key in await attempt.entries())


async def refuse_after(
    tmp_path: Path, change: Callable[[StoreEngine], Any], prepare: Callable[[Attempt], None] = lambda _: None
) -> str:
    """What is said of a source that was changed."""
    source = tmp_path / "source"
    await fill(source)
    async with opened(source) as engine:
        await change(engine)
    attempt = Attempt(tmp_path, source)
    prepare(attempt)
    why = await attempt.refused()
    assert not (source / ADOPTED_FILE).exists()
    assert schema.CLUSTER_KEY not in await attempt.entries()
    return why


async def test_an_epoch_that_is_not_in_all_streams(tmp_path: Path) -> None:
    """The sidecar has to complete it first."""

    async def decide(engine: StoreEngine) -> None:
        await engine.wait(engine.store.epochs.put({f"{COMMIT_RECORD}etl": b"{}"}))

    assert "the last epoch of 1 queries ('etl') is committed, and perhaps not" in await refuse_after(tmp_path, decide)


@pytest.mark.parametrize(
    ("topic", "config", "why"),
    [
        ("__cairn_groups", {}, "the name of a topic of the cluster's own"),
        ("strict", {"min.insync.replicas": "4"}, "min.insync.replicas=4, more than 3 copies"),
    ],
)
async def test_topics_that_no_cluster_has(tmp_path: Path, topic: str, config: Mapping[str, str], why: str) -> None:
    """Each with its name and with what to do."""

    async def create(engine: StoreEngine) -> None:
        await engine.wait(engine.store.create_topic(topic, 1, config))

    assert why in await refuse_after(tmp_path, create)


async def test_a_batch_that_no_host_can_send(tmp_path: Path) -> None:
    """With its stream, its size and its offset."""

    async def large(engine: StoreEngine) -> None:
        await engine.wait(engine.store.create_topic("large", 1, {"max.message.bytes": str(MAX_PIECE_BYTES * 2)}))
        batch = seal_batch(encode_batch([Record(0, NOW_MS, None, bytes(MAX_PIECE_BYTES))]))
        await engine.wait(engine.store.stream("large", 0).append(batch, now_ms=NOW_MS))

    why = await refuse_after(tmp_path, large)
    assert why.startswith("large-0 has ")
    assert "near offset 0" in why


async def test_damage_in_a_chunk(tmp_path: Path) -> None:
    """A flipped bit is found before a cluster has it, with its stream and file."""
    source = tmp_path / "source"
    await fill(source)
    path = sorted(source.glob("streams/orders*/1/*.log"))[0]
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    attempt = Attempt(tmp_path, source)
    why = await attempt.refused()
    assert "orders-1: " in why
    assert "is damaged near offset" in why
    assert "cairn verify" in why


async def test_places_that_are_in_use(tmp_path: Path) -> None:
    """A metadata store with anything in it, a directory with files, an adoption of another host, a host's directory; a
    file system of its own is none.
    """
    source = tmp_path / "source"
    await fill(source)
    attempt = Attempt(tmp_path, source)
    async with attempt.open() as store:
        await store.commit(changing(Put("access/head", b"{}")))
    assert "the metadata store is not empty, it has the entry 'access/head'" in await attempt.refused()
    attempt.host = "b"
    assert "for host 'a', was begun there" in await attempt.refused()
    used = Attempt(tmp_path, source, "used")
    (made(used.target) / "x").touch()
    assert "--into is not empty, it has 'x'" in await used.refused()
    mounted = Attempt(tmp_path, source, "mounted")
    (made(mounted.target) / "lost+found").mkdir()
    assert (await mounted.run()).topics == 3
    (source / "host.json").write_text("{}")
    assert "that of a host of a cluster already" in await Attempt(tmp_path, source, "third").refused()


def test_the_command_line(tmp_path: Path) -> None:
    """What cannot be is refused before anything is opened; what a source has is said by a start of it."""
    (tmp_path / "empty").mkdir()
    url = f"sqlite:{tmp_path / 'm.sqlite'}"
    words = ["adopt", str(tmp_path / "empty"), "--cluster", url, "--host-name", "a", "--into"]
    assert "is no data directory" in cairn(*words, str(tmp_path / "new")).err
    trio.run(fill, tmp_path / "source")
    words[1] = str(tmp_path / "source")
    assert "and none within the other" in cairn(*words, str(tmp_path / "source" / "new")).err
    assert cairn(*words, str(tmp_path / "new"), "--replication-factor", "6").status == 2
    done = cairn(*words, str(tmp_path / "new"), "--json")
    assert (done.status, done.json["topics"], done.json["was_done"]) == (0, 3, False), done.err
    users = Ledger.open(OsFiles(tmp_path / "source"), "users", lambda _: None)
    assert list(users.items()) == []
    assert "--etcd-key" not in cairn(*words, str(tmp_path / "x"), "--etcd-key", "k").out

"""Where the coordinator's state lies: one contract for a disk and for the metadata store of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
import trio

from logstore.base.events import ignore
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.etcd.store import open_etcd
from logstore.base.metadata.interface import (
    MAX_CHANGES,
    Committed,
    ConditionFailed,
    Delete,
    DeletePrefix,
    MetadataStore,
    Put,
    Transaction,
    check_transaction,
)
from logstore.base.metadata.interface import (
    Change as StoreChange,
)
from logstore.base.metadata.sqlite import open_sqlite
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from scheduler.coordinator.errors import StartError, StoreDamaged, StoreError
from scheduler.coordinator.log_events import COORDINATOR_DATABASE_LEFT, COORDINATOR_DATABASE_TAKEN
from scheduler.coordinator.metadata import entries
from scheduler.coordinator.metadata.cluster import ClusterMetadata, Leadership, LeadershipLost
from scheduler.coordinator.metadata.interface import Change, Metadata, RemovePrefix, SetValue
from scheduler.coordinator.metadata.on_threads import MetadataOnThreads
from scheduler.coordinator.metadata.sqlite import SqliteMetadata
from scheduler.coordinator.standby.former_database import take_database
from tests.metadata.support import etcd_members, needs_etcd, settings_for
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT

Open = Callable[[], AbstractAsyncContextManager[Metadata]]
LONG = "ö" * 200
"""A name of the greatest length, which takes 400 bytes of UTF-8 and 1,200 characters in a key."""


async def lead(store: MetadataStore, host: str = "h1", start: str = "s1") -> Leadership:
    """Become the leader in place of whoever is."""
    before = await store.get(schema.LEADER_KEY)
    leader = schema.StoredLeader(host=host, start=start, url="http://127.0.0.1:9880")
    outcome = await store.commit(schema.lead(leader, 0, before.entry_revision))
    assert isinstance(outcome, Committed)
    return Leadership(outcome.revision, lambda: True)


async def led(store: MetadataStore, host: str = "h1") -> ClusterMetadata:
    """The metadata of a host that has just begun to lead, loaded."""
    found = ClusterMetadata(store, await lead(store, host))
    await found.load()
    return found


@asynccontextmanager
async def _stores(kind: str, directory: Path) -> AsyncIterator[Open]:
    """How to open the same metadata again and again."""
    if kind == "disk":

        @asynccontextmanager
        async def on_a_disk() -> AsyncIterator[Metadata]:
            with closing(SqliteMetadata(directory / "a.db")) as metadata:
                yield MetadataOnThreads(metadata)

        yield on_a_disk
        return

    if kind == "cluster":
        async with open_sqlite(directory / "cluster.db", Random(0)) as file:
            yield partial(_led, file)
    else:
        with etcd_members(directory) as members:
            async with open_etcd(settings_for(members), Random(0), ignore) as etcd:
                yield partial(_led, etcd)


@asynccontextmanager
async def _led(store: MetadataStore) -> AsyncIterator[Metadata]:
    yield await led(store)


KINDS = ["disk", "cluster", pytest.param("etcd", marks=needs_etcd)]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_store_is_an_ordered_map(kind: str, tmp_path: Path) -> None:
    """Against a dictionary: puts and removals in every order, values and batches of every size, each batch twice, and
    everything again for who opens it next.
    """
    random, model = Random(1), dict[str, str]()
    async with _stores(kind, tmp_path) as opened:
        for _ in range(2):
            async with opened() as metadata:
                assert await metadata.load() == model
                for batch in (_batch(random), _batch(random)):
                    await metadata.apply(batch)
                    await metadata.apply(batch)
                    _change(model, batch)
                assert await metadata.load() == model


def _batch(random: Random) -> list[Change]:
    names = ["a", "b", f"{LONG}", "a%2Fb", "=x", "#y", "ab"]
    changes: list[Change] = []
    for _ in range(random.choice([0, 1, 5, 150])):
        prefix = f"{random.choice(['requests', 'checkpoints'])}/{random.choice(names)}/"
        if random.random() < 0.1:
            changes.append(RemovePrefix(prefix))
        else:
            text = random.choice(["", "v", "#3", "ü" * random.choice([100, 100, 100, 100_000])])
            changes.append(SetValue(f"{prefix}{random.randrange(40)}", text))
    return changes


def _change(model: dict[str, str], batch: Sequence[Change]) -> None:
    for change in batch:
        if isinstance(change, SetValue):
            model[change.key] = change.value
        else:
            for key in [key for key in model if key.startswith(change.prefix)]:
                del model[key]


@asynccontextmanager
async def in_memory() -> AsyncIterator[MetadataStore]:
    """A metadata store for tests of what is stored when: without a disk."""
    service = SimulatedMetadata(Random(0), MetadataFaults(attempt_s=PATIENCE_S))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        yield service.store("h")
        nursery.cancel_scope.cancel()


class Unreliable:
    """The metadata store of a cluster for a host whose calls fail from one on. `how`: `refused` (not made), `lost`
    (made, the answer is lost), `late` (the answer is lost, and it is made when `land` is called).
    """

    def __init__(self, store: MetadataStore, good: int, how: str) -> None:
        self._store = store
        self._good = good
        self._how = how
        self._late: list[Transaction] = []

    def __getattr__(self, name: str) -> Any:
        """Everything but transactions."""
        return getattr(self._store, name)

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """See MetadataStore."""
        self._good -= 1
        if self._good >= 0:
            return await self._store.commit(transaction)
        if self._how == "lost":
            await self._store.commit(transaction)
        if self._how == "late":
            self._late.append(transaction)
        if self._how == "refused":
            raise MetadataUnavailable("etcd is away")
        raise OutcomeUnknown("the answer is lost")

    async def land(self) -> None:
        """Late transactions are made now, the last one first."""
        while self._late:
            await self._store.commit(self._late.pop())


LARGE: list[Change] = [
    RemovePrefix("requests/old/"),
    *(SetValue(f"requests/new/{number}", "x" * (200_000 if number == 7 else 20)) for number in range(200)),
    RemovePrefix("requests/new/"),
    *(SetValue(f"requests/new/{number}", "y") for number in range(100)),
]
"""More than a transaction takes, and an order that counts."""
BEFORE = {f"requests/old/{number}": "old" for number in range(3)}
AFTER = {f"requests/new/{number}": "y" for number in range(100)}


@pytest.mark.parametrize("how", ["refused", "lost", "late"])
async def test_a_batch_is_made_as_a_whole_or_not_at_all(how: str) -> None:
    """The host that leads is gone in front of, or behind, each of its transactions: the next leader finds all of a
    large batch or nothing of it, and what comes late changes nothing.
    """
    found: list[dict[str, str]] = []
    for good in range(1, 100):
        async with in_memory() as store:
            await (await led(store)).apply([SetValue(key, value) for key, value in BEFORE.items()])
            unreliable = Unreliable(store, good, how)
            metadata = ClusterMetadata(unreliable, await lead(store))
            await metadata.load()
            try:
                await metadata.apply(LARGE)
            except StoreError:
                next_one = await led(store, "h2")
                await unreliable.land()
                found.append(dict(await next_one.load()))
                assert found[-1] in (BEFORE, AFTER), good
                await next_one.apply([SetValue("requests/new/0", "z")])
            else:
                break
    assert good > len(LARGE) // MAX_CHANGES
    assert found[0] == (AFTER if how == "lost" else BEFORE)
    assert found[-1] == AFTER


@pytest.mark.parametrize("how", ["refused", "lost", "late"])
async def test_what_failed_is_made_by_the_next_try(how: str) -> None:
    """A batch whose transaction failed, and changes behind it: the same host makes both, whatever became of the first
    try, and nothing of it comes back later.
    """
    for good in range(1, 12):
        async with in_memory() as store:
            unreliable = Unreliable(store, good, how)
            metadata = ClusterMetadata(unreliable, await lead(store))
            await metadata.load()
            with suppress(StoreError):
                await metadata.apply(LARGE)
            unreliable._good = 1000
            await metadata.apply([*LARGE, SetValue("requests/new/0", "z")])
            await unreliable.land()
            await metadata.apply([SetValue("requests/new/1", "z")])
            assert await metadata.load() == {**AFTER, "requests/new/0": "z", "requests/new/1": "z"}
            assert metadata.left_bytes == (await led(store)).left_bytes


async def test_a_coordinator_that_was_replaced_stores_nothing() -> None:
    """Two hosts that both think that they lead: what the former one stores fails and changes nothing."""
    async with in_memory() as store:
        zombie = await led(store, "h1")
        await zombie.apply([SetValue("requests/a/record", "1")])
        leader = await led(store, "h2")
        batches: list[list[Change]] = [[SetValue("requests/a/record", "2")], [RemovePrefix("requests/a/")], LARGE, []]
        for batch in batches:
            with pytest.raises(LeadershipLost):
                await zombie.apply(batch)
        assert zombie.is_lost
        with pytest.raises(LeadershipLost):
            await zombie.load()
        assert await leader.load() == {"requests/a/record": "1"}
        await leader.apply([SetValue("requests/a/record", "3")])


async def test_no_entry_means_no_leader() -> None:
    """A host whose lease has ended has no entry any more: it stores nothing, though nobody has replaced it."""
    async with in_memory() as store:
        metadata = await led(store)
        await store.commit(Transaction((), (Delete(schema.LEADER_KEY),)))
        with pytest.raises(LeadershipLost):
            await metadata.apply([SetValue("requests/a/record", "2")])


async def test_who_is_not_sure_says_so() -> None:
    """While the lease is in doubt nothing may be told or changed; then it goes on."""
    sure = [True]
    async with in_memory() as store:
        revision = (await lead(store)).revision
        metadata = ClusterMetadata(store, Leadership(revision, lambda: sure[0]))
        await metadata.load()
        assert metadata.obstacle is None
        sure[0] = False
        assert "not sure" in str(metadata.obstacle)


@pytest.mark.parametrize("damage", ["value", "missing", "text", "head", "version"])
async def test_damage_is_named(damage: str) -> None:
    """An entry that was changed by another hand, a piece that is missing, a head of a newer version: the start is
    refused, and the entry named.
    """
    async with in_memory() as store:
        await (await led(store)).apply([SetValue("requests/a/record", "x" * 100_000), SetValue("hosts/b", "1")])
        changes: dict[str, tuple[str, StoreChange]] = {
            "value": ("coordinator/state/hosts/b", Put("coordinator/state/hosts/b", b"0000")),
            "missing": ("requests/a/record#0001", Delete("coordinator/state/requests/a/record#0001")),
            "text": ("requests/a/record", Put("coordinator/state/requests/a/record#0001", b"y")),
            "head": ("coordinator/head", Put("coordinator/head", b"?")),
            "version": ("coordinator/head", Put("coordinator/head", b'{"v":9}')),
        }
        key, change = changes[damage]
        await store.commit(Transaction((), (change,)))
        with pytest.raises(StoreDamaged, match=key):
            await led(store, "h2")


async def takes_all(entries: Mapping[str, str]) -> None:
    """A coordinator that goes on with anything."""


FORMER = {"checkpoints/a/1/entry": "A", "checkpoints/b/removed": "7", "requests/r/record": "R"}


def database(path: Path, entries: Mapping[str, str] = FORMER) -> Path:
    """The file of a coordinator that was alone."""
    with closing(SqliteMetadata(path)) as metadata:
        metadata.apply([SetValue(key, text) for key, text in entries.items()])
    return path


async def test_the_database_of_a_coordinator_alone_is_taken_once(tmp_path: Path) -> None:
    """A cluster without state gets everything, and says so. What was taken is not taken again, and a host without a
    database has nothing to take.
    """
    reports = RecordedReports()
    async with in_memory() as store:
        metadata = await led(store)
        path = database(tmp_path / "a.db")
        taken = await take_database(path, metadata, {}, reports, takes_all)
        assert {**taken, **FORMER} == taken
        assert not path.exists()
        stored = await (again := await led(store, "h2")).load()
        assert stored == taken
        assert await take_database(path, again, stored, reports, takes_all) == taken
    assert [fields["entries"] for fields in reports.of(COORDINATOR_DATABASE_TAKEN)] == [3]
    assert not reports.of(COORDINATOR_DATABASE_LEFT)


async def test_a_database_is_left_alone_where_the_cluster_has_a_state(tmp_path: Path) -> None:
    """A host leads for the first time, weeks after the cluster began: nothing of its former database goes into the
    state, also no checkpoint of a unit that the cluster does not know; the file stays, and is named with what to do.
    So it is if the file cannot be read: the host leads without it.
    """
    reports = RecordedReports()
    state = {"checkpoints/c/1/entry": "C"}
    async with in_memory() as store:
        metadata = await led(store)
        await metadata.apply([SetValue(key, text) for key, text in state.items()])
        path = database(tmp_path / "a.db")
        assert await take_database(path, metadata, state, reports, takes_all) == state
        assert path.exists()
        (damaged := tmp_path / "b.db").mkdir()
        assert await take_database(damaged, metadata, state, reports, takes_all) == state
        assert await metadata.load() == state
    assert not reports.of(COORDINATOR_DATABASE_TAKEN)
    said = reports.of(COORDINATOR_DATABASE_LEFT)
    assert [fields["file"] for fields in said] == [path, damaged]
    assert all("cairn checkpoints register" in str(fields["advice"]) for fields in said)
    assert [str(fields["why"]).startswith("the cluster has a state of its own") for fields in said] == [True, True]


async def test_a_host_that_ends_while_it_takes_its_database_has_taken_it(tmp_path: Path) -> None:
    """The state has all of the file, which has its old name yet: the next start renames it, and leaves what has changed
    since as it is. A file that cannot be renamed is named, and costs nobody the lead.
    """
    reports = RecordedReports()
    async with in_memory() as store:
        metadata = await led(store)
        path = database(tmp_path / "a.db")
        (tmp_path / "a.db.taken" / "another").mkdir(parents=True)
        await take_database(path, metadata, {}, reports, takes_all)
        assert path.exists()
        (left,) = reports.of(COORDINATOR_DATABASE_LEFT)
        assert "cannot be renamed" in str(left["why"])
        await metadata.apply([SetValue("checkpoints/a/1/entry", "newer"), RemovePrefix("requests/r/")])
        stored = await metadata.load()
        (tmp_path / "a.db.taken" / "another").rmdir()
        (tmp_path / "a.db.taken").rmdir()
        assert await take_database(path, metadata, stored, reports, takes_all) == stored
        assert not path.exists()
        assert await metadata.load() == stored
        assert stored["checkpoints/a/1/entry"] == "newer"
        assert "requests/r/record" not in stored


async def test_a_database_that_cannot_be_taken_keeps_its_host_from_leading(tmp_path: Path) -> None:
    """A cluster without state, and a file that cannot be read, or with which no coordinator goes on: the host gives up
    the lead with a word that names the file, and nothing of it is in the state of the cluster.
    """

    async def refuses(entries: Mapping[str, str]) -> None:
        raise StoreDamaged(f"entry {min(entries)!r} contradicts itself")

    reports, path = RecordedReports(), tmp_path / "a.db"
    async with in_memory() as store:
        metadata = await led(store)
        path.mkdir()
        with pytest.raises(StartError, match=r"a\.db cannot be read"):
            await take_database(path, metadata, {}, reports, takes_all)
        path.rmdir()
        database(path, {"hosts/b": "1"})
        with pytest.raises(StartError, match=r"a\.db does not fit .*hosts/b"):
            await take_database(path, metadata, {}, reports, refuses)
        assert await metadata.load() == {}
        assert path.exists()


async def test_many_changes_are_cut_beside_the_event_loop() -> None:
    """A batch of many changes, and one that is finished by the next leader: what takes long is done where this host
    goes on serving, and holds its lease.
    """
    apart = [0]

    async def off_load(work: Callable[[], None]) -> None:
        apart[0] += 1
        work()

    many = [SetValue(f"requests/{number}/record", "x") for number in range(3000)]
    async with in_memory() as store:
        unreliable = Unreliable(store, 10, "refused")
        metadata = ClusterMetadata(unreliable, await lead(store), off_load)
        await metadata.load()
        apart[0] = 0
        with pytest.raises(StoreError):
            await metadata.apply(many)
        assert apart[0] == 1
        again = ClusterMetadata(store, await lead(store, "h2"), off_load)
        assert await again.load() == {change.key: "x" for change in many}
        assert apart[0] == 3


def test_the_format_is_as_its_document_says() -> None:
    """The entry that docs/format.md shows, and what a long text and a key that etcd does not take become."""
    example = '{"name":"r1h1","address":null,"registered":true,"lost":false}'
    (put,) = entries.puts(SetValue("hosts/r1h1", example))
    assert put.key == "coordinator/state/hosts/r1h1"
    assert f"`{put.value.decode()}`" in (ROOT / "docs/format.md").read_text(encoding="utf-8")
    head, *pieces = entries.puts(SetValue("hosts/ö", "x" * (61 << 10)))
    assert head.key == f"coordinator/state/hosts/={sha256('ö'.encode()).hexdigest()}"
    assert head.value[8:] == b'@"hosts/\\u00f6"\n#2'
    assert [(piece.key, len(piece.value)) for piece in pieces] == [
        (f"{head.key}#0000", 60 << 10),
        (f"{head.key}#0001", 1 << 10),
    ]


def test_no_transaction_is_too_large() -> None:
    """Whatever is stored, each transaction is one that every metadata store takes, with the head and the end of a
    batch; names of the greatest length have keys that fit.
    """
    longest = f"requests/{quote('😀' * 200, safe='')}/events/00000001"
    texts = [SetValue(f"{longest}{number}", "x" * (60 << 10)) for number in range(200)]
    parts = entries.transactions([*texts, RemovePrefix(f"requests/{quote('😀' * 200, safe='')}/"), *texts])
    head = Put(schema.PLAN_HEAD_KEY, schema.encode(schema.StoredPlanHead(writes=1 << 60, batch=1 << 30)))
    for part in parts:
        check_transaction(Transaction((), (head, DeletePrefix(schema.COORDINATOR_BATCH), *part)))
    for part in entries.grouped(entries.batch_pieces(texts)):
        check_transaction(Transaction((), (head, *part)))
    assert len(parts) < 2 * len(texts) / 12

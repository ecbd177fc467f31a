"""Whoever else writes to the metadata store meanwhile: two adoptions never mix, and no cluster is made beside one."""

from pathlib import Path
from random import Random

import pytest
import trio

from logstore.base.events import ignore
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataUnavailable
from logstore.base.metadata.interface import Committed, ConditionFailed, MetadataStore, Put, Transaction
from logstore.cluster.adoption.adoption import Adopted
from logstore.cluster.members.host_identity import establish_identity
from logstore.cluster.streams.stored_access import StoredAccess
from logstore.disk.files import OsFiles
from logstore.errors import AdoptionRefused, AdoptionUnderWay, WrongCluster
from logstore.kafka.security.credentials import credential_of_password
from logstore.kafka.security.users import CredentialName, Users
from logstore.testing.metadata_contract import changing
from tests.cluster.adoption_world import Attempt, FailingStore, RacedStore, complete, fill, give_up, made

MECHANISM = "SCRAM-SHA-256"


async def test_two_adoptions_at_a_time(tmp_path: Path) -> None:
    """In one empty store, the second begins before the first, the second or the last transaction of the first: the
    store has what one of them has put, whole, and the other is told of it. The log that lost is adopted elsewhere.
    """
    for number in range(2):
        await fill(tmp_path / f"source{number}")
    for at in (0, 1, 4):
        first = Attempt(tmp_path, tmp_path / "source0", f"first{at}")
        second = Attempt(tmp_path, tmp_path / "source1", f"second{at}")
        second.random = Random(2)
        second.metadata = first.metadata
        told: list[str] = []
        done: list[Adopted] = []

        async def race(store: MetadataStore, second: Attempt = second, told: list[str] = told) -> None:
            second.store = store
            try:
                done.append(await second.run())  # noqa: B023
            except AdoptionRefused as error:
                told.append(str(error))

        first.wrap = lambda store, at=at, race=race: RacedStore(store, at, race)  # type: ignore[misc]
        if at == 0:
            told.append(await first.refused())
        else:
            done.append(await first.run())
        assert len(done) == 1
        await complete(second if at == 0 else first)
        assert ("by another adoption" if at == 0 else "another adoption has begun on the metadata store") in told[0]
        assert "`etcdctl del /NAMESPACE/ --prefix`" in told[0], "/cairn/ may be that of another cluster, which lives"
        loser = first if at == 0 else second
        loser.wrap, loser.store, loser.metadata = lambda store: store, None, tmp_path / f"elsewhere{at}.sqlite"
        await loser.run()
        await complete(loser)
        give_up(first.source)
        give_up(second.source)


async def test_a_request_that_comes_late(tmp_path: Path) -> None:
    """One of a try that was killed changes nothing once the next try has begun to write."""
    source = tmp_path / "source"
    await fill(source)
    attempt = Attempt(tmp_path, source)
    late: list[Transaction] = []

    class Lossy(FailingStore):
        async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
            if any(isinstance(change, Put) and change.key.startswith(schema.STREAMS) for change in transaction.changes):
                late.append(transaction)
            return await super().commit(transaction)

    attempt.wrap = lambda store: Lossy(store, 3, made=False)
    with pytest.raises(ExceptionGroup) as caught:
        await attempt.run()
    assert caught.group_contains(MetadataUnavailable)
    outcomes: list[Committed | ConditionFailed] = []

    async def arrive(store: MetadataStore) -> None:
        outcomes.append(await store.commit(late[0]))

    attempt.wrap = lambda store: RacedStore(store, 2, arrive)
    await attempt.run()
    assert isinstance(outcomes[0], ConditionFailed)
    await complete(attempt)


async def test_no_user_is_added_meanwhile(tmp_path: Path) -> None:
    """Whoever adds a user while an adoption is at work is told to wait, and the users of the adopted sidecar are those
    of the cluster; then the user is added. One that is added before the adoption gives notice keeps it from beginning.
    """
    source = tmp_path / "source"
    await fill(source)
    for at in (0, 1, 3):
        attempt = Attempt(tmp_path, source, f"target{at}")
        told: list[str] = []

        async def add(store: MetadataStore, told: list[str] = told) -> None:
            try:
                await add_user(store)
            except AdoptionUnderWay as error:
                told.append(str(error))

        attempt.wrap = lambda store, at=at, add=add: RacedStore(store, at, add)  # type: ignore[misc]
        if at == 0:
            assert "the metadata store is not empty, it has the entry 'access/head'" in await attempt.refused()
            assert {key.partition("/")[0] for key in await attempt.entries()} == {"access"}
            assert not told
            continue
        await attempt.run()
        assert "brings the users, ACLs and quotas of the sidecar that it adopts" in told[0]
        await complete(attempt)
        before = await attempt.entries()
        async with attempt.open() as store:
            await add_user(store)
        assert (await attempt.entries()).keys() > before.keys()
        give_up(source)


async def add_user(store: MetadataStore) -> None:
    """As `cairn user add --cluster` does. Raises what it says."""
    async with trio.open_nursery() as nursery:
        access = StoredAccess(store, ignore, nursery.start_soon)
        nursery.start_soon(access.run)
        await access.complete()
        credential = credential_of_password(MECHANISM, "pencil", bytes(range(32)), 4096)
        added = Users(access, Random(1).randbytes).change((), {CredentialName("late", MECHANISM): credential})
        settled = trio.Event()
        added.add_callback(lambda _: settled.set())
        await settled.wait()
        nursery.cancel_scope.cancel()
    added.result()


async def test_no_host_starts_meanwhile(tmp_path: Path) -> None:
    """From its first step on, a host that starts on the store makes no cluster, and is told to wait."""
    source = tmp_path / "source"
    await fill(source)
    attempt = Attempt(tmp_path, source)
    told: list[str] = []

    async def start(store: MetadataStore) -> None:
        with pytest.raises(WrongCluster) as caught:
            await establish_identity(store, OsFiles(made(tmp_path / "b")), "b", Random(1), ignore)
        told.append(str(caught.value))

    attempt.wrap = lambda store: RacedStore(store, 1, start)
    await attempt.run()
    assert "`cairn adopt` has begun on the metadata store" in told[0]
    assert "if it is given up, remove everything in its namespace" in told[0]
    await complete(attempt)


async def test_a_host_that_starts_in_between(tmp_path: Path) -> None:
    """It has made another cluster: nothing more is written, and what to do is said."""
    source = tmp_path / "source"
    await fill(source)
    attempt = Attempt(tmp_path, source)

    class Intruded(FailingStore):
        async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
            if any(isinstance(change, Put) and change.key.startswith(schema.STREAMS) for change in transaction.changes):
                value = schema.encode(schema.StoredCluster(cluster_id="another"))
                await self._store.commit(changing(Put(schema.CLUSTER_KEY, value)))
            return await self._store.commit(transaction)

    attempt.wrap = lambda store: Intruded(store, 99, made=False)
    assert "has become that of cluster another meanwhile, by a host" in await attempt.refused()
    assert not any(key.startswith(schema.TOPICS) for key in await attempt.entries())

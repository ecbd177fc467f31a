"""The metadata store of a cluster is emptied, or is another cluster's, while hosts run: they lose nothing by it."""

from collections.abc import Awaitable, Callable
from random import Random
from string import ascii_lowercase
from uuid import UUID

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged
from logstore.base.metadata.interface import (
    ABSENT,
    Committed,
    Condition,
    DeletePrefix,
    Entry,
    MetadataStore,
    Put,
    Transaction,
)
from logstore.cluster.members.membership import MembershipState
from logstore.cluster.own_store import OwnStore
from logstore.cluster.streams.producer_ids import ProducerIds
from logstore.cluster.streams.retention_clock import ClusterClock
from logstore.cluster.streams.stored_access import HEAD, StoredAccess
from logstore.cluster.survey import Survey
from logstore.events import METADATA_ENTRY_DAMAGED, METADATA_UNUSABLE, REPLICAS_REMOVED
from logstore.kafka.api_types import Caller
from logstore.kafka.security.stores import open_stores
from logstore.replica.register import ReadRegistration
from logstore.replica.stored_registrations import StoredRegistrations
from logstore.testing.clock import ManualClock
from logstore.testing.metadata_contract import committed
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.cluster.memory import MemoryCluster, simulated
from tests.cluster.test_stored_access import ALICE, READ_T, ROOT, Host, settled, until, with_two_hosts
from tests.support.virtual_time import run_virtual

BOB = Caller("", "::1", "", 0, "User:bob")
OTHER = schema.encode(schema.StoredCluster(cluster_id="other"))


async def empty(store: MetadataStore) -> tuple[Entry, ...]:
    """Delete every entry at once, as `etcdctl del /cairn/ --prefix` does; returns them."""
    entries = (await store.page("")).entries
    await committed(store, Transaction((), tuple(DeletePrefix(letter) for letter in ascii_lowercase)))
    return entries


@pytest.mark.parametrize("then", [b"", OTHER], ids=["nothing", "another cluster"])
def test_no_replica_goes_with_the_entries(then: bytes) -> None:
    """All copies stay on all disks, and the log says what is wrong: topics that a
    store lacks which is not the cluster's were deleted by nobody.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=4)
        for stream in streams:
            await cluster.append(stream, b"0")
        await cluster.at_rest()
        await trio.sleep(5)
        before = {name: set(running.files.disk.chunks) for name, running in cluster.hosts.items()}
        assert all(before.values())
        store = cluster.metadata.store("operator")
        await empty(store)
        if then:
            await committed(store, Transaction((), (Put(schema.CLUSTER_KEY, then),)))
        await trio.sleep(20)
        for name, running in cluster.hosts.items():
            assert before[name] <= set(running.files.disk.chunks)
        assert not cluster.reports.of(REPLICAS_REMOVED)
        said = [str(fields["error"]) for fields in cluster.reports.of(METADATA_UNUSABLE)]
        assert any("keep the data directories" in text for text in said)

    simulated(test, "a", "b", "c")


def test_a_host_that_joins_again_is_not_told_to_give_up_its_disk() -> None:
    """It was cut off while the store was emptied: it waits, says why, and joins when the entries are there again."""

    async def test(cluster: MemoryCluster) -> None:
        running, store = cluster.hosts["a"], cluster.metadata.store("operator")
        cluster.metadata.cut_off("a")
        await trio.sleep(10)
        assert not running.membership.is_held
        entries = await empty(store)
        cluster.metadata.heal("a")
        await trio.sleep(10)
        assert not running.ended.is_set()
        assert running.membership.state is MembershipState.JOINING
        said = [str(fields["error"]) for fields in cluster.reports.of(METADATA_UNUSABLE)]
        assert any("that of no cluster" in text for text in said)
        for entry in entries:
            if not entry.lease_id:
                await committed(store, Transaction((), (Put(entry.key, entry.value),)))
        await cluster.until(lambda: running.membership.is_held)

    simulated(test, "a", "b", "c")


@pytest.mark.parametrize("then", [b"", OTHER], ids=["nothing", "another cluster"])
def test_nothing_is_made_in_a_store_that_is_not_the_clusters(then: bytes) -> None:
    """No topic, no block of producer ids, no clock: whoever asks hears why, operators too. No topic counts as deleted.
    When the entries are there again, with other revisions, all of that goes on.
    """

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        running, store = cluster.hosts["a"], cluster.metadata.store("operator")
        topics, topic_id = running.host.topics, UUID(stream.partition("/")[0])
        own = OwnStore(running.store, running.identity.cluster_id)
        ids, clock = ProducerIds(own), await ClusterClock.open(own, ManualClock())
        survey = Survey(running.host, running.store, lambda host: True, ManualClock())
        new = schema.StoredTopic(topic_id=f"{1:032x}", partitions=1, replicas=1, settings={})
        entries = await empty(store)
        left = (await store.page("")).entries
        if then:
            await committed(store, Transaction((), (Put(schema.CLUSTER_KEY, then),)))
        asked: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: topics.create("new", new),
            lambda: topics.deleted("t", topic_id),
            ids.take,
            clock.agree,
            survey.hosts,
            lambda: survey.places("t", 0, {}),
        )
        for ask in asked:
            with pytest.raises(MetadataDamaged, match=r"of (no cluster|cluster other).* keep the data directories"):
                await ask()
        kept = {schema.CLUSTER_KEY} if then else set()
        assert {entry.key for entry in (await store.page("")).entries} == {entry.key for entry in left} | kept
        for entry in entries:
            if not entry.lease_id:
                await committed(store, Transaction((), (Put(entry.key, entry.value),)))
        assert not await topics.deleted("t", topic_id)
        await topics.create("new", new)
        assert await ids.take() == 0
        await clock.agree()
        assert await topics.deleted("other", topic_id)

    simulated(test, "a", "b", "c")


def with_store(test: Callable[[MetadataStore], Awaitable[None]]) -> None:
    """Run a test with a store, in virtual time."""

    async def main() -> None:
        service = SimulatedMetadata(Random(0), MetadataFaults(max_delay_s=0.01))
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            await test(service.store("a"))
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_a_stream_is_gone_only_in_the_store_of_its_cluster() -> None:
    """What asks for a registration, of a tier's objects too, hears of a store without a cluster, or of another one."""

    async def test(store: MetadataStore) -> None:
        registrations, request = StoredRegistrations(store, "mine"), ReadRegistration("0123456789abcdef/0")
        for value, whose in ((b"", "of no cluster"), (OTHER, "of cluster other")):
            if value:
                await committed(store, Transaction((), (Put(schema.CLUSTER_KEY, value),)))
            with pytest.raises(MetadataDamaged, match=whose):
                await registrations.read(request)
        mine = schema.encode(schema.StoredCluster(cluster_id="mine"))
        await committed(store, Transaction((), (Put(schema.CLUSTER_KEY, mine),)))
        assert (await registrations.read(request)).registration is None

    with_store(test)


def test_changes_that_meet_behind_a_restore_are_all_made() -> None:
    """Each finds that the entry of the cluster was written again. None of them takes that for a conflict of its own: it
    would say that a new topic exists.
    """

    async def test(store: MetadataStore) -> None:
        mine = Put(schema.CLUSTER_KEY, schema.encode(schema.StoredCluster(cluster_id="mine")))
        await committed(store, Transaction((), (mine,)))
        own, outcomes = OwnStore(store, "mine"), list[object]()
        await own.check()
        await committed(store, Transaction((), (mine,)))

        async def make(key: str) -> None:
            outcomes.append(await own.commit(Transaction((Condition(key, ABSENT),), (Put(key, b""),))))

        async with trio.open_nursery() as nursery:
            for key in ("x", "y", "z"):
                nursery.start_soon(make, key)
        assert [type(outcome) for outcome in outcomes] == [Committed] * 3

    with_store(test)


def test_no_list_is_begun_in_a_store_that_is_not_the_clusters() -> None:
    """A list of one entry would let in whoever the lists that are gone kept out."""

    async def test(store: MetadataStore) -> None:
        async with trio.open_nursery() as nursery:
            access = StoredAccess(store, RecordedReports(), nursery.start_soon, cluster_id="mine")
            nursery.start_soon(access.run)
            await access.complete()
            acls = open_stores(access, access, bytes, lambda: access.is_damaged).acls
            with pytest.raises(MetadataDamaged, match="of no cluster"):
                await settled(acls.create([READ_T]))
            assert not (await store.page("")).entries
            mine = schema.encode(schema.StoredCluster(cluster_id="mine"))
            await committed(store, Transaction((), (Put(schema.CLUSTER_KEY, mine),)))
            await settled(acls.create([READ_T]))
            nursery.cancel_scope.cancel()

    with_store(test)


def test_nobody_gains_a_right_by_it() -> None:
    """Users and lists that went with all entries still keep everybody out but super users, until they are back."""

    async def test(service: SimulatedMetadata, first: Host, second: Host) -> None:
        await settled(first.stores.acls.create([READ_T]))
        await until(second, lambda: second.may_read(ALICE))
        assert not second.may_read(BOB)
        entries = await empty(service.store("operator"))
        await trio.sleep(1)
        for host in (first, second):
            assert host.access.is_damaged
            assert [host.may_read(caller) for caller in (ALICE, BOB, ROOT)] == [False, False, True]
            assert host.reports.of(METADATA_ENTRY_DAMAGED)[-1]["key"] == HEAD
        for entry in entries:
            await committed(service.store("operator"), Transaction((), (Put(entry.key, entry.value),)))
        await until(second, lambda: second.may_read(ALICE))
        assert not second.may_read(BOB)

    with_two_hosts(test)

"""Topics of a cluster: two hosts on one metadata store."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import trio
import trio.testing

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataUnavailable
from logstore.base.metadata.interface import Committed, ConditionFailed, Delete, MetadataStore, Page, Put, Transaction
from logstore.base.metadata.sqlite import open_sqlite
from logstore.cluster.interfaces import StreamObserver
from logstore.cluster.members.view import ClusterView
from logstore.cluster.streams import growing_topics
from logstore.cluster.streams.producer_ids import BLOCK, KEY, ProducerIds
from logstore.cluster.streams.replicated_stream import StreamServices
from logstore.cluster.streams.stored_topics import StoredTopics
from logstore.cluster.streams.topics import ClusterFacts, ClusterTopics
from logstore.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicas,
    TopicExists,
    TryAgain,
    UnknownTopicOrPartition,
)
from logstore.events import TOPIC_ALTERED, TOPIC_CREATED
from logstore.kafka.configs import ConfigSource, topic_entries
from logstore.log.store import StoreSettings
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.reports import RecordedReports
from tests.cluster.late_watches import LateWatches
from tests.cluster.memory import WAIT_S, MemoryCluster, simulated
from tests.cluster.support import MemoryOwner, no_producers
from tests.support.limits import PATIENCE_S


class Host:
    """A host's topics."""

    def __init__(self, store: MetadataStore, nursery: trio.Nursery, ids: Iterator[int], factor: int = 3) -> None:
        self.listening: list[str] = []
        self.reports = RecordedReports()
        services = StreamServices(MemoryOwner(), ManualClock(), self.reports, no_producers, nursery.start_soon)
        self.view = ClusterView(store, self.reports)
        self.topics = StoredTopics(store, self.view)
        facts = ClusterFacts("cluster", 1, StoreSettings(), factor)
        self.front = ClusterTopics(self, facts, ProducerIds(store), services, lambda: uuid.UUID(int=next(ids)))

    def observe(self, stream: str, observer: StreamObserver) -> None:
        self.listening.append(stream)

    def stop_observing(self, stream: str) -> None:
        self.listening.remove(stream)


async def settled(ticket: Ticket[Any]) -> Any:
    """The outcome of a change."""
    event = trio.Event()
    ticket.add_callback(lambda _: event.set())
    with trio.fail_after(PATIENCE_S):
        await event.wait()
    return ticket.result()


async def until_seen(store: MetadataStore, *hosts: Host) -> None:
    """Wait until hosts know every change of topics so far."""
    newest = await store.get("topics/any")
    with trio.fail_after(PATIENCE_S):
        for host in hosts:
            await host.view.topics_reached(newest.revision)


def shown(host: Host) -> Any:
    """What a host knows."""
    return {
        topic.name: (topic.topic_id, len(topic.partitions), topic.overrides, topic.replicas)
        for topic in host.front.topics.values()
    }


async def host_comes(store: MetadataStore, number: int) -> int:
    """Another host becomes a member; returns the revision."""
    member = schema.StoredMember(disk="d", start="s", node_id=number, link="127.0.0.1:1", rack="", addresses={})
    outcome = await store.commit(Transaction((), (Put(schema.member_key(f"h{number}"), schema.encode(member)),)))
    assert isinstance(outcome, Committed)
    return outcome.revision


@asynccontextmanager
async def two_hosts(
    directory: Path, members: int = 3, factor: int = 3
) -> AsyncIterator[tuple[Host, Host, MetadataStore]]:
    """Two hosts that follow the same store. `factor`: `default-replication-factor`."""
    ids = iter(range(1, 1 << 30))
    async with open_sqlite(directory / "metadata.db", Random(0)) as store, trio.open_nursery() as nursery:
        first, second = (Host(store, nursery, ids, factor) for _ in range(2))
        for number in range(members):
            await host_comes(store, number)
        for host in (first, second):
            nursery.start_soon(host.view.run)
            await host.view.complete()
            host.front.take_all()
        yield first, second, store
        nursery.cancel_scope.cancel()


async def test_a_topic_is_on_every_host(tmp_path: Path) -> None:
    """Created, grown, altered and deleted by one, seen by the other; the streams have observers on both."""
    async with two_hosts(tmp_path) as (one, other, store):
        topic = await settled(one.front.create_topic("orders", 2, {"max.message.bytes": "1000"}, 2))
        assert one.front.topic("orders") is topic
        await until_seen(store, one, other)
        assert shown(one) == shown(other)
        assert other.front.topic("orders").config.max_message_bytes == 1000
        await settled(other.front.add_partitions("orders", 3))
        await settled(other.front.alter_topic("orders", {"max.message.bytes": None, "min.insync.replicas": "2"}))
        await until_seen(store, one, other)
        assert one.front.topic("orders").overrides == {"min.insync.replicas": "2"}
        streams = [f"{topic.topic_id.hex}/{partition}" for partition in range(3)]
        assert one.listening == other.listening == streams
        stream = other.front.stream("orders", 2)
        await settled(one.front.delete_topic("orders"))
        await until_seen(store, one, other)
        assert stream.deleted
        with pytest.raises(UnknownTopicOrPartition):
            other.front.topic("orders")


async def test_a_topic_is_reported_when_it_is_made(tmp_path: Path) -> None:
    """By every host that lives then; a host that starts later reports none that are there, but those to come."""
    async with two_hosts(tmp_path) as (one, other, store), trio.open_nursery() as nursery:
        await settled(one.front.create_topic("early", 1, {}, 2))
        await until_seen(store, one, other)
        late = Host(store, nursery, iter(()))
        nursery.start_soon(late.view.run)
        await late.view.complete()
        late.front.take_all()
        assert late.front.topic("early").replicas == 2
        await settled(one.front.create_topic("later", 1, {}, 2))
        await until_seen(store, one, other, late)
        for host, names in ((one, ["early", "later"]), (other, ["early", "later"]), (late, ["later"])):
            assert [fields["topic"] for fields in host.reports.of(TOPIC_CREATED)] == names
        nursery.cancel_scope.cancel()


async def test_what_two_hosts_change_at_once_is_changed(tmp_path: Path) -> None:
    """Settings and partitions of one topic, by hosts that have not heard of each other's change: none goes back."""
    async with two_hosts(tmp_path) as (one, other, store):
        await settled(one.front.create_topic("orders", 2, {"max.message.bytes": "1000"}, 2))
        await until_seen(store, one, other)
        changes = [
            one.front.alter_topic("orders", {"retention.ms": "60000"}),
            other.front.alter_topic("orders", {"segment.bytes": "2048"}),
            other.front.add_partitions("orders", 4),
        ]
        for change in changes:
            await settled(change)
        await until_seen(store, one, other)
        settings = {"max.message.bytes": "1000", "retention.ms": "60000", "segment.bytes": "2048"}
        for host in (one, other):
            topic = host.front.topic("orders")
            assert (dict(topic.overrides), len(topic.partitions)) == (settings, 4)


async def test_settings_are_replaced_as_they_are(tmp_path: Path) -> None:
    """Who replaces all settings at a host that hears late what others have changed resets that as well, and says so;
    what the host has not heard of otherwise, such as partitions, stays.
    """
    async with two_hosts(tmp_path) as (one, other, store), trio.open_nursery() as nursery:
        await settled(one.front.create_topic("orders", 2, {"max.message.bytes": "1000"}, 2))
        await until_seen(store, one, other)
        watches = LateWatches(store, (schema.TOPICS,))
        late = Host(cast(MetadataStore, watches), nursery, iter(()))
        nursery.start_soon(late.view.run)
        await late.view.complete()
        late.front.take_all()
        await settled(one.front.alter_topic("orders", {"retention.ms": "60000"}))
        await settled(one.front.add_partitions("orders", 4))
        assert shown(late)["orders"][1:3] == (2, {"max.message.bytes": "1000"})
        replaced = late.front.alter_topic("orders", {"segment.bytes": "2048"}, resets_others=True)
        await until_seen(store, one)
        watches.released.set()
        topic = await settled(replaced)
        assert (topic.overrides, len(topic.partitions)) == ({"segment.bytes": "2048"}, 4)
        changes = "max.message.bytes=default retention.ms=default segment.bytes=2048"
        assert [fields["changes"] for fields in late.reports.of(TOPIC_ALTERED)] == [changes]
        await until_seen(store, one)
        assert shown(one) == shown(late)
        nursery.cancel_scope.cancel()


async def test_the_least_number_of_copies_is_shown_as_it_is_applied(tmp_path: Path) -> None:
    """Half of the copies, if it is not set: clients see that, and not Kafka's default; a reset shows it again."""
    async with two_hosts(tmp_path) as (one, _, _):
        for name, replicas, applied in (("one", 1, 1), ("three", 3, 2)):
            topic = await settled(one.front.create_topic(name, 1, {}, replicas))
            assert topic.config.min_insync_replicas == applied
        three = await settled(one.front.alter_topic("three", {"min.insync.replicas": "3"}))
        assert three.config.min_insync_replicas == 3
        three = await settled(one.front.alter_topic("three", {"min.insync.replicas": None}))
        assert three.config.min_insync_replicas == 2
        entries = {entry.name: entry for entry in topic_entries(three.config, three.overrides, TopicConfig())}
        shown = entries["min.insync.replicas"]
        assert (shown.value, shown.default, shown.source) == ("2", "2", ConfigSource.DEFAULT)


async def test_a_topic_that_asks_for_no_number_has_the_default_copies(tmp_path: Path) -> None:
    """As many as the setting says, however many hosts live."""
    async with two_hosts(tmp_path, members=1) as (one, _, _):
        assert one.front.replicas_of(-1) == one.front.default_replicas == 3
        for copies in (1, 5):
            one.front.default_replicas = copies
            topic = await settled(one.front.create_topic(f"of-{copies}", 1, {}))
            assert one.front.replicas_of(-1) == topic.replicas == copies
        with pytest.raises(InvalidReplicas):
            one.front.create_topic("asked", 1, {}, 2)


async def a_disk_starts(store: MetadataStore, host: str) -> None:
    """A host is known to the cluster: it has a disk, and may live or not."""
    disk = schema.StoredDisk(host=host, starts=1, start="s")
    await store.commit(Transaction((), (Put(schema.disk_key(f"disk-{host}"), schema.encode(disk)),)))


async def asks_for(host: Host, name: str, copies: int) -> None:
    """Wait until a host knows that a topic wants so many members at least."""
    with trio.fail_after(PATIENCE_S):
        while (topic := host.front.topics.get(name)) is None or topic.config.min_insync_replicas != copies:
            await host.front.changed.wait()


async def stored_topic(store: MetadataStore, name: str) -> schema.StoredTopic:
    """A topic's entry."""
    entry = (await store.get(schema.topic_key(name))).entry
    assert entry is not None
    return schema.decode(schema.StoredTopic, entry)


async def test_a_topic_of_a_cluster_that_grows_has_the_default_copies_in_the_end(tmp_path: Path) -> None:
    """The first host takes appends alone, of a topic that wants three copies; with a third host two are needed, and
    they stay so. What the user has set is not touched, and no topic is changed that asked for a number.
    """
    async with two_hosts(tmp_path, members=1) as (one, other, store):
        await a_disk_starts(store, "h0")
        for name, settings, replicas in (("early", {}, -1), ("set", {"min.insync.replicas": "1"}, -1), ("one", {}, 1)):
            topic = await settled(one.front.create_topic(name, 1, settings, replicas))
            assert (topic.replicas, topic.config.min_insync_replicas) == (1 if replicas == 1 else 3, 1)
        fields = one.reports.of(TOPIC_CREATED)
        assert [(each["copies"], each["min_copies"]) for each in fields] == [(3, 1), (3, 1), (1, 1)]
        before = await stored_topic(store, "one")
        for number, hosts, copies in ((1, 2, 1), (2, 0, 2)):
            await a_disk_starts(store, f"h{number}")
            revision = await host_comes(store, number)
            await other.view.members_reached(revision)
            with trio.fail_after(PATIENCE_S):
                while {(await stored_topic(store, name)).hosts for name in ("early", "set")} != {hosts}:
                    await one.front.changed.wait()
            await asks_for(one, "early", copies)
            await asks_for(other, "early", copies)
        removed = (Delete(schema.member_key("h2")), Delete(schema.disk_key("disk-h2")))
        outcome = await store.commit(Transaction((), removed))
        await one.view.members_reached(outcome.revision)
        assert (await settled(one.front.create_topic("later", 1, {}))).config.min_insync_replicas == 1
        for name, copies in (("early", 2), ("set", 1), ("one", 1)):
            assert one.front.topic(name).config.min_insync_replicas == copies
        assert (one.front.topic("early").overrides, await stored_topic(store, "one")) == ({}, before)
        told = [fields["topic"] for host in (one, other) for fields in host.reports.of(TOPIC_ALTERED)]
        assert set(told) == {"early"}


async def test_hosts_that_are_away_count_for_a_new_topic(tmp_path: Path) -> None:
    """A topic that is made while its host sees one host, because its view is late or the others were killed, wants two
    members of three from the beginning: nothing is acknowledged by one disk.
    """
    async with two_hosts(tmp_path, members=1) as (one, _, store):
        for number in range(3):
            await a_disk_starts(store, f"h{number}")
        topic = await settled(one.front.create_topic("late", 1, {}))
        assert (topic.replicas, topic.config.min_insync_replicas) == (3, 2)
        assert (await stored_topic(store, "late")).hosts == 0


async def test_a_topic_that_was_made_behind_the_coming_of_hosts_follows_them(tmp_path: Path) -> None:
    """Its maker counted the hosts before they came, and its entry was written behind that."""
    async with two_hosts(tmp_path) as (one, _, store):
        for number in range(3):
            await a_disk_starts(store, f"h{number}")
        topic = schema.StoredTopic(topic_id="a" * 32, partitions=1, replicas=3, settings={}, hosts=1)
        await store.commit(schema.create_topic("raced", topic))
        await asks_for(one, "raced", 2)
        assert (await stored_topic(store, "raced")).hosts == 0


class AwayForAMoment:
    """A metadata store that does not answer the next `left` readings of disks and changes; watches and leases go on."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def page(self, prefix: str, **wanted: Any) -> Page:
        """See MetadataStore."""
        if prefix == schema.DISKS and self.left:
            self.left -= 1
            raise MetadataUnavailable("no answer; nothing was changed")
        return await self._store.page(prefix, **wanted)

    async def commit(self, transaction: Transaction) -> Any:
        """See MetadataStore."""
        if self.left:
            self.left -= 1
            raise MetadataUnavailable("no answer; nothing was changed")
        return await self._store.commit(transaction)


async def test_a_store_that_is_away_when_hosts_come_leaves_no_topic_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is raised when the store answers again, although no member changes behind that: leases outlast it."""
    monkeypatch.setattr(growing_topics, "AGAIN_S", 0.01)
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as store, trio.open_nursery() as nursery:
        away = AwayForAMoment(store)
        host = Host(cast(MetadataStore, away), nursery, iter(range(1, 9)))
        nursery.start_soon(host.view.run)
        for number in range(2):
            await a_disk_starts(store, f"h{number}")
            await host_comes(store, number)
        await host.view.complete()
        topic = await settled(host.front.create_topic("early", 1, {}))
        assert topic.config.min_insync_replicas == 1
        await trio.testing.wait_all_tasks_blocked()
        away.left = 2
        await a_disk_starts(store, "h2")
        await host_comes(store, 2)
        await asks_for(host, "early", 2)
        assert not away.left
        nursery.cancel_scope.cancel()


async def test_a_topic_whose_entry_is_damaged_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic behind it in the order of names asks for as many members as it should, and so does this one when its
    entry is put in order.
    """
    monkeypatch.setattr(growing_topics, "AGAIN_S", 0.01)
    async with two_hosts(tmp_path, members=1) as (one, _, store):
        await a_disk_starts(store, "h0")
        for name in ("a", "b"):
            await settled(one.front.create_topic(name, 1, {}))
        whole = schema.encode(await stored_topic(store, "a"))
        await store.commit(Transaction((), (Put(schema.topic_key("a"), b"{}"),)))
        for number in (1, 2):
            await a_disk_starts(store, f"h{number}")
            await host_comes(store, number)
        await asks_for(one, "b", 2)
        await store.commit(Transaction((), (Put(schema.topic_key("a"), whole),)))
        await asks_for(one, "a", 2)


class ChangedMeanwhile:
    """A metadata store in which somebody else changes the topic `orders` before each transaction on it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """See MetadataStore."""
        entry = (await self._store.get(schema.topic_key("orders"))).entry
        if entry is not None:
            self.changes += 1
            topic = schema.decode(schema.StoredTopic, entry)
            changed = replace(topic, settings={"retention.ms": f"{self.changes}"})
            await self._store.commit(Transaction((), (Put(entry.key, schema.encode(changed)),)))
        return await self._store.commit(transaction)


async def test_what_others_undo_all_the_time_is_not_said_to_be_done(tmp_path: Path) -> None:
    """A deletion and a change that come too late each time end with an error after which clients ask again."""
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as store, trio.open_nursery() as nursery:
        host = Host(cast(MetadataStore, ChangedMeanwhile(store)), nursery, iter(range(1, 9)))
        nursery.start_soon(host.view.run)
        await host_comes(store, 0)
        await host.view.complete()
        topic = await settled(host.front.create_topic("orders", 1, {}, 1))
        for change in (host.front.delete_topic("orders"), host.front.add_partitions("orders", 2)):
            with pytest.raises(TryAgain):
                await settled(change)
        assert (await stored_topic(store, "orders")).topic_id == topic.topic_id.hex
        nursery.cancel_scope.cancel()


async def test_the_copies_of_a_topic_are_raised(tmp_path: Path) -> None:
    """Up to the hosts that live, and never to fewer; half of the copies are needed from then on."""
    async with two_hosts(tmp_path) as (one, other, store):
        await settled(one.front.create_topic("orders", 1, {}, 1))
        assert one.front.copies("orders") == 1
        topic = await settled(other.front.raise_replicas("orders", 3))
        assert (topic.replicas, topic.config.min_insync_replicas) == (3, 2)
        await until_seen(store, one)
        assert one.front.copies("orders") == 3
        for wrong in (2, 4):
            with pytest.raises(InvalidReplicas):
                await settled(one.front.raise_replicas("orders", wrong))


async def test_a_name_is_given_once(tmp_path: Path) -> None:
    """Of two hosts that create a topic at the same moment, one is told that it exists."""
    async with two_hosts(tmp_path) as (one, other, _):
        tickets = [host.front.create_topic("orders", 1, {}) for host in (one, other)]
        outcomes = []
        for ticket in tickets:
            try:
                outcomes.append(await settled(ticket))
            except TopicExists as error:
                outcomes.append(error)
        assert sum(isinstance(outcome, TopicExists) for outcome in outcomes) == 1
        with pytest.raises(TopicExists):
            one.front.create_topic("orders", 1, {})


async def test_a_topic_that_is_created_again_is_another(tmp_path: Path) -> None:
    """It has another id, and other streams."""
    async with two_hosts(tmp_path) as (one, other, store):
        old = await settled(one.front.create_topic("orders", 1, {}))
        await settled(one.front.delete_topic("orders"))
        new = await settled(one.front.create_topic("orders", 1, {}))
        await until_seen(store, one, other)
        assert old.topic_id != new.topic_id
        assert other.front.topic_by_id(old.topic_id) is None
        assert other.front.topic_by_id(new.topic_id) is not None


@pytest.mark.parametrize(
    ("partitions", "config", "replicas", "error"),
    [
        (0, {}, 1, InvalidPartitions),
        (1, {}, 4, InvalidReplicas),
        (1, {}, 0, InvalidReplicas),
        (1, {"retention.ms": "-2"}, 1, InvalidConfig),
        (1, {"segment.bytes": "20"}, 1, InvalidConfig),
        (1, {"min.insync.replicas": "3"}, 2, InvalidConfig),
        (1, {"no.such": "1"}, 2, InvalidConfig),
    ],
)
async def test_what_a_cluster_cannot_do_is_refused(
    tmp_path: Path, partitions: int, config: dict[str, str], replicas: int, error: type[Exception]
) -> None:
    """By name, before anything is written: nobody relies on a setting without effect."""
    async with two_hosts(tmp_path) as (one, _, _):
        with pytest.raises(error):
            one.front.create_topic("orders", partitions, config, replicas)


async def test_a_topic_that_cannot_be_read_is_reported_and_left_out(tmp_path: Path) -> None:
    """The others are served."""
    async with two_hosts(tmp_path) as (one, _, store):
        bad = schema.encode(schema.StoredTopic(topic_id="no-uuid", partitions=1, replicas=1, settings={}))
        await store.commit(Transaction((), (Put("topics/bad", bad),)))
        await settled(one.front.create_topic("orders", 1, {}))
        assert list(one.front.topics) == ["orders"]
        assert "topic_unreadable" in one.reports.names()


async def test_producer_ids_are_unique_over_hosts(tmp_path: Path) -> None:
    """Also where two reserve at the same moment, and where a host has used up its block."""
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as store:
        hosts = [ProducerIds(store), ProducerIds(store)]
        taken: list[int] = []

        async def take(ids: ProducerIds) -> None:
            for _ in range(BLOCK + 10):
                taken.append(await ids.take())  # noqa: PERF401  (two tasks fill one list)

        async with trio.open_nursery() as nursery:
            for ids in hosts:
                nursery.start_soon(take, ids)
        assert len(set(taken)) == len(taken) == 2 * (BLOCK + 10)


def test_a_host_has_producer_ids_at_hand_while_the_metadata_store_is_away() -> None:
    """A block from its start on, before anybody has asked for an id, and another one behind each that it has begun."""

    async def test(cluster: MemoryCluster) -> None:
        ids, taken = ProducerIds(cluster.hosts["a"].store), set[int]()
        cluster.nursery.start_soon(ids.run)
        reserved, end_s = 0, trio.current_time() + WAIT_S
        for at_once in (BLOCK, 1, BLOCK):
            while (entry := (await cluster.hosts["b"].store.get(KEY)).entry) is None or int(entry.value) <= reserved:
                await cluster.wait(end_s, f"a block behind {reserved}")
            reserved = int(entry.value)
            cluster.metadata.cut_off("a")
            with trio.fail_after(1):
                for _ in range(at_once):
                    taken.add(await ids.take())
            cluster.metadata.heal("a")
        assert len(taken) == 2 * BLOCK + 1

    simulated(test, "a", "b")

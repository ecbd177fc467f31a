"""The view of a cluster: exact, up to date, and careful with what it cannot read."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import ABSENT, Condition, Delete, Put
from logstore.cluster.members.view import ClusterView, KnownHead, KnownTopic, stream_name, topic_id_of
from logstore.cluster.streams.stored_topics import StoredTopics
from logstore.errors import InvalidPartitions, TopicExists, UnknownTopicOrPartition
from logstore.replica.register import SwapRegistration
from logstore.replica.registrations import OwnerId, StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations, head_key
from logstore.testing.metadata_contract import changing, committed
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.support.virtual_time import run_virtual

TOPIC = schema.StoredTopic(topic_id="id1", partitions=2, replicas=3, settings={})


class Changes:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def members_changed(self) -> None:
        """See ViewObserver."""
        self.heard.append("members")

    def topic_changed(self, name: str, before: KnownTopic | None, now: KnownTopic | None) -> None:
        """See ViewObserver."""
        self.heard.append((name, before and before.topic.partitions, now and now.topic.partitions))

    def head_changed(self, stream: str, now: KnownHead | None) -> None:
        """See ViewObserver."""
        self.heard.append((stream, now and now.head.epoch))


Test = Callable[[SimulatedMetadata, ClusterView, RecordedReports], Awaitable[None]]


def with_view(test: Test, **faults: float) -> None:
    """Run a test with a view of a simulated metadata service, in virtual time."""

    async def main() -> None:
        service = SimulatedMetadata(Random(0), MetadataFaults(max_delay_s=0.01, **faults))
        reports = RecordedReports()
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            view = ClusterView(service.store("near"), reports)
            nursery.start_soon(view.run)
            await view.complete()
            await test(service, view, reports)
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_it_follows_members_topics_and_heads() -> None:
    """Observers hear each change once the view has it; what is gone is gone here."""

    async def test(service: SimulatedMetadata, view: ClusterView, reports: RecordedReports) -> None:
        changes, far = Changes(), service.store("far")
        view.add_observer(changes)
        member = schema.StoredMember(disk="d", start="s", node_id=1, link="a:1", rack="", addresses={})
        await view.members_reached(await committed(far, schema.move("a", member, 0, ABSENT, ABSENT)))
        assert dict(view.members) == {"a": member}
        await view.topics_reached(await committed(far, schema.create_topic("t", TOPIC)))
        assert view.names == {"id1": "t"}
        revision = view.topics["t"].revision
        stream = stream_name("id1", 0)
        assert topic_id_of(stream) == "id1"
        registrations = StoredRegistrations(far)
        assert await registrations.create(stream, StreamRegistration(3, 2), Condition(schema.topic_key("t"), revision))
        while stream not in view.heads:
            await view.changed()
        assert view.heads[stream].head.copies == 3
        assert changes.heard == ["members", ("t", None, 2), (stream, 0)]
        changes.heard.clear()
        await committed(far, schema.delete_topic("t", TOPIC, revision))
        await trio.sleep(1)
        assert not view.topics
        assert not view.heads
        assert not view.names
        assert set(changes.heard) == {("t", 2, None), (stream, None)}
        assert reports.events == []

    with_view(test)


def test_what_cannot_be_read_changes_nothing() -> None:
    """It is reported with its key, what was known stays, and a correct entry ends it."""

    async def test(service: SimulatedMetadata, view: ClusterView, reports: RecordedReports) -> None:
        far = service.store("far")
        await committed(far, schema.create_topic("t", TOPIC))
        stream = stream_name("id1", 0)
        keys = (schema.topic_key("t"), schema.member_key("a"), head_key(stream))
        await committed(far, changing(*(Put(key, b"?") for key in keys)))
        await trio.sleep(1)
        assert view.topics["t"].topic == TOPIC
        assert view.damaged == set(keys)
        assert sorted(str(fields["key"]) for _, fields in reports.events) == sorted(keys)
        await committed(far, changing(Put(keys[0], schema.encode(TOPIC)), Delete(keys[1]), Delete(keys[2])))
        await trio.sleep(1)
        assert view.damaged == set()

    with_view(test)


def test_topics_are_made_changed_and_deleted_once() -> None:
    """Each call has its effect once, whatever answers are lost, and this host's view has it when the call returns."""

    async def test(service: SimulatedMetadata, view: ClusterView, reports: RecordedReports) -> None:
        topics = StoredTopics(service.store("near"), view)
        other = schema.StoredTopic(topic_id="id2", partitions=2, replicas=3, settings={})
        grown = schema.StoredTopic(topic_id="id1", partitions=5, replicas=3, settings={"a": "b"})
        for _ in range(20):
            await topics.create("t", TOPIC)
            assert view.topics["t"].topic == TOPIC
            with pytest.raises(TopicExists, match="'t'"):
                await topics.create("t", other)
            await topics.alter("t", "id1", lambda _: grown)
            assert view.topics["t"].topic == grown
            with pytest.raises(InvalidPartitions, match="has 5 partitions and cannot have 2"):
                await topics.alter("t", "id1", lambda _: TOPIC)
            with pytest.raises(UnknownTopicOrPartition, match="id2"):
                await topics.alter("t", "id2", lambda _: other)
            with pytest.raises(UnknownTopicOrPartition, match="id2"):
                await topics.delete("t", "id2")
            await topics.delete("t", "id1")
            await trio.sleep(1)
            assert not view.topics
            with pytest.raises(UnknownTopicOrPartition):
                await topics.delete("t", "id1")

    with_view(test, lost_answers=0.1, lost_requests=0.1)


def test_the_newest_heads() -> None:
    """A view that is late has them by asking, a damaged one as it was; what it hears later is the same."""

    async def test(service: SimulatedMetadata, _: ClusterView, reports: RecordedReports) -> None:
        near = service.store("late")
        late = ClusterView(near, reports)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(late.run)
            await late.complete()
            nursery.cancel_scope.cancel()  # it hears nothing more
        registrations = StoredRegistrations(service.store("far"))
        first = StreamRegistration(3, 2)
        for partition in range(300):
            stream = stream_name("id1", partition)
            await registrations.swap(SwapRegistration(stream, 0, first.claimed(OwnerId("a", "a.1"))))
        await committed(service.store("far"), changing(Put(head_key(stream_name("id1", 7)), b"damaged")))
        found = await late.newest_heads()
        assert (len(late.heads), len(found)) == (0, 299)
        assert late.damaged == {head_key(stream_name("id1", 7))}
        assert {known.head.owner.host for known in found.values()} == {"a"}

    with_view(test)

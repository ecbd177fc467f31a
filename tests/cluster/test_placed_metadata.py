"""Metadata answers of a cluster are those that the protocol's own schemas give; and what a host says of the cluster."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
import trio.testing
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from logstore.base.metadata import schema
from logstore.cluster.members.placement import AGAIN_S, LOOK_S, SETTLE_S, Placement
from logstore.cluster.members.places import NO_NODE, Node, Placed
from logstore.cluster.members.view import KnownHead, stream_name
from logstore.kafka import codec
from logstore.kafka.metadata_answer import ShownCluster, ShownTopic
from logstore.kafka.placed_metadata import PlacedTopic, encode_placed
from logstore.kafka.wire import build
from logstore.log.topics import TopicConfig
from logstore.replica.registrations import ChunkRegistration, Member, OwnerId, StreamHead
from tests.cluster.support import Front, MemoryOwner

NODES = (Node(1, "a.example", 9092, "r1"), Node(2, "b.example", 9093))
TOPIC_ID = uuid.UUID(int=7)
TOPICS = (
    PlacedTopic(
        ShownTopic(0, "orders", TOPIC_ID, False, 2),
        (Placed(1, 5, (1, 2), (1,), (2,)), Placed(NO_NODE, 0, (), ())),
    ),
    PlacedTopic(ShownTopic(ErrorCode.unknown_topic_or_partition.value, "missing", None, False, 0), ()),
)


def by_schema(version: int) -> bytes:
    """The answer as kio writes it."""
    values: dict[str, Any] = {
        "brokers": [
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack} for node in NODES
        ],
        "cluster_id": "cluster",
        "controller_id": 1,
        "topics": [
            {
                "error_code": ErrorCode(topic.shown.error),
                "name": topic.shown.name,
                "topic_id": topic.shown.topic_id,
                "is_internal": topic.shown.is_internal,
                "partitions": [
                    {
                        "error_code": ErrorCode.none if placed.leader >= 0 else ErrorCode.leader_not_available,
                        "partition_index": index,
                        "leader_id": placed.leader,
                        "leader_epoch": placed.epoch,
                        "replica_nodes": placed.replicas,
                        "isr_nodes": placed.in_sync,
                        "offline_replicas": placed.offline,
                    }
                    for index, placed in enumerate(topic.partitions)
                ],
                "topic_authorized_operations": 5,
            }
            for topic in TOPICS
        ],
        "cluster_authorized_operations": 6,
        "error_code": ErrorCode.none,
    }
    return b"".join(codec.encode(build(load_response_schema(3, version), values)))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", range(14))
def test_each_version_is_written_as_its_schema_says(version: int) -> None:
    """Several brokers with and without a rack, partitions that differ, one without a leader."""
    found = encode_placed(version, NODES, ShownCluster("cluster", 6, 5), TOPICS)
    assert b"".join(found.body) == by_schema(version)
    assert found.flexible_header == (version >= 9)


class KnownHost:
    """What a host knows of one stream."""

    def __init__(self) -> None:
        self.owner: str | None = "a"
        members = (Member("a", "disk-a"), Member("b", "disk-b"), Member("c", "disk-c"))
        chunk = ChunkRegistration(4, 10, members)
        self.known: KnownHead | None = KnownHead(StreamHead(3, 2, 5, OwnerId("a", "1"), chunk, 1), 9)
        self.is_moving = False
        self.live: Mapping[str, schema.StoredMember] = {}
        self.away: set[str] = set()

    def owner_of(self, stream: str) -> str | None:
        return self.owner

    def head(self, stream: str) -> KnownHead | None:
        return self.known if stream == stream_name(TOPIC_ID.hex, 0) else None

    def is_changing_hands(self, stream: str) -> bool:
        return self.is_moving

    def may_answer(self, host: str) -> bool:
        return host not in self.away


def member(number: int, disk: str, **addresses: str) -> schema.StoredMember:
    """A member of the cluster."""
    return schema.StoredMember(disk=disk, start="1", node_id=number, link="127.0.0.1:1", rack="", addresses=addresses)


def test_a_partition_is_where_its_newest_chunk_is() -> None:
    """A member on another disk than the chunk's, and one that is gone, are offline; those never seen are not named."""
    host, members = KnownHost(), {"a": member(1, "disk-a"), "b": member(2, "disk-b"), "c": member(3, "disk-c")}
    placement = Placement(host, lambda: members, {}, lambda: None, 1)
    assert placement.placed(TOPIC_ID, 0) == Placed(1, 5, (1, 2, 3), (1, 2, 3))
    members["b"] = member(2, "another")
    del members["c"]
    assert placement.placed(TOPIC_ID, 0) == Placed(1, 5, (1, 2, 3), (1,), (2, 3))
    host.owner = None
    assert placement.placed(TOPIC_ID, 0).leader == NO_NODE
    assert placement.placed(TOPIC_ID, 1) == Placed(NO_NODE, 0, (), ())


def test_a_host_tells_clients_of_itself_whatever_it_knows() -> None:
    """Before it has joined, and when its lease has ended: an answer without brokers silences librdkafka for minutes."""
    members: dict[str, schema.StoredMember] = {}
    placement = Placement(KnownHost(), lambda: members, {}, lambda: None, 1)
    assert placement.nodes("a.example", 9092) == [Node(1, "a.example", 9092)]
    members["b"] = member(2, "disk-b", PLAINTEXT_0="b:1")
    assert [node.node_id for node in placement.nodes("a.example", 9092)] == [2, 1]
    members["a"] = member(1, "disk-a", PLAINTEXT_0="a:1")
    assert [node.node_id for node in placement.nodes("a.example", 9092)] == [1, 2]


def test_clients_are_told_the_listeners_at_the_same_place() -> None:
    """Whoever came by the second listener gets every host's second listener; a host without one gives its first."""
    own = {"PLAINTEXT_0": "a:1", "SASL_SSL_1": "a:2"}
    members = {
        "a": member(1, "disk-a", **own),
        "b": member(2, "disk-b", PLAINTEXT_0="b:1", SASL_SSL_1="b:2"),
        "c": member(3, "disk-c", PLAINTEXT_0="c:1"),
        "d": member(4, "disk-d"),
    }
    placement = Placement(KnownHost(), lambda: members, own, lambda: None, 1)
    assert [(node.host, node.port) for node in placement.nodes("a", 2)] == [("a", 2), ("b", 2), ("c", 1)]
    assert [node.port for node in placement.nodes("other-name", 1)] == [1, 1, 1]


@dataclass
class OneStream:
    """Implements `ServedTopic`: a topic with one partition, which this host has taken over, or is about to."""

    front: Front = field(default_factory=lambda: Front(MemoryOwner()))
    name: str = "orders"
    topic_id: uuid.UUID = TOPIC_ID
    overrides: Mapping[str, str] = field(default_factory=dict)
    config: TopicConfig = field(default_factory=TopicConfig)
    internal: bool = False

    @property
    def partitions(self) -> list[Any]:
        return [self.front.stream]


async def settled_after_s(placement: Placement, topic: OneStream) -> float:
    """For how long a client waits for its answer."""
    begun_s = trio.current_time()
    await placement.settle([topic])
    return trio.current_time() - begun_s


def test_who_looks_for_the_coordinator_in_a_takeover_is_told_the_new_one() -> None:
    """A client that is told of the former one, or of a host that is about to take over, pauses before it asks again: it
    waits for the takeover, as who asks for a stream's leader. A host that has claimed the topic for long is named.
    """

    async def main() -> None:
        host, topic = KnownHost(), OneStream()
        members = {"a": member(1, "disk-a", P="a:1"), "b": member(2, "disk-b", P="b:1")}
        placement, groups = Placement(host, lambda: members, {}, lambda: TOPIC_ID, 3), {TOPIC_ID: topic}.get

        async def named() -> int | None:
            node = await placement.coordinator("c", 1, groups)
            return None if node is None else node.node_id

        assert await placement.coordinator("c", 1, lambda _: None) is None
        assert await named() == 1
        host.is_moving = True
        async with trio.open_nursery() as nursery:

            async def take_over() -> None:
                await trio.sleep(SETTLE_S / 2)
                host.is_moving, host.owner = False, "b"

            nursery.start_soon(take_over)
            assert await named() == 2
        host.is_moving = True
        for waited_s in (SETTLE_S, 0.0):
            begun_s = trio.current_time()
            assert await named() == 2
            assert waited_s <= trio.current_time() - begun_s <= waited_s + LOOK_S
        host.owner = None
        assert await named() is None

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_client_that_asks_during_a_takeover_is_told_the_new_leader() -> None:
    """Until another host has opened a chunk, and for SETTLE_S at most: then nobody waits for the stream any more, until
    it has settled and changes hands again.
    """

    async def main() -> None:
        host, topic, members = KnownHost(), OneStream(), {"a": member(1, "disk-a"), "b": member(2, "disk-b")}
        placement = Placement(host, lambda: members, {}, lambda: None, 3)
        assert await settled_after_s(placement, topic) == 0
        host.is_moving = True
        async with trio.open_nursery() as nursery:

            async def take_over() -> None:
                await trio.sleep(SETTLE_S / 2)
                host.is_moving, host.owner = False, "b"

            nursery.start_soon(take_over)
            assert SETTLE_S / 2 <= await settled_after_s(placement, topic) <= SETTLE_S / 2 + LOOK_S
        assert placement.placed(TOPIC_ID, 0).leader == 2
        host.is_moving, host.owner = True, None
        assert SETTLE_S <= await settled_after_s(placement, topic) <= SETTLE_S + LOOK_S
        assert await settled_after_s(placement, topic) == 0
        host.is_moving = False
        assert await settled_after_s(placement, topic) == 0
        host.is_moving = True
        assert await settled_after_s(placement, topic) >= SETTLE_S

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_client_waits_for_a_takeover_also_if_nobody_has_asked_since_the_last_one() -> None:
    """What was seen then says nothing of now; and topics that are deleted meanwhile leave nothing for long."""

    async def main() -> None:
        host, topic, members = KnownHost(), OneStream(), {"a": member(1, "disk-a")}
        placement = Placement(host, lambda: members, {}, lambda: None, 3)
        host.is_moving = True
        assert await settled_after_s(placement, topic) >= SETTLE_S
        assert await settled_after_s(placement, OneStream(topic_id=uuid.UUID(int=8))) >= SETTLE_S
        assert await settled_after_s(placement, topic) == 0
        await trio.sleep(AGAIN_S)
        assert SETTLE_S <= await settled_after_s(placement, topic) <= SETTLE_S + LOOK_S
        assert len(placement._settling_s) == 1

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_client_that_waits_looks_at_one_stream_at_a_time() -> None:
    """Thousands may wait while this host takes over streams: looks at all of them would keep it from that."""

    async def main() -> None:
        host, members = KnownHost(), {"a": member(1, "disk-a")}
        placement, looks = Placement(host, lambda: members, {}, lambda: None, 3), []

        def is_changing_hands(stream: str) -> bool:
            looks.append(stream)
            return trio.current_time() < until_s

        host.is_changing_hands = is_changing_hands  # type: ignore[method-assign]
        topics = [OneStream(topic_id=uuid.UUID(int=number)) for number in range(50)]
        until_s = trio.current_time() + SETTLE_S / 2
        await placement.settle(topics)
        assert trio.current_time() >= until_s
        assert len(looks) <= 2 * len(topics) + SETTLE_S / LOOK_S
        assert set(looks) == {stream_name(topic.topic_id.hex, 0) for topic in topics}
        assert not placement._settling_s

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_host_that_takes_over_is_told_when_it_takes_batches() -> None:
    """It owns the stream before it knows the producers' last sequences, and would refuse what comes before."""

    async def main() -> None:
        host, topic, members = KnownHost(), OneStream(), {"a": member(1, "disk-a")}
        placement = Placement(host, lambda: members, {}, lambda: None, 1)
        topic.front.owner.own(topic.front.stream)
        async with trio.open_nursery() as nursery:

            async def load_producers() -> None:
                await trio.sleep(SETTLE_S / 2)
                await topic.front.tasks.run()

            nursery.start_soon(load_producers)
            assert SETTLE_S / 2 <= await settled_after_s(placement, topic) < SETTLE_S
        assert topic.front.stream.is_leader

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_client_that_is_first_to_know_of_a_death_is_told_the_new_leader() -> None:
    """Its connection to the leader has ended, and this host's link is up still: the leader is asked for a sign of life,
    and the takeover is waited for when that shows that it is gone. This host itself is its own sign.
    """

    async def main() -> None:
        host, topic, members = KnownHost(), OneStream(), {"a": member(1, "disk-a"), "b": member(2, "disk-b")}
        asked: list[set[str]] = []

        async def await_signs(hosts: Iterable[str]) -> None:
            asked.append(set(hosts))
            await trio.sleep(SETTLE_S / 2)
            host.is_moving = True

        async def take_over() -> None:
            await trio.sleep(SETTLE_S)
            host.is_moving, host.owner = False, "b"

        placement = Placement(host, lambda: members, {}, lambda: None, 3, await_signs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_over)
            assert SETTLE_S <= await settled_after_s(placement, topic) <= SETTLE_S + LOOK_S
        assert asked == [{"a"}]
        assert placement.placed(TOPIC_ID, 0).leader == 2
        host.owner = None
        await placement.settle([topic])
        assert asked == [{"a"}, set()]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_another_takeover_is_waited_for_as_the_first_one() -> None:
    """Nobody has asked here in between: the stream's epoch says that it is another one."""

    async def main() -> None:
        host, topic, members = KnownHost(), OneStream(), {"a": member(1, "disk-a")}
        placement = Placement(host, lambda: members, {}, lambda: None, 3)
        host.is_moving = True
        assert await settled_after_s(placement, topic) >= SETTLE_S
        assert await settled_after_s(placement, topic) == 0
        assert host.known is not None
        host.known = KnownHead(replace(host.known.head, epoch=host.known.head.epoch + 1), 10)
        assert await settled_after_s(placement, topic) >= SETTLE_S

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

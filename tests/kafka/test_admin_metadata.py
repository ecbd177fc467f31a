"""Who is here and what there is, in every version of the requests that ask for it."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from kio.schema.describe_topic_partitions.v0.request import Cursor
from kio.schema.errors import ErrorCode

from logstore.base.metadata import schema
from logstore.base.system import SystemClock
from logstore.cluster.members.placement import Placement
from logstore.cluster.members.view import KnownHead
from logstore.kafka.api_types import Broker, BrokerSettings
from logstore.kafka.metadata import MetadataHandlers
from logstore.replica.registrations import OwnerId, StreamHead
from tests.kafka.node import running

METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER, DESCRIBE_PARTITIONS = 3, 10, 60, 75


def test_metadata_of_every_version(tmp_path: Path) -> None:
    """All versions name this node under the advertised address, and lead every partition here."""

    async def story() -> None:
        async with running(tmp_path) as node:
            topic = await node.engine.wait(node.store.create_topic("t", 2, {}))
            for version in node.versions(METADATA):
                answer = await node.ask(METADATA, version, topics=[{"name": "t"}], allow_auto_topic_creation=False)
                assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(0, "log.example", 9092)]
                (shown,) = answer.topics
                assert (shown.error_code, shown.name) == (ErrorCode.none, "t")
                assert [p.partition_index for p in shown.partitions] == [0, 1]
                assert {(p.leader_id, p.replica_nodes, p.isr_nodes) for p in shown.partitions} == {(0, (0,), (0,))}
                if version >= 1:
                    assert answer.controller_id == 0
                if version >= 2:
                    assert answer.cluster_id == node.store.cluster_id
                if version >= 10:
                    assert shown.topic_id == topic.topic_id

    trio.run(story)


def test_metadata_of_all_topics_and_of_none(tmp_path: Path) -> None:
    """Null asks for all topics, which version 0 says with an empty list; an empty list asks for none from version 1."""

    async def story() -> None:
        async with running(tmp_path) as node:
            for name in ("a", "b"):
                await node.engine.wait(node.store.create_topic(name, 1, {}))
            for version in node.versions(METADATA):
                everything = await node.ask(METADATA, version, topics=None if version else [])
                assert {topic.name for topic in everything.topics} == {"a", "b"}
                if version:
                    assert (await node.ask(METADATA, version, topics=[])).topics == ()

    trio.run(story)


def test_topics_are_created_when_first_used(tmp_path: Path) -> None:
    """A missing topic is created if request and setting allow it, and answered with a leader; bad names are refused."""

    async def story() -> None:
        async with running(tmp_path, BrokerSettings(default_partitions=3)) as node:
            names = [{"name": "no"}, {"name": "no spaces"}]
            refused = await node.ask(METADATA, 12, topics=names, allow_auto_topic_creation=False)
            codes = [topic.error_code for topic in refused.topics]
            assert codes == [ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception]
            created = await node.ask(METADATA, 12, topics=[{"name": "yes"}], allow_auto_topic_creation=True)
            assert created.topics[0].error_code is ErrorCode.none
            assert [p.leader_id for p in created.topics[0].partitions] == [0, 0, 0]
            assert list(node.store.topics) == ["yes"]
        async with running(tmp_path, BrokerSettings(auto_create_topics=False)) as node:
            refused = await node.ask(METADATA, 12, topics=[{"name": "no"}], allow_auto_topic_creation=True)
            assert refused.topics[0].error_code is ErrorCode.unknown_topic_or_partition
            assert list(node.store.topics) == ["yes"]

    trio.run(story)


def test_many_who_use_a_topic_first_get_the_same(tmp_path: Path) -> None:
    """Clients that ask for one missing topic at the same time are all answered with the same one."""

    async def story() -> None:
        seen = []
        async with running(tmp_path) as node:

            async def use() -> None:
                answer = await node.ask(METADATA, 12, topics=[{"name": "t"}], allow_auto_topic_creation=True)
                seen.append((answer.topics[0].error_code, answer.topics[0].topic_id))

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(use)
            assert set(seen) == {(ErrorCode.none, node.store.topic("t").topic_id)}

    trio.run(story)


def test_topics_by_id(tmp_path: Path) -> None:
    """An id names a topic as well as its name does; an unknown one is UNKNOWN_TOPIC_ID. With an id, names say nothing:
    a topic is answered once, however many names come with its id.
    """

    async def story() -> None:
        async with running(tmp_path) as node:
            topic = await node.engine.wait(node.store.create_topic("t", 1, {}))
            wanted = [{"name": None, "topic_id": topic.topic_id}, {"name": None, "topic_id": uuid.uuid4()}]
            for version in (12, 13):
                known, unknown = (await node.ask(METADATA, version, topics=wanted)).topics
                assert (known.error_code, known.name) == (ErrorCode.none, "t")
                assert unknown.error_code is ErrorCode.unknown_topic_id
            renamed = [{"name": f"n{number}", "topic_id": topic.topic_id} for number in range(100)]
            for version in (10, 12, 13):
                assert [found.name for found in (await node.ask(METADATA, version, topics=renamed)).topics] == ["t"]

    trio.run(story)


def test_authorized_operations_only_when_asked(tmp_path: Path) -> None:
    """Operations are int32's minimum unless they are asked for."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await node.engine.wait(node.store.create_topic("t", 1, {}))
            silent = await node.ask(METADATA, 8, topics=None)
            asked = await node.ask(
                METADATA,
                8,
                topics=None,
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            )
            shown = [
                (a.topics[0].topic_authorized_operations, a.cluster_authorized_operations) for a in (silent, asked)
            ]
            assert shown[0] == (-(2**31), -(2**31))
            assert min(shown[1]) > 0

    trio.run(story)


def test_groups_are_coordinated_here_and_transactions_nowhere(tmp_path: Path) -> None:
    """Every version finds a group's coordinator at the advertised address, and refuses a transaction for good."""

    async def story() -> None:
        async with running(tmp_path) as node:
            for version in node.versions(FIND_COORDINATOR):
                answer = await node.ask(FIND_COORDINATOR, version, key="g", key_type=0, coordinator_keys=["g"])
                found = answer.coordinators[0] if version >= 4 else answer
                assert (found.error_code, found.node_id) == (ErrorCode.none, 0)
                assert (found.host, found.port) == ("log.example", 9092)
                if not version:
                    continue
                answer = await node.ask(FIND_COORDINATOR, version, key="x", key_type=1, coordinator_keys=["x"])
                refused = answer.coordinators[0] if version >= 4 else answer
                old, new = ErrorCode.transactional_id_authorization_failed, ErrorCode.unsupported_version
                assert refused.error_code is (new if version >= 4 else old)
                assert "transactional.id" in refused.error_message

    trio.run(story)


def test_the_cluster(tmp_path: Path) -> None:
    """DescribeCluster names the one node; asked for controllers it says that this is a broker."""

    async def story() -> None:
        async with running(tmp_path) as node:
            for version in node.versions(DESCRIBE_CLUSTER):
                answer = await node.ask(DESCRIBE_CLUSTER, version, endpoint_type=1)
                assert (answer.error_code, answer.cluster_id) == (ErrorCode.none, node.store.cluster_id)
                assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(0, "log.example", 9092)]
                if version:
                    refused = await node.ask(DESCRIBE_CLUSTER, version, endpoint_type=2)
                    assert refused.error_code is ErrorCode.mismatched_endpoint_type

    trio.run(story)


def test_partitions_page_by_page(tmp_path: Path) -> None:
    """DescribeTopicPartitions goes on where the cursor says, and shows every partition once."""

    async def story() -> None:
        async with running(tmp_path) as node:
            for name, partitions in (("a", 3), ("b", 2), ("c", 1)):
                await node.engine.wait(node.store.create_topic(name, partitions, {}))
            for limit in range(1, 8):
                seen: list[tuple[str, int]] = []
                cursor = None
                while True:
                    names = [{"name": name} for name in ("c", "a", "b")]
                    answer = await node.ask(
                        DESCRIBE_PARTITIONS, 0, topics=names, response_partition_limit=limit, cursor=cursor
                    )
                    page = [(topic.name, p.partition_index) for topic in answer.topics for p in topic.partitions]
                    assert len(page) <= limit
                    seen += page
                    if answer.next_cursor is None:
                        break
                    cursor = request_cursor(answer.next_cursor)
                assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]

    trio.run(story)


def request_cursor(answered: Any) -> Cursor:
    """An answer's cursor as a request has it."""
    return Cursor(topic_name=answered.topic_name, partition_index=answered.partition_index)


class TakenOver:
    """What a host knows of streams that another host, `b`, has taken over by the time of a second look."""

    def __init__(self) -> None:
        self.owner = "a"
        self.live: Mapping[str, schema.StoredMember] = {}

    def owner_of(self, stream: str) -> str | None:
        return self.owner

    def head(self, stream: str) -> KnownHead | None:
        return KnownHead(StreamHead(1, 1, 5, OwnerId(self.owner, "1"), None, 0), 9 if self.owner == "a" else 10)

    def is_changing_hands(self, stream: str) -> bool:
        has_settled, self.owner = self.owner == "b", "b"
        return not has_settled

    def may_answer(self, host: str) -> bool:
        return True


def member(number: int, disk: str, address: str) -> schema.StoredMember:
    """A host with one listener."""
    return schema.StoredMember(disk=disk, start="1", node_id=number, link="l:1", rack="", addresses={"P": address})


def test_metadata_waits_for_a_takeover(tmp_path: Path) -> None:
    """Who asks about a topic that changes hands is told who leads it then; who asks about all topics, who did."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await node.engine.wait(node.store.create_topic("t", 1, {}))
            members = {"a": member(1, "disk-a", "a:1"), "b": member(2, "disk-b", "b:1")}
            for wanted, leader in (([{"name": "t"}], 2), (None, 1)):
                placement = Placement(TakenOver(), lambda: members, {}, lambda: None, 3)
                broker = Broker(node.engine, SystemClock(), BrokerSettings(), placement=placement)
                node.apis.update({api.key: api for api in MetadataHandlers(broker).apis()})
                answer = await node.ask(METADATA, 12, topics=wanted, allow_auto_topic_creation=False)
                assert [part.leader_id for topic in answer.topics for part in topic.partitions] == [leader]

    trio.run(story)

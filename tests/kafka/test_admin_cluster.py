"""What tools ask of a cluster of one node, in every version: the answers are those of a real Kafka of one node."""

from pathlib import Path
from typing import Any

import trio
from kio.schema.errors import ErrorCode

from tests.kafka.node import CALLER, Node, running

LOG_DIRS, ELECT, REASSIGN, QUORUM, RESOURCES, DESCRIBE_LOG_DIRS = 34, 43, 45, 55, 74, 35
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
NOT_NEEDED, UNKNOWN = ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition


async def with_topic(node: Node) -> None:
    """A topic of two partitions."""
    await node.engine.wait(node.store.create_topic("t", 2, {}))


def test_no_partition_needs_an_election(tmp_path: Path) -> None:
    """Named partitions get ELECTION_NOT_NEEDED, missing ones UNKNOWN_TOPIC_OR_PARTITION; asked for all, none is named;
    a kind of election that Kafka does not have is refused.
    """

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_topic(node)
            named = [{"topic": "t", "partitions": (0, 1, 7)}, {"topic": "nope", "partitions": (0,)}]
            for version in node.versions(ELECT):
                answer = await node.ask(ELECT, version, election_type=0, topic_partitions=named)
                codes = [[p.error_code for p in topic.partition_result] for topic in answer.replica_election_results]
                assert codes == [[NOT_NEEDED, NOT_NEEDED, UNKNOWN], [UNKNOWN]]
                everything = await node.ask(ELECT, version, election_type=0, topic_partitions=None)
                assert everything.replica_election_results == ()
            answer = await node.ask(ELECT, 2, election_type=5, topic_partitions=named)
            assert answer.error_code is ErrorCode.invalid_request
            assert "election_type=5" in answer.replica_election_results[0].partition_result[0].error_message

    trio.run(story)


def test_a_quorum_of_one(tmp_path: Path) -> None:
    """The node is leader and only voter of Kafka's topic of metadata; other topics have no quorum."""

    async def story() -> None:
        async with running(tmp_path) as node:
            for version in node.versions(QUORUM):
                parts = [{"partition_index": 0}, {"partition_index": 1}]
                names = ({"topic_name": name, "partitions": parts} for name in ("__cluster_metadata", "t"))
                answer = await node.ask(QUORUM, version, topics=list(names))
                (shown, beyond), others = (topic.partitions for topic in answer.topics)
                assert (shown.error_code, shown.leader_id, shown.high_watermark) == (ErrorCode.none, 0, 0)
                assert [voter.replica_id for voter in shown.current_voters] == [0]
                assert {part.error_code for part in (beyond, *others)} == {UNKNOWN}
                if version >= 2:
                    (listener,) = answer.nodes[0].listeners
                    assert (listener.host, listener.port) == (CALLER.advertised_host, CALLER.advertised_port)

    trio.run(story)


def test_a_replica_stays_where_it_is(tmp_path: Path) -> None:
    """A reassignment to the only node succeeds, to others is INVALID_REPLICA_ASSIGNMENT, and none can be cancelled."""

    async def outcome(node: Node, version: int, replicas: Any, partition: int = 0) -> ErrorCode:
        parts = [{"partition_index": partition, "replicas": replicas}]
        answer = await node.ask(REASSIGN, version, topics=[{"name": "t", "partitions": parts}])
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_topic(node)
            for version in node.versions(REASSIGN):
                assert await outcome(node, version, (0,)) is ErrorCode.none
                for wrong in ((0, 0), (9,), ()):
                    assert await outcome(node, version, wrong) is ErrorCode.invalid_replica_assignment
                assert await outcome(node, version, None) is ErrorCode.no_reassignment_in_progress
                assert await outcome(node, version, (0,), partition=9) is UNKNOWN

    trio.run(story)


def test_a_replica_stays_in_its_directory(tmp_path: Path) -> None:
    """A move to the directory that DescribeLogDirs names succeeds; there is no other."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_topic(node)
            here = (await node.ask(DESCRIBE_LOG_DIRS, 4, topics=None)).results[0].log_dir
            for version in node.versions(LOG_DIRS):
                moves = [
                    {"path": here, "topics": [{"name": "t", "partitions": (0, 9)}, {"name": "no", "partitions": (0,)}]},
                    {"path": "/elsewhere", "topics": [{"name": "t", "partitions": (1,)}]},
                ]
                answer = await node.ask(LOG_DIRS, version, dirs=moves)
                found = {
                    (topic.topic_name, part.partition_index): part.error_code
                    for topic in answer.results
                    for part in topic.partitions
                }
                assert found == {
                    ("t", 0): ErrorCode.none,
                    ("t", 9): UNKNOWN,
                    ("no", 0): UNKNOWN,
                    ("t", 1): ErrorCode.log_dir_not_found,
                }

    trio.run(story)


def test_resources_with_settings(tmp_path: Path) -> None:
    """Topics and the node are listed, by kind if that is asked; a kind that Kafka does not know is refused."""

    async def listed(node: Node, *kinds: int) -> list[tuple[int, str]]:
        answer = await node.ask(RESOURCES, 1, resource_types=kinds)
        assert answer.error_code is ErrorCode.none
        return [(found.resource_type, found.resource_name) for found in answer.config_resources]

    async def story() -> None:
        async with running(tmp_path) as node:
            await with_topic(node)
            assert await listed(node) == [(BROKER, "0"), (TOPIC, "t")]
            assert await listed(node, TOPIC) == [(TOPIC, "t")]
            assert await listed(node, BROKER, GROUP) == [(BROKER, "0")]
            assert await listed(node, BROKER_LOGGER, CLIENT_METRICS, GROUP) == []
            assert (await node.ask(RESOURCES, 0)).config_resources == ()
            refused = await node.ask(RESOURCES, 1, resource_types=(TOPIC, 77))
            assert (refused.error_code, refused.config_resources) == (ErrorCode.unsupported_version, ())

    trio.run(story)

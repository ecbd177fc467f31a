"""Topics made, grown and deleted, in every version of the requests, and at the same time by several clients."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from kio.schema.errors import ErrorCode

from logstore.format.topic_partition import TopicPartition
from logstore.kafka.api_types import BrokerSettings
from logstore.kafka.groups.service import CommitRequest, OffsetToCommit
from tests.kafka.node import NOW_MS, Node, running

CREATE, DELETE, GROW, LOG_DIRS, ALTER = 19, 20, 37, 35, 44


def wanted(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> Mapping[str, Any]:
    """A topic as CreateTopics asks for it."""
    asked = {"name": name, "num_partitions": partitions, "replication_factor": replicas}
    return {**asked, "assignments": [], "configs": [], **more}


async def create(node: Node, *topics: Mapping[str, Any], version: int = 7, validate_only: bool = False) -> Any:
    """CreateTopics: the answered topics."""
    return (await node.ask(CREATE, version, topics=topics, validate_only=validate_only)).topics


def test_created_by_every_version(tmp_path: Path) -> None:
    """All versions create; from 5 on they tell partitions and settings, from 7 on the id. A restart keeps all."""

    async def story() -> None:
        config = [{"name": "retention.ms", "value": "5000"}]
        async with running(tmp_path) as node:
            for version in node.versions(CREATE):
                (topic,) = await create(node, wanted(f"t{version}", 2, configs=config), version=version)
                assert topic.error_code is ErrorCode.none
                if version >= 5:
                    assert (topic.num_partitions, topic.replication_factor) == (2, 1)
                    shown = {entry.name: (entry.value, entry.config_source) for entry in topic.configs}
                    assert shown["retention.ms"] == ("5000", 1)
                    assert shown["retention.bytes"] == ("-1", 5)
                if version >= 7:
                    assert topic.topic_id == node.store.topic(topic.name).topic_id
            before = {name: topic.topic_id for name, topic in node.store.topics.items()}
        async with running(tmp_path) as node:
            assert {name: topic.topic_id for name, topic in node.store.topics.items()} == before
            assert {len(topic.partitions) for topic in node.store.topics.values()} == {2}
            assert {topic.config.retention_ms for topic in node.store.topics.values()} == {5000}

    trio.run(story)


def test_refused_creations(tmp_path: Path) -> None:
    """Each impossible topic gets its own error and is not there; the others of the request are."""

    async def story() -> None:
        def assigned(*nodes: tuple[int, ...], **more: Any) -> Mapping[str, Any]:
            parts = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(nodes)]
            return wanted("assigned", **{"partitions": -1, "replicas": -1, "assignments": parts, **more})

        async with running(tmp_path, BrokerSettings(default_partitions=3)) as node:
            refusals = {
                ErrorCode.invalid_topic_exception: wanted("no spaces"),
                ErrorCode.invalid_partitions: wanted("none", 0),
                ErrorCode.invalid_replication_factor: wanted("replicated", 1, 3),
                ErrorCode.invalid_config: wanted("bad", configs=[{"name": "cleanup.policy", "value": "compact"}]),
                ErrorCode.invalid_replica_assignment: assigned((0,), (1,)),
            }
            answers = await create(node, *refusals.values(), wanted("good", -1, -1))
            assert [topic.error_code for topic in answers] == [*refusals, ErrorCode.none]
            assert all(topic.error_message for topic in answers[:-1])
            assert list(node.store.topics) == ["good"]
            assert len(node.store.topic("good").partitions) == 3
            (taken,) = await create(node, wanted("good"))
            assert taken.error_code is ErrorCode.topic_already_exists
            (both,) = await create(node, assigned((0,), partitions=1))
            assert both.error_code is ErrorCode.invalid_request
            (twice,) = await create(node, wanted("twice"), wanted("twice"))
            assert (twice.name, twice.error_code) == ("twice", ErrorCode.invalid_request)
            (fits,) = await create(node, assigned((0,), (0,)))
            assert (fits.error_code, fits.num_partitions) == (ErrorCode.none, 2)

    trio.run(story)


def test_validation_creates_nothing(tmp_path: Path) -> None:
    """validate_only answers as creating and growing would, and does neither."""

    async def story() -> None:
        async with running(tmp_path) as node:
            (topic,) = await create(node, wanted("t", 2), validate_only=True)
            assert (topic.error_code, topic.num_partitions) == (ErrorCode.none, 2)
            assert node.store.topics == {}
            await create(node, wanted("t"))
            assert await grow(node, "t", 4, validate_only=True) is ErrorCode.none
            assert len(node.store.topic("t").partitions) == 1

    trio.run(story)


async def grow(node: Node, name: str, count: int, version: int = 3, **more: Any) -> ErrorCode:
    """CreatePartitions for one topic: its error."""
    topic = {"name": name, "count": count, "assignments": more.pop("assignments", None)}
    (result,) = (await node.ask(GROW, version, topics=[topic], **{"validate_only": False, **more})).results
    error: ErrorCode = result.error_code
    return error


def test_topics_grow_and_never_shrink(tmp_path: Path) -> None:
    """Every version adds partitions, which a restart keeps; fewer, as many or elsewhere is refused."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await create(node, wanted("t"))
            for version in node.versions(GROW):
                assert await grow(node, "t", 2 + version, version) is ErrorCode.none
            assert await grow(node, "t", 5) is ErrorCode.invalid_partitions
            assert await grow(node, "t", 4) is ErrorCode.invalid_partitions
            assert await grow(node, "no", 4) is ErrorCode.unknown_topic_or_partition
            elsewhere = [{"broker_ids": (3,)}]
            assert await grow(node, "t", 6, assignments=elsewhere) is ErrorCode.invalid_replica_assignment
            here = [{"broker_ids": (0,)}]
            assert await grow(node, "t", 7, assignments=here) is ErrorCode.invalid_replica_assignment
            assert await grow(node, "t", 6, assignments=here) is ErrorCode.none
        async with running(tmp_path) as node:
            assert len(node.store.topic("t").partitions) == 6

    trio.run(story)


def test_deleted_by_every_version(tmp_path: Path) -> None:
    """Topics go by name and, from version 6, by id; the unknown is said so; a restart brings none back."""

    async def story() -> None:
        async with running(tmp_path) as node:
            for version in node.versions(DELETE):
                await create(node, wanted("t"))
                names = ["t", "no"]
                answer = await node.ask(DELETE, version, topic_names=names, topics=[{"name": n} for n in names])
                codes = {topic.name: topic.error_code for topic in answer.responses}
                assert codes == {"t": ErrorCode.none, "no": ErrorCode.unknown_topic_or_partition}
                assert node.store.topics == {}
            (topic,) = await create(node, wanted("t"))
            ids = [{"name": None, "topic_id": topic.topic_id}, {"name": None, "topic_id": uuid.uuid4()}]
            gone, unknown = (await node.ask(DELETE, 6, topics=ids)).responses
            assert (gone.name, gone.error_code) == ("t", ErrorCode.none)
            assert unknown.error_code is ErrorCode.unknown_topic_id
            both = [{"name": "t", "topic_id": topic.topic_id}]
            (refused,) = (await node.ask(DELETE, 6, topics=both)).responses
            assert refused.error_code is ErrorCode.invalid_request
        async with running(tmp_path) as node:
            assert node.store.topics == {}

    trio.run(story)


def test_offsets_of_a_deleted_topic_go_with_it(tmp_path: Path) -> None:
    """When the deletion of a topic is answered, no group's offsets of it are on disk; those of other topics stay."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await create(node, wanted("t"))
            await create(node, wanted("kept"))
            for group in ("a", "b"):
                at = {TopicPartition(topic, 0): OffsetToCommit(5, 0, "") for topic in ("t", "kept")}
                _, ticket = node.groups.commit(CommitRequest(group, -1, "", None), at, 0.0, 0)
                await node.engine.wait(ticket)
            assert len(list(node.store.groups.items("offset/"))) == 4
            await node.ask(DELETE, 6, topics=[{"name": "t"}])
            assert {key.split("/")[2] for key, _ in node.store.groups.items("offset/")} == {"kept"}
        async with running(tmp_path) as node:
            assert {group: list(node.groups.committed(group).known) for group in ("a", "b")} == {
                group: [TopicPartition("kept", 0)] for group in ("a", "b")
            }

    trio.run(story)


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """Clients that grow and configure one topic at the same time lose nothing of each other's, over a restart too."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await create(node, wanted("t"))

            async def configure(name: str, value: str) -> None:
                change = {"name": name, "config_operation": 0, "value": value}
                resource = {"resource_type": 2, "resource_name": "t", "configs": [change]}
                (answer,) = (await node.ask(ALTER, 1, resources=[resource], validate_only=False)).responses
                assert answer.error_code is ErrorCode.none

            async with trio.open_nursery() as nursery:
                nursery.start_soon(grow, node, "t", 4)
                nursery.start_soon(configure, "retention.ms", "5000")
                nursery.start_soon(grow, node, "t", 3)
                nursery.start_soon(configure, "segment.bytes", "4096")
                nursery.start_soon(configure, "retention.bytes", "70000")
            await node.append("t", [NOW_MS], partition=3)

        async with running(tmp_path) as node:
            topic = node.store.topic("t")
            assert len(topic.partitions) == 4
            config = (topic.config.retention_ms, topic.config.segment_bytes, topic.config.retention_bytes)
            assert config == (5000, 4096, 70000)
            assert topic.partitions[3].high_watermark == 1

    trio.run(story)


def test_one_of_two_creators_is_refused(tmp_path: Path) -> None:
    """Of two clients that create one topic at the same time, one is told that it exists."""

    async def story() -> None:
        async with running(tmp_path) as node:
            outcomes = []

            async def make(partitions: int) -> None:
                (topic,) = await create(node, wanted("t", partitions))
                outcomes.append((topic.error_code, topic.num_partitions))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(make, 2)
                nursery.start_soon(make, 5)
            refused, made = sorted(outcomes, key=lambda outcome: outcome[1])
            assert refused == (ErrorCode.topic_already_exists, -1)
            assert made == (ErrorCode.none, len(node.store.topic("t").partitions))

    trio.run(story)


def test_what_is_deleted_stays_deleted(tmp_path: Path) -> None:
    """A change that comes while its topic is being deleted does not bring the topic back."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await create(node, wanted("t"))
            errors = []

            async def late_growth() -> None:
                errors.append(await grow(node, "t", 4))

            async with trio.open_nursery() as nursery:
                deleted = node.store.delete_topic("t")
                for _ in range(2000):  # more than the interpreter's stack would hold
                    nursery.start_soon(late_growth)
                await node.engine.wait(deleted)
            assert errors == [ErrorCode.unknown_topic_or_partition] * 2000
            assert node.store.topics == {}
        async with running(tmp_path) as node:
            assert node.store.topics == {}

    trio.run(story)


def test_log_directories(tmp_path: Path) -> None:
    """DescribeLogDirs tells how many bytes each partition has: all of them, or those asked for."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await create(node, wanted("t", 2), wanted("u"))
            await node.append("t", [NOW_MS], partition=1)
            size = node.store.stream("t", 1).size_bytes
            assert size > 0
            for version in node.versions(LOG_DIRS):
                (directory,) = (await node.ask(LOG_DIRS, version, topics=None)).results
                sizes = {(t.name, p.partition_index): p.partition_size for t in directory.topics for p in t.partitions}
                assert sizes == {("t", 0): 0, ("t", 1): size, ("u", 0): 0}
                some = [{"topic": "t", "partitions": (1, 7)}]
                (directory,) = (await node.ask(LOG_DIRS, version, topics=some)).results
                sizes = {(t.name, p.partition_index): p.partition_size for t in directory.topics for p in t.partitions}
                assert sizes == {("t", 1): size}

    trio.run(story)

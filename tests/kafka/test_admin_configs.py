"""Settings shown and changed, in every version of the requests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from kio.schema.errors import ErrorCode

from logstore.kafka.api_types import BrokerSettings
from logstore.log.topics import FIXED, SETTINGS
from tests.kafka.node import Node, running

CREATE, DESCRIBE, ALTER, INCREMENTAL = 19, 32, 33, 44
TOPIC, BROKER = 2, 4
OF_TOPIC, OF_FILE, DEFAULT = 1, 4, 5
SET, UNSET, APPEND, SUBTRACT = 0, 1, 2, 3


async def describe(node: Node, version: int, kind: int, name: str, keys: Sequence[str] | None = None) -> Any:
    """DescribeConfigs of one resource."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = await node.ask(DESCRIBE, version, resources=[resource], include_synonyms=True, include_documentation=True)
    return answer.results[0]


async def change(
    node: Node, key: int, version: int, configs: Sequence[Mapping[str, Any]], *, validate_only: bool = False
) -> ErrorCode:
    """Change settings of topic t: the error."""
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": configs}
    answer = await node.ask(key, version, resources=[resource], validate_only=validate_only)
    error: ErrorCode = answer.responses[0].error_code
    return error


def test_a_topic_shows_where_its_settings_come_from(tmp_path: Path) -> None:
    """Every setting has value, source and synonyms; what cannot be changed is read-only."""

    async def story() -> None:
        async with running(tmp_path) as node:
            await node.engine.wait(node.store.create_topic("t", 1, {"retention.ms": "5000"}))
            for version in node.versions(DESCRIBE):
                result = await describe(node, version, TOPIC, "t")
                shown = {entry.name: entry for entry in result.configs}
                assert set(shown) == {*SETTINGS, *FIXED}
                assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5000", OF_TOPIC)
                synonyms = [(s.name, s.value, s.source) for s in shown["retention.ms"].synonyms]
                assert synonyms == [
                    ("retention.ms", "5000", OF_TOPIC),
                    ("log.retention.ms", "604800000", DEFAULT),
                ]
                assert shown["segment.bytes"].config_source == DEFAULT
                assert {name for name, entry in shown.items() if entry.read_only} == set(FIXED)
                assert not any(entry.is_sensitive for entry in result.configs)
                if version >= 3:
                    assert all(entry.documentation for entry in result.configs)
                some = await describe(node, version, TOPIC, "t", ["retention.ms", "no.such.setting"])
                assert [entry.name for entry in some.configs] == ["retention.ms"]

    trio.run(story)


def test_the_node_shows_its_settings(tmp_path: Path) -> None:
    """The node's settings have Kafka's names, are read-only, and tell what was set from what is a default."""

    async def story() -> None:
        async with running(tmp_path, BrokerSettings(auto_create_topics=False)) as node:
            for version in node.versions(DESCRIBE):
                result = await describe(node, version, BROKER, "0")
                shown = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
                assert shown["auto.create.topics.enable"] == ("false", OF_FILE)
                assert shown["num.partitions"] == ("1", DEFAULT)
                assert shown["message.max.bytes"] == ("1048588", DEFAULT)
                assert shown["log.retention.check.interval.ms"] == ("300000", DEFAULT)
                assert shown["node.id"][0] == shown["broker.id"][0] == "0"
                assert shown["listeners"][0] == "PLAINTEXT://0.0.0.0:9092,PLAINTEXT_1://[::1]:9094"
                told = "PLAINTEXT://log.example:9092,PLAINTEXT_1://queue.example:19094"
                assert shown["advertised.listeners"][0] == told
                assert all(entry.read_only for entry in result.configs)

    trio.run(story)


def test_unknown_resources(tmp_path: Path) -> None:
    """A topic that is not there, another node, and a kind of thing that is not here are errors of that resource."""

    async def story() -> None:
        async with running(tmp_path) as node:
            codes = [(await describe(node, 4, *what)).error_code for what in ((TOPIC, "no"), (BROKER, "7"), (99, "x"))]
            assert codes == [
                ErrorCode.unknown_topic_or_partition,
                ErrorCode.invalid_request,
                ErrorCode.invalid_request,
            ]

    trio.run(story)


def test_incremental_changes(tmp_path: Path) -> None:
    """Each version sets and unsets single settings, leaves the others, and keeps them over a restart."""

    async def story() -> None:
        async with running(tmp_path) as node:
            topic = await node.engine.wait(node.store.create_topic("t", 1, {"retention.ms": "5000"}))
            for version in node.versions(INCREMENTAL):
                size = str(5000 + version)
                entry = {"name": "segment.bytes", "config_operation": SET, "value": size}
                assert await change(node, INCREMENTAL, version, [entry]) is ErrorCode.none
                assert topic.overrides == {"retention.ms": "5000", "segment.bytes": size}
                assert topic.partitions[0].config.segment_bytes == int(size)
            unset = {"name": "retention.ms", "config_operation": UNSET, "value": None}
            assert await change(node, INCREMENTAL, 1, [unset], validate_only=True) is ErrorCode.none
            assert "retention.ms" in topic.overrides
            assert await change(node, INCREMENTAL, 1, [unset]) is ErrorCode.none
        async with running(tmp_path) as node:
            assert node.store.topic("t").overrides == {"segment.bytes": "5001"}

    trio.run(story)


def test_refused_changes(tmp_path: Path) -> None:
    """What cannot be set is INVALID_CONFIG, and nothing of the resource's other changes is done."""

    async def story() -> None:
        async with running(tmp_path) as node:
            topic = await node.engine.wait(node.store.create_topic("t", 1, {}))
            good = {"name": "retention.ms", "config_operation": SET, "value": "5000"}
            for name, operation, value in (
                ("retention.bytes", SET, "much"),
                ("no.such.setting", SET, "1"),
                ("no.such.setting", UNSET, None),
                ("cleanup.policy", SET, "compact"),
                ("compression.type", SET, "zstd"),
                ("message.timestamp.type", SET, "NoTime"),
                ("min.insync.replicas", SET, "0"),
                ("cleanup.policy", APPEND, "compact"),
                ("cleanup.policy", SUBTRACT, "delete"),
                ("retention.bytes", APPEND, "1"),
                ("retention.bytes", SET, None),
                ("retention.ms", SET, "6000"),
                ("retention.bytes", 9, "1"),
            ):
                bad = {"name": name, "config_operation": operation, "value": value}
                assert await change(node, INCREMENTAL, 1, [good, bad]) is ErrorCode.invalid_config, bad
            assert topic.overrides == {}
            assert await change(node, ALTER, 2, [{"name": "no.such.setting", "value": "1"}]) is ErrorCode.invalid_config

    trio.run(story)


def test_compaction_is_refused_on_every_route(tmp_path: Path) -> None:
    """A topic never becomes one that is compacted: neither when it is made, nor by a request that changes it, nor by
    validating, in any version; each time the error is INVALID_CONFIG and says that there is no compaction.
    """

    async def story() -> None:
        async with running(tmp_path) as node:
            topic = await node.engine.wait(node.store.create_topic("t", 1, {}))
            for policy in ("compact", "compact,delete", "delete,compact", "[compact]", ""):
                entry = {"name": "cleanup.policy", "value": policy}
                wanted = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": []}
                for version in node.versions(CREATE):
                    for is_trial in (True, False):
                        created = await node.ask(
                            CREATE,
                            version,
                            topics=[{**wanted, "configs": [entry]}],
                            timeout_ms=0,
                            validate_only=is_trial,
                        )
                        assert created.topics[0].error_code is ErrorCode.invalid_config
                        assert "there is no compaction" in created.topics[0].error_message
                for key in (ALTER, INCREMENTAL):
                    for version in node.versions(key):
                        for operation in (SET, APPEND) if key == INCREMENTAL else (SET,):
                            config = entry if key == ALTER else {**entry, "config_operation": operation}
                            resource = {"resource_type": TOPIC, "resource_name": "t", "configs": [config]}
                            for is_trial in (True, False):
                                answer = await node.ask(key, version, resources=[resource], validate_only=is_trial)
                                assert answer.responses[0].error_code is ErrorCode.invalid_config, (policy, operation)
                                assert "cleanup.policy" in answer.responses[0].error_message
                                if operation == SET:
                                    assert "there is no compaction" in answer.responses[0].error_message
            assert topic.overrides == {}
            assert list(node.store.topics) == ["t"]

    trio.run(story)


def test_alter_configs_replaces_everything(tmp_path: Path) -> None:
    """AlterConfigs makes the topic's own settings exactly what the request says."""

    async def story() -> None:
        async with running(tmp_path) as node:
            topic = await node.engine.wait(node.store.create_topic("t", 1, {"retention.ms": "5000"}))
            for version in node.versions(ALTER):
                size = str(5000 + version)
                entries = [{"name": "segment.bytes", "value": size}]
                assert await change(node, ALTER, version, entries) is ErrorCode.none
                assert topic.overrides == {"segment.bytes": size}
            assert await change(node, ALTER, 2, [], validate_only=True) is ErrorCode.none
            assert topic.overrides == {"segment.bytes": size}

    trio.run(story)


def test_the_node_is_not_changed_over_the_network(tmp_path: Path) -> None:
    """Changing a setting of the node is refused, with a message that says so."""

    async def story() -> None:
        async with running(tmp_path) as node:
            entry = {"name": "num.partitions", "config_operation": SET, "value": "3"}
            resource = {"resource_type": BROKER, "resource_name": "0", "configs": [entry]}
            (answer,) = (await node.ask(INCREMENTAL, 1, resources=[resource], validate_only=False)).responses
            assert answer.error_code is ErrorCode.invalid_request
            assert "only topics" in answer.error_message

    trio.run(story)

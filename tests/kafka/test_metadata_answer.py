"""Metadata answers encoded by hand are those that the protocol's own schemas give."""

import uuid
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from logstore.kafka import codec
from logstore.kafka.metadata_answer import ShownCluster, ShownNode, ShownTopic, encode_metadata
from logstore.kafka.wire import build

TOPICS = (
    ShownTopic(0, "many", uuid.UUID(int=7), False, 130),
    ShownTopic(ErrorCode.unknown_topic_or_partition.value, "missing", None, False, 0),
    ShownTopic(0, "own", uuid.UUID(int=9), True, 1),
)


def by_schema(version: int, topics: list[ShownTopic]) -> bytes:
    """The answer as kio writes it."""
    partitions: Any = [
        [
            {
                "error_code": ErrorCode.none,
                "partition_index": index,
                "leader_id": 3,
                "leader_epoch": 0,
                "replica_nodes": (3,),
                "isr_nodes": (3,),
                "offline_replicas": (),
            }
            for index in range(topic.partitions)
        ]
        for topic in topics
    ]
    values = {
        "brokers": [{"node_id": 3, "host": "log.example", "port": 9092}],
        "cluster_id": "cluster",
        "controller_id": 3,
        "topics": [
            {
                "error_code": ErrorCode(topic.error),
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partitions": parts,
                "topic_authorized_operations": 5,
            }
            for topic, parts in zip(topics, partitions, strict=True)
        ],
        "cluster_authorized_operations": 6,
        "error_code": ErrorCode.none,
    }
    return b"".join(codec.encode(build(load_response_schema(3, version), values)))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", range(14))
def test_each_version_is_written_as_its_schema_says(version: int) -> None:
    """Byte for byte, with partitions and without, for topics that are there and for one that is not."""
    node, cluster = ShownNode(3, "log.example", 9092), ShownCluster("cluster", 6, 5)
    for topics in (list(TOPICS), []):
        answer = encode_metadata(version, node, cluster, topics)
        assert b"".join(answer.body) == by_schema(version, topics)
        assert answer.flexible_header == (version >= 9)


def test_a_topic_without_a_name_is_null_where_it_can_be() -> None:
    """A topic that is not found by its id has no name from version 12 on, and an empty one before."""
    unknown = [ShownTopic(ErrorCode.unknown_topic_id.value, None, uuid.UUID(int=1), False, 0)]
    node, cluster = ShownNode(3, "log.example", 9092), ShownCluster("cluster", 6, 5)
    for version in (10, 12, 13):
        assert b"".join(encode_metadata(version, node, cluster, unknown).body) == by_schema(version, unknown)

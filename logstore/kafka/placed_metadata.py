"""Encodes Metadata answers of a cluster: several brokers, and partitions that differ from each other.

Invariant: the bytes are those that kio would write; `logstore.kafka.metadata_answer` does the same for a host alone.

Source: Kafka protocol guide, Metadata.
"""

import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from logstore.cluster.placement import NO_NODE, Node, Placed
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.framing import Writer
from logstore.kafka.metadata_answer import FIRST_FLEXIBLE, ShownCluster, ShownTopic

_NIL: Final = uuid.UUID(int=0)
_LEADER_NOT_AVAILABLE: Final = ErrorCode.leader_not_available.value


class PlacedTopic(NamedTuple):
    """A topic as an answer shows it; `partitions` is empty if it has an error."""

    shown: ShownTopic
    partitions: Sequence[Placed]


def controller_of(nodes: Sequence[Node]) -> int:
    """The node that clients take for the controller: any can do what they ask of it."""
    return min((node.node_id for node in nodes), default=NO_NODE)


def encode_placed(
    version: int, nodes: Sequence[Node], cluster: ShownCluster, topics: Sequence[PlacedTopic]
) -> EncodedAnswer:
    """The answer to a Metadata request of a version from 0 to 13."""
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)
    if version >= 3:
        writer.int32(0)
    writer.count(len(nodes))
    for node in nodes:
        writer.int32(node.node_id)
        writer.string(node.host)
        writer.int32(node.port)
        if version >= 1:
            writer.string(node.rack)
        writer.tags()
    if version >= 2:
        writer.string(cluster.cluster_id)
    if version >= 1:
        writer.int32(controller_of(nodes))
    writer.count(len(topics))
    for topic in topics:
        _topic(writer, version, cluster, topic)
    if 8 <= version <= 10:
        writer.int32(cluster.cluster_operations)
    if version >= 13:
        writer.int16(0)
    writer.tags()
    return EncodedAnswer(writer.finish(), version >= FIRST_FLEXIBLE)


def _topic(writer: Writer, version: int, cluster: ShownCluster, topic: PlacedTopic) -> None:
    shown = topic.shown
    writer.int16(shown.error)
    writer.string(shown.name if version >= 12 else shown.name or "")
    if version >= 10:
        writer.raw((shown.topic_id or _NIL).bytes)
    if version >= 1:
        writer.int8(shown.is_internal)
    writer.count(len(topic.partitions))
    for index, placed in enumerate(topic.partitions):
        _partition(writer, version, index, placed)
    if version >= 8:
        writer.int32(cluster.topic_operations)
    writer.tags()


def _partition(writer: Writer, version: int, index: int, placed: Placed) -> None:
    writer.int16(_LEADER_NOT_AVAILABLE if placed.leader == NO_NODE else 0)
    writer.int32(index)
    writer.int32(placed.leader)
    if version >= 7:
        writer.int32(placed.epoch)
    for nodes in (placed.replicas, placed.in_sync):
        _nodes(writer, nodes)
    if version >= 5:
        _nodes(writer, placed.offline)
    writer.tags()


def _nodes(writer: Writer, nodes: Sequence[int]) -> None:
    writer.count(len(nodes))
    for node_id in nodes:
        writer.int32(node_id)

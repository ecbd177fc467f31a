"""Encodes Metadata answers of a cluster: several brokers, and partitions that differ from each other.

Invariant: the bytes are those that kio would write. `metadata_answer` has all but the partitions, for a host alone too.

Source: Kafka protocol guide, Metadata.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from logstore.cluster.members.placement import NO_NODE, Node, Placed
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.framing import Writer
from logstore.kafka.metadata_answer import ShownCluster, ShownNode, ShownTopic, encode_answer

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
    shown_nodes = [ShownNode(*node) for node in nodes]
    shown = [(topic.shown, partial(_partitions, version, topic.partitions)) for topic in topics]
    return encode_answer(version, shown_nodes, controller_of(nodes), cluster, shown)


def _partitions(version: int, partitions: Sequence[Placed], writer: Writer) -> None:
    writer.count(len(partitions))
    for index, placed in enumerate(partitions):
        _partition(writer, version, index, placed)


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

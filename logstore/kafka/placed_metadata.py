"""Encodes Metadata answers of a cluster: several brokers, and partitions that differ from each other.

Many partitions differ by their numbers alone: the bytes behind the number are kept for the last _KEPT that differ.

Invariant: the bytes are those that kio would write. `metadata_answer` has all but the partitions, for a host alone too.

Source: Kafka protocol guide, Metadata.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from logstore.cluster.members.places import NO_NODE, Node, Placed
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.framing import Writer
from logstore.kafka.metadata_answer import FIRST_FLEXIBLE, ShownCluster, ShownNode, ShownTopic, encode_answer

_LEADER_NOT_AVAILABLE: Final = ErrorCode.leader_not_available.value
_KEPT: Final = 4096
"""Of some 50 bytes each."""
_BEGIN = struct.Struct(">hi")
"""Error and number of a partition."""


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
    begin, rest_of = _BEGIN.pack, _rest
    parts: list[bytes] = []
    for index, placed in enumerate(partitions):
        parts.append(begin(_LEADER_NOT_AVAILABLE if placed.leader == NO_NODE else 0, index))
        parts.append(rest_of(version, placed))
    writer.raw(b"".join(parts))


@lru_cache(_KEPT)
def _rest(version: int, placed: Placed) -> bytes:
    """The bytes of a partition behind its number."""
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)
    writer.int32(placed.leader)
    if version >= 7:
        writer.int32(placed.epoch)
    for nodes in (placed.replicas, placed.in_sync):
        _nodes(writer, nodes)
    if version >= 5:
        _nodes(writer, placed.offline)
    writer.tags()
    return b"".join(writer.finish())


def _nodes(writer: Writer, nodes: Sequence[int]) -> None:
    writer.count(len(nodes))
    for node_id in nodes:
        writer.int32(node_id)

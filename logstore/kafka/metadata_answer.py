"""Encodes Metadata answers by hand: a client of a sidecar with many partitions asks for all of them, and often.

The partitions of a topic on a host alone look the same but for their numbers, so their bytes depend on the version, on
how many there are and on the node alone; those of the last few topics asked for are kept. `placed_metadata` writes the
partitions of a cluster.

Invariants: the bytes are those that kio would write; what is kept is bounded by `_KEPT` topics of at most
`MAX_PARTITIONS` partitions.

Source: Kafka protocol guide, Metadata.
"""

import struct
import uuid
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from logstore.format.batch import LEADER_EPOCH
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.framing import Writer

FIRST_FLEXIBLE: Final = 9
_KEPT: Final = 8
"""A topic of 10,000 partitions has 310 KB: a few large topics are kept, and many small ones cost little to encode."""
_INDEX = struct.Struct(">i")
_NIL = uuid.UUID(int=0)


class ShownTopic(NamedTuple):
    """A topic as an answer shows it; `error` is a Kafka error code."""

    error: int
    name: str | None
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: int


class ShownNode(NamedTuple):
    """A host, under the address of the listener that the client uses."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class ShownCluster(NamedTuple):
    """The fields of the cluster; operations are bit fields, -2^31 if the client did not ask for them."""

    cluster_id: str
    cluster_operations: int
    topic_operations: int


WritePartitions = Callable[[Writer], None]
"""Writes the partitions of a topic, with their number in front."""


def encode_metadata(
    version: int, node: ShownNode, cluster: ShownCluster, topics: Sequence[ShownTopic]
) -> EncodedAnswer:
    """The answer of a host alone to a Metadata request of a version from 0 to 13."""

    def partitions_of(topic: ShownTopic) -> WritePartitions:
        def write(writer: Writer) -> None:
            writer.count(topic.partitions)
            writer.raw(_partitions(version, node.node_id, topic.partitions))

        return write

    return encode_answer(version, [node], node.node_id, cluster, [(topic, partitions_of(topic)) for topic in topics])


def encode_answer(
    version: int,
    nodes: Sequence[ShownNode],
    controller_id: int,
    cluster: ShownCluster,
    topics: Sequence[tuple[ShownTopic, WritePartitions]],
) -> EncodedAnswer:
    """The answer to a Metadata request of a version from 0 to 13, of any number of hosts."""
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
        writer.int32(controller_id)
    writer.count(len(topics))
    for topic, write_partitions in topics:
        writer.int16(topic.error)
        writer.string(topic.name if version >= 12 else topic.name or "")
        if version >= 10:
            writer.raw((topic.topic_id or _NIL).bytes)
        if version >= 1:
            writer.int8(topic.is_internal)
        write_partitions(writer)
        if version >= 8:
            writer.int32(cluster.topic_operations)
        writer.tags()
    if 8 <= version <= 10:
        writer.int32(cluster.cluster_operations)
    if version >= 13:
        writer.int16(0)
    writer.tags()
    return EncodedAnswer(writer.finish(), version >= FIRST_FLEXIBLE)


@lru_cache(_KEPT)
def _partitions(version: int, node_id: int, count: int) -> bytes:
    """The bytes of partitions 0 to `count` - 1."""
    nodes = Writer(flexible=version >= FIRST_FLEXIBLE)
    nodes.int32(node_id)
    if version >= 7:
        nodes.int32(LEADER_EPOCH)
    for _ in ("replicas", "in sync"):
        nodes.count(1)
        nodes.int32(node_id)
    if version >= 5:
        nodes.count(0)
    nodes.tags()
    # Between two partitions' numbers stand the end of the first and the error code of the second: always the same.
    no_error = b"\0\0"
    rest = b"".join(nodes.finish())
    return no_error + (rest + no_error).join(map(_INDEX.pack, range(count))) + rest if count else b""

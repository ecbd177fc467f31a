"""The current leader in answers: a client that asked the wrong host of a cluster is told the right one at once.

Produce from version 10 on and Fetch from version 16 on name, with NOT_LEADER_OR_FOLLOWER, the partition's leader and
its epoch, and the leaders' addresses, in tagged fields. Invariants: what is told is what Metadata tells at that moment;
where nobody leads, or a host is alone, nothing is told, and the client asks for metadata as before.

Source: KIP-951.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from logstore.cluster.members.places import NO_NODE, Node
from logstore.kafka.framing import Writer
from logstore.kafka.topic_keys import TopicKey, find_topic
from logstore.log.served import ServedStore

if TYPE_CHECKING:
    from logstore.cluster.members.placement import Placement

NOT_LEADER: Final = ErrorCode.not_leader_or_follower.value
_LEADER_BYTES: Final = 9
"""Two numbers, and no tagged fields of its own."""


class CurrentLeader(NamedTuple):
    """Who leads a partition, since which epoch."""

    node_id: int
    epoch: int


class Leaders:
    """Who leads what, as the clients of one listener are told; `host` and `port` are what it advertises here."""

    def __init__(self, store: ServedStore, placement: Placement, host: str, port: int) -> None:
        self._store = store
        self._placement = placement
        self._listener = (host, port)

    def of(self, topic: TopicKey, partition: int) -> CurrentLeader | None:
        """The leader of a partition, None if nobody leads it."""
        found = find_topic(self._store, topic)
        if found is None:
            return None
        placed = self._placement.placed(found.topic_id, partition)
        return None if placed.leader == NO_NODE else CurrentLeader(placed.leader, placed.epoch)

    def endpoints(self, leaders: Iterable[CurrentLeader]) -> Sequence[Node]:
        """The addresses of leaders, each once."""
        wanted = {leader.node_id for leader in leaders}
        return [node for node in self._placement.nodes(*self._listener) if node.node_id in wanted]


def write_leader(writer: Writer, tag: int, leader: CurrentLeader | None) -> None:
    """End a partition's answer: with its leader as the only tagged field, or with none."""
    if leader is None:
        writer.tags()
        return
    writer.uvarint(1)
    writer.uvarint(tag)
    writer.uvarint(_LEADER_BYTES)
    writer.int32(leader.node_id)
    writer.int32(leader.epoch)
    writer.tags()


def write_endpoints(writer: Writer, nodes: Sequence[Node]) -> None:
    """End an answer: with the addresses of leaders as the only tagged field (0), or with none."""
    if not nodes:
        writer.tags()
        return
    endpoints = Writer(flexible=True)
    endpoints.count(len(nodes))
    for node in nodes:
        endpoints.int32(node.node_id)
        endpoints.string(node.host)
        endpoints.int32(node.port)
        endpoints.string(node.rack)
        endpoints.tags()
    encoded = b"".join(endpoints.finish())
    writer.uvarint(1)
    writer.uvarint(0)
    writer.uvarint(len(encoded))
    writer.raw(encoded)

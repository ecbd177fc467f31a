"""Where the streams of a cluster are, as its clients are told: hosts as Kafka's brokers, and who leads what.

Invariants: every host says the same, as soon as it knows the same of the metadata store. Without a placement a sidecar
is alone: it is the only broker, and leads every partition.
"""

import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

NO_NODE = -1


class Node(NamedTuple):
    """A host, under the address of the listener that the client uses."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Placed(NamedTuple):
    """A partition: node ids of its leader (NO_NODE: nobody leads it now), of the members of its newest chunk, of those
    of them that are alive, and of those that are not.
    """

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


class Placement(Protocol):
    """What a host knows of the cluster."""

    def nodes(self, host: str, port: int, /) -> Sequence[Node]:
        """The hosts that are alive; `host` and `port` are what the client's listener advertises here."""

    def placed(self, topic_id: uuid.UUID, partition: int, /) -> Placed:
        """Where a partition is."""

    def coordinator(self, host: str, port: int, /) -> Node | None:
        """The coordinator of all groups; None if nobody can be it now."""

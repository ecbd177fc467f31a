"""What Kafka's clients are told of where a stream is; `placement` finds it out.

Invariant: this module loads nothing of the cluster: a sidecar that is alone answers with it, too.
"""

from typing import NamedTuple

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

"""Where the streams of a cluster are, as Kafka's clients are told: hosts as brokers, and who leads what.

Invariants:
* A host is shown as long as its lease lasts. A partition's leader is the host that owns its stream by the newest
  registration known here, if that host is alive.
* The host that answers is always shown, also when its lease has ended or it has not joined yet: a client that hears of
  no broker takes the answer for half of one, and librdkafka then asks nobody again for minutes.
* Node ids of hosts that are gone are remembered: as many as there were hosts since the start.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from logstore.base.addresses import parse_address
from logstore.base.errors import AddressError
from logstore.base.metadata import schema
from logstore.cluster.view import KnownHead, stream_name

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


class PlacingHost(Protocol):
    """What is asked of a host (`logstore.cluster.host`)."""

    def owner_of(self, stream: str, /) -> str | None:
        """The host that owns a stream and lives."""

    def head(self, stream: str, /) -> KnownHead | None:
        """The head of a stream's registration."""


class Placement:
    """See the module. `addresses` are this host's listeners by name, as all hosts name theirs; `groups` gives the id of
    the topic of groups, or has it made; `node_id` is this host's.
    """

    def __init__(
        self,
        host: PlacingHost,
        members: Callable[[], Mapping[str, schema.Member]],
        addresses: Mapping[str, str],
        groups: Callable[[], uuid.UUID | None],
        node_id: int,
    ) -> None:
        self._host = host
        self._node_id = node_id
        self._groups = groups
        self._members = members
        self._addresses = addresses
        self._node_ids: dict[str, int] = {}

    def nodes(self, host: str, port: int) -> Sequence[Node]:
        """The hosts that are alive, and this one; `host` and `port` are what the client's listener advertises here."""
        listener = self._listener(host, port)
        nodes = []
        for name, member in sorted(self._members().items()):
            self._node_ids[name] = member.node_id
            text = member.addresses.get(listener) or next(iter(member.addresses.values()), "")
            try:
                address = parse_address(text)
            except AddressError:
                continue  # it serves no clients
            nodes.append(Node(member.node_id, address.host, address.port, member.rack or None))
        if all(node.node_id != self._node_id for node in nodes):
            nodes.append(Node(self._node_id, host, port))
        return nodes

    def _listener(self, host: str, port: int) -> str:
        """The name of the listener with this address, or else with this port."""
        for name, text in self._addresses.items():
            if text == f"{host}:{port}":
                return name
        return next((name for name, text in self._addresses.items() if text.endswith(f":{port}")), "")

    def placed(self, topic_id: uuid.UUID, partition: int) -> Placed:
        """Where a partition is."""
        stream = stream_name(topic_id.hex, partition)
        known = self._host.head(stream)
        if known is None:
            return Placed(NO_NODE, 0, (), ())
        head, live = known.head, self._members()
        self._node_ids.update((name, member.node_id) for name, member in live.items())
        owner = self._host.owner_of(stream)
        leader = NO_NODE if owner is None else self._node_ids.get(owner, NO_NODE)
        members = [] if head.open_chunk is None else head.open_chunk.members
        here = [member for member in members if member.host in live and live[member.host].disk == member.disk]
        away = [member for member in members if member not in here and member.host in self._node_ids]
        in_sync = tuple(self._node_ids[member.host] for member in here)
        offline = tuple(self._node_ids[member.host] for member in away)
        replicas = in_sync + offline
        if not replicas and leader != NO_NODE:
            replicas = in_sync = (leader,)  # clients do not expect a leader without replicas
        return Placed(leader, head.epoch, replicas, in_sync, offline)

    def coordinator(self, host: str, port: int) -> Node | None:
        """The coordinator of all groups: who leads the topic that keeps their offsets; None if nobody does now."""
        topic_id = self._groups()
        if topic_id is None:
            return None
        leader = self.placed(topic_id, 0).leader
        return next((node for node in self.nodes(host, port) if node.node_id == leader), None)

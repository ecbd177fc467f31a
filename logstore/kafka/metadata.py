"""Describes the node, its topics and coordinators: Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator.

Invariants: a sidecar that is alone is the only node, leads every partition and coordinates every group, under the
address that the client's listener advertises; in a cluster, `Broker.placement` says who does. A topic is created on
first use only if both the setting and the request allow it, and is answered only once it is durable. Transactions have
no coordinator: a look-up by transactional id is refused with an error that every client takes as final
(`_no_transactions`).

Sources: Kafka protocol guide; KIP-699 (FindCoordinator in batches), KIP-966 (DescribeTopicPartitions).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.describe_topic_partitions.v0.response import Cursor
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32
from kio.static.protocol import ResponsePayload

from logstore.cluster.members.places import Node, Placed
from logstore.errors import CairnError
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.errors import error_code
from logstore.kafka.metadata_answer import ShownCluster, ShownNode, ShownTopic, encode_metadata
from logstore.kafka.pace import LARGE_PARTS, Pace, Walkers
from logstore.kafka.placed_metadata import PlacedTopic, controller_of, encode_placed
from logstore.kafka.wire import respond
from logstore.log.served import ServedStream, ServedTopic

if TYPE_CHECKING:
    from logstore.cluster.members.placement import Placement

GROUP_COORDINATOR, TRANSACTION_COORDINATOR = 0, 1
BROKERS_ENDPOINT = 1
FIRST_WITH_MANY_KEYS = 4
"""The version of FindCoordinator from which on a request has any number of keys (KIP-699)."""
MAX_PARTITIONS_PER_ANSWER = 2000
"""Kafka's max.request.partition.size.limit: a longer DescribeTopicPartitions answer continues with a cursor."""
NO_GROUPS = "a cluster has no coordinator of groups yet, or none at the moment; assign partitions instead"
NO_TRANSACTIONS = "transactions are not supported here; leave transactional.id unset (idempotence works without it)"
_NOT_ASKED = -(2**31)
_TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: every client may do all of them."""
_CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""
_NIL = uuid.UUID(int=0)


class _Wanted(NamedTuple):
    """A topic that a client asks about: by name, or by id; then its name says nothing, and is left out, so that one
    topic is not answered under many names.
    """

    name: str | None
    topic_id: uuid.UUID | None

    @classmethod
    def of(cls, part: Any) -> "_Wanted":
        """The topic that a part of a request means."""
        topic_id = getattr(part, "topic_id", None)
        return cls(part.name, None) if topic_id is None or topic_id == _NIL else cls(None, topic_id)


class MetadataHandlers:
    """Handlers of requests about nodes, topics and coordinators."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pace = Pace()

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [
            Api(3, 0, 13, self.metadata),
            Api(10, 0, 6, self.find_coordinator),
            Api(60, 0, 2, self.describe_cluster),
            Api(75, 0, 0, self.describe_topic_partitions),
        ]

    # ---- nodes

    def _node_id(self) -> int:
        return self._broker.engine.store.node_id

    async def describe_cluster(self, request: Any, caller: Caller) -> ResponsePayload:
        """DescribeCluster 0 to 2."""
        if getattr(request, "endpoint_type", BROKERS_ENDPOINT) != BROKERS_ENDPOINT:
            message = "this is a broker's endpoint, not a controller's"
            return await respond(request, {"error_code": ErrorCode.mismatched_endpoint_type, "error_message": message})
        nodes = self._nodes(caller)
        wants_operations = request.include_cluster_authorized_operations
        return await respond(
            request,
            {
                "error_code": ErrorCode.none,
                "cluster_id": self._broker.engine.store.cluster_id,
                "controller_id": controller_of(nodes),
                "brokers": [
                    {"broker_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
                    for node in nodes
                ],
                "cluster_authorized_operations": _CLUSTER_OPERATIONS if wants_operations else _NOT_ASKED,
            },
        )

    def _nodes(self, caller: Caller) -> Sequence[Node]:
        """All nodes, under the addresses that a client can use."""
        placement = self._broker.placement
        if placement is None:
            return [Node(self._node_id(), caller.advertised_host, caller.advertised_port)]
        return placement.nodes(caller.advertised_host, caller.advertised_port)

    async def find_coordinator(self, request: Any, caller: Caller) -> ResponsePayload:
        """FindCoordinator 0 to 6: one key up to version 3, any number from version 4."""
        key_type = getattr(request, "key_type", GROUP_COORDINATOR)
        keys = request.coordinator_keys if request.__version__ >= FIRST_WITH_MANY_KEYS else (request.key,)
        node = await self._of_groups(caller) if key_type == GROUP_COORDINATOR else None
        answers: list[Mapping[str, Any]] = []
        for key in keys:
            await self._pace.step()
            answers.append({"key": key, **self._coordinator(key, key_type, node, request.__version__)})
        if request.__version__ >= FIRST_WITH_MANY_KEYS:
            return await respond(request, {"coordinators": answers})
        return await respond(request, answers[0])

    async def _of_groups(self, caller: Caller) -> Node | None:
        """Who coordinates all groups; None: nobody does now."""
        host, port = caller.advertised_host, caller.advertised_port
        placement, store = self._broker.placement, self._broker.engine.store
        if placement is None:
            return Node(self._node_id(), host, port)
        return await placement.coordinator(host, port, store.topic_by_id)

    def _coordinator(self, key: str, key_type: int, node: Node | None, version: int) -> Mapping[str, Any]:
        nowhere = {"node_id": -1, "host": "", "port": -1}
        if key_type == TRANSACTION_COORDINATOR:
            return {"error_code": _no_transactions(version), "error_message": NO_TRANSACTIONS, **nowhere}
        if key_type != GROUP_COORDINATOR:
            message = f"there are no coordinators of type {key_type} here, only of groups (0)"
            return {"error_code": ErrorCode.invalid_request, "error_message": message, **nowhere}
        if not key:
            message = "a group id must not be empty"
            return {"error_code": ErrorCode.invalid_group_id, "error_message": message, **nowhere}
        if node is None:
            return {"error_code": ErrorCode.coordinator_not_available, "error_message": NO_GROUPS, **nowhere}
        here = {"node_id": node.node_id, "host": node.host, "port": node.port}
        return {"error_code": ErrorCode.none, "error_message": None, **here}

    # ---- topics

    async def metadata(self, request: Any, caller: Caller) -> EncodedAnswer:
        """Metadata 0 to 13."""
        version = request.__version__
        wants_all = request.topics is None or (version == 0 and not request.topics)
        may_create = getattr(request, "allow_auto_topic_creation", True)
        topics: list[ShownTopic] = []
        if wants_all:
            for topic in list(self._broker.engine.store.topics.values()):
                await self._pace.step()
                topics.append(_shown(topic))
        else:
            wanted: dict[_Wanted, None] = {}
            for part in request.topics:
                await self._pace.step()
                wanted[_Wanted.of(part)] = None
            for one in wanted:
                await self._pace.step()
                topics.append(await self._look_up(one, may_create=may_create))
        wants_cluster = getattr(request, "include_cluster_authorized_operations", False)
        wants_topics = getattr(request, "include_topic_authorized_operations", False)
        cluster = ShownCluster(
            self._broker.engine.store.cluster_id,
            _CLUSTER_OPERATIONS if wants_cluster else _NOT_ASKED,
            _TOPIC_OPERATIONS if wants_topics else _NOT_ASKED,
        )
        placement = self._broker.placement
        if placement is not None:
            if not wants_all:
                await placement.settle(self._named(topics), self._pace.step)
            placed = [await self._placed(placement, topic) for topic in topics]
            work = partial(encode_placed, version, self._nodes(caller), cluster, placed)
        else:
            node = ShownNode(self._node_id(), caller.advertised_host, caller.advertised_port)
            work = partial(encode_metadata, version, node, cluster, topics)
        return await Walkers.run(work) if sum(topic.partitions + 1 for topic in topics) > LARGE_PARTS else work()

    def _named(self, topics: Sequence[ShownTopic]) -> list[ServedTopic]:
        """The topics that exist, of those that are shown."""
        ids = [topic.topic_id for topic in topics if topic.topic_id is not None]
        return [found for each in ids if (found := self._broker.engine.store.topic_by_id(each)) is not None]

    async def _placed(self, placement: Placement, shown: ShownTopic) -> PlacedTopic:
        topic_id = shown.topic_id
        if shown.error or topic_id is None:
            return PlacedTopic(shown, ())
        return PlacedTopic(shown, await placement.places(topic_id, shown.partitions, self._pace.step))

    async def _look_up(self, wanted: _Wanted, *, may_create: bool) -> ShownTopic:
        """A topic as Metadata shows it; a missing topic is created if that is allowed."""
        engine, settings = self._broker.engine, self._broker.settings
        if wanted.topic_id is not None:
            found = engine.store.topic_by_id(wanted.topic_id)
            if found is not None:
                return _shown(found)
            return ShownTopic(ErrorCode.unknown_topic_id.value, wanted.name, wanted.topic_id, False, 0)
        name = wanted.name or ""
        topic = engine.store.topics.get(name)
        if topic is not None:
            return _shown(topic)
        error = ErrorCode.unknown_topic_or_partition
        try:
            if may_create and settings.auto_create_topics:
                return _shown(await engine.wait(engine.store.create_topic(name, settings.default_partitions, {})))
            engine.store.check_topic(name, settings.default_partitions, {})
        except CairnError as refusal:
            error = error_code(refusal)
        return ShownTopic(error.value, name, None, False, 0)

    async def describe_topic_partitions(self, request: Any, _: Caller) -> ResponsePayload:
        """DescribeTopicPartitions 0: topics by name, at most MAX_PARTITIONS_PER_ANSWER partitions at a time."""
        store = self._broker.engine.store
        names = sorted({part.name for part in request.topics}) if request.topics else sorted(store.topics)
        start_name, start_partition = "", 0
        if request.cursor is not None:
            start_name, start_partition = request.cursor.topic_name, max(0, request.cursor.partition_index)
        room = max(1, min(request.response_partition_limit, MAX_PARTITIONS_PER_ANSWER))
        answers: list[Mapping[str, Any]] = []
        following: Cursor | None = None
        for name in names:
            await self._pace.step()
            if name < start_name:
                continue
            first = start_partition if name == start_name else 0
            if room == 0:
                following = Cursor(topic_name=TopicName(name), partition_index=i32(first))
                break
            topic = store.topics.get(name)
            if topic is None:
                answers.append(_missing(name, ErrorCode.unknown_topic_or_partition))
                continue
            found = topic.partitions[first : first + room]
            placement = self._broker.placement
            if placement is None:
                partitions = _partitions(found, self._node_id())
            else:
                places = await placement.places(topic.topic_id, first + len(found), self._pace.step)
                partitions = _placed_partitions(places[first:], first)
            room -= len(partitions)
            shown = {
                "error_code": ErrorCode.none,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.internal,
                "partitions": partitions,
                "topic_authorized_operations": _TOPIC_OPERATIONS,
            }
            answers.append(shown)
            if first + len(partitions) < len(topic.partitions):
                following = Cursor(topic_name=TopicName(name), partition_index=i32(first + len(partitions)))
                break
        return await respond(request, {"topics": answers, "next_cursor": following})


def _no_transactions(version: int) -> ErrorCode:
    """The error for who looks for a coordinator of transactions: final for the clients of this version, and one at
    which they show the message that comes with it. The Java client has words of its own for an authorization that
    failed, and shows the message of any other error; librdkafka, which asks in an older version, tries again for ever
    after other errors.
    """
    if version >= FIRST_WITH_MANY_KEYS:
        return ErrorCode.unsupported_version
    return ErrorCode.transactional_id_authorization_failed


def _shown(topic: ServedTopic) -> ShownTopic:
    return ShownTopic(ErrorCode.none.value, topic.name, topic.topic_id, topic.internal, len(topic.partitions))


def _partitions(streams: Sequence[ServedStream], node_id: int) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "error_code": ErrorCode.none,
            "partition_index": stream.partition,
            "leader_id": node_id,
            "leader_epoch": stream.leader_epoch,
            "replica_nodes": (node_id,),
            "isr_nodes": (node_id,),
            "eligible_leader_replicas": (),
            "last_known_elr": (),
            "offline_replicas": (),
        }
        for stream in streams
    ]


def _placed_partitions(places: Sequence[Placed], first: int) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "error_code": ErrorCode.none if placed.leader >= 0 else ErrorCode.leader_not_available,
            "partition_index": partition,
            "leader_id": placed.leader,
            "leader_epoch": placed.epoch,
            "replica_nodes": placed.replicas,
            "isr_nodes": placed.in_sync,
            "eligible_leader_replicas": (),
            "last_known_elr": (),
            "offline_replicas": placed.offline,
        }
        for partition, placed in enumerate(places, first)
    ]


def _missing(name: str, error: ErrorCode) -> Mapping[str, Any]:
    shown: dict[str, Any] = {"error_code": error, "name": name, "topic_id": None, "partitions": []}
    return {**shown, "topic_authorized_operations": _NOT_ASKED}

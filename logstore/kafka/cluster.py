"""What tools ask of a cluster: ElectLeaders, DescribeQuorum, reassignments, log directories, and what has settings.

Invariants: the answers are those of a Kafka cluster of one node. It leads every partition, so that no election is
needed; it is a quorum of one; a partition's only replica is on it, in its only directory, so that a reassignment to it
changes nothing, and any other is refused. In a cluster a reassignment gives a topic more copies, wherever they go.
There is no log of metadata as Kafka has it: the quorum's offsets are 0.

Sources: Kafka protocol guide; KIP-460 (ElectLeaders), KIP-595 and KIP-853 (DescribeQuorum), KIP-455 (reassignments),
KIP-113 (AlterReplicaLogDirs), KIP-1142 (ListConfigResources).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.errors import CairnError
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.configs import BROKER, TOPIC
from logstore.kafka.errors import error_code
from logstore.kafka.pace import Pace
from logstore.kafka.topics import LOG_DIRECTORY
from logstore.kafka.wire import respond

QUORUM_TOPIC, QUORUM_PARTITION = "__cluster_metadata", 0
_QUORUM_EPOCH = _QUORUM_OFFSET = 0
_CONTROLLER_LISTENER = "CONTROLLER"
PREFERRED, UNCLEAN = 0, 1
"""Kinds of elections."""
BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
"""Kinds of resources that have settings in Kafka, and none here."""
_KNOWN_RESOURCES = frozenset((TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP))


class ClusterHandlers:
    """Handlers of requests about a cluster as a whole."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pace = Pace()

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [
            Api(34, 1, 2, self.alter_replica_log_dirs),
            Api(43, 0, 2, self.elect_leaders),
            Api(45, 0, 1, self.alter_partition_reassignments),
            Api(55, 0, 2, self.describe_quorum),
            Api(74, 0, 1, self.list_config_resources),
        ]

    def _node_id(self) -> int:
        return self._broker.engine.store.node_id

    def _missing(self, topic: str, partition: int) -> Mapping[str, Any] | None:
        """Why there is no such partition; None if there is."""
        try:
            self._broker.engine.store.stream(topic, partition)
        except CairnError as error:
            return {"error_code": error_code(error), "error_message": str(error)}
        return None

    # ---- elections and the quorum

    async def elect_leaders(self, request: Any, _: Caller) -> ResponsePayload:
        """ElectLeaders 0 to 2: ELECTION_NOT_NEEDED for each named partition; of all partitions, none needs one."""
        kind = getattr(request, "election_type", PREFERRED)
        code = ErrorCode.none if kind in (PREFERRED, UNCLEAN) else ErrorCode.invalid_request
        results: list[Mapping[str, Any]] = []
        for wanted in request.topic_partitions or ():
            partitions: list[Mapping[str, Any]] = []
            for partition in wanted.partitions:
                await self._pace.step()
                if code is not ErrorCode.none:
                    message = f"election_type={kind}: allowed are {PREFERRED} (preferred) and {UNCLEAN} (unclean)"
                    outcome: Mapping[str, Any] = {"error_code": code, "error_message": message}
                else:
                    outcome = self._missing(wanted.topic, partition) or {
                        "error_code": ErrorCode.election_not_needed,
                        "error_message": "Leader election not needed for topic partition.",  # as Kafka says it
                    }
                partitions.append({"partition_id": partition, **outcome})
            results.append({"topic": wanted.topic, "partition_result": partitions})
        return await respond(request, {"error_code": code, "replica_election_results": results})

    async def describe_quorum(self, request: Any, caller: Caller) -> ResponsePayload:
        """DescribeQuorum 0 to 2."""
        topics: list[Mapping[str, Any]] = []
        is_shown = False
        for wanted in request.topics:
            partitions: list[Mapping[str, Any]] = []
            for part in wanted.partitions:
                await self._pace.step()
                if (wanted.topic_name, part.partition_index) == (QUORUM_TOPIC, QUORUM_PARTITION):
                    is_shown = True
                    partitions.append(self._quorum())
                else:
                    message = f"the only quorum is that of {QUORUM_TOPIC}-{QUORUM_PARTITION}"
                    code = ErrorCode.unknown_topic_or_partition
                    partitions.append(
                        {"partition_index": part.partition_index, "error_code": code, "error_message": message}
                    )
            topics.append({"topic_name": wanted.topic_name, "partitions": partitions})
        listener = {"name": _CONTROLLER_LISTENER, "host": caller.advertised_host, "port": caller.advertised_port}
        nodes = [{"node_id": self._node_id(), "listeners": [listener]}] if is_shown else []
        return await respond(request, {"error_code": ErrorCode.none, "topics": topics, "nodes": nodes})

    def _quorum(self) -> Mapping[str, Any]:
        now_ms = self._broker.clock.wall_ms()
        voter = {
            "replica_id": self._node_id(),
            "log_end_offset": _QUORUM_OFFSET,
            "last_fetch_timestamp": now_ms,
            "last_caught_up_timestamp": now_ms,
        }
        return {
            "partition_index": QUORUM_PARTITION,
            "error_code": ErrorCode.none,
            "leader_id": self._node_id(),
            "leader_epoch": _QUORUM_EPOCH,
            "high_watermark": _QUORUM_OFFSET,
            "current_voters": [voter],
            "observers": [],
        }

    # ---- where replicas are

    async def alter_partition_reassignments(self, request: Any, caller: Caller) -> ResponsePayload:
        """AlterPartitionReassignments 0 and 1: to this node changes nothing, to others is refused. In a cluster all
        partitions of a topic, with as many nodes each as it is to have copies, raise that number, wherever these go.
        """
        responses: list[Mapping[str, Any]] = []
        for topic in request.topics:
            partitions: list[Mapping[str, Any]] = []
            raised = await self._raised(topic, caller)
            if raised is not None:
                partitions = [{"partition_index": part.partition_index, **raised} for part in topic.partitions]
                responses.append({"name": topic.name, "partitions": partitions})
                continue
            for part in topic.partitions:
                await self._pace.step()
                outcome = self._missing(topic.name, part.partition_index) or self._reassigned(part.replicas)
                partitions.append({"partition_index": part.partition_index, **outcome})
            responses.append({"name": topic.name, "partitions": partitions})
        return await respond(
            request,
            {
                "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
                "error_code": ErrorCode.none,
                "error_message": None,
                "responses": responses,
            },
        )

    async def _raised(self, asked: Any, caller: Caller) -> Mapping[str, Any] | None:
        """The outcome for all partitions of a topic, if they are to have more copies; None: they are not."""
        placement, topic = self._broker.placement, self._broker.engine.store.topics.get(asked.name)
        copies, parts = None if placement is None else placement.topics, asked.partitions
        sizes = {0 if part.replicas is None else len(part.replicas) for part in parts}
        if placement is None or copies is None or topic is None or len(sizes) != 1:
            return None
        if min(sizes) <= copies.copies(asked.name):
            return None
        if sorted(part.partition_index for part in parts) != list(range(len(topic.partitions))):
            message = f"name all {len(topic.partitions)} partitions: the number of copies is that of the topic"
            return {"error_code": ErrorCode.invalid_replica_assignment, "error_message": message}
        known = {node.node_id for node in placement.nodes(caller.advertised_host, caller.advertised_port)}
        for part in parts:
            if len({*part.replicas} & known) < len(part.replicas):
                message = f"replicas={list(part.replicas)[:10]}: the hosts that live, {sorted(known)[:10]}, once each"
                return {"error_code": ErrorCode.invalid_replica_assignment, "error_message": message}
        try:
            await self._broker.engine.wait(copies.raise_replicas(asked.name, min(sizes)))
        except CairnError as error:
            return {"error_code": error_code(error), "error_message": str(error)}
        return {"error_code": ErrorCode.none, "error_message": None}

    def _reassigned(self, replicas: Sequence[int] | None) -> Mapping[str, Any]:
        """The outcome for a partition; None instead of replicas cancels a reassignment, and none is under way."""
        if replicas is None:
            message = "no reassignment is in progress"
            return {"error_code": ErrorCode.no_reassignment_in_progress, "error_message": message}
        if self._broker.placement is not None:
            message = "the cluster places replicas itself, and does not take assignments"
            return {"error_code": ErrorCode.invalid_replica_assignment, "error_message": message}
        if tuple(replicas) != (self._node_id(),):
            message = f"replicas={list(replicas)[:10]}: there is one node, {self._node_id()}, named once"
            return {"error_code": ErrorCode.invalid_replica_assignment, "error_message": message}
        return {"error_code": ErrorCode.none, "error_message": None}

    async def alter_replica_log_dirs(self, request: Any, _: Caller) -> ResponsePayload:
        """AlterReplicaLogDirs 1 and 2: to the only directory changes nothing, to others is LOG_DIR_NOT_FOUND."""
        results: dict[str, list[Mapping[str, Any]]] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                for partition in topic.partitions:
                    await self._pace.step()
                    missing = self._missing(topic.name, partition)
                    if directory.path != LOG_DIRECTORY:
                        code = ErrorCode.log_dir_not_found
                    else:
                        code = ErrorCode.none if missing is None else missing["error_code"]
                    results.setdefault(topic.name, []).append({"partition_index": partition, "error_code": code})
        answers = [{"topic_name": name, "partitions": partitions} for name, partitions in results.items()]
        return await respond(request, {"results": answers})

    # ---- what has settings

    async def list_config_resources(self, request: Any, _: Caller) -> ResponsePayload:
        """ListConfigResources 0 and 1: topics and this node; version 0 asks only for clients' metrics, of which there
        are none.
        """
        kinds = frozenset(request.resource_types) or _KNOWN_RESOURCES if request.__version__ >= 1 else frozenset()
        if not kinds <= _KNOWN_RESOURCES:
            return await respond(request, {"error_code": ErrorCode.unsupported_version, "config_resources": []})
        resources: list[Mapping[str, Any]] = []
        if BROKER in kinds:
            resources.append({"resource_name": str(self._node_id()), "resource_type": BROKER})
        if TOPIC in kinds:
            for name in list(self._broker.engine.store.topics):
                await self._pace.step()
                resources.append({"resource_name": name, "resource_type": TOPIC})
        return await respond(request, {"error_code": ErrorCode.none, "config_resources": resources})

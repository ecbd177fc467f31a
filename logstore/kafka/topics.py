"""Administration of topics: CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords, DescribeLogDirs.

Invariants: a change is durable before it is answered as done. One refused topic does not affect the other topics of the
request; a topic that is named twice in one request is refused (INVALID_REQUEST), as in Kafka. A host alone
has the replication factor 1; in a cluster, -1 is the cluster's choice, and hosts are not assigned by hand.

Source: Kafka protocol guide; KIP-464 (defaults), KIP-516 (topic ids).
"""

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.base.collector import Collector
from logstore.errors import CairnError, InvalidConfig, InvalidPartitions, StorageFailed, TopicExists
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.configs import topic_entries
from logstore.kafka.errors import RefusedWithCode, error_code
from logstore.kafka.pace import Pace
from logstore.kafka.wire import respond
from logstore.log.served import ServedStore, ServedTopic
from logstore.log.ticket import Ticket

LOG_DIRECTORY = "data-dir"
"""DescribeLogDirs's name for the data directory: clients do not get its real path."""
ForgetOffsets = Callable[[str, str], Sequence[Ticket[None]]]
"""Removes the offsets that groups have committed for a deleted topic (name, id in hex)."""
_DEFAULT = -1
_NO_WATERMARK = -1
_LEAST_TIMEOUT_S = 1.0
"""Of a client that wants to wait for less: a trim takes a few writes."""


def _outcome(error: CairnError) -> Mapping[str, Any]:
    return {"error_code": error_code(error), "error_message": str(error)}


class TopicHandlers:
    """Handlers of requests that change topics, and of those that show their size and reassignments."""

    def __init__(self, broker: Broker, forget_offsets: ForgetOffsets) -> None:
        self._broker = broker
        self._pace = Pace()
        self._collector = Collector()
        self._forget_offsets = forget_offsets

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [
            Api(19, 2, 7, self.create_topics),
            Api(20, 1, 6, self.delete_topics),
            Api(21, 0, 2, self.delete_records),
            Api(35, 1, 4, self.describe_log_dirs),
            Api(37, 0, 3, self.create_partitions),
            Api(46, 0, 0, self.list_partition_reassignments),
        ]

    @property
    def _store(self) -> ServedStore:
        return self._broker.engine.store

    # ---- creating

    async def create_topics(self, request: Any, _: Caller) -> ResponsePayload:
        """CreateTopics 2 to 7."""
        mentions = Counter(topic.name for topic in request.topics)
        by_name = {topic.name: topic for topic in request.topics}
        answers = []
        for name, count in mentions.items():
            await self._pace.step()
            wanted = by_name[name]
            try:
                if count > 1:
                    raise RefusedWithCode(ErrorCode.invalid_request, f"topic {name!r} is named {count} times")
                created = await self._create(wanted, validate_only=request.validate_only)
            except CairnError as error:
                created = _outcome(error)
            answers.append({"name": name, **created})
        return await respond(request, {"topics": answers})

    async def _create(self, wanted: Any, *, validate_only: bool) -> Mapping[str, Any]:
        partitions = self._partition_count(wanted)
        config: dict[str, str] = {}
        for entry in wanted.configs:
            if entry.value is None:
                raise InvalidConfig(f"topic setting {entry.name!r} has no value; leave it out to get the default")
            config[entry.name] = entry.value
        replicas = wanted.replication_factor  # -1: the store's choice
        parsed = self._store.check_topic(wanted.name, partitions, config, replicas)
        if validate_only:
            topic_id = None
        else:
            topic_id = (await self._make(wanted.name, partitions, config, replicas)).topic_id
        shown = topic_entries(parsed, config, self._broker.settings.topic_defaults)
        return {
            "topic_id": topic_id,
            "error_code": ErrorCode.none,
            "error_message": None,
            "num_partitions": partitions,
            "replication_factor": self._store.replicas_of(replicas),
            "configs": [entry.described() for entry in shown],
        }

    async def _make(self, name: str, partitions: int, config: Mapping[str, str], replicas: int) -> ServedTopic:
        """Create a topic. If another request is creating it, wait for that and raise TopicExists. Raises CairnError."""
        engine = self._broker.engine
        rival = self._store.creation(name)
        if rival is not None:
            await engine.wait(rival)
            raise TopicExists(f"topic {name!r} exists")
        with self._collector.making(partitions):
            return await engine.wait(self._store.create_topic(name, partitions, config, replicas))

    def _partition_count(self, wanted: Any) -> int:
        """The number of partitions of a new topic. Raises RefusedWithCode if the request asks for other nodes than
        this.
        """
        if wanted.assignments:
            if wanted.num_partitions != _DEFAULT or wanted.replication_factor != _DEFAULT:
                message = "give either replica assignments, or a number of partitions and a replication factor"
                raise RefusedWithCode(ErrorCode.invalid_request, message)
            self._check_assignments([tuple(part.broker_ids) for part in wanted.assignments])
            indexes = sorted(part.partition_index for part in wanted.assignments)
            if indexes != list(range(len(indexes))):
                message = f"partitions must be numbered from 0 without gaps, not {indexes}"
                raise RefusedWithCode(ErrorCode.invalid_replica_assignment, message)
            return len(indexes)
        if wanted.num_partitions == _DEFAULT:
            return self._broker.settings.default_partitions
        return int(wanted.num_partitions)

    def _check_assignments(self, assignments: Sequence[tuple[int, ...]]) -> None:
        if self._broker.placement is not None:
            message = "the cluster places replicas itself; give a replication factor instead of assignments"
            raise RefusedWithCode(ErrorCode.invalid_replica_assignment, message)
        node_id = self._store.node_id
        if any(nodes != (node_id,) for nodes in assignments):
            message = f"the only node here is {node_id}; every partition must be assigned to it, once"
            raise RefusedWithCode(ErrorCode.invalid_replica_assignment, message)

    async def create_partitions(self, request: Any, _: Caller) -> ResponsePayload:
        """CreatePartitions 0 to 3."""
        mentions = Counter(topic.name for topic in request.topics)
        by_name = {topic.name: topic for topic in request.topics}
        results: list[Mapping[str, Any]] = []
        for name, count in mentions.items():
            await self._pace.step()
            wanted = by_name[name]
            outcome: Mapping[str, Any] = {"error_code": ErrorCode.none, "error_message": None}
            try:
                if count > 1:
                    raise RefusedWithCode(ErrorCode.invalid_request, f"topic {name!r} is named {count} times")
                await self._grow(wanted, validate_only=request.validate_only)
            except CairnError as error:
                outcome = _outcome(error)
            results.append({"name": name, **outcome})
        return await respond(request, {"results": results})

    async def _grow(self, wanted: Any, *, validate_only: bool) -> None:
        topic = self._store.topic(wanted.name)
        added = wanted.count - len(topic.partitions)
        if added <= 0:
            raise InvalidPartitions(
                f"topic {wanted.name!r} has {len(topic.partitions)} partitions; {wanted.count} would not be more"
            )
        if wanted.assignments is not None:
            if len(wanted.assignments) != added:
                message = f"{len(wanted.assignments)} assignments for {added} new partitions"
                raise RefusedWithCode(ErrorCode.invalid_replica_assignment, message)
            self._check_assignments([tuple(part.broker_ids) for part in wanted.assignments])
        if not validate_only:
            with self._collector.making(added):
                await self._broker.engine.wait(self._store.add_partitions(wanted.name, wanted.count))

    # ---- deleting

    async def delete_topics(self, request: Any, _: Caller) -> ResponsePayload:
        """DeleteTopics 1 to 6: by name, or from version 6 by id as well."""
        if request.__version__ >= 6:
            wanted = [(topic.name, topic.topic_id) for topic in request.topics]
        else:
            wanted = [(name, None) for name in request.topic_names]
        responses = [await self._delete(name, topic_id) for name, topic_id in dict.fromkeys(wanted)]
        return await respond(request, {"responses": responses})

    async def _delete(self, name: str | None, topic_id: uuid.UUID | None) -> Mapping[str, Any]:
        await self._pace.step()
        try:
            topic = self._topic(name, topic_id)
            await self._broker.engine.wait(self._store.delete_topic(topic.name))
            self._collector.deleted(len(topic.partitions))
            await self._forget(topic)
        except CairnError as error:
            return {"name": name, "topic_id": topic_id, **_outcome(error)}
        return {"name": topic.name, "topic_id": topic.topic_id, "error_code": ErrorCode.none, "error_message": None}

    async def _forget(self, topic: ServedTopic) -> None:
        """Remove the groups' offsets of a deleted topic. If the disk refuses, the next sweep removes them; until then
        no client gets them, because they belong to the deleted topic's id.
        """
        for ticket in self._forget_offsets(topic.name, topic.topic_id.hex):
            with suppress(StorageFailed):
                await self._broker.engine.wait(ticket)

    def _topic(self, name: str | None, topic_id: uuid.UUID | None) -> ServedTopic:
        if name is not None:
            if topic_id is not None:
                raise RefusedWithCode(
                    ErrorCode.invalid_request, f"topic {name!r} is named by its id as well; give only one"
                )
            return self._store.topic(name)
        found = None if topic_id is None else self._store.topic_by_id(topic_id)
        if found is None:
            raise RefusedWithCode(ErrorCode.unknown_topic_id, f"there is no topic with id {topic_id}")
        return found

    async def delete_records(self, request: Any, _: Caller) -> ResponsePayload:
        """DeleteRecords 0 to 2: trims the records before an offset (-1: all records). What is not done within the
        request's timeout, because a cluster's metadata store is away, say, is answered so, and may be done later.
        """
        topics = []
        deadline_s = trio.current_time() + max(request.timeout.total_seconds(), _LEAST_TIMEOUT_S)
        for topic in request.topics:
            partitions = [
                {"partition_index": part.partition_index, **await self._trim(topic.name, part, deadline_s)}
                for part in topic.partitions
            ]
            topics.append({"name": topic.name, "partitions": partitions})
        return await respond(request, {"topics": topics})

    async def _trim(self, topic: str, part: Any, deadline_s: float) -> Mapping[str, Any]:
        await self._pace.step()
        try:
            stream = self._store.stream(topic, part.partition_index)
            with trio.move_on_at(deadline_s):
                start = await self._broker.engine.wait(stream.delete_records(part.offset))
                return {"low_watermark": start, "error_code": ErrorCode.none}
        except CairnError as error:
            return {"low_watermark": _NO_WATERMARK, "error_code": error_code(error)}
        return {"low_watermark": _NO_WATERMARK, "error_code": ErrorCode.request_timed_out}

    # ---- describing

    async def describe_log_dirs(self, request: Any, _: Caller) -> ResponsePayload:
        """DescribeLogDirs 1 to 4: the size of each stream. There is one directory."""
        chosen = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
        topics = []
        for topic in list(self._store.topics.values()):
            if chosen is not None and topic.name not in chosen:
                continue
            await self._pace.step(len(topic.partitions))
            partitions = [
                {"partition_index": stream.partition, "partition_size": stream.size_bytes, "offset_lag": 0}
                for stream in topic.partitions
                if chosen is None or stream.partition in chosen[topic.name]
            ]
            topics.append({"name": topic.name, "partitions": partitions})
        result = {"error_code": ErrorCode.none, "log_dir": LOG_DIRECTORY, "topics": topics}
        return await respond(request, {"error_code": ErrorCode.none, "results": [result]})

    async def list_partition_reassignments(self, request: Any, _: Caller) -> ResponsePayload:
        """ListPartitionReassignments 0: always none, because there is one node; Kafka's topic tools send it anyway."""
        return await respond(request, {"error_code": ErrorCode.none, "error_message": None, "topics": []})

"""The topics of a cluster: they live in the metadata store, and every host has all of them in memory.

`ClusterTopics` has the part of `logstore.log.store.Store` that the Kafka front asks, and stands in its place.

Invariants:
* What a host knows follows the metadata store, in its order; a change that this host asked for is answered when the
  change is in the store and this host has seen it.
* A topic's id is never used again: a topic that was deleted and created again is another one, with other streams.
* A setting that has no effect in a cluster is refused by name.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from logstore.base.clock import Clock
from logstore.base.events import LogEvent
from logstore.base.fields import shown
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, OutcomeUnknown
from logstore.base.metadata.interface import Committed, Condition, Entry, MetadataStore, Put, Transaction
from logstore.base.metadata.view import MetadataView
from logstore.cluster.interfaces import StreamListener
from logstore.cluster.producer_ids import ProducerIds
from logstore.cluster.replicated_stream import ReplicatedStream, StreamPlace, StreamServices
from logstore.errors import (
    CairnError,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicas,
    TopicExists,
    UnknownTopicOrPartition,
)
from logstore.events import TOPIC_ALTERED, TOPIC_CREATED, TOPIC_DELETED, TOPIC_GROWN, TOPIC_UNREADABLE
from logstore.log.store import StoreSettings
from logstore.log.ticket import Ticket
from logstore.log.topics import MAX_PARTITIONS, TopicConfig, check_name, parse_config

ONE_HOST_ONLY: Final = ("retention.ms", "retention.bytes", "segment.bytes", "segment.ms")
"""Settings without effect here: chunks of a cluster are not trimmed yet, and all have one size."""
DEFAULT_REPLICAS: Final = 3
TRIES: Final = 10
"""Of a change that others get ahead of, or whose outcome is unknown."""

T = TypeVar("T")


class StreamHost(Protocol):
    """What topics need of the host."""

    def listen(self, stream: str, listener: StreamListener, /) -> None:
        """Tell a listener what becomes of a stream."""


class ClusterFacts(NamedTuple):
    """What a host knows of itself and of the cluster."""

    cluster_id: str
    node_id: int
    settings: StoreSettings
    live_hosts: Callable[[], int]
    """The number of hosts whose leases hold."""


@dataclass(slots=True, eq=False)
class ReplicatedTopic:
    """A topic and its streams, one for each partition."""

    name: str
    topic_id: uuid.UUID
    replicas: int
    overrides: dict[str, str]
    config: TopicConfig
    partitions: list[ReplicatedStream]
    revision: int
    internal: bool = False


class ClusterTopics:
    """See the module. `run` must run for it to have anything."""

    def __init__(
        self,
        metadata: MetadataStore,
        facts: ClusterFacts,
        host: StreamHost,
        services: StreamServices,
        new_id: Callable[[], uuid.UUID],
    ) -> None:
        self.cluster_id, self.node_id, self.settings = facts.cluster_id, facts.node_id, facts.settings
        self.clock: Clock = services.clock
        self.topics: dict[str, ReplicatedTopic] = {}
        self.topic_defaults = replace(facts.settings.topic_defaults, retention_ms=-1, retention_bytes=-1)
        self._by_id: dict[uuid.UUID, ReplicatedTopic] = {}
        self._metadata = metadata
        self._view = MetadataView(metadata, schema.TOPICS)
        self._live_hosts = facts.live_hosts
        self._host = host
        self._services = services
        self._new_id = new_id
        self._producer_ids = ProducerIds(metadata)
        self._creating: dict[str, Ticket[ReplicatedTopic]] = {}
        self._applied_revision = 0
        self._applied = trio.Event()

    # ---- following the metadata store

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the metadata store; started once all topics are known. Raises MetadataRefused, MetadataDamaged."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._view.run)
            await self._view.reached(1)
            self._apply()
            task_status.started()
            while True:
                if self._view.revision == self._applied_revision:
                    await self._view.changed()
                self._apply()

    def _apply(self) -> None:
        """Bring the topics in memory to what the view has."""
        revision, entries = self._view.revision, self._view.entries
        wanted = {key.removeprefix(schema.TOPICS): entry for key, entry in entries.items()}
        for name in [name for name in self.topics if name not in wanted]:
            self._forget(self.topics[name])
        for name, entry in wanted.items():
            known = self.topics.get(name)
            if known is None or known.revision != entry.revision:
                try:
                    self._learn(name, schema.decode(schema.Topic, entry), entry)
                except (MetadataDamaged, InvalidConfig) as error:
                    self.report(TOPIC_UNREADABLE, topic=name, error=str(error))
        self._applied_revision = revision
        applied, self._applied = self._applied, trio.Event()
        applied.set()

    def _learn(self, name: str, found: schema.Topic, entry: Entry) -> None:
        topic = self.topics.get(name)
        topic_id = uuid.UUID(hex=found.topic_id)
        if topic is not None and topic.topic_id != topic_id:
            self._forget(topic)
            topic = None
        overrides = dict(found.settings)
        config = parse_config(overrides, self.topic_defaults)
        if topic is None:
            topic = ReplicatedTopic(name, topic_id, found.replicas, overrides, config, [], entry.revision)
            self.report(TOPIC_CREATED, topic=name, id=topic_id, partitions=found.partitions)
        elif found.partitions > len(topic.partitions):
            self.report(TOPIC_GROWN, topic=name, partitions=found.partitions, before=len(topic.partitions))
        topic.overrides, topic.config, topic.revision = overrides, config, entry.revision
        for stream in topic.partitions:
            stream.config = config
        for partition in range(len(topic.partitions), found.partitions):
            stream = ReplicatedStream(StreamPlace(name, topic_id.hex, partition), config, self._services)
            topic.partitions.append(stream)
            self._host.listen(stream.stream, stream)
        self.topics[name] = self._by_id[topic_id] = topic

    def _forget(self, topic: ReplicatedTopic) -> None:
        del self.topics[topic.name]
        self._by_id.pop(topic.topic_id, None)
        for stream in topic.partitions:
            stream.abandon()
        self.report(TOPIC_DELETED, topic=topic.name, id=topic.topic_id, partitions=len(topic.partitions))

    async def reached(self, revision: int) -> None:
        """Wait until a change of a topic, made by any host, is in memory."""
        while self._applied_revision < revision:
            await self._applied.wait()

    async def _gone(self, topic_id: uuid.UUID) -> None:
        """Wait until a topic's deletion is in memory."""
        while topic_id in self._by_id:
            await self._applied.wait()

    # ---- what the front asks (`logstore.log.store.Store`)

    def report(self, event: LogEvent, /, **fields: object) -> None:
        """Report an event to the operator."""
        self._services.report(event, **fields)

    def topic(self, name: str) -> ReplicatedTopic:
        """The topic called `name`. Raises UnknownTopicOrPartition."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {shown(name)} does not exist")
        return topic

    def topic_by_id(self, topic_id: uuid.UUID) -> ReplicatedTopic | None:
        """The topic with this id, or None."""
        return self._by_id.get(topic_id)

    def stream(self, topic: str, partition: int) -> ReplicatedStream:
        """One stream. Raises UnknownTopicOrPartition."""
        partitions = self.topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has no partition {partition}, only 0 to {len(partitions) - 1}"
            )
        return partitions[partition]

    def streams(self) -> Sequence[ReplicatedStream]:
        """Every stream."""
        return [stream for topic in self.topics.values() for stream in topic.partitions]

    def check_topic(self, name: str, partitions: int, config: Mapping[str, str], replicas: int = -1) -> TopicConfig:
        """Make the checks of `create_topic`. Raises InvalidTopic, TopicExists, InvalidPartitions, InvalidConfig,
        InvalidReplicas.
        """
        check_name(name)
        if name in self.topics:
            raise TopicExists(f"topic {name!r} exists")
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise InvalidPartitions(f"{partitions} partitions: must be from 1 to {MAX_PARTITIONS}")
        parsed = self._parsed(config)
        wanted = self.replicas_of(replicas)
        if parsed.min_insync_replicas > wanted:
            raise InvalidConfig(
                f"min.insync.replicas={parsed.min_insync_replicas} is more than the topic's {wanted} replicas"
            )
        return parsed

    def replicas_of(self, wanted: int) -> int:
        """The number of replicas of a new topic; -1: the cluster's choice. Raises InvalidReplicas."""
        most = min(schema.MAX_REPLICAS, max(1, self._live_hosts()))
        if wanted == -1:
            return min(DEFAULT_REPLICAS, most)
        if not 1 <= wanted <= most:
            raise InvalidReplicas(f"replication factor {wanted}: must be from 1 to {most}, the hosts that are there")
        return wanted

    def _parsed(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The configuration with a topic's own settings. Raises InvalidConfig."""
        for name in ONE_HOST_ONLY:
            if overrides.get(name, "-1") != "-1" or (name in overrides and name.startswith("segment")):
                raise InvalidConfig(f"{name}={overrides[name]!r} has no effect in a cluster yet; leave it out")
        return parse_config(overrides, self.topic_defaults)

    def creation(self, name: str) -> Ticket[ReplicatedTopic] | None:
        """The creation of this topic that is in progress, or None."""
        return self._creating.get(name)

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str], replicas: int = -1
    ) -> Ticket[ReplicatedTopic]:
        """Create a topic; settles once it is in the metadata store. Joins a creation that is in progress.

        Raises as `check_topic` does; the ticket fails with TopicExists, or MetadataError.
        """
        self.check_topic(name, partitions, config, replicas)
        if name in self._creating:
            return self._creating[name]
        topic = schema.Topic(
            topic_id=self._new_id().hex,
            partitions=partitions,
            replicas=self.replicas_of(replicas),
            settings=dict(config),
        )

        async def create() -> ReplicatedTopic:
            try:
                return await self._create(name, topic)
            finally:
                del self._creating[name]

        # A task that ends at once would remove the entry before it is there.
        ticket = self._creating[name] = Ticket()
        self._start(create, ticket)
        return ticket

    async def _create(self, name: str, topic: schema.Topic) -> ReplicatedTopic:
        for _ in range(TRIES):
            try:
                outcome = await self._metadata.commit(schema.create_topic(name, topic))
            except OutcomeUnknown:
                continue  # the same again: at most one of the two is made
            if isinstance(outcome, Committed):
                await self.reached(outcome.revision)
                return self.topic(name)
            found = outcome.found[0]
            if found is not None and schema.decode(schema.Topic, found).topic_id == topic.topic_id:
                await self.reached(found.revision)
                return self.topic(name)
            raise TopicExists(f"topic {name!r} exists")
        raise OutcomeUnknown(f"it is not known whether topic {name!r} was created; look whether it is there")

    def add_partitions(self, name: str, total: int) -> Ticket[ReplicatedTopic]:
        """Grow a topic. The ticket fails with UnknownTopicOrPartition, InvalidPartitions or MetadataError."""

        def grown(topic: schema.Topic) -> schema.Topic:
            if not topic.partitions < total <= MAX_PARTITIONS:
                raise InvalidPartitions(
                    f"topic {name!r} has {topic.partitions} partitions; {total} must be more, at most {MAX_PARTITIONS}"
                )
            return replace(topic, partitions=total)

        return self._start(lambda: self._change(name, grown))

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> Ticket[ReplicatedTopic]:
        """Change settings; None resets a setting. The ticket fails with UnknownTopicOrPartition, InvalidConfig or
        MetadataError.
        """

        def altered(topic: schema.Topic) -> schema.Topic:
            kept = {key: value for key, value in topic.settings.items() if key not in changes}
            settings = kept | {key: value for key, value in changes.items() if value is not None}
            if self._parsed(settings).min_insync_replicas > topic.replicas:
                raise InvalidConfig(f"min.insync.replicas is more than the topic's {topic.replicas} replicas")
            return replace(topic, settings=settings)

        async def alter() -> ReplicatedTopic:
            topic = await self._change(name, altered)
            told = " ".join(f"{key}={'default' if value is None else value}" for key, value in sorted(changes.items()))
            self.report(TOPIC_ALTERED, topic=name, changes=told)
            return topic

        return self._start(alter)

    async def _change(self, name: str, change: Callable[[schema.Topic], schema.Topic]) -> ReplicatedTopic:
        key = schema.topic_key(self.topic(name).name)
        for _ in range(TRIES):
            reading = await self._metadata.get(key)
            if reading.entry is None:
                break
            wanted = schema.encode(change(schema.decode(schema.Topic, reading.entry)))
            transaction = Transaction((Condition(key, reading.entry.revision),), (Put(key, wanted),))
            outcome = await self._metadata.commit(transaction)
            if isinstance(outcome, Committed):
                await self.reached(outcome.revision)
                break
        return self.topic(name)

    def delete_topic(self, name: str) -> Ticket[None]:
        """Delete a topic. The ticket fails with UnknownTopicOrPartition or MetadataError."""
        return self._start(lambda: self._delete(self.topic(name)))

    async def _delete(self, topic: ReplicatedTopic) -> None:
        key = schema.topic_key(topic.name)
        for _ in range(TRIES):
            reading = await self._metadata.get(key)
            found = None if reading.entry is None else schema.decode(schema.Topic, reading.entry)
            if reading.entry is None or found is None or uuid.UUID(hex=found.topic_id) != topic.topic_id:
                await self._gone(topic.topic_id)
                return
            try:
                outcome = await self._metadata.commit(schema.delete_topic(topic.name, found, reading.entry.revision))
            except OutcomeUnknown:
                continue
            if isinstance(outcome, Committed):
                await self._gone(topic.topic_id)
                return
        raise OutcomeUnknown(f"it is not known whether topic {topic.name!r} was deleted; look whether it is there")

    def allocate_producer_id(self) -> Ticket[int]:
        """A producer id that no host has given out before. Fails with MetadataError."""
        return self._start(self._producer_ids.take)

    def _start(self, work: Callable[[], Awaitable[T]], ticket: Ticket[T] | None = None) -> Ticket[T]:
        """Run a change in a task; the ticket gets its outcome."""
        settled: Ticket[T] = ticket or Ticket()

        async def run() -> None:
            try:
                result = await work()
            except CairnError as error:
                settled.fail(error)
            else:
                settled.succeed(result)

        self._services.spawn(run)
        return settled

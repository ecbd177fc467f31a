"""The topics of a cluster. They are stored in the metadata store, and every host has all topics in memory.

`ClusterTopics` has the methods of `logstore.log.store.Store` that the Kafka front uses, and replaces it there.

Invariants:
* The topics in memory follow the metadata store, in its order. A change by this host is answered when the store has the
  change and this host has seen it.
* The id of a topic is never used again: a topic that was deleted and created again is a new topic with new streams.
* The number of replicas of a topic without its own number comes from the setting, not from the hosts that are alive at
  the creation: a chunk has fewer copies at first, and gets the others when hosts join
  (`logstore.cluster.streams.growing_topics`).
* The cluster's internal topics have no retention: their writers trim them. Their copies follow from the setting and
  from the hosts that the cluster has, too (`logstore.cluster.streams.own_topics`).
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from logstore.base.clock import Clock
from logstore.base.events import LogEvent
from logstore.base.fields import shown
from logstore.base.metadata import schema
from logstore.base.metadata.local_watch import ChangeSignal
from logstore.cluster.interfaces import StreamObserver
from logstore.cluster.members.election import min_copies
from logstore.cluster.members.view import ClusterView, KnownHead, KnownTopic
from logstore.cluster.streams.growing_topics import GrowingTopics
from logstore.cluster.streams.own_topics import DEFAULT_REPLICAS, INTERNAL_TOPICS
from logstore.cluster.streams.producer_ids import ProducerIds
from logstore.cluster.streams.replicated_stream import ReplicatedStream, StreamServices
from logstore.cluster.streams.stored_topics import StoredTopics
from logstore.cluster.streams.stream_place import StreamPlace
from logstore.cluster.while_there import while_there
from logstore.errors import (
    CairnError,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicas,
    InvalidTopic,
    TopicExists,
    UnknownTopicOrPartition,
)
from logstore.events import TOPIC_ALTERED, TOPIC_CREATED, TOPIC_DELETED, TOPIC_GROWN, TOPIC_UNREADABLE
from logstore.format import internal_topics
from logstore.log.store import StoreSettings
from logstore.log.ticket import Ticket
from logstore.log.topics import (
    MAX_PARTITIONS,
    TopicConfig,
    check_name,
    named_and_reset,
    parse_config,
    require_tier,
)

GROUPS_TOPIC: Final = internal_topics.GROUPS
"""Internal: what groups have committed. It is made when the first client looks for a coordinator."""
EPOCHS_TOPIC: Final = internal_topics.EPOCHS
"""Internal: queries, their epochs, and staged output. It is made with the first request about an epoch."""
T = TypeVar("T")


class TopicHost(Protocol):
    """What topics need of the host (`logstore.cluster.host`)."""

    @property
    def view(self) -> ClusterView:
        """What the metadata store holds."""

    @property
    def topics(self) -> StoredTopics:
        """Changes of topics in the metadata store."""

    def observe(self, stream: str, observer: StreamObserver, /) -> None:
        """Tell an observer what becomes of a stream."""

    def stop_observing(self, stream: str, /) -> None:
        """Tell nobody any more."""


class ClusterFacts(NamedTuple):
    """What a host knows of itself and of its cluster."""

    cluster_id: str
    node_id: int
    settings: StoreSettings
    default_replicas: int = DEFAULT_REPLICAS


@dataclass(slots=True, eq=False)
class ReplicatedTopic:
    """A topic and its streams, one for each partition."""

    name: str
    topic_id: uuid.UUID
    replicas: int
    overrides: dict[str, str]
    config: TopicConfig
    partitions: list[ReplicatedStream]
    internal: bool = False


class ClusterTopics:
    """See the module. It observes the view; `take_all` takes what the view had before."""

    def __init__(
        self,
        host: TopicHost,
        facts: ClusterFacts,
        producer_ids: ProducerIds,
        services: StreamServices,
        new_id: Callable[[], uuid.UUID],
    ) -> None:
        self.cluster_id, self.node_id, self.settings = facts.cluster_id, facts.node_id, facts.settings
        self.clock: Clock = services.clock
        self.topics: dict[str, ReplicatedTopic] = {}
        self.topic_defaults = facts.settings.topic_defaults
        self.default_replicas = facts.default_replicas
        self._by_id: dict[uuid.UUID, ReplicatedTopic] = {}
        self._host = host
        self._services = services
        self._new_id = new_id
        self._producer_ids = producer_ids
        self._creating: dict[str, Ticket[ReplicatedTopic]] = {}
        self._growing = GrowingTopics(host, facts.default_replicas, services.spawn, services.report)
        self.changed = ChangeSignal()
        """A topic is new, was changed, or is gone."""
        self._is_up_to_date = False
        """All topics that were there at the start are known."""
        host.view.add_observer(self)

    # ---- following the metadata store (ViewObserver)

    def take_all(self) -> None:
        """Take all topics of the view, once it is complete."""
        for name, known in self._host.view.topics.items():
            self.topic_changed(name, None, known)
        self._is_up_to_date = True

    def members_changed(self) -> None:
        """See ViewObserver."""
        self._growing.look()

    def head_changed(self, stream: str, now: KnownHead | None) -> None:
        """See ViewObserver."""

    def topic_changed(self, name: str, before: KnownTopic | None, now: KnownTopic | None) -> None:
        """See ViewObserver."""
        known = self.topics.get(name)
        if known is not None and (now is None or now.topic.topic_id != known.topic_id.hex):
            self._forget(known)
        if now is not None:
            try:
                self._learn(name, now.topic)
            except (ValueError, InvalidConfig) as error:  # no topic that this version could have made
                self.report(TOPIC_UNREADABLE, topic=name, error=str(error))
        self._growing.topic_changed(name, now)
        self.changed.notify()

    def _learn(self, name: str, found: schema.StoredTopic) -> None:
        topic = self.topics.get(name)
        overrides = dict(found.settings)
        config = parse_config(overrides, self.topic_defaults)
        config = replace(config, min_insync_replicas=min_copies(found))  # what is applied: clients are shown that
        is_internal = name in INTERNAL_TOPICS
        if is_internal:
            config = replace(config, retention_ms=-1, retention_bytes=-1)
        if topic is None:
            topic_id = uuid.UUID(hex=found.topic_id)
            topic = ReplicatedTopic(name, topic_id, found.replicas, overrides, config, [], is_internal)
            copies = {"copies": found.replicas, "min_copies": min_copies(found)}
            if self._is_up_to_date:  # what was there when this host started is not new
                self.report(TOPIC_CREATED, topic=name, id=topic.topic_id, partitions=found.partitions, **copies)
        elif found.partitions > len(topic.partitions):
            self.report(TOPIC_GROWN, topic=name, partitions=found.partitions, before=len(topic.partitions))
        topic.overrides, topic.config, topic.replicas = overrides, config, found.replicas
        for stream in topic.partitions:
            stream.reconfigure(config)
        self.topics[name] = self._by_id[topic.topic_id] = topic
        for partition in range(len(topic.partitions), found.partitions):
            stream = ReplicatedStream(
                StreamPlace(name, found.topic_id, partition, topic.internal, self.cluster_id), config, self._services
            )
            topic.partitions.append(stream)
            self._host.observe(stream.stream, stream)

    def _forget(self, topic: ReplicatedTopic) -> None:
        del self.topics[topic.name]
        self._by_id.pop(topic.topic_id, None)
        for stream in topic.partitions:
            self._host.stop_observing(stream.stream)
            stream.abandon()
        self.report(TOPIC_DELETED, topic=topic.name, id=topic.topic_id, partitions=len(topic.partitions))

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

    def stream_of(self, topic_id: str, partition: int) -> ReplicatedStream | None:
        """A stream by its topic's id in hexadecimal; None: there is no such stream."""
        topic = self._by_id.get(uuid.UUID(hex=topic_id))
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def streams(self) -> Sequence[ReplicatedStream]:
        """Every stream."""
        return [stream for topic in self.topics.values() for stream in topic.partitions]

    def check_topic(self, name: str, partitions: int, config: Mapping[str, str], replicas: int = -1) -> TopicConfig:
        """Make the checks of `create_topic`. Raises InvalidTopic, TopicExists, InvalidPartitions, InvalidConfig,
        InvalidReplicas.
        """
        check_name(name)
        self._check_own(name)
        if name in self.topics:
            raise TopicExists(f"topic {name!r} exists")
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise InvalidPartitions(f"{partitions} partitions: must be from 1 to {MAX_PARTITIONS}")
        parsed = require_tier(parse_config(config, self.topic_defaults), has_tier=self.settings.has_tier)
        wanted = self.replicas_of(replicas)
        if parsed.min_insync_replicas > wanted:
            raise InvalidConfig(
                f"min.insync.replicas={parsed.min_insync_replicas} is more than the topic's {wanted} replicas"
            )
        return parsed

    @staticmethod
    def _check_own(name: str) -> None:
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {name!r} is internal to the cluster: clients can neither create nor change it")

    def internal_topic(self, name: str) -> uuid.UUID | None:
        """The id of a topic of the cluster's own; None: it is not there, and is being made."""
        found = self.topics.get(name)
        if found is not None:
            return found.topic_id
        if name in self._creating:
            return None
        self._make(name, partial(self._growing.own_topic, self._new_id().hex))
        return None

    def groups_topic(self) -> uuid.UUID | None:
        """The id of the topic of groups; None: it is not there, and is being made."""
        return self.internal_topic(GROUPS_TOPIC)

    def replicas_of(self, wanted: int) -> int:
        """The number of replicas of a new topic; -1: the cluster's choice, however many hosts live now. Raises
        InvalidReplicas.
        """
        if wanted == -1:
            return self.default_replicas
        most = min(schema.MAX_REPLICAS, max(1, len(self._host.view.members)))
        if not 1 <= wanted <= most:
            raise InvalidReplicas(f"replication factor {wanted}: must be from 1 to {most}, the hosts that are there")
        return wanted

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
        topic_id, count = self._new_id().hex, self.replicas_of(replicas)
        topic = schema.StoredTopic(topic_id=topic_id, partitions=partitions, replicas=count, settings=dict(config))

        async def counted() -> schema.StoredTopic:
            return await self._growing.counted(topic) if replicas == -1 else topic

        return self._make(name, counted, is_asked=True)

    def _make(
        self, name: str, counted: Callable[[], Awaitable[schema.StoredTopic]], *, is_asked: bool = False
    ) -> Ticket[ReplicatedTopic]:
        """Make a topic as `counted` says, which is asked once the work has begun."""

        async def work() -> ReplicatedTopic:
            return await self._create(name, await counted())

        async def create() -> ReplicatedTopic:
            try:
                return await (while_there(self._host.topics.store, work) if is_asked else work())
            finally:
                del self._creating[name]

        ticket = self._creating[name] = self._start(create)
        return ticket

    async def _create(self, name: str, topic: schema.StoredTopic) -> ReplicatedTopic:
        await self._host.topics.create(name, topic)
        return self.topic(name)

    def add_partitions(self, name: str, total: int) -> Ticket[ReplicatedTopic]:
        """Grow a topic. The ticket fails with UnknownTopicOrPartition, InvalidPartitions or MetadataError."""

        def grown(topic: schema.StoredTopic) -> schema.StoredTopic:
            if not topic.partitions < total <= MAX_PARTITIONS:
                raise InvalidPartitions(
                    f"topic {name!r} has {topic.partitions} partitions; {total} must be more, at most {MAX_PARTITIONS}"
                )
            return replace(topic, partitions=total)

        return self._start_asked(lambda: self._change(name, grown))

    def copies(self, name: str) -> int:
        """How many copies a topic wants. Raises UnknownTopicOrPartition."""
        return self.topic(name).replicas

    def raise_replicas(self, name: str, replicas: int) -> Ticket[ReplicatedTopic]:
        """Give a topic more copies, which are made when its streams open their next chunks. The ticket fails with
        UnknownTopicOrPartition, InvalidReplicas or MetadataError.
        """

        def raised(topic: schema.StoredTopic) -> schema.StoredTopic:
            if self.replicas_of(replicas) < topic.replicas:
                raise InvalidReplicas(f"topic {name!r} has {topic.replicas} copies, and cannot have fewer: {replicas}")
            return replace(topic, replicas=replicas, hosts=0)

        async def change() -> ReplicatedTopic:
            topic = await self._change(name, raised)
            self.report(TOPIC_ALTERED, topic=name, changes=f"copies={replicas}")
            return topic

        return self._start_asked(change)

    def alter_topic(
        self, name: str, changes: Mapping[str, str | None], *, resets_others: bool = False
    ) -> Ticket[ReplicatedTopic]:
        """Change settings; None resets a setting, `resets_others` all that are not named, as of the entry that is
        replaced; of the cluster's own topics see `own_topics.asked`. The ticket fails with UnknownTopicOrPartition,
        InvalidConfig, InvalidTopic or MetadataError.
        """
        made = changes

        def altered(topic: schema.StoredTopic) -> schema.StoredTopic:
            nonlocal made
            made = named_and_reset(topic.settings, changes, resets_others=resets_others)
            kept = {key: value for key, value in topic.settings.items() if key not in made}
            settings = kept | {key: value for key, value in made.items() if value is not None}
            before = parse_config(dict(topic.settings), self.topic_defaults)
            has_tier = self.settings.has_tier or before.is_tiered
            parsed = require_tier(parse_config(settings, self.topic_defaults), has_tier=has_tier)
            if parsed.min_insync_replicas > topic.replicas:
                raise InvalidConfig(f"min.insync.replicas is more than the topic's {topic.replicas} replicas")
            return replace(topic, settings=settings)

        async def alter() -> ReplicatedTopic:
            if name in INTERNAL_TOPICS:
                await self._growing.alter_own(name, changes)
                topic = self.topic(name)
            else:
                topic = await self._change(name, altered)
            told = " ".join(f"{key}={'default' if value is None else value}" for key, value in sorted(made.items()))
            self.report(TOPIC_ALTERED, topic=name, changes=told)
            return topic

        return self._start_asked(alter)

    async def _change(self, name: str, change: Callable[[schema.StoredTopic], schema.StoredTopic]) -> ReplicatedTopic:
        self._check_own(name)
        known = self._host.view.topics.get(self.topic(name).name)
        if known is not None:
            await self._host.topics.alter(name, known.topic.topic_id, change)
        return self.topic(name)

    def delete_topic(self, name: str) -> Ticket[None]:
        """Delete a topic. The ticket fails with UnknownTopicOrPartition or MetadataError."""

        async def delete() -> None:
            self._check_own(name)
            await self._host.topics.delete(name, self.topic(name).topic_id.hex)

        return self._start_asked(delete)

    async def is_deleted(self, name: str, topic_id: uuid.UUID) -> bool:
        """Whether the metadata store says that a topic was deleted. Raises MetadataError, also where it is not the
        store of this cluster.
        """
        return await self._host.topics.deleted(name, topic_id)

    def allocate_producer_id(self) -> Ticket[int]:
        """A producer id that no host has given out before. Fails with MetadataError."""
        return self._start(self._producer_ids.take)

    def _start_asked(self, work: Callable[[], Awaitable[T]]) -> Ticket[T]:
        """Run a change that a client asks for, and waits for: it hears if the metadata store is away."""
        return self._start(partial(while_there, self._host.topics.store, work))

    def _start(self, work: Callable[[], Awaitable[T]]) -> Ticket[T]:
        """Run a change in a task, which begins later; the ticket gets its outcome."""
        settled: Ticket[T] = Ticket()

        async def run() -> None:
            try:
                result = await work()
            except CairnError as error:
                settled.fail(error)
            else:
                settled.succeed(result)

        self._services.spawn(run)
        return settled

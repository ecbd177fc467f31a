"""Topics that a cluster made while it had fewer hosts than they have replicas: they follow it as hosts come.

A cluster's first host takes appends alone, so `min.insync.replicas` that is not set counts the hosts that the cluster
has had since, up to the topic's replicas (`schema.StoredTopic.hosts`, `election.min_copies`). The cluster's own topics
follow the same hosts (`logstore.cluster.streams.own_topics`).

Invariants:
* Which hosts the cluster has, the metadata store says when it counts: a view that is late, or that shows few hosts
  because the others are away, makes no topic ask for fewer copies.
* The number of a topic never falls by itself. At the topic's replicas it is left out, for good.
* One of the cluster's own topics is raised whether or not it is used then: all who use it may have found it before.
* Every host raises it; who comes second finds it raised. While the store is away, or refuses this host, that is tried
  again: no member need change behind such a time, for etcd's leases outlast etcd's own absence.
* A topic whose entry is damaged holds up no other one.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import trio

from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataError
from logstore.cluster.members.election import MIN_COPIES_SETTING, min_copies
from logstore.cluster.members.view import ClusterView, KnownTopic
from logstore.cluster.streams import own_topics
from logstore.cluster.streams.own_topics import DEFAULT_REPLICAS, INTERNAL_TOPICS
from logstore.cluster.streams.stored_topics import StoredTopics
from logstore.errors import TryAgain, UnknownTopicOrPartition
from logstore.events import TOPIC_ALTERED

AGAIN_S: Final = 1.0
"""Between a failed try and the next one."""


class TopicsHost(Protocol):
    """What this needs of the host."""

    @property
    def view(self) -> ClusterView:
        """What the metadata store holds."""

    @property
    def topics(self) -> StoredTopics:
        """Changes of topics in the metadata store."""


class GrowingTopics:
    """See the module. `factor`: `default-replication-factor`. Memory: a name for each such topic."""

    def __init__(
        self, host: TopicsHost, factor: int, spawn: Callable[[Callable[[], Awaitable[None]]], object], report: Report
    ) -> None:
        self._host = host
        self._factor = factor
        self._spawn = spawn
        self._report = report
        self._names: set[str] = set()
        self._is_at_work = self._is_wanted = False

    async def counted(self, topic: schema.StoredTopic) -> schema.StoredTopic:
        """A topic that is about to be made, with the hosts that the cluster has. Raises MetadataError."""
        if len(self._host.view.members) >= topic.replicas:
            return topic
        return _with_hosts(topic, max(1, await self._count()))

    async def own_topic(self, topic_id: str) -> schema.StoredTopic:
        """A topic of the cluster's own that is about to be made. Raises MetadataError."""
        hosts = len(self._host.view.members)
        if hosts < max(DEFAULT_REPLICAS, self._factor):
            hosts = max(1, await self._count())
        return own_topics.own_topic(topic_id, hosts, self._factor)

    async def alter_own(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change how many copies a topic of the cluster's own needs. Raises InvalidTopic, InvalidConfig, MetadataError,
        UnknownTopicOrPartition.
        """
        known = self._host.view.topics.get(name)
        if known is None:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        hosts = max(1, await self._count())
        made = partial(own_topics.asked, changes=changes, hosts=hosts, factor=self._factor)
        await self._host.topics.alter(name, known.topic.topic_id, made)

    def topic_changed(self, name: str, now: KnownTopic | None) -> None:
        """A topic is new, was changed, or is gone (None)."""
        if now is None or not self._may_grow(name, now.topic):
            self._names.discard(name)
        else:
            self._names.add(name)
            self.look()

    def look(self) -> None:
        """A host may have come."""
        self._is_wanted = bool(self._names)
        if self._is_wanted and not self._is_at_work:
            self._is_at_work = True
            self._spawn(self._work)

    async def _count(self) -> int:
        return len(await self._host.topics.known_hosts() | self._host.view.members.keys())

    async def _work(self) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                try:
                    hosts = await self._count()
                    for name in sorted(self._names):
                        await self._raise(name, hosts)
                except (MetadataError, TryAgain):  # the store's own events say so; or somebody else changes the topic
                    self._is_wanted = bool(self._names)
                    await trio.sleep(AGAIN_S)
        finally:
            self._is_at_work = False

    async def _raise(self, name: str, hosts: int) -> None:
        known = self._host.view.topics.get(name)
        if known is None or self._grown(name, known.topic, hosts) == known.topic:
            return
        if schema.topic_key(name) in self._host.view.damaged:
            return  # the view tells when the entry is another one
        made: schema.StoredTopic | None = None

        def raised(now: schema.StoredTopic) -> schema.StoredTopic:
            nonlocal made
            made = self._grown(name, now, hosts)
            return made

        try:
            await self._host.topics.alter(name, known.topic.topic_id, raised)
        except UnknownTopicOrPartition:
            return  # it was deleted meanwhile
        told = _told(known.topic, made) if made is not None else ""
        if told:
            self._report(TOPIC_ALTERED, topic=name, changes=told, hosts=hosts)

    def _may_grow(self, name: str, topic: schema.StoredTopic) -> bool:
        return own_topics.may_grow(topic, self._factor) if name in INTERNAL_TOPICS else bool(topic.hosts)

    def _grown(self, name: str, topic: schema.StoredTopic, hosts: int) -> schema.StoredTopic:
        """A topic as it is in a cluster of so many hosts."""
        if name in INTERNAL_TOPICS:
            return own_topics.grown(topic, hosts, self._factor)
        return _with_hosts(topic, max(topic.hosts, hosts)) if topic.hosts else topic


def _told(before: schema.StoredTopic, now: schema.StoredTopic) -> str:
    """What an operator is told of a topic that has grown; empty: nothing that is applied has changed."""
    changes = [f"copies={now.replicas}"] if now.replicas != before.replicas else []
    if min_copies(now) != min_copies(before):
        changes.append(f"{MIN_COPIES_SETTING}={min_copies(now)}")
    return " ".join(changes)


def _with_hosts(topic: schema.StoredTopic, hosts: int) -> schema.StoredTopic:
    """A topic of a cluster that has had so many hosts."""
    return replace(topic, hosts=hosts if hosts < topic.replicas else 0)

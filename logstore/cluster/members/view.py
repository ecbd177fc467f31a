"""What a cluster consists of, in memory and up to date: members, hosts that leave, topics, and the heads of all
streams' registrations.

Invariants:
* Everything here comes from four watches of the metadata store, each of which is exact and may be late: a topic may be
  here before its streams, and the other way round. `topics` and `heads` never go back to an older entry.
* An entry that cannot be decoded is reported and left out: what it says is unknown, not gone. `damaged` has its key.
* Observers are called on the event loop, when the view has the change; they must not wait.

Costs: memory for an entry of each member, topic and stream. A change costs what its key costs, however many there are.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, MetadataRefused
from logstore.base.metadata.interface import Entry, MetadataStore
from logstore.base.metadata.local_watch import ChangeSignal
from logstore.base.metadata.view import KeyChanged, MetadataView
from logstore.errors import CorruptRegister, UnknownFormatVersion
from logstore.events import METADATA_ENTRY_DAMAGED, METADATA_UNUSABLE
from logstore.replica.registrations import StreamHead, decode_head

HostFact = TypeVar("HostFact", schema.StoredMember, schema.Leaving)
RETRY_S: Final = 1.0
"""Between tries to follow a store that refuses this host or is damaged: an operator mends it."""


class KnownTopic(NamedTuple):
    """A topic, and the revision of its entry."""

    topic: schema.StoredTopic
    revision: int


class KnownHead(NamedTuple):
    """The head of a stream's registration, and its revision, which is the registration's."""

    head: StreamHead
    revision: int


class ViewObserver(Protocol):
    """Hears of changes of the cluster."""

    def members_changed(self) -> None:
        """A host has joined, left, or started anew, or is to leave."""

    def topic_changed(self, name: str, before: KnownTopic | None, now: KnownTopic | None) -> None:
        """A topic is new, was changed, or is gone (None)."""

    def head_changed(self, stream: str, now: KnownHead | None) -> None:
        """A stream's registration has changed, or is gone (None)."""


def stream_name(topic_id: str, partition: int) -> str:
    """The name of a replicated stream."""
    return f"{topic_id}/{partition}"


def topic_id_of(stream: str) -> str:
    """The id of the topic that a replicated stream belongs to."""
    return stream.partition("/")[0]


def partition_of(stream: str) -> int:
    """The number of a replicated stream in its topic."""
    return int(stream.rpartition("/")[2])


class ClusterView:
    """See the module. `run` must run for it to have anything.

    `members` and `leaving` by host, `topics` by name, `heads` by stream, `names` has the topics' names by their ids.
    """

    def __init__(self, store: MetadataStore, report: Report) -> None:
        self._store = store
        self._report = report
        self._observers: list[ViewObserver] = []
        self._members: dict[str, schema.StoredMember] = {}
        self._leaving: dict[str, schema.Leaving] = {}
        self._topics: dict[str, KnownTopic] = {}
        self._heads: dict[str, KnownHead] = {}
        self._names: dict[str, str] = {}
        self.members: Mapping[str, schema.StoredMember] = MappingProxyType(self._members)
        self.leaving: Mapping[str, schema.Leaving] = MappingProxyType(self._leaving)
        self.topics: Mapping[str, KnownTopic] = MappingProxyType(self._topics)
        self.heads: Mapping[str, KnownHead] = MappingProxyType(self._heads)
        self.names: Mapping[str, str] = MappingProxyType(self._names)
        self.damaged: set[str] = set()
        self._changed = ChangeSignal()
        changes: dict[str, KeyChanged] = {
            schema.MEMBERS: partial(self._host_changed, schema.StoredMember, schema.MEMBERS, self._members),
            schema.LEAVING: partial(self._host_changed, schema.Leaving, schema.LEAVING, self._leaving),
            schema.TOPICS: self._topic_changed,
            schema.STREAMS: self._head_changed,
        }
        self._views = {prefix: MetadataView(store, prefix, changed) for prefix, changed in changes.items()}

    def add_observer(self, observer: ViewObserver) -> None:
        """Call an observer from the next change on. What is known already it reads here."""
        self._observers.append(observer)

    @property
    def is_complete(self) -> bool:
        """Whether everything was read once: what is not here now is not in the metadata store, or is new."""
        return all(view.revision for view in self._views.values())

    async def run(self) -> None:
        """Keep the view up to date, until cancelled."""
        async with trio.open_nursery() as nursery:
            for view in self._views.values():
                nursery.start_soon(self._follow, view)

    async def complete(self) -> None:
        """Wait until everything was read once."""
        for view in self._views.values():
            await view.reached(1)

    async def topics_reached(self, revision: int) -> None:
        """Wait until the view has the topics as of a revision, such as that of a commit of one."""
        await self._views[schema.TOPICS].reached(revision)

    async def members_reached(self, revision: int) -> None:
        """Wait until the view has the members as of a revision."""
        await self._views[schema.MEMBERS].reached(revision)

    async def leaving_reached(self, revision: int) -> None:
        """Wait until the view has the hosts that leave as of a revision."""
        await self._views[schema.LEAVING].reached(revision)

    async def newest_heads(self) -> dict[str, KnownHead]:
        """All heads as the metadata store has them now: `heads`, which may be late, with what has changed since. One
        that cannot be decoded stays as it was, and is in `damaged`. Costs a request, or one in 256 changes.

        Raises MetadataError.
        """
        heads, since = dict(self._heads), self._views[schema.STREAMS].revision
        after, more = "", True
        while more:
            page = await self._store.page(schema.STREAMS, after=after, newer_than=since)
            for entry in page.entries:
                try:
                    heads[entry.key.removeprefix(schema.STREAMS)] = KnownHead(decode_head(entry.value), entry.revision)
                except (CorruptRegister, UnknownFormatVersion):
                    self.damaged.add(entry.key)
            after, more = page.entries[-1].key if page.entries else "", page.more
        return heads

    async def changed(self) -> None:
        """Wait for the next change of anything."""
        await self._changed.wait()

    # ---- changes

    async def _follow(self, view: MetadataView) -> None:
        """Follow the store, also over times when it refuses this host: what is known stays meanwhile."""
        while True:
            try:
                await view.run()
            except (MetadataRefused, MetadataDamaged) as error:
                self._report(METADATA_UNUSABLE, error=error)
            await trio.sleep(RETRY_S)

    def _host_changed(
        self, kind: type[HostFact], prefix: str, known: dict[str, HostFact], key: str, entry: Entry | None
    ) -> None:
        """What is known of a host in one respect."""
        host = key.removeprefix(prefix)
        if entry is None:
            known.pop(host, None)
        else:
            try:
                known[host] = schema.decode(kind, entry)
            except MetadataDamaged as error:
                self._damage(key, error)
                return
        self._mended(key)
        for observer in self._observers:
            observer.members_changed()

    def _topic_changed(self, key: str, entry: Entry | None) -> None:
        name = key.removeprefix(schema.TOPICS)
        before, now = self._topics.get(name), None
        if entry is not None:
            try:
                now = KnownTopic(schema.decode(schema.StoredTopic, entry), entry.revision)
            except MetadataDamaged as error:
                self._damage(key, error)
                return
        if before is not None:
            self._names.pop(before.topic.topic_id, None)
            del self._topics[name]
        if now is not None:
            self._names[now.topic.topic_id] = name
            self._topics[name] = now
        self._mended(key)
        for observer in self._observers:
            observer.topic_changed(name, before, now)

    def _head_changed(self, key: str, entry: Entry | None) -> None:
        stream = key.removeprefix(schema.STREAMS)
        now = None
        if entry is not None:
            try:
                now = KnownHead(decode_head(entry.value), entry.revision)
            except (CorruptRegister, UnknownFormatVersion) as error:
                self._damage(key, error)
                return
        if now is None:
            self._heads.pop(stream, None)
        else:
            self._heads[stream] = now
        self._mended(key)
        for observer in self._observers:
            observer.head_changed(stream, now)

    def _mended(self, key: str) -> None:
        self.damaged.discard(key)
        self._changed.notify()

    def _damage(self, key: str, error: Exception) -> None:
        self.damaged.add(key)
        self._report(METADATA_ENTRY_DAMAGED, key=key, error=error)

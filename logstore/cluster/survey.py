"""What the hosts of a cluster hold, and which copies are missing: counted when an operator asks.

Owners and open chunks come from the view, with what the metadata store has more lately, sealed chunks from the store,
page by page: what one host has said is not taken back by another one that hears of changes later.

Invariants:
* Nothing is changed. One survey runs at a time; an answer about hosts is used again for REUSE_S, while the same hosts
  live and leave.
* At most MAX_CHUNKS sealed chunks are read for one answer, which then says that it is not complete. Counts of many
  streams let other tasks run.
* A copy counts if its host is alive with the disk that it was made on. A registration that cannot be decoded is passed
  over (`metadata_entry_damaged` has said so, or its owner will), and the answer says that it is not complete: no host
  counts as empty then.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import trio

from logstore.base.clock import Clock
from logstore.base.metadata import schema
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.crowded_sets import CrowdedSets
from logstore.cluster.members import election
from logstore.cluster.members.departures import Departures
from logstore.cluster.members.view import ClusterView, KnownHead, KnownTopic, stream_name
from logstore.cluster.streams.stored_topics import StoredTopics
from logstore.cluster.streams.wait_notes import WaitNotes
from logstore.cluster.while_there import require_there
from logstore.errors import CorruptRegister, UnknownFormatVersion, UnknownTopicOrPartition
from logstore.format.host_summaries import (
    HOSTS_PER_REPLY,
    MAX_WAITS,
    PLACES_PER_REPLY,
    HostsReply,
    HostSummary,
    PlacesReply,
    PlaceSummary,
    WaitSummary,
)
from logstore.replica.placing import Placing
from logstore.replica.registrations import ChunkRegistration, Member, decode_sealed_chunk

MAX_CHUNKS: Final = 1 << 16
"""256 pages of the metadata store: a second or two."""
STREAMS_AT_ONCE: Final = 250
"""Counted before other tasks run: a millisecond or two."""
REUSE_S: Final = 1.0
MAX_DEPARTED: Final = 1_000
"""Hosts that are gone and remembered, the latest."""


class SurveyedHost(Protocol):
    """What is asked of the host (`logstore.cluster.host`)."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def view(self) -> ClusterView:
        """What it knows of the cluster."""

    @property
    def topics(self) -> StoredTopics:
        """Topics and hosts in the metadata store."""

    @property
    def placing(self) -> Placing:
        """Where chunks of its streams may lie."""

    def owner_of(self, stream: str, /) -> str | None:
        """The host that owns a stream and lives, as far as this one knows."""


class _Departed(NamedTuple):
    member: schema.StoredMember
    gone_ms: int


@dataclass(slots=True)
class _Counts:
    """What a walk over chunks has counted, by host or by stream."""

    held: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    chunks: Counter[str] = field(default_factory=Counter)
    short: Counter[str] = field(default_factory=Counter)
    stuck: Counter[str] = field(default_factory=Counter)
    missing_hosts: dict[str, int] = field(default_factory=dict)
    crowded: int = 0
    """Chunks that have their copies, too close together."""
    is_complete: bool = True
    damaged: set[str] = field(default_factory=set)
    """Streams with an entry that cannot be read."""

    def add(self, stream: str, chunk: ChunkRegistration, copies: int, alive: int) -> None:
        """Count a chunk, of which so many copies are wanted and alive."""
        self.held.update(_named(chunk))
        self.chunks[stream] += 1
        if alive < copies and not chunk.is_tiered_alone:
            self.missing[stream] += copies - alive
            self.short[stream] += 1


class Survey:
    """See the module. `is_reachable` says whether this host has a link to another one."""

    def __init__(
        self, host: SurveyedHost, store: MetadataStore, is_reachable: Callable[[str], bool], clock: Clock
    ) -> None:
        self._host = host
        self.departures = Departures(host.view, store)
        """What operators may change of hosts."""
        self.waits = WaitNotes(store, host.view)
        """What they may change of what waits for chunks."""
        self._view = host.view
        self._store = store
        self._is_reachable = is_reachable
        self._clock = clock
        self._known: Mapping[str, schema.StoredMember] = dict(self._view.members)
        self._departed: dict[str, _Departed] = {}
        self._leaving: set[str] = set()
        self._staying = 0
        """Hosts that live and do not leave, as of the latest count."""
        self._sets = CrowdedSets(host.placing, {})
        """As of the latest count."""
        self._walking = trio.Lock()
        self._latest: tuple[float, HostsReply] | None = None
        self._view.add_observer(self)

    # ---- ViewObserver

    def members_changed(self) -> None:
        """See ViewObserver: remember who has gone, and when, but not who was removed."""
        members = self._view.members
        self._latest = None
        for name in self._known.keys() - members.keys():
            self._departed.pop(name, None)
            self._departed[name] = _Departed(self._known[name], self._clock.wall_ms())
            if len(self._departed) > MAX_DEPARTED:
                del self._departed[next(iter(self._departed))]
        leaving = set(self._view.leaving)
        removed, self._leaving = self._leaving - leaving, leaving
        for name in (members.keys() | removed) & self._departed.keys():
            del self._departed[name]
        self._known = dict(members)

    def topic_changed(self, name: str, before: KnownTopic | None, now: KnownTopic | None) -> None:
        """See ViewObserver."""

    def head_changed(self, stream: str, now: KnownHead | None) -> None:
        """See ViewObserver."""

    # ---- answers

    async def hosts(self) -> HostsReply:
        """All hosts: those that live, those that were seen going, those that chunks name, and those that have joined
        once and were not removed. Raises MetadataError.
        """
        async with self._walking:
            if self._latest is not None and self._clock.monotonic_s() < self._latest[0] + REUSE_S:
                return self._latest[1]
            heads = await self._view.newest_heads()
            counts, joined = await self._count(heads, schema.CHUNKS), await self._host.topics.known_hosts()
            reply = await self._hosts_reply(counts, heads, joined)
            self._latest = (self._clock.monotonic_s(), reply)
            return reply

    async def places(self, topic: str, first: int, addresses: Mapping[int, str]) -> PlacesReply:
        """Partitions of a topic from one on; `addresses` of hosts by node id. Raises UnknownTopicOrPartition,
        MetadataError.
        """
        known = self._view.topics.get(topic)
        if known is None:
            await self._host.topics.check_own()
            raise UnknownTopicOrPartition(f"topic {topic[:80]!r} does not exist")
        topic_id = known.topic.topic_id
        partitions = range(first, min(known.topic.partitions, first + PLACES_PER_REPLY))
        streams = [stream_name(topic_id, partition) for partition in partitions]
        async with self._walking:
            heads = {stream: self._view.heads[stream] for stream in streams if stream in self._view.heads}
            counts = await self._count(heads, f"{schema.CHUNKS}{topic_id}/")
        waits = await self.waits.of_topic(topic_id)
        places = [
            self._place(partition, stream, known.topic, counts, addresses, waits.get(partition, ()))
            for partition, stream in zip(partitions, streams, strict=True)
        ]
        return PlacesReply(tuple(places), counts.is_complete)

    async def hosts_at_hand(self) -> set[str]:
        """The hosts that live, those that were seen going, and those that open chunks name: what is known at hand."""
        names = {*self._view.members, *self._view.leaving, *self._departed}
        for number, known in enumerate(list(self._view.heads.values()), 1):
            if known.head.open_chunk is not None:
                names |= _named(known.head.open_chunk)
            if number % STREAMS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return names

    def require_metadata(self) -> None:
        """Raise MetadataUnavailable if the metadata store does not answer."""
        require_there(self._store)

    def is_alive(self, member: Member) -> bool:
        """Whether a member of a chunk is alive, on the disk that it was chosen with."""
        found = self._view.members.get(member.host)
        return found is not None and found.disk == member.disk

    # ---- counting

    async def _count(self, heads: Mapping[str, KnownHead], prefix: str) -> _Counts:
        """Count the open chunks of streams, and their sealed ones under a prefix."""
        self._staying = len(self._view.members.keys() - self._view.leaving.keys())
        self._sets = CrowdedSets(self._host.placing, self._view.members)
        counts = _Counts()
        for number, (stream, known) in enumerate(heads.items(), 1):
            if known.head.open_chunk is not None:
                self._add(counts, stream, known, known.head.open_chunk)
            if number % STREAMS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        is_whole = not any(key.startswith(schema.STREAMS) for key in self._view.damaged)
        after, left = "", MAX_CHUNKS
        while True:
            page = await self._store.page(prefix, after=after)
            for entry in page.entries:
                stream = entry.key.removeprefix(schema.CHUNKS).rpartition("/")[0]
                if stream in heads:
                    try:
                        self._add(counts, stream, heads[stream], decode_sealed_chunk(entry.value))
                    except (CorruptRegister, UnknownFormatVersion):
                        is_whole = False
                        counts.damaged.add(stream)
            left -= len(page.entries)
            if not page.more or left <= 0:
                counts.is_complete = is_whole and not page.more
                return counts
            after = page.entries[-1].key

    def _add(self, counts: _Counts, stream: str, known: KnownHead, chunk: ChunkRegistration) -> None:
        counts.add(stream, chunk, known.head.copies, sum(map(self.is_alive, chunk.members)))
        counts.crowded += self._sets.has(chunk, known.head.copies)
        lacking = known.head.copies - self._staying
        for host in _named(chunk) & self._view.leaving.keys() if lacking > 0 else ():
            counts.stuck[host] += 1
            counts.missing_hosts[host] = max(lacking, counts.missing_hosts.get(host, 0))

    # ---- summaries

    async def _hosts_reply(
        self, counts: _Counts, heads: Mapping[str, KnownHead], joined: Collection[str]
    ) -> HostsReply:
        members, owners = dict(self._view.members), {}
        for number, (stream, known) in enumerate(heads.items(), 1):
            if not election.is_owner_gone(known.head, members):
                owners[stream] = known.head.owner.host
            if number % STREAMS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        owned = Counter(owners.values())
        missing: Counter[str] = Counter()
        for stream, count in counts.missing.items():
            missing[owners.get(stream) or ""] += count
        named = {*self._view.members, *self._view.leaving, *self._departed, *counts.held, *joined}
        names = sorted(named)[:HOSTS_PER_REPLY]
        streams = sum(known.topic.partitions for known in self._view.topics.values())
        return HostsReply(
            asked=self._host.name,
            hosts=tuple(self._summary(name, owned[name], counts, missing[name]) for name in names),
            streams=streams,
            ownerless=max(0, streams - sum(owned.values())),
            chunks=counts.chunks.total(),
            under_replicated=counts.short.total(),
            is_complete=counts.is_complete,
            crowded=counts.crowded,
        )

    def _summary(self, name: str, owned: int, counts: _Counts, missing: int) -> HostSummary:
        member, departed = self._view.members.get(name), self._departed.get(name)
        state = "alive"
        if member is None:
            state = "gone"
        elif name != self._host.name and not self._is_reachable(name):
            state = "unreachable"
        known = member or (departed.member if departed is not None else None)
        return HostSummary(
            host=name,
            node_id=None if known is None else known.node_id,
            rack="" if known is None else known.rack,
            link="" if known is None else known.link,
            addresses=() if known is None else tuple(known.addresses.values()),
            state=state,
            gone_ms=departed.gone_ms if departed is not None else None,
            streams=owned,
            chunks=counts.held[name],
            missing_copies=missing,
            leaving=leaving.how if (leaving := self._view.leaving.get(name)) is not None else "",
            stuck_chunks=counts.stuck[name],
            missing_hosts=counts.missing_hosts.get(name, 0),
        )

    def _place(
        self,
        partition: int,
        stream: str,
        topic: schema.StoredTopic,
        counts: _Counts,
        addresses: Mapping[int, str],
        waits: Sequence[schema.Wait],
    ) -> PlaceSummary:
        known, owner = self._view.heads.get(stream), self._host.owner_of(stream) or ""
        open_chunk = None if known is None else known.head.open_chunk
        members = () if open_chunk is None else open_chunk.members
        host = self._view.members.get(owner)
        return PlaceSummary(
            partition=partition,
            owner=owner,
            address="" if host is None else addresses.get(host.node_id, ""),
            epoch=0 if known is None else known.head.epoch,
            copies=topic.replicas if known is None else max(topic.replicas, known.head.copies),
            replicas=tuple(member.host for member in members),
            away=tuple(member.host for member in members if not self.is_alive(member)),
            chunks=counts.chunks[stream],
            under_replicated=counts.short[stream],
            min_copies=election.min_copies(topic),
            waits=tuple(map(wait_summary, waits[:MAX_WAITS])),
            is_damaged=stream in counts.damaged or f"{schema.STREAMS}{stream}" in self._view.damaged,
        )


def wait_summary(wait: schema.Wait) -> WaitSummary:
    """What waits for a chunk, as operators are told of it."""
    return WaitSummary(
        since_ms=wait.since_ms,
        chunk=wait.chunk,
        first=wait.first,
        end=wait.end,
        object=wait.object,
        error=wait.error,
        is_lost=wait.lost,
        query=wait.query,
        epoch=wait.epoch,
    )


def _named(chunk: ChunkRegistration) -> set[str]:
    """The hosts that a chunk names: its members, and candidates, which may have a part of it."""
    return {member.host for member in (*chunk.members, *chunk.candidates)}

"""Counts what `logstore.cluster.figures` names, on a host.

Invariants: nothing is changed. Of a registration that is as it was, while the members are too, chunks are not counted
again; a walk over many streams lets other tasks run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.copies.copy_coordinator import CopyCoordinator
from logstore.cluster.figures import ClusterFigures, CopyFigures, HostFigures, LinkFigures, ShortStream
from logstore.cluster.host import ClusterHost
from logstore.cluster.links.links import HostLinks
from logstore.cluster.streams.takeover_waits import TakeoverWaits
from logstore.log.replicas import ReplicaChunks
from logstore.replica.owner_states import TAKING
from logstore.replica.registrations import ChunkRegistration, StreamRegistration

MAX_SHORT: Final = 100
"""Streams that lack copies and are named."""
CHUNKS_AT_ONCE: Final = 1_000
"""Looked at before other tasks run: a millisecond."""


class _Short(NamedTuple):
    """How many chunks of a registration lack copies, whether the open one does, and how many live copies that has."""

    registration: StreamRegistration
    chunks: int
    is_open_short: bool
    open_copies: int


class HostMeter:
    """Implements `ClusterMeter`."""

    def __init__(
        self,
        host: ClusterHost,
        links: HostLinks,
        metadata: MetadataStore,
        replicas: ReplicaChunks,
        coordinator: CopyCoordinator,
        waits: TakeoverWaits,
    ) -> None:
        self._coordinator = coordinator
        self._waits = waits
        self._host = host
        self._replicas = replicas
        self._links = links
        self._metadata = metadata
        self._members: Mapping[str, schema.StoredMember] = {}
        self._short: dict[str, _Short] = {}
        self._under_min = self._at_min = 0

    async def take(self) -> ClusterFigures:
        """See ClusterMeter."""
        host, statistics = self._host, self._host.statistics
        await self._count()
        replicas_open, replicas_sealed = host.replica_counts
        metadata = self._metadata.statistics
        led = (
            stream for stream, owner in host.owners.items() if owner.state in TAKING or stream in statistics.refusing
        )
        owned = sum(1 for _ in led)
        return ClusterFigures(
            members=len(host.view.members),
            owned_streams=owned,
            streams_without_owner=statistics.streams_without_owner + len(host.owners) - owned,
            waiting_takeovers=self._waits.count,
            short_streams=sum(found.is_open_short for found in self._short.values()),
            short_chunks=sum(found.chunks for found in self._short.values()),
            under_min_streams=self._under_min,
            at_min_streams=self._at_min,
            replicas_open=replicas_open,
            replicas_sealed=replicas_sealed,
            waiting_batches=sum(owner.waiting_batches for owner in host.owners.values()),
            takeovers=statistics.takeovers,
            member_failures=statistics.member_failures,
            replica_bytes=self._replicas.size_bytes,
            links=tuple(self._link_figures()),
            hosts=tuple(await self._host_figures()),
            short=tuple(islice(self._short_streams(), MAX_SHORT)),
            copies=self._copy_figures(),
            is_metadata_away=bool(metadata.away),
            metadata_calls=metadata.calls,
            metadata_failures=metadata.attempts_failed,
        )

    def _copy_figures(self) -> CopyFigures:
        tokens, copies = self._host.copy_tokens, self._host.copies
        slots, waiting = copies.flow.speed.counts(trio.current_time())
        return CopyFigures(
            *tokens.counts,
            is_unplanned=not tokens.is_planned,
            is_coordinator=self._coordinator.coordinates,
            made_bytes=copies.flow.copied_bytes,
            served_bytes=copies.served_bytes,
            slots=slots,
            slots_waiting=waiting,
        )

    async def _count(self) -> None:
        """Count chunks of owned streams that lack copies, and streams that have too few members, or just enough."""
        members = dict(self._host.view.members)
        if members != self._members:
            self._members = members
            self._short.clear()
        for stream in self._short.keys() - self._host.owners.keys():
            del self._short[stream]
        looked = under = at = 0
        refusing = self._host.statistics.refusing
        for number, (stream, owner) in enumerate(list(self._host.owners.items()), 1):
            if number % CHUNKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if owner.state not in TAKING:
                self._short.pop(stream, None)
                under += stream in refusing
                continue
            registration, found = owner.registration, self._short.get(stream)
            if found is None or found.registration is not registration:
                found = self._short[stream] = self._find(registration)
                looked += 1 + len(registration.chunks)
            is_under = stream in refusing or found.open_copies < owner.min_copies
            under += is_under
            at += not is_under and found.open_copies == owner.min_copies
            if looked >= CHUNKS_AT_ONCE:
                looked = 0
                await trio.lowlevel.checkpoint()
        self._under_min, self._at_min = under, at

    def _find(self, registration: StreamRegistration) -> _Short:
        short = [chunk for chunk in registration.chunks if self._lacks(chunk, registration.copies)]
        open_chunk = registration.open_chunk
        open_copies = 0 if open_chunk is None else self._live(open_chunk)
        return _Short(registration, len(short), bool(short) and short[-1].is_open, open_copies)

    def _lacks(self, chunk: ChunkRegistration, copies: int) -> bool:
        return not chunk.is_tiered_alone and self._live(chunk) < copies

    def _live(self, chunk: ChunkRegistration) -> int:
        """How many of a chunk's members live, each on its disk."""
        members = self._members
        alive = (member for member in chunk.members if member.host in members)
        return sum(members[member.host].disk == member.disk for member in alive)

    async def _host_figures(self) -> list[HostFigures]:
        """The members, with the streams that each owns by the newest registrations known here."""
        view, owned = self._host.view, Counter[str]()
        for number, known in enumerate(list(view.heads.values()), 1):
            owned[known.head.owner.host] += 1
            if not number % CHUNKS_AT_ONCE:
                await trio.lowlevel.checkpoint()
        return [
            HostFigures(name, member.node_id, member.rack, owned[name])
            for name, member in sorted(view.members.items(), key=lambda entry: entry[1].node_id)
        ]

    def _short_streams(self) -> Iterator[ShortStream]:
        for stream, found in self._short.items():
            topic_id, _, partition = stream.partition("/")
            if found.chunks and topic_id in self._host.view.names:
                yield ShortStream(self._host.view.names[topic_id], int(partition), found.chunks)

    def _link_figures(self) -> Iterator[LinkFigures]:
        for host, counts in sorted(self._links.counts.items()):
            yield LinkFigures(
                host=host,
                is_up=self._links.is_reachable(host),
                sent_messages=counts.sent_messages,
                sent_bytes=counts.sent_bytes,
                received_messages=counts.received_messages,
                received_bytes=counts.received_bytes,
                dropped_messages=counts.dropped_messages,
                queued_bytes=self._links.queued_bytes(host),
            )

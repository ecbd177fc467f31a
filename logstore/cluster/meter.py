"""Counts what `logstore.cluster.figures` names, on a host.

Invariants: nothing is changed; a walk over many streams lets other tasks run.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

import trio

from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.copies.copy_coordinator import CopyCoordinator
from logstore.cluster.figures import ClusterFigures, CopyFigures, HostFigures, LinkFigures
from logstore.cluster.host import ClusterHost
from logstore.cluster.links.links import HostLinks
from logstore.cluster.short_streams import ShortStreams
from logstore.cluster.streams.takeover_waits import TakeoverWaits
from logstore.log.replicas import ReplicaChunks
from logstore.replica.owner_states import TAKING

MAX_SHORT: Final = 100
"""Streams that lack copies and are named."""
STREAMS_AT_ONCE: Final = 1_000
"""Looked at before other tasks run: a millisecond."""


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
        self._short = ShortStreams(host)

    async def take(self) -> ClusterFigures:
        """See ClusterMeter."""
        host, statistics = self._host, self._host.statistics
        short = await self._short.count()
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
            waiting_takeovers=self._waits.count + short.waiting,
            short_streams=short.streams,
            short_chunks=short.chunks,
            crowded_chunks=short.crowded,
            under_min_streams=short.under_min,
            at_min_streams=short.at_min,
            replicas_open=replicas_open,
            replicas_sealed=replicas_sealed,
            waiting_batches=sum(owner.waiting_batches for owner in host.owners.values()),
            takeovers=statistics.takeovers,
            member_failures=statistics.member_failures,
            replica_bytes=self._replicas.size_bytes,
            links=tuple(self._link_figures()),
            hosts=tuple(await self._host_figures()),
            short=tuple(islice(self._short.named(), MAX_SHORT)),
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

    async def _host_figures(self) -> list[HostFigures]:
        """The members, with the streams that each owns by the newest registrations known here."""
        view, owned = self._host.view, Counter[str]()
        for number, known in enumerate(list(view.heads.values()), 1):
            owned[known.head.owner.host] += 1
            if not number % STREAMS_AT_ONCE:
                await trio.lowlevel.checkpoint()
        return [
            HostFigures(name, member.node_id, member.rack, owned[name])
            for name, member in sorted(view.members.items(), key=lambda entry: entry[1].node_id)
        ]

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

"""Counts the streams of a host that lack members or copies, those whose takeover waits for members, and chunks whose
copies lie too close together.

Invariants: nothing is changed. A stream that this host claims counts from the moment at which its registration is read,
whether it takes appends or not: a stream that waits for members is the one that lacks most. Each stream with too few
members for `min.insync.replicas` lacks copies as well, as in Kafka. Of a registration that is as it was, while the
members are too, chunks are not counted again; a walk over many streams lets other tasks run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from logstore.cluster.crowded_sets import CrowdedSets
from logstore.cluster.figures import ShortStream
from logstore.replica.owner_states import TAKING, OwnerState
from logstore.replica.registrations import ChunkRegistration, StreamRegistration

if TYPE_CHECKING:
    from logstore.base.metadata import schema
    from logstore.cluster.host import ClusterHost

CHUNKS_AT_ONCE: Final = 1_000
"""Looked at before other tasks run: a millisecond."""
_UNREAD: Final = (OwnerState.IDLE, OwnerState.READING, OwnerState.DEPOSED)


class _Short(NamedTuple):
    """How many chunks of a registration lack copies, whether the last one does, and how many live copies that has; and
    how many chunks are crowded.
    """

    registration: StreamRegistration
    chunks: int
    is_last_short: bool
    live_copies: int
    crowded: int


class ShortCounts(NamedTuple):
    """Streams of a host, as of one walk."""

    streams: int = 0
    """Those whose last chunk has fewer live members than copies are wanted, or that refuse producers."""
    chunks: int = 0
    """Chunks with fewer live members than copies are wanted."""
    under_min: int = 0
    """Streams whose last chunk has fewer live members than `min.insync.replicas`, or that refuse producers."""
    at_min: int = 0
    """Others whose last chunk has as many."""
    waiting: int = 0
    """Streams that this host has claimed and that take nothing, because members are wanting."""
    crowded: int = 0
    """Chunks that have their copies, more of them in one fault domain than need be."""


class ShortStreams:
    """See the module."""

    def __init__(self, host: ClusterHost) -> None:
        self._host = host
        self._members: Mapping[str, schema.StoredMember] = {}
        self._leaving: Collection[str] = ()
        self._sets = CrowdedSets(host.placing, {})
        self._short: dict[str, _Short] = {}

    async def count(self) -> ShortCounts:
        """Count the streams that this host owns or claims."""
        members = dict(self._host.view.members)
        if members != self._members or self._host.placing.leaving != self._leaving:
            self._members, self._leaving = members, self._host.placing.leaving
            self._sets = CrowdedSets(self._host.placing, members)
            self._short.clear()
        for stream in self._short.keys() - self._host.owners.keys():
            del self._short[stream]
        looked = streams = chunks = under = at = waiting = crowded = 0
        statistics = self._host.statistics
        for number, (stream, owner) in enumerate(list(self._host.owners.items()), 1):
            if number % CHUNKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if owner.state in _UNREAD:
                self._short.pop(stream, None)
                continue
            is_refusing = stream in statistics.refusing
            waiting += owner.state not in TAKING and (is_refusing or stream in statistics.waiting)
            registration, found = owner.registration, self._short.get(stream)
            if found is None or found.registration is not registration:
                found = self._short[stream] = self._find(registration)
                looked += 1 + len(registration.chunks)
            has_chunk = registration.last_chunk is not None  # of a stream that is new no member is missing yet
            is_under = is_refusing or (has_chunk and found.live_copies < owner.min_copies)
            streams += found.is_last_short or is_under
            chunks += found.chunks
            crowded += found.crowded
            under += is_under
            at += not is_under and has_chunk and found.live_copies == owner.min_copies
            if looked >= CHUNKS_AT_ONCE:
                looked = 0
                await trio.lowlevel.checkpoint()
        return ShortCounts(streams, chunks, under, at, waiting, crowded)

    def named(self) -> Iterator[ShortStream]:
        """The streams with chunks that lack copies, as of the last count."""
        for stream, found in self._short.items():
            topic_id, _, partition = stream.partition("/")
            if found.chunks and topic_id in self._host.view.names:
                yield ShortStream(self._host.view.names[topic_id], int(partition), found.chunks)

    def _find(self, registration: StreamRegistration) -> _Short:
        short = [chunk for chunk in registration.chunks if self._lacks(chunk, registration.copies)]
        last = registration.last_chunk
        live = registration.copies if last is None or last.is_tiered_alone else self._live(last)
        crowded = sum(self._sets.has(chunk, registration.copies) for chunk in registration.chunks)
        return _Short(registration, len(short), bool(short) and short[-1] is last, live, crowded)

    def _lacks(self, chunk: ChunkRegistration, copies: int) -> bool:
        return not chunk.is_tiered_alone and self._live(chunk) < copies

    def _live(self, chunk: ChunkRegistration) -> int:
        """How many of a chunk's members live, each on its disk."""
        members = self._members
        alive = (member for member in chunk.members if member.host in members)
        return sum(members[member.host].disk == member.disk for member in alive)

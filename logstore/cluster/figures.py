"""What a host's monitoring shows of its cluster.

Invariants: this module loads nothing of the cluster, so that a sidecar that is alone may name its types. Figures are as
the host sees the cluster: those of streams, replicas and links are its own.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(slots=True)
class HostStatistics:
    """Figures of a host, as of now. `ticking_owners`: streams that are owned here and not at rest."""

    owned_streams: int = 0
    ticking_owners: int = 0
    streams_without_owner: int = 0
    takeovers: int = 0
    """Streams since the start that this host owns, or did, and that had an owner before."""
    member_failures: int = 0
    """Members since the start that owned streams went on without."""
    refusing: Collection[str] = ()
    """Owned streams that refuse producers, because they have too few members."""
    waiting: Collection[str] = ()
    """Owned or claimed streams that take nothing, and of which the operator was told why."""


class LinkFigures(NamedTuple):
    """What went over the links to and from another host since the start, and what waits for it."""

    host: str
    is_up: bool
    sent_messages: int
    sent_bytes: int
    received_messages: int
    received_bytes: int
    dropped_messages: int
    queued_bytes: int


class HostFigures(NamedTuple):
    """A host that is a member: its number, its rack, and how many streams it owns."""

    host: str
    node_id: int
    rack: str
    owned_streams: int


class ShortStream(NamedTuple):
    """A stream of this host some of whose chunks have fewer live members than copies are wanted."""

    topic: str
    partition: int
    chunks: int


class CopyFigures(NamedTuple):
    """Copies of chunks: of this host's streams those that may be made now and those that wait, whether they go without
    a plan, whether this host plans those of the cluster, and bytes that were copied to this host and from it since the
    start. Hosts from which copies come with a slot, and those from which they come at the least rate for want of one.
    """

    going: int
    waiting: int
    is_unplanned: bool
    is_coordinator: bool
    made_bytes: int
    served_bytes: int
    slots: int = 0
    slots_waiting: int = 0


class ClusterFigures(NamedTuple):
    """The figures of one moment. Counts of calls, failures and takeovers are since the start."""

    members: int
    owned_streams: int
    streams_without_owner: int
    """Those that this host claims, and does not own yet, among them."""
    waiting_takeovers: int
    """Owned streams that take no appends, because what says who has written cannot be read, or members are wanting."""
    short_streams: int
    """Owned streams whose last chunk has fewer live members than copies are wanted, or that refuse producers; those
    that take no appends yet among them, here and below."""
    short_chunks: int
    """Chunks of owned streams with fewer live members than copies are wanted."""
    crowded_chunks: int
    """Chunks of owned streams that have their copies, more of them in one fault domain than need be."""
    under_min_streams: int
    """Owned streams whose last chunk has fewer live members than `min.insync.replicas`, or that refuse producers."""
    at_min_streams: int
    """Others whose last chunk has as many live members, so that the loss of one more matters."""
    replicas_open: int
    replicas_sealed: int
    replica_bytes: int
    """Of all copies of chunks on this host."""
    waiting_batches: int
    takeovers: int
    member_failures: int
    links: tuple[LinkFigures, ...]
    hosts: tuple[HostFigures, ...]
    short: tuple[ShortStream, ...]
    """The first MAX_SHORT of them."""
    copies: CopyFigures
    is_metadata_away: bool
    metadata_calls: int
    metadata_failures: int


class ClusterMeter(Protocol):
    """Takes the figures of a host's cluster."""

    async def take(self) -> ClusterFigures:
        """The figures of now."""

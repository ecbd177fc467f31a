"""A sidecar's part in a cluster, as the sidecar sees it; `logstore.cluster.running` puts it together.

Invariant: a sidecar that is alone loads this module, and nothing that runs one.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import NamedTuple, Protocol

import trio

from logstore.base.certificates import LoadedTls
from logstore.base.clock import Clock
from logstore.base.copy_slots import SlotDesk
from logstore.base.events import Report
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.epochs.epochs_home import EpochsHome, StagingLimits
from logstore.cluster.epochs.reader_holds import ReaderHolds
from logstore.cluster.epochs.readers_home import ReadersHome
from logstore.cluster.epochs.replicated_ledger import LedgerHome, ReplicatedLedger
from logstore.cluster.figures import ClusterMeter
from logstore.cluster.members.placement import Placement
from logstore.cluster.settings import ClusterSecurity, ClusterSettings, EtcdUrl, SqliteUrl
from logstore.cluster.streams.owner_calls import CallServer, OwnerCalls
from logstore.cluster.streams.stored_access import StoredAccess
from logstore.cluster.streams.topics import ClusterTopics
from logstore.cluster.survey import Survey
from logstore.disk.scrub import ScrubHooks
from logstore.engine import StoreEngine
from logstore.format.host_summaries import ClusterGlance
from logstore.interfaces import FileSystem
from logstore.log.served import ServingEngine
from logstore.tier.service import TierMeter, TierStores


class LocalParts(NamedTuple):
    """What a host has without the cluster."""

    engine: StoreEngine
    files: FileSystem
    clock: Clock
    report: Report
    random: Random
    new_id: Callable[[], uuid.UUID]
    nursery: trio.Nursery
    limits: StagingLimits = StagingLimits()
    tier: TierStores | None = None
    directory: str = ""
    """What errors call the data directory."""


class Homes(NamedTuple):
    """What one host of the cluster has at a time, and how to reach that host."""

    groups: LedgerHome[ReplicatedLedger]
    epochs: EpochsHome
    readers: ReadersHome
    holds: ReaderHolds
    owners: OwnerCalls
    calls: CallServer
    topics: ClusterTopics


class HostMember(Protocol):
    """This host as a member of its cluster."""

    @property
    def lease_id(self) -> int:
        """The lease under which it is one; 0: it surely is none now."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def start(self) -> str:
        """The random name of the life that it is in."""


class ClusterPart(Protocol):
    """A host that takes part in a cluster."""

    @property
    def engine(self) -> ServingEngine:
        """What serves clients: the topics of the cluster."""

    @property
    def placement(self) -> Placement:
        """Where streams are."""

    @property
    def homes(self) -> Homes:
        """The groups and the epochs, while this host has them."""

    @property
    def survey(self) -> Survey:
        """What operators' commands are told of hosts and places."""

    async def glance(self) -> ClusterGlance:
        """How the cluster is, for a summary of this host."""

    @property
    def meter(self) -> ClusterMeter:
        """The figures of metrics."""

    @property
    def access(self) -> StoredAccess:
        """Users, access control lists and quotas."""

    @property
    def member(self) -> HostMember:
        """This host as a member, for what one host of the cluster does at a time."""

    @property
    def metadata(self) -> MetadataStore:
        """What the hosts agree on."""

    @property
    def slots(self) -> SlotDesk:
        """Where hosts ask the coordinator of checkpoints for slots for their copies."""

    def read_place_again(self) -> None:
        """Read again where this host is, soon."""

    @property
    def scrub_hooks(self) -> ScrubHooks:
        """What the scrub of this host's replicas asks and tells."""

    @property
    def certificates(self) -> Sequence[LoadedTls]:
        """Those of links and of connections to the metadata store, as far as there are any."""

    @property
    def tier(self) -> TierMeter | None:
        """The tier; None: there is none."""

    async def join(self, addresses: Mapping[str, str], nursery: trio.Nursery) -> None:
        """Become a member, with these listeners. Raises HostNameTaken, NodeIdTaken, DiskRefused, in groups."""

    async def resign(self) -> None:
        """Let other hosts take over, before an end."""


OpenAccess = Callable[[EtcdUrl | SqliteUrl, ClusterSecurity, Random, Report], AbstractAsyncContextManager[StoredAccess]]
"""Opens users, access control lists and quotas for who is no host. Raises CairnError."""
OpenMetadata = Callable[
    [EtcdUrl | SqliteUrl, ClusterSecurity, Random, Report], AbstractAsyncContextManager[MetadataStore]
]
"""Opens the metadata store of a cluster. Raises ConfigError."""
StartCluster = Callable[[ClusterSettings, LocalParts], Awaitable[ClusterPart]]
"""Takes all steps of a start but `join`. Raises CairnError, OSError."""

"""Assembles a host of a cluster: metadata store, links, copies of chunks, and the services of the Kafka front.

Order of a start: the metadata store, the identity of this host, the view of the cluster, topics, the links, the host
itself; then `join`, when the listeners of clients are open. Order of an end: `resign`, then the nursery is cancelled.

Invariant: a single sidecar does not load this module.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import trio

from logstore.base.addresses import parse_address
from logstore.base.certificates import Failure, LoadedTls, followed
from logstore.base.events import Report
from logstore.base.metadata.etcd.settings import EtcdSettings, EtcdTls
from logstore.base.metadata.etcd.store import EtcdMetadataStore, open_etcd
from logstore.base.metadata.interface import MetadataStore
from logstore.base.metadata.sqlite import open_sqlite
from logstore.base.racks import HostPlace
from logstore.base.secret_files import SecretFile
from logstore.base.tls import PeerTls
from logstore.cluster.copies.copy_coordinator import CopyCoordinator
from logstore.cluster.copies.copy_requests import CopyRequests
from logstore.cluster.copies.slot_calls import SlotCounter, SlotRequests
from logstore.cluster.engine import ClusterEngine
from logstore.cluster.epochs.epoch_holds import EpochHolds
from logstore.cluster.epochs.epochs_home import EpochsHome
from logstore.cluster.epochs.group_appends import GroupAppends
from logstore.cluster.epochs.reader_holds import ReaderHolds
from logstore.cluster.epochs.readers_home import ReadersHome
from logstore.cluster.epochs.replicated_ledger import LedgerHome, LedgerServices, ReplicatedLedger
from logstore.cluster.glance import GlanceTaker
from logstore.cluster.host import ClusterHost, HostParts
from logstore.cluster.links.links import HostLinks
from logstore.cluster.links.peer_list import PeerList
from logstore.cluster.links.peers import OwnEnd
from logstore.cluster.members.host_identity import HostIdentity, establish_identity, give_back_identity
from logstore.cluster.members.membership import Announcement, Membership
from logstore.cluster.members.placement import Placement
from logstore.cluster.members.view import ClusterView
from logstore.cluster.meter import HostMeter
from logstore.cluster.own_place import OwnPlace
from logstore.cluster.part import Homes, HostMember, LocalParts, OpenAccess, OpenMetadata, StartCluster
from logstore.cluster.settings import ClusterSecurity, ClusterSettings, EtcdUrl, SqliteUrl
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.owner_calls import ASK_SLOTS, TELL_GOES, TELL_WISHES, OwnerCalls
from logstore.cluster.streams.producer_ids import ProducerIds
from logstore.cluster.streams.refusal_window import RefusedFirsts
from logstore.cluster.streams.replica_files import LocalReplicaFiles
from logstore.cluster.streams.replicated_stream import StreamServices
from logstore.cluster.streams.retention import ClusterRetention
from logstore.cluster.streams.retention_clock import ClusterClock
from logstore.cluster.streams.signs_of_life import SignsOfLife
from logstore.cluster.streams.stored_access import HEAD, StoredAccess
from logstore.cluster.streams.takeover_waits import TakeoverWaits, WaitTimes
from logstore.cluster.streams.topics import GROUPS_TOPIC, ClusterFacts, ClusterTopics
from logstore.cluster.streams.wait_tidying import WaitTidying
from logstore.cluster.survey import Survey
from logstore.cluster.tier.tier_service import ClusterTierService
from logstore.disk.scrub import ScrubHooks
from logstore.errors import ConfigError, HostNameTaken, NodeIdTaken
from logstore.format.host_summaries import ClusterGlance
from logstore.replica.messages import Message
from logstore.tier.service import TierMeter
from scheduler.peace.replica_sets import ReplicaSets

ETCD_ATTEMPT_S: Final = 1.0
"""For an answer of an endpoint: a lease of three seconds outlasts an endpoint that is silent."""


MEMBERSHIP_S: Final = 2.0
"""How long a start waits to see itself among the members, and an end for the end of the lease, which ends by itself
otherwise.
"""


class Views(NamedTuple):
    """What operators ask of the cluster, who may do what, the certificates of links and of connections to etcd,
    where this host is, the tier (None: there is none), the metadata store, where hosts ask for slots for their copies,
    and what a host does that was refused.
    """

    survey: Survey
    meter: HostMeter
    access: StoredAccess
    certificates: Sequence[LoadedTls]
    own_place: OwnPlace
    tier: TierMeter | None
    metadata: MetadataStore
    slots: SlotCounter
    give_back: Callable[[], Awaitable[None]]


class RunningCluster:
    """A host that takes part in a cluster."""

    def __init__(
        self,
        engine: ClusterEngine,
        placement: Placement,
        homes: Homes,
        host: ClusterHost,
        joins: Membership,
        addresses: dict[str, str],
        views: Views,
    ) -> None:
        self.engine = engine
        self.placement = placement
        self.homes = homes
        self._host = host
        self._membership = joins
        self._addresses = addresses
        self.survey, self.meter, self.access, self.certificates, self._own_place, self.tier = views[:6]
        self.metadata, self.slots = views.metadata, views.slots
        self._give_back = views.give_back
        self._glances = GlanceTaker(host, views.survey)
        self._farewell = trio.Event()
        """Set when the membership has ended."""
        self._farewell.set()

    @property
    def member(self) -> HostMember:
        """This host as a member, for what one host of the cluster does at a time."""
        return self._host

    @property
    def scrub_hooks(self) -> ScrubHooks:
        """What the scrub of this host's replicas asks and tells."""
        return ScrubHooks(self._host.copies.turn, self._host.disk.found_damaged)

    async def glance(self) -> ClusterGlance:
        """How the cluster is, for a summary of this host."""
        return await self._glances.look()

    def read_place_again(self) -> None:
        """Read again where this host is, soon."""
        self._own_place.look_again()

    async def join(self, addresses: Mapping[str, str], nursery: trio.Nursery) -> None:
        """Become a member, with these listeners, and one that knows it: who is told that this host is ready may ask it
        for all hosts that were there. Raises HostNameTaken, NodeIdTaken, DiskRefused, in groups.
        """
        self._addresses.update(addresses)
        revision: int = await nursery.start(self._stay_member)
        with trio.move_on_after(MEMBERSHIP_S):  # the metadata store may go away at this moment
            await self._host.view.members_reached(revision)

    async def _stay_member(self, task_status: trio.TaskStatus[int]) -> None:
        self._farewell = trio.Event()
        try:
            await self._membership.run(task_status)
        except* (HostNameTaken, NodeIdTaken):
            if self._membership.never_joined:
                await self._give_back()
            raise
        finally:
            self._farewell.set()

    async def resign(self) -> None:
        """Let other hosts take over, before an end; the lease has ended then."""
        await self._host.resign()
        with trio.move_on_after(MEMBERSHIP_S):
            await self._farewell.wait()


class _Observer:
    """Takes what the links bring to the host."""

    def __init__(self) -> None:
        self.host: ClusterHost | None = None

    def received(self, host: str, message: Message) -> None:
        """See LinkObserver."""
        if self.host is not None:
            self.host.receive(host, message)

    def connected(self, host: str) -> None:
        """See LinkObserver."""

    def lost(self, host: str) -> None:
        """See LinkObserver."""

    def refused(self, host: str) -> None:
        """See LinkObserver."""
        if self.host is not None:
            self.host.peer_refused(host)


async def start_cluster(settings: ClusterSettings, local: LocalParts) -> RunningCluster:
    """Take all steps of a start but `join`; tasks run in the nursery.

    Raises DiskRefused, WrongCluster, CorruptFile, AddressError, OSError, MetadataError.
    """
    nursery, report = local.nursery, local.report
    metadata: MetadataStore = await nursery.start(
        _hold, open_metadata(settings.metadata, settings.security, local.random, report)
    )
    tls = PeerTls(settings.security.peer) if settings.security.peer.certificate else None
    certificates = followed(((tls, trio.sleep_forever), _tls_of(metadata)), nursery, local.clock, report)
    identity, give_back = await _identity(settings.host, local, metadata)
    files = await LocalReplicaFiles.open(local.engine)
    view, observer = ClusterView(metadata, report), _Observer()
    own = OwnEnd(identity.cluster_id, identity.member, observer, report, tls=tls)
    links = HostLinks(own)
    link = await nursery.start(links.serve, settings.listen)
    PeerList(view, links, report)
    addresses: dict[str, str] = {}
    told = str(settings.advertise or link)
    own_place = OwnPlace(settings.place, (settings.host, parse_address(told).host), report)
    announced = Announcement(settings.node_id, told, addresses, await _place(own_place, give_back))
    membership = Membership(metadata, identity, announced, report, settings.lease_s)
    parts = HostParts(
        identity, metadata, view, links, files, report, ReplicaSets, settings.copy_rates, settings.copy_grace_s,
        own.bursts,
    )  # fmt: skip
    host = observer.host = ClusterHost(parts, membership)
    store_settings, producer_ids = local.engine.store.settings, ProducerIds(metadata)
    age = await ClusterClock.open(metadata, local.clock)
    waits = _takeover_waits(local, metadata, age)
    reads = ChunkReads(local.engine, host, files, local.clock, report, waits, nursery.start_soon)
    retention = ClusterRetention(age, local.clock, store_settings, report)
    spawn, is_away = nursery.start_soon, partial(_is_away, metadata)
    load, refused = reads.load_producers, RefusedFirsts()
    services = StreamServices(host, local.clock, report, load, spawn, retention, is_away, refused)
    facts = ClusterFacts(identity.cluster_id, settings.node_id, store_settings, settings.default_replicas)
    topics = ClusterTopics(host, facts, producer_ids, services, local.new_id)
    access = StoredAccess(metadata, report, nursery.start_soon)
    nursery.start_soon(own_place.follow, membership.move)
    await _follow(view, access, nursery)
    topics.take_all()
    await nursery.start(host.run)
    nursery.start_soon(producer_ids.run)
    nursery.start_soon(age.run)
    local.engine.store.space.when_short(retention.all_due)
    signs = SignsOfLife(settings.host, links.calls, links.is_reachable, nursery.start_soon)
    node_id, members = settings.node_id, lambda: view.members
    placement = Placement(host, members, addresses, topics.groups_topic, node_id, signs.wait, topics)
    ledgers = LedgerServices(topics, reads, metadata, local.clock, report)
    engine, owners = ClusterEngine(local.engine, topics, reads, own.bursts), OwnerCalls(host, links.calls)
    groups = LedgerHome(GROUPS_TOPIC, ledgers, lambda stream: ReplicatedLedger(stream, local.clock))
    readers = ReadersHome(topics, groups, store_settings.hold_limits, age.now_ms, report)
    holds = retention.holds = ReaderHolds(topics, owners, lambda: readers.stream, metadata)
    homes = Homes(groups, EpochsHome(ledgers, owners, local.limits), readers, holds, owners, links.calls, topics)
    retention.epochs = under_way = EpochHolds(owners, lambda: homes.epochs.known_stream, metadata, nursery.start_soon)
    readers.answer_owners(links.calls)
    homes.epochs.answer_owners(links.calls)
    holds.answer_home(links.calls)
    nursery.start_soon(retention.run, topics.streams)
    coordinator = _plan_copies(host, metadata, links, local)
    GroupAppends(topics, engine, under_way, local.clock, nursery.start_soon, waits).serve(links.calls)
    nursery.start_soon(WaitTidying(metadata, topics.streams, reads, engine, under_way, waits).run)
    nursery.start_soon(homes.epochs.run)
    survey = Survey(host, metadata, links.is_reachable, local.clock)
    meter = HostMeter(host, links, metadata, local.engine.store.replicas, coordinator, waits)
    slots = _ask_for_slots(host, metadata, links, membership, nursery)
    tier = _start_tier(local, topics, host, age)
    views = Views(survey, meter, access, certificates, own_place, tier, metadata, slots, give_back)
    return RunningCluster(engine, placement, homes, host, membership, addresses, views)


async def _identity(
    host: str, local: LocalParts, metadata: MetadataStore
) -> tuple[HostIdentity, Callable[[], Awaitable[None]]]:
    """Who this host is, and how it gives that back."""
    identity = await establish_identity(metadata, local.files, host, local.random, local.report, local.directory)
    return identity, partial(give_back_identity, metadata, local.files, identity)


async def _place(own_place: OwnPlace, give_back: Callable[[], Awaitable[None]]) -> HostPlace:
    """Where this host is. One that does not start for want of that is no host of the cluster. Raises ConfigError."""
    try:
        return await trio.to_thread.run_sync(own_place.read)
    except ConfigError:
        await give_back()
        raise


async def _follow(view: ClusterView, access: StoredAccess, nursery: trio.Nursery) -> None:
    """Follow what the metadata store has, from now on; returns when all that was there is known."""
    nursery.start_soon(view.run)
    nursery.start_soon(access.run)
    await view.complete()
    await access.complete()


def _tls_of(metadata: MetadataStore) -> tuple[LoadedTls | None, Failure]:
    """What connections to the metadata store are made with, if that is files, and the next failure of one."""
    if isinstance(metadata, EtcdMetadataStore):
        return metadata.tls, metadata.wait_failure
    return None, trio.sleep_forever


def _is_away(metadata: MetadataStore) -> bool:
    return bool(metadata.statistics.away)


def _takeover_waits(local: LocalParts, metadata: MetadataStore, age: ClusterClock) -> TakeoverWaits:
    times = WaitTimes(local.clock, age.now_ms, local.engine.store.settings.producer_expiry_ms)
    return TakeoverWaits(metadata, times, local.report, local.nursery.start_soon)


def _start_tier(
    local: LocalParts, topics: ClusterTopics, host: ClusterHost, age: ClusterClock
) -> ClusterTierService | None:
    """The tier, which begins to store chunks; None if there is none."""
    if local.tier is None:
        return None
    tier = ClusterTierService(topics, host, local.engine, age, local.tier)
    local.nursery.start_soon(tier.run)
    return tier


def _plan_copies(host: ClusterHost, metadata: MetadataStore, links: HostLinks, local: LocalParts) -> CopyCoordinator:
    """Have this host's copies be requests to the plan of the cluster, which this host may come to make."""
    coordinator = CopyCoordinator(host, metadata, links.calls, local.random, local.report)
    requests = CopyRequests(host.name, host.copy_tokens, coordinator, metadata, links.calls, host.view, local.report)
    links.calls.handle(TELL_WISHES, coordinator.serve)
    links.calls.handle(TELL_GOES, requests.serve)
    local.nursery.start_soon(coordinator.run)
    local.nursery.start_soon(requests.run)
    return coordinator


def _ask_for_slots(
    host: ClusterHost, metadata: MetadataStore, links: HostLinks, membership: Membership, nursery: trio.Nursery
) -> SlotCounter:
    """Have copies to this host ask whoever leads for leave to be fast, and this host answer when it leads."""
    slots = SlotCounter(host, lambda: membership.lease_for_s)
    links.calls.handle(ASK_SLOTS, slots.serve)
    nursery.start_soon(SlotRequests(host, metadata, links.calls).run)
    return slots


START: Final[StartCluster] = start_cluster
"""For who does not know this module's types."""


def open_metadata(
    where: EtcdUrl | SqliteUrl, security: ClusterSecurity, random: Random, report: Report
) -> AbstractAsyncContextManager[MetadataStore]:
    """The metadata store of a cluster. Raises ConfigError."""
    if isinstance(where, EtcdUrl):
        etcd = EtcdSettings(
            endpoints=where.endpoints,
            namespace=where.namespace,
            attempt_s=ETCD_ATTEMPT_S,
            user=security.etcd_user,
            password=_followed_password(security.etcd_password_file, report),
            tls=_etcd_tls(security),
        )
        return open_etcd(etcd, random, report)
    return open_sqlite(where.path, random)


OPEN_METADATA: Final[OpenMetadata] = open_metadata
"""For who does not know this module's types."""


@asynccontextmanager
async def open_access(
    where: EtcdUrl | SqliteUrl, security: ClusterSecurity, random: Random, report: Report
) -> AsyncIterator[StoredAccess]:
    """Users, access control lists and quotas of a cluster, for who is no host of it. Raises CairnError."""
    async with open_metadata(where, security, random, report) as metadata, trio.open_nursery() as nursery:
        await metadata.get(HEAD)  # raises what prevents it, where following would wait
        access = StoredAccess(metadata, report, nursery.start_soon)
        nursery.start_soon(access.run)
        await access.complete()
        yield access
        nursery.cancel_scope.cancel()


OPEN_ACCESS: Final[OpenAccess] = open_access
"""For who does not know this module's types."""


def _etcd_tls(security: ClusterSecurity) -> EtcdTls | None:
    """None: etcd's certificate, if it has one, is of an authority that the system knows."""
    if not security.etcd_ca:
        return None
    return EtcdTls(security.etcd_ca, security.etcd_certificate, security.etcd_key)


def _followed_password(path: str, report: Report) -> SecretFile | str:
    """The password in a file, as new as the file; "" for no file. Raises ConfigError."""
    return SecretFile(partial(_password, path), path, report, setting="etcd-password-file") if path else ""


def _password(path: str) -> str:
    """The password in a file, without the end of its line. Raises ConfigError."""
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"etcd-password-file {path!r} cannot be read: {error}") from error


async def _hold(
    opened: AbstractAsyncContextManager[MetadataStore],
    task_status: trio.TaskStatus[MetadataStore] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep a metadata store open until cancelled."""
    async with opened as store:
        task_status.started(store)
        await trio.sleep_forever()

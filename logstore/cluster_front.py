"""What a sidecar is made of as a host of a cluster, in place of what it has alone.

Invariant: a sidecar that is alone loads nothing of this module, nor of what it imports; `logstore.sidecar` asks FRONT.
"""

import secrets
import uuid
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from random import SystemRandom
from typing import Final, NamedTuple

import trio

from logstore.base.events import Report
from logstore.base.system import SystemClock
from logstore.cluster.epochs.epochs_home import StagingLimits
from logstore.cluster.epochs.replicated_ledger import ReplicatedLedger
from logstore.cluster.part import ClusterPart, Homes, LocalParts, StartCluster
from logstore.cluster.settings import ClusterSettings
from logstore.config import SidecarConfig
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine
from logstore.errors import ConfigError
from logstore.kafka.acls import AclHandlers
from logstore.kafka.api_types import Api, ApiHandlers, Broker, compose
from logstore.kafka.cluster import ClusterHandlers
from logstore.kafka.configs import ConfigHandlers
from logstore.kafka.epoch_routing import EpochRouting
from logstore.kafka.groups.coordination import GroupCoordination
from logstore.kafka.groups.followed import commits_by_stream, committed_offsets
from logstore.kafka.groups.generation_log import GenerationLog
from logstore.kafka.groups.generations import KeptGenerations
from logstore.kafka.groups.handlers import GroupHandlers
from logstore.kafka.groups.limited_ledger import LimitedLedger
from logstore.kafka.groups.offsets import OffsetStore
from logstore.kafka.hosts import cluster_apis
from logstore.kafka.metadata import MetadataHandlers
from logstore.kafka.offsets import OffsetHandlers
from logstore.kafka.operators import HostFacts, summary_api, tier_api
from logstore.kafka.producer_ids import ProducerIdHandlers
from logstore.kafka.quotas import QuotaHandlers
from logstore.kafka.reader_routing import ReaderRouting
from logstore.kafka.scans import scan_apis
from logstore.kafka.security.handlers import UserHandlers
from logstore.kafka.security.login import login_apis
from logstore.kafka.security.stores import CallerStores, open_stores
from logstore.kafka.server import Listener
from logstore.kafka.topics import TopicHandlers
from logstore.log.store import Store
from logstore.monitoring.sampler import Here
from logstore.refusals import refuse_own_callers
from logstore.tier.starting import open_tier

CLUSTER_ROOM: Final = "logstore.cluster.running"
"""Loaded only by a host of a cluster."""
MakeGroups = Callable[[OffsetStore, GenerationLog], GroupHandlers]
"""All groups over these offsets and generations."""


class FrontParts(NamedTuple):
    """What the sidecar has made, and a host of a cluster serves clients with. `known`: the requests about groups."""

    broker: Broker
    own: Store
    stores: CallerStores
    listeners: Sequence[Listener]
    facts: Callable[[], HostFacts]
    make_groups: MakeGroups
    known: Sequence[Api]


class ServedCluster(NamedTuple):
    """What a host of a cluster serves, and what monitoring asks of it. `run` coordinates groups and never returns."""

    handlers: ApiHandlers
    here: Here
    run: Callable[[], Awaitable[None]]


class ClusterFront(NamedTuple):
    """What the sidecar asks for, by name."""

    start: Callable[
        [SidecarConfig, ClusterSettings, StoreEngine, CallerStores, OsFiles, Report, trio.Nursery],
        Awaitable[ClusterPart],
    ]
    parts: type[FrontParts]
    callers: Callable[[ClusterPart], CallerStores]
    serve: Callable[[ClusterPart, FrontParts], ServedCluster]


async def _start(
    settings: SidecarConfig,
    wanted: ClusterSettings,
    engine: StoreEngine,
    own: CallerStores,
    files: OsFiles,
    report: Report,
    nursery: trio.Nursery,
) -> ClusterPart:
    """The sidecar's part in a cluster, before it joins. Raises CairnError, OSError."""
    if engine.store.topics:
        raise ConfigError(
            f"{settings.data_dir} holds topics of a single sidecar, which a cluster does not serve: give an "
            "empty --data-dir"
        )
    refuse_own_callers(settings.data_dir, own)
    start: StartCluster = import_module(CLUSTER_ROOM).START
    random, clock = SystemRandom(), SystemClock()
    limits = StagingLimits(settings.staging_bytes, settings.staged_age_ms)
    tier, directory = open_tier(settings.tier, report), str(settings.data_dir)
    local = LocalParts(engine, files, clock, report, random, uuid.uuid4, nursery, limits, tier, directory)
    return await start(wanted, local)


def _callers(cluster: ClusterPart) -> CallerStores:
    """Users, access control lists and quotas of the cluster."""
    return open_stores(cluster.access, cluster.access, secrets.token_bytes, lambda: cluster.access.is_damaged)


def _serve(cluster: ClusterPart, parts: FrontParts) -> ServedCluster:
    """What clients of the cluster are served by this host."""
    coordination = _coordination(parts.make_groups, parts.broker, cluster, parts.known)
    handlers = _cluster_handlers(parts, coordination, cluster)
    return ServedCluster(handlers, _here(coordination, cluster.homes), coordination.run)


def _coordination(
    make_groups: MakeGroups, broker: Broker, cluster: ClusterPart, known: Sequence[Api]
) -> GroupCoordination:
    """The groups of a cluster, on the host that coordinates them, and the registered readers beside them."""
    readers = cluster.homes.readers

    def make(ledger: ReplicatedLedger) -> GroupHandlers:
        limited = LimitedLedger(ledger, lambda: ledger.stream.lacks_members, broker.clock)
        offsets = OffsetStore(limited, commits_by_stream(readers.note_commits))
        return make_groups(offsets, KeptGenerations(limited, broker.clock))

    async def beside(ledger: ReplicatedLedger, handlers: GroupHandlers) -> None:
        await readers.serve(ledger, committed_offsets(broker.engine.store, handlers.service))

    return GroupCoordination(cluster.homes.groups, make, known, beside)


def _here(coordination: GroupCoordination, homes: Homes) -> Here:
    """What a host of a cluster has of what one host has at a time."""
    return Here(coordination.services, lambda: homes.epochs.epochs, lambda: homes.readers.readers)


def _cluster_handlers(parts: FrontParts, coordination: GroupCoordination, cluster: ClusterPart) -> ApiHandlers:
    """What a host of a cluster serves."""
    broker, stores = parts.broker, parts.stores
    homes = cluster.homes
    routing = EpochRouting(broker, homes.epochs, homes.owners)
    routing.serve(homes.calls)
    readers = ReaderRouting(broker, homes.topics, homes.readers, homes.holds, homes.owners)
    readers.serve(homes.calls)
    apis: list[Api] = [
        *MetadataHandlers(broker).apis(),
        *OffsetHandlers(broker).apis(),
        *TopicHandlers(broker, lambda _name, _topic_id: ()).apis(),
        *ConfigHandlers(broker, parts.listeners).apis(),
        *ClusterHandlers(broker).apis(),
        *ProducerIdHandlers(broker).apis(),
        *AclHandlers(broker, stores.acls).apis(),
        *QuotaHandlers(broker, stores.quotas).apis(),
        *coordination.apis(),
        *login_apis(),
        *UserHandlers(broker, stores.users).apis(),
    ]
    asked = (cluster.survey.waits.names, cluster.glance)
    summary = summary_api(
        broker, parts.own, lambda: homes.epochs.epochs, lambda: homes.readers.readers, parts.facts, *asked
    )
    private = (
        summary,
        tier_api(broker),
        *cluster_apis(broker, cluster.survey),
        *scan_apis(broker),
        *routing.apis(),
        *readers.apis(),
    )
    return compose(apis, private)


FRONT: Final = ClusterFront(_start, FrontParts, _callers, _serve)

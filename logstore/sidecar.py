"""Assembles a sidecar, from the data directory to the listeners, and runs it.

Invariants:
* Nothing is served before everything is recovered and committed epochs are rolled forward. The sidecar is ready when
  all its services are available.
* At SIGTERM or SIGINT, ready or not, the listeners close, pending work is finished and written, and the exit status is
  0, also if further signals come.
* SIGHUP loads the certificates, the coordinator's network and the place of a cluster's host again, and changes nothing
  else.
* A failed start prints one line, and its exit status is 1 or 2.
"""

from __future__ import annotations

import argparse
import gc
import resource
import secrets
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from logstore import config
from logstore.access.entries import LedgerEntries
from logstore.base import service_manager
from logstore.base.addresses import Address
from logstore.base.certificates import LoadedTls, follow_certificates, reload_certificates
from logstore.base.clock import Clock
from logstore.base.collector import FullCollections
from logstore.base.directory import locked_directory
from logstore.base.errors import DirectoryInUse
from logstore.base.events import Report
from logstore.base.failures import leaves, sentence
from logstore.base.heap import Heap
from logstore.base.name_lookups import look_names_up_apart
from logstore.base.report import Reporter
from logstore.base.stop_signals import receive_signals
from logstore.base.system import SystemClock
from logstore.base.tls import ServerTls
from logstore.config import SidecarConfig
from logstore.disk.files import MAX_DESCRIPTORS, OsFiles
from logstore.disk.heap_watch import watch_heap
from logstore.disk.parallel import map_on_threads
from logstore.disk.scrub import ALONE
from logstore.disk.shared_state import Reclaimed, SharedState
from logstore.engine import StoreEngine, open_engine
from logstore.epochs.epochs import Epochs
from logstore.epochs.journaled import decided_in_journal
from logstore.epochs.parts import of_host
from logstore.epochs.staging import Staging
from logstore.errors import CairnError, StorageFailed
from logstore.events import (
    FEWER_CONNECTIONS,
    HANGUP_IGNORED,
    NO_USERS,
    READY,
    RECOVERED,
    STATE_NOT_RECLAIMED,
    STATE_RECLAIMED,
    STOPPED,
    STOPPING,
)
from logstore.inner_coordinator import start_coordinator, told_address
from logstore.kafka import epochs as epoch_requests
from logstore.kafka.acls import AclHandlers
from logstore.kafka.api_types import Api, ApiHandlers, Broker, BrokerSettings, compose
from logstore.kafka.cluster import ClusterHandlers
from logstore.kafka.configs import ConfigHandlers
from logstore.kafka.groups.coordinator import GroupCoordinator
from logstore.kafka.groups.followed import commits_by_stream, committed_offsets
from logstore.kafka.groups.generation_log import GenerationLog
from logstore.kafka.groups.handlers import GroupHandlers, TopicIds
from logstore.kafka.groups.offsets import OffsetStore
from logstore.kafka.groups.service import GroupService
from logstore.kafka.metadata import MetadataHandlers
from logstore.kafka.offsets import OffsetHandlers
from logstore.kafka.operators import HostFacts, operator_apis
from logstore.kafka.producer_ids import ProducerIdHandlers
from logstore.kafka.quotas import QuotaHandlers
from logstore.kafka.readers import reader_apis
from logstore.kafka.scans import scan_apis
from logstore.kafka.security.handlers import UserHandlers
from logstore.kafka.security.login import Authenticator, login_apis
from logstore.kafka.security.stores import CallerStores, open_stores
from logstore.kafka.security.users import LEDGER as USERS_LEDGER
from logstore.kafka.server import KafkaServer, Listener, ServerSecurity
from logstore.kafka.topics import TopicHandlers
from logstore.log.ledger import Ledger
from logstore.log.store import Store
from logstore.monitoring.event_log import EventLog
from logstore.monitoring.health import Health, Phase
from logstore.monitoring.sampler import Here, Served, Watched
from logstore.refusals import refuse_foreign_files, refuse_other_kind
from logstore.tier.starting import start_tier

if TYPE_CHECKING:
    from logstore.cluster.part import ClusterPart
    from logstore.cluster_front import ClusterFront

SWITCH_INTERVAL_S = 0.0005
"""How long a reader thread may keep the interpreter from the event loop; Python's default is ten times that."""
DRAIN_S = 5.0
"""How long a stop waits for what was appended to be synced and answered; what is left then is finished, but not
answered.
"""
FAILED, REFUSED = 1, 2
"""Exit statuses: what may pass by itself, so that a service manager tries again; what only a person mends."""
MAY_PASS = (OSError, StorageFailed, DirectoryInUse)
MONITORING_ROOM = "logstore.monitoring.running"
"""Loaded only where metrics and the status page are served."""
CLUSTER_FRONT = "logstore.cluster_front"
"""Loaded only where a sidecar takes part in a cluster; nothing else here loads what only such a host needs."""
STATE_SWEEP_S = 60.0
"""How often at least the queries' shared state is looked at."""
OTHER_DESCRIPTORS = MAX_DESCRIPTORS + 256
"""Open files that are no connections: those written to, those read from, listeners, clients that are leaving."""


add_arguments = config.add_arguments


def main(arguments: argparse.Namespace) -> int:
    """`cairn serve`; returns the exit status."""
    status = 0
    try:
        settings = config.parse(arguments)
        # Until the receiver below takes it: a terminal that closes during a long recovery must not end it.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        refuse_foreign_files(settings.data_dir)
        refuse_other_kind(settings)
        told_address(settings)
        with locked_directory(settings.data_dir, "sidecar"):
            trio.run(_run, settings)
    except* (CairnError, OSError) as failures:
        for failure in leaves(failures):
            print(f"cairn: {sentence(failure)}", file=sys.stderr)  # noqa: T201
            status = max(status, FAILED if isinstance(failure, MAY_PASS) else REFUSED)
    return status


class RecoveredStores(NamedTuple):
    """What is on the disk, opened."""

    store: Store
    epochs: Epochs
    callers: CallerStores


def _recover(settings: SidecarConfig, files: OsFiles, clock: Clock, report: Report) -> RecoveredStores:
    """Open the data directory; collections of garbage are off then. Blocks. Raises CairnError, OSError."""
    started_s = clock.monotonic_s()
    gc.disable()  # what an opening makes stays: to search it for garbage would take a third of the time
    store = Store.open(
        files,
        clock,
        settings.store,
        new_id=uuid.uuid4,
        report=report,
        each=map_on_threads,
        decided=decided_in_journal,
    )
    callers = open_stores(
        LedgerEntries(store.access), LedgerEntries(Ledger.open(files, USERS_LEDGER, store.notify)), secrets.token_bytes
    )
    staging = Staging.open(files, store.notify, report, limit_bytes=settings.staging_bytes)
    epochs = Epochs(of_host(store, staging, report), report, staged_age_ms=settings.staged_age_ms)
    report(RECOVERED, streams=len(store.streams()), seconds=round(clock.monotonic_s() - started_s, 3))
    return RecoveredStores(store, epochs, callers)


async def _run(settings: SidecarConfig) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    look_names_up_apart()
    await _serve(settings)


async def _serve(settings: SidecarConfig) -> None:
    clock = SystemClock()
    reporter = Reporter(clock, as_json=settings.log_as_json, level=settings.log_level)
    report, files, health = EventLog(reporter, clock), OsFiles(settings.data_dir), Health()
    tls = ServerTls(settings.tls) if settings.needs_tls else None
    store, epochs, callers = _recover(settings, files, clock, report)
    with receive_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with open_engine(store, files) as engine, trio.open_nursery() as nursery:
            await epoch_requests.roll_forward(engine, epochs)
            async with _end_at_signal(signals, report, nursery.cancel_scope):
                front, cluster = await _start_cluster(settings, engine, callers, files, report, nursery)
            if front is not None and cluster is not None:
                callers = front.callers(cluster)
            within = _within_open_files(settings.broker, report)
            alone = Broker(engine, clock, within, callers.authorizer(settings.super_users), callers.quotas.quotas)
            broker = alone if cluster is None else alone._replace(engine=cluster.engine, placement=cluster.placement)
            groups = _groups(settings, alone, store, report)
            tier = cluster.tier if cluster else start_tier(settings.tier, engine, files, uuid.uuid4, nursery)
            gc.freeze()
            gc.enable()
            listeners, facts = list[Listener](), partial(_host_facts, settings.data_dir)
            if front is None or cluster is None:
                handlers = _handlers(broker, engine, groups, epochs, callers, listeners, facts)
                here = Here(lambda: (groups.service,), lambda: epochs, lambda: store.readers)
            else:
                make_groups = partial(_group_handlers, settings, broker, report)
                parts = (broker, engine.store, callers, listeners, facts, make_groups, groups.apis())
                handlers, here, run_groups = front.serve(cluster, front.parts(*parts))
                nursery.start_soon(run_groups)
            login = _authenticator(settings, callers, report)
            server = KafkaServer(broker, handlers, ServerSecurity(tls, login))
            state = _shared_state(settings, clock)
            meter = None if cluster is None else cluster.meter
            served = Served(engine, broker.engine.store, server, here, meter, tier)
            watched = Watched(served, files.meter, handlers.meter, report, health, state, settings.data_dir, clock)
            http = await _start_monitoring(settings, watched, tls, nursery)
            listeners += await nursery.start(server.serve, settings.listeners)
            _start_upkeep(watched, reporter, tls, settings, nursery)
            nursery.start_soon(groups.run)
            nursery.start_soon(engine.scrub.run, settings.scrub, ALONE if cluster is None else cluster.scrub_hooks)
            nursery.start_soon(epoch_requests.run_ticks, alone, epochs)
            await _join(cluster, listeners, signals, report, nursery)
            starting, coordinators = trio.CancelScope(), list[Any]()

            async def get_ready() -> None:
                with starting:
                    coordinators.extend(await start_coordinator(settings, report, tls, cluster, nursery))
                if not starting.cancel_called:
                    health.phase = Phase.READY
                    _say_ready(settings, report, listeners, coordinators, http)
                    service_manager.notify(service_manager.READY)

            nursery.start_soon(get_ready)
            certificates = (*(() if tls is None else (tls,)), *(() if cluster is None else cluster.certificates))
            number = await _stop_signal(signals, certificates, cluster, coordinators, report, nursery)
            report(STOPPING, signal=signal.Signals(number).name)
            health.phase = Phase.STOPPING
            service_manager.notify(service_manager.STOPPING)
            starting.cancel()
            for leading in (*coordinators, *(() if cluster is None else (cluster,))):
                await leading.resign()
            await _drain(server, *coordinators)
            nursery.cancel_scope.cancel()
    files.close()
    reporter.flush(is_end=True)
    report(STOPPED)
    # Everything is on the disk: what is in memory goes with the process. To search the streams that this life has made
    # for garbage would take a second.
    gc.freeze()


def _start_upkeep(
    watched: Watched, reporter: Reporter, tls: ServerTls | None, settings: SidecarConfig, nursery: trio.Nursery
) -> None:
    """Start what runs beside the service: log lines, the service manager's watchdog, memory, certificates, state."""
    nursery.start_soon(reporter.run, trio.sleep)
    nursery.start_soon(service_manager.run_watchdog, trio.sleep)
    tail = watched.served.engine.store.tail
    watched.served.server.share_memory(tail)
    nursery.start_soon(watch_heap, Heap(), tail, watched.disk)
    nursery.start_soon(FullCollections(watched.served_so_far).run, trio.sleep)
    if tls is not None:
        nursery.start_soon(follow_certificates, tls, watched.clock, watched.events)
    if watched.state is not None:
        nursery.start_soon(_tidy_state, watched.state, settings.state_idle_ms / 1000, watched.events)


async def _drain(*servers: Any) -> None:
    """Let servers finish what has come, for DRAIN_S at most."""
    async with trio.open_nursery() as drains:
        for server in servers:
            drains.start_soon(server.drain, DRAIN_S)


async def _start_cluster(
    settings: SidecarConfig,
    engine: StoreEngine,
    own: CallerStores,
    files: OsFiles,
    report: Report,
    nursery: trio.Nursery,
) -> tuple[ClusterFront | None, ClusterPart | None]:
    """The sidecar's part in a cluster, before it joins, and what serves its clients; both None if it is alone.

    Raises CairnError, OSError.
    """
    if settings.cluster is None:
        return None, None
    front: ClusterFront = import_module(CLUSTER_FRONT).FRONT
    return front, await front.start(settings, settings.cluster, engine, own, files, report, nursery)


async def _join(
    cluster: ClusterPart | None,
    listeners: Sequence[Listener],
    signals: AsyncIterator[int],
    report: Report,
    nursery: trio.Nursery,
) -> None:
    """Become a member of the cluster, if there is one. A signal ends the wait for the metadata store: the lease that
    the host may have is ended first, while the store is open.
    """
    if cluster is None:
        return
    joining = trio.CancelScope()
    async with _end_at_signal(signals, report, joining):
        with joining:
            await cluster.join(_named(listeners), nursery)
    if joining.cancel_called:
        await cluster.resign()
        nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()


def _named(listeners: Sequence[Listener]) -> Mapping[str, str]:
    """The addresses that clients are told, by the names of listeners: a listener has its place in the settings."""
    return {
        f"{listener.protocol.value}_{number}": str(
            Address(listener.advertised_host or listener.host, listener.advertised_port or listener.port)
        )
        for number, listener in enumerate(listeners)
    }


@asynccontextmanager
async def _end_at_signal(signals: AsyncIterator[int], report: Report, scope: trio.CancelScope) -> AsyncIterator[None]:
    """While a host waits for the metadata store, SIGTERM or SIGINT cancels the scope, since nothing is served yet;
    SIGHUP is acted on later.
    """
    has_hung_up = False

    async def end() -> None:
        nonlocal has_hung_up
        async for number in signals:
            if number != signal.SIGHUP:
                report(STOPPING, signal=signal.Signals(number).name)
                service_manager.notify(service_manager.STOPPING)
                scope.cancel()
                return
            has_hung_up = True

    async with trio.open_nursery() as watch:
        watch.start_soon(end)
        yield
        watch.cancel_scope.cancel()
    if has_hung_up:
        signal.raise_signal(signal.SIGHUP)


async def _stop_signal(
    signals: AsyncIterator[int],
    certificates: Sequence[LoadedTls],
    cluster: ClusterPart | None,
    coordinators: Sequence[Any],
    report: Report,
    nursery: trio.Nursery,
) -> int:
    """Wait for SIGTERM or SIGINT, and return it; SIGHUP reloads certificates, this host's place and the network of its
    coordinator meanwhile.
    """
    async for number in signals:
        if number != signal.SIGHUP:
            return number
        for coordinator in coordinators:
            coordinator.look_again()
        if cluster is not None:
            cluster.read_place_again()
        elif not certificates and not coordinators:
            report(HANGUP_IGNORED, why="settings are read only at the start, and there are no certificates")
        for tls in certificates:
            nursery.start_soon(partial(reload_certificates, tls, report, force=True))
    raise AssertionError("signals end with the process")


def _authenticator(settings: SidecarConfig, callers: CallerStores, report: Report) -> Authenticator:
    """What logins share; says so if clients are to log in and there is no user."""
    if callers.users.is_empty and any(listener.protocol.needs_login for listener in settings.listeners):
        where = f"--data-dir {settings.data_dir}" if settings.cluster is None else "--cluster URL"
        at = "while this sidecar is stopped" if settings.cluster is None else "with the URL of this cluster"
        report(NO_USERS, why=f"no user can log in to the SASL listeners: cairn user add NAME {where}, {at}")
    return Authenticator(callers.users, settings.login, report)


def _say_ready(
    settings: SidecarConfig,
    report: Report,
    listeners: Sequence[Listener],
    coordinators: Sequence[Any],
    http: Address | None,
) -> None:
    # The objects that exist now stay until the process ends: collections need not visit them again.
    gc.collect()
    gc.freeze()
    parts = [f"kafka={Address(listener.host, listener.port)}" for listener in listeners]
    parts += [f"coordinator={coordinator.address}" for coordinator in coordinators]
    if settings.http is not None:
        parts.append(f"{'https' if settings.http.is_encrypted else 'http'}={http}")
    addresses = " ".join(parts)
    print(f"cairn ready {addresses} data-dir={settings.data_dir}", flush=True)  # noqa: T201
    report(READY, addresses=addresses, data_dir=settings.data_dir)


def _within_open_files(broker: BrokerSettings, report: Report) -> BrokerSettings:
    """As many connections as there may be open files; their soft limit is raised as far as it can be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    possible = hard - OTHER_DESCRIPTORS
    if hard == resource.RLIM_INFINITY or possible >= broker.max_connections:
        return broker
    report(
        FEWER_CONNECTIONS,
        max_connections=max(1, possible),
        wanted=broker.max_connections,
        open_files=hard,
    )
    return replace(broker, max_connections=max(1, possible))


async def _start_monitoring(
    settings: SidecarConfig, watched: Watched, tls: ServerTls | None, nursery: trio.Nursery
) -> Address | None:
    """The address of metrics and status page, once they are served; None if they are not wanted. Raises OSError."""
    if settings.http is None:
        return None
    serve, own_tls = import_module(MONITORING_ROOM).serve, tls if settings.http.is_encrypted else None
    address: Address = await nursery.start(serve, settings.http.address, watched, own_tls)
    return address


def _shared_state(settings: SidecarConfig, clock: Clock) -> SharedState | None:
    """The queries' shared state; None if it is not looked after."""
    if not settings.state_directory:
        return None
    return SharedState(settings.state_directory, settings.state_idle_ms, clock)


async def _tidy_state(state: SharedState, idle_s: float, report: Report) -> None:
    """Remove unused state at intervals; never returns."""
    while True:
        for outcome in await trio.to_thread.run_sync(state.sweep):
            if isinstance(outcome, Reclaimed):
                report(STATE_RECLAIMED, query=outcome.query, freed_bytes=outcome.freed_bytes)
            else:
                report(STATE_NOT_RECLAIMED, query=outcome.name, why=outcome.why)
        await trio.sleep(min(max(idle_s / 10, 1.0), STATE_SWEEP_S))


def _groups(settings: SidecarConfig, broker: Broker, store: Store, report: Report) -> GroupHandlers:
    offsets = OffsetStore(store.groups, commits_by_stream(store.readers.note_commits))
    handlers = _group_handlers(settings, broker, report, offsets)
    handlers.service.recover_at_once(broker.clock.monotonic_s())
    store.readers.follow(committed_offsets(store, handlers.service))
    return handlers


def _group_handlers(
    settings: SidecarConfig,
    broker: Broker,
    report: Report,
    offsets: OffsetStore,
    generations: GenerationLog | None = None,
) -> GroupHandlers:
    """All groups over these offsets, and the topics that clients see."""
    store = broker.engine.store

    def look_up(name: str) -> tuple[str, int] | None:
        topic = store.topics.get(name)
        return None if topic is None else (topic.topic_id.hex, len(topic.partitions))

    def name_of(topic_id: uuid.UUID) -> str | None:
        topic = store.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def id_of(name: str) -> uuid.UUID | None:
        topic = store.topics.get(name)
        return None if topic is None else topic.topic_id

    coordinator = GroupCoordinator(settings.groups, lambda: uuid.uuid4().hex, report, generations)
    service = GroupService(coordinator, offsets, look_up, settings.offsets, broker.clock.monotonic_s())
    return GroupHandlers(service, broker.clock, broker.engine.wait, TopicIds(name_of, id_of))


def _handlers(
    broker: Broker,
    engine: StoreEngine,
    groups: GroupHandlers,
    epochs: Epochs,
    stores: CallerStores,
    listeners: Sequence[Listener],
    facts: Callable[[], HostFacts],
) -> ApiHandlers:
    apis: list[Api] = [
        *MetadataHandlers(broker).apis(),
        *OffsetHandlers(broker).apis(),
        *TopicHandlers(broker, groups.service.forget_topic).apis(),
        *ConfigHandlers(broker, listeners).apis(),
        *ClusterHandlers(broker).apis(),
        *ProducerIdHandlers(broker).apis(),
        *AclHandlers(broker, stores.acls).apis(),
        *QuotaHandlers(broker, stores.quotas).apis(),
        *groups.apis(),
        *login_apis(),
        *UserHandlers(broker, stores.users).apis(),
    ]
    own = [*epoch_requests.epoch_apis(broker, epochs), *scan_apis(broker), *reader_apis(broker, engine.store)]
    return compose(apis, [*own, *operator_apis(broker, engine.store, epochs, facts)])


def _host_facts(data_dir: Path) -> HostFacts:
    """What operators' requests show of the process and its disk. Blocks."""
    disk = shutil.disk_usage(data_dir)
    return HostFacts(import_module("importlib.metadata").version("cairn"), disk.total, disk.free)

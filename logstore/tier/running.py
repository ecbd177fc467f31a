"""Puts the tier of a sidecar together: HDFS, Peace's turns where they are wanted, and the service. Needs the extra
`hdfs`.
"""

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import SystemRandom

import trio

from logstore.base.events import Report, ignore
from logstore.base.secret_files import SecretFile, fits_a_header
from logstore.errors import ConfigError
from logstore.interfaces import ReadableFiles
from logstore.tier.hdfs import HdfsObjects, HdfsSettings
from logstore.tier.interface import NoTurns, UploadTurns
from logstore.tier.peace import PeaceTurns
from logstore.tier.service import TierEngine, TierService, TierStores
from logstore.tier.settings import PlanAccess, TierSettings
from scheduler.client import CoordinatorClient
from scheduler.client.tls import client_tls
from scheduler.errors import SchedulerError
from scheduler.hdfs.plan_table import PlanTable


def start_tier(
    settings: TierSettings,
    engine: TierEngine,
    files: ReadableFiles,
    new_id: Callable[[], uuid.UUID],
    nursery: trio.Nursery,
) -> TierService:
    """The tier, which runs in the nursery. Raises ConfigError for settings that cannot be used."""
    stores = open_tier(settings, engine.store.report)
    service = TierService(engine, files, stores, new_id, nursery)
    nursery.start_soon(service.run)
    return service


def open_tier(settings: TierSettings, report: Report = ignore) -> TierStores:
    """The object store, and who gives leave to store; `report` is told, by any thread, of certificates. Raises
    ConfigError for settings that cannot be used.
    """
    turns, table = _planned(settings, report)
    objects = HdfsObjects(settings.place, HdfsSettings(settings.user, settings.replicas), table)
    return TierStores(objects, turns, settings.uploads, settings.cache_bytes)


def open_objects(settings: TierSettings) -> HdfsObjects:
    """The object store alone, to look at what is there."""
    return HdfsObjects(settings.place, HdfsSettings(settings.user, settings.replicas))


def _planned(settings: TierSettings, report: Report) -> tuple[UploadTurns, PlanTable | None]:
    access = settings.planned
    if access is None:
        return NoTurns(), None
    try:
        token = _followed(access.plan_token_file, report, "tier-plan-token-file")
        return _turns(access, settings.replicas, report), PlanTable(access.plans, token)
    except SchedulerError as error:
        raise ConfigError(f"tier: {error}") from error


def _turns(access: PlanAccess, replicas: int, report: Report) -> PeaceTurns:
    file = access.coordinator_token_file
    token = _followed(file, report, "tier-coordinator-token-file") if file else None
    trusted = client_tls(access.coordinator_ca_file, access.coordinator_certificate_file, report)
    client = CoordinatorClient(access.coordinator, token=token, ca_file=trusted)
    return PeaceTurns(client, access.host, replicas, SystemRandom())


def _followed(path: str, report: Report, setting: str) -> SecretFile:
    """A token as new as its file. Raises ConfigError."""
    return SecretFile(partial(_text, path), path, report, setting=setting)


def _text(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the token cannot be read: {error}") from error
    if not fits_a_header(token):
        raise ConfigError(f"{path}: a token is one line of visible ASCII characters")
    return token

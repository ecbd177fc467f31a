"""Starts the tier of a sidecar, if it has one: only then what a tier needs is loaded.

Invariant: without the settings of a tier nothing of it runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import trio

from logstore.base.events import Report
from logstore.base.packages import how_to_get
from logstore.errors import ConfigError
from logstore.interfaces import ReadableFiles
from logstore.tier.settings import TierSettings

if TYPE_CHECKING:
    from logstore.tier.service import TierEngine, TierService, TierStores

ROOM: Final = "logstore.tier.running"
"""Needs the extra `hdfs`."""


def start_tier(
    settings: TierSettings | None,
    engine: TierEngine,
    files: ReadableFiles,
    new_id: Callable[[], uuid.UUID],
    nursery: trio.Nursery,
) -> TierService | None:
    """The tier, which begins to store chunks; None if there is none. Raises ConfigError."""
    if settings is None:
        return None
    tier: TierService = _room().start_tier(settings, engine, files, new_id, nursery)
    return tier


def open_tier(settings: TierSettings | None, report: Report) -> TierStores | None:
    """What a tier stands on, for a host of a cluster; None if there is none. `report` is told of certificates. Raises
    ConfigError.
    """
    if settings is None:
        return None
    stores: TierStores = _room().open_tier(settings, report)
    return stores


def _room() -> Any:
    try:
        return import_module(ROOM)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--tier-url needs {how_to_get(error.name, 'hdfs')}") from error

"""Starts the tier of a sidecar, if it has one: only then what a tier needs is loaded.

Invariant: without the settings of a tier nothing of it runs.
"""

import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Final

import trio

from logstore.errors import ConfigError
from logstore.interfaces import ReadableFiles
from logstore.tier.service import TierEngine, TierService
from logstore.tier.settings import TierSettings

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
    try:
        room = import_module(ROOM)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--tier-url needs the package {error.name}: pip install 'cairn[hdfs]'") from error
    tier: TierService = room.start_tier(settings, engine, files, new_id, nursery)
    return tier

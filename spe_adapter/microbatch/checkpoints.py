"""What a task of a stateful query has to do with checkpoints: it tells the host's I/O service of each epoch, and offers
the checkpoints of its partition to the loader of state.

Invariants:
* A checkpoint is offered only if its epoch is not newer than the wanted version. That its attempt is the one that the
  log has is checked against the log before the checkpoint is used (`StateSource.since`).
* Neither the I/O service nor a sink that is away costs an epoch: without a checkpoint the log is read.

Source: SGuard, sections 3 (checkpoint manager, I/O service) and 5; docs/decisions/0024.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from logstore.base.events import Level, LogEvent
from spe_adapter.checkpoint.bases import stored_bases
from spe_adapter.checkpoint.datagram import EpochNote
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.service_place import notify
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink
from spe_adapter.host import host_name
from spe_adapter.microbatch.checkpoint_options import ANY_HOST
from spe_adapter.state.storage import BaseCheckpoint

RECOVERY_PATIENCE_S: Final = 5.0
"""How long a task waits for a sink that is away: the log may have all that is needed."""
_LEVELS: Final = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}
_log = logging.getLogger(__name__)


def log_event(event: LogEvent, /, **fields: object) -> None:
    """Report an event of checkpoints in the log of this process."""
    said = " ".join(f"{name}={value}" for name, value in fields.items())
    _log.log(_LEVELS[event.level], "%s %s", event.name, said)


class LoggedRecovery(NamedTuple):
    """What a task read of the log to open its state. `log_bytes`: of control batches; `seconds`: of a load from the log
    alone, 0.0 for any other way, since the time to load a checkpoint says nothing of the log.
    """

    log_bytes: int
    seconds: float


def tell_service(settings: CheckpointSettings, root: Path, note: EpochNote, recovery: LoggedRecovery) -> None:
    """Tell the I/O service of the state directory `root` that an epoch of a partition has ended; `note` gets these
    settings. Never raises, never waits: a lost note is made up for by the next.
    """
    here = settings if settings.host != ANY_HOST else replace(settings, host=host_name())
    notify(root, note._replace(settings=here.described(), loaded_bytes=recovery.log_bytes, loaded_s=recovery.seconds))


class OfferedCheckpoints:
    """The checkpoints of a partition that may lead to a version; `read` is the one whose pages were read last."""

    def __init__(self, settings: CheckpointSettings, unit: Unit, wanted_epoch: int | None) -> None:
        self._settings = settings
        self._unit = unit
        self._wanted_epoch = wanted_epoch
        self.read: Manifest | None = None

    def __call__(self) -> Iterator[BaseCheckpoint]:
        """Newest first. Raises errors of the sink (CheckpointFailed) if it cannot be listed."""
        if self._wanted_epoch is None:
            return
        with closing(open_sink(self._settings, log_event, RECOVERY_PATIENCE_S)) as sink:
            # The files alone say what is complete: a coordinator that is away would cost time, and tell no more.
            for stored in stored_bases(Finder(sink, report=log_event), self._unit, self._is_usable):
                self.read = stored.manifest
                yield stored

    def _is_usable(self, manifest: Manifest) -> bool:
        return self._wanted_epoch is not None and manifest.header.epoch <= self._wanted_epoch

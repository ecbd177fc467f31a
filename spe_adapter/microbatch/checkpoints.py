"""What a task of a stateful query has to do with checkpoints: it tells the host's I/O service of each epoch, and offers
the checkpoints of its partition to the loader of state.

Invariants:
* A checkpoint is offered only if its epoch is not newer than the wanted version. That its attempt is the one that the
  log has is checked against the log before the checkpoint is used (`StateSource.since`).
* Neither the I/O service nor a sink that is away costs an epoch: without a checkpoint the log is read.
* Where the log alone does not suffice, a sink that is away is waited for, and then named: it is not lost state.

Source: SGuard, sections 3 (checkpoint manager, I/O service) and 5; docs/decisions/0024.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from logstore.client.network import Network
from spe_adapter.checkpoint.bases import stored_bases
from spe_adapter.checkpoint.datagram import EpochNote
from spe_adapter.checkpoint.log_lines import log_event
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.refusals import Refusals, newer_than_log, unrelated
from spe_adapter.checkpoint.service_place import notify
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink_to_read
from spe_adapter.checkpoint.troubles import trouble_of
from spe_adapter.errors import StateTrimmed
from spe_adapter.host import host_name
from spe_adapter.state.storage import BaseCheckpoint
from spe_adapter.state.versions import OpenState

RECOVERY_PATIENCE_S: Final = 5.0
"""How long a task waits for a sink that is away: the log may have all that is needed."""
AWAY_S: Final = 60.0
"""How long a task waits for a sink that is away when the log alone does not suffice."""


class LoggedRecovery(NamedTuple):
    """What a task read of the log to open its state. `log_bytes`: of control batches; `seconds`: of a load from the log
    alone, 0.0 for any other way, since the time to load a checkpoint says nothing of the log.
    """

    log_bytes: int
    seconds: float


def tell_service(settings: CheckpointSettings, root: Path, note: EpochNote, recovery: LoggedRecovery) -> str:
    """Tell the I/O service of the state directory `root` that an epoch of a partition has ended; `note` gets these
    settings. Never raises, never waits: a lost note is made up for by the next. Returns why the service wrote no
    checkpoint when it last tried, empty if it did, or did not try.
    """
    here = settings.on_host(host_name())
    notify(root, note._replace(settings=here.described(), loaded_bytes=recovery.log_bytes, loaded_s=recovery.seconds))
    return trouble_of(root, note.unit)


class OfferedCheckpoints:
    """The checkpoints of a partition that may lead to a version; `read` is the one whose pages were read last, and
    `refusals` says why others were not.
    """

    def __init__(self, settings: CheckpointSettings, unit: Unit, wanted_epoch: int | None) -> None:
        self._settings = settings
        self._unit = unit
        self._wanted_epoch = wanted_epoch
        self.read: Manifest | None = None
        self.refusals = Refusals(settings, unit, log_event)

    def __call__(self) -> Iterator[BaseCheckpoint]:
        """Newest first. Raises errors of the sink (CheckpointFailed) if it cannot be listed."""
        if self._wanted_epoch is None:
            return
        refusals = self.refusals
        with refusals.looking(), closing(open_sink_to_read(self._settings, refusals, RECOVERY_PATIENCE_S)) as sink:
            # The files alone say what is complete: a coordinator that is away would cost time, and tell no more.
            for stored in stored_bases(Finder(sink, report=refusals), self._unit, self._is_usable):
                self.read = stored.manifest
                known = refusals.count
                yield stored
                if refusals.count == known:  # it was neither loaded nor refused with an error
                    refusals.note(stored.manifest.name, unrelated(stored.manifest))

    def wait_for_sink(self, lost: StateTrimmed, network: Network) -> None:
        """Return when checkpoints should be looked for again, after the log alone proved not to suffice.

        Raises StateAway, or StateTrimmed if the sink was read.
        """
        self.refusals.wait_for_sink(lost, network, AWAY_S)

    def _is_usable(self, manifest: Manifest) -> bool:
        epoch = manifest.header.epoch
        if self._wanted_epoch is not None and epoch <= self._wanted_epoch:
            return True
        self.refusals.note(manifest.name, newer_than_log(epoch, self._wanted_epoch))
        return False


def entered(
    stack: ExitStack,
    opened: Callable[[], AbstractContextManager[OpenState]],
    offered: OfferedCheckpoints | None,
    network: Network,
) -> OpenState:
    """The state that `opened` gives, entered on a stack; opened again while the log alone does not suffice and the sink
    of the offered checkpoints is away. No lock is held while it waits. Raises StateAway, and what `opened` raises.
    """
    while True:
        try:
            return stack.enter_context(opened())
        except StateTrimmed as error:
            if offered is None:
                raise
            offered.wait_for_sink(error, network)

"""The checkpoints of a runner's partition: written by a thread of the runner, from frozen pages of its private state.

Invariants:
* The runner's loop never waits for a sink: it freezes pages at the end of an epoch, and goes on.
* A sink that is away, or a checkpoint that fails, costs that checkpoint, and is said: by a log line, and by the
  progress of the epochs that follow.
* Where the log alone does not suffice, a sink that is away is waited for, and then named: it is not lost state.

Source: SGuard, sections 3 and 4.4; docs/decisions/0024.
"""

import queue
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Final

from logstore.base.events import Report
from logstore.client.network import Network
from spe_adapter.checkpoint.bases import StoredBase, stored_bases
from spe_adapter.checkpoint.errors import CheckpointFailed
from spe_adapter.checkpoint.in_process import InProcessCheckpoints
from spe_adapter.checkpoint.log_lines import log_event
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.refusals import Refusals
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink_to_read
from spe_adapter.checkpoint.snapshot import Freeze
from spe_adapter.continuous.paged_state import NO_CHECKPOINT, CheckpointStatus, CoveredVersion
from spe_adapter.errors import StateTrimmed
from spe_adapter.host import host_name

RECOVERY_PATIENCE_S: Final = 5.0
"""How long a recovery waits for a sink that is away: the log may have all that is needed."""
AWAY_S: Final = 60.0
"""How long a recovery waits for a sink that is away when the log alone does not suffice."""


class RunnerCheckpoints:
    """See the module; a `loop.UnitCheckpoints` until `close`. `freeze` is the core's; `network` has time and waits;
    `report` gets the events, on several threads.
    """

    def __init__(
        self, unit: Unit, settings: CheckpointSettings, freeze: Freeze, network: Network, report: Report = log_event
    ) -> None:
        self._unit = unit
        self._settings = settings.on_host(host_name())
        self._network = network
        self._refusals = Refusals(settings, unit, report)
        self._complete: queue.SimpleQueue[CoveredVersion] = queue.SimpleQueue()
        self._epoch = NO_CHECKPOINT
        self._writing = InProcessCheckpoints(unit, freeze, self._settings, self._acknowledged, report)

    def _acknowledged(self, manifest: Manifest) -> None:
        self._complete.put(covered_version(manifest))

    def stored(self) -> Iterator[StoredBase]:
        """See UnitCheckpoints."""
        refusals = self._refusals
        with (
            suppress(CheckpointFailed, OSError),
            refusals.looking(),
            closing(open_sink_to_read(self._settings, refusals, RECOVERY_PATIENCE_S)) as sink,
        ):
            yield from stored_bases(Finder(sink, report=refusals), self._unit)

    def unused(self, stored: StoredBase, why: str) -> None:
        """See UnitCheckpoints."""
        self._refusals.note(stored.manifest.name, why)

    def wait_for_sink(self, lost: StateTrimmed) -> None:
        """See UnitCheckpoints."""
        self._refusals.wait_for_sink(lost, self._network, AWAY_S)

    def recovered(self, log_bytes: int, seconds: float, epoch: int) -> None:
        """See UnitCheckpoints."""
        self._epoch = epoch
        if epoch == NO_CHECKPOINT:  # else the time is that of reading pages as well
            self._writing.recovered(log_bytes, seconds)

    def status(self) -> CheckpointStatus:
        """See UnitCheckpoints."""
        last = self._writing.last
        if last is not None and last.manifest is not None:
            self._epoch = max(self._epoch, last.manifest.header.epoch)
        return CheckpointStatus(self._epoch, "" if last is None else last.error)

    def complete(self) -> Sequence[CoveredVersion]:
        """See UnitCheckpoints."""
        return [self._complete.get() for _ in range(self._complete.qsize())]

    def ended(self, log_bytes: int, state_bytes: int) -> None:
        """See UnitCheckpoints."""
        self._writing.epoch(log_bytes, state_bytes)

    def close(self) -> None:
        """End the thread."""
        self._writing.close()


def covered_version(manifest: Manifest) -> CoveredVersion:
    """The version of a runner's checkpoint."""
    header = manifest.header
    return CoveredVersion(header.epoch, int(header.extra["emitted"]), int(header.extra["seen"]))

"""The checkpoints of a runner's partition: written by a thread of the runner, from frozen pages of its private state.

Invariants:
* The runner's loop never waits for a sink: it freezes pages at the end of an epoch, and goes on.
* A sink that is away, or a checkpoint that fails, costs that checkpoint.

Source: SGuard, sections 3 and 4.4; docs/decisions/0024.
"""

import logging
import queue
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from spe_adapter.checkpoint.bases import StoredBase, stored_bases
from spe_adapter.checkpoint.errors import CheckpointFailed
from spe_adapter.checkpoint.in_process import InProcessCheckpoints
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink
from spe_adapter.checkpoint.snapshot import Freeze
from spe_adapter.continuous.paged_state import CoveredVersion

RECOVERY_PATIENCE_S: Final = 5.0
"""How long a recovery waits for a sink that is away: the log may have all that is needed."""
_log = logging.getLogger(__name__)


class RunnerCheckpoints:
    """See the module; a `loop.UnitCheckpoints` until `close`. `freeze` is the core's."""

    def __init__(self, unit: Unit, settings: CheckpointSettings, freeze: Freeze) -> None:
        self._unit = unit
        self._settings = settings
        self._complete: queue.SimpleQueue[CoveredVersion] = queue.SimpleQueue()
        self._writing = InProcessCheckpoints(unit, freeze, settings, self._acknowledged)

    def _acknowledged(self, manifest: Manifest) -> None:
        self._complete.put(covered_version(manifest))

    def stored(self) -> Iterator[StoredBase]:
        """See UnitCheckpoints."""
        try:
            with closing(open_sink(self._settings, patience_s=RECOVERY_PATIENCE_S)) as sink:
                yield from stored_bases(Finder(sink), self._unit)
        except CheckpointFailed as error:
            _log.warning("%s: no checkpoint is looked at: %s", self._unit.name, error)

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

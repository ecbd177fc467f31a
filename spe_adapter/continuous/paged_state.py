"""The memory of a runner's state, and its checkpoints: frozen at the end of an epoch, loaded into a new table.

Invariants:
* A checkpoint counts as a footprint of every window that was open at its epoch and has none since.
* Only a state on pages can be frozen; pages cost what their table takes, and nothing else while nothing is frozen.

Source: SGuard, section 4.4; CEC paper, section II.B.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa

from spe_adapter.cec.reconstruct import EventualCheckpoint
from spe_adapter.checkpoint.retention_rules import KEPT
from spe_adapter.checkpoint.snapshot import Snapshot, VersionHeader
from spe_adapter.codec.kernels import Bytes
from spe_adapter.state.layout import fingerprint_of
from spe_adapter.state.paged import FreezePoint, PagedBlocks
from spe_adapter.state.storage import BaseDescription, PageRuns, load_table
from spe_adapter.state.table import Allocate, Table, anonymous


class CoveredVersion(NamedTuple):
    """The version of a complete checkpoint: its epoch, and the counters at the end of that epoch."""

    epoch: int
    emitted: int
    seen: int


NO_CHECKPOINT: Final = -1


class CheckpointStatus(NamedTuple):
    """The epoch of the newest complete checkpoint that a runner knows, NO_CHECKPOINT without any; and why the last
    checkpoint that was tried failed, empty if it did not.
    """

    epoch: int = NO_CHECKPOINT
    error: str = ""


class PagedState:
    """The memory of a core's table. `charge` raises an error for more bytes than a state may have."""

    def __init__(self, schema: pa.Schema, operator: str, charge: Callable[[int], None], *, is_paged: bool) -> None:
        self._schema = schema
        self._charge = charge
        self._is_paged = is_paged
        self._blocks: PagedBlocks | None = None
        self._covering: deque[CoveredVersion] = deque(maxlen=KEPT)
        self.fingerprint = fingerprint_of(schema, operator).hex()
        """What the pages of a checkpoint must be of: the operator, and the columns of its state."""

    def empty(self, windows: int, seed: int) -> Table:
        """An empty table with room for so many windows, in place of the table before."""
        return Table.in_memory(self._schema, windows, seed, self._memory())

    def loaded(self, described: BaseDescription, runs: PageRuns) -> Table:
        """The table of a checkpoint, in place of the table before. Raises StateDamaged and the errors of `runs`."""
        return load_table(self._schema, described, runs, self._memory())

    def _memory(self) -> Allocate:
        if not self._is_paged:
            return self._allocate
        if self._blocks is not None:
            self._blocks.close()
        self._blocks = PagedBlocks(charge=self._charge)
        return self._blocks

    def _allocate(self, size_bytes: int) -> Bytes:
        self._charge(size_bytes)
        return anonymous(size_bytes)

    def freeze(self, since: object, table: Table, version: CoveredVersion, attempt: str) -> Snapshot | None:
        """Freeze the table at a version; None without pages, or if an earlier freeze is still being read."""
        if self._blocks is None:
            return None
        frozen = self._blocks.freeze(since if isinstance(since, FreezePoint) else None)
        if frozen is None:
            return None
        counters = {"emitted": version.emitted, "seen": version.seen}
        header = VersionHeader(
            self.fingerprint, version.epoch, attempt, table.capacity, table.arena_bytes, b"", counters
        )
        return Snapshot(header, frozen.pages, frozen.point, frozen.is_full)

    @property
    def is_covered(self) -> bool:
        """Whether the KEPT newest checkpoints are known: the one that the state was loaded from, and those since."""
        return len(self._covering) == KEPT

    def loaded_at(self, version: CoveredVersion) -> None:
        """Note the checkpoint that the table was loaded from: it counts as complete in this life as well."""
        self._covering.append(version)

    def cover(self, table: Table, version: CoveredVersion) -> bool:
        """Note a complete checkpoint; whether footprints are known to be newer now: of the last two checkpoints the
        older one counts. All open windows of the table have a footprint.
        """
        self._covering.append(version)
        if not self.is_covered:
            return False
        covering = self._covering[0]
        rows = table.live_rows()
        older = rows[table.window_versions(rows)[0] < covering.epoch]
        table.set_window_versions(older, *covering)
        return len(older) > 0


def bring_up(table: Table, eventual: EventualCheckpoint) -> None:
    """Have the windows of a checkpoint count as written at its epoch, without those that have ended since. `eventual`
    has reached the checkpoint as its floor.
    """
    first, gone = eventual.marks[0], eventual.skips
    rows = table.live_rows()
    table.set_window_versions(rows, first.epoch, first.emitted, first.seen)
    found = table.find(gone.keys, gone.numbers)
    table.remove(found[found >= 0])

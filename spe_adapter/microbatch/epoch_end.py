"""The end of an epoch in one partition: which windows are footprinted, and where the query's counters stand then.

Invariants:
* Every window that changed is footprinted (nothing is ever replayed in micro-batches), each once, with its state at the
  end of the epoch. So state = state before + footprints - tombstones.
* All footprints count as emitted at the epoch's end: the mark's `emitted` is the ordinal of each of them.
* Windows with the oldest footprints are checked, that is footprinted again, so that q stays at or below the extent
  limit, or comes down to the limit over a few epochs. Where a checkpoint covers the windows, q counts from the
  checkpoint: a recovery reads no footprint before it.

Source: CEC paper, sections II.B (footprints, N) and III.A (q, Q).
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.cec.extent import Counters
from spe_adapter.cec.policy import Targets, View
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.store import WindowChanges

DEFAULT_EXTENT_FACTOR: Final = 4
"""q at which checks begin, in multiples of N: from about twice N on few are needed (CEC paper, figure 6)."""
NOT_COVERED: Final = -1
"""In place of a counter: no checkpoint covers the partition."""
_CANDIDATES_PART: Final = 4
"""The inverse of the share of open windows that may be checked in one epoch."""
_MIN_CANDIDATES: Final = 4096


class EpochEnd(NamedTuple):
    """The end of an epoch in one partition: `extent` is q, `oldest` the epoch of the oldest footprint."""

    changes: WindowChanges
    counters: Counters
    open_windows: int
    extent: int
    oldest: int


def conclude(
    overlay: Overlay, before: Counters, epoch: int, extent_limit: int | None, covered_emitted: int = NOT_COVERED
) -> EpochEnd:
    """The changes of an epoch, with checks of the windows with the oldest footprints where the extent is too long.

    `before` are the counters with the epoch's input and results, without its footprints and tombstones;
    `covered_emitted` is the counter `emitted` at the checkpoint that covers older windows.
    """
    changes = overlay.changes()
    live = overlay.live
    counters = before.after(footprints=changes.footprints.num_rows)
    limit = DEFAULT_EXTENT_FACTOR * live if extent_limit is None else extent_limit
    count = 0
    if covered_emitted == NOT_COVERED or counters.extent(covered_emitted) > max(limit, live):
        count = _checks(overlay, counters, live, changes.footprints.num_rows, limit)
    if count:
        overlay.touch(overlay.oldest(count))
        checked = overlay.changes()
        changes = changes._replace(
            footprints=_joined(changes.footprints, checked.footprints),
            opened=np.concatenate((changes.opened, checked.opened)),
            ids=np.concatenate((changes.ids, checked.ids)),
        )
        counters = counters.after(footprints=count)
    slowest = overlay.oldest(1)
    ordinal, oldest = counters.emitted, epoch
    if len(slowest):
        epochs, ordinals, _ = overlay.window_versions(slowest)
        ordinal, oldest = int(ordinals[0]), int(epochs[0])
    return EpochEnd(changes, counters, live, counters.extent(ordinal), oldest)


def _checks(overlay: Overlay, counters: Counters, live: int, fresh: int, limit: int) -> int:
    """How many of the windows with the oldest footprints to check; cheap as long as the answer is 0."""
    slowest = overlay.oldest(1)
    if not len(slowest):
        return 0
    if counters.extent(int(overlay.window_versions(slowest)[1][0])) <= max(limit, live):
        return 0
    candidates = overlay.oldest(max(live // _CANDIDATES_PART, _MIN_CANDIDATES))
    _, ordinals, seens = overlay.window_versions(candidates)
    return Targets(limit).checks(View(counters.emitted, counters.seen, live, ordinals, seens, fresh))


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    if not first.num_rows:
        return second
    return pa.concat_batches([first, second])

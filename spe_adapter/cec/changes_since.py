"""What changed since a version of the state that somebody still holds: the groups behind it, oldest first.

Invariants:
* A version is an epoch and the attempt that won it; another attempt's output of the same epoch is another state.
* A version that was undone by a reset, lies behind a rebase or was trimmed away is no ancestor: the answer is None, and
  the whole state must be loaded.
* It makes sense only where every changed window is footprinted in every epoch (micro-batch): then state = older state +
  footprints - tombstones.
"""

from typing import Final, NamedTuple

import pyarrow as pa

from logstore.interfaces import Buffer
from spe_adapter.cec.backward_scan import BackwardScan, Scanned
from spe_adapter.cec.control import Begin, Control, End, Footprints, Mark, Tombstones

DEFAULT_LIMIT_TUPLES: Final = 2**63


class EpochChanges(NamedTuple):
    """One group: its mark, the windows that changed and are open, and those that were closed."""

    mark: Mark
    footprints: tuple[pa.RecordBatch, ...]
    tombstones: tuple[pa.RecordBatch, ...]


class ChangesSince:
    """The groups of a query behind the version (`epoch`, `attempt`), up to the newest or to `as_of`.

    `attempt` is as in BEGIN ("task:attempt") or as in the mark. `feed` it with pieces, newest first, until it says that
    it is done; then take `result`. More than `limit_tuples` footprints and tombstones are too much: the result is None.
    """

    def __init__(
        self,
        query: str,
        epoch: int,
        attempt: str,
        *,
        as_of: int | None = None,
        limit_tuples: int = DEFAULT_LIMIT_TUPLES,
    ) -> None:
        self._epoch = epoch
        self._attempt = attempt
        self._limit_tuples = limit_tuples
        self._scan = BackwardScan(query, as_of)
        self._is_known = False
        self._mark: Mark | None = None
        self._footprints: list[pa.RecordBatch] = []
        self._tombstones: list[pa.RecordBatch] = []
        self._deltas: list[EpochChanges] = []
        self._done = False
        self._result: tuple[EpochChanges, ...] | None = None

    @property
    def done(self) -> bool:
        """Whether nothing older is needed."""
        return self._done

    @property
    def result(self) -> tuple[EpochChanges, ...] | None:
        """The deltas, oldest first (none: the version is the one wanted); None if there is no way from that version."""
        return self._result

    @property
    def scanned(self) -> Scanned:
        """What was read so far."""
        return self._scan.scanned

    def feed(self, piece: Buffer) -> bool:
        """Take a piece; True if nothing older is needed.

        Raises CorruptBatch, UnknownFormatVersion or StateInconsistent.
        """
        if not self.done:
            if any(self._take(record) for record in self._scan.records(piece)):
                return True
            self._done = self._scan.missed
        return self._done

    def finish(self) -> tuple[EpochChanges, ...] | None:
        """There is nothing older in the log."""
        self._done = True
        return self._result

    def _take(self, record: Control) -> bool:
        if isinstance(record, End):
            self._enter(record)
        elif isinstance(record, Mark):
            self._mark = record
            if self._is_known and record.is_of(self._attempt):
                self._conclude(found=True)
            elif not self._is_known and record.rebase:
                self._conclude(found=False)
        elif isinstance(record, Begin):
            self._leave(record)
        elif not self._is_known:
            self._keep(record)
        return self._done

    def _enter(self, end: End) -> None:
        self._mark = None
        self._footprints, self._tombstones = [], []
        self._is_known = end.epoch == self._epoch
        if end.epoch < self._epoch:
            self._conclude(found=False)

    def _keep(self, record: Footprints | Tombstones) -> None:
        if isinstance(record, Footprints):
            self._footprints.append(record.rows)
            self._scan.count(record.rows.num_rows, 0)
        else:
            self._tombstones.append(record.rows)
            self._scan.count(0, record.rows.num_rows)
        if self._scan.scanned.tuples > self._limit_tuples:
            self._conclude(found=False)

    def _leave(self, begin: Begin) -> None:
        if self._is_known:
            self._conclude(found=self._attempt in begin.attempts)
        elif self._mark is not None:
            # Read backwards; a group's batches are given in the order in which they were written.
            footprints, tombstones = reversed(self._footprints), reversed(self._tombstones)
            self._deltas.append(EpochChanges(self._mark, tuple(footprints), tuple(tombstones)))

    def _conclude(self, *, found: bool) -> None:
        self._done = True
        self._result = tuple(reversed(self._deltas)) if found else None

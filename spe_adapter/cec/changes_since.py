"""The changes since an older version of the state: the append groups after that version, oldest first.

Invariants:
* A version is an epoch and the attempt that won it: another attempt's output of the same epoch is another state.
* A version that was undone by a reset, that is older than a rebase or that was trimmed away leads nowhere: the result
  is None, and the whole state must be loaded. So it is if cleaning has removed the state of a group in between, which
  then has no mark.
* Every changed window must have a footprint in every epoch, as in micro-batches. Then the newer state is the older
  state with the footprints put and the tombstones deleted.
"""

from typing import Final, NamedTuple

import pyarrow as pa

from logstore.interfaces import Buffer
from spe_adapter.cec.backward_scan import BackwardScan, Scanned
from spe_adapter.cec.control import Begin, Control, End, Footprints, Mark, Tombstones

DEFAULT_LIMIT_TUPLES: Final = 2**63


class EpochChanges(NamedTuple):
    """The changes of one epoch: its mark, the footprints of windows that changed and are open, and the tombstones."""

    mark: Mark
    footprints: tuple[pa.RecordBatch, ...]
    tombstones: tuple[pa.RecordBatch, ...]


class ChangesSince:
    """The groups of a query after the version (`epoch`, `attempt`), up to the newest group or to `as_of`.

    `attempt` is as in BEGIN ("task:attempt") or as in the mark. Call `feed` with pieces (whole control batches, newest
    first) until it returns True; then read `result`. With more than `limit_tuples` footprints and tombstones the result
    is None.
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
        """The changes, oldest first (empty: nothing is newer); None if they do not lead on from that version."""
        return self._result

    @property
    def scanned(self) -> Scanned:
        """Counts of what the scan has read."""
        return self._scan.scanned

    def feed(self, piece: Buffer) -> bool:
        """Read a piece; True if nothing older is needed.

        Raises CorruptBatch, UnknownFormatVersion or StateInconsistent.
        """
        if not self.done:
            if any(self._take(record) for record in self._scan.records(piece)):
                return True
            self._done = self._scan.missed
        return self._done

    def finish(self) -> tuple[EpochChanges, ...] | None:
        """End the scan, because the log has nothing older; the result."""
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
        elif self._mark is None:
            self._conclude(found=False)
        else:
            # Read backwards; a group's batches are given in the order in which they were written.
            footprints, tombstones = reversed(self._footprints), reversed(self._tombstones)
            self._deltas.append(EpochChanges(self._mark, tuple(footprints), tuple(tombstones)))

    def _conclude(self, *, found: bool) -> None:
        self._done = True
        self._result = tuple(reversed(self._deltas)) if found else None

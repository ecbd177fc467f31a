"""The backward scan: an eventual checkpoint from a stream's control batches, newest first.

Invariants:
* Only groups with an END count. Batches newer than the newest END belong to a torn group and are skipped; there, and
  nowhere else, a batch with a wrong checksum is skipped too.
* The newest entry of an identity holds, be it a footprint or a tombstone; older entries of the identity are ignored.
* Groups that a reset undid are ignored.
* Every group that counts has a mark, unless cleaning has removed its state, and then that of all older groups too. A
  scan that needs such a group ends with an error, never with an older footprint or mark in the place of a removed one.
* The scan ends as soon as N distinct open windows are found, where N is in the newest mark. More than N windows, or the
  end of the log or a rebase before N windows, is an error, never a smaller state.
* Memory is bounded by the windows that are kept: windows can be drained during the scan.

Source: CEC paper, section II.B ("Constructing an EC", "Extent of an EC");
docs/decisions/0008-epochs-instead-of-timestamps.md.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from logstore.interfaces import Buffer
from spe_adapter.cec.backward_scan import BackwardScan, Scanned
from spe_adapter.cec.control import Begin, Control, End, EndPositions, Footprints, Mark, Tombstones
from spe_adapter.cec.identities import Identities
from spe_adapter.codec.kernels import Int64s
from spe_adapter.errors import StateCleaned, StateInconsistent, StateTrimmed


class Windows(NamedTuple):
    """Open windows with their newest footprint in one epoch: the epoch's mark, and rows as in `control.Footprints`."""

    mark: Mark
    batches: tuple[pa.RecordBatch, ...]

    @property
    def rows(self) -> int:
        """Number of windows."""
        return sum(batch.num_rows for batch in self.batches)


class Skips(NamedTuple):
    """Identities that were closed after T and are not open at the end, each with the epoch of its tombstone: a replay
    drops their rows up to that epoch. One entry per identity in each column.
    """

    keys: pa.Array
    numbers: Int64s
    epochs: Int64s


class Floor(NamedTuple):
    """The version of a complete checkpoint: a scan that reaches its mark needs nothing older."""

    epoch: int
    attempt: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EventualCheckpoint:
    """An eventual checkpoint: the open windows W, and the data that a replay needs to bring them to one epoch.

    `found` is False if the log has no END of the query; then there is no state. `windows` are grouped by epoch, newest
    first, without drained windows. `oldest_epoch` is T: a replay starts after it. `marks` are the marks from T on,
    oldest first. `newest_epoch` is the newest epoch of the query in the scanned part of the log, even if `as_of` was
    older. If `floor_reached`, the windows are those with a footprint after the floor, T is the floor's epoch, and the
    other open windows are those of the checkpoint that no entry in `windows` or `skips` names.
    """

    found: bool
    end: End | None
    progress: EndPositions | None
    mark: Mark | None
    windows: tuple[Windows, ...]
    skips: Skips
    oldest_epoch: int
    marks: tuple[Mark, ...]
    scanned: Scanned
    newest_epoch: int | None
    floor_reached: bool = False


class Reconstruction:
    """Finds the eventual checkpoint of a query, as of its newest epoch or of `as_of`.

    Call `feed` with pieces (whole control batches end to end, newest first) until it returns True, then read `result`;
    call `finish` if the log has nothing older. `seed` keys the hash of identities: a number that the producers of keys
    do not know. The scan ends at `floor`, if the log has that version.
    """

    def __init__(self, query: str, as_of: int | None = None, *, seed: int, floor: Floor | None = None) -> None:
        self._floor = floor
        self._floor_reached = False
        self._query = query
        self._as_of = as_of
        self._scan = BackwardScan(query, as_of)
        self._seed = seed
        self._identities = Identities(seed=seed)
        self._marks: list[Mark] = []
        self._group_mark: Mark | None = None
        self._windows: list[Windows] = []
        self._tombstones: list[tuple[int, pa.RecordBatch]] = []
        self._found = 0
        self._oldest_epoch = 0
        self._result: EventualCheckpoint | None = None

    @property
    def done(self) -> bool:
        """Whether nothing older is needed."""
        return self._result is not None

    @property
    def result(self) -> EventualCheckpoint:
        """The eventual checkpoint. Raises StateInconsistent before the scan is done."""
        if self._result is None:
            raise StateInconsistent(f"{self._query}: the scan is not finished; feed it, or finish it")
        return self._result

    def feed(self, piece: Buffer) -> bool:
        """Read a piece; True if nothing older is needed.

        Raises CorruptBatch, UnknownFormatVersion, StateCleaned or StateInconsistent.
        """
        if not self.done:
            if any(self._take(record) for record in self._scan.records(piece)):
                return True
            if self._scan.missed:
                self._conclude()
        return self.done

    def finish(self, log_start_offset: int) -> EventualCheckpoint:
        """End the scan, because the log has nothing older; the eventual checkpoint.

        Raises StateTrimmed if windows are missing and the log starts above offset 0, StateInconsistent if windows are
        missing from a log that was never trimmed.
        """
        if self._result is not None:
            return self._result
        missing = self._missing()
        if missing and log_start_offset > 0:
            raise StateTrimmed(f"{missing}, and the log starts at offset {log_start_offset}; it was trimmed too far")
        if self._scan.end is not None:
            raise StateInconsistent(f"{missing}, but the log, whole from its first record on, does not hold it")
        self._conclude()
        return self.result

    def drain(self) -> list[Windows]:
        """Take the windows that were found since the last call, so that memory need not hold all windows. The result
        does not have them.

        No window comes twice. Discard the windows if the scan ends in an error.
        """
        windows, self._windows = self._windows, []
        return windows

    def _missing(self) -> str:
        """A sentence on what is missing; empty if nothing is."""
        if self._marks:
            mark = self._marks[0]
            return (
                f"{self._query}, partition {mark.partition}: {mark.open_windows - self._found} of the "
                f"{mark.open_windows} windows open at epoch {mark.epoch} were last written before offset "
                f"{self._scan.scanned.oldest_offset} (the oldest in epoch {mark.oldest_epoch})"
            )
        if self._scan.end is not None:
            return f"{self._query}: no mark up to epoch {self._scan.end.epoch}"
        return f"{self._query}: no epoch {self._as_of}" if self._as_of is not None else ""

    # ---- one record after the other

    def _take(self, record: Control) -> bool:
        if isinstance(record, End):
            self._group_mark = None
        elif isinstance(record, Mark):
            self._take_mark(record)
        elif isinstance(record, Begin):
            self._leave_group(record)
        elif self._group_mark is None:
            raise StateInconsistent(f"{self._query}: epoch {record.epoch} has state but no mark behind it")
        elif isinstance(record, Tombstones):
            self._take_tombstones(record)
        else:
            self._take_footprints(record, self._group_mark)
        return self.done

    def _take_mark(self, mark: Mark) -> None:
        if self._group_mark is not None:
            raise StateInconsistent(f"{self._query}: epoch {mark.epoch} has two marks")
        if not self._marks:
            self._oldest_epoch = mark.epoch
            self._identities = Identities(mark.open_windows, seed=self._seed)
        self._group_mark = mark
        self._marks.append(mark)
        if (mark.epoch, mark.attempt) == self._floor and self._found < self._marks[0].open_windows:
            self._floor_reached = True
            self._oldest_epoch = mark.epoch
            self._conclude()
            return
        self._conclude_if_complete()

    def _take_tombstones(self, tombstones: Tombstones) -> None:
        rows = tombstones.rows
        self._scan.count(0, rows.num_rows)
        fresh = _chosen(rows, self._identities)
        if fresh.num_rows:
            self._tombstones.append((tombstones.epoch, fresh))

    def _take_footprints(self, footprints: Footprints, mark: Mark) -> None:
        rows = footprints.rows
        self._scan.count(rows.num_rows, 0)
        fresh = _chosen(rows, self._identities)
        if not fresh.num_rows:
            return
        self._found += fresh.num_rows
        if self._found > self._marks[0].open_windows:
            raise StateInconsistent(
                f"{self._query}: the mark of epoch {self._marks[0].epoch} says {self._marks[0].open_windows} open "
                f"windows, but {self._found} are found down to epoch {mark.epoch}"
            )
        self._oldest_epoch = mark.epoch
        if self._windows and self._windows[-1].mark is mark:
            self._windows[-1] = Windows(mark, (*self._windows[-1].batches, fresh))
        else:
            self._windows.append(Windows(mark, (fresh,)))
        self._conclude_if_complete()

    def _leave_group(self, begin: Begin) -> None:
        mark = self._group_mark
        if mark is None:
            raise StateCleaned(cleaned(self._query, begin.epoch, self._missing()))
        if mark.rebase:
            raise StateInconsistent(
                f"{self._query}: epoch {mark.epoch} holds all windows, but {self._found} of "
                f"{self._marks[0].open_windows} are found"
            )

    def _conclude_if_complete(self) -> None:
        if self._found == self._marks[0].open_windows:
            self._conclude()

    def _conclude(self) -> None:
        scan = self._scan
        self._result = EventualCheckpoint(
            found=scan.end is not None,
            end=scan.end,
            progress=scan.progress,
            mark=self._marks[0] if self._marks else None,
            windows=tuple(self._windows),
            skips=_skips([(epoch, rows) for epoch, rows in self._tombstones if epoch > self._oldest_epoch]),
            oldest_epoch=self._oldest_epoch,
            marks=tuple(reversed(self._marks)),
            scanned=scan.scanned,
            newest_epoch=scan.newest_epoch,
            floor_reached=self._floor_reached,
        )


def cleaned(query: str, epoch: int, missing: str) -> str:
    """The message for state that was removed from the log at and before an epoch; `missing`: what is missing, or ""."""
    return (
        f"{missing or f'{query}: the state of epoch {epoch} is missing'}, and the log keeps no state of epoch {epoch} "
        "and older epochs: the query runs, or ran, with stateHistory = recovery. With stateHistory = all, the state it "
        "writes from then on is kept as long as its results"
    )


def _chosen(rows: pa.RecordBatch, identities: Identities) -> pa.RecordBatch:
    """The rows whose identity is not in `identities`, to which all are added."""
    fresh = identities.add(rows.column(0), rows.column(1).to_numpy())
    count = int(np.count_nonzero(fresh))
    if count == rows.num_rows:
        return rows
    return rows.filter(pa.array(fresh)) if count else rows.slice(0, 0)


def _skips(tombstones: list[tuple[int, pa.RecordBatch]]) -> Skips:
    keys = [rows.column(0) for _, rows in tombstones]
    return Skips(
        keys=pa.concat_arrays(keys) if keys else pa.array([], pa.binary()),
        numbers=np.concatenate([np.empty(0, np.int64), *(rows.column(1).to_numpy() for _, rows in tombstones)]),
        epochs=np.concatenate([np.empty(0, np.int64), *(np.full(rows.num_rows, epoch) for epoch, rows in tombstones)]),
    )

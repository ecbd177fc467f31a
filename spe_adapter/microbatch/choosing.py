"""Whether rows are combined in front of the shuffle: as the options say, or as the last epochs suggest.

Invariants:
* Nothing but the time that an epoch takes and the last bits of sums of floating point numbers depends on the choice.
* The first epochs of a run show what there is: they are not combined unless the options say so.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from spe_adapter.microbatch.epoch import Fixed, Report

_EPOCHS: Final = 3
"""So many are looked at: a single one may be an exception."""
_LEAST_RECORDS: Final = 5_000
"""In an epoch of fewer nothing is to be gained."""
_BEGIN: Final = 4
_END: Final = 2
"""Combining begins when there are so many rows to a window, and ends when fewer than so many become one: a combined row
costs more than a row, and switching back and forth helps nobody."""


class _Shown(NamedTuple):
    records: int
    moved: int


class Choice:
    """What is chosen for the next epoch."""

    def __init__(self, fixed: Fixed) -> None:
        self._mode = fixed.options.combine if fixed.operator.combining(fixed.schema) is not None else "never"
        self.combine = self._mode == "always"
        self._shown: deque[_Shown] = deque(maxlen=_EPOCHS)

    def note(self, reports: Sequence[Report]) -> None:
        """An epoch is over."""
        records = sum(report.records for report in reports)
        if self._mode != "auto" or records < _LEAST_RECORDS:
            return
        moved = sum(report.moved if report.combined else report.windows for report in reports)
        self._shown.append(_Shown(records, moved))
        rows_to_one = sum(shown.records for shown in self._shown) / max(sum(shown.moved for shown in self._shown), 1)
        wanted = rows_to_one >= (_END if self.combine else _BEGIN)
        if wanted != self.combine:
            self.combine = wanted
            self._shown.clear()

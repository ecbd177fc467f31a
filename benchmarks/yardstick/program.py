"""Integer programs, solved by HiGHS: columns and rows are collected here and handed over at once.

Invariants:
* Every column is a whole number from 0 up to its limit; the objective is maximized.
* A solution that is not proven best still obeys every row, and its bound says how much better another could be.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import highspy
import numpy as np

from scheduler.errors import SchedulerError

FREE = float("inf")
SLACK = 1e-6
"""What a bound on whole numbers may be above them through rounding."""

Term = tuple[int, int]
"""(column, coefficient)."""


class Solution(NamedTuple):
    """Values of all columns; whether they are proven best; and no solution has an objective above `bound`."""

    values: list[int]
    objective: float
    proven: bool
    bound: float


class Program:
    """Columns and rows of an integer program."""

    def __init__(self) -> None:
        self._most: list[float] = []
        self._starts: list[int] = [0]
        self._index: list[int] = []
        self._value: list[int] = []
        self._lower: list[float] = []
        self._upper: list[float] = []

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return len(self._most)

    def column(self, most: float = FREE) -> int:
        """A new column from 0 to `most`."""
        self._most.append(most)
        return len(self._most) - 1

    def row(self, terms: Iterable[Term], lower: float, upper: float) -> None:
        """lower ≤ Σ coefficient · column ≤ upper. A column may appear several times."""
        together: dict[int, int] = {}
        for column, coefficient in terms:
            together[column] = together.get(column, 0) + coefficient
        self._index.extend(together)
        self._value.extend(together.values())
        self._starts.append(len(self._index))
        self._lower.append(lower)
        self._upper.append(upper)

    def at_most(self, terms: Iterable[Term], limit: float) -> None:
        """Σ coefficient · column ≤ limit."""
        self.row(terms, -FREE, limit)

    def equal(self, left: Iterable[Term], right: Iterable[Term]) -> None:
        """Σ left = Σ right."""
        self.row((*left, *((column, -coefficient) for column, coefficient in right)), 0, 0)

    def maximize(self, time_limit_s: float, worth: Sequence[float], start: Sequence[int] = ()) -> Solution:
        """The best values for Σ worth · column found within the time, from a solution `start` if there is one.

        Raises SchedulerError if there are none. Where all columns may be 0 there always is a solution, so none means
        that HiGHS was stopped before it began.
        """
        if not self._most:
            return Solution([], 0.0, True, 0.0)
        highs = highspy.Highs()
        highs.silent()
        for option, value in (("time_limit", max(time_limit_s, 0.01)), ("threads", 1), ("mip_rel_gap", 0.0)):
            highs.setOptionValue(option, value)
        highs.passModel(self._model(worth))
        if start:
            known = highspy.HighsSolution()
            known.col_value = list(map(float, start))
            highs.setSolution(known)
        highs.run()
        info, values = highs.getInfo(), list(highs.getSolution().col_value)
        if info.primal_solution_status != 2:  # kSolutionStatusFeasible
            raise SchedulerError(f"no solution within {time_limit_s} s ({highs.getModelStatus()}): allow more time")
        proven = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        bound = -info.mip_dual_bound
        return Solution([round(value) for value in values], -info.objective_function_value, proven, bound)

    def _model(self, worth: Sequence[float]) -> "highspy.HighsLp":
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self._most), len(self._lower)
        model.col_cost_ = -np.array(worth, np.float64)
        model.col_lower_ = np.zeros(len(self._most))
        model.col_upper_ = np.array(self._most, np.float64)
        model.row_lower_ = np.array(self._lower, np.float64)
        model.row_upper_ = np.array(self._upper, np.float64)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self._starts, np.int32)
        model.a_matrix_.index_ = np.array(self._index, np.int32)
        model.a_matrix_.value_ = np.array(self._value, np.float64)
        model.integrality_ = [highspy.HighsVarType.kInteger] * len(self._most)
        return model

"""Means with 95 % confidence intervals: what stands beside the figures of benchmarks.

Invariants:
* A ratio's interval is that of paired samples: both sides of each ratio ran in the same block, one after the other.
* Student's t on the logarithms of ratios, on the values themselves otherwise; n is the number of blocks or runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Quantiles of Student's t for 1 to 30 degrees of freedom."""
_NORMAL_975 = 1.960


class Interval(NamedTuple):
    """A mean, the ends of its 95 % confidence interval, and how many samples it is of."""

    mean: float
    low: float
    high: float
    n: int

    def shifted(self, by: float) -> Interval:
        """With a number added: a ratio of 1.02 becomes an overhead of 0.02."""
        return Interval(self.mean + by, self.low + by, self.high + by, self.n)


def of_values(values: Sequence[float]) -> Interval:
    """The arithmetic mean. There must be at least one value; of one alone nothing is known of its spread."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf, len(values))
    half = _quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def of_ratios(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The geometric mean of ours / theirs, pair by pair."""
    mean, low, high, n = of_values([math.log(left / right) for left, right in zip(ours, theirs, strict=True)])
    return Interval(math.exp(mean), math.exp(low), math.exp(high) if high < math.inf else math.inf, n)


def _quantile(freedom: int) -> float:
    return _T_975[freedom - 1] if freedom <= len(_T_975) else _NORMAL_975

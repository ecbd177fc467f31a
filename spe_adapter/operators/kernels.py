"""The compiled loops of aggregates: each folds rows, in their order, into one slot per window.

Invariants:
* A fold is strictly from left to right, so that rows give the same bits however they are cut into batches.
* `nulls` may be empty (nothing is null). Types are fixed (see `aggregates.steady`), so each loop compiles once and
  comes from the cache on disk afterwards.
"""

# mypy: disable-error-code="arg-type,assignment,operator,return-value"

import numpy as np
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Bools, Int64s, compiled

Doubles = NDArray[np.float64]


@compiled
def sum_ints(values: Int64s, nulls: Bools, windows: Int64s, sums: Int64s, empty: Bools) -> int:
    """Add up; the first row that leads beyond 64 bits, or -1."""
    any_null = nulls.shape[0] != 0
    for row in range(values.shape[0]):
        if any_null and nulls[row]:
            continue
        window = windows[row]
        before, value = sums[window], values[row]
        after = before + value
        if (before ^ after) & (value ^ after) < 0:
            return row
        sums[window] = after
        empty[window] = False
    return -1


@compiled
def sum_doubles(values: Doubles, nulls: Bools, windows: Int64s, sums: Doubles, empty: Bools) -> None:
    """Add up."""
    any_null = nulls.shape[0] != 0
    for row in range(values.shape[0]):
        if any_null and nulls[row]:
            continue
        sums[windows[row]] += values[row]
        empty[windows[row]] = False


@compiled
def best_int(values: Int64s, nulls: Bools, windows: Int64s, greatest: bool, best: Int64s, empty: Bools) -> None:
    """The least or greatest value."""
    any_null = nulls.shape[0] != 0
    for row in range(values.shape[0]):
        if any_null and nulls[row]:
            continue
        window, value = windows[row], values[row]
        if empty[window] or (value > best[window] if greatest else value < best[window]):
            best[window] = value
            empty[window] = False


@compiled
def best_double(values: Doubles, nulls: Bools, windows: Int64s, greatest: bool, best: Doubles, empty: Bools) -> None:
    """The least or greatest value; NaN is greater than all others, as in Spark."""
    any_null = nulls.shape[0] != 0
    for row in range(values.shape[0]):
        if any_null and nulls[row]:
            continue
        window, value = windows[row], values[row]
        held = best[window]
        if greatest:
            better = value > held or (np.isnan(value) and not np.isnan(held))
        else:
            better = value < held or (np.isnan(held) and not np.isnan(value))
        if empty[window] or better:
            best[window] = value
            empty[window] = False


@compiled
def moments(values: Doubles, nulls: Bools, windows: Int64s, counts: Int64s, means: Doubles, squares: Doubles) -> None:
    """Count, mean and sum of squared distances from it (Welford), as Spark's CentralMomentAgg updates them."""
    any_null = nulls.shape[0] != 0
    for row in range(values.shape[0]):
        if any_null and nulls[row]:
            continue
        window = windows[row]
        counts[window] += 1
        delta = values[row] - means[window]
        step = delta / counts[window]
        means[window] += step
        squares[window] += delta * (delta - step)


@compiled
def merge_moments(
    others: Int64s,
    other_means: Doubles,
    other_squares: Doubles,
    windows: Int64s,
    counts: Int64s,
    means: Doubles,
    squares: Doubles,
) -> None:
    """Moments that were computed apart, into those of their windows, as Spark's CentralMomentAgg merges them."""
    for row in range(others.shape[0]):
        window, other = windows[row], others[row]
        if other == 0:
            continue
        before = counts[window]
        count = before + other
        delta = other_means[row] - means[window]
        part = delta / count
        counts[window] = count
        means[window] += part * other
        squares[window] += other_squares[row] + delta * part * before * other


@compiled
def number_rows(groups: Int64s, counters: Int64s, out: Int64s) -> None:
    """Number the rows of each group on from its counter, which ends behind its last row."""
    for row in range(groups.shape[0]):
        group = groups[row]
        out[row] = counters[group]
        counters[group] += 1

"""Decimals in aggregates: exact sums, means, and comparisons on their 16 bytes.

Types are Spark's: the sum of decimal(p, s) is decimal(min(p + 10, 38), s), its mean decimal(min(p + 4, 38), min(s + 4,
38)), rounded half up. What does not fit is ArithmeticOverflow, as in Spark's default ANSI mode.

Invariants: nothing is rounded but means, once; loops read arrays of one type each, and write private copies; the words
of nulls are zero.

Source: Spark's Sum, Average and Decimal.
"""

# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Bools, Int64s, compiled
from spe_adapter.state.columns import bitmap

MAX_PRECISION: Final = 38
_SUM_DIGITS: Final = 10
_MEAN_DIGITS: Final = 4
_WORD: Final = 2**64

Words = NDArray[np.uint64]


def sum_type(kind: pa.DataType) -> pa.DataType:
    """The type of the sum of decimals."""
    return pa.decimal128(min(kind.precision + _SUM_DIGITS, MAX_PRECISION), kind.scale)


def mean_type(kind: pa.DataType) -> pa.DataType:
    """The type of the mean of decimals."""
    precision = min(kind.precision + _MEAN_DIGITS, MAX_PRECISION)
    return pa.decimal128(precision, min(kind.scale + _MEAN_DIGITS, MAX_PRECISION))


class Unscaled(NamedTuple):
    """Decimals' unscaled values in two's complement: low and high words, and where they are null. Own copies."""

    low: Words
    high: Int64s
    nulls: Bools

    @classmethod
    def of(cls, column: pa.Array) -> "Unscaled":
        """The words of a column of decimals."""
        nulls = np.zeros(len(column), np.bool_)
        data = column.buffers()[1]
        if data is None or not len(column):
            return cls(np.zeros(len(column), np.uint64), np.zeros(len(column), np.int64), ~nulls)
        words = np.frombuffer(data, np.uint64).reshape(-1, 2)[column.offset : column.offset + len(column)].copy()
        if column.null_count:
            nulls = column.is_null().to_numpy(zero_copy_only=False).copy()
            words[nulls] = 0
        return cls(words[:, 0].copy(), words[:, 1].copy().view(np.int64), nulls)

    def as_arrow(self, kind: pa.DataType) -> pa.Array:
        """As decimals of this type."""
        words = np.empty((len(self.low), 2), np.uint64)
        words[:, 0] = self.low
        words[:, 1] = self.high.view(np.uint64)
        words[self.nulls] = 0
        return pa.Array.from_buffers(kind, len(words), [bitmap(~self.nulls), pa.py_buffer(words)])


def add(sums: Unscaled, column: pa.Array, windows: Int64s, precision: int) -> int:
    """Add a column's values to the sums of their windows. The first row that leads beyond the precision, or -1."""
    return int(_add_rows(*Unscaled.of(column), np.ascontiguousarray(windows), *sums, *_limit(precision)))


def choose(best: Unscaled, column: pa.Array, windows: Int64s, *, greatest: bool) -> None:
    """The least or greatest value of each window."""
    _best_rows(*Unscaled.of(column), np.ascontiguousarray(windows), *best, greatest)


def means(sums: Unscaled, counts: Int64s, shift: int, precision: int) -> tuple[Unscaled, int]:
    """sums · 10^shift / counts, rounded half up, null where a count is 0; and the first that exceeds the precision,
    or -1.
    """
    result = Unscaled(np.zeros_like(sums.low), np.zeros_like(sums.high), counts == 0)
    counts = np.ascontiguousarray(counts, np.int64)
    return result, int(_mean_rows(sums.low, sums.high, counts, 10**shift, *result, *_limit(precision)))


def _limit(precision: int) -> tuple[np.uint64, np.uint64]:
    high, low = divmod(10**precision, _WORD)
    return np.uint64(low), np.uint64(high)


@compiled
def _magnitude(low: int, high: int) -> tuple[int, int]:
    if high >= 0:
        return low, np.uint64(high)
    negated = ~low + np.uint64(1)
    return negated, ~np.uint64(high) + (np.uint64(1) if negated == 0 else np.uint64(0))


@compiled
def _is_below(low: int, high: int, limit_low: int, limit_high: int) -> bool:
    return high < limit_high or (high == limit_high and low < limit_low)


@compiled
def _add_rows(
    low: Words,
    high: Int64s,
    nulls: Bools,
    windows: Int64s,
    sums_low: Words,
    sums_high: Int64s,
    empty: Bools,
    limit_low: int,
    limit_high: int,
) -> int:
    for row in range(windows.shape[0]):
        if nulls[row]:
            continue
        window = windows[row]
        before = sums_high[window]
        new_low = sums_low[window] + low[row]
        carry = np.int64(1) if new_low < low[row] else np.int64(0)
        new_high = before + high[row] + carry
        if (before ^ new_high) & (high[row] ^ new_high) < 0:
            return row
        if not _is_below(*_magnitude(new_low, new_high), limit_low, limit_high):
            return row
        sums_low[window] = new_low
        sums_high[window] = new_high
        empty[window] = False
    return -1


@compiled
def _best_rows(
    low: Words,
    high: Int64s,
    nulls: Bools,
    windows: Int64s,
    best_low: Words,
    best_high: Int64s,
    empty: Bools,
    greatest: bool,
) -> None:
    for row in range(windows.shape[0]):
        if nulls[row]:
            continue
        window = windows[row]
        is_less = high[row] < best_high[window] or (high[row] == best_high[window] and low[row] < best_low[window])
        is_same = high[row] == best_high[window] and low[row] == best_low[window]
        if empty[window] or (not is_same and is_less != greatest):
            best_low[window] = low[row]
            best_high[window] = high[row]
            empty[window] = False


@compiled
def _mean_rows(
    low: Words,
    high: Int64s,
    counts: Int64s,
    factor: int,
    out_low: Words,
    out_high: Int64s,
    out_nulls: Bools,
    limit_low: int,
    limit_high: int,
) -> int:
    limbs = np.empty(5, np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    for row in range(counts.shape[0]):
        if out_nulls[row]:
            continue
        size_low, size_high = _magnitude(low[row], high[row])
        limbs[0], limbs[1] = size_low & mask, size_low >> np.uint64(32)
        limbs[2], limbs[3] = size_high & mask, size_high >> np.uint64(32)
        carry = np.uint64(0)
        for at in range(4):
            product = limbs[at] * np.uint64(factor) + carry
            limbs[at] = product & mask
            carry = product >> np.uint64(32)
        limbs[4] = carry
        # Bit by bit: the rest stays below the count, so that nothing is lost in 64 bits.
        count = np.uint64(counts[row])
        rest, quotient_low, quotient_high, above = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
        for bit in range(159, -1, -1):
            rest = (rest << np.uint64(1)) | ((limbs[bit // 32] >> np.uint64(bit % 32)) & np.uint64(1))
            above |= quotient_high >> np.uint64(63)
            quotient_high = (quotient_high << np.uint64(1)) | (quotient_low >> np.uint64(63))
            quotient_low <<= np.uint64(1)
            if rest >= count:
                rest -= count
                quotient_low |= np.uint64(1)
        if rest >= count - rest:
            quotient_low += np.uint64(1)
            if quotient_low == 0:
                quotient_high += np.uint64(1)
        if above != 0 or not _is_below(quotient_low, quotient_high, limit_low, limit_high):
            return row
        if high[row] < 0:
            quotient_low = ~quotient_low + np.uint64(1)
            quotient_high = ~quotient_high + (np.uint64(1) if quotient_low == 0 else np.uint64(0))
        out_low[row] = quotient_low
        out_high[row] = np.int64(quotient_high)
    return -1

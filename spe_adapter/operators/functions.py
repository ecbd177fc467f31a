"""The aggregates, named as in Spark: `from spe_adapter.operators import functions as agg`, then `agg.avg("price")`.

| function | input | result | nulls |
|---|---|---|---|
| count() | – | int64 | rows are counted |
| count(x) | any | int64 | not counted |
| sum(x) | integers; decimal(p, s); float, double | int64; decimal(p + 10, s); double | skipped; null if all are |
| avg(x) | decimal(p, s); other numbers | decimal(p + 4, s + 4); double | skipped; null if all are |
| stddev(x) | numbers | double | skipped; null if all are |
| min(x), max(x) | numbers, boolean, date, timestamp, string, … | as the input | skipped |
| first(x), last(x) | the same, lists, structs | as the input | counted as values, unless ignore_nulls |
| collect_list(x) | the same | a list | left out; empty if all are |
| collect_set(x) | numbers, boolean, date, timestamp, string, … | a list | left out; empty if all are |
| approx_count_distinct(x) | the same | int64 | not counted |
| percentile_approx(x, q) | numbers | double, or a list of them | skipped; null if all are |

Results equal Spark's results. A sum of integers beyond 64 bits is an error (Spark's default, ANSI mode), and so is a
sum of decimals beyond their precision, which has at most 38 digits. NaN is greater than any other number. Strings
compare by their bytes. stddev is the sample standard deviation, null for one row. The two approximate aggregates are as
exact as Spark's, but give other values.

Invariant: rows are folded in their order of arrival, one by one, so results do not depend on the cuts between batches.
`first`, `last` and the collected lists follow the order of arrival, not the order of time.

Source: Spark's Count, Sum, Average, Min, Max, First, Last and CentralMomentAgg.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spe_adapter.codec.kernels import Int64s
from spe_adapter.codec.nested import is_decimal, is_nested
from spe_adapter.operators import decimals, kernels
from spe_adapter.operators.aggregation import (
    NUMBERS,
    Aggregation,
    Refolding,
    arrow,
    check,
    fixed,
    is_number,
    is_text,
    kept,
    ordered,
)
from spe_adapter.operators.cells import Cells, Fixed, Slot, arrow_of, column_values, steady
from spe_adapter.operators.collecting import CollectList, CollectSet
from spe_adapter.operators.decimals import Unscaled
from spe_adapter.operators.errors import ArithmeticOverflow
from spe_adapter.operators.sketches import ApproxCountDistinct, ApproxPercentile


def _plus(cells: Cells, combined: pa.Array, windows: Int64s) -> Fixed:
    """Cells with the values of a column added, each to its window, in their order."""
    sums = fixed(cells).values.copy()
    np.add.at(sums, windows, column_values(combined, sums.dtype)[0])
    return Fixed(sums, None)


def _decimal_sums(aggregation: Aggregation, before: pa.Array, column: pa.Array, windows: Int64s) -> pa.Array:
    """Sums of decimals with the values of a column added. Raises ArithmeticOverflow."""
    kind = before.type
    sums = Unscaled.of(before)
    row = decimals.add(sums, column, windows, kind.precision)
    if row >= 0:
        raise ArithmeticOverflow(
            f"{aggregation.name} of column {aggregation.column!r} exceeds {kind.precision} digits with {column[row]}; "
            "sum it as a double"
        )
    return sums.as_arrow(kind)


class Count(Aggregation):
    """The number of rows, or of rows whose column is not null."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The count."""
        if self.column is not None:
            self.type_of_input(schema)
        return (Slot("", pa.int64(), nullable=False),)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Count."""
        before = fixed(cells[0]).values
        if self.column is not None:
            values = batch.column(self.column)
            if values.null_count:
                windows = windows[values.is_valid().to_numpy(zero_copy_only=False)]
        return [Fixed(before + np.bincount(windows, minlength=len(before)), None)]

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """Add the counts."""
        return [_plus(cells[0], combined[0], windows)]

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """A number of rows."""
        return pa.int64()


class Sum(Refolding):
    """The sum: int64 of integers, a decimal of decimals, double of other numbers."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The sum."""
        kind = self.result_type(schema)
        return (Slot("", kind, arrow=is_decimal(kind)),)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Add up. Raises ArithmeticOverflow."""
        column = batch.column(self.column)
        if not isinstance(cells[0], Fixed):
            return [_decimal_sums(self, cells[0], column, windows)]
        sums, nulls = cells[0]
        empty = np.array(nulls, np.bool_)
        if sums.dtype == np.int64:
            values, missing = column_values(column, np.int64)
            row = kernels.sum_ints(values, missing, steady(windows, np.int64), sums, empty)
            if row >= 0:
                raise ArithmeticOverflow(
                    f"sum of column {self.column!r} exceeds 64 bits with {int(values[row])}; sum it as a double"
                )
        else:
            values, missing = column_values(column, np.float64)
            kernels.sum_doubles(values, missing, steady(windows, np.int64), sums, empty)
        return [Fixed(sums, empty)]

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """As Spark has it."""
        kind = self.type_of_input(schema)
        check(self, kind, NUMBERS, is_number(kind))
        if is_decimal(kind):
            return decimals.sum_type(kind)
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()


class Avg(Aggregation):
    """The mean, from a sum that is kept as a double, or as a decimal for decimal values."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """Sum and count."""
        kind = self.type_of_input(schema)
        check(self, kind, NUMBERS, is_number(kind))
        count = Slot(".n", pa.int64(), nullable=False)
        if is_decimal(kind):
            return Slot(".sum", decimals.sum_type(kind), arrow=True), count
        return Slot(".sum", pa.float64(), nullable=False), count

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Add up and count. Raises ArithmeticOverflow."""
        column, counts = batch.column(self.column), fixed(cells[1]).values
        if not isinstance(cells[0], Fixed):
            total = _decimal_sums(self, cells[0], column, windows)
            if column.null_count:
                windows = windows[column.is_valid().to_numpy(zero_copy_only=False)]
            return [total, Fixed(counts + np.bincount(windows, minlength=len(counts)), None)]
        sums = cells[0].values
        values, nulls = column_values(column, np.float64)
        kernels.sum_doubles(values, nulls, steady(windows, np.int64), sums, np.empty(len(sums), np.bool_))
        if len(nulls):
            windows = windows[~nulls]
        return [Fixed(sums, None), Fixed(counts + np.bincount(windows, minlength=len(counts)), None)]

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """Add sums and counts."""
        counts = _plus(cells[1], combined[1], windows)
        if not isinstance(cells[0], Fixed):
            return [_decimal_sums(self, cells[0], combined[0], windows), counts]
        return [_plus(cells[0], combined[0], windows), counts]

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """Sum by count. Raises ArithmeticOverflow."""
        counts = fixed(cells[1]).values
        if isinstance(cells[0], Fixed):
            return arrow_of(Fixed(cells[0].values / np.maximum(counts, 1), counts == 0), kind)
        shift = kind.scale - cells[0].type.scale
        means, window = decimals.means(Unscaled.of(cells[0]), counts, shift, kind.precision)
        if window >= 0:
            raise ArithmeticOverflow(
                f"the mean of column {self.column!r}, {cells[0][window]} / {counts[window]}, does not fit into {kind}"
            )
        return means.as_arrow(kind)

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """As Spark has it."""
        kind = self.type_of_input(schema)
        return decimals.mean_type(kind) if is_decimal(kind) else pa.float64()


class Stddev(Aggregation):
    """The sample's standard deviation."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """Count, mean, and the sum of squared distances from it."""
        kind = self.type_of_input(schema)
        check(self, kind, NUMBERS, is_number(kind))
        doubles = (Slot(suffix, pa.float64(), nullable=False) for suffix in (".mean", ".m2"))
        return (Slot(".n", pa.int64(), nullable=False), *doubles)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Welford's update, row by row."""
        counts, means, squares = (fixed(part).values for part in cells)
        column = batch.column(self.column)
        values, nulls = column_values(column.cast(pa.float64()) if is_decimal(column.type) else column, np.float64)
        kernels.moments(values, nulls, steady(windows, np.int64), counts, means, squares)
        return [Fixed(counts, None), Fixed(means, None), Fixed(squares, None)]

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """As Spark's CentralMomentAgg merges."""
        counts, means, squares = (fixed(part).values for part in cells)
        parts = (
            column_values(part, kind)[0]
            for part, kind in zip(combined, (np.int64, np.float64, np.float64), strict=True)
        )
        kernels.merge_moments(*parts, steady(windows, np.int64), counts, means, squares)
        return [Fixed(counts, None), Fixed(means, None), Fixed(squares, None)]

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """Null for fewer than two rows, as in Spark."""
        counts, _, squares = (fixed(part).values for part in cells)
        return arrow_of(Fixed(np.sqrt(squares / np.maximum(counts - 1, 1)), counts < 2), kind)

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Always a double."""
        return pa.float64()


@dataclass(frozen=True)
class Extreme(Refolding):
    """The least or greatest value."""

    greatest: bool

    @property
    def name(self) -> str:
        """The name in messages."""
        return "max" if self.greatest else "min"

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The best so far."""
        kind = self.result_type(schema)
        return (Slot("", kind, arrow=is_text(kind) or is_decimal(kind)),)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Compare."""
        before = cells[0]
        column = batch.column(self.column)
        if not isinstance(before, Fixed):
            if is_decimal(before.type):
                chosen = Unscaled.of(before)
                decimals.choose(chosen, column, windows, greatest=self.greatest)
                return [chosen.as_arrow(before.type)]
            return [self._fold_text(before, column.cast(before.type), windows)]
        is_float = before.values.dtype.kind == "f"
        wide = np.float64 if is_float else np.int64
        best, empty = before.values.astype(wide), np.array(before.nulls, np.bool_)
        values, nulls = column_values(column, wide)
        loop = kernels.best_double if is_float else kernels.best_int
        loop(values, nulls, steady(windows, np.int64), self.greatest, best, empty)
        return [Fixed(best.astype(before.values.dtype), empty)]

    def _fold_text(self, before: pa.Array, column: pa.Array, windows: Int64s) -> pa.Array:
        """Strings by their rank among all that take part: equal strings have one code, codes are in order."""
        coded = pc.dictionary_encode(pa.concat_arrays([before, column]))
        order = pc.array_sort_indices(coded.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        nulls = coded.indices.is_null().to_numpy(zero_copy_only=False)
        places = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        codes = rank[places] if len(rank) else np.zeros(len(places), np.int64)
        count = len(before)
        best, empty = codes[:count].copy(), nulls[:count].copy()
        rows, missing = steady(codes[count:], np.int64), steady(nulls[count:], np.bool_)
        kernels.best_int(rows, missing, steady(windows, np.int64), self.greatest, best, empty)
        found = order[best] if len(order) else best
        return coded.dictionary.take(pa.array(found.astype(np.int64), mask=empty))

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """As the input."""
        return ordered(self, self.type_of_input(schema))


@dataclass(frozen=True)
class Edge(Aggregation):
    """The value of the first or last row, by order of arrival."""

    last: bool
    ignore_nulls: bool

    is_ordered: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name in messages."""
        return "last" if self.last else "first"

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The value; for a first that may be null, whether it is there."""
        value = Slot("", self.result_type(schema), arrow=True)
        return (value,) if self.last or self.ignore_nulls else (value, Slot(".taken", pa.bool_(), nullable=False))

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Choose a row for each window."""
        return self._choose(cells, batch.column(self.column), windows)

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """The same of what was chosen elsewhere."""
        return self._choose(cells, combined[0], windows)

    def _choose(self, cells: list[Cells], given: pa.Array, windows: Int64s) -> list[Cells]:
        before = arrow(cells[0])
        column = given.cast(before.type)
        rows = np.arange(len(windows))
        if self.ignore_nulls and column.null_count:
            rows = rows[column.is_valid().to_numpy(zero_copy_only=False)]
        if not self.last:
            rows = rows[::-1]
        # Of several rows for one window the one written last stays.
        chosen = np.full(len(before), -1, np.int64)
        chosen[windows[rows]] = rows
        takes = chosen >= 0
        if not self.last:
            held = before.is_valid().to_numpy(zero_copy_only=False) if self.ignore_nulls else fixed(cells[1]).values
            takes &= ~held
        source = np.where(takes, len(before) + chosen, np.arange(len(before)))
        value = pa.concat_arrays([before, column]).take(pa.array(source))
        return [value] if self.last or self.ignore_nulls else [value, Fixed(held | takes, None)]

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """As the input."""
        kind = kept(self.type_of_input(schema))
        return kind if is_nested(kind) else ordered(self, kind)


def count(column: str | None = None) -> Aggregation:
    """The number of rows, or of rows whose `column` is not null."""
    return Count(column)


def sum(column: str) -> Aggregation:  # noqa: A001  Spark's name
    """The sum of a column."""
    return Sum(column)


def avg(column: str) -> Aggregation:
    """The mean of a column."""
    return Avg(column)


def min(column: str) -> Aggregation:  # noqa: A001  Spark's name
    """The smallest value of a column."""
    return Extreme(column, greatest=False)


def max(column: str) -> Aggregation:  # noqa: A001  Spark's name
    """The greatest value of a column."""
    return Extreme(column, greatest=True)


def stddev(column: str) -> Aggregation:
    """The sample standard deviation of a column."""
    return Stddev(column)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregation:
    """The value of a column in the first row of the window; with `ignore_nulls`, the first value that is not null."""
    return Edge(column, last=False, ignore_nulls=ignore_nulls)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregation:
    """The value of a column in the last row of the window; with `ignore_nulls`, the last value that is not null."""
    return Edge(column, last=True, ignore_nulls=ignore_nulls)


def collect_list(column: str) -> Aggregation:
    """All values of a column, in their order of arrival; at most 16 MiB per window."""
    return CollectList(column)


def collect_set(column: str) -> Aggregation:
    """The distinct values of a column, in the order of their first arrival; at most 16 MiB per window."""
    return CollectSet(column)


def approx_count_distinct(column: str, rsd: float = 0.05) -> Aggregation:
    """The approximate number of distinct values of a column; `rsd` is the relative standard deviation of the result.
    The state of a window takes about 1.2 / rsd² bytes (HyperLogLog).
    """
    return ApproxCountDistinct(column, rsd)


def percentile_approx(column: str, percentage: float | Sequence[float], relative_error: float = 0.01) -> Aggregation:
    """The percentile of a column for a fraction from 0 to 1, or a list of percentiles for several fractions.

    The relative error of each value is at most `relative_error` (DDSketch). In Spark the error is an error of ranks;
    here results depend on the values only, not on their order.
    """
    single = isinstance(percentage, int | float)
    parts = (float(percentage),) if isinstance(percentage, int | float) else tuple(map(float, percentage))
    return ApproxPercentile(column, parts, float(relative_error), single)

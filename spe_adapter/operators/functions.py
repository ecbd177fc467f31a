"""The aggregates, named as in Spark: `from spe_adapter.operators import functions as agg`, then `agg.avg("price")`.

| function | input | result | of nulls |
|---|---|---|---|
| count() | – | int64 | counts rows |
| count(x) | any | int64 | not counted |
| sum(x) | integers; float, double | int64; double | skipped; null if all are |
| avg(x), stddev(x) | integers, float, double | double | skipped; null if all are |
| min(x), max(x) | numbers, boolean, date, timestamp, string, … | as the input | skipped |
| first(x), last(x) | the same | as the input | taken, unless ignore_nulls |

Results equal Spark's: a sum of integers beyond 64 bits is an error (Spark's default, ANSI mode); NaN is greater than
any other number; strings compare by their bytes; stddev is the sample's, null for one row. Decimals are refused.

Invariant: rows are folded in their order of arrival, one by one, so results do not depend on how batches are cut.
`first` and `last` are by order of arrival, not by time.

Source: Spark's Count, Sum, Average, Min, Max, First, Last and CentralMomentAgg.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spe_adapter.codec.kernels import Int64s
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators import kernels
from spe_adapter.operators.cells import Cells, Fixed, Slot, arrow_of, column_values, steady
from spe_adapter.operators.errors import ArithmeticOverflow

_NUMBERS: Final = "integers, float or double"
_ORDERED: Final = "integers, float, double, boolean, date, timestamp, duration, string or binary"


@dataclass(frozen=True)
class Aggregation(ABC):
    """One aggregate of one column. It is folded: state cells and rows in, state cells out."""

    column: str | None

    @abstractmethod
    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The state it keeps for an input of this schema. Raises SchemaRefused."""

    @abstractmethod
    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Rows, each with the index of its window, into the windows' cells."""

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """State that was folded elsewhere, a row of `combined` (one column per slot) for each of `windows`, into the
        windows' cells. Here: as if its value had come as one row.
        """
        value = pa.RecordBatch.from_arrays([combined[0]], names=[str(self.column)])
        return self.fold(cells, value, windows)

    @abstractmethod
    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """The type of its result."""

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """The result of each window."""
        return arrow_of(cells[0], kind)

    def _of(self, schema: pa.Schema) -> pa.DataType:
        name = str(self.column)
        if schema.get_field_index(name) < 0:
            raise SchemaRefused(f"column {name!r} of {self.name} is missing; there is {', '.join(schema.names)}")
        return schema.field(name).type

    @property
    def name(self) -> str:
        """How messages call it."""
        return type(self).__name__.lower()


def _is_number(kind: pa.DataType) -> bool:
    wide = pa.types.is_uint64(kind) or pa.types.is_float16(kind)
    return bool((pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not wide)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _kept(kind: pa.DataType) -> pa.DataType:
    """The type as state has it."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _check(aggregation: Aggregation, kind: pa.DataType, allowed: str, fits: bool) -> None:
    if not fits:
        raise SchemaRefused(f"column {aggregation.column!r} is {kind}; {aggregation.name} takes {allowed}")


def _ordered(aggregation: Aggregation, kind: pa.DataType) -> pa.DataType:
    fits = (
        _is_number(kind)
        or _is_text(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )
    _check(aggregation, kind, _ORDERED, bool(fits))
    return _kept(kind)


def _fixed(cells: Cells) -> Fixed:
    """Cells that an aggregate declared to be of fixed width."""
    if not isinstance(cells, Fixed):
        raise SchemaRefused("state of varying width where numbers were expected")
    return cells


def _plus(cells: Cells, combined: pa.Array, windows: Int64s) -> Fixed:
    """Cells with the values of a column added, each to its window, in their order."""
    sums = _fixed(cells).values.copy()
    np.add.at(sums, windows, column_values(combined, sums.dtype)[0])
    return Fixed(sums, None)


class Count(Aggregation):
    """Rows, or those whose column is not null."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The count."""
        if self.column is not None:
            self._of(schema)
        return (Slot("", pa.int64(), nullable=False),)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Count."""
        before = _fixed(cells[0]).values
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


class Sum(Aggregation):
    """The sum: int64 of integers, double of the others."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The sum."""
        return (Slot("", self.result_type(schema)),)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Add up. Raises ArithmeticOverflow."""
        sums, nulls = _fixed(cells[0])
        column = batch.column(self.column)
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
        kind = self._of(schema)
        _check(self, kind, _NUMBERS, _is_number(kind))
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()


class Avg(Aggregation):
    """The mean, of a sum kept as a double."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """Sum and count."""
        kind = self._of(schema)
        _check(self, kind, _NUMBERS, _is_number(kind))
        return Slot(".sum", pa.float64(), nullable=False), Slot(".n", pa.int64(), nullable=False)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Add up and count."""
        sums, counts = _fixed(cells[0]).values, _fixed(cells[1]).values
        values, nulls = column_values(batch.column(self.column), np.float64)
        kernels.sum_doubles(values, nulls, steady(windows, np.int64), sums, np.empty(len(sums), np.bool_))
        if len(nulls):
            windows = windows[~nulls]
        return [Fixed(sums, None), Fixed(counts + np.bincount(windows, minlength=len(counts)), None)]

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """Add sums and counts."""
        return [_plus(cell, part, windows) for cell, part in zip(cells, combined, strict=True)]

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """Sum by count."""
        sums, counts = _fixed(cells[0]).values, _fixed(cells[1]).values
        return arrow_of(Fixed(sums / np.maximum(counts, 1), counts == 0), kind)

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Always a double."""
        return pa.float64()


class Stddev(Aggregation):
    """The sample's standard deviation."""

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """Count, mean, and the sum of squared distances from it."""
        kind = self._of(schema)
        _check(self, kind, _NUMBERS, _is_number(kind))
        doubles = (Slot(suffix, pa.float64(), nullable=False) for suffix in (".mean", ".m2"))
        return (Slot(".n", pa.int64(), nullable=False), *doubles)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Welford's update, row by row."""
        counts, means, squares = (_fixed(part).values for part in cells)
        values, nulls = column_values(batch.column(self.column), np.float64)
        kernels.moments(values, nulls, steady(windows, np.int64), counts, means, squares)
        return [Fixed(counts, None), Fixed(means, None), Fixed(squares, None)]

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """As Spark's CentralMomentAgg merges."""
        counts, means, squares = (_fixed(part).values for part in cells)
        parts = (
            column_values(part, kind)[0]
            for part, kind in zip(combined, (np.int64, np.float64, np.float64), strict=True)
        )
        kernels.merge_moments(*parts, steady(windows, np.int64), counts, means, squares)
        return [Fixed(counts, None), Fixed(means, None), Fixed(squares, None)]

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """Null for fewer than two rows, as in Spark."""
        counts, _, squares = (_fixed(part).values for part in cells)
        return arrow_of(Fixed(np.sqrt(squares / np.maximum(counts - 1, 1)), counts < 2), kind)

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Always a double."""
        return pa.float64()


@dataclass(frozen=True)
class Extreme(Aggregation):
    """The least or greatest value."""

    greatest: bool

    @property
    def name(self) -> str:
        """How messages call it."""
        return "max" if self.greatest else "min"

    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The best so far."""
        kind = self.result_type(schema)
        return (Slot("", kind, arrow=_is_text(kind)),)

    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Compare."""
        before = cells[0]
        column = batch.column(self.column)
        if not isinstance(before, Fixed):
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
        return _ordered(self, self._of(schema))


@dataclass(frozen=True)
class Edge(Aggregation):
    """The value of the first or last row, by order of arrival."""

    last: bool
    ignore_nulls: bool

    @property
    def name(self) -> str:
        """How messages call it."""
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
        before = cells[0]
        if isinstance(before, Fixed):
            raise SchemaRefused("state of fixed width where Arrow's was expected")
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
            held = before.is_valid().to_numpy(zero_copy_only=False) if self.ignore_nulls else _fixed(cells[1]).values
            takes &= ~held
        source = np.where(takes, len(before) + chosen, np.arange(len(before)))
        value = pa.concat_arrays([before, column]).take(pa.array(source))
        return [value] if self.last or self.ignore_nulls else [value, Fixed(held | takes, None)]

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """As the input."""
        return _ordered(self, self._of(schema))


def count(column: str | None = None) -> Aggregation:
    """The number of rows, or of those whose `column` is not null."""
    return Count(column)


def sum(column: str) -> Aggregation:  # noqa: A001  Spark's name
    """The sum of a column."""
    return Sum(column)


def avg(column: str) -> Aggregation:
    """The mean of a column."""
    return Avg(column)


def min(column: str) -> Aggregation:  # noqa: A001  Spark's name
    """The least value of a column."""
    return Extreme(column, greatest=False)


def max(column: str) -> Aggregation:  # noqa: A001  Spark's name
    """The greatest value of a column."""
    return Extreme(column, greatest=True)


def stddev(column: str) -> Aggregation:
    """The sample standard deviation of a column."""
    return Stddev(column)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregation:
    """A column's value in the window's first row (with `ignore_nulls`, the first that is not null)."""
    return Edge(column, last=False, ignore_nulls=ignore_nulls)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregation:
    """A column's value in the window's last row (with `ignore_nulls`, the last that is not null)."""
    return Edge(column, last=True, ignore_nulls=ignore_nulls)

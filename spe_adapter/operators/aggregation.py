"""The base class of aggregates; subclass it for an aggregate of one's own.

An aggregate keeps some *slots*, columns of a window's state. It is folded: the slots' cells of some windows and rows
with their windows in, cells out. All of it is columns, so that no call costs anything per row in Python. The geometric
mean, as docs/operators.md has it, whose code is a test:

    @dataclass(frozen=True)
    class GeometricMean(Aggregation):
        def slots(self, schema):
            return Slot(".logs", pa.float64(), nullable=False), Slot(".n", pa.int64(), nullable=False)

        def fold(self, cells, batch, windows):
            logs, counts = cells[0].values, cells[1].values
            np.add.at(logs, windows, np.log2(batch.column(self.column).to_numpy()))
            np.add.at(counts, windows, 1)
            return [Fixed(logs, None), Fixed(counts, None)]

        def merge(self, cells, combined, windows):
            for cell, part in zip(cells, combined):
                np.add.at(cell.values, windows, part.to_numpy())
            return cells

        def result_type(self, schema):
            return pa.float64()

        def result(self, cells, kind):
            return pa.array(np.exp2(cells[0].values / cells[1].values))

    Aggregate(Tumbling("1 hour", time="at"), mean=GeometricMean("price"))

Invariants:
* What `fold` gives depends on cells and rows alone. Rows folded in two calls, in their order, give what they give in
  one call.
* Cells that `fold` and `merge` get are the call's own and may be changed in place, Arrow columns apart.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa

from spe_adapter.codec.kernels import Int64s
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.cells import Cells, Fixed, Slot, arrow_of

NUMBERS: Final = "integers, float, double or decimal"
ORDERED: Final = "integers, float, double, decimal, boolean, date, timestamp, duration, string or binary"


@dataclass(frozen=True)
class Aggregation(ABC):
    """An aggregate of a column (None: of whole rows).

    A subclass is a frozen dataclass, so that its `repr` tells a changed query from an unchanged one.
    """

    column: str | None

    is_ordered: ClassVar[bool] = False
    """Whether the result depends on the order of rows, beyond the rounding of sums."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that `fold` reads."""
        return () if self.column is None else (self.column,)

    @property
    def merges(self) -> bool:
        """Whether the states of several parts of a window can be merged. If so, rows are combined before a shuffle, and
        sessions that become one session have one state.
        """
        return type(self).merge is not Aggregation.merge

    @abstractmethod
    def slots(self, schema: pa.Schema) -> tuple[Slot, ...]:
        """The state columns for an input of this schema. Raises SchemaRefused."""

    @abstractmethod
    def fold(self, cells: list[Cells], batch: pa.RecordBatch, windows: Int64s) -> list[Cells]:
        """Fold rows into the cells of their windows (`windows`, one per row). `cells` has an entry for each slot."""

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """Merge states into the cells of windows; `combined` has a column for each slot, a row for each of `windows`.
        An aggregate without this method cannot be merged.
        """
        raise SchemaRefused(f"{self.name} cannot merge the state of parts of a window; give it a method merge")

    @abstractmethod
    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """The type of the result."""

    def result(self, cells: list[Cells], kind: pa.DataType) -> pa.Array:
        """The result of each window; by default the first slot."""
        return arrow_of(cells[0], kind)

    def type_of_input(self, schema: pa.Schema) -> pa.DataType:
        """The type of the aggregated column. Raises SchemaRefused."""
        name = str(self.column)
        if schema.get_field_index(name) < 0:
            raise SchemaRefused(f"column {name!r} of {self.name} is missing; there is {', '.join(schema.names)}")
        return schema.field(name).type

    @property
    def name(self) -> str:
        """The name of the aggregate in messages."""
        return type(self).__name__.lower()


class Refolding(Aggregation):
    """An aggregate whose first slot has the type of its column, so that merging is folding."""

    def merge(self, cells: list[Cells], combined: list[pa.Array], windows: Int64s) -> list[Cells]:
        """Fold each merged value like the value of a row."""
        value = pa.RecordBatch.from_arrays([combined[0]], names=[str(self.column)])
        return self.fold(cells, value, windows)


def check(aggregation: Aggregation, kind: pa.DataType, allowed: str, fits: bool) -> None:
    """Raise SchemaRefused, with the column and the allowed types, unless the type is allowed."""
    if not fits:
        raise SchemaRefused(f"column {aggregation.column!r} is {kind}; {aggregation.name} takes {allowed}")


def is_number(kind: pa.DataType) -> bool:
    """Integers, float, double and decimal, but those that neither 64 bits nor Spark have."""
    wide = pa.types.is_uint64(kind) or pa.types.is_float16(kind)
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)
    return bool(plain and not wide)


def is_text(kind: pa.DataType) -> bool:
    """Strings and byte strings."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def kept(kind: pa.DataType) -> pa.DataType:
    """The type of a state column."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def ordered(aggregation: Aggregation, kind: pa.DataType) -> pa.DataType:
    """The state type of values that can be compared. Raises SchemaRefused."""
    fits = (
        is_number(kind)
        or is_text(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )
    check(aggregation, kind, ORDERED, bool(fits))
    return kept(kind)


def fixed(cells: Cells) -> Fixed:
    """Cells that an aggregate declared as fixed-width."""
    if not isinstance(cells, Fixed):
        raise SchemaRefused("state of varying width where numbers were expected")
    return cells


def arrow(cells: Cells) -> pa.Array:
    """Cells that an aggregate declared as Arrow arrays."""
    if isinstance(cells, Fixed):
        raise SchemaRefused("state of fixed width where Arrow's was expected")
    return cells

"""State values of some windows while rows are folded into them: plain arrays where width is fixed, else Arrow.

Invariants: arrays that loops read are of one type each (read-only int64, double, bool), those they write are private
copies; nulls are a mask beside the values, and values of nulls are zero.
"""

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Bools
from spe_adapter.operators.base import State
from spe_adapter.state.columns import fixed_array, fixed_values
from spe_adapter.state.exact import dtype_of, has_numbers

NOT_NULL: Final = np.empty(0, np.bool_)


class Fixed(NamedTuple):
    """Values of fixed width, one per window; `nulls` marks null values (None: no value is null)."""

    values: NDArray[Any]
    nulls: Bools | None


Cells: TypeAlias = Fixed | pa.Array


class Slot(NamedTuple):
    """A column of an aggregate's state: the suffix of its name, its type, whether it may be null, and whether the
    aggregate gets the column as an Arrow array.
    """

    suffix: str
    type: pa.DataType
    nullable: bool = True
    arrow: bool = False

    @property
    def is_arrow(self) -> bool:
        """Whether the cells are an Arrow array: if the aggregate asks for it, or if the type has no plain numbers."""
        return self.arrow or not has_numbers(self.type)


def read(state: State, name: str, slot: Slot) -> Cells:
    """Read a state column."""
    if slot.is_arrow:
        return state.column(name)
    return Fixed(state.get(name), state.nulls(name) if slot.nullable else None)


def write(state: State, name: str, cells: Cells) -> None:
    """Write a state column."""
    if isinstance(cells, Fixed):
        state.set(name, cells.values, cells.nulls)
    else:
        state.set_column(name, cells)


def fresh(slot: Slot, count: int) -> Cells:
    """The state of new windows."""
    if slot.is_arrow:
        return pa.nulls(count, slot.type)
    return Fixed(np.zeros(count, dtype_of(slot.type)), np.ones(count, np.bool_) if slot.nullable else None)


def gather(cells: Cells, which: NDArray[np.int64]) -> Cells:
    """Some of the cells."""
    if isinstance(cells, Fixed):
        return Fixed(cells.values[which], None if cells.nulls is None else cells.nulls[which])
    return cells.take(pa.array(which))


def joined(parts: list[Cells]) -> Cells:
    """Concatenate cells."""
    if isinstance(parts[0], Fixed):
        fixed: list[Any] = parts
        nulls = None if fixed[0].nulls is None else np.concatenate([part.nulls for part in fixed])
        return Fixed(np.concatenate([part.values for part in fixed]), nulls)
    return pa.concat_arrays(parts)


def arrow_of(cells: Cells, kind: pa.DataType) -> pa.Array:
    """Cells as a result column."""
    if not isinstance(cells, Fixed):
        return cells
    nulls = np.zeros(len(cells.values), np.bool_) if cells.nulls is None else cells.nulls
    return fixed_array(kind, cells.values, nulls)


def steady(array: NDArray[Any], kind: Any) -> NDArray[Any]:
    """The one form in which loops read: contiguous, of this type, read-only."""
    view = np.ascontiguousarray(array, kind)[:]
    view.flags.writeable = False
    return view


def column_values(column: pa.Array, kind: Any) -> tuple[NDArray[Any], Bools]:
    """An input column's values as int64 or double, and its nulls, as loops read them."""
    values, nulls = fixed_values(column, dtype_of(column.type))
    return steady(values, kind), steady(NOT_NULL if nulls is None else nulls, np.bool_)

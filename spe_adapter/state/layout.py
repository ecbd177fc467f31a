"""How a table lies in one block of memory: counters, identities, marks, the state's columns, an arena and an index.

Invariants:
* The index is the last array, and follows from the others: what lies before it is the state, and is checkpointed.
* Every array starts at a multiple of 64 bytes and lies wholly inside the block; a layout is a function of schema,
  capacity and arena size alone, so that two processes that agree on them agree on every address.
* Rows are numbered below 2**31, the index has at minimum twice as many slots as there are rows.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spe_adapter.cec.control import STATE_PREFIX
from spe_adapter.codec.kernels import Bytes, Int64s
from spe_adapter.codec.nested import is_decimal, is_nested
from spe_adapter.state import kernels
from spe_adapter.state.errors import StateDamaged, StateSchemaRefused

LAYOUT_VERSION: Final = 2

COUNTERS: Final = "counters"
IDENTITIES: Final = "identities"
ARENA: Final = "arena"
INDEX: Final = "index"

NEVER: Final = int(np.iinfo(np.int64).max)
"""When a window expires that does not expire; also the ordinal of a row that holds no window."""

MAX_ROWS: Final = 2**31 - 2
_ALIGNMENT: Final = 64
_SLOTS_PER_ROW: Final = 2

_FIXED: Final = "integers, floats, bool, date32, timestamp, duration, decimal128"
_VARIABLE: Final = "string, binary, and lists and structs of all these"
DECIMAL: Final = np.dtype([("low", "<u8"), ("high", "<i8")])
"""A decimal's 16 bytes: its unscaled value as a number of 128 bits."""


class Column(NamedTuple):
    """A column of the state. `dtype` is None where values vary in width (they lie in the arena), DECIMAL for decimals.

    `is_nested`: the arena has values of lists and structs as `codec.nested` encodes them.
    """

    name: str
    type: pa.DataType
    dtype: np.dtype[np.generic] | None
    is_nested: bool = False


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of a state schema; raises StateSchemaRefused for a type that cannot be kept, or a name twice."""
    names = [field.name for field in schema]
    for name in names:
        if names.count(name) > 1:
            raise StateSchemaRefused(f"state column {name!r} is there twice")
    return tuple(Column(field.name, field.type, _dtype_of(field), is_nested(field.type)) for field in schema)


def _dtype_of(field: pa.Field) -> np.dtype[np.generic] | None:
    kind = field.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or is_nested(kind):
        return None
    if is_decimal(kind):
        return DECIMAL
    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_)
    if pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return np.dtype(kind.to_pandas_dtype())
    if pa.types.is_float16(kind):
        return np.dtype(np.float16)
    if pa.types.is_date32(kind):
        return np.dtype(np.int32)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return np.dtype(np.int64)
    raise StateSchemaRefused(f"state column {field.name!r} has type {kind}; state can hold {_FIXED}, {_VARIABLE}")


def take_schema(schema: pa.Schema) -> pa.Schema:
    """What a batch of windows looks like: key, number, expires, and the state's columns by prefixed name."""
    fields = [pa.field("key", pa.binary()), pa.field("number", pa.int64()), pa.field("expires", pa.int64())]
    return pa.schema([*fields, *(pa.field(STATE_PREFIX + field.name, field.type) for field in schema)])


def fingerprint_of(schema: pa.Schema, extra: str = "") -> bytes:
    """16 bytes that differ where a table's memory could not be read as another's."""
    names = [f"{field.name}\0{field.type}" for field in schema]
    return hashlib.sha256("\1".join([str(LAYOUT_VERSION), extra, *names]).encode()).digest()[:16]


class _Array(NamedTuple):
    name: str
    dtype: np.dtype[np.generic]
    items: int


def _arrays(columns: tuple[Column, ...], capacity: int, arena_bytes: int, slots: int) -> Iterator[_Array]:
    int64, uint8 = np.dtype(np.int64), np.dtype(np.uint8)
    yield _Array(COUNTERS, int64, kernels.COUNTERS)
    yield _Array(IDENTITIES, int64, capacity * kernels.IDENTITY_COLUMNS)
    for name in ("hashes", "expires", "epoch", "ordinal", "seen"):
        yield _Array(name, int64, capacity)
    for column in columns:
        if column.dtype is None:
            yield _Array(STATE_PREFIX + column.name, int64, capacity)
        else:
            yield _Array(STATE_PREFIX + column.name, column.dtype, capacity)
            yield _Array("n_" + column.name, uint8, capacity)
    yield _Array(ARENA, uint8, arena_bytes)
    yield _Array(INDEX, int64, slots)


class Layout:
    """Where what lies in a block of memory for `capacity` rows and `arena_bytes` bytes of keys and values."""

    def __init__(self, schema: pa.Schema, capacity: int, arena_bytes: int) -> None:
        if not 0 < capacity <= MAX_ROWS or arena_bytes < 0:
            raise StateDamaged(f"a table of {capacity} rows and an arena of {arena_bytes} bytes")
        self.columns = columns_of(schema)
        self.capacity = capacity
        self.arena_bytes = arena_bytes
        self.slots = power_of_two(_SLOTS_PER_ROW * capacity)
        self._arrays: list[tuple[_Array, int]] = []
        at = 0
        for array in _arrays(self.columns, capacity, arena_bytes, self.slots):
            self._arrays.append((array, at))
            at += -(-array.items * array.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self.size_bytes = at
        self.starts = {array.name: start for array, start in self._arrays}
        """Where each array begins, in bytes."""
        self.tracked_bytes = self.starts[INDEX]
        """The bytes before the index."""
        per_row = [array for array, _ in self._arrays if array.name not in (COUNTERS, ARENA, INDEX)]
        self.row_arrays = tuple(array.name for array in per_row)
        """The names of the arrays with an item, or a pair of items, per row."""
        self.widths = {array.name: array.items // capacity * array.dtype.itemsize for array in per_row}
        """The bytes of a row in these arrays."""

    def views(self, block: Bytes) -> dict[str, NDArray[np.generic]]:
        """The arrays by name, over a block that has at minimum `size_bytes` bytes."""
        if len(block) < self.size_bytes:
            raise StateDamaged(f"a table of {self.size_bytes} bytes in a block of {len(block)}")
        views = {
            array.name: block[at : at + array.items * array.dtype.itemsize].view(array.dtype)
            for array, at in self._arrays
        }
        views[IDENTITIES] = views[IDENTITIES].reshape(self.capacity, kernels.IDENTITY_COLUMNS)
        return views

    def content(self, counters: Int64s) -> list[tuple[int, int]]:
        """The ranges of bytes before the index that can differ from zero, given a table's counters."""
        used, arena_used = int(counters[kernels.USED]), int(counters[kernels.ARENA_USED])
        ranges = [(0, kernels.COUNTERS * counters.itemsize)]
        ranges += [(self.starts[name], self.starts[name] + used * self.widths[name]) for name in self.row_arrays]
        return [*ranges, (self.starts[ARENA], self.starts[ARENA] + arena_used)]


def power_of_two(minimum: int) -> int:
    """The smallest power of two that is not below `minimum`."""
    return 1 << max(minimum - 1, 1).bit_length()


def check_counters(counters: Int64s, layout: Layout) -> None:
    """Raise StateDamaged where a table's counters contradict each other or its layout."""
    capacity, arena_bytes, slots, used, free, occupied, arena_used, garbage = (int(value) for value in counters[:8])
    whole = (
        (capacity, arena_bytes, slots) == (layout.capacity, layout.arena_bytes, layout.slots)
        and 0 <= occupied <= used <= capacity
        and 0 <= free <= used
        and 0 <= garbage <= arena_used <= arena_bytes
    )
    if not whole:
        raise StateDamaged(f"a table's counters contradict themselves: {counters[:8].tolist()}")

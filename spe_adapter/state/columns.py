"""Arrow columns as plain arrays and back, in the forms that tables and their compiled loops take.

Invariants: `keys_of` gives arrays of one type each (read-only, aligned), whatever they were made of, so that no loop is
compiled twice; values of nulls read as zero; nothing is copied that need not be.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logstore.errors import CorruptBatch
from spe_adapter.codec import nested
from spe_adapter.codec.columns import keys_of, steady
from spe_adapter.codec.identity_hash import hashes_of
from spe_adapter.codec.kernels import Bools, Bytes, Int32s, Int64s
from spe_adapter.state import kernels
from spe_adapter.state.errors import StateDamaged, StateTooLarge

Values = NDArray[Any]

_MAX_OFFSETS: Final = 2**31 - 1


def numbers_of(numbers: Any, rows: int) -> Int64s:
    """Window numbers as int64, one per key; raises ValueError if their counts differ."""
    array = np.ascontiguousarray(numbers, np.int64)
    if array.shape != (rows,):
        raise ValueError(f"{rows} keys with {array.shape} numbers")
    return array


class Distinct(NamedTuple):
    """Identities among rows: the identity of each row, and the first row of each, in order of appearance."""

    index: Int64s  # type: ignore[assignment]  # hides tuple.index, which is not used
    first: Int64s


def distinct(keys: pa.Array, numbers: Int64s, seed: int = 0) -> Distinct:
    """Number the distinct identities (key bytes, number) of rows; a null key differs from an empty one.

    `seed` keys the hash: pass one that the producers of the keys do not know.
    """
    parts = keys_of(keys)
    numbers = numbers_of(numbers, len(keys))
    rows = len(numbers)
    index, first = np.empty(rows, np.int64), np.empty(rows, np.int64)
    slots = np.zeros(1 << max((2 * rows - 1).bit_length(), 1), np.int32)
    count = kernels.distinct_rows(
        hashes_of(parts, numbers, seed), *parts, steady(numbers), slots, index, first
    )  # fmt: skip
    return Distinct(index, first[:count].copy())


def bitmap(valid: Bools) -> pa.Buffer | None:
    """Arrow's validity bitmap; None if all are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def fixed_array(kind: pa.DataType, values: Values, nulls: Bools) -> pa.Array:
    """Values of fixed width as Arrow has them."""
    if pa.types.is_boolean(kind):
        values = np.packbits(values, bitorder="little")
    validity = bitmap(~nulls)
    return pa.Array.from_buffers(kind, len(nulls), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def fixed_values(column: pa.Array, dtype: np.dtype[np.generic]) -> tuple[Values, Bools | None]:
    """The values of a column of fixed width, zero where null, and which are null (None: none)."""
    validity, data = column.buffers()
    if data is None:
        values = np.zeros(len(column), dtype)
    elif dtype == np.bool_:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        values = bits[column.offset : column.offset + len(column)].astype(np.bool_)
    else:
        values = np.frombuffer(data, dtype)[column.offset : column.offset + len(column)]
    if not column.null_count or validity is None:
        return values, None
    nulls = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    mask = nulls[column.offset : column.offset + len(column)] == 0
    return np.where(mask, np.zeros((), dtype), values), mask


def bytes_array(kind: pa.DataType, refs: Int64s, arena: Bytes) -> pa.Array:
    """What references lead to, as an Arrow column; raises StateDamaged where they lead outside."""
    lengths = (refs & kernels.LENGTH_MASK) - 1
    valid = lengths >= 0
    offsets, total_bytes = _offsets_of(np.maximum(lengths, 0))
    out = np.empty(total_bytes, np.uint8)
    if kernels.move_bytes(refs, arena, out) != kernels.OK:
        raise StateDamaged("a reference leads outside its table's arena")
    return pa.Array.from_buffers(kind, len(refs), [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(out)])


def nested_array(kind: pa.DataType, encoded: pa.BinaryArray) -> pa.Array:
    """Lists or structs from their bytes; raises StateDamaged for bytes that are none."""
    try:
        return nested.decode(kind, encoded)
    except CorruptBatch as error:
        raise StateDamaged(f"a column of {kind}: {error}") from error


def _offsets_of(lengths: Int64s) -> tuple[Int32s, int]:
    ends = np.cumsum(lengths)
    total_bytes = int(ends[-1]) if len(ends) else 0
    if total_bytes > _MAX_OFFSETS:
        raise StateTooLarge(f"one column of {total_bytes} bytes in one batch; take fewer windows at a time")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    offsets[1:] = ends
    return offsets, total_bytes

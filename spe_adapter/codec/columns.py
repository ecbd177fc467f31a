"""Arrow columns of bytes as the plain arrays that compiled loops read.

Invariants: offsets are int32 (wider ones are cast), views reach exactly over the column's slice, nothing is copied
that need not be. The arrays keep the column's buffers alive.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Bytes, Int32s

EMPTY_BYTES: Final = np.empty(0, np.uint8)
EMPTY_OFFSETS: Final = np.empty(0, np.int32)


def steady(array: NDArray[Any]) -> NDArray[Any]:
    """The array as compiled loops take it: read-only and aligned; a copy only if the array is not aligned."""
    view = array[:] if array.flags.aligned else array.copy()
    view.flags.writeable = False
    return view


class BytesColumn(NamedTuple):
    """A column of bytes: offsets (one more than rows), validity bitmap (empty: all valid) from bit `bit` on, bytes."""

    offsets: Int32s
    bitmap: Bytes
    bit: int
    data: Bytes

    @classmethod
    def of(cls, column: pa.Array) -> "BytesColumn":
        """The column's arrays; any type that Arrow can cast to binary will do."""
        if not pa.types.is_binary(column.type):
            column = column.cast(pa.binary())
        bitmap, offsets, data = column.buffers()
        return cls(_offsets(offsets, column), bitmap_of(bitmap, column), column.offset, bytes_of(data))


def keys_of(column: pa.Array) -> BytesColumn:
    """The arrays of a column of keys or values (binary or string, nulls allowed), always of the same types: read-only,
    aligned, with a validity bitmap even if nothing is null.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        column = column.cast(pa.binary())
    elif pa.types.is_string(column.type):
        column = column.view(pa.binary())
    offsets, bitmap, bit, data = BytesColumn.of(column)
    if not len(bitmap):
        bitmap, bit = np.full(-(-len(column) // 8), 0xFF, np.uint8), 0
    return BytesColumn(steady(offsets), steady(bitmap), bit, steady(data))


class ListColumn(NamedTuple):
    """A column of lists: offsets into its child, validity bitmap from bit `bit` on. Empty offsets: no such column."""

    offsets: Int32s
    bitmap: Bytes
    bit: int

    @classmethod
    def of(cls, column: pa.Array) -> "ListColumn":
        """The list's own arrays; its child is `column.values`."""
        return cls(_offsets(column.buffers()[1], column), bitmap_of(column.buffers()[0], column), column.offset)


def bytes_of(buffer: pa.Buffer | None) -> Bytes:
    """A buffer's bytes, without a copy."""
    return np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else EMPTY_BYTES


def bitmap_of(buffer: pa.Buffer | None, column: pa.Array) -> Bytes:
    """A validity bitmap, empty if nothing is null."""
    return bytes_of(buffer) if column.null_count else EMPTY_BYTES


def _offsets(buffer: pa.Buffer | None, column: pa.Array) -> Int32s:
    if buffer is None or not buffer.size:
        return np.zeros(len(column) + 1, np.int32)
    return np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1]

"""Arrow columns of bytes as the plain arrays that compiled loops read.

Invariants: offsets are int32 (wider ones are cast), views reach exactly over the column's slice, nothing is copied
that need not be. The arrays keep the column's buffers alive.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bytes, Int32s

EMPTY_BYTES: Final = np.empty(0, np.uint8)
EMPTY_OFFSETS: Final = np.empty(0, np.int32)


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

"""Packs rows of control batches: each column is split into planes of bytes, and the whole is compressed with zstd.

Rows of state resemble each other: counters have zero upper bytes, windows have the same times, keys have the same
length. A plane holds the same byte of all values of a column, and texts are stored as lengths and bytes instead of
offsets, so that similar bytes are adjacent. The result is half as long as compressed Arrow buffers.

Invariants:
* Unpacked rows equal the packed rows in schema, values and nulls; equal values give equal bytes.
* Unpacking makes MAX_UNPACKED_BYTES at most, whatever the bytes claim. Malformed bytes raise CorruptBatch.

Source: docs/format.md, "State"; Parquet's BYTE_STREAM_SPLIT.
"""

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logstore.errors import CorruptBatch
from logstore.interfaces import Buffer
from spe_adapter.codec import nested
from spe_adapter.codec.kernels import Bytes

MAX_UNPACKED_BYTES: Final = 256 * 1024 * 1024
_LEVEL: Final = 1
"""Higher levels take twice as long and save nothing on such rows."""
_LENGTH_BYTES: Final = 4
_BYTE_BITS: Final = 8


def can_pack(schema: pa.Schema) -> bool:
    """Whether `pack` can take rows of this schema."""
    return all(
        _is_text(kind) or pa.types.is_boolean(kind) or _is_fixed(kind) or nested.is_nested(kind)
        for kind in schema.types
    )


def pack(rows: pa.RecordBatch) -> tuple[bytes, int]:
    """The packed rows, and their size in bytes before compression. `can_pack` must hold for the schema."""
    schema = bytes(rows.schema.remove_metadata().serialize())
    parts = [len(schema).to_bytes(_LENGTH_BYTES, "big"), schema]
    for column in rows.columns:
        parts += _column_parts(column)
    body = b"".join(parts)
    return pa.Codec("zstd", compression_level=_LEVEL).compress(body, asbytes=True), len(body)


def unpack(packed: Buffer, rows: int, size_bytes: int) -> pa.RecordBatch:
    """The rows that were packed: `rows` of them, `size_bytes` before compression. Raises CorruptBatch."""
    if not 0 <= size_bytes <= MAX_UNPACKED_BYTES:
        raise CorruptBatch(f"packed rows that claim {size_bytes} bytes; at most {MAX_UNPACKED_BYTES} can be")
    try:
        body = pa.Codec("zstd").decompress(pa.py_buffer(packed), decompressed_size=size_bytes, asbytes=True)
        reader = _PackedReader(np.frombuffer(body, np.uint8), rows)
        schema = pa.ipc.read_schema(pa.py_buffer(reader.take(reader.length())))
        if not can_pack(schema):
            raise CorruptBatch(f"packed rows with columns {dict(zip(schema.names, schema.types, strict=True))}")
        batch = pa.RecordBatch.from_arrays([reader.column(kind) for kind in schema.types], schema=schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"{len(packed)} bytes that are no packed rows: {error}") from error
    if reader.left:
        raise CorruptBatch(f"{reader.left} bytes behind packed rows")
    return batch


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_fixed(kind: pa.DataType) -> bool:
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_date32(kind)
    return bool(plain or pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or nested.is_decimal(kind))


# ---- writing


def _column_parts(column: pa.Array) -> list[bytes]:
    """A byte that is 1 if there are nulls, then the validity bitmap if so, and the values."""
    if nested.is_nested(column.type):
        return _column_parts(nested.encode(column))
    parts = [bytes([column.null_count > 0])]
    if column.null_count:
        parts.append(_bits(column.is_valid().to_numpy(zero_copy_only=False)))
    buffers, first, count = column.buffers(), column.offset, len(column)
    if pa.types.is_boolean(column.type):
        held = np.unpackbits(np.frombuffer(buffers[1], np.uint8), bitorder="little")
        return [*parts, _bits(held[first : first + count])]
    if _is_text(column.type):
        offsets = np.frombuffer(buffers[1], np.int32)[first : first + count + 1]
        data = b"" if buffers[2] is None else bytes(memoryview(buffers[2])[offsets[0] : offsets[-1]])
        return [*parts, _planes(np.diff(offsets)), data]
    width = column.type.bit_width // _BYTE_BITS
    return [*parts, _planes(np.frombuffer(buffers[1], f"V{width}")[first : first + count])]


def _bits(flags: NDArray[np.bool_] | Bytes) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes()


def _planes(values: NDArray[np.void] | NDArray[np.int32]) -> bytes:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize).T.tobytes()


# ---- reading


class _PackedReader:
    """Reads columns of `rows` values from a body. All methods raise CorruptBatch if the body is too short."""

    def __init__(self, body: Bytes, rows: int) -> None:
        self._body = body
        self._rows = rows
        self._at = 0

    @property
    def left(self) -> int:
        """The number of bytes that are not yet read."""
        return len(self._body) - self._at

    def take(self, count: int) -> Bytes:
        """Read `count` bytes."""
        if count > self.left:
            raise CorruptBatch(f"packed rows end {count - self.left} bytes too early")
        self._at += count
        return self._body[self._at - count : self._at]

    def length(self) -> int:
        """Read a length."""
        return int.from_bytes(self.take(_LENGTH_BYTES).tobytes(), "big")

    def column(self, kind: pa.DataType) -> pa.Array:
        """Read a column of this type."""
        if nested.is_nested(kind):
            return nested.decode(kind, self.column(pa.binary()))
        has_nulls = int(self.take(1)[0])
        if has_nulls > 1:
            raise CorruptBatch(f"a column of packed rows begins with {has_nulls}")
        validity = pa.py_buffer(self._bitmap()) if has_nulls else None
        if pa.types.is_boolean(kind):
            return pa.Array.from_buffers(kind, self._rows, [validity, pa.py_buffer(self._bitmap())])
        if not _is_text(kind):
            values = self._values(kind.bit_width // _BYTE_BITS)
            return pa.Array.from_buffers(kind, self._rows, [validity, pa.py_buffer(values)])
        lengths = self._values(np.dtype(np.int32).itemsize).view(np.int32)
        offsets = np.zeros(self._rows + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if (lengths < 0).any() or offsets[-1] > self.left:
            raise CorruptBatch(f"texts of {int(offsets[-1])} bytes in packed rows with {self.left} left")
        data = self.take(int(offsets[-1])).copy()
        return pa.Array.from_buffers(
            kind, self._rows, [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        )

    def _bitmap(self) -> Bytes:
        return self.take(-(-self._rows // _BYTE_BITS)).copy()

    def _values(self, width: int) -> Bytes:
        """Read values of `width` bytes each from their planes, into new memory."""
        planes = self.take(self._rows * width).reshape(width, self._rows)
        return np.ascontiguousarray(planes.T).reshape(-1)

"""Lists and structs as bytes: one value is one string of bytes, and equal values are equal bytes.

A value is written as a tiny batch of columns. Each column of the value's type, from the outside in, writes for all its
elements in the value, in this order:

| column | bytes |
|---|---|
| each but the outermost | a byte per element: 1, or 0 where it is null |
| fixed width, decimal128 | little-endian, as Arrow has them; a byte for a boolean; zeros where null |
| string, binary | the lengths as int32 (0 where null), and the bytes end to end |
| struct | its fields' columns, null where the struct is |
| list | the lengths as int32 (0 where null), and the column of all its elements |

So a part of a value is a range of an Arrow buffer, and reading or writing many values is a few copies of ranges per
column of the type, whatever the number of values.

Invariants:
* `decode` of `encode` is the same column; a null outermost value stays null. What Arrow keeps under nulls is not
  written.
* No loop over values in Python. `decode` checks each range before it copies, and raises CorruptBatch.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logstore.errors import CorruptBatch
from spe_adapter.codec.kernels import Bytes, Int64s, compiled

ALLOWED: Final = "list, struct"
MAX_DEPTH: Final = 16
"""Types are walked by recursion; no schema that people write is deeper."""
_MAX_OFFSETS: Final = 2**31 - 1


def is_nested(kind: pa.DataType) -> bool:
    """Whether a type is a list or a struct that can be written."""
    return bool((pa.types.is_list(kind) or pa.types.is_struct(kind)) and _is_written(kind, MAX_DEPTH))


def is_decimal(kind: pa.DataType) -> bool:
    """Whether a type is a decimal of 16 bytes, as Spark's decimals are."""
    return bool(pa.types.is_decimal128(kind))


def _is_written(kind: pa.DataType, depth: int) -> bool:
    if pa.types.is_list(kind):
        return depth > 0 and _is_written(kind.value_type, depth - 1)
    if pa.types.is_struct(kind):
        return depth > 0 and all(_is_written(field.type, depth - 1) for field in kind)
    return bool(_is_text(kind) or pa.types.is_boolean(kind) or _width_bytes(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _width_bytes(kind: pa.DataType) -> int:
    """The bytes of a value of fixed width, 0 for other types."""
    fixed = (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or is_decimal(kind)
    )
    return int(kind.bit_width // 8) if fixed else 0


# ---- writing


class _Ranges(NamedTuple):
    """A range of `data` for each value."""

    data: Bytes
    starts: Int64s
    lengths: Int64s


def encode(column: pa.Array) -> pa.BinaryArray:
    """The bytes of each value, null where the value is null. Raises CorruptBatch beyond 2 GiB."""
    valid = None if not column.null_count else column.is_valid()
    values = column if valid is None else column.filter(valid)
    pieces = list(_pieces_of(values))
    sizes = np.zeros(len(values), np.int64)
    for piece in pieces:
        sizes += piece.lengths
    offsets = _offsets_of(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    cursors = offsets[:-1].copy()
    for piece in pieces:
        _scatter_ranges(piece.data, piece.starts, piece.lengths, out, cursors)
    encoded = _binary(offsets, out)
    return encoded if valid is None else _spread(encoded, valid)


def encoded_bytes(column: pa.Array) -> int:
    """The number of bytes of all values of a column."""
    values = column if not column.null_count else column.filter(column.is_valid())
    return sum(int(piece.lengths.sum()) for piece in _pieces_of(values))


def _pieces_of(values: pa.Array) -> Iterator[_Ranges]:
    starts = np.arange(len(values), dtype=np.int64)
    return _pieces(values, starts, np.ones(len(values), np.int64), outermost=True)


def _pieces(column: pa.Array, starts: Int64s, counts: Int64s, *, outermost: bool = False) -> Iterator[_Ranges]:
    """The ranges that hold elements `starts` to `starts + counts` of a column."""
    kind = column.type
    if not outermost:
        flags = np.ones(len(column), np.uint8)
        if column.null_count:
            flags = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
        yield _Ranges(_plain(flags), starts, counts)
    if pa.types.is_struct(kind):
        for child in column.flatten():
            yield from _pieces(child, starts, counts)
        return
    width = _width_bytes(kind)
    if width:
        yield _Ranges(_fixed_bytes(column, width), starts * width, counts * width)
    elif pa.types.is_boolean(kind):
        flags = column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        yield _Ranges(_plain(flags), starts, counts)
    else:
        is_text = _is_text(kind)
        lengths, data = _text_parts(column) if is_text else (_list_lengths(column), column.flatten())
        yield _Ranges(_plain(lengths.view(np.uint8)), starts * 4, counts * 4)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        inner = offsets[starts]
        inner_counts = offsets[starts + counts] - inner
        if is_text:
            yield _Ranges(_plain(data), inner, inner_counts)
        else:
            yield from _pieces(data, inner, inner_counts)


def _fixed_bytes(column: pa.Array, width: int) -> Bytes:
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column) * width, np.uint8)
    values = np.frombuffer(data, np.uint8)[column.offset * width : (column.offset + len(column)) * width]
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        values = np.where(nulls[:, None], np.uint8(0), values.reshape(-1, width)).reshape(-1)
    return _plain(values)


def _text_parts(column: pa.Array) -> tuple[NDArray[np.int32], Bytes]:
    plain = column.cast(pa.binary())
    if plain.null_count:
        plain = plain.fill_null(b"")
    _, offsets, data = plain.buffers()
    if offsets is None or not len(plain):
        return np.zeros(len(plain), np.int32), np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[plain.offset : plain.offset + len(plain) + 1]
    held = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return np.ascontiguousarray(np.diff(bounds)), held


def _list_lengths(column: pa.Array) -> NDArray[np.int32]:
    lengths: NDArray[np.int32] = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(lengths, np.int32)


# ---- reading


class _RangeReader:
    """Reads ranges of the encoded values, each value from its own position on."""

    def __init__(self, encoded: pa.BinaryArray) -> None:
        lengths, self._data = _text_parts(encoded)
        self._ends: Int64s = np.cumsum(lengths, dtype=np.int64)
        self._at: Int64s = self._ends - lengths

    def take(self, lengths: Int64s) -> Bytes:
        """The next `lengths` bytes of each value, end to end. Raises CorruptBatch."""
        if (lengths < 0).any() or (self._at + lengths > self._ends).any():
            raise CorruptBatch("a nested value ends too early")
        out = np.empty(int(lengths.sum()), np.uint8)
        _gather_ranges(_plain(self._data), self._at, lengths, out)
        self._at = self._at + lengths
        return out

    def check_read(self) -> None:
        """Raise CorruptBatch if bytes are left."""
        if (self._at != self._ends).any():
            raise CorruptBatch("bytes are left behind a nested value")


def decode(kind: pa.DataType, encoded: pa.BinaryArray) -> pa.Array:
    """The values of this type from their bytes. Raises CorruptBatch for bytes that `encode` does not write."""
    valid = None if not encoded.null_count else encoded.is_valid()
    values = encoded if valid is None else encoded.filter(valid)
    reader = _RangeReader(values)
    column = _column(kind, np.ones(len(values), np.int64), reader, outermost=True)
    reader.check_read()
    return column if valid is None else _spread(column, valid)


def _column(kind: pa.DataType, counts: Int64s, reader: _RangeReader, *, outermost: bool = False) -> pa.Array:
    """A column of the values' type: `counts` elements of each value."""
    total = int(counts.sum())
    validity = None if outermost else _validity(reader.take(counts))
    if pa.types.is_struct(kind):
        children = [_column(field.type, counts, reader) for field in kind]
        return pa.Array.from_buffers(kind, total, [validity], children=children)
    width = _width_bytes(kind)
    if width:
        values = reader.take(counts * width)
        return pa.Array.from_buffers(kind, total, [validity, pa.py_buffer(values)])
    if pa.types.is_boolean(kind):
        bits = np.packbits(reader.take(counts), bitorder="little")
        return pa.Array.from_buffers(kind, total, [validity, pa.py_buffer(bits)])
    lengths = reader.take(counts * 4).view(np.int32)
    if (lengths < 0).any():
        raise CorruptBatch("a negative length in a nested value")
    offsets = _offsets_of(lengths.astype(np.int64))
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    inner = offsets[bounds[1:]] - offsets[bounds[:-1]]
    narrow = pa.py_buffer(offsets.astype(np.int32))
    if _is_text(kind):
        return pa.Array.from_buffers(kind, total, [validity, narrow, pa.py_buffer(reader.take(inner))])
    return pa.Array.from_buffers(kind, total, [validity, narrow], children=[_column(kind.value_type, inner, reader)])


def _validity(flags: Bytes) -> pa.Buffer | None:
    if (flags > 1).any():
        raise CorruptBatch("a nested value's element is neither null nor not")
    return None if flags.all() else pa.py_buffer(np.packbits(flags, bitorder="little"))


# ---- both


def _offsets_of(lengths: Int64s) -> Int64s:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MAX_OFFSETS:
        raise CorruptBatch(f"nested values of {int(offsets[-1])} bytes or elements in one batch; take fewer at a time")
    return offsets


def _binary(offsets: Int64s, data: Bytes) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _spread(values: pa.Array, valid: pa.BooleanArray) -> pa.Array:
    """Values at the places that are valid, null elsewhere."""
    flags = valid.to_numpy(zero_copy_only=False)
    return values.take(pa.array(np.maximum(np.cumsum(flags) - 1, 0), pa.int64(), mask=~flags))


def _plain(data: NDArray[Any]) -> Bytes:
    """Bytes as loops read them: of one type, contiguous, read-only."""
    view = np.ascontiguousarray(data, np.uint8)[:]
    view.flags.writeable = False
    return view


@compiled
def _scatter_ranges(data: Bytes, starts: Int64s, lengths: Int64s, out: Bytes, cursors: Int64s) -> None:
    """Copy a range for each value to its position in `out`, which moves behind it."""
    for row in range(starts.shape[0]):
        source, target = np.uint64(starts[row]), np.uint64(cursors[row])
        for index in range(np.uint64(lengths[row])):
            out[target + index] = data[source + index]
        cursors[row] += lengths[row]


@compiled
def _gather_ranges(data: Bytes, starts: Int64s, lengths: Int64s, out: Bytes) -> None:
    """Copy a range of each value, end to end."""
    target = np.uint64(0)
    for row in range(starts.shape[0]):
        source = np.uint64(starts[row])
        count = np.uint64(lengths[row])
        for index in range(count):
            out[target + index] = data[source + index]
        target += count

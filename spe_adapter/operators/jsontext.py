r"""Arrow columns as JSON text, the same that Spark's `to_json` writes for the same rows.

| type | text |
|---|---|
| string | quoted; ", \ and control characters escaped, nothing else |
| integers, boolean | as they are |
| float, double | shortest decimal in Java's notation: 1.0, 1.0E7; "NaN", "Infinity", "-Infinity" |
| date | "2026-03-01" |
| timestamp | "2026-03-01T12:00:00.000Z" in the column's time zone, finer digits cut; without one if it has none |
| binary | base64 |
| decimal | with all digits of its scale, with an exponent below 10⁻⁶, as Java's BigDecimal: 1.50, 0E-18 |
| struct | an object of its fields |
| list | an array; its null elements are `null` |

Invariants: null fields of objects are left out; no loop over rows in Python. The one difference: Java before version 19
wrote some doubles with a digit more than the shortest text that reads back as the same number, which this writes (and
of the few least numbers, Java writes two digits).

Source: Spark's JacksonGenerator and JSONOptions; Jackson's CharTypes; Java's Double.toString and BigDecimal.toString.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecord
from spe_adapter.codec.columns import BytesColumn
from spe_adapter.codec.kernels import Bytes, Int32s, Int64s
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators import text_kernels

ALLOWED: Final = (
    "string, binary, integers, float, double, decimal, boolean, date, timestamp, or a struct or list of these"
)
JSON_FRACTION_DIGITS: Final = 3
EXACT_FRACTION_DIGITS: Final = 6

_MINUTE_US: Final = 60_000_000
_NO_OFFSETS: Final = np.empty(0, np.int64)


class Text(NamedTuple):
    """A column as text; if `plain`, it still has to be quoted and escaped to be JSON."""

    text: pa.Array
    plain: bool


def is_supported(kind: pa.DataType) -> bool:
    """Whether `text_of` knows this type."""
    if pa.types.is_struct(kind):
        return all(is_supported(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_list(kind):
        return is_supported(kind.value_type)
    return bool(
        is_textual(kind)
        or is_bytes(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_null(kind)
    )


def is_textual(kind: pa.DataType) -> bool:
    """Whether this is a type of strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether this is a type of byte strings."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def check_supported(schema: pa.Schema, what: str) -> None:
    """Raises SchemaRefused for the first column that cannot be written as JSON."""
    for field in schema:
        if not is_supported(field.type):
            raise SchemaRefused(f"{what} {field.name!r} is {field.type}; it must be {ALLOWED}")


def text_of(column: pa.Array) -> Text:
    """A column as JSON wants it. Raises SchemaRefused."""
    kind = column.type
    if is_textual(kind):
        return Text(column.cast(pa.binary()), plain=True)
    if is_bytes(kind):
        return Text(_base64(column), plain=True)
    if pa.types.is_floating(kind) and not pa.types.is_float16(kind):
        return Text(_numbers(column), plain=False)
    if pa.types.is_timestamp(kind):
        return Text(moments(column, JSON_FRACTION_DIGITS), plain=True)
    if pa.types.is_struct(kind):
        fields = [kind.field(index).name for index in range(kind.num_fields)]
        inner = json_objects(fields, column.flatten(), len(column))
        return Text(_masked(inner, column), plain=False)
    if pa.types.is_list(kind):
        return Text(_masked(_arrays(column), column), plain=False)
    if pa.types.is_date32(kind):
        return Text(column.cast(pa.string()).cast(pa.binary()), plain=True)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal128(kind):
        return Text(column.cast(pa.string()).cast(pa.binary()), plain=False)
    if pa.types.is_null(kind):
        return Text(pa.nulls(len(column), pa.binary()), plain=False)
    raise SchemaRefused(f"a column of type {kind}; it must be {ALLOWED}")


def json_objects(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> pa.BinaryArray:
    """One object per row, its null fields left out."""
    texts = [text_of(column) for column in columns]
    return objects_of(names, texts, rows)


def objects_of(names: Sequence[str], texts: Sequence[Text], rows: int) -> pa.BinaryArray:
    """One object per row from columns that are text already."""
    offsets = np.zeros((len(texts), rows + 1), np.int64)
    valid = np.ones((len(texts), rows), np.bool_)
    pieces: list[Bytes] = []
    base = 0
    for index, (text, _) in enumerate(texts):
        parts = BytesColumn.of(text)
        first, last = (int(parts.offsets[0]), int(parts.offsets[-1])) if rows else (0, 0)
        offsets[index] = parts.offsets
        offsets[index] += base - first
        if text.null_count:
            valid[index] = text.is_valid().to_numpy(zero_copy_only=False)
        pieces.append(parts.data[first:last])
        base += last - first
    labels = [f"{json.dumps(name, ensure_ascii=False)}:".encode() for name in names]
    name_offsets = np.zeros(len(labels) + 1, np.int64)
    np.cumsum([len(label) for label in labels], out=name_offsets[1:])
    quoted = np.array([text_kernels.QUOTED if text.plain else text_kernels.RAW for text in texts], np.uint8)
    data = np.concatenate([*pieces, np.empty(0, np.uint8)])
    out_offsets = np.zeros(rows + 1, np.int64)
    total = text_kernels.measure_objects(offsets, valid, quoted, data, name_offsets, out_offsets)
    if total > np.iinfo(np.int32).max:
        raise InvalidRecord(f"{rows} results of {total} bytes in one batch; at most 2 GiB")
    out = np.empty(total, np.uint8)
    labelled = np.frombuffer(b"".join(labels), np.uint8) if labels else np.empty(0, np.uint8)
    text_kernels.write_objects(offsets, valid, quoted, data, name_offsets, labelled, out)
    return _binary(out_offsets.astype(np.int32), out)


def moments(column: pa.Array, fraction_digits: int, *, utc: bool = False) -> pa.BinaryArray:
    """Timestamps as ISO 8601 text, in the column's zone or in UTC. Raises InvalidRecord for years beyond 0 to 9999."""
    zone = column.type.tz
    # Finer units are cut; coarser ones might not fit, which must not go unnoticed.
    try:
        column = column.cast(pa.timestamp("us", zone), safe=column.type.unit != "ns")
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"a timestamp lies beyond the years 0 to 9999: {error}") from None
    us = _int64s(column)
    offsets = _NO_OFFSETS
    local = us
    if zone is not None and (utc or zone in ("UTC", "Etc/UTC", "Z", "+00:00")):
        offsets = np.zeros(len(us), np.int64)
    elif zone is not None:
        local = _int64s(pc.local_timestamp(column))
        offsets = (local - us) // _MINUTE_US
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        local = np.where(valid, local, 0)
    out_offsets = np.zeros(len(us) + 1, np.int32)
    out = np.empty(len(us) * text_kernels.MOMENT_BYTES, np.uint8)
    bad = text_kernels.moments(local, offsets, fraction_digits, out_offsets, out)
    if bad >= 0:
        raise InvalidRecord(f"timestamp {int(us[bad])} µs since 1970 lies beyond the years 0 to 9999")
    return _masked(_binary(out_offsets, out[: out_offsets[-1]]), column)


def _arrays(column: pa.Array) -> pa.BinaryArray:
    """Lists as JSON arrays."""
    text, plain = text_of(column.flatten())
    bounds = np.zeros(len(column) + 1, np.int64)
    np.cumsum(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), out=bounds[1:])
    parts = BytesColumn.of(text)
    offsets = parts.offsets.astype(np.int64)
    valid = np.ones(len(text), np.bool_)
    if text.null_count:
        valid = text.is_valid().to_numpy(zero_copy_only=False)
    out_offsets = np.zeros(len(column) + 1, np.int64)
    data = np.concatenate([parts.data, np.empty(0, np.uint8)])
    total = text_kernels.measure_arrays(bounds, offsets, valid, plain, data, out_offsets)
    if total > np.iinfo(np.int32).max:
        raise InvalidRecord(f"{len(column)} lists of {total} bytes in one batch; at most 2 GiB")
    out = np.empty(total, np.uint8)
    text_kernels.write_arrays(bounds, offsets, valid, plain, data, out)
    return _binary(out_offsets.astype(np.int32), out)


def _numbers(column: pa.Array) -> pa.BinaryArray:
    values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
    special = np.zeros(len(values), np.uint8)
    special[np.isnan(values)] = 1
    special[values == np.inf] = 2
    special[values == -np.inf] = 3
    if column.null_count:
        special[column.is_null().to_numpy(zero_copy_only=False)] = 4
    plain = BytesColumn.of(column.fill_null(0.0).cast(pa.string()))
    offsets = np.zeros(len(values) + 1, np.int32)
    out = np.empty(len(values) * text_kernels.NUMBER_BYTES, np.uint8)
    text_kernels.java_numbers(plain.offsets, plain.data, special, offsets, out)
    return _masked(_binary(offsets, out[: offsets[-1]]), column)


def _base64(column: pa.Array) -> pa.BinaryArray:
    parts = BytesColumn.of(column)
    lengths = np.diff(parts.offsets).astype(np.int64)
    offsets = np.zeros(len(column) + 1, np.int32)
    out = np.empty(int(((lengths + 2) // 3 * 4).sum()), np.uint8)
    text_kernels.base64(parts.offsets, parts.data, offsets, out)
    return _masked(_binary(offsets, out), column)


def _int64s(column: pa.Array) -> Int64s:
    plain: Int64s = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return plain


def _binary(offsets: Int32s, data: Bytes) -> pa.BinaryArray:
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _masked(texts: pa.BinaryArray, like: pa.Array) -> pa.BinaryArray:
    """Null where the other is null."""
    if not like.null_count:
        return texts
    bitmap = pa.array(like.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    return pa.BinaryArray.from_buffers(pa.binary(), len(texts), [bitmap, *texts.buffers()[1:]], -1)

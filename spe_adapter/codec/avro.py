"""Rows as Avro records, each with its schema's fingerprint in front, and back: Avro's single-object encoding.

A value is the bytes C3 01, the fingerprint of the schema (8 bytes), and the record's binary encoding. Every field is a
union of null and its type, in this order.

| Arrow | Avro |
|---|---|
| bool, float32, float64, string, binary, null | boolean, float, double, string, bytes, null |
| int8, int16, int32, uint8, uint16 | int |
| int64, uint32 | long |
| date32 | int (date) |
| timestamp with a zone, without one | long (timestamp-micros, local-timestamp-micros) |
| decimal128 | bytes (decimal) |
| list, struct | array of unions, record |

Invariants:
* Equal rows under one schema are equal bytes.
* `decode` of `encode` is the same rows, in the types that Avro has (int8 comes back as int32).
* No loop over rows in Python: columns are encoded whole and joined row by row. A list is decoded in as many passes as
  the longest one has elements.
* What is read is checked: CorruptBatch for bytes that are no such record, or that end early or late.

Source: Apache Avro 1.12 specification (binary encoding, single-object encoding, parsing canonical form, CRC-64-AVRO).
"""

import json
import re
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import CorruptBatch
from spe_adapter.codec.kernels import Bools, Bytes, Int64s
from spe_adapter.errors import SchemaRefused

MARKER: Final = b"\xc3\x01"
FINGERPRINT_BYTES: Final = 8
RECORD_NAME: Final = "Result"
ALLOWED: Final = (
    "bool, integers but uint64, float32, float64, string, binary, date32, timestamp (in µs or coarser), decimal128, or "
    "a list or struct of these"
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CRC_EMPTY: Final = 0xC15D213AA4D7A795
_MAX_VARINT_BYTES: Final = 10
_SLICE_ROWS: Final = 64 * 1024
"""Rows that are encoded at a time, which bounds the memory that integers take on their way to bytes."""
_NULL: Final = b"\x00"
_PRESENT: Final = b"\x02"
_DECIMAL_BYTES: Final = 16
_PLAIN: Final[dict[pa.DataType, str]] = {
    pa.null(): "null",
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.int64(): "long",
    pa.uint32(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
}
_FIXED: Final[dict[str, np.dtype[Any]]] = {
    "float": np.dtype("<f4"),
    "double": np.dtype("<f8"),
    "boolean": np.dtype(np.uint8),
}


# ---- schemas


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The Avro schema of rows. Raises SchemaRefused for a column that Avro cannot have, by name or by type."""
    return _record(RECORD_NAME, list(schema))


def _record(name: str, fields: list[pa.Field]) -> dict[str, Any]:
    described = []
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise SchemaRefused(
                f"output column {field.name!r} cannot be a field of Avro; a name has letters, digits and underscores, "
                "and no digit in front"
            )
        described.append({"name": field.name, "type": _union(field.type, f"{name}_{field.name}", field.name)})
    return {"type": "record", "name": name, "fields": described}


def _union(kind: pa.DataType, path: str, column: str) -> Any:
    return "null" if pa.types.is_null(kind) else ["null", _avro_type(kind, path, column)]


def _avro_type(kind: pa.DataType, path: str, column: str) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-micros"}
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _record(path, [kind.field(at) for at in range(kind.num_fields)])
    if pa.types.is_list(kind) and not pa.types.is_null(kind.value_type):
        return {"type": "array", "items": _union(kind.value_type, f"{path}_item", column)}
    raise SchemaRefused(f"output column {column!r} is {kind}; as Avro it must be {ALLOWED}")


def arrow_schema_of(described: Any) -> pa.Schema:
    """The Arrow schema of an Avro schema that `avro_schema` has made. Raises CorruptBatch."""
    try:
        return pa.schema([pa.field(field["name"], _arrow_type(field["type"])) for field in described["fields"]])
    except (KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
        raise CorruptBatch(f"an Avro schema that Cairn has not made: {str(described)[:80]}") from error


_ARROW: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def _arrow_type(described: Any) -> pa.DataType:
    if isinstance(described, list):
        return _arrow_type(described[1])
    if isinstance(described, str):
        return _ARROW[described]
    if described["type"] == "record":
        return pa.struct(list(arrow_schema_of(described)))
    if described["type"] == "array":
        return pa.list_(_arrow_type(described["items"]))
    if described["logicalType"] == "decimal":
        return pa.decimal128(described["precision"], described["scale"])
    return _ARROW[described["logicalType"]]


def canonical(described: Any) -> str:
    """The parsing canonical form: what two schemas share that read the same bytes."""
    if isinstance(described, str):
        return json.dumps(described)
    if isinstance(described, list):
        return f"[{','.join(map(canonical, described))}]"
    if described["type"] == "record":
        fields = ",".join(
            f'{{"name":{json.dumps(field["name"])},"type":{canonical(field["type"])}}}' for field in described["fields"]
        )
        return f'{{"name":{json.dumps(described["name"])},"type":"record","fields":[{fields}]}}'
    if described["type"] == "array":
        return f'{{"type":"array","items":{canonical(described["items"])}}}'
    return canonical(described["type"])


def fingerprint(described: Any) -> bytes:
    """CRC-64-AVRO of the canonical form, in the byte order of the single-object encoding."""
    return _crc(canonical(described))


@lru_cache(64)
def _crc(text: str) -> bytes:
    crc = _CRC_EMPTY
    for byte in text.encode():
        crc = (crc >> 8) ^ _crc_table()[(crc ^ byte) & 0xFF]
    return crc.to_bytes(FINGERPRINT_BYTES, "little")


@lru_cache(1)
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_CRC_EMPTY if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


# ---- writing


def encode(rows: pa.RecordBatch) -> pa.BinaryArray:
    """A value for each row. Raises SchemaRefused."""
    head = MARKER + fingerprint(avro_schema(rows.schema))
    parts = [
        _joined(head, *(_optional(column) for column in rows.slice(start, _SLICE_ROWS).columns), rows=size)
        for start in range(0, rows.num_rows, _SLICE_ROWS)
        for size in [min(_SLICE_ROWS, rows.num_rows - start)]
    ]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def _joined(*parts: pa.Array | bytes, rows: int) -> pa.BinaryArray:
    """The parts of each row end to end; bytes stand for the same part in each row."""
    given = [pa.repeat(pa.scalar(part, pa.binary()), rows) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*given, pa.scalar(b"", pa.binary()))


def _optional(column: pa.Array) -> pa.BinaryArray:
    """A column as the union of null and its type."""
    rows = len(column)
    if pa.types.is_null(column.type):
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    present = _joined(_PRESENT, _plain(column), rows=rows)
    if not column.null_count:
        return present
    return pc.if_else(column.is_valid(), present, pa.scalar(_NULL, pa.binary()))


def _plain(column: pa.Array) -> pa.BinaryArray:
    """A column by its type; what stands for a null does not matter, but is there."""
    kind = column.type
    if pa.types.is_struct(kind):
        return _joined(b"", *(_optional(field) for field in column.flatten()), rows=len(column))
    if pa.types.is_list(kind):
        return _lists(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.binary())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        data = column.cast(pa.binary()).fill_null(b"")
        return _joined(_varints(pc.binary_length(data).to_numpy().astype(np.int64)), data, rows=len(column))
    if pa.types.is_decimal(kind):
        return _decimals(column)
    if pa.types.is_boolean(kind):
        return _fixed(column.fill_null(False).cast(pa.uint8()).to_numpy())
    if pa.types.is_floating(kind):
        return _fixed(column.fill_null(0).to_numpy())
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return _varints(column.cast(pa.int64()).fill_null(0).to_numpy())


def _fixed(values: Any) -> pa.BinaryArray:
    values = np.ascontiguousarray(values)
    return _words(values.view(np.uint8).reshape(len(values), values.dtype.itemsize))


def _words(words: Bytes) -> pa.BinaryArray:
    """Rows of equal width as an Arrow column."""
    rows, width = words.shape
    fixed = pa.Array.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(np.ascontiguousarray(words))])
    return fixed.cast(pa.binary())


def _decimals(column: pa.Array) -> pa.BinaryArray:
    """All 16 bytes, the highest first, behind their number."""
    filled = pc.if_else(column.is_valid(), column, pa.scalar(0, column.type)) if column.null_count else column
    words = np.frombuffer(filled.buffers()[1], np.uint8)[filled.offset * _DECIMAL_BYTES :]
    words = words[: len(filled) * _DECIMAL_BYTES].reshape(len(filled), _DECIMAL_BYTES)[:, ::-1]
    return _joined(bytes((2 * _DECIMAL_BYTES,)), _words(words), rows=len(column))


def _lists(column: pa.ListArray) -> pa.BinaryArray:
    """One block with all elements, and the empty block."""
    ends = column.offsets.to_numpy().astype(np.int64)
    elements = _optional(column.values.slice(int(ends[0]), int(ends[-1] - ends[0])))
    bounds = np.frombuffer(elements.buffers()[1], np.int32)[elements.offset :][: len(elements) + 1]
    data = elements.buffers()[2] or pa.py_buffer(b"")
    offsets = pa.py_buffer(np.ascontiguousarray(bounds[ends - ends[0]], np.int32))
    whole = pa.Array.from_buffers(pa.binary(), len(column), [None, offsets, data])
    counts = np.diff(ends)
    block = _joined(_varints(counts), whole, _NULL, rows=len(column))
    return pc.if_else(pa.array(counts > 0), block, pa.scalar(_NULL, pa.binary()))


def _varints(values: Int64s) -> pa.BinaryArray:
    """Integers in zig-zag and variable length."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    shifted = zigzag[:, None] >> (np.uint64(7) * np.arange(_MAX_VARINT_BYTES, dtype=np.uint64))
    sizes = np.maximum((shifted != 0).sum(axis=1), 1)
    places = np.arange(_MAX_VARINT_BYTES)
    letters = (shifted & np.uint64(0x7F)).astype(np.uint8)
    letters |= np.where(places < sizes[:, None] - 1, np.uint8(0x80), np.uint8(0))
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = letters[places < sizes[:, None]]
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


# ---- reading


def fingerprints(values: pa.BinaryArray) -> pa.Array:
    """The schema's fingerprint of each value, null where the value has no such head."""
    heads = pc.binary_slice(values, 0, len(MARKER))
    found = pc.binary_slice(values, len(MARKER), len(MARKER) + FINGERPRINT_BYTES)
    whole = pc.and_(pc.equal(heads, MARKER), pc.equal(pc.binary_length(found), FINGERPRINT_BYTES))
    return pc.if_else(whole, found, pa.scalar(None, pa.binary()))


def decode(values: pa.BinaryArray, described: Any) -> pa.RecordBatch:
    """The rows of values that have this schema's fingerprint. Raises CorruptBatch."""
    schema = arrow_schema_of(described)
    values = values.cast(pa.binary())
    if values.null_count:
        raise CorruptBatch(f"{values.null_count} records without a value; each result has one")
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    data = values.buffers()[2]
    reading = _FieldReader(np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8))
    ends = offsets[1:]
    at = offsets[:-1] + len(MARKER) + FINGERPRINT_BYTES
    columns = []
    for field in schema:
        column, at = reading.optional(field.type, at, ends)
        columns.append(column)
    if (at != ends).any():
        row = int(np.argmax(at != ends))
        raise CorruptBatch(f"value {row}: a record of {at[row] - offsets[row]} bytes in {ends[row] - offsets[row]}")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _FieldReader:
    """Decodes one field of many records at a time: each method takes where the field begins in each record, and where
    the record ends, and gives the column and where the field ends.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data

    def optional(self, kind: pa.DataType, at: Int64s, ends: Int64s) -> tuple[pa.Array, Int64s]:
        if pa.types.is_null(kind):
            return pa.nulls(len(at)), at
        branch, at = self._varints(at, ends)
        if ((branch != 0) & (branch != 1)).any():
            raise CorruptBatch(f"a field of branch {int(branch[(branch != 0) & (branch != 1)][0])}; it has 0 and 1")
        present = np.flatnonzero(branch)
        column, behind = self._plain(kind, at[present], ends[present])
        if len(present) == len(at):
            return column, behind
        after = at.copy()
        after[present] = behind
        places = np.cumsum(branch) - 1
        return column.take(pa.array(places, mask=branch == 0)), after

    def _plain(self, kind: pa.DataType, at: Int64s, ends: Int64s) -> tuple[pa.Array, Int64s]:
        if pa.types.is_struct(kind):
            return self._struct(kind, at, ends)
        if pa.types.is_list(kind):
            return self._lists(kind, at, ends)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._texts(kind, at, ends)
        if pa.types.is_decimal(kind):
            return self._decimals(kind, at, ends)
        name = _PLAIN.get(kind, "")
        if name in _FIXED:
            words = self._words(_FIXED[name].itemsize, at, ends)
            values = words.view(_FIXED[name]).reshape(len(at))
            return pa.array(values).cast(kind), at + _FIXED[name].itemsize
        numbers, at = self._varints(at, ends)
        whole = pa.array(numbers)
        if pa.types.is_int32(kind) or pa.types.is_date32(kind):
            try:
                whole = whole.cast(pa.int32())
            except pa.ArrowInvalid as error:
                raise CorruptBatch(f"an int beyond 32 bits: {error}") from error
        return whole.cast(kind) if whole.type != kind else whole, at

    def _struct(self, kind: pa.StructType, at: Int64s, ends: Int64s) -> tuple[pa.Array, Int64s]:
        columns = []
        fields = [kind.field(index) for index in range(kind.num_fields)]
        for field in fields:
            column, at = self.optional(field.type, at, ends)
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=fields), at

    def _lists(self, kind: pa.ListType, at: Int64s, ends: Int64s) -> tuple[pa.Array, Int64s]:
        at, counts = at.copy(), np.zeros(len(at), np.int64)
        parts: list[pa.Array] = []
        owners: list[Int64s] = []
        active = np.arange(len(at))
        while len(active):
            block, at[active] = self._varints(at[active], ends[active])
            sized = active[block < 0]
            if len(sized):
                _, at[sized] = self._varints(at[sized], ends[sized])
            block = np.abs(block)
            # Each element takes a byte or more, so a damaged count cannot begin a long loop.
            self._check(block, at[active], ends[active])
            active, block = active[block > 0], block[block > 0]
            for done in range(int(block.max(initial=0))):
                owner = active[block > done]
                column, at[owner] = self.optional(kind.value_type, at[owner], ends[owner])
                parts.append(column)
                owners.append(owner)
            counts[active] += block
        offsets = np.zeros(len(at) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        values = pa.array([], kind.value_type)
        if parts:
            order = np.argsort(np.concatenate(owners), kind="stable")
            values = pa.concat_arrays(parts).take(pa.array(order))
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind), at

    def _texts(self, kind: pa.DataType, at: Int64s, ends: Int64s) -> tuple[pa.Array, Int64s]:
        sizes, at = self._varints(at, ends)
        self._check(sizes, at, ends)
        offsets = np.zeros(len(at) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        starts = np.repeat(at - offsets[:-1], sizes)
        data = self._data[starts + np.arange(len(starts))]
        column = pa.Array.from_buffers(kind, len(at), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptBatch(f"a string that is not UTF-8: {error}") from error
        return column, at + sizes

    def _decimals(self, kind: pa.DataType, at: Int64s, ends: Int64s) -> tuple[pa.Array, Int64s]:
        sizes, at = self._varints(at, ends)
        self._check(sizes, at, ends)
        if ((sizes < 1) | (sizes > _DECIMAL_BYTES)).any():
            raise CorruptBatch(f"a decimal of {int(sizes.min())} to {int(sizes.max())} bytes; 1 to 16 are known")
        sign = np.where(self._data[at] >= 0x80, np.uint8(0xFF), np.uint8(0)) if len(at) else np.empty(0, np.uint8)
        places = np.arange(_DECIMAL_BYTES)
        inside = places < sizes[:, None]
        # The lowest byte is the last one.
        words = np.where(inside, self._data[np.where(inside, (at + sizes)[:, None] - 1 - places, 0)], sign[:, None])
        raw = pa.py_buffer(np.ascontiguousarray(words, np.uint8))
        column = pa.Array.from_buffers(kind, len(at), [None, raw])
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptBatch(f"a decimal beyond {kind}: {error}") from error
        return column, at + sizes

    def _words(self, width: int, at: Int64s, ends: Int64s) -> Bytes:
        self._check(np.full(len(at), width), at, ends)
        return np.ascontiguousarray(self._data[at[:, None] + np.arange(width)]) if len(at) else np.empty(0, np.uint8)

    def _check(self, sizes: Int64s, at: Int64s, ends: Int64s) -> None:
        if ((sizes < 0) | (sizes > ends - at)).any():
            raise CorruptBatch("a field reaches behind the end of its record")

    def _varints(self, at: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
        at = at.copy()
        found = np.zeros(len(at), np.uint64)
        active = np.arange(len(at))
        for place in range(_MAX_VARINT_BYTES):
            if not len(active):
                break
            where = at[active]
            if (where >= ends[active]).any():
                raise CorruptBatch("a number reaches behind the end of its record")
            letters = self._data[where]
            found[active] |= (letters & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            at[active] += 1
            more: Bools = letters >= 0x80
            active = active[more]
        if len(active):
            raise CorruptBatch(f"a number of more than {_MAX_VARINT_BYTES} bytes")
        return (found >> np.uint64(1)).view(np.int64) ^ -(found & np.uint64(1)).view(np.int64), at

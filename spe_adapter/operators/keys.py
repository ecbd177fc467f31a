"""Key columns as the bytes of a Kafka record key, and back.

One string or binary column is its own bytes, so that other producers and consumers of the topic see plain keys. Another
single column is its text: 17, true, 2026-03-01, 2026-03-01T12:00:00.000001Z. Several columns are a JSON object with the
null ones left out, {"shop":"x","day":"2026-03-01"}.

Invariants:
* Equal keys have equal bytes, different keys different bytes: the bytes are what windows are found by. Timestamps are
  written in UTC with all their digits, whatever the session's time zone.
* A single null column is a null key; of several columns the key is never null.
* No loop over rows in Python.
"""

import io
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.jsontext import EXACT_FRACTION_DIGITS, Text, is_textual, moments, objects_of, text_of

ALLOWED: Final = "string, integers, boolean, date, timestamp (in µs or coarser), or alone, binary"

_BLOCK_BYTES: Final = 1 << 16


class KeyCodec:
    """The key columns of a schema. Raises SchemaRefused for a column that is missing or of a type that cannot be a key
    (floating point numbers have more than one way to be equal).
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        if not columns:
            raise SchemaRefused("no key column; name at least one")
        if len(set(columns)) < len(columns):
            raise SchemaRefused(f"a key column is named twice: {', '.join(columns)}")
        self._fields = [_checked(schema, name, alone=len(columns) == 1) for name in columns]

    @property
    def fields(self) -> list[pa.Field]:
        """The key columns, in the order given."""
        return list(self._fields)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The key of each row, null for the null key."""
        columns = [batch.column(field.name) for field in self._fields]
        if len(columns) == 1:
            return _exact(columns[0]).text
        names = [field.name for field in self._fields]
        return objects_of(names, [_exact(column) for column in columns], batch.num_rows)

    def decode(self, keys: pa.BinaryArray) -> list[pa.Array]:
        """The key columns behind these keys."""
        kinds = [field.type for field in self._fields]
        if len(kinds) == 1:
            return [_parsed(keys, kinds[0])]
        if not len(keys):
            return [pa.array([], kind) for kind in kinds]
        lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(keys)], pa.int32()), keys), b"\n")[
            0
        ].as_buffer()
        written = pa.schema([pa.field(field.name, _json_type(field.type)) for field in self._fields])
        table = arrow_json.read_json(
            io.BytesIO(lines),
            parse_options=arrow_json.ParseOptions(explicit_schema=written, unexpected_field_behavior="error"),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(lines.size + 1, _BLOCK_BYTES)),
        ).combine_chunks()
        return [
            _parsed(_whole(table.column(field.name)), field.type)
            if written.field(field.name).type == pa.string()
            else _whole(table.column(field.name)).cast(field.type)
            for field in self._fields
        ]


def _checked(schema: pa.Schema, name: str, *, alone: bool) -> pa.Field:
    index = schema.get_field_index(name)
    if index < 0:
        raise SchemaRefused(f"key column {name!r} is missing; there is {', '.join(schema.names)}")
    kind = schema.field(index).type
    known = (
        is_textual(kind)
        or (alone and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)))
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit != "ns")
    )
    if not known:
        raise SchemaRefused(f"key column {name!r} is {kind}; a key is {ALLOWED}")
    return schema.field(index)


def _exact(column: pa.Array) -> Text:
    """A key column's text, with nothing lost."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return Text(moments(column, EXACT_FRACTION_DIGITS, utc=True), plain=True)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Text(column.cast(pa.binary()), plain=True)
    return text_of(column)


def _json_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's reader is told to make of a field: numbers by itself, the rest as text."""
    return kind if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else pa.string()


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.binary() or kind == pa.large_binary():
        return texts.cast(kind)
    texts = texts.cast(pa.string())
    # Timestamps are written with all digits, which Arrow does not read into a coarser unit.
    return texts.cast(pa.timestamp("us", kind.tz)).cast(kind) if pa.types.is_timestamp(kind) else texts.cast(kind)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()

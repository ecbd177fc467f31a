"""Results as records, in the format that a query's option `resultFormat` names.

| format | a record |
|---|---|
| json | a result: the key's bytes, and the row as a JSON object, or as the operator's own bytes |
| avro | a result: the key's bytes, and the row in Avro's single-object encoding (`codec.avro`) |
| arrow | many results: no key, and the rows as an Arrow IPC stream, with the newest of their timestamps |

Invariants:
* Results of equal rows are equal bytes, whatever the format, so that attempts can be compared.
* A record of many results stays below RECORD_TARGET_BYTES; only a single row may exceed it.
* The columns of a format other than JSON are told with each epoch (`ResultColumns`), so that a reader finds them
  without a registry.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.errors import CorruptBatch
from spe_adapter.codec import avro
from spe_adapter.codec.kernels import Int64s
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.output import VALUE, Output, is_raw, to_records

ResultFormat = Literal["json", "avro", "arrow"]
RESULT_FORMATS: Final[tuple[ResultFormat, ...]] = ("json", "avro", "arrow")
"""The values of the option `resultFormat`, the default first."""
RECORD_TARGET_BYTES: Final = 256 * 1024
"""A quarter of what a record batch may be by default."""


class FormattedResults(NamedTuple):
    """Records: the key of each (null: none), its value, and its timestamp in ms (None: now)."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    times_ms: Int64s | None


class ResultColumns(NamedTuple):
    """The format of a query's results and their columns, as END tells them."""

    format: ResultFormat
    schema: pa.Schema

    def to_fields(self) -> dict[str, Any]:
        """The JSON fields: Avro's schema as it is, Arrow's as IPC in base64."""
        if self.format == "avro":
            return {"format": self.format, "schema": avro.avro_schema(self.schema)}
        return {"format": self.format, "schema": base64.b64encode(self.schema.serialize()).decode()}

    @classmethod
    def from_fields(cls, fields: Any) -> "ResultColumns":
        """The inverse of `to_fields`; Avro's columns come in the types that Avro has. Raises CorruptBatch."""
        if not isinstance(fields, dict) or fields.get("format") not in ("avro", "arrow"):
            raise CorruptBatch(f"columns of results in a format that is not known: {str(fields)[:80]}")
        described = fields.get("schema")
        if fields["format"] == "avro":
            return cls("avro", avro.arrow_schema_of(described))
        try:
            return cls("arrow", pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(described), validate=True))))
        except (binascii.Error, pa.ArrowException, OSError) as error:
            raise CorruptBatch(f"columns of results that are no Arrow schema: {error}") from error


def check_format(wanted: ResultFormat, operator: pa.Schema, columns: pa.Schema) -> None:
    """Raise SchemaRefused for results that a format cannot have; `operator` are the operator's own columns, `columns`
    those of the results.
    """
    if wanted == "json":
        return
    if is_raw(operator):
        raise SchemaRefused(
            f"option 'resultFormat' is {wanted!r}, but the operator gives the records' values itself, in its column "
            f"{VALUE!r}; allowed: json, or other columns"
        )
    if wanted == "avro":
        avro.avro_schema(columns)


def formatted(output: Output, wanted: ResultFormat) -> FormattedResults:
    """Results as records. Raises SchemaRefused."""
    if wanted == "json" or output.raw:
        return FormattedResults(*to_records(output), output.times_ms)
    if wanted == "avro":
        return FormattedResults(output.keys, avro.encode(output.rows), output.times_ms)
    values, starts = [], []
    for start, value in _streams(output.rows, 0):
        values.append(value)
        starts.append(start)
    times_ms = None if output.times_ms is None else np.maximum.reduceat(output.times_ms, starts)
    return FormattedResults(pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary()), times_ms)


def _streams(rows: pa.RecordBatch, start: int) -> Iterator[tuple[int, bytes]]:
    """Rows as Arrow streams, halved until each is small enough; the first row of each, and its bytes."""
    # What is already known to be large is not encoded before it is halved.
    if rows.num_rows == 1 or rows.nbytes <= RECORD_TARGET_BYTES:
        value = _stream(rows)
        if rows.num_rows == 1 or len(value) <= RECORD_TARGET_BYTES:
            yield start, value
            return
    half = rows.num_rows // 2
    yield from _streams(rows.slice(0, half), start)
    yield from _streams(rows.slice(half), start + half)


def _stream(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def stream_rows(value: bytes | memoryview) -> pa.Table:
    """The rows of a record in the format arrow. Raises CorruptBatch."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
            rows = reader.read_all()
        rows.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptBatch(f"{len(value)} bytes that are no Arrow stream: {error}") from error
    return rows

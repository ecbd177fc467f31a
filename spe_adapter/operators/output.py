"""Results as records: the key's bytes, and the row as JSON or as the user's own bytes.

Invariant: results of equal rows are equal bytes, so that a replay can be compared with what it repeats.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Int64s
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.jsontext import check_supported, is_bytes, is_textual, json_objects

VALUE: Final = "value"
"""An operator whose one output column has this name, string or binary, gives the records' values itself."""


class Output(NamedTuple):
    """Results: the record key of each, the rows (key columns first, then the operator's), and the records' timestamps
    in ms (None: now). `raw`: the values are column `value` as it is.
    """

    keys: pa.BinaryArray
    rows: pa.RecordBatch
    times_ms: Int64s | None
    raw: bool = False


def is_raw(operator: pa.Schema) -> bool:
    """Whether an operator's output is the records' values."""
    return operator.names == [VALUE] and (is_textual(operator.field(0).type) or is_bytes(operator.field(0).type))


def output_schema(keys: list[pa.Field], operator: pa.Schema) -> pa.Schema:
    """The columns of an operator's output: the key's, and behind them the operator's. One that gives all the key's
    columns itself, of the same types, gets none in front.

    Raises SchemaRefused for what cannot be written, and for a name that is there twice.
    """
    given = all(operator.get_field_index(key.name) >= 0 and operator.field(key.name).type == key.type for key in keys)
    schema = operator if given else pa.schema([*keys, *operator])
    for field in schema:
        if len(schema.get_all_field_indices(field.name)) > 1:
            raise SchemaRefused(f"output column {field.name!r} exists twice; the key columns are part of the output")
    if not is_raw(operator):
        check_supported(schema, "output column")
    return schema


def to_records(output: Output) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Keys and values of the records: the column `value` as it is, else one JSON object per row, as Spark's `to_json`
    writes it.
    """
    if output.raw:
        return output.keys, output.rows.column(VALUE).cast(pa.binary())
    return output.keys, json_objects(output.rows.schema.names, output.rows.columns, output.rows.num_rows)


def record_times(times_ms: Int64s | None, records: int, now_ms: int) -> Int64s:
    """The records' timestamps in ms: the results' own (None: now), but never after now nor before 1970, which a log
    refuses. A window may well end in the future if the data's clock is ahead.
    """
    if times_ms is None:
        return np.full(records, now_ms, np.int64)
    return np.clip(times_ms, 0, now_ms)

"""What a data frame must look like for a stateful query, and the types in which its rows come.

Invariant: what does not suit (columns, types, the operator's demands) is refused on the driver, before anything starts.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.base import Operator
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import output_schema
from spe_adapter.state.layout import columns_of


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """A data frame's schema as tasks see it; timestamps are in the session's time zone. Raises SchemaRefused."""
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    names = frame.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaRefused(f"column {twice[0]!r} is there twice; give each column a name of its own")
    return to_arrow_schema(frame.schema, timezone=zone)


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch from Spark with exactly the schema's types: Spark may send strings with wide offsets."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check(operator: Operator, schema: pa.Schema, key: Sequence[str]) -> str:
    """Refuse what cannot work, naming the column; and the fingerprint of what the query's state looks like.

    Raises SchemaRefused or StateSchemaRefused.
    """
    KeyCodec(schema, key)
    changed = [name for name in key if operator.changes(name)]
    if changed:
        raise SchemaRefused(
            f"a step in front of the operator may change key column {changed[0]!r}; make it in the data frame, by "
            "which rows are routed"
        )
    prepared = operator.prepared(schema)
    codec = KeyCodec(prepared, key)
    operator.times(pa.RecordBatch.from_pylist([], schema=prepared))
    output = operator.output(schema)
    if not isinstance(output, pa.Schema):
        raise SchemaRefused(
            f"output of operator {operator.name} gave a {type(output).__name__}; it must give a pyarrow.Schema"
        )
    output_schema(codec.fields, output)
    state = operator.state_schema(schema)
    columns_of(state)
    keys = ", ".join(f"{field.name} {field.type}" for field in codec.fields)
    columns = ", ".join(f"{field.name} {field.type}" for field in state)
    return f"{operator.description}; {columns}; by {keys}"

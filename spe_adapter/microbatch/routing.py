"""Which rows go to which task: by key, as Kafka's partitioner does; and what a data frame must look like for it.

A row's partition is computed in front of the shuffle by a vectorised function that Spark hands the key columns alone,
and `repartitionById` sends the row exactly there. So state, results and keys of partition p meet in stream p, and a
producer with Kafka's default partitioner sends a key's records to the partition with the same number.

Invariants:
* The key's bytes, hence the partition, are those that the operator's windows have (`KeyCodec`), whatever the column's
  type. Null keys are partition 0's.
* What does not suit (columns, types, the operator's demands) is refused on the driver, before anything starts.

Source: Kafka's BuiltInPartitioner; measurements in docs/decisions/0010.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType

from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.base import Operator
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import output_schema

NULL_PARTITION = 0
"""Where null keys go: state cannot wander, as records without a key do in Kafka."""


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
    output_schema(codec.fields, operator.output(schema))
    state = operator.state_schema(schema)
    keys = ", ".join(f"{field.name} {field.type}" for field in codec.fields)
    columns = ", ".join(f"{field.name} {field.type}" for field in state)
    return f"{operator.description}; {columns}; by {keys}"


def partitions_for(codec: KeyCodec, batch: pa.RecordBatch, partitions: int) -> pa.Array:
    """The partition of each row, int32."""
    return pa.array(partitions_of(codec.encode(batch), batch.num_rows, partitions, NULL_PARTITION))


def partition_column(schema: pa.Schema, key: Sequence[str], partitions: int) -> Column:
    """The partition of each row, from 0 to `partitions` - 1, as a column to hand to `repartitionById`."""
    wanted = pa.schema([schema.field(name) for name in key])
    names = wanted.names

    def route(*columns: pa.Array) -> pa.Array:
        batch = as_schema(pa.RecordBatch.from_arrays(list(columns), names=names), wanted)
        return partitions_for(KeyCodec(wanted, names), batch, partitions)

    # Spark wants the kind of function to be told by the hints above, not by an argument, which its own stubs demand.
    router = arrow_udf(route, IntegerType())  # type: ignore[call-overload]
    return router(*[sf.col(f"`{name}`") for name in key])

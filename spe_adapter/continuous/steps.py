"""Common steps: JSON values to columns, and two sources as the input of one join.

Invariants:
* A step keeps the order of rows. Its result for a row depends on that row alone, so that a replay repeats it.
* Both sources of a join give the same columns.

Source: CEC paper, section V (join as an operator with two input streams).
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from spe_adapter.codec.decode import SCHEMA
from spe_adapter.continuous.errors import FragmentRefused
from spe_adapter.continuous.fragment import TopicSource, apply
from spe_adapter.operators.join import SIDE, SIDES

_WRAPPED: Final = "v"
_MIN_BLOCK_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class FromJson:
    """A step that parses records whose values are JSON objects. The result has the record columns in `keep`, then the
    columns of `schema`.

    The step ignores members that `schema` does not name. A missing member is null. Timestamps are ISO 8601. A value
    that is null, is not a JSON object, or has other types gives null in all columns of `schema`, as in Spark's
    `from_json`, so that a bad record does not stop the stream. A `Filter` on a column that every valid record has
    removes such rows.
    """

    schema: pa.Schema
    keep: tuple[str, ...] = ()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a batch of records."""
        columns = [batch.column(name) for name in self.keep]
        parsed = self._parsed(batch.column("value"))
        return pa.RecordBatch.from_arrays([*columns, *parsed.flatten()], names=[*self.keep, *self.schema.names])

    def _parsed(self, values: pa.Array) -> pa.StructArray:
        """A struct for each value; a batch that does not parse is halved until each bad value is alone."""
        kind = pa.struct(list(self.schema))
        if not len(values):
            return pa.array([], kind)
        try:
            found = _read(values, kind)
        except pa.ArrowInvalid:
            found = None
        if found is not None and len(found) == len(values):
            return found
        if len(values) == 1:
            return pa.nulls(1, kind)
        half = len(values) // 2
        return pa.concat_arrays([self._parsed(values.slice(0, half)), self._parsed(values.slice(half))])


def _read(values: pa.Array, kind: pa.StructType) -> pa.StructArray:
    """Parse all values at once, each wrapped in an object, so that a value is neither split nor joined with another.

    Raises ArrowInvalid.
    """
    texts = pc.fill_null(values.cast(pa.binary()), b"null")
    lines = pc.binary_join_element_wise(b'{"%s":' % _WRAPPED.encode(), texts, b"}", b"")
    text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), b"\n")[0].as_buffer()
    table = arrow_json.read_json(
        io.BytesIO(text),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema([pa.field(_WRAPPED, kind)]), unexpected_field_behavior="ignore"
        ),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(text.size + 1, _MIN_BLOCK_BYTES)),
    )
    column = table.column(_WRAPPED)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


# ---- joins


@dataclass(frozen=True)
class _AsSide:
    """A step that puts the columns of a row into the struct of its side."""

    side: int
    key: tuple[str, ...]
    kinds: tuple[pa.StructType, pa.StructType]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        columns = [batch.column(name) for name in self.key]
        columns.append(pa.array(np.full(rows, self.side, np.int8)))
        for side, kind in enumerate(self.kinds):
            if side != self.side:
                columns.append(pa.nulls(rows, kind))
                continue
            fields = [kind.field(at) for at in range(kind.num_fields)]
            columns.append(pa.StructArray.from_arrays([batch.column(field.name) for field in fields], fields=fields))
        return pa.RecordBatch.from_arrays(columns, names=[*self.key, SIDE, *SIDES])


def join_sources(left: TopicSource, right: TopicSource, key: Sequence[str]) -> tuple[TopicSource, TopicSource]:
    """The sources of a fragment whose operator is a `WindowJoin` on the key columns.

    The struct of each side has the columns after the steps of that side. Raises FragmentRefused if a key column is
    missing or has different types.
    """
    empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    schemas = [apply(source.steps, empty).schema for source in (left, right)]
    for name in key:
        types = [schema.field(name).type if name in schema.names else None for schema in schemas]
        if None in types or types[0] != types[1]:
            raise FragmentRefused(
                f"key column {name!r} is {types[0]} in {left.topic!r} and {types[1]} in {right.topic!r}; a join needs "
                "it in both, of one type"
            )
    kinds = (pa.struct(list(schemas[0])), pa.struct(list(schemas[1])))
    sides = (_AsSide(side, tuple(key), kinds) for side in range(len(SIDES)))
    made = [replace(source, steps=(*source.steps, side)) for source, side in zip((left, right), sides, strict=True)]
    return made[0], made[1]

"""Two sources for the window join: each row as one side of a pair, with the other side empty.

Invariant: both sources come out with the same columns, as a union of the two would have them.

Source: CEC paper, section V (join as an operator with two input streams).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spe_adapter.codec.decode import SCHEMA
from spe_adapter.continuous.errors import FragmentRefused
from spe_adapter.continuous.fragment import Source, apply
from spe_adapter.operators.join import SIDE, SIDES


@dataclass(frozen=True)
class _AsSide:
    """A step: rows become the struct of their side."""

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
            columns.append(pa.StructArray.from_arrays([batch.column(one.name) for one in fields], fields=fields))
        return pa.RecordBatch.from_arrays(columns, names=[*self.key, SIDE, *SIDES])


def join_sources(left: Source, right: Source, key: Sequence[str]) -> tuple[Source, Source]:
    """The sources of a fragment whose operator is a `WindowJoin` on these key columns.

    Each side's struct has the columns that its steps give. Raises FragmentRefused where a key column is missing, or of
    different types.
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

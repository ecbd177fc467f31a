"""Rows combined in front of a shuffle: of all rows of one window there, one goes on, with what became of them.

A combined row has the key's columns, the number that the operator's `assign` gave (null: rows of no window), how many
rows and input records it stands for, their newest event time in µs (null: none has one), and the operator's cells.

Invariants:
* What follows from combined rows is what follows from the rows: results, state, late rows, counters and watermarks, but
  that sums of floating point numbers are added up in another order.
* Whether rows are late is not decided here, as it is known only where their window is.
* Rows of no window, and those that a step in front dropped, are counted in the partition of their key.

Source: Spark's partial aggregation (AggUtils); MapReduce's combiners.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Int64s
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.operators.base import Combining, Operator, Times
from spe_adapter.operators.errors import ArithmeticOverflow
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.state.columns import distinct

NULL_PARTITION: Final = 0
"""Where null keys go: state cannot wander, as records without a key do in Kafka."""
_COUNTERS: Final = (
    pa.field("number", pa.int64()),
    pa.field("rows", pa.int64()),
    pa.field("records", pa.int64()),
    pa.field("newest_us", pa.int64()),
)


class Combined(NamedTuple):
    """Combined rows taken apart: their `keys` (the key's columns), and the columns named above."""

    keys: pa.RecordBatch
    number: pa.Array
    rows: Int64s
    records: Int64s
    newest_us: pa.Array
    cells: pa.RecordBatch


def take_apart(batch: pa.RecordBatch, key_columns: int) -> Combined:
    """Combined rows as `Combiner.combine` gave them."""
    number, rows, records, newest_us = batch.columns[key_columns : key_columns + len(_COUNTERS)]
    names = batch.schema.names
    cells = list(range(key_columns + len(_COUNTERS), len(names)))
    return Combined(
        batch.select(list(range(key_columns))), number, rows.to_numpy(), records.to_numpy(), newest_us,
        batch.select(cells),
    )  # fmt: skip


class Combiner:
    """Combines rows of an operator's input. `codec` is over the schema that the operator's `prepare` gives, `raw` over
    that of the input; `seed` is secret from the producers of the keys.
    """

    def __init__(
        self, operator: Operator, combining: Combining, codec: KeyCodec, raw: KeyCodec, partitions: int, seed: int
    ) -> None:
        self._operator = operator
        self._combining = combining
        self._codec = codec
        self._raw = raw
        self._partitions = partitions
        self._seed = seed

    def combine(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s]:
        """Combined rows, in the order of the first row of each, and the state partition of each."""
        rows = self._operator.prepare(batch)
        times = self._operator.times(rows)
        given = self._operator.assign(rows, times, np.arange(rows.num_rows, dtype=np.int64))
        keys = self._codec.encode(rows)
        positions = given.rows
        placed = rows if positions is None else rows.take(pa.array(positions))
        placed_keys = keys if positions is None else keys.take(pa.array(positions))
        groups, first = distinct(placed_keys, given.numbers, self._seed)
        try:
            cells = self._combining.fold(placed, groups, len(first))
        except ArithmeticOverflow:
            # The rows may well fit into what their window holds: they go one by one.
            groups = first = np.arange(placed.num_rows, dtype=np.int64)
            cells = self._combining.fold(placed, groups, len(first))
        counts = np.bincount(groups, minlength=len(first)).astype(np.int64)
        where = pa.array(first)
        partitions = self._partitions_of(placed_keys.take(where))
        key_columns = [placed.column(field.name).take(where) for field in self._codec.fields]
        newest_us = pa.array(_newest(times, positions, groups, len(first)), pa.int64(), mask=_none(times, len(first)))
        columns = [*key_columns, pa.array(given.numbers[first]), pa.array(counts), pa.array(counts), newest_us, *cells]
        schema = pa.schema([*self._codec.fields, *_COUNTERS, *self._combining.cells])
        combined = pa.RecordBatch.from_arrays(columns, schema=schema)
        if positions is None and rows.num_rows == batch.num_rows:
            return combined, partitions
        others, theirs = self._others(schema, batch, keys, partitions, counts)
        return pa.concat_batches([combined, others]), np.concatenate((partitions, theirs))

    def _others(
        self, schema: pa.Schema, batch: pa.RecordBatch, keys: pa.BinaryArray, partitions: Int64s, counts: Int64s
    ) -> tuple[pa.RecordBatch, Int64s]:
        """A row for each partition that has rows of no window, or records that a step in front dropped."""
        placed = np.bincount(partitions, weights=counts, minlength=self._partitions).astype(np.int64)
        rows = np.bincount(self._partitions_of(keys), minlength=self._partitions) - placed
        records = np.bincount(self._partitions_of(self._raw.encode(batch)), minlength=self._partitions) - placed
        which = np.flatnonzero(records)
        known = {"rows": pa.array(rows[which]), "records": pa.array(records[which])}
        columns = [known.get(field.name, pa.nulls(len(which), field.type)) for field in _COUNTERS]
        keys_and_cells = [pa.nulls(len(which), kind) for kind in schema.types]
        first = len(self._codec.fields)
        keys_and_cells[first : first + len(_COUNTERS)] = columns
        return pa.RecordBatch.from_arrays(keys_and_cells, schema=schema), which

    def _partitions_of(self, keys: pa.BinaryArray) -> Int64s:
        return partitions_of(keys, len(keys), self._partitions, NULL_PARTITION).astype(np.int64)


def _newest(times: Times | None, positions: Int64s | None, groups: Int64s, count: int) -> Int64s:
    """The newest event time of each group, in µs."""
    newest = np.full(count, np.iinfo(np.int64).min)
    if times is not None:
        np.maximum.at(newest, groups, times.us if positions is None else times.us[positions])
    return newest


def _none(times: Times | None, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    """Where groups have no event time: everywhere, or nowhere, as rows without one are in no window."""
    return np.ones(count, np.bool_) if times is None else None

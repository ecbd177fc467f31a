"""The shuffle: moves rows from Spark's input partitions to the tasks that hold their state, as whole Arrow batches.

Before the shuffle a vectorised pass splits the rows of an input partition by state partition, with Kafka's partitioner,
and gives Spark one row per state partition: its number, and the batch as bytes. `repartitionById` sends that row to the
partition of that number. So Spark moves a few large rows instead of many small ones, and converts each once.

If it is worth while, the pass first combines the rows of a window into one. The driver chooses: by the options, or by
the last epochs.

Invariants:
* The bytes of a key, and so its partition, are those of the operator's windows (`KeyCodec`), for every type of column.
  So state and results of partition p are in stream p, and a producer with Kafka's default partitioner sends the
  records of a key to the partition with the same number.
* Rows of one input partition stay in order.
* A batch holds at most CALL_ROWS rows and about CALL_BYTES bytes, which bounds the memory of both sides.
* Combining changes only the duration of an epoch, and the last bits of sums of floating point numbers.
  The first epochs of an incarnation are not combined unless the options say so.

Source: Kafka's BuiltInPartitioner; measurements in docs/decisions/0010.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.errors import CairnError
from spe_adapter.codec.kernels import Int64s
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.host import new_seed
from spe_adapter.microbatch.epoch import QueryDefinition, TaskReport
from spe_adapter.operators.blame import failed
from spe_adapter.operators.combining import NULL_PARTITION, Combiner
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.workers.collector import spare_loaded_code
from spe_adapter.workers.context import COMBINE_PROPERTY, local_property

PARTITION: Final = "partition"
HANDED_SCHEMA: Final = f"{PARTITION} int, combined boolean, rows binary"
CALL_ROWS: Final = 131_072
CALL_BYTES: Final = 32 * 1024 * 1024
"""Spark sends batches of 10,000 rows. An operator is called with up to this many rows and bytes, since each call has a
fixed cost, and gives one result for a key per call.
"""


_EPOCHS: Final = 3
"""The number of epochs that are considered; a single one may be an exception."""
_MIN_RECORDS: Final = 5_000
"""Combining gains nothing in an epoch of fewer records."""
_BEGIN: Final = 4
_END: Final = 2
"""Combining begins at _BEGIN rows per window, and ends below _END rows per combined row: a combined row costs more than
a row. The two differ, so that the choice does not alternate.
"""


class HandOver:
    """The pass before the shuffle: the function of a `mapInArrow`, in an executor's Python worker."""

    def __init__(self, fixed: QueryDefinition) -> None:
        self._fixed = fixed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of an input partition, cut by state partition. Raises the errors of combining."""
        spare_loaded_code()
        fixed = self._fixed
        codec = KeyCodec(fixed.schema, fixed.key)
        combining = fixed.operator.combining(fixed.schema) if self._combines() else None
        combiner = None
        if combining is not None:
            prepared = KeyCodec(fixed.operator.prepared(fixed.schema), fixed.key)
            combiner = Combiner(fixed.operator, combining, prepared, codec, fixed.partitions, new_seed())
        while taken := list(of_one_call(batches)):
            rows = _as_schema(whole(taken), fixed.schema)
            if combiner is None:
                targets = partitions_of(codec.encode(rows), rows.num_rows, fixed.partitions, NULL_PARTITION)
                yield _handed(rows, targets.astype(np.int64), fixed.partitions, combined=False)
            else:
                try:
                    combined = combiner.combine(rows)
                except CairnError:
                    raise
                except Exception as error:
                    raise failed(fixed.operator, "the pass before the shuffle", "prepare", error) from error
                yield _handed(*combined, fixed.partitions, combined=True)

    def _combines(self) -> bool:
        said = local_property(COMBINE_PROPERTY)
        return self._fixed.options.combine == "always" if said is None else said == "true"


class Received(NamedTuple):
    """Rows after the shuffle."""

    combined: bool
    rows: pa.RecordBatch


def received(handed: Iterator[pa.RecordBatch]) -> Iterator[Received]:
    """The batches after the shuffle, joined so that each is for one call of the operator."""
    for combined, group in groupby(_unpacked(handed), key=lambda each: each.combined):
        batches = (each.rows for each in group)
        while taken := list(of_one_call(batches)):
            yield Received(combined, whole(taken))


def _unpacked(handed: Iterator[pa.RecordBatch]) -> Iterator[Received]:
    for batch in handed:
        for combined, packed in zip(batch.column(1), batch.column(2), strict=True):
            # In memory of its own, aligned as loops want it.
            for rows in pa.ipc.open_stream(pa.py_buffer(packed.as_py())):
                yield Received(combined.as_py(), rows)


def of_one_call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of one call of the operator."""
    rows = size_bytes = 0
    for batch in batches:
        yield batch
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= CALL_ROWS or size_bytes >= CALL_BYTES:
            return


def whole(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _handed(rows: pa.RecordBatch, targets: Int64s, count: int, *, combined: bool) -> pa.RecordBatch:
    """A row for each partition that gets any of the rows."""
    ordered = rows.take(pa.array(np.argsort(targets, kind="stable"))) if count > 1 else rows
    ends = np.cumsum(np.bincount(targets, minlength=count))
    partitions, packed, start = [], [], 0
    for partition, end in enumerate(ends.tolist()):
        if end > start:
            partitions.append(partition)
            packed.append(_packed(ordered.slice(start, end - start)))
            start = end
    flags = pa.array([combined] * len(packed), pa.bool_())
    columns = [pa.array(partitions, pa.int32()), flags, pa.array(packed, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=[PARTITION, "combined", "rows"])


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch from Spark, in exactly the schema's types: Spark may send strings with wide offsets."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# ---- whether to combine


class _Shown(NamedTuple):
    records: int
    moved: int


class CombineChoice:
    """Whether the next epoch's rows are combined before the shuffle."""

    def __init__(self, fixed: QueryDefinition) -> None:
        self._mode = fixed.options.combine if fixed.operator.combining(fixed.schema) is not None else "never"
        self.combine = self._mode == "always"
        self._shown: deque[_Shown] = deque(maxlen=_EPOCHS)

    def note(self, reports: Sequence[TaskReport]) -> None:
        """Note the reports of a finished epoch."""
        records = sum(report.records for report in reports)
        if self._mode != "auto" or records < _MIN_RECORDS:
            return
        moved = sum(report.moved if report.combined else report.windows for report in reports)
        self._shown.append(_Shown(records, moved))
        rows_to_one = sum(shown.records for shown in self._shown) / max(sum(shown.moved for shown in self._shown), 1)
        wanted = rows_to_one >= (_END if self.combine else _BEGIN)
        if wanted != self.combine:
            self.combine = wanted
            self._shown.clear()

"""The rows of a sink's task: each gets its stream and its timestamp, and is sent in a staged segment.

Invariants:
* A record's stream depends on its columns alone, so that a key always goes to the same stream. All rows of a chunk
  without a key go to one partition, which differs between chunks, tasks and epochs.
* At most one chunk of rows waits: SEGMENT_BYTES of column data, or a single record.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.client.blocking import Client
from logstore.client.wire import TopicPartition
from logstore.errors import InvalidRecord
from spe_adapter.codec.digests import MODULUS, digest_of
from spe_adapter.codec.encode import Columns
from spe_adapter.codec.kernels import MICROSECONDS, Int32s, Int64s
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.datasource.options import SinkOptions
from spe_adapter.epochs.client import StagedWriter, TaskAttempt
from spe_adapter.epochs.segments import SEGMENT_BYTES, SegmentCutter
from spe_adapter.host import Host

_IF_TOO_LARGE: Final = "raise the topic's setting, or lower the option 'kafka.batch.size' (records stay whole)"


class Staged(NamedTuple):
    """What a task staged: how much, into which topics, and the digest of its records if that was asked for."""

    segments: int
    records: int
    topics: tuple[str, ...] = ()
    digest: int = 0


class RowWriter:
    """Stages one attempt's rows. Raises the client's and the sidecar's errors, and InvalidRecord for rows that cannot
    be sent.
    """

    def __init__(
        self, client: Client, attempt: TaskAttempt, options: SinkOptions, host: Host, *, with_digest: bool = False
    ) -> None:
        self._client = client
        self._attempt = attempt
        self._options = options
        self._host = host
        self._with_digest = with_digest
        self._digest = 0
        self._writer = StagedWriter(client, attempt, _IF_TOO_LARGE)
        self._cutter = SegmentCutter(options.batch_bytes, options.codec)
        self._partitions: dict[str, int] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._chunks = 0
        self._records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; whole chunks are sent on."""
        for part in _slices(batch):
            if self._waiting and self._waiting_bytes + part.nbytes > SEGMENT_BYTES:
                self._send_chunk()
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes

    def finish(self) -> Staged:
        """Send the rest and wait until everything is durable."""
        if self._waiting:
            self._send_chunk()
        self._writer.send(self._cutter.rest())
        return Staged(self._writer.finish(), self._records, tuple(sorted(self._partitions)), self._digest)

    def _send_chunk(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if len(waiting) == 1:
            rows = waiting[0]
        else:
            rows = pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
        if self._with_digest:
            self._digest = (self._digest + digest_of(_column(rows, "key"), rows.column("value"))) % MODULUS
        targets, streams = self._targets(rows)
        columns = Columns(
            keys=_column(rows, "key"),
            values=rows.column("value"),
            headers=_column(rows, "headers"),
            timestamps=self._timestamps(rows),
        )
        self._writer.send(self._cutter.add_records(columns, targets, streams))
        self._chunks += 1
        self._records += rows.num_rows

    # ---- where rows go

    def _targets(self, rows: pa.RecordBatch) -> tuple[Int32s, list[TopicPartition]]:
        """The index of each row's stream, and the streams."""
        if self._options.topic is not None:
            partitions = self._partitions_in(self._options.topic, rows)
            return partitions, _streams(self._options.topic, partitions)
        topics = rows.column("topic").cast(pa.string()).dictionary_encode()
        if topics.null_count:
            raise InvalidRecord("a null in column 'topic'; set the option 'topic', or give every row a topic")
        which = topics.indices.to_numpy(zero_copy_only=False)
        targets = np.empty(rows.num_rows, np.int32)
        streams: list[TopicPartition] = []
        for index, topic in enumerate(topics.dictionary.to_pylist()):
            here = np.flatnonzero(which == index)
            partitions = self._partitions_in(topic, rows.take(pa.array(here)))
            targets[here] = partitions + len(streams)
            streams += _streams(topic, partitions)
        return targets, streams

    def _partitions_in(self, topic: str, rows: pa.RecordBatch) -> Int32s:
        count = self._partitions.get(topic)
        if count is None:
            # With nothing unanswered on the connection: this asks a question of its own.
            self._writer.settle()
            count = self._partitions[topic] = self._client.partitions(topic, create=True)
        keyless = (self._attempt.task + self._attempt.epoch + self._chunks) % count
        targets = partitions_of(_column(rows, "key"), rows.num_rows, count, keyless)
        chosen = _column(rows, "partition")
        if chosen is None or chosen.null_count == len(chosen):
            return targets
        explicit = chosen.is_valid().to_numpy(zero_copy_only=False)
        wanted = chosen.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = explicit & ((wanted < 0) | (wanted >= count))
        if wrong.any():
            raise InvalidRecord(
                f"column 'partition' holds {int(wanted[wrong][0])}; topic {topic!r} has partitions 0 to {count - 1}"
            )
        return np.where(explicit, wanted, targets).astype(np.int32)

    def _timestamps(self, rows: pa.RecordBatch) -> Int64s:
        now_ms = self._host.wall_ms()
        column = _column(rows, "timestamp") if self._options.include_timestamp else None
        if column is None:
            return np.full(rows.num_rows, now_ms, np.int64)
        moments = column.cast(pa.int64())
        given = moments.fill_null(0).to_numpy(zero_copy_only=False) // MICROSECONDS
        valid = moments.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, given, now_ms).astype(np.int64)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    index = rows.schema.get_field_index(name)
    return rows.column(index) if index >= 0 else None


def _streams(topic: str, partitions: Int32s) -> list[TopicPartition]:
    """The partitions of a topic, up to the highest that is needed."""
    return [TopicPartition(topic, partition) for partition in range(int(partitions.max(initial=-1)) + 1)]


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows in slices of about SEGMENT_BYTES."""
    if not batch.num_rows:
        return
    parts = min(batch.num_rows, -(-batch.nbytes // SEGMENT_BYTES))
    rows = -(-batch.num_rows // max(parts, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

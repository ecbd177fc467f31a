"""One task's output: Arrow record batches become staged pieces of record batches, each for its target stream.

Invariants:
* A piece holds at most PIECE_BYTES of column data (or a single record) and never exceeds what the sidecar accepts.
* The next piece is encoded while the previous one is being made durable; `finish` returns only when all are.
* What a record's target is depends on its columns alone, so that a key always meets the same stream.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.client.blocking import Client, Pending
from logstore.errors import InvalidRecord, MessageTooLarge
from logstore.format.private import MAX_STAGE_BYTES, Part, StageReply, StageRequest
from spe_adapter.codec.digests import MODULUS, digest_of
from spe_adapter.codec.encode import Columns, EncodedBatch, encode
from spe_adapter.codec.kernels import Int32s, Int64s
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.datasource.options import SinkOptions
from spe_adapter.host import Host

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Large enough that a sync costs little per byte, small enough for a task's memory and to overlap encoding with
syncing.
"""

_MICROSECONDS_PER_MS: Final = 1000


class Attempt(NamedTuple):
    """Who stages: an attempt at a task of an epoch of a run of a query."""

    query: str
    run: str
    epoch: int
    task: int
    attempt: str


class Staged(NamedTuple):
    """What was staged: into which topics, and the digest of its records if that was asked for."""

    pieces: int
    records: int
    topics: tuple[str, ...] = ()
    digest: int = 0


class Stager:
    """Stages one attempt's output. Raises the client's and the sidecar's errors, and InvalidRecord for rows that
    cannot be sent.
    """

    def __init__(
        self, client: Client, attempt: Attempt, options: SinkOptions, host: Host, *, with_digest: bool = False
    ) -> None:
        self._client = client
        self._with_digest = with_digest
        self._digest = 0
        self._attempt = attempt
        self._options = options
        self._host = host
        self._partitions: dict[str, int] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._pieces = 0
        self._records = 0
        self._pending: Pending[StageReply] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; whole pieces are sent on."""
        for part in _slices(batch):
            if self._waiting and self._waiting_bytes + part.nbytes > PIECE_BYTES:
                self._flush()
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes

    def finish(self) -> Staged:
        """Send the rest and wait until everything is durable."""
        if self._waiting:
            self._flush()
        self._settle()
        return Staged(self._pieces, self._records, tuple(sorted(self._partitions)), self._digest)

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if len(waiting) == 1:
            rows = waiting[0]
        else:
            rows = pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
        if self._with_digest:
            self._digest = (self._digest + digest_of(_column(rows, "key"), rows.column("value"))) % MODULUS
        self._stage(rows)

    def _stage(self, rows: pa.RecordBatch) -> None:
        targets, streams = self._targets(rows)
        columns = Columns(
            keys=_column(rows, "key"),
            values=rows.column("value"),
            headers=_column(rows, "headers"),
            timestamps=self._timestamps(rows),
        )
        data, batches = encode(columns, targets, self._options.batch_bytes, self._options.codec)
        if len(data) > MAX_STAGE_BYTES:
            if rows.num_rows == 1:
                raise InvalidRecord(f"a record of {len(data)} bytes; at most {MAX_STAGE_BYTES} can be staged")
            half = rows.num_rows // 2
            self._stage(rows.slice(0, half))
            self._stage(rows.slice(half))
            return
        query, run, epoch, task, attempt = self._attempt
        self._settle()
        self._pending = self._client.start_stage(
            StageRequest(query, run, epoch, task, attempt, self._pieces, tuple(_parts(batches, streams)), data)
        )
        self._pieces += 1
        self._records += rows.num_rows

    def _settle(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                pending.receive()
            except MessageTooLarge as error:
                raise MessageTooLarge(
                    f"{error}; raise the topic's setting, or lower the option 'kafka.batch.size' (records stay whole)"
                ) from error

    # ---- where rows go

    def _targets(self, rows: pa.RecordBatch) -> tuple[Int32s, list[tuple[str, int]]]:
        """A group for each row, and the stream of each group."""
        if self._options.topic is not None:
            partitions = self._partitions_in(self._options.topic, rows)
            streams = [(self._options.topic, partition) for partition in range(int(partitions.max(initial=-1)) + 1)]
            return partitions, streams
        topics = rows.column("topic").cast(pa.string()).dictionary_encode()
        if topics.null_count:
            raise InvalidRecord("a null in column 'topic'; set the option 'topic', or give every row a topic")
        which = topics.indices.to_numpy(zero_copy_only=False)
        targets = np.empty(rows.num_rows, np.int32)
        streams = []
        for index, topic in enumerate(topics.dictionary.to_pylist()):
            here = np.flatnonzero(which == index)
            partitions = self._partitions_in(topic, rows.take(pa.array(here)))
            targets[here] = partitions + len(streams)
            streams += [(topic, partition) for partition in range(int(partitions.max(initial=-1)) + 1)]
        return targets, streams

    def _partitions_in(self, topic: str, rows: pa.RecordBatch) -> Int32s:
        count = self._partitions.get(topic)
        if count is None:
            # With nothing unanswered on the connection: this asks a question of its own.
            self._settle()
            count = self._partitions[topic] = self._client.partitions(topic, create=True)
        # Rows without a key go to one partition a piece, which differs by task and epoch so that all get their share.
        keyless = (self._attempt.task + self._attempt.epoch + self._pieces) % count
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
        given = moments.fill_null(0).to_numpy(zero_copy_only=False) // _MICROSECONDS_PER_MS
        valid = moments.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, given, now_ms).astype(np.int64)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    index = rows.schema.get_field_index(name)
    return rows.column(index) if index >= 0 else None


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows in slices of about PIECE_BYTES."""
    if not batch.num_rows:
        return
    parts = min(batch.num_rows, -(-batch.nbytes // PIECE_BYTES))
    rows = -(-batch.num_rows // max(parts, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _parts(batches: list[EncodedBatch], streams: list[tuple[str, int]]) -> Iterator[Part]:
    """The table of a piece: batches of one stream stand together."""
    first = 0
    for index in range(1, len(batches) + 1):
        if index < len(batches) and batches[index].target == batches[first].target:
            continue
        group = batches[first:index]
        topic, partition = streams[group[0].target]
        yield Part(
            topic=topic,
            partition=partition,
            length_bytes=group[-1].end - group[0].start,
            batches=len(group),
            records=sum(batch.records for batch in group),
        )
        first = index

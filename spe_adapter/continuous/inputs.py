"""Fetched records that are not processed yet, per source, and their division into runs.

Invariants:
* Records leave in the order of their offsets, each once. `position` is the offset of the next one.
* A run is taken as one batch, however its records arrived, so that a replay can take the same run.
"""

from collections import deque
from typing import NamedTuple

import pyarrow as pa

from logstore.interfaces import Buffer
from spe_adapter.codec.decode import SCHEMA, Decoder, scan

NO_END = 2**63 - 1


class RecordRun(NamedTuple):
    """Consecutive records of one source that are processed in one call. A replay processes the same runs."""

    source: int
    records: int


class SourceBuffer:
    """The records of one source between fetch and processing."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self._decoder = Decoder(topic, partition, with_headers=False)
        self._batches: deque[pa.RecordBatch] = deque()
        self.topic = topic
        self.partition = partition
        self.position = offset
        """The offset after the last record taken."""
        self.fetch_offset = offset
        """The offset after the last record that was fetched."""
        self.records = 0
        """The number of records that wait."""

    def add(self, records: Buffer) -> bool:
        """Add the batches of a fetch from `fetch_offset`; whether `fetch_offset` has moved. Raises CorruptBatch."""
        chunk = scan(records, self.fetch_offset)
        if not chunk.batches:
            return False
        for batch in self._decoder.decode(records, chunk, self.fetch_offset, NO_END):
            self._batches.append(batch)
            self.records += batch.num_rows
        self.fetch_offset = chunk.next_offset
        if not self.records:
            self.position = self.fetch_offset
        return True

    def head_records(self) -> int:
        """The number of records in the first batch; 0 without a batch."""
        return self._batches[0].num_rows if self._batches else 0

    def head_timestamp(self) -> int:
        """The timestamp of the next record, in µs. At least one record must wait."""
        return int(self._batches[0].column("timestamp")[0].value)

    def take(self, count: int) -> pa.RecordBatch:
        """The next `count` records as one batch. Raises IndexError if fewer wait."""
        if count > self.records:
            raise IndexError(f"{count} records of {self.topic}-{self.partition} asked for, {self.records} wait")
        self.records -= count
        parts: list[pa.RecordBatch] = []
        while count:
            first = self._batches.popleft()
            if first.num_rows > count:
                self._batches.appendleft(first.slice(count))
                first = first.slice(0, count)
            parts.append(first)
            count -= first.num_rows
        self.position = int(parts[-1].column("offset")[-1].as_py()) + 1 if parts else self.position
        if not self.records:
            self.position = self.fetch_offset
        return _joined(parts)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=SCHEMA)
    return pa.concat_batches(parts)


def choose(inputs: list[SourceBuffer], max_records: int) -> RecordRun | None:
    """The next run: the first batch of the source with the oldest next record, up to `max_records`; None without
    records.

    So the sources advance together in event time, as far as they have records.
    """
    ready = [(found.head_timestamp(), source) for source, found in enumerate(inputs) if found.records]
    if not ready:
        return None
    _, source = min(ready)
    return RecordRun(source, min(inputs[source].head_records(), max_records))

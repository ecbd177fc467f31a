"""Staged segments: the output of one attempt as bytes, cut so that each segment can be staged by one request.

Invariants:
* A segment holds whole record batches, end to end. Batches that were encoded together stay together, up to
  MAX_SEGMENT_BYTES, and are not copied; a segment ends before batches that would take it above SEGMENT_BYTES.
* A record that is larger than MAX_SEGMENT_BYTES has a segment of its own, of at most MAX_STAGE_BYTES.
* Batches of one stream keep their order, within a segment and from segment to segment.
* In a stream with state, all results of an epoch come before its control batches.
* This module does no I/O: a segment is returned as soon as it is full.

Source: docs/format.md, "Append groups" (plain batches, then control batches); CEC paper, section II.B (footprints
follow the results of their epoch in the output queue).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.client.wire import TopicPartition
from logstore.errors import InvalidRecord
from logstore.format.epoch_api import MAX_STAGE_BYTES, Part
from logstore.interfaces import Buffer
from spe_adapter.codec.compression import NONE
from spe_adapter.codec.encode import DEFAULT_BATCH_BYTES, Columns, encode
from spe_adapter.codec.kernels import Int32s, Int64s

SEGMENT_BYTES: Final = 4 * 1024 * 1024
"""Large enough that a request and its sync cost little per byte; small enough for a task's memory, and to overlap
encoding with syncing; a quarter of what the sidecar accepts.
"""
MAX_SEGMENT_BYTES: Final = 2 * SEGMENT_BYTES
"""Records of SEGMENT_BYTES of columns may take more when they are encoded; a small excess does not cause a cut."""


class StagedSegment(NamedTuple):
    """The content of one stage request: the batches of `parts`, in that order, end to end."""

    parts: tuple[Part, ...]
    data: Buffer


class SegmentCutter:
    """Collects encoded batches of several streams, and returns them as segments."""

    def __init__(self, batch_bytes: int = DEFAULT_BATCH_BYTES, codec: int = NONE) -> None:
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._buffers: list[Buffer] = []
        self._parts: list[Part] = []
        self._size_bytes = 0

    def add_records(
        self, columns: Columns, targets: Int32s, streams: Sequence[TopicPartition]
    ) -> Iterator[StagedSegment]:
        """Encode records, each for the stream whose number `targets` has; returns the full segments.

        Raises InvalidRecord for a record that is too large for any segment.
        """
        data, batches = encode(columns, targets, self._batch_bytes, self._codec)
        parts: list[Part] = []
        start = end = 0
        for batch in batches:
            size_bytes = batch.end - batch.start
            if size_bytes > MAX_STAGE_BYTES:
                raise InvalidRecord(f"a record of {size_bytes} bytes; at most {MAX_STAGE_BYTES} can be staged")
            if parts and batch.end - start > MAX_SEGMENT_BYTES:
                yield from self._add(data[start:end], parts)
                parts, start = [], batch.start
            _append(parts, Part(*streams[batch.target], size_bytes, 1, batch.records))
            end = batch.end
        if parts:
            yield from self._add(data[start:end], parts)

    def add_control(self, stream: TopicPartition, batches: Iterable[Buffer]) -> Iterator[StagedSegment]:
        """Add control batches; returns the full segments."""
        for batch in batches:
            yield from self._add(batch, [Part(*stream, len(batch), 1, 1)])

    def rest(self) -> Iterator[StagedSegment]:
        """The last segment, if any batches are left."""
        if self._buffers:
            yield self._cut()

    def _add(self, data: Buffer, parts: list[Part]) -> Iterator[StagedSegment]:
        if self._buffers and self._size_bytes + len(data) > SEGMENT_BYTES:
            yield self._cut()
        self._buffers.append(data)
        self._size_bytes += len(data)
        for part in parts:
            _append(self._parts, part)

    def _cut(self) -> StagedSegment:
        data = self._buffers[0] if len(self._buffers) == 1 else b"".join(self._buffers)
        segment = StagedSegment(tuple(self._parts), data)
        self._buffers, self._parts, self._size_bytes = [], [], 0
        return segment


def _append(parts: list[Part], part: Part) -> None:
    """Add a part to the list, or to the last part if that has the same stream."""
    last = parts[-1] if parts else None
    if last is None or (last.topic, last.partition) != (part.topic, part.partition):
        parts.append(part)
    else:
        parts[-1] = Part(
            part.topic,
            part.partition,
            last.length_bytes + part.length_bytes,
            last.batches + part.batches,
            last.records + part.records,
        )


class StreamOutput:
    """The output of one attempt for one stream: results while input is read, then the control batches of its state.
    Beside them records for a second stream, `late`.

    At most SEGMENT_BYTES of results, as many bytes of batches, and one batch of the caller wait in memory.
    """

    def __init__(
        self,
        stream: TopicPartition,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        codec: int = NONE,
        late: TopicPartition | None = None,
    ) -> None:
        self._stream = stream
        self._streams = (stream,) if late is None else (stream, late)
        self._cutter = SegmentCutter(batch_bytes, codec)
        self._waiting: list[tuple[Columns, int]] = []
        self._waiting_bytes = 0

    def add_results(self, keys: pa.Array, values: pa.Array, timestamps_ms: Int64s) -> Iterator[StagedSegment]:
        """Add records; returns the full segments. Raises InvalidRecord."""
        return self._add(keys, values, timestamps_ms, 0)

    def add_late(self, keys: pa.Array, values: pa.Array, timestamps_ms: Int64s) -> Iterator[StagedSegment]:
        """Add records to the stream `late`, as `add_results` does."""
        return self._add(keys, values, timestamps_ms, 1)

    def _add(self, keys: pa.Array, values: pa.Array, timestamps_ms: Int64s, target: int) -> Iterator[StagedSegment]:
        self._waiting.append((Columns(keys, values, None, timestamps_ms), target))
        self._waiting_bytes += keys.nbytes + values.nbytes
        if self._waiting_bytes >= SEGMENT_BYTES:
            yield from self._encoded()

    def finish(self, controls: Iterable[Buffer]) -> Iterator[StagedSegment]:
        """Add the control batches after all results; returns the remaining segments. Raises InvalidRecord."""
        yield from self._encoded()
        yield from self._cutter.add_control(self._stream, controls)
        yield from self._cutter.rest()

    def _encoded(self) -> Iterator[StagedSegment]:
        """Encode the waiting results together, so that their batches are as large as possible."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        columns = waiting[0][0]
        if len(waiting) > 1:
            keys = pa.concat_arrays([each.keys for each, _ in waiting])
            values = pa.concat_arrays([each.values for each, _ in waiting])
            columns = Columns(keys, values, None, np.concatenate([each.timestamps for each, _ in waiting]))
        targets = np.concatenate([np.full(len(each.timestamps), target, np.int32) for each, target in waiting])
        yield from self._cutter.add_records(columns, targets, self._streams)

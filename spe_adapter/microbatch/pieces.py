"""What a task stages for its stream: results first, while input is still read, then the control batches of its state.

Invariants:
* All pieces are of one attempt and one stream, in order; no result follows a control batch.
* The next piece is encoded while the previous one is being made durable; `finish` returns only when all are.
* What waits here is bounded by PIECE_BYTES and one batch of the caller's.

Source: docs/format.md, "Append groups" (plain batches, then control batches).
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from logstore.client.blocking import Client, Pending, TopicPartition
from logstore.errors import InvalidRecord, MessageTooLarge
from logstore.format.private import MAX_STAGE_BYTES, Part, StageReply, StageRequest
from logstore.interfaces import Buffer
from spe_adapter.codec.encode import Columns, encode
from spe_adapter.codec.kernels import Int64s
from spe_adapter.datasource.options import SinkOptions
from spe_adapter.epochs.staging import PIECE_BYTES, Attempt


class Pieces:
    """One attempt's pieces. Raises the client's and the sidecar's errors, and InvalidRecord."""

    def __init__(self, client: Client, attempt: Attempt, stream: TopicPartition, options: SinkOptions) -> None:
        self._client = client
        self._attempt = attempt
        self._stream = stream
        self._options = options
        self._waiting: list[Columns] = []
        self._ready: list[Buffer] = []
        self._batches = 0
        self._records = 0
        self._ready_bytes = 0
        self._waiting_bytes = 0
        self._has_control = False
        self._pending: Pending[StageReply] | None = None
        self.pieces = 0

    def add_results(self, keys: pa.Array, values: pa.Array, timestamps_ms: Int64s) -> None:
        """Take records; whole pieces are sent on."""
        if self._has_control:
            raise InvalidRecord("a result behind the state of its epoch")
        self._waiting.append(Columns(keys, values, None, timestamps_ms))
        self._waiting_bytes += keys.nbytes + values.nbytes
        if self._waiting_bytes >= PIECE_BYTES:
            self._encode_waiting()

    def add_control(self, batches: Iterable[Buffer]) -> None:
        """Take control batches."""
        self._encode_waiting()
        self._has_control = True
        for batch in batches:
            self._add(batch, 1, 1)

    def finish(self) -> int:
        """Send the rest and wait until everything is durable; the number of pieces."""
        self._encode_waiting()
        self._send()
        self._settle()
        return self.pieces

    def _encode_waiting(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        if len(waiting) == 1:
            self._encode(waiting[0])
            return
        keys = pa.concat_arrays([columns.keys for columns in waiting])
        values = pa.concat_arrays([columns.values for columns in waiting])
        self._encode(Columns(keys, values, None, np.concatenate([columns.timestamps for columns in waiting])))

    def _encode(self, columns: Columns) -> None:
        rows = len(columns.timestamps)
        data, batches = encode(columns, np.zeros(rows, np.int32), self._options.batch_bytes, self._options.codec)
        if len(data) > MAX_STAGE_BYTES:
            if rows == 1:
                raise InvalidRecord(f"a result of {len(data)} bytes; at most {MAX_STAGE_BYTES} can be staged")
            keys, values, times = columns.keys, columns.values, columns.timestamps
            if keys is None:
                keys = pa.nulls(rows, pa.binary())
            half = rows // 2
            self._encode(Columns(keys[:half], values[:half], None, times[:half]))
            self._encode(Columns(keys[half:], values[half:], None, times[half:]))
            return
        self._add(data, len(batches), rows)

    def _add(self, data: Buffer, batches: int, records: int) -> None:
        if self._ready and self._ready_bytes + len(data) > PIECE_BYTES:
            self._send()
        self._ready.append(data)
        self._ready_bytes += len(data)
        self._batches += batches
        self._records += records

    def _send(self) -> None:
        if not self._ready:
            return
        data: Buffer = self._ready[0] if len(self._ready) == 1 else b"".join(self._ready)
        part = Part(self._stream.topic, self._stream.partition, len(data), self._batches, self._records)
        self._settle()
        query, run, epoch, task, attempt = self._attempt
        self._pending = self._client.start_stage(
            StageRequest(query, run, epoch, task, attempt, self.pieces, (part,), data)
        )
        self.pieces += 1
        self._ready, self._ready_bytes, self._batches, self._records = [], 0, 0, 0

    def _settle(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                pending.receive()
            except MessageTooLarge as error:
                raise MessageTooLarge(
                    f"{error}; raise the topic's max.message.bytes (results and the state of a window stay whole)"
                ) from error

"""The demonstration's own access to streams: append purchases exactly once across crashes, read everything back.

Invariants: one writer per stream; after a lost connection it asks the stream how far it got before it sends again, so
each block is there once. `Follower` reads every record once, in order.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.base.clock import Clock
from logstore.client.blocking import Client
from logstore.client.errors import Unavailable
from logstore.client.wire import LATEST, TopicPartition
from spe_adapter.codec.decode import Decoder, scan
from spe_adapter.codec.encode import Columns, encode
from spe_adapter.demo.purchases import Purchases, to_values

FETCH_BYTES: Final = 8 << 20
BATCH_BYTES: Final = 512 * 1024


class Appender:
    """Appends purchases to one stream."""

    def __init__(self, client: Client, stream: TopicPartition, clock: Clock) -> None:
        self._client = client
        self._stream = stream
        self._clock = clock
        self._next_offset = end_offset(client, stream)

    def append(self, purchases: Purchases) -> None:
        """Append them all, each once. Raises SidecarRefused, or Unavailable if the sidecar stays away."""
        rows = len(purchases.items)
        # A record's timestamp is when it was written, not when the purchase happened: retention goes by it.
        written_ms = np.full(rows, self._clock.wall_ms(), np.int64)
        columns = Columns(None, to_values(purchases), None, written_ms)
        data, batches = encode(columns, np.zeros(rows, np.int32), BATCH_BYTES)
        for batch in batches:
            self._append_batch(data[batch.start : batch.end], batch.records)

    def _append_batch(self, batch: memoryview, records: int) -> None:
        while True:
            try:
                self._client.produce(self._stream, batch)
            except Unavailable:
                # Sent, and no answer: the stream itself knows whether it arrived.
                if end_offset(self._client, self._stream) == self._next_offset:
                    continue
            self._next_offset += records
            return


class Follower:
    """Reads a stream from its start, as far as it goes."""

    def __init__(self, client: Client, stream: TopicPartition) -> None:
        self._client = client
        self._stream = stream
        self._offset = 0
        self._decoder = Decoder(stream.topic, stream.partition, with_headers=False)

    def read_new(self) -> Iterator[pa.RecordBatch]:
        """What has come since the last call."""
        end = end_offset(self._client, self._stream)
        while self._offset < end:
            fetched = self._client.start_fetch(self._stream, self._offset, FETCH_BYTES).receive()
            chunk = scan(fetched.records, self._offset)
            yield from self._decoder.decode(fetched.records, chunk, self._offset, end)
            # What was appended since the look at the end is decoded by the next call.
            self._offset = max(self._offset, min(end, chunk.next_offset))


def end_offset(client: Client, stream: TopicPartition) -> int:
    """The stream's high watermark."""
    return client.offsets({stream: LATEST})[stream].offset

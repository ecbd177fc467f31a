"""The read of one task: the records of a range of one stream, as Arrow record batches.

Invariants:
* The next fetch is in progress while the previous answer is decoded.
* Records come in order, each once, with offsets in the range. The task ends when the range is read, or with an error.
  Lost records are an error unless the query's options accept the loss.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from logstore.client.blocking import Client
from logstore.client.errors import (
    NONE,
    OFFSET_OUT_OF_RANGE,
    READ_TOPIC,
    UNKNOWN_TOPIC_OR_PARTITION,
    SidecarRefused,
    Unavailable,
)
from logstore.client.network import Network
from logstore.client.wire import EARLIEST, LATEST, Fetched
from logstore.errors import CorruptBatch
from spe_adapter.codec.decode import Decoder, scan
from spe_adapter.datasource.options import SourceOptions
from spe_adapter.datasource.ranges import StreamRange
from spe_adapter.epochs.client import connect
from spe_adapter.errors import DataLost

MAX_FETCH_BYTES: Final = 512 * 1024 * 1024


def read_range(piece: StreamRange, options: SourceOptions, network: Network) -> Iterator[pa.RecordBatch]:
    """The records of a range. Raises DataLost, CorruptBatch and the client's errors."""
    limit_s = max(options.poll_s, options.limit_s)
    with connect(options, network, limit_s=limit_s) as client:
        yield from _Reading(piece, options, client, network).records()


class _Reading:
    def __init__(self, piece: StreamRange, options: SourceOptions, client: Client, network: Network) -> None:
        self._piece = piece
        self._options = options
        self._client = client
        self._network = network
        self._fetch_bytes = options.fetch_bytes
        self._decoder = Decoder(piece.stream.topic, piece.stream.partition, with_headers=options.include_headers)

    def records(self) -> Iterator[pa.RecordBatch]:
        stream, position, end = self._piece
        fetch = self._client.start_fetch(stream, position, self._fetch_bytes)
        deadline_s = self._client.deadline_s()
        while True:
            fetched = fetch.receive(deadline_s)
            if fetched.error != NONE:
                position = self._after_refusal(fetched, position)
                next_offset = position
            else:
                try:
                    batches = scan(fetched.records, position)
                except CorruptBatch as error:
                    raise CorruptBatch(f"{stream} at offset {position}, from {self._client.where}: {error}") from error
                next_offset = batches.next_offset
                self._note_progress(fetched, progress=bool(batches.batches), deadline_s=deadline_s)
            if next_offset < end:
                fetch = self._client.start_fetch(stream, next_offset, self._fetch_bytes)
            if next_offset > position:
                yield from self._decoder.decode(fetched.records, batches, position, end)
                position, deadline_s = next_offset, self._client.deadline_s()
            if position >= end:
                return

    def _note_progress(self, fetched: Fetched, *, progress: bool, deadline_s: float) -> None:
        """Fetch more, or give up at the deadline, after a fetch without a whole batch."""
        if progress:
            return
        if len(fetched.records) and self._fetch_bytes < MAX_FETCH_BYTES:
            self._fetch_bytes *= 2  # a batch larger than the fetch, from a server that cuts it
        elif self._network.monotonic_s() > deadline_s:
            raise Unavailable(
                f"{self._client.where} has no records of {self._piece.stream} below offset {self._piece.end}, though "
                f"it said so before; waited {self._options.poll_s:g} s (option 'kafkaConsumer.pollTimeoutMs')"
            )

    def _after_refusal(self, fetched: Fetched, position: int) -> int:
        """The offset at which to continue after a loss of records; the end of the range if all its records are lost."""
        stream, _, end = self._piece
        if fetched.error == UNKNOWN_TOPIC_OR_PARTITION:
            self._lost(f"{stream} does not exist any more; its records from {position} to {end - 1} are gone")
            return end
        if fetched.error != OFFSET_OUT_OF_RANGE:
            raise SidecarRefused(f"fetch of {stream} at {self._client.where}", code=fetched.error, right=READ_TOPIC)
        first = self._client.offsets({stream: EARLIEST})[stream]
        last = self._client.offsets({stream: LATEST})[stream]
        if first.error or last.error:
            self._lost(f"{stream} does not exist any more; its records from {position} to {end - 1} are gone")
            return end
        if first.offset <= position <= last.offset:
            return position
        if position > last.offset:
            self._lost(f"{stream} ends at offset {last.offset}; records from {position} to {end - 1} are gone")
            return end
        resume = min(first.offset, end)
        self._lost(f"{stream} starts at offset {first.offset}; records from {position} to {resume - 1} are gone")
        return resume

    def _lost(self, what: str) -> None:
        refuse_loss(self._options, what, self._client.where)


def refuse_loss(options: SourceOptions, what: str, where: str) -> None:
    """Raise DataLost for lost records, unless the query's options accept the loss."""
    if options.fail_on_data_loss:
        raise DataLost(f"{what} (at {where}); set 'failOnDataLoss' to 'false' to continue without them")

"""A host's engine as the Kafka front sees it in a cluster: topics of the cluster, reads that follow their chunks.

It stands in the place of `logstore.engine.StoreEngine`, whose store holds this host's copies of chunks.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from logstore.cluster.links.bursts import Bursts
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.leader_epochs import LeaderEpochs
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import ClusterTopics
from logstore.engine import SCAN_CHUNKS, StoreEngine
from logstore.errors import CorruptChunk, OffsetOutOfRange
from logstore.log.read_patience import ReadPatience
from logstore.log.reading import ReadResult, TimeFound
from logstore.log.scanning import ScanRange, ScanResult, TakeEnd, find_ends
from logstore.log.served import ForeignStream, LeaderEpochEnd, ServedStream
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import TicketView

T = TypeVar("T")


class ClusterEngine:
    """See the module."""

    def __init__(
        self, local: StoreEngine, topics: ClusterTopics, reads: ChunkReads, bursts: Bursts | None = None
    ) -> None:
        self.store = topics
        self._bursts = bursts or Bursts()
        self._local = local
        self._reads = reads
        self._epochs = LeaderEpochs(reads)

    def append(self, stream: ServedStream, records: bytearray | memoryview, *, now_ms: int) -> AppendTicket:
        """Append a batch; what follows from it gathers until `kick`."""
        self._bursts.is_flush_coming = True
        try:
            return stream.append(records, now_ms=now_ms)
        finally:
            self._bursts.is_flush_coming = False

    def kick(self) -> None:
        """Have what was appended sent to other hosts, and the queued disk jobs started soon."""
        self._bursts.flush()
        self._local.kick()

    def begin(self) -> None:
        """As `kick`: what other hosts send in the same turn of the event loop may share the write."""
        self.kick()

    async def wait(self, ticket: TicketView[T]) -> T:
        """Wait for a ticket; returns its result or raises its error."""
        return await self._local.wait(ticket)

    def after_settling(self, callback: Callable[[], None]) -> bool:
        """Call `callback` once what happens together has settled: jobs of the disk (`StoreEngine`), or confirmations of
        other hosts that have arrived together.
        """
        if self._bursts.is_open:
            self._bursts.gather(callback)
            return True
        return self._local.after_settling(callback)

    def _own(self, stream: ServedStream) -> ReplicatedStream:
        """The stream as one of the cluster's. Raises ForeignStream."""
        if not isinstance(stream, ReplicatedStream):
            raise ForeignStream(stream, self)
        return stream

    @property
    def has_read_ahead(self) -> bool:
        """False: where a replicated stream's chunks lie is looked at before each read."""
        return False

    def read_ahead_of(self, stream: ServedStream, offset: int, max_bytes: int) -> ReadResult | None:
        """None: see `has_read_ahead`."""
        return None

    async def read(
        self,
        stream: ServedStream,
        offset: int,
        max_bytes: int,
        *,
        include_control: bool = False,
        patience: ReadPatience | None = None,
    ) -> ReadResult:
        """Read whole batches; see `ChunkReads.read`."""
        return await self._reads.read(
            self._own(stream), offset, max_bytes, include_control=include_control, patience=patience
        )

    def elsewhere(self, stream: ServedStream, offset: int) -> bool:
        """Whether a read waits for the answer of another host; see `ChunkReads.is_elsewhere`."""
        return self._reads.is_elsewhere(self._own(stream), offset)

    async def end_of_epoch(self, stream: ServedStream, epoch: int, patience: ReadPatience) -> LeaderEpochEnd | None:
        """Where a leader epoch ends; see `LeaderEpochs.end_of`."""
        return await self._epochs.end_of(self._own(stream), epoch, patience)

    async def leader_epoch_at(self, stream: ServedStream, offset: int, patience: ReadPatience) -> int:
        """Who wrote a record; see `LeaderEpochs.at`."""
        return await self._epochs.at(self._own(stream), offset, patience)

    async def find_timestamp(self, stream: ServedStream, timestamp_ms: int) -> TimeFound | None:
        """The first record with this timestamp or a later one; see `ChunkReads`."""
        return await self._reads.find_timestamp(self._own(stream), timestamp_ms)

    async def max_timestamp(self, stream: ServedStream) -> TimeFound | None:
        """The record with the latest timestamp; see `ChunkReads`."""
        return await self._reads.max_timestamp(self._own(stream))

    async def scan_controls(
        self,
        stream: ServedStream,
        before_offset: int,
        types: Collection[int],
        max_bytes: int,
        *,
        from_offset: int = 0,
    ) -> ScanResult:
        """Control batches before an offset (-1: the high watermark), newest first; see `StoreEngine.scan_controls`.

        Raises NotLeader as well, and EndNotKnown: a query that misses its last epochs would take earlier ones for them.
        """
        replicated = self._own(stream)
        replicated.check_reads()
        before = stream.high_watermark if before_offset == -1 else before_offset
        if before_offset == -1 or before > stream.high_watermark:
            stream.check_end()
        if before > stream.high_watermark:
            raise OffsetOutOfRange(stream.name, before, stream.log_start_offset, stream.high_watermark)
        found, lowest = ScanResult([], before, 0), max(from_offset, stream.log_start_offset)
        for _ in range(SCAN_CHUNKS):
            if found.next_before <= lowest or (found.buffers and found.size_bytes >= max_bytes):
                break
            wanted = ScanRange(lowest, found.next_before, types)
            try:
                piece = await self._reads.scan(replicated, wanted, max_bytes - found.size_bytes)
            except CorruptChunk:
                if not found.buffers:
                    raise
                break  # what is newer is an answer; the next request gets the error
            size_bytes = found.size_bytes + piece.size_bytes
            if found.buffers and size_bytes > max_bytes:
                break
            found = ScanResult(found.buffers + piece.buffers, piece.next_before, size_bytes)
        return found

    async def find_ends(
        self, stream: ReplicatedStream, from_offset: int, before_offset: int = -1, *, take: TakeEnd
    ) -> None:
        """Give `take` the END control batches from one offset on and before another (-1: the high watermark), newest
        first.

        Raises NotLeader, CorruptChunk, ChunkUnreachable, OSError, and what `take` raises.
        """
        await find_ends(partial(self.scan_controls, stream), stream, from_offset, before_offset, take=take)

    def is_late(self, stream: ReplicatedStream, before_offset: int) -> bool:
        """See `ChunkReads.is_late`."""
        return self._reads.is_late(stream, before_offset)

"""A host's engine as the Kafka front sees it in a cluster: topics of the cluster, reads that follow their chunks.

It stands in the place of `logstore.engine.StoreEngine`, whose store holds this host's copies of chunks.
"""

from collections.abc import Callable
from typing import TypeVar

from logstore.cluster.chunk_reads import ChunkReads
from logstore.cluster.replicated_stream import ReplicatedStream
from logstore.cluster.topics import ClusterTopics
from logstore.engine import StoreEngine
from logstore.log.reading import ReadResult, TimeFound
from logstore.log.served import ForeignStream, ServedStream
from logstore.log.ticket import TicketView

T = TypeVar("T")


class ClusterEngine:
    """See the module."""

    def __init__(self, local: StoreEngine, topics: ClusterTopics, reads: ChunkReads) -> None:
        self.store = topics
        self._local = local
        self._reads = reads

    def kick(self) -> None:
        """Have the queued disk jobs started soon."""
        self._local.kick()

    async def wait(self, ticket: TicketView[T]) -> T:
        """Wait for a ticket; returns its result or raises its error."""
        return await self._local.wait(ticket)

    def after_settling(self, callback: Callable[[], None]) -> bool:
        """Call `callback` once the jobs that finished together have settled; see `StoreEngine`."""
        return self._local.after_settling(callback)

    def _own(self, stream: ServedStream) -> ReplicatedStream:
        """The stream as one of the cluster's. Raises ForeignStream."""
        if not isinstance(stream, ReplicatedStream):
            raise ForeignStream(stream, self)
        return stream

    async def read(
        self,
        stream: ServedStream,
        offset: int,
        max_bytes: int,
        *,
        include_control: bool = False,
        is_patient: bool = True,
    ) -> ReadResult:
        """Read whole batches; see `ChunkReads.read`. There are no control batches in a cluster's topics."""
        return await self._reads.read(self._own(stream), offset, max_bytes)

    async def find_timestamp(self, stream: ServedStream, timestamp_ms: int) -> TimeFound | None:
        """The first record with this timestamp or a later one; see `ChunkReads`."""
        return await self._reads.find_timestamp(self._own(stream), timestamp_ms)

    async def max_timestamp(self, stream: ServedStream) -> TimeFound | None:
        """The record with the latest timestamp; see `ChunkReads`."""
        return await self._reads.max_timestamp(self._own(stream))

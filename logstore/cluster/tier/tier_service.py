"""The tier of a host of a cluster: rounds by the clock, blocking work on threads, reads for the engine.

Invariants: as `logstore.tier.service` has them. What a thread reads of a chunk, it reads through the event loop, as any
reader of the cluster does: it waits for the loop, and the loop never waits for it.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.cluster.streams.retention_clock import ClusterClock
from logstore.cluster.tier.tiering import AsyncRead, ClusterTiering, ClusterTierParts, TierHost, TierTopics
from logstore.engine import StoreEngine
from logstore.format.tiered_chunk import TieredChunk
from logstore.tier.figures import TierFigures
from logstore.tier.range_cache import RangeCache
from logstore.tier.sealed_upload import Piece, Read, SealedChunk
from logstore.tier.service import TierStores

T = TypeVar("T")


class OwnThreads:
    """See `logstore.cluster.tier.tiering.TierThreads`."""

    def __init__(self, most: int) -> None:
        self._threads = trio.CapacityLimiter(most)

    async def run(self, work: Callable[[], T]) -> T:
        """See TierThreads."""
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)

    async def upload(self, work: Callable[[Read], TieredChunk], chunk: SealedChunk, read: AsyncRead) -> TieredChunk:
        """See TierThreads."""
        token = trio.lowlevel.current_trio_token()

        def read_here(offset: int) -> Piece:
            return trio.from_thread.run(read, offset, trio_token=token)

        return await self.run(partial(work, read_here))


class ClusterTierService:
    """The tier of one host. `run` does everything."""

    def __init__(
        self, topics: TierTopics, host: TierHost, engine: StoreEngine, age: ClusterClock, stores: TierStores
    ) -> None:
        """`age`: the cluster's retention clock."""
        self.cache = RangeCache(stores.objects, stores.cache_bytes)
        self._stores = stores
        clock: Clock = engine.store.clock
        report: Report = engine.store.report
        threads = OwnThreads(stores.uploads + 1)
        parts = ClusterTierParts(stores.objects, stores.turns, threads, stores.uploads, clock, age.now_ms, report)
        self.tiering = ClusterTiering(topics, host, parts)
        engine.tier.cache = self.cache

    @property
    def figures(self) -> TierFigures:
        """What has happened since the start."""
        return self.tiering.figures

    async def run(self) -> None:
        """Run rounds until cancelled."""
        try:
            while True:
                has_more = await self.tiering.round()
                await trio.sleep(0 if has_more else self._stores.interval_s)
        finally:
            self._stores.turns.close()
            self._stores.objects.close()

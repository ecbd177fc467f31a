"""The tier beside a sidecar: rounds by the clock, their blocking work on threads, and reads for the engine.

Invariants:
* Blocking calls run on threads of their own (as many uploads as the settings say, and one thread for the rest); the
  event loop only settles what they have done.
* At the end of a sidecar uploads are given up: what they leave in the store is swept later.
"""

import uuid
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from logstore.errors import CairnError, StorageFailed
from logstore.interfaces import ReadableFiles
from logstore.log.store import Store
from logstore.log.ticket import Ticket
from logstore.tier.figures import TierFigures
from logstore.tier.interface import ObjectStore, UploadTurns
from logstore.tier.range_cache import DEFAULT_CACHE_BYTES, RangeCache
from logstore.tier.reads import TierReads
from logstore.tier.settings import DEFAULT_UPLOADS
from logstore.tier.tiering import Tiering, TierParts

T = TypeVar("T")
ROUND_INTERVAL_S: Final = 2.0
"""How soon a chunk is stored after it was sealed, and a local copy goes after its time."""


class TierEngine(Protocol):
    """What the tier needs of the engine (`logstore.engine.StoreEngine`)."""

    store: Store
    tier: TierReads

    async def wait(self, ticket: Ticket[T], /) -> T:
        """Wait for a ticket; returns its result or raises its error."""

    def kick(self) -> None:
        """Have the queued disk jobs started soon."""


class TierStores(NamedTuple):
    """The object store and who gives leave to store."""

    objects: ObjectStore
    turns: UploadTurns
    uploads: int = DEFAULT_UPLOADS
    cache_bytes: int = DEFAULT_CACHE_BYTES
    interval_s: float = ROUND_INTERVAL_S


class TieredFigures(Protocol):
    """What is in the tier, as of now."""

    @property
    def held_chunks(self) -> int:
        """Chunks in the tier."""

    @property
    def held_bytes(self) -> int:
        """Bytes of their batches."""

    @property
    def waiting_chunks(self) -> int:
        """Sealed chunks that are to be stored."""

    @property
    def left_out_streams(self) -> int:
        """Streams of which a chunk cannot be stored."""


class TierMeter(Protocol):
    """What metrics show of a tier: of a sidecar alone, or of a host of a cluster."""

    @property
    def cache(self) -> RangeCache:
        """What was read there, in memory."""

    @property
    def tiering(self) -> TieredFigures:
        """What is there."""

    @property
    def figures(self) -> TierFigures:
        """What has happened since the start."""


class TierService:
    """The tier of one sidecar. `run` does everything."""

    def __init__(
        self,
        engine: TierEngine,
        files: ReadableFiles,
        stores: TierStores,
        new_id: Callable[[], uuid.UUID],
        nursery: trio.Nursery,
    ) -> None:
        self.cache = RangeCache(stores.objects, stores.cache_bytes)
        self._engine = engine
        self._stores = stores
        self._nursery = nursery
        self._is_stopped = False
        self._threads = trio.CapacityLimiter(stores.uploads + 1)
        parts = TierParts(files, stores.objects, stores.turns, self._work, new_id)
        self.tiering = Tiering(engine.store, parts, stores.uploads)
        engine.tier.cache = self.cache

    @property
    def figures(self) -> TierFigures:
        """What has happened since the start."""
        return self.tiering.figures

    async def run(self) -> None:
        """Run rounds until cancelled."""
        try:
            while True:
                has_more = await self._engine.wait(self.tiering.round())
                await trio.sleep(0 if has_more else self._stores.interval_s)
        finally:
            self._is_stopped = True
            self._stores.turns.close()
            self._stores.objects.close()

    def _work(self, work: Callable[[], T]) -> Ticket[T]:
        ticket: Ticket[T] = Ticket()
        if not self._is_stopped:  # else the store still writes what waits, and nothing here begins again
            self._nursery.start_soon(self._run, work, ticket)
        return ticket

    async def _run(self, work: Callable[[], T], ticket: Ticket[T]) -> None:
        try:
            result = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except CairnError as error:
            ticket.fail(error)
        except OSError as error:
            failure = StorageFailed(f"{error.filename or 'a file of the log'}: {error.strerror or error}")
            failure.__cause__ = error
            ticket.fail(failure)
        else:
            ticket.succeed(result)
        self._engine.kick()

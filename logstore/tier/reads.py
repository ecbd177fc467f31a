"""Reads of chunks that are in the tier alone, for tasks: whatever the object store does, only their readers wait.

Invariants:
* A read blocks a thread of its own kind (READERS at a time), never the event loop and never a thread of other reads.
* A reader that cannot wait, such as a Fetch of many partitions, gets what is in memory, or None; then the bytes are
  fetched, and the stream's waiters are woken when they are there. An error of such a fetch is raised by the next read
  of that place.
* Bounded: WAITING fetches for readers that do not wait; beyond, they are not begun, and asked for again.
* An object that is missing is damage of its chunk: the error names the offsets, and what can be done. What was found
  damaged is fetched anew by the next read.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from logstore.errors import CairnError, CorruptChunk, ObjectMissing, TierUnavailable
from logstore.format.tiered_chunk import PRODUCERS_SUFFIX, TieredChunk
from logstore.interfaces import ReadableFiles
from logstore.log import reading, scanning
from logstore.log.chunks import ChunkView, IndexCache
from logstore.log.reading import QUICK_READ_BATCHES, QUICK_READ_BYTES, NotQuick, ReadResult, TimeFound
from logstore.log.scanning import ScanRange, ScanResult
from logstore.log.stream import Stream
from logstore.log.tiered import tiered_view
from logstore.tier.range_cache import CachedTierFiles, RangeCache, TierFiles

T = TypeVar("T")
READERS: Final = 8
WAITING: Final = 64


class TieredReader(Protocol):
    """A stream that is read here: of this host alone, or of a cluster."""

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless the offset may be read."""

    def wake_waiters(self) -> None:
        """What was on its way may have come."""


class TierReads:
    """Reads of one store's tier. `cache` is None while the sidecar has no tier."""

    def __init__(self, indexes: IndexCache, nursery: trio.Nursery) -> None:
        self.cache: RangeCache | None = None
        self._indexes = indexes
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(READERS)
        self._fetching: set[tuple[TieredReader, int]] = set()
        self._failed: dict[tuple[TieredReader, int], Exception] = {}
        self._large: tuple[tuple[TieredReader, int], ReadResult] | None = None
        """What was fetched last of what the cache does not keep: a batch that is too large for it."""

    async def run(self, chunk: TieredChunk, work: Callable[[ReadableFiles, ChunkView], T]) -> T:
        """Run blocking reads of one chunk. Raises TierUnavailable, TierRefused, CorruptChunk, what `work` raises."""
        cache = self._cache(chunk)
        try:
            return await self._blocking(partial(work, TierFiles(cache, chunk), tiered_view(chunk)))
        except CorruptChunk:
            _forget(cache, chunk)
            raise
        except ObjectMissing as error:
            raise CorruptChunk(
                f"offsets {chunk.base_offset} to {chunk.next_offset - 1} are in the tier, and an object of theirs is "
                f"missing there ({error}); bring it back from a snapshot of the store, or give the records up "
                f"(`cairn trim --before {chunk.next_offset}`)",
                first_offset=chunk.base_offset,
                last_offset=chunk.next_offset - 1,
            ) from error

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)

    async def read(self, chunk: TieredChunk, offset: int, max_bytes: int, *, include_control: bool) -> ReadResult:
        """Batches of a chunk, as `reading.read_chunk` gives them."""

        def read(files: ReadableFiles, view: ChunkView) -> ReadResult:
            return self._read(files, view, offset, max_bytes, include_control=include_control)

        return await self.run(chunk, read)

    def _read(
        self,
        files: ReadableFiles,
        view: ChunkView,
        offset: int,
        max_bytes: int,
        *,
        include_control: bool,
        max_batches: int = reading.MANY_BATCHES,
    ) -> ReadResult:
        return reading.read_chunk(
            files,
            self._indexes,
            view,
            offset,
            max_bytes,
            include_control=include_control,
            max_batches=max_batches,
        )

    async def serve(
        self,
        stream: TieredReader,
        chunk: TieredChunk,
        offset: int,
        max_bytes: int,
        *,
        include_control: bool,
        is_patient: bool,
    ) -> ReadResult:
        """Batches of a stream that are in the tier; none, unless `is_patient`, while they are on their way. Raises
        OffsetOutOfRange if the records were trimmed meanwhile.
        """
        try:
            if is_patient:
                return await self.read(chunk, offset, max_bytes, include_control=include_control)
            await trio.lowlevel.checkpoint()
            found = self.read_now(stream, chunk, offset, max_bytes, include_control=include_control)
        except CorruptChunk:
            stream.check_offset(offset)
            raise
        return ReadResult([], offset, 0) if found is None else found

    async def founding(self, chunk: TieredChunk) -> bytes:
        """The snapshots of producers that were stored with a chunk; nothing if it has none. Raises as `run` does."""

        def read(files: ReadableFiles, _: ChunkView) -> bytes:
            path = chunk.key(PRODUCERS_SUFFIX)
            return bytes(files.read(path, 0, files.size(path)))

        return b"" if chunk.producers is None else await self.run(chunk, read)

    def read_now(
        self, stream: TieredReader, chunk: TieredChunk, offset: int, max_bytes: int, *, include_control: bool
    ) -> ReadResult | None:
        """The same, of what is in memory; None: it will be, and the stream's waiters are woken then. Raises the error
        of the fetch that was begun for this place.
        """
        failed = self._failed.pop((stream, offset), None)
        if failed is not None:
            raise failed
        if self._large is not None and self._large[0] == (stream, offset):
            found, self._large = self._large[1], None
            return found
        cache = self._cache(chunk)
        files = CachedTierFiles(cache, chunk)
        limit = min(max_bytes, QUICK_READ_BYTES)
        try:
            return self._read(
                files,
                tiered_view(chunk),
                offset,
                limit,
                include_control=include_control,
                max_batches=QUICK_READ_BATCHES,
            )
        except CorruptChunk:
            _forget(cache, chunk)
            raise
        except NotQuick:
            place = (stream, offset)
            if place not in self._fetching and len(self._fetching) < WAITING:
                self._fetching.add(place)
                self._nursery.start_soon(self._fetch, place, chunk, limit, include_control)
            return None

    async def _fetch(
        self, place: tuple[TieredReader, int], chunk: TieredChunk, max_bytes: int, include_control: bool
    ) -> None:
        stream, offset = place
        try:
            found = await self.read(chunk, offset, max_bytes, include_control=include_control)
            if self.cache is not None and not self.cache.keeps(found.size_bytes):
                self._large = place, found
        except (CairnError, OSError) as error:
            while len(self._failed) >= WAITING:
                del self._failed[next(iter(self._failed))]
            self._failed[place] = error
        finally:
            self._fetching.discard(place)
        stream.wake_waiters()

    def _cache(self, chunk: TieredChunk) -> RangeCache:
        if self.cache is None:
            raise TierUnavailable(
                f"offsets {chunk.base_offset} to {chunk.next_offset - 1} are in the tier ({chunk.place}), and this "
                "sidecar has none: start it with --tier-url"
            )
        return self.cache

    async def find_timestamp(self, stream: Stream, timestamp_ms: int) -> TimeFound | None:
        """What `reading.find_timestamp` finds in the chunks that have no local copy, from the oldest on."""
        for chunk in self._alone(stream):
            found = await self.find_timestamp_in(chunk, timestamp_ms, stream.log_start_offset)
            if found is not None:
                return found
        return None

    async def find_timestamp_in(self, chunk: TieredChunk, timestamp_ms: int, log_start: int) -> TimeFound | None:
        """What `reading.find_timestamp` finds in one chunk, from the log start on."""
        if chunk.max_timestamp < timestamp_ms:
            return None

        def find(files: ReadableFiles, view: ChunkView) -> TimeFound | None:
            from_offset = max(log_start, chunk.base_offset)
            return reading.find_timestamp(files, self._indexes, view, timestamp_ms, from_offset)

        return await self.run(chunk, find)

    async def max_timestamp(self, stream: Stream) -> TimeFound | None:
        """The record with the latest timestamp in the chunks that have no local copy, if no local chunk has a later
        one; the first if several have it.
        """
        newest: TimeFound | None = None
        local_ms = max([chunk.max_timestamp for chunk in stream.chunks], default=-1)
        for chunk in sorted(self._alone(stream), key=lambda chunk: chunk.max_timestamp, reverse=True):
            if chunk.max_timestamp < max(0, local_ms, newest.timestamp if newest else 0):
                break
            found = await self.newest_in(chunk, stream.log_start_offset)
            if found is not None and (newest is None or found.rank > newest.rank):
                newest = found
        return newest

    async def newest_in(self, chunk: TieredChunk, log_start: int) -> TimeFound | None:
        """What `reading.find_newest` finds in one chunk, from the log start on."""

        def find(files: ReadableFiles, view: ChunkView) -> TimeFound | None:
            return reading.find_newest(files, self._indexes, view, max(log_start, chunk.base_offset))

        return await self.run(chunk, find)

    async def scan(self, chunk: TieredChunk, wanted: ScanRange, max_bytes: int, *, at_least_one: bool) -> ScanResult:
        """Control batches of a chunk, as `scanning.scan_chunk` gives them."""

        def scan(files: ReadableFiles, view: ChunkView) -> ScanResult:
            return scanning.scan_chunk(files, self._indexes, view, wanted, max_bytes, at_least_one=at_least_one)

        return await self.run(chunk, scan)

    def _alone(self, stream: Stream) -> list[TieredChunk]:
        """The chunks with records that have no local copy."""
        end = stream.chunks[0].base_offset if stream.chunks else stream.high_watermark
        return [chunk for chunk in stream.tiered.before(end) if chunk.next_offset > stream.log_start_offset]


def _forget(cache: RangeCache, chunk: TieredChunk) -> None:
    for key in chunk.all_keys():
        cache.forget(key)

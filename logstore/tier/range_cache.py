"""Reads of chunks in the tier: large ranges of objects, kept in bounded memory.

A reader thread that needs bytes of an object fetches the whole block that they lie in; readers of the same block wait
for one fetch. What the log's own code reads of a chunk on the disk, it reads of a chunk in the tier: `TierFiles` gives
it the same methods.

Invariants:
* Memory: `max_bytes` of blocks, but for the block that was fetched last; a larger batch is read past the cache.
* A fetch ends when the object store does: with the bytes, or with its error, which all who wait for it get.
* Whoever reads checks what was read: batches by their checksums, all else by that in the ledger or the registration.
"""

import threading
from collections import OrderedDict
from typing import Final

from crc32c import crc32c

from logstore.errors import CorruptChunk
from logstore.format.tiered_chunk import INDEX_SUFFIX, LOG_SUFFIX, StoredObject, TieredChunk
from logstore.log.reading import NotQuick
from logstore.tier.interface import ObjectStore

BLOCK_BYTES: Final = 4 << 20
"""A fetch of HDFS costs some milliseconds beside its bytes: they are few for as much as this."""
DEFAULT_CACHE_BYTES: Final = 32 << 20


class _Fetch:
    """A fetch under way."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.data = b""
        self.error: Exception | None = None


class RangeCache:
    """Blocks of objects. Methods may be called from any thread."""

    def __init__(self, objects: ObjectStore, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._objects = objects
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._fetches: dict[tuple[str, int], _Fetch] = {}
        self.used_bytes = 0
        self.fetched_bytes = 0
        """Of all fetches since the start."""

    def read(self, key: str, size_bytes: int, position: int, length: int) -> bytes:
        """Bytes of an object of `size_bytes`. Blocks. Raises TierUnavailable, TierRefused, ObjectMissing."""
        end = min(position + length, size_bytes)
        if not self.keeps(end - position):
            return self._get(key, position, end - position)
        parts: list[bytes] = []
        for number in range(position // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            block = self._block(key, size_bytes, number)
            start = number * BLOCK_BYTES
            parts.append(block[max(0, position - start) : end - start])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def keeps(self, length: int) -> bool:
        """Whether so many bytes that were read are in memory afterwards, until others take their place."""
        return length <= self._max_bytes // 2

    def cached(self, key: str, size_bytes: int, position: int, length: int) -> bytes | None:
        """What `read` gives, if all of it is in memory."""
        end = min(position + length, size_bytes)
        parts: list[bytes] = []
        with self._lock:
            for number in range(position // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
                block = self._blocks.get((key, number))
                if block is None:
                    return None
                self._blocks.move_to_end((key, number))
                start = number * BLOCK_BYTES
                parts.append(block[max(0, position - start) : end - start])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def forget(self, key: str) -> None:
        """What was fetched of an object is damaged: the next read fetches it anew."""
        with self._lock:
            for place in [place for place in self._blocks if place[0] == key]:
                self.used_bytes -= len(self._blocks.pop(place))

    def _get(self, key: str, position: int, length: int) -> bytes:
        data = self._objects.get(key, position, length)
        with self._lock:
            self.fetched_bytes += len(data)
        return data

    def _block(self, key: str, size_bytes: int, number: int) -> bytes:
        place = (key, number)
        with self._lock:
            block = self._blocks.get(place)
            if block is not None:
                self._blocks.move_to_end(place)
                return block
            fetch = self._fetches.get(place)
            is_first = fetch is None
            if fetch is None:
                fetch = self._fetches[place] = _Fetch()
        if is_first:
            self._fill(fetch, place, size_bytes)
        else:
            fetch.is_over.wait()
        if fetch.error is not None:
            raise fetch.error
        return fetch.data

    def _fill(self, fetch: _Fetch, place: tuple[str, int], size_bytes: int) -> None:
        key, number = place
        start = number * BLOCK_BYTES
        try:
            fetch.data = self._get(key, start, min(BLOCK_BYTES, size_bytes - start))
        except Exception as error:  # noqa: BLE001  raised in every thread that waits
            fetch.error = error
        with self._lock:
            del self._fetches[place]
            if fetch.error is None:
                self._blocks[place] = fetch.data
                self.used_bytes += len(fetch.data)
                while self.used_bytes > self._max_bytes and len(self._blocks) > 1:
                    self.used_bytes -= len(self._blocks.popitem(last=False)[1])
        fetch.is_over.set()


class TierFiles:
    """`ReadableFiles` for one chunk in the tier: its paths are keys. Blocks, on a reader thread."""

    def __init__(self, cache: RangeCache, chunk: TieredChunk) -> None:
        self._cache = cache
        self._chunk = chunk

    def exists(self, path: str) -> bool:
        """See ReadableFiles."""
        return path in (self._chunk.key(LOG_SUFFIX), self._chunk.key(INDEX_SUFFIX))

    def size(self, path: str) -> int:
        """See ReadableFiles."""
        return self._object(path).size_bytes

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """See ReadableFiles. Raises TierUnavailable, TierRefused, ObjectMissing, CorruptChunk (what is read as a whole,
        which is all but the batches, is damaged).
        """
        found = self._object(path)
        data = self._cache.read(path, found.size_bytes, position, length)
        if not path.endswith(LOG_SUFFIX) and crc32c(data) != found.crc:
            raise CorruptChunk(
                f"{path}: the object in the tier is damaged; restore it, or move past the chunk",
                first_offset=self._chunk.base_offset,
                last_offset=self._chunk.next_offset - 1,
            )
        return data

    def _object(self, path: str) -> StoredObject:
        return next(found for suffix, found in self._chunk.objects().items() if path.endswith(suffix))


class CachedTierFiles(TierFiles):
    """The same, of what is in memory; any other read raises NotQuick. For the event loop."""

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """See ReadableFiles."""
        data = self._cache.cached(path, self.size(path), position, length)
        if data is None or path.endswith(INDEX_SUFFIX):
            raise NotQuick(path)
        return data

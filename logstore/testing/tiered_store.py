"""The tier of a simulated store: the real steps and their order, on an object store of the same simulated disk.

Invariants: blocking work runs at once, on the caller's thread, so every call of it is a point where the crash
enumerator stops; a check reads all that the ledger names.
"""

import uuid
from collections.abc import Callable
from typing import TypeVar

from logstore.errors import CairnError, StorageFailed
from logstore.format.batch import iterate_batches
from logstore.format.tiered_chunk import LOG_SUFFIX, TieredChunk
from logstore.interfaces import FileSystem, ReadableFiles
from logstore.log.chunks import ChunkView
from logstore.log.store import Store
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.log.tiered import tiered_view
from logstore.testing.history import PromiseBroken
from logstore.tier.interface import NoTurns, ObjectStore
from logstore.tier.range_cache import RangeCache, TierFiles
from logstore.tier.tiering import Tiering, TierParts
from logstore.tier.upload import read_back

T = TypeVar("T")
MAX_BYTES = 1 << 20
MAX_ROUNDS = 100


def run_now(work: Callable[[], T]) -> Ticket[T]:
    """Run blocking work on this thread."""
    try:
        return Ticket.succeeded(work())
    except CairnError as error:
        return Ticket.failed(error)
    except OSError as error:
        failure = StorageFailed(str(error))
        failure.__cause__ = error
        return Ticket.failed(failure)


class TieredStore:
    """The tier of one life of a simulated store."""

    def __init__(self, store: Store, fs: FileSystem, objects: ObjectStore, new_id: Callable[[], uuid.UUID]) -> None:
        self.objects = objects
        self.tiering = Tiering(store, TierParts(fs, objects, NoTurns(), run_now, new_id), 1)
        self._store = store

    def view(self, chunk: TieredChunk) -> tuple[ReadableFiles, ChunkView]:
        """A chunk of the tier, and what reads it."""
        return TierFiles(RangeCache(self.objects, MAX_BYTES), chunk), tiered_view(chunk)

    def views(self, stream: Stream, from_offset: int) -> list[tuple[ReadableFiles, ChunkView]]:
        """The chunks of a stream that are in the tier alone, with records at or after an offset."""
        end = stream.chunks[0].base_offset if stream.chunks else stream.high_watermark
        return [self.view(chunk) for chunk in stream.tiered.before(end) if chunk.next_offset > from_offset]

    def settle(self, run: Callable[[], None]) -> None:
        """Run rounds until nothing is left to do; then the store holds what the ledger names, and nothing else."""
        for _ in range(MAX_ROUNDS):
            ended = self.tiering.round()
            run()
            if ended.done and not ended.result():
                break
        named = {key for chunk in self._named() for key in chunk.all_keys()}
        found = {at.key for at in self.objects.list_keys("")}
        if found != named:
            raise PromiseBroken(f"the tier holds {sorted(found - named)} too much and lacks {sorted(named - found)}")

    def check(self) -> None:
        """Check that every chunk of the ledger can be read back, and that no object under its name is a part of one."""
        gone = [chunk for chunks in self._store.tier.strangers().values() for chunk in chunks]
        for chunk in [*self._named(), *gone]:
            try:
                read_back(self.objects, chunk)
            except CairnError as error:
                raise PromiseBroken(f"the ledger names {chunk.all_keys()[-1]}: {error}") from error
        for at in self.objects.list_keys(""):
            name = at.key.rpartition("/")[2]
            if name.endswith(LOG_SUFFIX) and not name.startswith("_"):
                data = self.objects.get(at.key, 0, MAX_BYTES)
                if sum(header.size_bytes for _, header in iterate_batches(data)) != len(data) or not data:
                    raise PromiseBroken(f"{at.key} has its name, and {len(data)} bytes that are no whole batches")

    def _named(self) -> list[TieredChunk]:
        return [chunk for stream in self._store.streams() for chunk in stream.tiered.all()]

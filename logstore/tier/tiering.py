"""Moves sealed chunks to the tier and out of it: the order of the steps, as coroutines over tickets.

    stored and read back -> in the ledger -> local start in the ledger -> local files removed
    log start in the catalogue -> out of the ledger -> objects removed

Invariants:
* A local copy goes only after its objects were read back and the ledger says so durably, and only by the topic's local
  retention. Nothing of that needs the object store: it goes on while the store is away.
* An object goes only when no durable entry of the ledger can name it. What a crash or a failure left in the store is
  removed by the sweep: keys of this log that neither the ledger names nor an upload is storing.
* The chunks of a stream are stored one at a time, from the oldest on; a chunk that is damaged on the disk is left out,
  and it and all local chunks behind it stay. One that cannot be read now holds up those behind it, and is tried again
  every MAX_PAUSE_S.
* While the object store is away or full, uploads and sweeps wait, longer each time up to MAX_PAUSE_S; removals come
  first in each round, so that a full store gets room. Appends, reads of local chunks and retention do not know of it.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from logstore.errors import CorruptChunk, TierRefused, TierUnavailable
from logstore.events import CHUNK_TIERED, LOCAL_COPIES_REMOVED, TIER_CHUNK_NOT_STORED, TIER_OBJECTS_MISSING
from logstore.format.tiered_chunk import INDEX_SUFFIX, ParsedKey, TieredChunk
from logstore.interfaces import ReadableFiles
from logstore.log.chunks import Chunk
from logstore.log.coroutines import for_each, start
from logstore.log.data_directory import STREAMS_DIRECTORY
from logstore.log.readers import StreamId
from logstore.log.store import Store
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.log.tiered import local_excess
from logstore.tier.figures import TierFigures
from logstore.tier.interface import ObjectStore, UploadTurns
from logstore.tier.store_pauses import MAX_PAUSE_S, StorePauses
from logstore.tier.sweeps import Sweeps
from logstore.tier.upload import UploadSource, upload

T = TypeVar("T")
CHUNKS_PER_TURN: Final = 4
"""Chunks of a stream that a round stores, so that a stream with many does not keep the others waiting."""


class Work(Protocol):
    """Runs blocking work somewhere; an OSError of it becomes StorageFailed."""

    def __call__(self, work: Callable[[], T], /) -> Ticket[T]:
        """Settles when the work is done."""


class TierParts(NamedTuple):
    """What the tier stands on. `files` are the log's own."""

    files: ReadableFiles
    objects: ObjectStore
    turns: UploadTurns
    work: Work
    new_id: Callable[[], uuid.UUID]


class Tiering:
    """The tier of one store. `round` does what is due; one round at a time."""

    def __init__(self, store: Store, parts: TierParts, uploads: int) -> None:
        self.figures = TierFigures()
        self._pauses = StorePauses(self.figures, store.clock, store.report)
        self._sweeps = Sweeps(parts.objects, parts.work, self.figures, store.clock, store.report)
        self._store = store
        self._parts = parts
        self._uploads = uploads
        self._streams: dict[StreamId, Stream] = {}
        """Those that have, or had, chunks in the tier."""
        self._known: set[ParsedKey] = set()
        """The chunks of the ledger."""
        self._unseen: set[ParsedKey] = set()
        """Those of them whose objects were stored before this start and not listed since, or that the last sweep has
        missed: their local copies stay.
        """
        self._in_flight: set[tuple[str, int]] = set()
        self._gone = store.tier.strangers()
        self._damaged: set[tuple[Stream, int]] = set()
        self._later: dict[Stream, tuple[int, float]] = {}
        """Chunks that could not be stored for another reason, by base offset, and until when they wait."""
        self._round: Ticket[bool] = Ticket.succeeded(False)
        for chunks in self._gone.values():
            self._known.update(chunk.parsed for chunk in chunks)
        for stream_id, stream in self._all_streams():
            self._known.update(chunk.parsed for chunk in stream.tiered.all())
            if stream.tiered:
                self._streams[stream_id] = stream
        self._unseen |= self._known

    @property
    def held_chunks(self) -> int:
        """Chunks in the tier."""
        return len(self._known)

    @property
    def held_bytes(self) -> int:
        """Bytes of the batches of all chunks in the tier."""
        return sum(stream.tiered.size_bytes for stream in self._streams.values())

    @property
    def left_out_streams(self) -> int:
        """Streams of which a chunk is damaged, or cannot be read at present."""
        return len({stream for stream, _ in self._damaged} | self._later.keys())

    @property
    def waiting_chunks(self) -> int:
        """Sealed chunks that are to be stored."""
        return sum(
            chunk.base_offset >= stream.tiered.end_offset and (stream, chunk.base_offset) not in self._damaged
            for _, stream in self._all_streams()
            if stream.config.is_tiered
            for chunk in stream.chunks[:-1]
        )

    def round(self) -> Ticket[bool]:
        """Do what is due now. The result: whether there is more to do at once."""
        if self._round.done:
            self._round = start(self._do_round())
        return self._round

    async def _do_round(self) -> bool:
        for stream_id, stream in self._all_streams():
            await start(self._drop_local(stream_id, stream)).settled()  # a disk that refuses is reported as such
        if self._pauses.is_pause:
            return False
        done = start(self._do_remote())
        await done.settled()
        if isinstance(done.error, TierUnavailable | TierRefused):
            self._pauses.note_away(done.error)
            self._sweeps.begin_again()  # what the failure left
            return False
        if done.error is not None:  # the local disk refused, and says so itself
            return False
        self._pauses.note_back()
        return done.result()

    async def _do_remote(self) -> bool:
        await self._remove()
        is_sweeping = await self._sweeps.step(f"{self._store.cluster_id}/", self)
        waiting = [at for at in self._all_streams() if self._next(at[1]) is not None]
        await for_each(waiting, self._store_some, max_in_flight=self._uploads)
        return is_sweeping or any(self._next(stream) is not None for _, stream in waiting)

    def _all_streams(self) -> list[tuple[StreamId, Stream]]:
        """The streams that have chunks in the tier, or are to have some."""
        return [
            (StreamId(topic.topic_id.hex, stream.partition), stream)
            for topic in list(self._store.topics.values())
            for stream in topic.partitions
            if stream.tiered or (topic.config.is_tiered and stream.chunks)
        ]

    # ---- storing

    def _next(self, stream: Stream) -> Chunk | None:
        """The next chunk of a stream to store."""
        if not stream.config.is_tiered or stream.deleted:
            return None
        first_offset = max(stream.tiered.end_offset, stream.log_start_offset, stream.start_asked)
        for chunk in stream.chunks[:-1]:
            is_new = chunk.base_offset >= stream.tiered.end_offset and chunk.next_offset > first_offset
            if is_new and chunk.size_bytes and (stream, chunk.base_offset) not in self._damaged:
                base_offset, until_s = self._later.get(stream, (0, 0.0))
                is_late = base_offset == chunk.base_offset and self._store.clock.monotonic_s() < until_s
                return None if is_late or chunk.rewriting is not None else chunk
        return None

    async def _store_some(self, at: tuple[StreamId, Stream]) -> None:
        stream_id, stream = at
        self._streams[stream_id] = stream
        for _ in range(CHUNKS_PER_TURN):
            chunk = self._next(stream)
            if chunk is None:
                return
            await self._store_chunk(stream_id, stream, chunk)

    async def _store_chunk(self, stream_id: StreamId, stream: Stream, chunk: Chunk) -> None:
        """Store one chunk; it counts once its entry is durable."""
        place = f"{self._store.cluster_id}/{stream.directory.removeprefix(f'{STREAMS_DIRECTORY}/')}"
        parts, view, revision = self._parts, chunk.view(is_cold=True), chunk.revision
        source = UploadSource(view, chunk.producers_path, chunk.written_ms, place, parts.new_id)
        self._in_flight.add((place, chunk.base_offset))
        stored = parts.work(partial(upload, parts.files, parts.objects, parts.turns, source))
        await stored.settled()
        is_current = not stream.deleted and chunk in stream.chunks[:-1] and chunk.revision == revision
        if stored.error is not None or not is_current:
            self._in_flight.discard((place, chunk.base_offset))
            if stored.error is None:
                await self._sweeps.remove(stored.result().all_keys())
            elif isinstance(stored.error, TierUnavailable | TierRefused):
                raise stored.error
            elif is_current:
                self._leave_out(stream, chunk, stored.error)
            return
        found = stored.result()
        noted = self._store.tier.add(stream_id, found)
        await noted.settled()
        self._in_flight.discard((place, chunk.base_offset))
        if noted.error is not None:
            self._sweeps.begin_again()  # the entry may be in the file all the same: the sweep finds out
            raise noted.error
        self._later.pop(stream, None)
        self._known.add(found.parsed)
        stream.tiered.add(found)
        self.figures.stored_chunks += 1
        self.figures.stored_bytes += found.all_bytes
        self._store.report(
            CHUNK_TIERED,
            stream=stream.name,
            first=found.base_offset,
            last=found.next_offset - 1,
            key=found.all_keys()[-1],
        )

    def _leave_out(self, stream: Stream, chunk: Chunk, error: Exception) -> None:
        if isinstance(error, CorruptChunk):
            self._damaged.add((stream, chunk.base_offset))
        else:
            self._later[stream] = (chunk.base_offset, self._store.clock.monotonic_s() + MAX_PAUSE_S)
        self._store.report(TIER_CHUNK_NOT_STORED, stream=stream.name, first=chunk.base_offset, error=str(error))

    # ---- local copies

    async def _drop_local(self, stream_id: StreamId, stream: Stream) -> None:
        offset = self._local_excess(stream)
        if offset is None:
            return
        quiet = self._store.quiet
        held = quiet.hold(stream)
        await held.settled()
        dropped = start(self._drop_held(stream_id, stream, held, offset))
        await dropped.settled()
        quiet.release(stream)
        dropped.result()

    def _local_excess(self, stream: Stream) -> int | None:
        if not stream.config.is_tiered or not stream.tiered or stream.deleted:
            return None
        now_ms = self._store.retention_clock.now_ms()
        pinned_offset = stream.pins.lowest(stream.high_watermark)
        return local_excess(stream.chunks, stream.tiered, stream.config, now_ms, self._unseen, pinned_offset)

    async def _drop_held(self, stream_id: StreamId, stream: Stream, held: Ticket[None], offset: int) -> None:
        held.result()
        await self._store.tier.set_local_start(stream_id, offset)
        if stream.deleted:
            return
        freed_bytes = stream.drop_chunks(offset)
        self.figures.dropped_bytes += freed_bytes
        self._store.report(LOCAL_COPIES_REMOVED, stream=stream.name, before=offset, freed_bytes=freed_bytes)

    # ---- removing

    async def _remove(self) -> None:
        """Remove the objects of records before log starts, and of topics that are gone."""
        for stream_id, stream in list(self._streams.items()):
            if stream.deleted:
                del self._streams[stream_id]
                self._later.pop(stream, None)
                self._gone.setdefault(stream_id, []).extend(stream.tiered.all())
            elif old := stream.tiered.before(stream.log_start_offset):
                await self._forget(stream_id, old)
                stream.tiered.drop_before(old[-1].next_offset)
                await self._sweeps.remove_chunks(old)
        for stream_id, chunks in list(self._gone.items()):
            await self._forget(stream_id, chunks)
            await self._store.tier.forget([stream_id])
            del self._gone[stream_id]
            await self._sweeps.remove_chunks(chunks)

    async def _forget(self, stream_id: StreamId, chunks: Sequence[TieredChunk]) -> None:
        await self._store.tier.drop(stream_id, chunks)
        for chunk in chunks:
            self._known.discard(chunk.parsed)
            self._store.indexes.forget(chunk.key(INDEX_SUFFIX))

    # ---- Swept

    async def sweep_begins(self) -> Iterable[TieredChunk]:
        """See Swept."""
        await self._store.tier.settle()
        return [chunk for _, stream in self._all_streams() for chunk in stream.tiered.all()]

    async def is_left(self, key: ParsedKey | None) -> bool:
        """See Swept: no entry names it and no upload is storing it. A key of another form is not the log's."""
        if key is None or key in self._known:
            return False
        return (key.place, key.base_offset) not in self._in_flight

    async def sweep_ends(self, missing: Sequence[ParsedKey]) -> None:
        """See Swept. Every chunk was named when the sweep began, or was stored, and read back, since."""
        self._unseen = set(missing)
        for _, stream in self._all_streams() if missing else ():
            lost = [chunk for chunk in stream.tiered.all() if chunk.parsed in missing]
            if lost:
                first, last = lost[0].base_offset, lost[-1].next_offset - 1
                self._store.report(
                    TIER_OBJECTS_MISSING,
                    stream=stream.name,
                    chunks=len(lost),
                    first=first,
                    last=last,
                    place=lost[0].place,
                )

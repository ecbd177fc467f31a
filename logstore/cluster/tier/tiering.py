"""Moves sealed chunks of replicated streams to the tier, and removes them from it. Each owner does so for its streams.

    all copies made -> stored and read back -> registered -> copies taken out of the registration -> hosts remove them
    taken out of the registration (trimmed, or topic deleted) -> objects removed

Invariants:
* A swap removes the copies of a chunk only after an earlier swap has named its objects, which were read back before. An
  owner that was replaced cannot swap, so it registers nothing and removes no copy. If a former owner stored the chunk,
  this owner checks that the objects exist before it removes copies: objects may have been lost since.
* An object is removed only if no registration names it now or later. An owner judges the objects of its stream whose
  names have its own epoch or a lower epoch. Its last registration names all of these objects that any registration
  names, except objects that the owner is storing now. Objects of higher epochs belong to another owner. This also holds
  for an owner that does not know that it was replaced, because later owners use only higher epochs.
* Objects of a stream without a registration are removed if the metadata store confirms, after the listing, that the
  registration is missing: a deleted topic never comes back, and a registration exists before any object.
* A stream whose registration cannot take the stored objects, for example because an entry is damaged, does not stop
  other streams. It is skipped after OUTCOME_S, and continues when its registration does. Until then nothing removes its
  objects.
* While the object store is away or full, uploads and sweeps wait, longer each time up to MAX_PAUSE_S. Appends, reads of
  copies on hosts, takeovers and retention are not affected.

Costs: a swap of two entries for each stored chunk, and a swap for up to 60 chunks whose copies are removed; a walk over
the chunks of each owned stream whose registration has changed, every ROUND_INTERVAL_S; a listing of the store at the
start, after a failure, and every hour; and a listing of the objects of a chunk that a former owner stored, before the
removal of its copies.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.base.metadata.errors import MetadataError
from logstore.cluster.streams import tiered_chunks
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.retention_clock import AGREE_MS
from logstore.cluster.streams.tiered_chunks import SealedChunks, TieredStream
from logstore.cluster.tier.naming import Naming, StoredCopy
from logstore.errors import (
    CairnError,
    NotLeader,
    ObjectMissing,
    TierRefused,
    TierUnavailable,
    UnknownTopicOrPartition,
)
from logstore.events import (
    CHUNK_TIERED,
    LOCAL_COPIES_REMOVED,
    TIER_CHUNK_NOT_REGISTERED,
    TIER_CHUNK_NOT_STORED,
    TIER_OBJECTS_MISSING,
)
from logstore.format.tiered_chunk import ParsedKey, StoredObject, TieredChunk, chunk_directory
from logstore.replica.messages import EntriesRead
from logstore.replica.registrations import ChunkRegistration, StreamRegistration, TieredCopy, differing_chunks
from logstore.tier.figures import TierFigures
from logstore.tier.interface import ObjectStore, UploadTurns
from logstore.tier.sealed_upload import Piece, Read, SealedChunk, upload_sealed
from logstore.tier.store_pauses import MAX_PAUSE_S, StorePauses
from logstore.tier.sweeps import SWEEP_INTERVAL_S, Sweeps
from logstore.tier.tiering import CHUNKS_PER_TURN

T = TypeVar("T")
PIECE_BYTES: Final = 1 << 20
STORE_FAILED: Final = (TierUnavailable, TierRefused, ObjectMissing)
"""What a listing or a removal may raise: another host may sweep at the same time."""
COPIES_WAIT_MS: Final = 600_000
"""How long behind its last append a chunk waits for all its copies: a host that lives may never make its own."""
OUTCOME_S: Final = 30.0
"""A registration is swapped in some milliseconds, and a metadata store restarts in some seconds."""
LOOKED_AT_ONCE: Final = 200
"""Streams, before other tasks run."""

AsyncRead = Callable[[int], Awaitable[Piece]]


class TierHost(Protocol):
    """What the tier needs of its host (`logstore.cluster.host`)."""

    @property
    def alive_hosts(self) -> Collection[str]:
        """The hosts that live."""

    def note_tiered(self, stream: str, epoch: int, copy: TieredCopy, /) -> None:
        """Register where a sealed chunk lies in the tier. Raises NotLeader."""

    def drop_members(self, stream: str, before_offset: int, /) -> None:
        """Take the copies of chunks that end at or before an offset out of the registration. Raises NotLeader."""

    async def read_entries(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int, /) -> EntriesRead:
        """Read a chunk's batches from any of its members. Raises ChunkUnreachable."""

    async def read_registration(self, stream: str, /) -> StreamRegistration:
        """A stream's registration as of now. Raises UnknownTopicOrPartition, MetadataError, CorruptRegister."""


class TierTopics(Protocol):
    """The streams of the cluster (`logstore.cluster.streams.topics`)."""

    cluster_id: str

    def streams(self) -> Sequence[ReplicatedStream]:
        """Every stream."""

    def stream_of(self, topic_id: str, partition: int, /) -> ReplicatedStream | None:
        """A stream by its topic's id; None: there is none."""


class TierThreads(Protocol):
    """Runs blocking work somewhere. Raises what the work raises."""

    async def run(self, work: Callable[[], T], /) -> T:
        """Run it."""

    async def upload(self, work: Callable[[Read], TieredChunk], chunk: SealedChunk, read: AsyncRead, /) -> TieredChunk:
        """Run work that reads a chunk from its first offset on, piece by piece, and waits for what it reads."""


class ClusterTierParts(NamedTuple):
    """What the tier stands on. `uploads`: chunks that are stored at a time; `served_ms`: the cluster's retention clock;
    `sweep_s`: seconds between sweeps.
    """

    objects: ObjectStore
    turns: UploadTurns
    threads: TierThreads
    uploads: int
    clock: Clock
    served_ms: Callable[[], int]
    report: Report
    sweep_s: float = SWEEP_INTERVAL_S


@dataclass(slots=True)
class _Known:
    """What is known of a stream in one ownership."""

    ownership: int
    registration: StreamRegistration
    sealed: SealedChunks
    chunks: dict[int, TieredChunk] = field(default_factory=dict)
    """Those that the registration names, by epoch."""
    removable: list[TieredChunk] = field(default_factory=list)
    """Those that it has named, and never will again."""
    later: dict[int, float] = field(default_factory=dict)
    """Chunks that could not be stored, by epoch, and until when they wait."""
    seen: set[int] = field(default_factory=set)
    """Chunks whose objects this ownership has seen, by epoch: stored by it, or listed for it since. Hosts keep their
    copies of all others: a former owner may have known of objects that are missing, and this one does not.
    """
    missing: set[int] = field(default_factory=set)
    """Chunks of which objects were not there when they were listed last, by epoch."""


class ClusterTiering:
    """The tier of one host of a cluster. `round` does what is due; one round at a time."""

    def __init__(self, topics: TierTopics, host: TierHost, parts: ClusterTierParts) -> None:
        self.figures = TierFigures()
        self._pauses = StorePauses(self.figures, parts.clock, parts.report)
        self._sweeps = Sweeps(parts.objects, parts.threads.run, self.figures, parts.clock, parts.report, parts.sweep_s)
        self._topics = topics
        self._host = host
        self._parts = parts
        self._uploads = trio.CapacityLimiter(parts.uploads)
        self._known: dict[ReplicatedStream, _Known] = {}
        """Streams that this host owns, with chunks in the tier, or that are to have some."""
        self._in_flight: set[tuple[ReplicatedStream, int]] = set()
        """Chunks that are stored, or registered, at present: stream and base offset."""
        self._pending: dict[ReplicatedStream, StoredCopy] = {}
        """Those of them that no registration has named in time; nothing else of their streams is stored."""
        self._gone: dict[str, list[TieredChunk]] = {}
        """Chunks of streams whose topics were deleted."""
        self._are_gone: dict[TieredStream, bool] = {}
        """Whether streams that this host does not know are gone, as the metadata store has said in this sweep."""

    # ---- figures

    @property
    def held_chunks(self) -> int:
        """Chunks in the tier, of the streams that this host owns."""
        return sum(len(known.chunks) for known in self._known.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of their batches."""
        return sum(chunk.size_bytes for known in self._known.values() for chunk in known.chunks.values())

    @property
    def waiting_chunks(self) -> int:
        """Sealed chunks of these streams that are to be stored, those without all copies included."""
        return sum(len(known.sealed.unstored) for stream, known in self._known.items() if stream.config.is_tiered)

    @property
    def left_out_streams(self) -> int:
        """Streams of which a chunk cannot be stored, or whose registration does not take what was stored."""
        now_s = self._parts.clock.monotonic_s()
        late = {stream for stream, known in self._known.items() if any(until > now_s for until in known.later.values())}
        return len(self._pending.keys() | late)

    # ---- rounds

    async def round(self) -> bool:
        """Do what is due now. The result: whether there is more to do at once."""
        streams = await self._look()
        for stream in streams:
            self._drop_local(stream)
        if self._pauses.is_pause:
            return False
        try:
            await self._look_at_pending()
            await self._remove()
            await self._see_objects(streams)
            is_sweeping = await self._sweeps.step(f"{self._topics.cluster_id}/", self)
            has_more = await self._store_due(streams) or is_sweeping
        except STORE_FAILED as error:
            self._pauses.note_away(error)
            self._sweeps.begin_again()  # what the failure left
            return False
        self._pauses.note_back()
        return has_more

    async def _look(self) -> list[ReplicatedStream]:
        """Bring what is known of owned streams up to date; returns those that have to do with the tier."""
        for stream in [stream for stream in self._known if not stream.is_leader]:
            known = self._known.pop(stream)
            if stream.deleted:
                self._gone.setdefault(stream.stream, []).extend([*known.chunks.values(), *known.removable])
        found: list[ReplicatedStream] = []
        for number, stream in enumerate(list(self._topics.streams()), 1):
            if number % LOOKED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if stream.is_leader and not stream.is_internal and self._look_at(stream):
                found.append(stream)
        return found

    def _look_at(self, stream: ReplicatedStream) -> bool:
        """Whether a stream that this host owns has to do with the tier."""
        try:
            registration = stream.registration
        except NotLeader:
            return False
        known = self._known.get(stream)
        if known is None or known.ownership != stream.ownership:
            known = self._known[stream] = _Known(stream.ownership, registration, SealedChunks.of(registration))
            known.chunks = _named(stream, registration.chunks)
        elif known.registration is not registration:
            self._note_changes(stream, known, registration)
        if known.chunks or known.removable or stream.config.is_tiered:
            return True
        del self._known[stream]
        return False

    def _note_changes(self, stream: ReplicatedStream, known: _Known, now: StreamRegistration) -> None:
        """The registration has changed in the same ownership: by this owner's own swaps, and so for good."""
        gone, _, fresh = differing_chunks(known.registration, now)
        before = {chunk.epoch: chunk for chunk in gone}
        were = [found for epoch in before if (found := known.chunks.pop(epoch, None)) is not None]
        named, known_before = _named(stream, fresh), {chunk.leader_epoch for chunk in were}
        known.seen |= named.keys() - known_before  # this owner has read them back
        known.chunks |= named
        known.removable += [chunk for chunk in were if chunk.leader_epoch not in known.chunks]
        known.seen -= known_before - named.keys()
        given_up = [before[chunk.epoch] for chunk in fresh if chunk.is_tiered_alone and chunk.epoch in before]
        self._report_given_up(stream, [chunk for chunk in given_up if chunk.members])
        known.registration, known.sealed = now, SealedChunks.of(now)
        known.later = {epoch: until_s for epoch, until_s in known.later.items() if now.chunk(epoch) is not None}

    def _report_given_up(self, stream: ReplicatedStream, chunks: Sequence[ChunkRegistration]) -> None:
        """Hosts remove their copies of chunks: say so."""
        ends = [chunk.end for chunk in chunks if chunk.end is not None]
        if ends:
            copies = sum(chunk.end.length_bytes * len(chunk.members) for chunk in chunks if chunk.end is not None)
            self.figures.dropped_bytes += copies
            before = max(end.next_offset for end in ends)
            self._parts.report(LOCAL_COPIES_REMOVED, stream=stream.name, before=before, freed_bytes=copies)

    # ---- storing

    def _next(self, stream: ReplicatedStream) -> ChunkRegistration | None:
        """The next chunk of a stream to store."""
        known = self._known.get(stream) if stream.is_leader and self._look_at(stream) else None
        if known is None or not stream.config.is_tiered or stream in self._pending:
            return None
        registration, now_s = known.registration, self._parts.clock.monotonic_s()
        late_ms = self._parts.served_ms() - COPIES_WAIT_MS

        def is_due(chunk: ChunkRegistration) -> bool:
            if (stream, chunk.base_offset) in self._in_flight or known.later.get(chunk.epoch, 0.0) > now_s:
                return False
            is_late = chunk.written_ms < late_ms
            return is_late or tiered_chunks.has_copies(chunk, registration.copies, self._host.alive_hosts)

        return known.sealed.next_to_store(max(registration.log_start, stream.start_asked), is_due)

    async def _store_due(self, streams: Sequence[ReplicatedStream]) -> bool:
        waiting = [stream for stream in streams if self._next(stream) is not None]
        failures: list[CairnError] = []
        async with trio.open_nursery() as nursery:
            for stream in waiting:
                nursery.start_soon(self._store_some, stream, failures)
        if failures:
            raise failures[0]
        return any(self._next(stream) is not None for stream in waiting)

    async def _store_some(self, stream: ReplicatedStream, failures: list[CairnError]) -> None:
        async with self._uploads:
            for _ in range(CHUNKS_PER_TURN):
                chunk = self._next(stream)
                if chunk is None or failures:
                    return
                try:
                    await self._store(stream, chunk)
                except STORE_FAILED as error:
                    failures.append(error)

    async def _store(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> None:
        """Store one chunk; it counts once the registration that names it is acknowledged."""
        at = (stream, chunk.base_offset)
        self._in_flight.add(at)
        try:
            await self._store_in_flight(stream, chunk)
        finally:
            if stream not in self._pending:
                self._in_flight.discard(at)

    async def _store_in_flight(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> None:
        ownership, threads, parts = stream.ownership, self._parts.threads, self._parts
        source = _source(stream, chunk)
        upload = partial(upload_sealed, parts.objects, parts.turns, source)
        try:
            found = await threads.upload(upload, source, partial(self._read, stream, chunk))
        except (TierUnavailable, TierRefused):
            raise
        except (CairnError, OSError) as error:
            self._leave_out(stream, chunk, error)
            return
        is_asked = stream.is_leader and stream.ownership == ownership
        if is_asked:
            try:
                self._host.note_tiered(stream.stream, chunk.epoch, tiered_chunks.tiered_copy(found))
            except NotLeader:
                is_asked = False
        stored = StoredCopy(stream, ownership, found)
        naming = await stored.settled(OUTCOME_S) if is_asked else Naming.OTHER
        if naming is Naming.PENDING:
            self._pending[stream] = stored
            self._parts.report(
                TIER_CHUNK_NOT_REGISTERED, stream=stream.name, first=found.base_offset, after_s=OUTCOME_S
            )
        else:
            await self._conclude(stored, naming)

    async def _look_at_pending(self) -> None:
        """Go on with streams whose registration has taken what was stored, or never will."""
        for stream, stored in list(self._pending.items()):
            if (naming := stored.naming) is not Naming.PENDING:
                del self._pending[stream]
                self._in_flight.discard((stream, stored.found.base_offset))
                await self._conclude(stored, naming)

    async def _conclude(self, stored: StoredCopy, naming: Naming) -> None:
        """A chunk was stored, and it is known whether its registration names it."""
        stream, _, found = stored
        if naming is Naming.UNKNOWN:
            if stream.deleted:
                self._gone.setdefault(stream.stream, []).append(found)
            return  # the next owner finds out, and sweeps
        if naming is Naming.OTHER:
            await self._sweeps.remove(found.all_keys())
            return
        self.figures.stored_chunks += 1
        self.figures.stored_bytes += found.all_bytes
        self._look_at(stream)
        self._parts.report(
            CHUNK_TIERED,
            stream=stream.name,
            first=found.base_offset,
            last=found.next_offset - 1,
            key=found.all_keys()[-1],
        )

    async def _read(self, stream: ReplicatedStream, chunk: ChunkRegistration, offset: int) -> Piece:
        """Batches of a chunk from an offset on, from whoever has a copy."""
        found = await self._host.read_entries(stream.stream, chunk, offset, PIECE_BYTES)
        skipped, first = 0, found.at.next_offset
        while skipped < len(found.entries) and first < offset:
            first += found.entries[skipped].record_count
            skipped += 1
        entries = found.entries[skipped:]
        data = b"".join(entry.data for entry in entries)
        return Piece(data, first + sum(entry.record_count for entry in entries), found.founding)

    def _leave_out(self, stream: ReplicatedStream, chunk: ChunkRegistration, error: Exception) -> None:
        """A copy is damaged, or no host that has one can be reached: other chunks go on, this one is tried later."""
        known = self._known.get(stream)
        if known is None:
            return
        is_new = chunk.epoch not in known.later
        known.later[chunk.epoch] = self._parts.clock.monotonic_s() + MAX_PAUSE_S
        if is_new:
            self._parts.report(TIER_CHUNK_NOT_STORED, stream=stream.name, first=chunk.base_offset, error=str(error))

    # ---- hosts' copies

    def _drop_local(self, stream: ReplicatedStream) -> None:
        known = self._known.get(stream)
        if known is None or not stream.config.is_tiered:
            return
        try:
            served_ms = self._parts.served_ms() - AGREE_MS
            before = known.sealed.local_excess(stream.config, stream.open_bytes, served_ms, known.seen)
            if before is not None:
                self._host.drop_members(stream.stream, before)
        except NotLeader:
            return  # the next owner does so

    async def _see_objects(self, streams: Sequence[ReplicatedStream]) -> None:
        """Look for the objects of chunks that hosts are to give up, and that a former owner has stored."""
        for stream in streams:
            for chunk in self._unseen(stream):
                is_there = await self._parts.threads.run(partial(_is_there, self._parts.objects, chunk))
                known = self._known.get(stream)
                if known is None or known.chunks.get(chunk.leader_epoch) != chunk:
                    break
                (known.seen if is_there else known.missing).add(chunk.leader_epoch)
                if not is_there:
                    await self._report_missing(stream, [chunk])

    def _unseen(self, stream: ReplicatedStream) -> list[TieredChunk]:
        known = self._known.get(stream)
        if known is None or not stream.config.is_tiered:
            return []
        held = [chunk for chunk in known.sealed.held if chunk.epoch in known.chunks]
        if all(chunk.epoch in known.seen or chunk.epoch in known.missing for chunk in held):
            return []
        try:
            served_ms, there = self._parts.served_ms() - AGREE_MS, known.chunks.keys() - known.missing
            before = known.sealed.local_excess(stream.config, stream.open_bytes, served_ms, there)
        except NotLeader:
            return []
        due = [chunk.epoch for chunk in held if before is not None and chunk.end and chunk.end.next_offset <= before]
        return [known.chunks[epoch] for epoch in due if epoch not in known.seen][:CHUNKS_PER_TURN]

    # ---- removing

    async def _remove(self) -> None:
        """Remove the objects of what was trimmed, and of topics that are gone."""
        for known in list(self._known.values()):
            if known.removable:
                chunks, known.removable = known.removable, []
                await self._sweeps.remove_chunks(chunks)
        for stream, chunks in list(self._gone.items()):
            del self._gone[stream]
            if await self._is_gone(stream):
                await self._sweeps.remove_chunks(chunks)

    async def _is_gone(self, stream: str) -> bool:
        """Whether the metadata store says that a stream has no registration."""
        try:
            await self._host.read_registration(stream)
        except UnknownTopicOrPartition:
            return True
        except (CairnError, MetadataError):
            return False  # nobody knows; the next sweep asks again
        return False

    # ---- Swept

    async def sweep_begins(self) -> Iterable[TieredChunk]:
        """See Swept."""
        self._are_gone.clear()
        return [chunk for known in self._known.values() for chunk in known.chunks.values()]

    async def is_left(self, key: ParsedKey | None) -> bool:
        """See Swept, and the invariants of the module."""
        at = None if key is None else tiered_chunks.stream_of(key)
        if key is None or at is None:
            return False
        stream = self._topics.stream_of(at.topic_id, at.partition)
        if stream is None:
            if at not in self._are_gone:
                self._are_gone[at] = await self._is_gone(f"{at.topic_id}/{at.partition}")
            return self._are_gone[at]
        if not stream.is_leader or (stream, key.base_offset) in self._in_flight:
            return False
        try:
            chunk = stream.registration.chunk_at(key.base_offset)
        except NotLeader:
            return False
        if key.place != stream.tier_place or not self._may_judge(stream, key):
            return False
        return chunk is None or chunk.tiered is None or chunk.tiered.attempt != key.attempt

    async def sweep_ends(self, missing: Sequence[ParsedKey]) -> None:
        """See Swept. An owner that was replaced may name what its successor has removed: so the metadata store is
        asked before a chunk is called missing.
        """
        lost = set(missing)
        for stream, known in [*self._known.items()]:
            known.missing = {epoch for epoch, chunk in known.chunks.items() if chunk.parsed in lost}
            known.seen -= known.missing
            if known.missing:
                await self._report_missing(stream, [known.chunks[epoch] for epoch in sorted(known.missing)])

    async def _report_missing(self, stream: ReplicatedStream, chunks: Sequence[TieredChunk]) -> None:
        try:
            named = _named(stream, (await self._host.read_registration(stream.stream)).chunks)
        except (CairnError, MetadataError):
            return  # nobody knows; the next sweep looks again
        lost = [chunk for chunk in chunks if named.get(chunk.leader_epoch) == chunk]
        if lost:
            first, last = lost[0].base_offset, lost[-1].next_offset - 1
            self._parts.report(
                TIER_OBJECTS_MISSING, stream=stream.name, chunks=len(lost), first=first, last=last, place=lost[0].place
            )

    def _may_judge(self, stream: ReplicatedStream, key: ParsedKey) -> bool:
        """Whether an object was stored by the owner of this ownership, or by one before it."""
        return tiered_chunks.epoch_of(key.attempt) <= stream.leader_epoch


def _source(stream: ReplicatedStream, chunk: ChunkRegistration) -> SealedChunk:
    if chunk.end is None:
        raise AssertionError(f"{stream.name}: {chunk} is open")
    end = StoredObject(chunk.end.length_bytes, chunk.end.checksum)
    return SealedChunk(
        stream.name,
        chunk.base_offset,
        chunk.end.next_offset,
        end,
        chunk.epoch,
        chunk.written_ms,
        stream.tier_place,
        tiered_chunks.attempts(stream.leader_epoch),
    )


def _is_there(objects: ObjectStore, chunk: TieredChunk) -> bool:
    """Whether the store has all objects of a chunk, in their sizes. Blocks."""
    listed = objects.list_keys(f"{chunk_directory(chunk.place, chunk.base_offset, chunk.attempt)}/")
    sizes = {at.key: at.size_bytes for at in listed}
    return all(sizes.get(chunk.key(suffix)) == found.size_bytes for suffix, found in chunk.objects().items())


def _named(stream: ReplicatedStream, chunks: Iterable[ChunkRegistration]) -> dict[int, TieredChunk]:
    found = ((chunk.epoch, tiered_chunks.tiered_chunk(stream.tier_place, chunk)) for chunk in chunks)
    return {epoch: chunk for epoch, chunk in found if chunk is not None}

"""Reads of replicated streams: from the chunks of this host, otherwise from a member, and otherwise from the tier.

Invariants:
* A read ends at the stream's high watermark, and at the end of a sealed chunk in the registration: a copy on this host
  may be longer for a short time.
* All batches are checked: a local read checks its batches, and this module checks batches from a member.
* Control batches are replaced by empty batches over the same offsets unless the reader asks for them.
* A reader that does not wait gets nothing while members or the tier do not answer (`late_reads`).
* Producers' sequences come from a single copy of a chunk: of this host, of a member, or of the tier. The base of the
  sequences of a chunk in the tier may come from earlier chunks, which have the same values.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from heapq import nlargest
from typing import Final, NamedTuple

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.cluster.interfaces import Answering, ReplicaFiles, Spawn, StreamOwners
from logstore.cluster.streams.late_reads import LateReads
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.takeover_waits import ReportedWaits, Waits
from logstore.cluster.streams.tiered_chunks import tiered_chunk
from logstore.cluster.streams.tiered_producers import founded_on, replay_stored
from logstore.engine import StoreEngine
from logstore.errors import CairnError, ChunkUnreachable, CorruptBatch, CorruptChunk, NotLeader
from logstore.format.batch import BatchHeader, empty_batch, iterate_batches, parse_header
from logstore.format.control import known_type
from logstore.format.tiered_chunk import TieredChunk
from logstore.interfaces import Buffer
from logstore.log.producers import ProducerTable
from logstore.log.read_patience import ReadPatience
from logstore.log.reading import ReadResult, TimeFound, batch_times, first_moment
from logstore.log.scanning import ScanRange, ScanResult
from logstore.log.stream import Stream
from logstore.log.stream_state import AppendTicket
from logstore.replica.messages import EntriesRead
from logstore.replica.registrations import ChunkRegistration

PIECE_BYTES: Final = 1 << 20
"""Of a chunk that is walked through, at a time."""
SCAN_BYTES: Final = 4 << 20
"""Of a chunk on other hosts that one step of a scan looks at, about."""
SCAN_OFFSETS: Final = 10_000
"""The same of an open chunk, whose length nobody knows."""
MAX_BACK: Final = 4
"""Chunks in front of one that are read if what it is founded on cannot be: 256 MiB, of the usual size."""


class _ShownBatches(NamedTuple):
    """Whole batches of a chunk: the headers and bytes of those that a reader may see."""

    batches: list[tuple[BatchHeader, Buffer]]
    next_offset: int


class ChunkReads:
    """See the module."""

    def __init__(
        self,
        engine: StoreEngine,
        owners: StreamOwners,
        files: ReplicaFiles,
        clock: Clock,
        report: Report,
        waits: Waits | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        """`waits`: None: takeovers that wait are reported, and last. `spawn` runs a task; None: all readers wait."""
        self._engine = engine
        self._owners = owners
        self._files = files
        self._clock = clock
        self._waits: Waits = waits or ReportedWaits(report)
        self._late = None if spawn is None else LateReads(owners, spawn)

    # ---- producers

    async def load_producers(self, stream: ReplicatedStream, offset: int) -> ProducerTable[AppendTicket] | None:
        """The producers' last sequences as of an offset at which a chunk ends; see `LoadProducers`."""
        chunk: ChunkRegistration | None = None
        try:
            chunk = self._chunk_in_front(stream.stream, offset)
            table = await self._producers_at(stream, chunk, offset, MAX_BACK)
        except (CairnError, OSError) as error:
            return await self._waits.failed(stream, offset, chunk, error)
        self._waits.over(stream, chunk)
        return table

    async def read_producers(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> None:
        """Read what a takeover needs of a sealed chunk, to see whether it can be read. Raises CairnError, OSError."""
        if chunk.end is not None:
            await self._producers_at(stream, chunk, chunk.end.next_offset, MAX_BACK)

    def _chunk_in_front(self, stream: str, offset: int) -> ChunkRegistration | None:
        chunks = self._owners.registration(stream).chunks
        return next((chunk for chunk in reversed(chunks) if chunk.base_offset < offset), None)

    async def _producers_at(
        self, stream: ReplicatedStream, chunk: ChunkRegistration | None, offset: int, back: int
    ) -> ProducerTable[AppendTicket]:
        """The table as of the end of a chunk, None: nobody has written. `back`: how many chunks in front may be read if
        what the chunk is founded on cannot be.
        """
        table: ProducerTable[AppendTicket] = ProducerTable()
        if chunk is None:
            return table
        local = self._files.local(stream.stream, chunk.epoch)
        if local is not None and local.end_offset == local.high_watermark == offset:
            table.load(local.producers.entries())
            return table
        try:
            return await self._replayed(stream, chunk, offset)
        except (ChunkUnreachable, CorruptChunk):
            tiered = tiered_chunk(stream.tier_place, chunk)
            if tiered is None:
                raise
            return await self._replayed_from_tier(stream, tiered, back)

    async def _replayed(
        self, stream: ReplicatedStream, chunk: ChunkRegistration, offset: int
    ) -> ProducerTable[AppendTicket]:
        """The table as of an offset, by what members have of a chunk. Raises CorruptChunk if it ends before."""
        table: ProducerTable[AppendTicket] = ProducerTable()
        at, now_ms = chunk.base_offset, self._clock.wall_ms()
        while at < offset:
            found = await self._owners.read_entries(stream.stream, chunk, at, PIECE_BYTES)
            piece = _checked(found, at, offset, stream.name)
            if at == chunk.base_offset:
                founded_on(found.founding, table)
            if piece.next_offset <= at:
                raise _short(stream.name, chunk, at, offset)
            for header, _ in piece.batches:
                if header.producer_id >= 0:
                    table.synced(header, header.base_offset, now_ms)
            at = piece.next_offset
        return table

    async def _replayed_from_tier(
        self, stream: ReplicatedStream, chunk: TieredChunk, back: int
    ) -> ProducerTable[AppendTicket]:
        """The same by what the tier has, without the chunk's index."""
        tier, now_ms, table = self._engine.tier, self._clock.wall_ms(), ProducerTable[AppendTicket]()
        try:
            founded_on(await tier.founding(chunk), table)
        except CorruptChunk:
            left = await self._left_in_front(stream, chunk.base_offset, back)
            if left is None:
                raise
            table = left
        await tier.run(chunk, lambda files, _: replay_stored(files, chunk, table, now_ms))
        return table

    async def _left_in_front(
        self, stream: ReplicatedStream, offset: int, back: int
    ) -> ProducerTable[AppendTicket] | None:
        """What the chunks in front of an offset say, on which the chunk behind it was founded; None: they say nothing,
        or cannot be read.
        """
        chunk = self._chunk_in_front(stream.stream, offset)
        if not back or chunk is None or chunk.end is None or chunk.end.next_offset != offset:
            return None
        try:
            return await self._producers_at(stream, chunk, offset, back - 1)
        except (CairnError, OSError):
            return None

    # ---- records

    async def read(
        self,
        stream: ReplicatedStream,
        offset: int,
        max_bytes: int,
        *,
        include_control: bool = False,
        patience: ReadPatience | None = None,
    ) -> ReadResult:
        """Whole batches from the one that holds `offset` on: at least one, up to about `max_bytes`; none at the high
        watermark, nor, with some `patience`, while they are on their way from other hosts or the tier: the
        stream's waiters are woken when they are there. Without `include_control`, empty batches replace control ones.

        Raises NotLeader, OffsetOutOfRange, UnknownTopicOrPartition, CorruptChunk, ChunkUnreachable, TierUnavailable,
        TierRefused, ObjectMissing, OSError.
        """
        stream.check_offset(offset)
        if offset >= stream.high_watermark:
            return ReadResult([], offset, 0)
        try:
            return await self._read_at(stream, offset, max_bytes, include_control=include_control, patience=patience)
        except (CairnError, OSError):
            stream.check_offset(offset)  # it may have been trimmed meanwhile
            raise

    async def _read_at(
        self,
        stream: ReplicatedStream,
        offset: int,
        max_bytes: int,
        *,
        include_control: bool,
        patience: ReadPatience | None,
    ) -> ReadResult:
        chunk = stream.registration.chunk_at(offset)
        if chunk is None:
            raise CorruptChunk(
                f"{stream.name}: no chunk is registered for offset {offset}; move past it",
                first_offset=offset,
                last_offset=stream.high_watermark - 1,
            )
        return await self._read(stream, chunk, offset, max_bytes, include_control=include_control, patience=patience)

    async def _read(
        self,
        stream: ReplicatedStream,
        chunk: ChunkRegistration,
        offset: int,
        max_bytes: int,
        *,
        include_control: bool = False,
        patience: ReadPatience | None = None,
    ) -> ReadResult:
        limit = _limit(stream, chunk)
        local = self._local(stream, chunk, offset)
        if local is not None:
            try:
                found = await self._engine.read(local, offset, max_bytes, include_control=include_control)
                return found if found.next_offset <= limit else _cut(found, offset, limit)
            except (CorruptChunk, OSError):
                if len(chunk.members) == 1 and chunk.tiered is None:
                    raise
        answer: EntriesRead | None
        try:
            if patience is None or self._late is None:
                answer = await self._owners.read_entries(stream.stream, chunk, offset, max_bytes)
            else:
                answer = await self._late.entries(stream, chunk, offset, max_bytes, patience)
        except ChunkUnreachable:
            tiered = _in_tier(stream, chunk)
            if tiered is None:
                raise
            found = await self._engine.tier.serve(
                stream, tiered, offset, max_bytes, include_control=include_control, is_patient=patience is None
            )
            return found if found.next_offset <= limit else _cut(found, offset, limit)
        if answer is None:
            return ReadResult([], offset, 0)
        piece = _checked(answer, offset, limit, stream.name)
        buffers = [
            buffer if include_control or not header.is_control else empty_batch(header)
            for header, buffer in piece.batches
        ]
        return ReadResult(buffers, piece.next_offset, sum(map(len, buffers)))

    async def scan(self, stream: ReplicatedStream, wanted: ScanRange, max_bytes: int) -> ScanResult:
        """Control batches of the newest chunk that begins in front of `wanted.before_offset`, newest first: at least
        one, if the part of the chunk that is looked at has any; see `StoreEngine.scan_controls`. Raises as `read` does.
        """
        stream.check_offset(wanted.before_offset)
        chunks = [chunk for chunk in self._chunks(stream) if chunk.base_offset < wanted.before_offset]
        if not chunks or _limit(stream, chunks[-1]) < wanted.before_offset:
            raise CorruptChunk(
                f"{stream.name}: no chunk is registered for offset {wanted.before_offset - 1}; move past it",
                first_offset=wanted.from_offset,
                last_offset=wanted.before_offset - 1,
            )
        chunk = chunks[-1]
        wanted = wanted._replace(from_offset=max(wanted.from_offset, chunk.base_offset))
        local = self._local(stream, chunk, wanted.before_offset - 1)
        if local is not None and local.log_start_offset <= wanted.from_offset:
            try:
                return await self._engine.scan_controls(
                    local, wanted.before_offset, wanted.types, max_bytes, from_offset=wanted.from_offset
                )
            except (CorruptChunk, OSError):
                if len(chunk.members) == 1 and chunk.tiered is None:
                    raise
        tiered = _in_tier(stream, chunk)
        if tiered is not None and chunk.is_tiered_alone:
            return await self._engine.tier.scan(tiered, wanted, max_bytes, at_least_one=True)
        return await self._scan_window(stream, chunk, wanted, max_bytes)

    async def _scan_window(
        self, stream: ReplicatedStream, chunk: ChunkRegistration, wanted: ScanRange, max_bytes: int
    ) -> ScanResult:
        """The same by reading all batches of about SCAN_BYTES: other hosts do not tell where control batches are."""
        end = chunk.end
        count = 1 if end is None else end.next_offset - chunk.base_offset
        offsets = SCAN_OFFSETS if end is None else max(1, SCAN_BYTES * count // max(1, end.length_bytes))
        first = max(wanted.from_offset, wanted.before_offset - offsets)
        found: list[tuple[int, Buffer]] = []

        def look(header: BatchHeader, batch: Buffer) -> bool:
            is_here = header.is_control and first <= header.base_offset < wanted.before_offset
            if is_here and (not wanted.types or known_type(batch) in wanted.types):
                found.append((header.base_offset, batch))
            return header.next_offset >= wanted.before_offset

        await self._walk(stream, chunk, look, from_offset=first)
        buffers: list[Buffer] = []
        size = 0
        for offset, batch in reversed(found):
            if buffers and size + len(batch) > max_bytes:
                return ScanResult(buffers, offset + 1, size)
            buffers.append(batch)
            size += len(batch)
        return ScanResult(buffers, first, size)

    def is_late(self, stream: ReplicatedStream, before_offset: int) -> bool:
        """Whether what lies in front of an offset is only on hosts that have let readers wait lately."""
        chunk = stream.registration.chunk_at(before_offset - 1)
        if chunk is None or chunk.is_tiered_alone or self._local(stream, chunk, before_offset - 1) is not None:
            return False
        return self._owners.answering(chunk) is Answering.LATE

    def is_elsewhere(self, stream: ReplicatedStream, offset: int) -> bool:
        """Whether a read at an offset waits for the answer of another host."""
        if not stream.is_readable or offset >= stream.high_watermark:
            return False
        try:
            chunk = stream.registration.chunk_at(offset)
        except NotLeader:
            return False
        if chunk is None or chunk.is_tiered_alone or self._local(stream, chunk, offset) is not None:
            return False
        return self._owners.answering(chunk) is Answering.AT_ONCE

    def _local(self, stream: ReplicatedStream, chunk: ChunkRegistration, offset: int) -> Stream | None:
        """This host's copy of a chunk, if it has the offset."""
        local = self._files.local(stream.stream, chunk.epoch)
        return local if local is not None and local.log_start_offset <= offset < local.high_watermark else None

    # ---- times

    async def _locally(
        self, stream: ReplicatedStream, chunk: ChunkRegistration, find: Callable[[Stream], Awaitable[TimeFound | None]]
    ) -> tuple[bool, TimeFound | None]:
        """Whether this host's copy of a chunk could be looked up, and what was found in it. Damage of the only copy
        raises; otherwise the chunk is to be read as whoever has no copy reads it.
        """
        local = self._local(stream, chunk, _limit(stream, chunk) - 1)
        if local is None:
            return False, None
        try:
            return True, await find(local)
        except (CorruptChunk, OSError):
            if len(chunk.members) == 1 and chunk.tiered is None:
                raise
        return False, None

    async def find_timestamp(self, stream: ReplicatedStream, timestamp_ms: int) -> TimeFound | None:
        """The first record with this timestamp or a later one; None if there is none. Raises as `read` does."""
        for chunk in self._chunks(stream):
            limit = _limit(stream, chunk)
            start = stream.log_start_offset
            is_known, found = await self._locally(
                stream, chunk, partial(self._engine.find_timestamp, timestamp_ms=timestamp_ms)
            )
            if found is not None and start <= found.offset < limit:
                return found
            if is_known and (found is None or found.offset >= limit):
                continue
            tiered = _in_tier(stream, chunk)
            if tiered is not None and chunk.is_tiered_alone:
                found = await self._engine.tier.find_timestamp_in(tiered, timestamp_ms, start)
                if found is not None and found.offset < limit:
                    return found
                continue
            late: list[TimeFound] = []

            def look(header: BatchHeader, batch: Buffer, late: list[TimeFound] = late, start: int = start) -> bool:
                if header.max_timestamp >= timestamp_ms and not header.is_control:
                    moment = first_moment(header, memoryview(batch), timestamp_ms, start)
                    late += [] if moment is None else [moment]
                return bool(late)

            await self._walk(stream, chunk, look)
            if late:
                return late[0]
        return None

    async def max_timestamp(self, stream: ReplicatedStream) -> TimeFound | None:
        """The record with the latest timestamp, the first if several have it. Raises as `read` does."""
        newest: TimeFound | None = None
        for chunk in reversed(self._chunks(stream)):  # the newest first: what is in the tier is seldom read
            limit = _limit(stream, chunk)
            _, found = await self._locally(stream, chunk, self._engine.max_timestamp)
            candidates: Sequence[TimeFound] = () if found is None else (found,)
            if found is None or not stream.log_start_offset <= found.offset < limit:
                candidates = await self._newest(stream, chunk, max(0, newest.timestamp if newest else 0))
            for each in candidates:
                if newest is None or each.rank > newest.rank:
                    newest = each
        return newest

    async def _newest(self, stream: ReplicatedStream, chunk: ChunkRegistration, least_ms: int) -> Sequence[TimeFound]:
        """The newest record of a chunk that this host has no copy of; it need not be found if all are older."""
        tiered = _in_tier(stream, chunk)
        if tiered is not None and chunk.is_tiered_alone:
            if tiered.max_timestamp < least_ms:
                return ()
            in_tier = await self._engine.tier.newest_in(tiered, stream.log_start_offset)
            return () if in_tier is None else (in_tier,)
        newest: list[TimeFound] = []
        start = stream.log_start_offset

        def look(header: BatchHeader, batch: Buffer) -> bool:
            if not header.is_control and (not newest or header.max_timestamp > newest[0].timestamp):
                times = batch_times(header, memoryview(batch), start)
                newest[:] = nlargest(1, (*newest, *times), key=lambda each: each.rank)
            return False

        await self._walk(stream, chunk, look)
        return newest

    def _chunks(self, stream: ReplicatedStream) -> Sequence[ChunkRegistration]:
        stream.check_reads()
        first, end = stream.log_start_offset, stream.high_watermark
        chunks = stream.registration.chunks
        return [chunk for chunk in chunks if chunk.base_offset < end and not (chunk.end and chunk.end[1] <= first)]

    async def _walk(
        self,
        stream: ReplicatedStream,
        chunk: ChunkRegistration,
        look: Callable[[BatchHeader, Buffer], bool],
        from_offset: int = 0,
    ) -> None:
        """Show each batch of a chunk, control batches too, to `look`, until it returns True."""
        offset, limit = max(chunk.base_offset, from_offset, stream.log_start_offset), _limit(stream, chunk)
        while offset < limit:
            found = await self._read(stream, chunk, offset, PIECE_BYTES, include_control=True)
            if found.next_offset <= offset:
                raise _short(stream.name, chunk, offset, limit)
            for buffer in found.buffers:
                for at, header in iterate_batches(buffer):
                    if look(header, memoryview(buffer)[at : at + header.size_bytes]):
                        return
            offset = found.next_offset


def _in_tier(stream: ReplicatedStream, chunk: ChunkRegistration) -> TieredChunk | None:
    """The chunk as the tier has it, by the newest registration: it may have got there since. Raises NotLeader."""
    now = chunk if chunk.tiered is not None else stream.registration.chunk(chunk.epoch)
    return None if now is None else tiered_chunk(stream.tier_place, now)


def _limit(stream: ReplicatedStream, chunk: ChunkRegistration) -> int:
    """The offset up to which a chunk may be read."""
    end = stream.high_watermark if chunk.end is None else chunk.end.next_offset
    return min(end, stream.high_watermark)


def _cut(found: ReadResult, offset: int, limit: int) -> ReadResult:
    """What was read, up to the last whole batch that ends at or before a limit."""
    buffers: list[Buffer] = []
    size, next_offset = 0, offset
    for buffer in found.buffers:
        end, view = 0, memoryview(buffer)
        while end < len(view):
            header = parse_header(view, end)
            if header.next_offset > limit:
                break
            end, next_offset = end + header.size_bytes, header.next_offset
        if end:
            buffers.append(view[:end])
            size += end
        if end < len(view):
            break
    return ReadResult(buffers, next_offset, size)


def _checked(found: EntriesRead, offset: int, limit: int, stream: str) -> _ShownBatches:
    """The batches of an answer from the one that holds `offset` on, up to a limit. Raises CorruptChunk."""
    batches: list[tuple[BatchHeader, Buffer]] = []
    due, next_offset = found.at.next_offset, offset
    for entry in found.entries:
        try:
            for at, header in iterate_batches(entry.data):
                if header.base_offset != due:
                    raise CorruptBatch(f"base offset {header.base_offset} stands where {due} is due")
                due = header.next_offset
                if offset < due <= limit:
                    batches.append((header, memoryview(entry.data)[at : at + header.size_bytes]))
                    next_offset = due
        except CorruptBatch as error:
            raise CorruptChunk(
                f"{stream}: what {found.member.host} has sent of epoch {found.epoch} is damaged ({error})",
                first_offset=due,
                last_offset=limit - 1,
            ) from error
    return _ShownBatches(batches, next_offset)


def _short(stream: str, chunk: ChunkRegistration, offset: int, limit: int) -> CorruptChunk:
    return CorruptChunk(
        f"{stream}: a member of the chunk of epoch {chunk.epoch} gives nothing from offset {offset} on, {limit} is due",
        first_offset=offset,
        last_offset=limit - 1,
    )

"""Retention in a cluster: the host that owns a stream decides what goes, as a host alone does for its streams.

Invariants:
* Age is counted on the cluster's retention clock from the last append to a chunk, with AGREE_MS more, by which two
  hosts' clocks may differ: so no jump of a wall clock and no outage deletes a record.
* Whole sealed chunks go, oldest first, by a swap of the registration; nothing at or behind a registered reader's
  position goes, up to the limits of readers. Nothing behind the start of an epoch that is under way goes.
* The open chunk is sealed when its first append is older than `segment.ms` or `retention.ms`, and when all its records
  are trimmed: so retention reaches every record, also when input has stopped, and when it is not known now what readers
  and epochs hold.

What may go is looked for every `retention_check_interval_ms`, and at once where a chunk has become full, a topic's
settings have changed, or a disk has no room. Costs: the chunks that go, the sizes of all where `retention.bytes` is
set, and the swaps.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, overload

import trio

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.base.metadata.errors import MetadataError
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.retention_clock import AGREE_MS, ClusterClock
from logstore.errors import CairnError
from logstore.events import RETENTION_WAITS
from logstore.log.readers import HeldRecords
from logstore.log.retention import Excess, RetentionTime, excess, held_records
from logstore.log.store import MAKE_ROOM_INTERVAL_S, StoreSettings
from logstore.log.ticket import Ticket
from logstore.replica.registrations import ChunkRegistration, StreamRegistration

STREAMS_AT_ONCE: Final = 200
"""Looked at before other tasks run."""


class KeptByReaders(Protocol):
    """What registered readers hold."""

    async def trim_limit(self, stream: ReplicatedStream, wanted: int, held: Callable[[int], HeldRecords]) -> int:
        """The offset up to which readers let a stream be trimmed, at most `wanted`; releases readers that hold too
        much. `held`: what is held from an offset on. Raises CairnError or MetadataError if that cannot be known now.
        """


class NoHolds:
    """Nobody holds anything."""

    async def trim_limit(self, stream: ReplicatedStream, wanted: int, held: Callable[[int], HeldRecords]) -> int:
        """See KeptByReaders."""
        return wanted


class KeptByEpochs(Protocol):
    """What epochs under way hold (`logstore.cluster.epochs.epoch_holds`)."""

    async def trim_limit(self, stream: ReplicatedStream, wanted: int) -> int:
        """The offset up to which epochs let a stream be trimmed, at most `wanted`. Raises CairnError if that cannot be
        known now.
        """

    def deletable(self, stream: ReplicatedStream, offset: int) -> Ticket[None]:
        """Settles when epochs let the records in front of an offset be deleted. Fails with TryAgain."""


class NoEpochs:
    """There are no epochs."""

    async def trim_limit(self, stream: ReplicatedStream, wanted: int) -> int:
        """See KeptByEpochs."""
        return wanted

    def deletable(self, stream: ReplicatedStream, offset: int) -> Ticket[None]:
        """See KeptByEpochs."""
        return Ticket.succeeded(None)


class _Chunk(NamedTuple):
    """A chunk as retention sees it (`logstore.log.retention.AgedChunk`)."""

    base_offset: int
    next_offset: int
    size_bytes: int
    written_ms: int
    max_timestamp: int = 0


class _Chunks(Sequence[_Chunk]):
    """The chunks of a registration as retention sees them, each made when it is asked for."""

    def __init__(self, chunks: Sequence[ChunkRegistration], open_end: _Chunk) -> None:
        """`open_end`: the open one counts as written now; it goes when it is sealed."""
        self._chunks = chunks
        self._open_end = open_end

    def __len__(self) -> int:
        return len(self._chunks)

    @overload
    def __getitem__(self, at: int) -> _Chunk: ...

    @overload
    def __getitem__(self, at: slice) -> list[_Chunk]: ...

    def __getitem__(self, at: int | slice) -> _Chunk | list[_Chunk]:
        if isinstance(at, slice):
            return [self._seen(chunk) for chunk in self._chunks[at]]
        return self._seen(self._chunks[at])

    def total_bytes(self) -> int:
        """Of all chunks."""
        sealed = sum(chunk.end.length_bytes for chunk in self._chunks if chunk.end is not None)
        return sealed + (self._open_end.size_bytes if self._chunks and self._chunks[-1].is_open else 0)

    def _seen(self, chunk: ChunkRegistration) -> _Chunk:
        if chunk.end is None:
            return self._open_end._replace(base_offset=chunk.base_offset)
        return _Chunk(chunk.base_offset, chunk.end.next_offset, chunk.end.length_bytes, chunk.written_ms)


class ClusterRetention:
    """See the module. `holds` and `epochs` may be replaced before `run` runs. It is what streams tell of their chunks,
    and ask before clients delete records (`StreamRetention`).
    """

    def __init__(self, clock: ClusterClock, wall: Clock, settings: StoreSettings, report: Report) -> None:
        self.holds: KeptByReaders = NoHolds()
        self.epochs: KeptByEpochs = NoEpochs()
        self._clock = clock
        self._wall = wall
        self._settings = settings
        self._report = report
        self._due: dict[ReplicatedStream, None] = {}
        self._all_due = False
        self._all_due_s: float | None = None
        self._woken = trio.Event()

    # ---- what streams ask and say (StreamRetention)

    def now_ms(self) -> int:
        """The cluster's retention clock."""
        return self._clock.now_ms()

    def due(self, stream: ReplicatedStream) -> None:
        """Look at a stream soon."""
        self._due[stream] = None
        self._woken.set()

    def deletable(self, stream: ReplicatedStream, offset: int) -> Ticket[None]:
        """See KeptByEpochs."""
        return self.epochs.deletable(stream, offset)

    def all_due(self) -> None:
        """Look at all streams soon: the disk has no room. Said again while that lasts, it counts every ten seconds."""
        now_s = self._wall.monotonic_s()
        if self._all_due_s is None or now_s - self._all_due_s >= MAKE_ROOM_INTERVAL_S:
            self._all_due_s, self._all_due = now_s, True
            self._woken.set()

    # ---- the walk

    async def run(self, streams: Callable[[], Sequence[ReplicatedStream]]) -> None:
        """Apply retention to the streams that this host owns, until cancelled."""
        while True:
            is_for_all = await self._wait_until_due()
            found = [*streams()] if is_for_all else [*self._due]
            self._all_due = False
            self._due.clear()
            for number, stream in enumerate(found, 1):
                if number % STREAMS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                stream.tidy()
                if stream.is_leader:
                    await self._look_at(stream)

    async def _wait_until_due(self) -> bool:
        """Wait for something to look at, which may have become due during the last walk; whether it is all streams."""
        with trio.move_on_after(self._settings.retention_check_interval_ms / 1000) as waited:
            while not (self._due or self._all_due):
                self._woken = trio.Event()
                await self._woken.wait()
        return waited.cancelled_caught or self._all_due

    async def _look_at(self, stream: ReplicatedStream) -> None:
        try:
            await self.apply(stream)
        except (CairnError, MetadataError) as error:
            self._report(RETENTION_WAITS, stream=stream.name, error=str(error))

    async def apply(self, stream: ReplicatedStream) -> None:
        """Roll and trim one stream that this host owns. Raises CairnError, MetadataError: it is not known what may go.

        The roll comes first: it needs nobody's leave.
        """
        stream.roll_if_old()
        stream.producers.expire(self._wall.wall_ms() - self._settings.producer_expiry_ms)
        registration = stream.registration
        found = None if stream.is_internal else await self._excess(stream, registration)
        if found is not None and found.before_offset > stream.log_start_offset:
            stream.trim(found.before_offset, found.why)
        elif registration.dropped_by(
            stream.log_start_offset, keeps_last=stream.needs_last_chunk and not stream.open_bytes
        ):
            stream.trim(stream.log_start_offset)

    async def _excess(self, stream: ReplicatedStream, registration: StreamRegistration) -> Excess | None:
        open_end = _Chunk(0, stream.high_watermark, stream.open_bytes, self.now_ms())
        chunks, config = _Chunks(registration.chunks, open_end), stream.config
        total_bytes = chunks.total_bytes() if config.retention_bytes >= 0 else 0
        now = RetentionTime(self.now_ms() - AGREE_MS, self._wall.wall_ms())
        wanted = excess(chunks, config, stream.high_watermark, now, lambda offset: offset, total_bytes)
        if wanted is None:
            return None
        before = wanted.before_offset
        # Readers come last: who registers behind their answer asks for bounds, and the trim has to be among them.
        allowed = await self.epochs.trim_limit(stream, before)
        if allowed < before:
            wanted = excess(chunks, stream.config, allowed, now, lambda offset: offset)
            if wanted is None:
                return None
            before = wanted.before_offset
        allowed = await self.holds.trim_limit(stream, before, held_records(chunks, before))
        if allowed >= before:
            return wanted
        return excess(chunks, config, allowed, now, lambda offset: offset, total_bytes)

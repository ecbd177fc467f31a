"""A store on trio: runs its jobs on writer threads, its catch-up reads on reader threads, and lets tasks wait for both.

Invariants:
* All of the store's code runs on the event loop's thread; other threads see only jobs and immutable views.
* A waiting task costs no thread; readers are bounded (`READERS`).
* The jobs of `kick` start after all runnable tasks have had their turn, so that batches that arrive together share a
  write. The jobs of `begin` start at once, as long as such jobs are alone in their turn of the event loop (`Solitude`).
* The event loop blocks for a disk job for at most `WAIT_MS`, and only while such jobs are short (`Patience`).
* While writes are under way, catch-up reads keep to their share of the disk, and writes go first (`ReadsBeside`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from logstore.disk.ahead import AHEAD_BYTES, AheadReads
from logstore.disk.patience import Patience, Solitude
from logstore.disk.readers import ReaderThreads
from logstore.disk.reads_beside import ReadsBeside
from logstore.disk.scrub import Scrub
from logstore.disk.turns import Turns
from logstore.disk.writers import WriterThreads
from logstore.errors import CorruptChunk, OffsetOutOfRange, UnknownTopicOrPartition
from logstore.events import LOOK_UP_INEXACT
from logstore.interfaces import FileSystem, ReadableFiles
from logstore.log import reading, scanning
from logstore.log.chunks import ChunkView
from logstore.log.jobs import DiskJob
from logstore.log.read_ahead import ReadPosition, split
from logstore.log.read_patience import ReadPatience
from logstore.log.reading import (
    MANY_BATCHES,
    QUICK_LOOK_UP_BYTES,
    QUICK_LOOK_UP_RECORDS,
    QUICK_READ_BATCHES,
    QUICK_READ_BYTES,
    CachedFiles,
    NotQuick,
    ReadResult,
    TimeFound,
    compact,
    from_tail,
    lost,
)
from logstore.log.room_watch import RoomWatch
from logstore.log.scanning import ScanRange, ScanResult, TakeEnd, find_ends
from logstore.log.served import ForeignStream, LeaderEpochEnd, ServedStream
from logstore.log.store import Store
from logstore.log.stream import Stream
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import TicketView
from logstore.tier.reads import TierReads

T = TypeVar("T")
READERS = 4
"""Catch-up reads at a time: more would only take disk and interpreter time from the writers."""
SCAN_CHUNKS = 64
"""Most chunks that one scan reads, so that the answer arrives before the client times out."""
FIRST_CHECK_S = 30.0
"""Latest time of the first retention check after a start: a sidecar may run for less than the check interval."""
SAVE_INTERVAL_S = 2.0
"""How often acknowledgements of readers are made durable: retention by size waits for them."""
LOOK_INTERVAL_S = 1.0
"""How often the room on the disk is looked at: others may fill it, and appends go on as soon as there is room again."""
REST_INTERVAL_S = 5.0
"""A stream without writes for once to twice as long is quiet: after a kill it is opened without a look at its data."""
_INEXACT = "the batch does not decompress, or to more than 64 MiB; its record may be at a later offset"


class StoreEngine:
    """Runs one store. `open_engine` makes it."""

    elsewhere = None
    """See `ServingEngine`: no read waits for another host."""

    def __init__(self, store: Store, fs: FileSystem, writers: WriterThreads, nursery: trio.Nursery) -> None:
        self.store = store
        self._fs = fs
        self._writers = writers
        self._patience, self._solitude = Patience(), Solitude()
        self._turns = Turns()
        self._kicked = trio.Event()
        self._defect: Exception | None = None
        """What `begin` has met: it ends the engine, and not only whoever called."""
        self._readers = ReaderThreads(READERS)
        self._look_ups = ReaderThreads(1)
        self.tier = TierReads(store.indexes, nursery)
        self._beside = ReadsBeside(lambda: store.queue.may_start)
        self.scrub = Scrub(store, self._beside, self.offload_files, self.wait)
        self._ahead = AheadReads(self._beside, nursery, self._read_quickly, self._read_chunk)
        self._room = RoomWatch(store.space, store.report)
        self._is_settling = False
        self._after_settling: list[Callable[[], None]] = []

    @property
    def disk_error(self) -> str | None:
        """The error of the last disk job if the disk refused it; None once a job has succeeded again."""
        return self._room.error

    def append(self, stream: ServedStream, records: bytearray | memoryview, *, now_ms: int) -> AppendTicket:
        """Append a batch; see ServingEngine."""
        return stream.append(records, now_ms=now_ms)

    def kick(self) -> None:
        """Have the queued disk jobs started soon. Call it after a burst of appends."""
        if self.store.queue.may_start:
            self._kicked.set()

    def begin(self) -> None:
        """Start the queued disk jobs now if they are alone, and wait for them if they are short and the disk is fast;
        otherwise as `kick`. Call it when all that happens together has happened; tickets may settle meanwhile. Where
        there is nothing to write, a piece is read ahead: a turn of the event loop for it would cost a tenth of it.
        """
        if not self.store.queue.may_start:
            self._ahead.read_next()
            return
        if self._is_settling or not self.waits_for_short_jobs or not self._solitude.may_begin(self._turns.number):
            self._kicked.set()
            return
        try:
            self._start_and_wait()
        except Exception as error:  # noqa: BLE001 handed to `run_starts`, which raises it
            self._defect = error
            self._kicked.set()

    async def wait(self, ticket: TicketView[T]) -> T:
        """Wait for a ticket; returns its result or raises its error."""
        self.kick()
        if not ticket.done:
            event = trio.Event()
            ticket.add_callback(lambda _: event.set())
            await event.wait()
        return ticket.result()

    async def run_jobs(self) -> None:
        """Settle finished jobs; runs until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._writers.eventfd)
            self._settle()

    async def run_starts(self) -> None:
        """Start the queued jobs after each kick; runs until cancelled."""
        trio.lowlevel.add_instrument(self._turns)
        try:
            while True:
                await self._kicked.wait()
                if self._defect is not None:
                    raise self._defect
                self._kicked = trio.Event()
                self._start_and_wait()
        finally:
            trio.lowlevel.remove_instrument(self._turns)

    def _start_and_wait(self) -> None:
        """Start the queued jobs. If short ones are among them, wait for them as long as is good."""
        is_short = self._start()
        if is_short and self.waits_for_short_jobs and self._writers.wait_briefly():
            self._settle()

    @property
    def waits_for_short_jobs(self) -> bool:
        """Whether the event loop waits for short jobs now, because they were fast of late."""
        return self._patience.is_worth_it

    def _start(self) -> bool:
        """Start the queued jobs; returns whether a short one is among them."""
        queue, is_short = self.store.queue, False
        light: list[DiskJob] = []
        while (job := queue.next_job()) is not None:
            is_short = is_short or job.is_short
            if job.is_light:
                light.append(job)
            else:
                self._beside.started(job)
                self._writers.submit((job,))
        if light:  # a thread's turn costs more than such a job
            self._writers.submit(light)
        return is_short

    def _settle(self) -> None:
        """Settle the finished jobs, start the next ones, and call those who wait for `after_settling`."""
        queue = self.store.queue
        self._is_settling = True
        try:
            for job, failure, took_s in self._writers.collect():
                self._beside.ended(job)
                if job.is_short:
                    self._patience.note(took_s)
                self._room.ended(job, None if failure is None else failure[1])
                queue.finished(job, failure)
        finally:
            self._is_settling = False
        if self.waits_for_short_jobs:
            self.kick()  # the answers come first, so that they need not wait for the next jobs
        else:
            self._start()
        self._beside.settled()
        callbacks, self._after_settling = self._after_settling, []
        for callback in callbacks:
            callback()

    def after_settling(self, callback: Callable[[], None]) -> bool:
        """Call `callback` once all jobs that finished together have settled and the next jobs are started.

        One write settles many tickets, and the caller can answer all of them at once. Returns False, and never calls
        `callback`, if no job is settling now. `callback` must not raise.
        """
        if self._is_settling:
            self._after_settling.append(callback)
        return self._is_settling

    async def run_ticks(self) -> None:
        """Apply retention at every check interval; runs until cancelled."""
        interval_s = self.store.settings.retention_check_interval_ms / 1000
        await trio.sleep(min(interval_s, FIRST_CHECK_S))
        while True:
            self.store.tick()
            self.kick()
            await trio.sleep(interval_s)

    async def run_looks(self) -> None:
        """Look at the room on the disk at intervals; runs until cancelled."""
        while True:
            self.store.space.look()
            self.kick()
            await trio.sleep(LOOK_INTERVAL_S)

    async def run_saves(self) -> None:
        """Make durable what readers acknowledged; runs until cancelled."""
        while True:
            await trio.sleep(SAVE_INTERVAL_S)
            self.store.save_readers()
            self.kick()

    async def run_reads(self) -> None:
        """Wake the tasks whose reads and look-ups have finished, and read ahead; runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._readers.run_wake_ups)
            nursery.start_soon(self._look_ups.run_wake_ups)
            nursery.start_soon(self._ahead.run)

    def stop_readers(self) -> None:
        """End the reader threads; no task may read any more."""
        self._readers.stop()
        self._look_ups.stop()

    async def run_rests(self) -> None:
        """Put streams that are not written to into the table of quiet streams; runs until cancelled."""
        while True:
            await trio.sleep(REST_INTERVAL_S)
            self.store.quiet.rest()
            self.kick()

    async def offload(self, work: Callable[[], T]) -> T:
        """Run blocking reads on a reader thread."""
        return await self._readers.run(work)

    async def offload_files(self, work: Callable[[FileSystem], T]) -> T:
        """Run blocking reads of the store's files on a reader thread."""
        return await self._readers.run(partial(work, self._fs))

    def _own(self, stream: ServedStream) -> Stream:
        """The stream as one of this store. Raises ForeignStream."""
        if not isinstance(stream, Stream):
            raise ForeignStream(stream, self)
        return stream

    async def read(
        self,
        stream: ServedStream,
        offset: int,
        max_bytes: int,
        *,
        include_control: bool = False,
        patience: ReadPatience | None = None,
    ) -> ReadResult:
        """Read whole batches, starting with the batch that holds `offset`: at least one, up to `max_bytes`; none at the
        high watermark, nor, with some `patience`, while they are on their way from the tier: the stream's waiters are
        woken when they are there.

        Without `include_control`, control batches are replaced by empty ones. Raises OffsetOutOfRange, CorruptChunk,
        TierUnavailable, TierRefused, ObjectMissing, OSError.
        """
        stream = self._own(stream)
        stream.check_offset(offset)
        entries = stream.read_tail(offset, max_bytes)
        if entries is not None:
            return from_tail(entries, offset, include_control=include_control)
        place, tiered = ReadPosition(stream, offset, include_control), stream.tiered.at(offset)
        if tiered is not None and stream.chunk_at(offset) is None:
            return await self.tier.serve(
                stream, tiered, offset, max_bytes, include_control=include_control, is_patient=patience is None
            )
        try:
            result, is_sequential = await self._read_share(stream, place, max_bytes)
        except (CorruptChunk, FileNotFoundError):
            if (tiered := stream.tiered.at(offset)) is None:
                raise
            # The local copy is damaged, or has gone since.
            return await self.tier.serve(
                stream, tiered, offset, max_bytes, include_control=include_control, is_patient=patience is None
            )
        self._ahead.read_on(stream, place, result.next_offset, is_sequential=is_sequential)
        return result

    async def _read_share(self, stream: Stream, place: ReadPosition, max_bytes: int) -> tuple[ReadResult, bool]:
        """Batches at a place from this store's files, read ahead or now, once readers have their share; and whether the
        reader reads on.
        """
        await self._beside.wait()
        paid_bytes, size_bytes = self._beside.begin(max_bytes), 0
        try:
            await self._ahead.wait(place)
            stream.check_offset(place.offset)  # trimmed during a wait
            result = self._ahead.pieces.take(place, max_bytes)
            is_sequential = result is not None or self._ahead.pieces.is_sequential(place)
            if result is None:
                most_bytes = max(max_bytes, AHEAD_BYTES) if is_sequential else max_bytes
                result, rest = split(await self._read_chunk(stream, place, most_bytes), max_bytes)
                self._ahead.pieces.put(place._replace(offset=result.next_offset), rest)
            size_bytes = result.size_bytes
        finally:
            self._beside.end(paid_bytes, size_bytes)  # a read that fails gives all of it back
        return compact(result), is_sequential

    async def end_of_epoch(self, stream: ServedStream, epoch: int, patience: ReadPatience) -> LeaderEpochEnd | None:
        """The end of the log for the one leader epoch of a host alone; see `ServingEngine`."""
        return LeaderEpochEnd(epoch, stream.high_watermark) if epoch == stream.leader_epoch else None

    async def leader_epoch_at(self, stream: ServedStream, offset: int, patience: ReadPatience) -> int:
        """That epoch."""
        return stream.leader_epoch

    @property
    def has_read_ahead(self) -> bool:
        """Whether `read_ahead_of` may find something now."""
        return self._ahead.may_give

    def read_ahead_of(self, stream: ServedStream, offset: int, max_bytes: int) -> ReadResult | None:
        """What `read` would give, at least one batch, if it was read ahead and may be given without a wait. None: ask
        `read`. It is to be sent at once, or copied (`compact`): it may keep a whole piece in memory.
        """
        stream = self._own(stream)
        if not stream.log_start_offset <= offset < stream.high_watermark:
            return None
        return self._ahead.give(stream, ReadPosition(stream, offset, False), max_bytes)

    async def _read_chunk(self, stream: Stream, place: ReadPosition, max_bytes: int) -> ReadResult:
        while True:
            view = self._view(stream, place.offset)
            try:
                try:
                    return self._read_quickly(stream, place, max_bytes, view)
                except NotQuick:
                    return await self.offload(partial(self._read_view, self._fs, view, place, max_bytes))
            except (CorruptChunk, FileNotFoundError) as error:
                if await self._cleaned_since(stream, view) is None:
                    if isinstance(error, FileNotFoundError):
                        stream.check_offset(place.offset)  # trimmed during the read: raise OffsetOutOfRange
                    raise

    def _read_quickly(
        self, stream: Stream, place: ReadPosition, max_bytes: int, view: ChunkView | None = None
    ) -> ReadResult:
        """Batches at a place that are in memory, read on the event loop. Raises NotQuick, CorruptChunk."""
        quick = CachedFiles(self._fs, 2 * QUICK_READ_BYTES)
        most_bytes = min(max_bytes, QUICK_READ_BYTES)
        return self._read_view(quick, view or self._view(stream, place.offset), place, most_bytes, QUICK_READ_BATCHES)

    def _read_view(
        self,
        files: ReadableFiles,
        view: ChunkView,
        place: ReadPosition,
        max_bytes: int,
        max_batches: int = MANY_BATCHES,
    ) -> ReadResult:
        return reading.read_chunk(
            files,
            self.store.indexes,
            view,
            place.offset,
            max_bytes,
            include_control=place.include_control,
            max_batches=max_batches,
        )

    async def _cleaned_since(self, stream: Stream, view: ChunkView) -> ChunkView | None:
        """The view of a chunk that was cleaned since `view`, whose positions did not fit; None if it was not."""
        chunk = next((chunk for chunk in stream.chunks if chunk.base_offset == view.base_offset), None)
        if chunk is None:
            return None
        if chunk.rewriting is not None:
            await self.wait(chunk.rewriting)
            return chunk.view(is_cold=view.is_cold)
        return None if chunk.revision == view.revision else chunk.view(is_cold=view.is_cold)

    @staticmethod
    def _view(stream: Stream, offset: int) -> ChunkView:
        view = stream.chunk_at(offset)
        if view is None:
            following = min((c.base_offset for c in stream.chunks if c.base_offset > offset), default=offset + 1)
            raise lost(stream.name, offset, following - 1)
        return view

    async def find_timestamp(self, stream: ServedStream, timestamp_ms: int) -> TimeFound | None:
        """The first record with this timestamp or a later one; None if there is none. Raises CorruptChunk, OSError."""
        stream = self._own(stream)
        await self._written_out(stream)
        start = stream.log_start_offset
        if stream.tiered:
            older = await self.tier.find_timestamp(stream, timestamp_ms)
            if older is not None:
                return self._reported(stream, older)
        late = [chunk for chunk in stream.chunks if chunk.max_timestamp >= timestamp_ms and chunk.size_bytes]
        for view in (chunk.view() for chunk in late if chunk.next_offset > start):
            find = partial(
                reading.find_timestamp,
                cache=self.store.indexes,
                timestamp_ms=timestamp_ms,
                from_offset=max(start, view.base_offset),
            )
            quick = CachedFiles(self._fs, QUICK_LOOK_UP_BYTES)
            try:
                found: TimeFound | None = find(quick, view=view, max_records=QUICK_LOOK_UP_RECORDS)
            except (NotQuick, CorruptChunk):  # a chunk that was cleaned meanwhile looks damaged: `_look_up` finds out
                found = await self._look_up(stream, view, find)
            if found is not None:
                return found
        return None

    async def max_timestamp(self, stream: ServedStream) -> TimeFound | None:
        """The record with the latest timestamp, the first if several have it; None: no records.

        Raises CorruptChunk, OSError.
        """
        stream = self._own(stream)
        await self._written_out(stream)
        start = stream.log_start_offset
        newest = self._reported(stream, await self.tier.max_timestamp(stream)) if stream.tiered else None
        for view in sorted(stream.chunk_views(start), key=lambda view: view.max_timestamp, reverse=True):
            if view.max_timestamp < 0 or (newest is not None and view.max_timestamp < newest.timestamp):
                break
            from_offset = max(start, view.base_offset)
            find = partial(reading.find_newest, cache=self.store.indexes, from_offset=from_offset)
            found = await self._look_up(stream, view, find)
            if found is not None and (newest is None or found.rank > newest.rank):
                newest = found
        return newest

    async def _written_out(self, stream: Stream) -> None:
        """Bring what the journal has of a stream into its chunk, where look-ups find it. Raises StorageFailed."""
        if stream.has_unwritten:
            await self.wait(stream.write_backlog())

    async def _look_up(
        self, stream: Stream, view: ChunkView, find: Callable[..., TimeFound | None]
    ) -> TimeFound | None:
        """Run one look-up at a time, because each may decompress a batch to many times its size."""
        while True:
            try:
                found = await self._look_ups.run(partial(find, self._fs, view=view))
                break
            except (CorruptChunk, FileNotFoundError):
                cleaned = await self._cleaned_since(stream, view)
                if cleaned is None and (tiered := stream.tiered.at(view.base_offset)) is not None:
                    found = await self.tier.run(tiered, lambda files, at: find(files, view=at))
                    break
                if cleaned is None:
                    raise
                view = cleaned
        return self._reported(stream, found)

    def _reported(self, stream: Stream, found: TimeFound | None) -> TimeFound | None:
        """What a look-up has found; it is reported if it is not exact."""
        if found is not None and not found.exact:
            self.store.report(LOOK_UP_INEXACT, stream=stream.name, offset=found.offset, why=_INEXACT)
        return found

    async def scan_controls(
        self, stream: ServedStream, before_offset: int, types: Collection[int], max_bytes: int, *, from_offset: int = 0
    ) -> ScanResult:
        """Control batches before an offset (-1: the high watermark), newest first, down to the log start or
        `from_offset`: at least one, up to `max_bytes`.

        May return none before it reaches that end; continue from `next_before`. Raises OffsetOutOfRange
        (above the high watermark), CorruptChunk (the newest of them is damaged), UnknownTopicOrPartition, OSError.
        """
        stream = self._own(stream)
        before = stream.high_watermark if before_offset == -1 else before_offset
        if before > stream.high_watermark:
            raise OffsetOutOfRange(stream.name, before, stream.log_start_offset, stream.high_watermark)
        found = ScanResult([], before, 0)
        wanted = ScanRange(max(from_offset, stream.log_start_offset), before, types)
        in_memory = scanning.scan_tail(stream.tail, wanted, max_bytes)
        if in_memory is not None:
            found = in_memory
        chunks = 0
        while not found.buffers or found.size_bytes < max_bytes:
            wanted = ScanRange(max(from_offset, stream.log_start_offset), found.next_before, types)
            if wanted.before_offset <= wanted.from_offset or chunks == SCAN_CHUNKS or (found.buffers and not chunks):
                break  # batches from memory are an answer; the caller can ask for more
            chunks += 1
            piece = await self._scan_chunk(stream, wanted, max_bytes - found.size_bytes, at_least_one=not found.buffers)
            if piece is None or piece.next_before == found.next_before:
                break
            size = found.size_bytes + piece.size_bytes
            found = ScanResult(found.buffers + piece.buffers, piece.next_before, size)
        return found

    async def _scan_chunk(
        self, stream: Stream, wanted: ScanRange, max_bytes: int, *, at_least_one: bool
    ) -> ScanResult | None:
        """The control batches of the next older chunk; None: the chunk is damaged, and newer batches are found."""
        await self._written_out(stream)
        view = stream.chunk_below(wanted.before_offset)
        if view is not None:
            # Who has registered as a reader, and then scans, must not find what the exchange is about to remove.
            rewriting = next(
                (chunk.rewriting for chunk in stream.chunks if chunk.base_offset == view.base_offset), None
            )
            if rewriting is not None:
                await self.wait(rewriting)
                view = stream.chunk_below(wanted.before_offset)
        scan = scanning.scan_chunk
        try:
            if view is None or view.next_offset < wanted.before_offset:
                older = stream.tiered.below(wanted.before_offset)
                if older is not None and older.next_offset >= wanted.before_offset:
                    return await self.tier.scan(older, wanted, max_bytes, at_least_one=at_least_one)
                first_offset = wanted.from_offset if view is None else view.next_offset
                raise lost(stream.name, first_offset, wanted.before_offset - 1)
            indexes = self.store.indexes
            return await self.offload(
                partial(scan, self._fs, indexes, view, wanted, max_bytes, at_least_one=at_least_one)
            )
        except (CorruptChunk, FileNotFoundError) as error:
            if view is not None and await self._cleaned_since(stream, view) is not None:
                return await self._scan_chunk(stream, wanted, max_bytes, at_least_one=at_least_one)
            if view is not None and (tiered := stream.tiered.at(view.base_offset)) is not None:
                return await self.tier.scan(tiered, wanted, max_bytes, at_least_one=at_least_one)
            if isinstance(error, CorruptChunk) and not at_least_one:
                return None
            if isinstance(error, CorruptChunk):
                raise
            if stream.deleted:
                raise UnknownTopicOrPartition(f"{stream.name} has been deleted") from None
            if view is not None and view.next_offset <= stream.log_start_offset:
                return ScanResult([], stream.log_start_offset, 0)  # trimmed during the read
            raise

    async def find_ends(self, stream: Stream, from_offset: int, *, take: TakeEnd) -> None:
        """Give `take` the END control batches at or after `from_offset`, by base offset and bytes, newest first.

        Raises CorruptChunk, OSError, and what `take` raises.
        """
        await find_ends(partial(self.scan_controls, stream), stream, from_offset, take=take)


@asynccontextmanager
async def open_engine(store: Store, fs: FileSystem) -> AsyncIterator[StoreEngine]:
    """Run a store during the `async with` block; at its end, finish and persist all pending work."""
    writers = WriterThreads(fs, store.settings.io_window)
    with ExitStack() as stack:
        stack.callback(writers.stop)
        async with trio.open_nursery() as nursery:
            engine = StoreEngine(store, fs, writers, nursery)
            stack.callback(engine.stop_readers)
            closing = trio.CancelScope(shield=True)
            working = [trio.CancelScope(shield=True), trio.CancelScope(shield=True)]
            nursery.start_soon(_work, engine.run_jobs, working[0], closing)
            nursery.start_soon(_work, engine.run_starts, working[1], closing)
            nursery.start_soon(engine.run_reads)
            nursery.start_soon(engine.run_ticks)
            nursery.start_soon(engine.run_saves)
            nursery.start_soon(engine.run_looks)
            nursery.start_soon(engine.run_rests)
            try:
                yield engine
            finally:
                with closing:
                    await engine.wait(store.close())
                for scope in working:
                    scope.cancel()
                nursery.cancel_scope.cancel()


async def _work(run: Callable[[], Awaitable[None]], scope: trio.CancelScope, closing: trio.CancelScope) -> None:
    """Run a task that the store needs for its end, also when all around it is cancelled; runs until `scope` is
    cancelled. If a defect ends the task, `closing` is cancelled: the store's end would never come.
    """
    try:
        with scope:
            await run()
    except BaseException:
        closing.cancel()
        raise

"""Cleaning: control records of state that no reader needs leave sealed chunks, while results and epochs stay.

A chunk is copied without them; a run of removed batches becomes one empty batch over the same offsets, as Kafka keeps
them after a compaction. So offsets stay dense, and everything that walks a chunk reads a cleaned one as any other.
BEGIN and END stay, because epochs are found again by them.

    content.cleaned written, synced -> index and producer snapshots removed -> renamed over the chunk -> index written

Invariants:
* Below the offset that the readers of a stream let go (`Readers.clean_limit`), chunk by chunk from the oldest on, and
  none is left out: of the control records of a query's state, those that are there are always the newest ones. Who
  looks for an older state finds records missing, and never older records in their place.
* A crash leaves the old content or the new one, under the chunk's name, never with the index of the other: the index is
  durably removed before the rename, and written after the rename is durable. Producer snapshots in a cleaned chunk
  would have positions of the old content; they are removed, and a recovery goes on from older ones.
* Records of results, BEGIN, END and records of other programs keep offset and bytes.
* Readers may change while a chunk is copied: the limit is asked for again before the exchange, and a scan that begins
  after a reader was registered sees either all that the reader holds, or what the exchange has left.
* While names are exchanged the chunk is pinned, so that a trim does not remove the new content's name. A chunk that a
  trim under way takes is not exchanged.
* One chunk at a time, piece by piece, and not faster than `CleaningLimits` allow. A chunk that is damaged, and a disk
  that fails, end the cleaning of a stream for this life: a name whose sync failed may be lost, and then newer chunks
  must not be cleaned. A disk without room for the copy ends a round only.

Source: docs/decisions/0031-cleaning.md.
"""

import errno
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from logstore.base.events import Report
from logstore.errors import CairnError, CorruptBatch
from logstore.events import CHUNK_CLEANED, CLEANING_FAILED
from logstore.format.batch import BatchHeader, empty_batches, is_empty, parse_header
from logstore.format.control import BEGIN_TYPE, END_TYPE, STATE_TYPES, Begin, decode_control, known_type
from logstore.format.index import IndexBlock, IndexEntry, encode_block
from logstore.interfaces import Buffer, FileSystem
from logstore.log.background import BackgroundJobs
from logstore.log.chunks import Chunk, ChunkView, IndexBuilder, IndexCache
from logstore.log.coroutines import start
from logstore.log.jobs import (
    Create,
    JobSource,
    Operation,
    RemoveFile,
    Rename,
    Sync,
    SyncDirectory,
    WorkOnFile,
    WriteFile,
)
from logstore.log.readers import CleanLimit
from logstore.log.reading import FoundBatch, load_index, walk_batches
from logstore.log.space import is_full
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket

MAX_RUN: Final = 1 << 30
"""Offsets of an empty batch: its last offset is a 32-bit delta."""


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """When chunks are cleaned, and how fast.

    Chunks are rewritten if `gain_bytes`, and `gain_share` of the bytes to read, may go. A job reads about
    `piece_bytes`; between two calls of `more`, which come every two seconds, `budget_bytes` are read: 8 MB a second.
    """

    gain_bytes: int = 4 << 20
    gain_share: float = 0.25
    piece_bytes: int = 4 << 20
    budget_bytes: int = 16 << 20


@dataclass(slots=True)
class ChunkCopy:
    """The copy of a chunk without some control records. `piece` and `measure` run on writer threads."""

    view: ChunkView
    target: str
    queries: Collection[str]
    piece_bytes: int
    written: int = 0
    """Bytes of the copy."""
    entries: list[IndexEntry] = field(default_factory=list)
    _position: int = 0
    _due: int = -1
    _query: str | None = None
    """The query of the append group that the copy is in."""
    _run: BatchHeader | None = None
    """The first batch of a run of removed ones."""
    _run_end: int = 0
    _builder: IndexBuilder = field(default_factory=IndexBuilder)

    @property
    def is_done(self) -> bool:
        """Whether the whole chunk is copied."""
        return self._position >= self.view.size_bytes

    def piece(self, fs: FileSystem) -> None:
        """Copy the next batches, about `piece_bytes` of them. Raises OSError, also for a damaged batch."""
        out: list[Buffer] = []
        at, end = self.written, self._position + self.piece_bytes
        due = self.view.base_offset if self._due < 0 else self._due
        try:
            for found in walk_batches(fs, self.view, (self._position, due), due, self.piece_bytes):
                self._take(found, out)
                self._position, self._due = found.position + len(found.buffer), found.header.next_offset
                if self._position >= end:
                    break
        except CairnError as error:
            raise OSError(errno.EIO, str(error)) from error
        if self.is_done:
            self._end_run(out)
        fs.write(self.target, at, out)

    def _take(self, found: FoundBatch, out: list[Buffer]) -> None:
        header = found.header
        kind = known_type(found.buffer) if header.is_control else 0
        if kind in (BEGIN_TYPE, END_TYPE):
            self._query = _query_of(found.buffer) if kind == BEGIN_TYPE else None
        if is_empty(header) or (kind in STATE_TYPES and self._query in self.queries):
            if self._run is not None and header.next_offset - self._run.base_offset > MAX_RUN:
                self._end_run(out)
            self._run, self._run_end = self._run or header, header.next_offset
            return
        self._end_run(out)
        self._put(header, found.buffer, kind, out)

    def _end_run(self, out: list[Buffer]) -> None:
        run, self._run = self._run, None
        if run is not None:
            batch = empty_batches(run, self._run_end)
            self._put(parse_header(batch), batch, 0, out)  # for the index a batch of records without any time

    def _put(self, header: BatchHeader, batch: Buffer, kind: int, out: list[Buffer]) -> None:
        self._builder.note(header, header.base_offset, self.written, self.entries, kind)
        out.append(batch)
        self.written += len(batch)

    def index(self, written_ms: int) -> bytes:
        """The bytes of the copy's index, with its seal."""
        ends = (self.written, self.view.next_offset, self.view.max_timestamp)
        found = IndexBlock(*ends, self.entries, written_ms)
        return encode_block(found) + encode_block(found._replace(entries=[]))


def _query_of(begin: Buffer) -> str | None:
    try:
        control = decode_control(begin)
    except (CairnError, CorruptBatch):
        return None
    return control.query if isinstance(control, Begin) else None


class StreamHolder(Protocol):
    """Keeps streams awake, so that their files may change (`logstore.log.quiet`)."""

    def hold(self, stream: Stream) -> Ticket[None]:
        """Settles once the stream's files may change, until `release`. Fails with StorageFailed."""

    def release(self, stream: Stream) -> None:
        """Undo `hold`."""


class LogCleaner:
    """Cleans the streams of a store. `clean` starts a round; `more` lets a round that is under way go on."""

    def __init__(
        self,
        notify: Callable[[JobSource], None],
        report: Report,
        indexes: IndexCache,
        limits: CleaningLimits,
        quiet: StreamHolder,
    ) -> None:
        self._quiet = quiet
        self._limits = limits
        self._jobs = BackgroundJobs(notify)
        self._report = report
        self._indexes = indexes
        self._measured = IndexCache(0)
        """One index at a time: a round must not drive out those that readers use."""
        self._round: Ticket[None] = Ticket.succeeded(None)
        self._budget = 0
        self._granted: Ticket[None] | None = None
        self._failed: set[Stream] = set()
        self._stopping = False

    def clean(self, streams: Iterable[tuple[Stream, Callable[[], CleanLimit | None]]]) -> Ticket[None]:
        """Clean these streams, each up to its limit, unless a round is under way; settles when the round has ended."""
        if self._round.done and not self._stopping:
            self._budget = self._limits.budget_bytes
            self._round = start(self._clean_all(list(streams)))
        return self._round

    def more(self) -> None:
        """Let the round read another `budget_bytes`."""
        self._budget = self._limits.budget_bytes
        granted, self._granted = self._granted, None
        if granted is not None:
            granted.succeed(None)

    def stop(self) -> Ticket[None]:
        """End the round after the operations in flight; settles when it has ended."""
        self._stopping = True
        self.more()
        return self._round

    async def _clean_all(self, streams: Sequence[tuple[Stream, Callable[[], CleanLimit | None]]]) -> None:
        for stream, limit in streams:
            if self._stopping:
                return
            if stream in self._failed:
                continue
            try:
                await self._clean(stream, limit)
            except CairnError as error:
                self._failed.add(stream)
                self._report(CLEANING_FAILED, stream=stream.name, error=str(error))

    async def _clean(self, stream: Stream, current: Callable[[], CleanLimit | None]) -> None:
        limit = current()
        if limit is None:
            return
        chunks = [
            chunk
            for chunk in stream.chunks[:-1]
            if stream.log_start_offset < chunk.next_offset <= limit.before_offset and chunk.size_bytes
        ]
        for chunk in chunks:
            if not limit.queries <= chunk.cleaned_for:
                chunk.cleaned_for, chunk.state_bytes = frozenset(), None
            if chunk.state_bytes is None:
                await self._measure(chunk)
            if self._stopping:
                return
        found = [chunk for chunk in chunks if chunk.state_bytes]
        gain = sum(chunk.state_bytes or 0 for chunk in found)
        if gain < max(self._limits.gain_bytes, self._limits.gain_share * sum(chunk.size_bytes for chunk in found)):
            return
        cleaned = start(self._clean_chunks(stream, found, limit.queries, current))
        await cleaned.settled()
        self._quiet.release(stream)
        cleaned.result()

    async def _clean_chunks(
        self,
        stream: Stream,
        chunks: Sequence[Chunk],
        queries: frozenset[str],
        current: Callable[[], CleanLimit | None],
    ) -> None:
        await self._quiet.hold(stream)
        for chunk in chunks:
            may_go = partial(_may_go, stream, chunk, queries, current)
            # Chunks are cleaned from the oldest on: behind a chunk that stays, all stay.
            if self._stopping or not await self._clean_chunk(stream, chunk, queries, may_go):
                return

    async def _measure(self, chunk: Chunk) -> None:
        view = replace(chunk.view(), is_cold=True)
        measured: list[int] = []
        work = WorkOnFile(chunk.index_path, lambda fs: measured.append(state_bytes(fs, self._measured, view)))
        await self._jobs.run([work])
        chunk.state_bytes = measured[0]

    async def _clean_chunk(
        self, stream: Stream, chunk: Chunk, queries: frozenset[str], may_go: Callable[[], bool]
    ) -> bool:
        """Whether the chunk has no records of state of `queries` any more. Raises StorageFailed; then the chunk has its
        old content, or the new one without an index.
        """
        copy = ChunkCopy(replace(chunk.view(), is_cold=True), chunk.cleaned_path, queries, self._limits.piece_bytes)
        try:
            if not await self._copy(copy, may_go):
                await self._jobs.run([RemoveFile(copy.target, optional=True)])
                return False
        except CairnError as error:
            await self._jobs.run([RemoveFile(copy.target, optional=True)])
            if is_full(error.__cause__):
                return False
            raise
        if copy.written >= chunk.size_bytes:
            await self._jobs.run([RemoveFile(copy.target, optional=True)])
            chunk.cleaned_for, chunk.state_bytes = queries, 0
            return True
        if not may_go():
            await self._jobs.run([RemoveFile(copy.target, optional=True)])
            return False
        pin = stream.pin(chunk.base_offset)
        exchanged = start(self._exchange(stream, chunk, copy, queries))
        await exchanged.settled()
        pin.release()
        exchanged.result()
        return True

    async def _copy(self, copy: ChunkCopy, may_go: Callable[[], bool]) -> bool:
        """Whether the whole chunk is copied; False: it need not be any more. Raises StorageFailed."""
        await self._jobs.run([Create(copy.target)])
        while not copy.is_done:
            await self._take_budget()
            if self._stopping or not may_go():
                return False
            await self._jobs.run([WorkOnFile(copy.target, copy.piece)])
        return True

    async def _take_budget(self) -> None:
        while self._budget <= 0 and not self._stopping:
            self._granted = Ticket()
            await self._granted
        self._budget -= self._limits.piece_bytes

    async def _exchange(self, stream: Stream, chunk: Chunk, copy: ChunkCopy, queries: frozenset[str]) -> None:
        """Put the copy in the chunk's place."""
        rewriting = chunk.rewriting = Ticket[None]()
        # Scans from memory would find the records until they are evicted, and not after.
        stream.tail.drop_before(chunk.next_offset)
        renamed = start(self._rename(chunk, copy))
        await renamed.settled()
        freed_bytes = chunk.size_bytes - copy.written
        # A rename that reports an error may have been made: the length tells which content has the name.
        sizes = [copy.written]
        if renamed.error is not None:
            sizes.clear()
            look = WorkOnFile(chunk.log_path, lambda fs: sizes.append(fs.size(chunk.log_path)))
            await start(self._look(look)).settled()
        if sizes == [copy.written]:
            self._indexes.forget(chunk.index_path)
            chunk.size_bytes, chunk.index_bytes, chunk.producers_bytes = copy.written, 0, 0
            chunk.revision += 1
            chunk.cleaned_for, chunk.state_bytes = queries, 0
        chunk.rewriting = None
        rewriting.succeed(None)
        renamed.result()
        # Not before the rename is durable: the old content must not get this index.
        await self._jobs.run([SyncDirectory(chunk.directory)])
        index = copy.index(chunk.written_ms)
        await self._jobs.run(
            [
                Create(chunk.index_path, optional=True),
                WriteFile(chunk.index_path, 0, [index], optional=True),
                Sync(chunk.index_path, optional=True),
                SyncDirectory(chunk.directory, optional=True),
            ]
        )
        last = chunk.next_offset - 1
        self._report(CHUNK_CLEANED, stream=stream.name, first=chunk.base_offset, last=last, freed_bytes=freed_bytes)

    async def _look(self, look: WorkOnFile) -> None:
        await self._jobs.run([look])

    async def _rename(self, chunk: Chunk, copy: ChunkCopy) -> None:
        operations: list[Operation] = [
            Sync(copy.target),
            RemoveFile(chunk.index_path),
            RemoveFile(chunk.producers_path),
            SyncDirectory(chunk.directory),
            Rename(copy.target, chunk.log_path),
        ]
        await self._jobs.run(operations)


def _may_go(stream: Stream, chunk: Chunk, queries: frozenset[str], current: Callable[[], CleanLimit | None]) -> bool:
    """Whether a chunk is still there, also after a trim under way, and its state of `queries` still needed by nobody.

    Calls of the same moment of the loop's thread agree: what `may_go` allowed may be begun at once.
    """
    limit = current()
    is_there = not stream.deleted and any(known is chunk for known in stream.chunks[:-1])
    is_kept = chunk.next_offset > max(stream.start_asked, stream.log_start_offset)
    return (
        is_there
        and is_kept
        and limit is not None
        and queries <= limit.queries
        and chunk.next_offset <= limit.before_offset
    )


def state_bytes(fs: FileSystem, cache: IndexCache, view: ChunkView) -> int:
    """The bytes of a chunk's control batches of state, by its index. Raises OSError, also for damage."""
    try:
        index = load_index(fs, cache, view)
    except CairnError as error:
        raise OSError(errno.EIO, str(error)) from error
    places = index.controls_down(view.base_offset, view.next_offset, view)
    return sum(place.end - place.position for place in places if place.kind in STATE_TYPES)

"""The scrub of a host: reads all sealed chunks in the background, one after the other, and tells what is damaged.

It walks the sealed chunks of the store's streams and replicas in the order of their names, piece by piece, and begins
anew behind the last one. Where it is, the catalogue has, so a restart goes on there.

Invariants:
* It changes no chunk. Damage of a replica is told to the cluster (`ScrubHooks`), which replaces the copy as if a reader
  had found it; damage of a stream's chunk is an event, as the reader of the chunk will get its error.
* Damage counts if a second walk over the chunk finds it too, and the chunk is still the one that was read: what was
  trimmed, removed, cleaned or copied anew meanwhile is passed by.
* A disk that refuses a read says nothing about the chunk. Only if another chunk could be read whole in between, and the
  chunk still cannot, it counts as damaged; so a disk that fails as a whole damages nothing, and is reported once.
* DAMAGE_PAUSE_S lies between two findings: what is repaired because of them is bounded.
* Pieces keep to the rate (`ScrubSettings`). While streams are written, a piece waits for a pause of these, for as long
  as pieces lie apart; then it goes on as a catch-up read does (`ReadsBeside`), and in a cluster as a copy's piece does.
* The pages of what was read are dropped from the page cache. A piece, and the names of CHUNKS_AT_ONCE chunks, are in
  memory.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Final, NamedTuple, Protocol

import trio

from logstore.disk.reads_beside import ReadsBeside
from logstore.errors import PASSING_ERRORS, CorruptChunk, StorageFailed, UnknownFormatVersion
from logstore.events import SCRUB_COMPLETED, SCRUB_COULD_NOT_READ, SCRUB_FOUND_DAMAGE
from logstore.interfaces import FileSystem
from logstore.log.chunks import Chunk, ChunkView
from logstore.log.reading import damaged
from logstore.log.replica_chunk import LocalReplica
from logstore.log.scrubbing import (
    KEY,
    LEAST_BYTES,
    PIECE_BYTES,
    ScrubPlace,
    ScrubProgress,
    ScrubSettings,
    check_founding,
    check_piece,
    decode_progress,
)
from logstore.log.store import Store
from logstore.log.stream import Stream
from logstore.log.ticket import TicketView

CHUNKS_AT_ONCE: Final = 1_000
"""Whose names are looked for at a time."""
LOOK_S: Final = 3_600.0
"""What there is to check is counted again after so long: the rate follows it."""
STREAMS_IN_A_TURN: Final = 200
IDLE_S: Final = 10.0
"""Between two looks while there is nothing to check."""
WALK_PAUSE_S: Final = 60.0
"""Between two walks."""
SAVE_S: Final = 600.0
"""The progress is kept so often: a restart repeats no more."""
DAMAGE_PAUSE_S: Final = 60.0
HOLD_S: Final = 3_600.0
"""The progress stays in front of a damaged copy until it was replaced, so long at most: after a restart only the next
walk would find the damage again.
"""


class ScrubTurn(Protocol):
    """The turn of one piece; who reads it says how large it was."""

    size_bytes: int


class ScrubHooks(NamedTuple):
    """What is special in a cluster. `turn`: held while a piece is read. `found_damaged` takes stream and epoch of a
    replica.
    """

    turn: Callable[[], AbstractAsyncContextManager[ScrubTurn]]
    found_damaged: Callable[[str, int], None]


@dataclass(slots=True)
class ScrubFigures:
    """What was done since the start; and when walks began and ended, as `ScrubProgress` has it."""

    chunks: int = 0
    checked_bytes: int = 0
    damaged_chunks: int = 0
    unreadable_chunks: int = 0
    begun_ms: int = 0
    completed_ms: int = 0


class _SealedChunk(NamedTuple):
    """A chunk to be checked: a file of a stream, or a replica."""

    key: str
    size_bytes: int
    stream: Stream | None
    chunk: Chunk | None
    replica: LocalReplica | None


@dataclass(slots=True)
class _OwnTurn:
    size_bytes: int = 0


@asynccontextmanager
async def _at_once() -> AsyncIterator[ScrubTurn]:
    yield _OwnTurn()


ALONE: Final = ScrubHooks(_at_once, lambda stream, epoch: None)
"""A sidecar alone."""


class Scrub:
    """See the module."""

    def __init__(
        self,
        store: Store,
        beside: ReadsBeside,
        read: Callable[[Callable[[FileSystem], ScrubPlace]], Awaitable[ScrubPlace]],
        wait: Callable[[TicketView[None]], Awaitable[None]],
    ) -> None:
        """`read` runs blocking reads on a thread; `wait` waits for a ticket."""
        self._store, self._beside, self._read, self._wait = store, beside, read, wait
        self._settings, self._hooks = ScrubSettings(), ALONE
        self._progress = decode_progress(store.catalogue.get(KEY))
        self.figures = ScrubFigures(begun_ms=self._progress.begun_ms, completed_ms=self._progress.completed_ms)
        self._total_bytes = self._chunk_bytes = 0
        self._due_s = self._saved_s = float("-inf")
        self._pause_s = 0.0
        self._suspect: _SealedChunk | None = None
        """The disk has refused to read it, and no other chunk was read since."""
        self._is_refused = False
        self._held: list[tuple[LocalReplica, float]] = []

    async def run(self, settings: ScrubSettings, hooks: ScrubHooks = ALONE) -> None:
        """Check chunks, until cancelled; returns if the settings say so."""
        self._settings, self._hooks = settings, hooks
        while settings.period_s:
            chunks = await self._look()
            if not chunks:
                await self._end_walk()
                continue
            looked_s = trio.current_time()
            for chunk in chunks:
                await self._check(chunk)
                self._go_on(self._progress._replace(after=chunk.key))
                if trio.current_time() - looked_s > LOOK_S:
                    break

    # ---- the walk

    async def _look(self) -> list[_SealedChunk]:
        """The next chunks in the order of their keys, and how much there is in all."""
        found: list[_SealedChunk] = []
        total_bytes, after = 0, self._progress.after
        for seen, there in enumerate(self._sealed(), 1):
            for each in there:
                total_bytes += max(LEAST_BYTES, each.size_bytes)
                if each.key > after:
                    found.append(each)
            if len(found) >= 2 * CHUNKS_AT_ONCE:
                found = nsmallest(CHUNKS_AT_ONCE, found, key=_key)
            if not seen % STREAMS_IN_A_TURN:
                await trio.lowlevel.checkpoint()
        self._total_bytes = total_bytes
        if found and not self._progress.begun_ms:
            self._go_on(self._progress._replace(begun_ms=self._now_ms()))
        return nsmallest(CHUNKS_AT_ONCE, found, key=_key)

    def _sealed(self) -> Iterator[list[_SealedChunk]]:
        """The sealed chunks of each stream, and each sealed replica."""
        for topic in list(self._store.topics.values()):
            for stream in topic.partitions:
                yield [
                    _SealedChunk(f"{stream.directory}/{each.base_offset:020}", each.size_bytes, stream, each, None)
                    for each in stream.chunks[:-1]
                    if each.size_bytes
                ]
        for replica in self._store.replicas.sealed():
            yield [_SealedChunk(replica.name.directory, replica.end.length_bytes, None, None, replica)]

    async def _end_walk(self) -> None:
        """All that there is was passed: the next walk begins."""
        if not self._total_bytes:
            await trio.sleep(IDLE_S)
            return
        now_ms = self._now_ms()
        self._store.report(
            SCRUB_COMPLETED, bytes=self._total_bytes, seconds=max(0, now_ms - self._progress.begun_ms) // 1000
        )
        self._go_on(ScrubProgress("", now_ms, now_ms))
        await trio.sleep(WALK_PAUSE_S)

    def _go_on(self, progress: ScrubProgress) -> None:
        """Note the progress, and keep it now and then."""
        self._progress, now_s = progress, trio.current_time()
        self.figures.begun_ms, self.figures.completed_ms = progress.begun_ms, progress.completed_ms
        self._held = [(each, until_s) for each, until_s in self._held if now_s < until_s and self._is_here(each)]
        if not self._held and now_s - self._saved_s >= SAVE_S:
            self._saved_s = now_s
            self._store.catalogue.put({KEY: progress.encode()})

    def _now_ms(self) -> int:
        return self._store.clock.wall_ms()

    # ---- one chunk

    async def _check(self, chunk: _SealedChunk) -> None:
        """Check a chunk, and do what follows."""
        try:
            is_whole = await self._read_twice(chunk)
        except CorruptChunk as error:
            await self._found_damage(chunk, error)
            return
        except (OSError, StorageFailed, UnknownFormatVersion) as error:
            self._could_not_read(chunk, error)
            return
        if not is_whole:
            return
        self.figures.chunks += 1
        self._is_refused = False
        suspect, self._suspect = self._suspect, None
        if suspect is not None:
            await self._look_again(suspect)

    async def _look_again(self, suspect: _SealedChunk) -> None:
        """The disk can read other chunks: it can read this one too, or it is damaged."""
        try:
            await self._read_twice(suspect)
        except (StorageFailed, UnknownFormatVersion):
            return
        except (CorruptChunk, OSError) as error:
            if not isinstance(error, OSError) or error.errno not in PASSING_ERRORS:
                await self._found_damage(suspect, error)

    async def _read_twice(self, chunk: _SealedChunk) -> bool:
        """Read a chunk; once more, if damage was found. False: it has gone, or has changed.

        Raises CorruptChunk, OSError, StorageFailed, UnknownFormatVersion.
        """
        try:
            return await self._read_all(chunk)
        except CorruptChunk:
            return await self._read_all(chunk)

    async def _read_all(self, chunk: _SealedChunk) -> bool:
        revision = None if chunk.chunk is None else chunk.chunk.revision
        self._chunk_bytes = chunk.size_bytes
        try:
            if chunk.replica is not None:
                await self._read_replica(chunk.replica)
            elif chunk.chunk is not None and self._is_still(chunk, revision):
                await self._read_file(chunk.chunk.view(is_cold=True))
        except (CorruptChunk, OSError):
            if self._is_still(chunk, revision):
                raise
        return self._is_still(chunk, revision)

    def _is_still(self, chunk: _SealedChunk, revision: int | None) -> bool:
        """Whether a chunk is what it was: neither removed nor cleaned."""
        if chunk.replica is not None:
            return self._is_here(chunk.replica)
        stream, file = chunk.stream, chunk.chunk
        if stream is None or file is None or stream.deleted or file.rewriting is not None:
            return False
        return file.revision == revision and any(each is file for each in stream.chunks)

    def _is_here(self, replica: LocalReplica) -> bool:
        return self._store.replicas.find(replica.name.stream, replica.name.epoch) is replica

    async def _read_replica(self, replica: LocalReplica) -> None:
        """Read all files of a replica. Raises CorruptChunk, OSError, StorageFailed, UnknownFormatVersion."""
        log = self._store.replicas.log(replica.name.stream, replica.name.epoch)
        if log is None or not log.chunks:
            return  # a start has found it damaged, and has said so
        if log.has_unwritten:
            await self._wait(log.write_backlog())
        checksum = length_bytes = 0
        for view in [each.view(is_cold=True) for each in log.chunks if each.size_bytes]:
            if not length_bytes:
                path = log.chunks[0].producers_path
                await self._piece(partial(_check_founding, path=path, view=view), LEAST_BYTES)
            at = await self._read_file(view, checksum)
            checksum, length_bytes = at.checksum, length_bytes + at.position
        end = replica.end
        if (length_bytes, checksum) != (end.length_bytes, end.checksum):
            why = f"the checksum of all of it is {checksum:#010x}, not that of {end}"
            view = log.chunks[0].view()
            raise damaged(view, replica.base_offset, end.next_offset - 1, why)

    async def _read_file(self, view: ChunkView, checksum: int = 0) -> ScrubPlace:
        """Read a file from its start to its end. Raises CorruptChunk, OSError."""
        at = ScrubPlace(0, view.base_offset, checksum)
        while at.position < view.size_bytes:
            most_bytes = min(PIECE_BYTES, view.size_bytes - at.position)
            at = await self._piece(partial(check_piece, view=view, at=at), most_bytes, at.position)
        return at

    async def _piece(self, check: Callable[[FileSystem], ScrubPlace], most_bytes: int, position: int = 0) -> ScrubPlace:
        """Read a piece in its turn, which begins at a position of its file."""
        await trio.sleep_until(self._due_s)
        await self._beside.wait_for_pause(self._pause_s)
        async with self._hooks.turn() as turn:
            await self._beside.wait()
            begun_s, size_bytes = trio.current_time(), most_bytes
            paid_bytes = self._beside.begin(most_bytes)
            try:
                place = await self._read(check)
                size_bytes = turn.size_bytes = place.position - position
                self.figures.checked_bytes += size_bytes
                return place
            finally:
                self._beside.end(paid_bytes, size_bytes)
                self._pause_s = self._settings.pause_s(size_bytes, self._total_bytes, self._chunk_bytes)
                self._due_s = begun_s + self._pause_s

    # ---- what was found

    async def _found_damage(self, chunk: _SealedChunk, error: Exception) -> None:
        self.figures.damaged_chunks += 1
        self._store.report(SCRUB_FOUND_DAMAGE, chunk=chunk.key, error=error)
        if chunk.replica is not None:
            self._held.append((chunk.replica, trio.current_time() + HOLD_S))
            self._hooks.found_damaged(chunk.replica.name.stream, chunk.replica.name.epoch)
        await trio.sleep(DAMAGE_PAUSE_S)

    def _could_not_read(self, chunk: _SealedChunk, error: Exception) -> None:
        self.figures.unreadable_chunks += 1
        if isinstance(error, OSError) and error.errno not in PASSING_ERRORS:
            self._suspect = self._suspect or chunk
        if not self._is_refused:
            self._is_refused = True
            self._store.report(SCRUB_COULD_NOT_READ, chunk=chunk.key, error=error)


def _key(chunk: _SealedChunk) -> str:
    return chunk.key


def _check_founding(files: FileSystem, *, path: str, view: ChunkView) -> ScrubPlace:
    check_founding(files, path, view)
    return ScrubPlace(0, view.base_offset, 0)

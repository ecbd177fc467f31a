"""Quiet streams: a durable table says what their files hold, so that a start and a stop need not look at each of them.

    awake -> resting (its index gets a seal) -> asleep (it has an entry) -> waking (the entry is taken out) -> awake

Invariants:
* A stream's entry is durably replaced before anything of its files changes: its first write, roll, trim of chunks or
  cleaning waits for `wake`. Streams that wake together share a write of the table. A stream without chunks has no
  entry; its directory is made, and its name is durable, before it is awake: also one sync for many.
* An entry is put only while the stream has no write pending or in flight, no trim or cleaning under way, nothing behind
  its last synced byte, and gets no write until the put has settled. After a put that failed, the entry may be there or
  not: the stream stays asleep.
* The table is an optimisation: without it, or without an entry, a stream is recovered from its files. A table that is
  damaged is reported and dropped. An entry counts only if the directory has exactly the chunks that it names, the last
  one with the size that it says; else it is reported, and the files count.
* The index of a stream that was opened from the table is read, and if need be rebuilt, when the stream wakes.

Sources: docs/format.md (quiet streams), docs/decisions/0035-many-partitions.md.
"""

from collections.abc import Callable, Iterable, Sequence
from errno import EIO
from typing import Final, NamedTuple

from logstore.base.events import Report
from logstore.errors import CorruptFile, StorageFailed
from logstore.events import QUIET_STREAM_DIFFERS, QUIET_TABLE_DAMAGED
from logstore.format.batch import LEADER_EPOCH
from logstore.format.quiet_stream import (
    ActiveStream,
    QuietChunk,
    QuietStream,
    decode_entry,
    encode_active,
    encode_quiet,
)
from logstore.interfaces import FileSystem
from logstore.log.background import BackgroundJobs, DirectoryMaker
from logstore.log.chunks import LOG_SUFFIX, Chunk, IndexCache, chunk_name
from logstore.log.coroutines import all_settled, start
from logstore.log.jobs import JobSource, WorkOnFile
from logstore.log.ledger import DIRECTORY, Ledger
from logstore.log.producers import ProducerTable
from logstore.log.recovery import open_last_chunk
from logstore.log.stream import Stream
from logstore.log.stream_state import AppendTicket, RecoveredStream
from logstore.log.ticket import Ticket

NAME: Final = "quiet"
BATCH: Final = 128
"""Streams that come to rest in one job; between two jobs other work runs."""
MAX_CHUNKS: Final = 4096
"""A stream with more has no entry: writing it each time would cost more than a recovery saves."""


class Found(NamedTuple):
    """What the table says of a stream. `reached`: an offset up to which it had durable records, if it is not quiet."""

    quiet: QuietStream | None
    reached: int


class QuietStreams:
    """The table, and the streams that are not in it."""

    def __init__(self, ledger: Ledger, notify: Callable[[JobSource], None], report: Report, cache: IndexCache) -> None:
        self._ledger = ledger
        self._directories = DirectoryMaker(notify)
        self._notify = notify
        self._report = report
        self._cache = cache
        self._awake: dict[Stream, int] = {}
        """Each with its end at the last look."""
        self._unread: set[Stream] = set()
        """Opened from the table, their indexes not looked at."""
        self._held: dict[Stream, int] = {}
        self._resting: dict[Stream, Ticket[None]] = {}
        self._waking: dict[Stream, Ticket[None]] = {}
        self._round: Ticket[None] = Ticket.succeeded(None)

    @classmethod
    def open(
        cls, fs: FileSystem, notify: Callable[[JobSource], None], report: Report, cache: IndexCache
    ) -> "QuietStreams":
        """Read the table. Raises UnknownFormatVersion, OSError."""
        try:
            ledger = Ledger.open(fs, NAME, notify)
        except CorruptFile as error:
            report(QUIET_TABLE_DAMAGED, error=str(error))
            for name in fs.list_directory(DIRECTORY):
                if name.startswith(f"{NAME}."):
                    fs.remove(f"{DIRECTORY}/{name}")
            # Before anything is written: an older file that came back would have entries of streams that have changed.
            fs.sync_directory(DIRECTORY)
            ledger = Ledger(NAME, notify)
        return cls(ledger, notify, report, cache)

    # ---- at the start

    def find(self, directory: str) -> Found:
        """What the table says of the stream in `directory`. Raises UnknownFormatVersion."""
        entry = self._ledger.get(key_of(directory))
        if entry is None:
            return Found(None, 0)
        try:
            found = decode_entry(entry, directory)
        except CorruptFile as error:
            self._report(QUIET_TABLE_DAMAGED, error=str(error))
            return Found(None, 0)
        return Found(None, found.next_offset) if isinstance(found, ActiveStream) else Found(found, found.next_offset)

    def is_true(self, fs: FileSystem, directory: str, quiet: QuietStream) -> bool:
        """Whether the stream's files are what its entry says; reports it if not. Raises OSError."""
        found = [name for name in fs.list_directory(directory) if name.endswith(LOG_SUFFIX)]
        wanted = [chunk_name(chunk.base_offset, LOG_SUFFIX) for chunk in quiet.chunks]
        size_bytes = quiet.chunks[-1].size_bytes
        if found != wanted:
            why = f"its chunks are {_some(found)}, the table says {_some(wanted)}"
        elif (found_bytes := fs.size(f"{directory}/{wanted[-1]}")) != size_bytes:
            why = f"its last chunk has {found_bytes} bytes, the table says {size_bytes}"
        else:
            return True
        self._report(QUIET_STREAM_DIFFERS, directory=directory, why=why)
        return False

    def opened_asleep(self, stream: Stream) -> None:
        """Note a stream that was opened from the table."""
        self._unread.add(stream)

    def opened_awake(self, stream: Stream) -> None:
        """Note a stream that was recovered from its files."""
        stream.is_awake = True
        self._awake[stream] = stream.end_offset

    def keep_only(self, directories: Iterable[str]) -> None:
        """Drop the entries of streams that are in none of these directories."""
        known = {key_of(directory) for directory in directories}
        gone: dict[str, bytes | None] = {key: None for key, _ in self._ledger.items() if key not in known}
        if gone:
            self._ledger.put(gone)

    # ---- waking

    def may_change(self, stream: Stream) -> bool:
        """Whether a stream may be written to now. If not, it is notified once it may, or its appends are refused."""
        if not stream.is_awake:
            self.wake(stream)
        return stream.is_awake

    def wake(self, stream: Stream) -> Ticket[None]:
        """Take a stream out of the table; settles once its files may change. Fails with StorageFailed."""
        if stream.is_awake:
            return Ticket.succeeded(None)
        waking = self._waking.get(stream)
        if waking is None:
            waking = self._waking[stream] = Ticket()
            woken = start(self._wake(stream)) if stream.chunks else self._directories.make(stream.directory)
            woken.add_callback(lambda woken: self._woken(stream, woken))
        return waking

    async def _wake(self, stream: Stream) -> None:
        resting = self._resting.get(stream)
        if resting is not None:
            await resting.settled()
        await self._ledger.put({key_of(stream.directory): encode_active(stream.high_watermark)})
        if stream in self._unread:
            await BackgroundJobs(self._notify).run([self._look(stream)])
            self._cache.forget(stream.chunks[-1].index_path)
            self._unread.discard(stream)

    def _woken(self, stream: Stream, woken: Ticket[None]) -> None:
        waking = self._waking.pop(stream)
        if woken.error is None:
            if not stream.deleted:
                self.opened_awake(stream)
            self._notify(stream)
            waking.succeed(None)
        else:
            stream.refuse(StorageFailed(f"{stream.name}: {woken.error}"))
            waking.fail(woken.error)

    def _look(self, stream: Stream) -> WorkOnFile:
        """Reads the index of the last chunk. If it is not whole, its seal was lost: then the chunk is opened as in a
        recovery; the stream's files may change already.
        """
        chunk = stream.chunks[-1]

        def look(fs: FileSystem) -> None:
            index = IndexCache(0).load(fs, chunk.view())
            if index is not None:
                chunk.index_bytes, chunk.index = fs.size(chunk.index_path), index
                return
            found = open_last_chunk(fs, chunk, self._report)
            if (found.size_bytes, found.next_offset) != (chunk.size_bytes, chunk.next_offset):
                raise OSError(
                    EIO,
                    f"{chunk.log_path} ends at offset {found.next_offset} and byte {found.size_bytes}, the table of "
                    f"quiet streams says {chunk.next_offset} and {chunk.size_bytes}; restart to recover it",
                )
            chunk.index_bytes, chunk.index = found.index_bytes, found.index

        return WorkOnFile(chunk.log_path, look)

    def hold(self, stream: Stream) -> Ticket[None]:
        """Keep a stream awake until `release`; settles once its files may change. Fails with StorageFailed."""
        self._held[stream] = self._held.get(stream, 0) + 1
        return self.wake(stream)

    def release(self, stream: Stream) -> None:
        """Undo `hold`."""
        self._held[stream] -= 1
        if not self._held[stream]:
            del self._held[stream]

    # ---- coming to rest

    def rest(self, *, at_once: bool = False) -> Ticket[None]:
        """Put the streams that have not changed since the last call into the table (`at_once`: all that can rest).

        Settles when that is done. One round at a time.
        """
        if self._round.done:
            self._round = start(self._rest_all(at_once=at_once))
        return self._round

    async def _rest_all(self, *, at_once: bool) -> None:
        batch: list[Stream] = []
        batches: list[Ticket[None]] = []
        for number, stream in enumerate(list(self._awake), 1):
            if number % (8 * BATCH) == 0 and not at_once:
                await BackgroundJobs(self._notify).run([])  # let other work run
            if stream.deleted:
                self._awake.pop(stream, None)
                continue
            if not stream.is_awake:
                continue
            is_unchanged = self._awake[stream] == stream.end_offset
            self._awake[stream] = stream.end_offset
            if is_unchanged and not at_once:
                stream.sync_soon()  # what only the journal has keeps a stream awake
            may_rest = stream.can_rest and stream not in self._held and len(stream.chunks) <= MAX_CHUNKS
            if may_rest and (is_unchanged or at_once):
                stream.is_awake = False
                del self._awake[stream]
                batch.append(stream)
            if len(batch) == BATCH:
                batches.append(self._rest_batch(batch))
                batch = []
                if not at_once:
                    await batches[-1].settled()
        if batch:
            batches.append(self._rest_batch(batch))
        await all_settled(batches)

    def _rest_batch(self, streams: Sequence[Stream]) -> Ticket[None]:
        sealed: Ticket[None] = Ticket()
        self._resting.update(dict.fromkeys(streams, sealed))
        return start(self._rest(streams, sealed))

    async def _rest(self, streams: Sequence[Stream], sealed: Ticket[None]) -> None:
        seals = [(stream.chunks[-1], stream.chunks[-1].seal()) for stream in streams]
        failed: set[str] = set()

        def write(fs: FileSystem) -> None:
            for chunk, seal in seals:
                try:
                    fs.write(chunk.index_path, chunk.index_bytes, [seal])
                except OSError:
                    failed.add(chunk.index_path)

        await BackgroundJobs(self._notify).run([WorkOnFile(DIRECTORY, write)])
        entries: dict[str, bytes | None] = {}
        for stream, (chunk, seal) in zip(streams, seals, strict=True):
            del self._resting[stream]
            if chunk.index_path in failed:
                chunk.index_damaged = True
                if stream not in self._waking:
                    self.opened_awake(stream)
                    self._notify(stream)
                continue
            chunk.index_bytes += len(seal)
            if stream not in self._waking and not stream.deleted:
                entries[key_of(stream.directory)] = encode_quiet(described(stream))
        sealed.succeed(None)
        if entries:
            await self._ledger.put(entries)

    def forget(self, streams: Iterable[Stream], directories: Iterable[str] = ()) -> None:
        """Drop the entries of streams that are deleted, and of those in further directories."""
        keys = [key_of(directory) for directory in directories]
        for stream in streams:
            self._awake.pop(stream, None)
            self._unread.discard(stream)
            keys.append(key_of(stream.directory))
        gone: dict[str, bytes | None] = {key: None for key in keys if self._ledger.get(key) is not None}
        if gone:
            self._ledger.put(gone)


def key_of(directory: str) -> str:
    """The key of the stream in a directory "streams/NAME.ID/PARTITION": "ID/PARTITION"; of a replica, its directory."""
    return directory.rpartition(".")[2]


def described(stream: Stream) -> QuietStream:
    """What an entry says of a stream."""
    chunks = [
        QuietChunk(
            chunk.base_offset,
            chunk.next_offset,
            chunk.size_bytes,
            chunk.max_timestamp,
            chunk.written_ms,
            chunk.index_bytes,
            chunk.producers_bytes,
        )
        for chunk in stream.chunks
    ]
    producers = stream.producers.packed(chunks[-1].size_bytes, chunks[-1].next_offset)
    return QuietStream(chunks, stream.snapshot_at, stream.chunks[-1].opened_ms, producers)


def opened_from(
    quiet: QuietStream, directory: str, log_start: int, leader_epoch: int = LEADER_EPOCH
) -> RecoveredStream:
    """A stream as its entry describes it; `log_start`: its last recorded one."""
    chunks = [
        Chunk(
            directory,
            chunk.base_offset,
            chunk.next_offset,
            chunk.size_bytes,
            chunk.max_timestamp,
            chunk.written_ms,
            index=None,
            index_bytes=chunk.index_bytes,
            producers_bytes=chunk.producers_bytes,
            leader_epoch=leader_epoch,
        )
        for chunk in quiet.chunks
    ]
    chunks[-1].opened_ms = quiet.opened_ms
    producers: ProducerTable[AppendTicket] = ProducerTable()
    producers.load_packed(quiet.producers)
    start = min(max(log_start, chunks[0].base_offset), quiet.next_offset)
    return RecoveredStream(chunks, producers, start, quiet.next_offset, quiet.snapshot_at, leader_epoch)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[-3:]) or 'none'}{more}"

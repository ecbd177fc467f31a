"""The replicas of chunks on this host. Each replica is a stream of the local store with the records of one chunk.

    absent -> open -> sealed
    open, sealed -> removed

Invariants:
* Operations on a chunk are carried out in the order of the calls. Appends do not wait for each other.
* A change of state is an entry of the ledger, and is complete when the entry is durable. Files follow the entry: if a
  start finds files longer than a sealed chunk, or files that were not removed, it completes the change.
* The first batch of a replica is durable before its entry, and the entry before the batch is confirmed. An entry
  without batches is damage.
* A failed append is final for the replica until the next start, because nothing counts after a hole.
* The entry of an open replica is written again while it grows; after the start of a cut or a removal, only that
  operation writes the entry.
* Files end at the end of a sealed chunk when `cut` has settled. After that, the local stream is another object.
* Bounded: an idle sealed replica has no stream in memory; at most MAX_SEALED_LOGS sealed replicas have one.

Sources: docs/replication.md, docs/format.md (replicas of chunks), decision 0044.
"""

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from errno import EIO
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from crc32c import crc32c

from logstore.errors import (
    CairnError,
    CorruptBatch,
    CorruptChunk,
    InvalidRecord,
    StorageFailed,
    UnknownFormatVersion,
    UnknownTopicOrPartition,
    UnsupportedBatchFormat,
)
from logstore.events import REPLICA_FOUND_DAMAGED
from logstore.format.snapshot import decode_snapshots
from logstore.interfaces import Buffer, FileSystem
from logstore.log.background import BackgroundJobs, DirectoryMaker
from logstore.log.coroutines import all_settled, start
from logstore.log.jobs import Operation, SyncDirectory, WorkOnFile
from logstore.log.journal_replay import JournalContent
from logstore.log.ledger import DIRECTORY as LEDGERS
from logstore.log.ledger import Ledger
from logstore.log.opening import Each
from logstore.log.producers import ProducerTable
from logstore.log.quiet import QuietStreams, opened_from
from logstore.log.recovery import recover_stream
from logstore.log.replica_chunk import (
    CHUNK_KEY,
    DIRECTORY,
    FENCE_KEY,
    LEDGER,
    REMOVED_KEY,
    ChunkPrefix,
    KnownPrefixes,
    LocalReplica,
    NotedReplica,
    ReplicaName,
    check_placed,
    check_stream,
    name_of,
)
from logstore.log.replica_recovery import FoundReplica, cut_files, open_replicas, remove_replica
from logstore.log.stream import Stream
from logstore.log.stream_state import RecoveredStream, StreamHost
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig

MAX_SEALED_LOGS: Final = 64
"""Sealed replicas with a stream in memory: readers of old records come back to the same few."""
READ_BYTES: Final = 1 << 20
UNPROVEN_BYTES: Final = 8 << 20
"""A replica that grows gets another entry after so much: a start reads about so much of it at most."""
OFFSET_BYTES: Final = 8
"""A batch begins with its base offset."""
LANES: Final = 3
"""Cuts and removals that work on files at a time: a takeover may cut hundreds, and appends need the disk as well."""
CONFIG: Final = TopicConfig(retention_ms=-1, segment_bytes=1 << 62, segment_ms=1 << 62)
"""A replica is one chunk, however large and old; only its registration seals it or lets it go."""
ChunkKey = tuple[str, int]
"""A chunk: stream and epoch."""


class ReplicaHost(StreamHost, Protocol):
    """What replicas need of their store."""

    @property
    def quiet(self) -> QuietStreams:
        """The streams at rest."""


class StoredReplica(NamedTuple):
    """What a start has found of a chunk."""

    base_offset: int
    end: ChunkPrefix
    is_sealed: bool
    is_damaged: bool


def is_of_replicas(name: str) -> bool:
    """Whether a file of a ledger is one of the ledger of replicas."""
    return name.startswith(f"{LEDGER}.")


class _Turn(NamedTuple):
    """The last operation of a chunk. `is_append`: further appends need not wait for it."""

    ticket: Ticket[None]
    is_append: bool


class ReplicaChunks:
    """All replicas of one store."""

    def __init__(self, host: ReplicaHost, ledger: Ledger) -> None:
        self._host = host
        self._ledger = ledger
        self._lanes = [BackgroundJobs(host.notify) for _ in range(LANES)]
        self._directories = DirectoryMaker(host.notify)
        self._replicas: dict[ChunkKey, LocalReplica] = {}
        self._turns: dict[ChunkKey, _Turn] = {}
        self._sealed_logs: OrderedDict[ChunkKey, LocalReplica] = OrderedDict()
        self._moved: dict[ChunkKey, LocalReplica] = {}
        """Open replicas with more than their entries prove."""
        self._ends_before: dict[ChunkKey, ChunkPrefix] = {}
        self._serial = 0

    @classmethod
    def open(cls, fs: FileSystem, host: ReplicaHost, journal: JournalContent, each: Each) -> "ReplicaChunks":
        """Open the replicas of a data directory; one that never had any gets nothing. Blocks.

        Raises CorruptFile (the ledger's), UnknownFormatVersion, OSError.
        """
        if not fs.exists(DIRECTORY) and not any(is_of_replicas(name) for name in fs.list_directory(LEDGERS)):
            return cls(host, Ledger(LEDGER, host.notify))
        fs.make_directory(DIRECTORY)
        replicas = cls(host, Ledger.open(fs, LEDGER, host.notify))
        keys = [key.partition("/")[2] for key, _ in replicas._ledger.items()]
        used = [name_of(place) for place in (*fs.list_directory(DIRECTORY), *keys, *journal.parts)]
        replicas._serial = max((name.serial for name in used if name is not None), default=0)
        now_ms = host.clock.wall_ms()
        for found in open_replicas(fs, host.quiet, replicas._ledger, journal, now_ms, host.report, each):
            replicas._adopt(found)
        return replicas

    def _adopt(self, found: FoundReplica) -> None:
        name, noted, opened = found.name, found.noted, found.opened
        replica = LocalReplica(name, noted.base_offset, found.end, found.end, found.known)
        if found.damage:
            self._host.report(REPLICA_FOUND_DAMAGED, directory=name.directory, why=found.damage)
        replica.noted, replica.proven = Ticket.succeeded(None), noted.proven
        replica.is_sealed, replica.is_damaged, replica.failure = noted.is_sealed, bool(found.damage), found.damage
        self._replicas[name.stream, name.epoch] = replica
        if not replica.is_sealed and not replica.is_damaged and replica.end != replica.proven:
            self._moved[name.stream, name.epoch] = replica
        if opened is None or (replica.is_sealed and opened.is_quiet):
            return
        replica.log = self._stream(name, opened.recovered)
        if opened.is_quiet:
            self._host.quiet.opened_asleep(replica.log)
        else:
            self._host.quiet.opened_awake(replica.log)
        if replica.is_sealed:
            self._keep_log(replica)

    def _stream(self, name: ReplicaName, recovered: RecoveredStream) -> Stream:
        return Stream(f"{name.topic_id}.{name.epoch}", name.partition, name.directory, CONFIG, self._host, recovered)

    # ---- what is here

    def stored(self) -> dict[ChunkKey, StoredReplica]:
        """What there is of each chunk, durably."""
        return {
            key: StoredReplica(each.base_offset, each.end, each.is_sealed, each.is_damaged)
            for key, each in self._replicas.items()
            if each.end.length_bytes or each.is_damaged
        }

    def fences(self) -> dict[str, int]:
        """The lowest epoch from which appends are taken, of each stream that has such a fence."""
        return {key[len(FENCE_KEY) :]: int(value) for key, value in self._ledger.items(FENCE_KEY)}

    def directories(self) -> Iterator[str]:
        """The directories of all replicas."""
        return (replica.name.directory for replica in self._replicas.values())

    @property
    def size_bytes(self) -> int:
        """The durable bytes of all replicas."""
        return sum(each.end.length_bytes for each in self._replicas.values())

    def sealed(self) -> list[LocalReplica]:
        """The sealed replicas that no start has found damaged."""
        return [each for each in self._replicas.values() if each.is_sealed and not each.is_damaged]

    def logs(self) -> list[Stream]:
        """The streams of all replicas that have one in memory."""
        return [replica.log for replica in self._replicas.values() if replica.log is not None]

    def find(self, stream: str, epoch: int) -> LocalReplica | None:
        """The replica of a chunk, or None."""
        return self._replicas.get((stream, epoch))

    def log(self, stream: str, epoch: int) -> Stream | None:
        """The stream with a chunk's records; None if there are none here. A cut replaces it: ask for each read."""
        replica = self._replicas.get((stream, epoch))
        if replica is None:
            return None
        if replica.is_sealed:
            if replica.log is None:
                quiet = self._host.quiet.find(replica.name.directory).quiet
                if quiet is None:
                    return None  # damaged: nothing of it is left
                name = replica.name
                replica.log = self._stream(name, opened_from(quiet, name.directory, replica.base_offset, name.epoch))
            self._keep_log(replica)
        return replica.log

    def _keep_log(self, replica: LocalReplica) -> None:
        """A sealed replica's stream is used; the one that was used least recently is given up, if it rests."""
        key = (replica.name.stream, replica.name.epoch)
        self._sealed_logs[key] = replica
        self._sealed_logs.move_to_end(key)
        for _ in range(2):  # one more than comes, so that their number falls again after many at once
            if len(self._sealed_logs) > MAX_SEALED_LOGS:
                self._give_up_log(*self._sealed_logs.popitem(last=False))

    def _give_up_log(self, key: ChunkKey, replica: LocalReplica) -> None:
        """Forget a sealed replica's stream, unless it has not come to rest yet."""
        if replica.log is None:
            return
        if replica.log.is_awake or self._host.quiet.find(replica.name.directory).quiet is None:
            self._sealed_logs[key] = replica
        else:
            replica.log = None

    # ---- operations

    def prepare(self) -> Ticket[None]:
        """Make the directory of replicas, before the first operation. Fails with StorageFailed."""
        return self._directories.make(DIRECTORY)

    def append(
        self, stream: str, epoch: int, at: ChunkPrefix, batches: Sequence[tuple[Buffer, int]], founding: bytes
    ) -> Ticket[None]:
        """Append batches that have their offsets, each with the number of these, behind a prefix of a chunk. The first
        ones make the chunk, with the producers' state as of its start (`logstore.format.snapshot`; empty: none).

        The ticket settles when they are durable. It fails with StorageFailed, also if the batches do not belong there.
        """
        return self._in_turn(
            (stream, epoch), partial(self._append, stream, epoch, at, batches, founding), is_append=True
        )

    def cut(self, stream: str, epoch: int, end: ChunkPrefix) -> Ticket[None]:
        """Seal a chunk at a prefix; what it has behind is removed.

        The ticket fails with CorruptChunk if the chunk is not what the prefix says, with StorageFailed if the disk
        refuses; then the chunk is as before, or sealed at the next start.
        """
        return self._in_turn((stream, epoch), partial(self._cut, stream, epoch, end))

    def remove(self, stream: str, epoch: int) -> Ticket[None]:
        """Remove a chunk, if it is here. The ticket fails with StorageFailed."""
        return self._in_turn((stream, epoch), partial(self._remove, stream, epoch))

    def write_fence(self, stream: str, fence_epoch: int) -> Ticket[None]:
        """Note the lowest epoch from which a stream's appends are taken; never lowered. Fails with StorageFailed."""
        try:
            check_stream(stream)
        except StorageFailed as error:
            return Ticket.failed(error)
        key = f"{FENCE_KEY}{stream}"
        fence_epoch = max(fence_epoch, int(self._ledger.get(key) or 0))
        return self._ledger.put({key: str(fence_epoch).encode()})

    def remove_fence(self, stream: str) -> Ticket[None]:
        """Forget the fence of a stream that will never be appended to. Fails with StorageFailed."""
        key = f"{FENCE_KEY}{stream}"
        return Ticket.succeeded(None) if self._ledger.get(key) is None else self._ledger.put({key: None})

    def tick(self) -> None:
        """Note what is durable of the replicas that have come to rest since the last call, or have grown by much: a
        start need not read it, and knows that it was there. The caller runs this every few seconds.
        """
        before, self._ends_before = self._ends_before, {key: replica.end for key, replica in self._moved.items()}
        self._note_durable(
            [
                (key, replica)
                for key, replica in self._moved.items()
                if replica.end == before.get(key)
                or replica.end.length_bytes - replica.proven.length_bytes >= UNPROVEN_BYTES
            ]
        )

    def note_all(self) -> Ticket[None]:
        """Note what is durable of all replicas; settles when that is done, or has failed."""
        return self._note_durable(list(self._moved.items()))

    def _note_durable(self, moved: Sequence[tuple[ChunkKey, LocalReplica]]) -> Ticket[None]:
        noted = Ticket[None].succeeded(None)
        for key, replica in moved:
            del self._moved[key]
            if replica.end != replica.proven:
                noted = self._note(replica, replica.end)
        return start(all_settled([noted]))

    def _in_turn(
        self, key: ChunkKey, work: Callable[[], Coroutine[Any, Any, None]], *, is_append: bool = False
    ) -> Ticket[None]:
        before = self._turns.get(key)
        goes_on = before is None or before.ticket.done or (is_append and before.is_append)
        ticket = start(work() if goes_on or before is None else _behind(before.ticket, work))
        if not ticket.done:
            turn = self._turns[key] = _Turn(ticket, is_append and goes_on)
            ticket.add_callback(lambda _: self._end_turn(key, turn))
        return ticket

    def _end_turn(self, key: ChunkKey, turn: _Turn) -> None:
        if self._turns.get(key) is turn:
            del self._turns[key]

    async def _append(
        self, stream: str, epoch: int, at: ChunkPrefix, batches: Sequence[tuple[Buffer, int]], founding: bytes
    ) -> None:
        replica = self._replicas.get((stream, epoch)) or self._begin(stream, epoch, at, founding)
        if replica.failure or replica.is_sealed or replica.log is None:
            raise StorageFailed(f"{replica.name.directory} takes nothing: {replica.failure or 'it is sealed'}")
        try:
            if at != replica.asked:
                raise InvalidRecord(f"{replica.name.directory}: batches for {at} come where {replica.asked} is due")
            appends, end = check_placed(replica.name, at, batches)
            replica.log.append_placed(appends)
        except (CorruptBatch, UnsupportedBatchFormat, InvalidRecord, StorageFailed, UnknownTopicOrPartition) as error:
            replica.fail(error)
            raise StorageFailed(str(error)) from error
        replica.asked = end
        if not appends:
            return
        try:
            await appends[-1].ticket
            if replica.noted is None:
                replica.noted = self._note(replica, end)
            await replica.noted
        except CairnError as error:
            replica.fail(error)
            raise StorageFailed(str(error)) from error
        replica.note_append(end)
        self._moved[stream, epoch] = replica

    def _begin(self, stream: str, epoch: int, at: ChunkPrefix, founding: bytes) -> LocalReplica:
        """A new replica, with the producers' state as of its start. Raises StorageFailed."""
        check_stream(stream)
        if at != ChunkPrefix.empty(at.next_offset) or epoch < 1:
            raise StorageFailed(f"there is no replica of {stream} epoch {epoch}, so nothing can follow {at}")
        producers: ProducerTable[Any] = ProducerTable()
        if founding:
            try:
                snapshots, end = decode_snapshots(founding)
            except UnknownFormatVersion as error:
                raise StorageFailed(f"the founding state of {stream} epoch {epoch}: {error}") from error
            if end != len(founding) or snapshots[-1].next_offset > at.next_offset:
                raise StorageFailed(f"the founding state of {stream} epoch {epoch} is damaged")
            producers.load(snapshots[-1].producers)
        self._serial += 1
        name = ReplicaName(stream, epoch, self._serial)
        fresh = RecoveredStream([], producers, at.next_offset, at.next_offset, leader_epoch=epoch)
        replica = LocalReplica(name, at.next_offset, at, at, KnownPrefixes(at.next_offset), self._stream(name, fresh))
        self._replicas[stream, epoch] = replica
        return replica

    def _note(
        self, replica: LocalReplica, proven: ChunkPrefix, *, is_sealed: bool = False, cut: tuple[int, int] | None = None
    ) -> Ticket[None]:
        replica.proven = proven
        noted = NotedReplica(replica.base_offset, proven, is_sealed, cut)
        return self._ledger.put({f"{CHUNK_KEY}{replica.name.directory}": noted.encode()})

    async def _cut(self, stream: str, epoch: int, end: ChunkPrefix) -> None:
        replica = self._replicas.get((stream, epoch))
        if replica is not None and replica.is_sealed and replica.end == end and not replica.failure:
            return
        if replica is None or replica.log is None:
            raise StorageFailed(f"there is no replica of {stream} epoch {epoch} to be sealed")
        self._moved.pop((stream, epoch), None)  # or its entry would be written over
        if replica.failure or replica.is_sealed:
            raise StorageFailed(f"{replica.name.directory} is not sealed at {end}: {replica.failure or 'it is sealed'}")
        try:
            if end == replica.end:
                await self._note(replica, end, is_sealed=True)
            else:
                await self._seal_shorter(replica, replica.log, end)
        except CairnError as error:
            replica.fail(error)
            raise
        replica.is_sealed = True
        replica.forget_behind(end)
        self._keep_log(replica)

    async def _seal_shorter(self, replica: LocalReplica, log: Stream, end: ChunkPrefix) -> None:
        """Seal a replica that has more than its chunk. Raises CorruptChunk, StorageFailed.

        Its stream is held meanwhile, and from a cut that failed on: the table of quiet streams must not say that the
        replica is whole as it is, while the ledger may say that it is shorter.
        """
        quiet = self._host.quiet
        held = quiet.hold(log)
        try:
            await held
            cut = await self._place_of(replica, log, end)
        except CairnError:
            quiet.release(log)
            raise
        await self._note(replica, end, is_sealed=True, cut=cut)
        cutting = replica.cutting = Ticket[None]()
        try:
            replica.log = await self._cut_log(replica, end, cut)
        except CairnError:
            cutting.succeed(None)
            raise
        replica.forget_behind(end)
        cutting.succeed(None)
        quiet.release(log)
        log.abandon()
        quiet.opened_awake(replica.log)

    async def _place_of(self, replica: LocalReplica, log: Stream, end: ChunkPrefix) -> tuple[int, int]:
        """Base offset and length of the file in which a prefix ends, once it is known that the replica has that prefix:
        from the longest one in memory on it is read. Raises CorruptChunk, StorageFailed.
        """
        if not 0 < end.length_bytes < replica.end.length_bytes:
            raise _differs(replica, end, f"it has {replica.end}")
        await log.sync_backlog()
        near = replica.before_length(end.length_bytes)
        pieces: list[tuple[str, int, int]] = []
        place, behind, before = (0, 0), ("", 0), 0
        for chunk in log.chunks:
            first, last = max(0, near.length_bytes - before), min(chunk.size_bytes, end.length_bytes - before)
            if last > 0:
                place = (chunk.base_offset, last)
                pieces.append((chunk.log_path, first, last))
            if before <= end.length_bytes < before + chunk.size_bytes:
                behind = (chunk.log_path, end.length_bytes - before)
            before += chunk.size_bytes
        checksums, offsets = [near.checksum], list[int]()

        def read(fs: FileSystem) -> None:
            for path, first, last in pieces:
                for at in range(first, last, READ_BYTES):
                    checksums.append(crc32c(fs.read(path, at, min(READ_BYTES, last - at)), checksums[-1]))
            offsets.append(int.from_bytes(fs.read(*behind, OFFSET_BYTES), "big"))

        await self._lane(replica).run([WorkOnFile(replica.name.directory, read)])
        if checksums[-1] != end.checksum or offsets != [end.next_offset]:
            what = f"the checksum of its first {end.length_bytes} bytes is {checksums[-1]:#010x}"
            raise _differs(replica, end, f"{what}, and what follows has offset {offsets[0]}")
        return place

    def _lane(self, replica: LocalReplica) -> BackgroundJobs:
        return self._lanes[replica.name.serial % LANES]

    async def _cut_log(self, replica: LocalReplica, end: ChunkPrefix, cut: tuple[int, int]) -> Stream:
        """Make a replica's files end where its entry says. Returns its stream as it is then.

        Raises StorageFailed, CorruptChunk; the next start completes it.
        """
        name, host = replica.name, self._host
        now_ms = host.clock.wall_ms()
        found: list[RecoveredStream] = []

        def work(fs: FileSystem) -> None:
            cut_files(fs, name.directory, cut)
            base, epoch = replica.base_offset, name.epoch
            try:
                found.append(recover_stream(fs, name.directory, base, now_ms, host.report, leader_epoch=epoch))
            except CairnError as error:
                raise OSError(EIO, str(error)) from error

        await self._lane(replica).run([WorkOnFile(name.directory, work)])
        recovered = found[0]
        length_bytes = sum(chunk.size_bytes for chunk in recovered.chunks)
        if (length_bytes, recovered.next_offset) != end[:2]:
            raise _differs(replica, end, f"it was cut to {length_bytes} bytes and offset {recovered.next_offset}")
        return self._stream(name, recovered)

    async def _remove(self, stream: str, epoch: int) -> None:
        replica = self._replicas.get((stream, epoch))
        if replica is None:
            return
        directory = replica.name.directory
        self._moved.pop((stream, epoch), None)  # or its entry would come back
        try:
            await self._ledger.put({f"{CHUNK_KEY}{directory}": None, f"{REMOVED_KEY}{directory}": b""})
        except CairnError as error:
            replica.fail(error)  # the next start may find it removed
            raise
        del self._replicas[stream, epoch]
        self._sealed_logs.pop((stream, epoch), None)
        if replica.log is not None:
            replica.log.abandon()
            for chunk in replica.log.chunks:
                self._host.indexes.forget(chunk.index_path)
        self._host.quiet.forget([replica.log] if replica.log is not None else [], [directory])
        operations: list[Operation] = [
            WorkOnFile(directory, partial(remove_replica, directory=directory)),
            SyncDirectory(DIRECTORY),
        ]
        start(self._clear(directory, self._lane(replica).run(operations)))

    async def _clear(self, directory: str, removed: Ticket[None]) -> None:
        """Forget that a replica is being removed, once its files are gone; the next start tries again."""
        await removed.settled()
        if removed.error is None:
            await self._ledger.put({f"{REMOVED_KEY}{directory}": None}).settled()


async def _behind(before: Ticket[None], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await before.settled()
    await work()


def _differs(replica: LocalReplica, end: ChunkPrefix, what: str) -> CorruptChunk:
    return CorruptChunk(
        f"{replica.name.directory}: {what}, but the chunk ends at {end}; the copy counts for nothing",
        first_offset=replica.base_offset,
        last_offset=max(replica.base_offset, end.next_offset - 1),
    )

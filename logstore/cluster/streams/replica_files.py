"""The files of a host's replicas: carries out on the local store what `logstore.replica.replica` asks of its disk.

Invariants:
* Everything runs on the event loop's thread; reads of files run on the engine's reader threads.
* A load gives whole batches that were checked, and the checksum of everything in front of them. It begins at the batch
  that holds the offset.
* Bounded: a load reads what it gives, and up to `KNOWN_INTERVAL_BYTES` in front of it for the checksum; the first load
  in the middle of a sealed chunk reads the chunk from its start.

Sources: docs/replication.md; `logstore.log.replicas` has the states and what a crash leaves.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from logstore.cluster.interfaces import Loaded
from logstore.engine import StoreEngine
from logstore.errors import CorruptChunk, OffsetOutOfRange, UnknownTopicOrPartition
from logstore.format.batch import iterate_batches, parse_header
from logstore.format.control import BEGIN_TYPE, END_TYPE, known_type
from logstore.format.snapshot import decode_snapshots
from logstore.interfaces import Buffer
from logstore.log.reading import founding_block
from logstore.log.replica_chunk import ChunkPrefix, LocalReplica
from logstore.log.replicas import ReplicaChunks
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.replica.effects import CutChunk, DiskOperation, Load, RemoveChunk, RemoveFence, WriteEntries
from logstore.replica.known_replicas import StoredChunk, StoredReplicas
from logstore.replica.messages import BatchEntry
from logstore.replica.registrations import Prefix

WALK_BYTES: Final = 1 << 20
"""A read that only looks for a checksum or an offset asks for so much at a time."""


class LocalReplicaFiles:
    """The chunks and fences of this host, in its store. See `logstore.cluster.interfaces.ReplicaFiles`."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine
        self._chunks: ReplicaChunks = engine.store.replicas
        chunks = {
            key: StoredChunk(found.base_offset, Prefix(*found.end), found.is_sealed, found.is_damaged)
            for key, found in self._chunks.stored().items()
        }
        self._stored = StoredReplicas(self._chunks.fences(), chunks)

    @classmethod
    async def open(cls, engine: StoreEngine) -> "LocalReplicaFiles":
        """The files of a running store, ready for operations. Raises StorageFailed."""
        files = cls(engine)
        await engine.wait(engine.store.replicas.prepare())
        return files

    @property
    def stored(self) -> StoredReplicas:
        """What the start has found."""
        return self._stored

    def has_room(self, size_bytes: int) -> bool:
        """See `ReplicaFiles`."""
        return self._engine.store.space.has_room(size_bytes)

    def begin(self) -> None:
        """Begin what was asked for, at once; see `ReplicaFiles`."""
        self._engine.begin()

    def begin_soon(self) -> None:
        """Begin what was asked for; see `ReplicaFiles`."""
        self._engine.kick()

    def perform(self, operation: DiskOperation) -> Ticket[None]:
        """Carry out an operation; see `ReplicaFiles`."""
        if isinstance(operation, WriteEntries):
            at = ChunkPrefix(*operation.at)
            place, entries, founding = (operation.stream, operation.epoch, at), operation.entries, operation.founding
            return self._chunks.append(*place, entries, founding, is_copy=operation.is_copy)
        if isinstance(operation, CutChunk):
            return self._chunks.cut(operation.stream, operation.epoch, ChunkPrefix(*operation.end))
        if isinstance(operation, RemoveChunk):
            return self._chunks.remove(operation.stream, operation.epoch)
        if isinstance(operation, RemoveFence):
            return self._chunks.remove_fence(operation.stream)
        return self._chunks.write_fence(operation.stream, operation.fence_epoch)

    def after_settling(self, callback: Callable[[], None]) -> bool:
        """See `ReplicaFiles`."""
        return self._engine.after_settling(callback)

    def local(self, stream: str, epoch: int) -> Stream | None:
        """The local store's stream with a chunk's records. It may be another one after a cut: ask for each read."""
        return self._chunks.log(stream, epoch)

    # ---- loads

    async def load(self, load: Load) -> Loaded:
        """Read entries from the one that holds an offset on. Raises CorruptChunk, UnknownTopicOrPartition, OSError."""
        replica = self._chunks.find(load.stream, load.epoch)
        if replica is None:
            if load.limit_bytes:
                raise UnknownTopicOrPartition(f"there is no replica of {load.stream} epoch {load.epoch}")
            return Loaded(Prefix.empty(load.offset), (), load.offset, b"")
        was_cut = replica.cutting is not None and replica.cutting.done
        try:
            return await self._load(replica, load)
        except (CorruptChunk, OSError):
            if replica.cutting is None or was_cut:
                raise
            # The end has moved under the read: that is no damage.
            await self._engine.wait(replica.cutting)
            return await self._load(replica, load)

    async def _load(self, replica: LocalReplica, load: Load) -> Loaded:
        limit = await self._limit(replica, load.limit_bytes)
        at = await self._prefix_at(replica, min(load.offset, limit.next_offset))
        found, end, most = _LoadedEntries(has_groups=load.for_copy), at, at.length_bytes + max(1, load.max_bytes)
        while end.length_bytes < limit.length_bytes and (end.length_bytes < most or found.is_in_group):
            wanted_bytes = WALK_BYTES if found.is_in_group else most - end.length_bytes
            for batch, behind in await self._read(replica, end, wanted_bytes):
                if behind.length_bytes > limit.length_bytes or (end.length_bytes >= most and not found.is_in_group):
                    break
                found.add(BatchEntry(bytes(batch), behind.next_offset - end.next_offset))
                end = behind
        replica.note_read(end)
        founding = b"" if at.length_bytes else await self._founding(replica)
        return Loaded(Prefix(*at), found.taken(), limit.next_offset, founding)

    async def _limit(self, replica: LocalReplica, limit_bytes: int) -> ChunkPrefix:
        """The longest prefix of whole batches with at most so many bytes."""
        if limit_bytes >= replica.end.length_bytes:
            return replica.end
        return await self._last_in_front(
            replica, replica.before_length(limit_bytes), lambda end: end.length_bytes - limit_bytes
        )

    async def _prefix_at(self, replica: LocalReplica, offset: int) -> ChunkPrefix:
        """The prefix in front of the batch that holds an offset; behind the end, all there is."""
        if offset >= replica.end.next_offset:
            return replica.end
        return await self._last_in_front(replica, replica.before_offset(offset), lambda end: end.next_offset - offset)

    async def _last_in_front(
        self, replica: LocalReplica, found: ChunkPrefix, beyond: Callable[[ChunkPrefix], int]
    ) -> ChunkPrefix:
        """The last prefix of whole batches that is not beyond a place, from a prefix in front of the place on."""
        while beyond(found) < 0:
            batches = await self._read(replica, found, WALK_BYTES)
            ends = [behind for _, behind in batches if beyond(behind) <= 0]
            found = ends[-1] if ends else found
            if len(ends) < len(batches):
                break
        return found

    async def _read(self, replica: LocalReplica, at: ChunkPrefix, max_bytes: int) -> list[tuple[Buffer, ChunkPrefix]]:
        """Batches behind a prefix that is not the end, at least one, each with the prefix behind it.

        Raises CorruptChunk, OSError.
        """
        log = self._chunks.log(replica.name.stream, replica.name.epoch)
        if log is None:
            raise _unreadable(replica, at, "nothing of it is left")
        try:
            found = await self._engine.read(log, at.next_offset, max_bytes, include_control=True)
        except OffsetOutOfRange as error:
            raise _unreadable(replica, at, str(error)) from error
        batches: list[tuple[Buffer, ChunkPrefix]] = []
        for buffer in found.buffers:
            view = memoryview(buffer)
            for position, header in iterate_batches(view):
                batch = view[position : position + header.size_bytes]
                at = at.followed_by(batch, header.next_offset)
                replica.known.note(at)
                batches.append((batch, at))
        if not batches:
            raise _unreadable(replica, at, "its batches end there")
        if at.length_bytes == replica.end.length_bytes and at != replica.end:
            raise _unreadable(
                replica, at, f"the checksum of all of it is {at.checksum:#010x}, not that of {replica.end}"
            )
        return batches

    async def _founding(self, replica: LocalReplica) -> bytes:
        """The producers' state as of the chunk's start: the first snapshot beside its first file."""
        log = self._chunks.log(replica.name.stream, replica.name.epoch)
        if log is None or not log.chunks:
            return b""
        path = log.chunks[0].producers_path
        block = await self._engine.offload_files(partial(founding_block, path=path))
        snapshots, end = decode_snapshots(block)
        if end != len(block) or not snapshots or snapshots[0][:2] != (0, replica.base_offset):
            raise _unreadable(replica, ChunkPrefix.empty(replica.base_offset), "the producers' state is damaged")
        return block


class _LoadedEntries:
    """The batches of a load as entries; with `has_groups`, those of an append group as one.

    A copy that is interrupted inside a group would leave a part of it, which the next start cuts: the copy would be
    shorter than what its host has confirmed.
    """

    def __init__(self, *, has_groups: bool) -> None:
        self._has_groups = has_groups
        self._entries: list[BatchEntry] = []
        self._group: list[BatchEntry] = []

    @property
    def is_in_group(self) -> bool:
        """Whether the END of a group is still to come."""
        return bool(self._group)

    def add(self, batch: BatchEntry) -> None:
        """The next batch."""
        kind = known_type(batch.data) if self._has_groups and parse_header(batch.data).is_control else 0
        if not self._group and kind != BEGIN_TYPE:
            self._entries.append(batch)
            return
        self._group.append(batch)
        if kind == END_TYPE:
            whole = b"".join(each.data for each in self._group)
            self._entries.append(BatchEntry(whole, sum(each.record_count for each in self._group)))
            self._group.clear()

    def taken(self) -> tuple[BatchEntry, ...]:
        """All entries."""
        return (*self._entries, *self._group)


def _unreadable(replica: LocalReplica, at: ChunkPrefix, why: str) -> CorruptChunk:
    return CorruptChunk(
        f"{replica.name.directory} cannot be read at offset {at.next_offset} ({why}); the copy counts for nothing",
        first_offset=at.next_offset,
        last_offset=max(at.next_offset, replica.end.next_offset - 1),
    )

"""Makes replicas of one host of the chunks of a sidecar that was alone: the same batches at the same offsets.

The n-th chunk of a stream becomes its chunk of epoch n, sealed, with this host as its only member; a last one that is
large becomes two: no chunk may follow the last one before enough hosts have it, so appends wait for that. The other
copies are made by the cluster, as those of any chunk that lacks some.

Invariants:
* Replicas are made through the store, as those that hosts send each other: each batch is checked, and durable.
* It may be begun again after any end: what is sealed and as long as its chunk stays, everything else is made anew.
* Each chunk is read once. What is not a replica of a chunk of the source is removed.
* Memory: a few pieces; each chunk's replica begins with the state of producers at the end of the one before.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from logstore.cluster.adoption.adoption_source import (
    AdoptedPiece,
    Source,
    SourceChunk,
    SourceStream,
    pieces_of,
    written_ms,
)
from logstore.cluster.members.election import min_copies
from logstore.engine import StoreEngine
from logstore.format.snapshot import ProducerSnapshot, decode_snapshots, encode_snapshot
from logstore.interfaces import FileSystem
from logstore.log.replica_chunk import ChunkPrefix, LocalReplica
from logstore.log.ticket import Ticket
from logstore.replica.registrations import ChunkRegistration, Member, Prefix, StreamRegistration

END_BYTES: Final = 1 << 20
"""The end of a stream is a chunk of its own, of so much at most, unless one batch or append group is larger."""
APPEND_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 4
"""Appends that are being written."""


class ReplicaBuilder:
    """See the module. `engine` runs the store of the new directory; `fs` has the source's files; `advanced` is told how
    many bytes are done.
    """

    def __init__(self, engine: StoreEngine, fs: FileSystem, member: Member, advanced: Callable[[int], None]) -> None:
        self._engine = engine
        self._chunks = engine.store.replicas
        self._fs = fs
        self._member = member
        self._advanced = advanced

    async def build(self, source: Source) -> dict[str, StreamRegistration]:
        """The registrations of all streams whose chunks, or log starts, a cluster has to know.

        Raises AdoptionRefused, CorruptChunk, StorageFailed, OSError.
        """
        await self._engine.wait(self._chunks.prepare())
        await self._keep({stream.stream: len(stream.chunks) + 1 for stream in source.streams})
        found: dict[str, StreamRegistration] = {}
        for stream in source.streams:
            if stream.chunks or stream.log_start:
                found[stream.stream] = await self._build(stream, source.retention_ms)
        await self._keep({stream: registration.epoch for stream, registration in found.items()})
        return found

    async def _keep(self, last_epochs: Mapping[str, int]) -> None:
        """Remove replicas of an earlier try: of streams, and of epochs, that are not there any more."""
        for stream, epoch in self._chunks.stored():
            if epoch > last_epochs.get(stream, 0):
                await self._engine.wait(self._chunks.remove(stream, epoch))

    async def _build(self, stream: SourceStream, now_ms: int) -> StreamRegistration:
        registered: list[ChunkRegistration] = []
        founding = self._first_founding(stream)
        for chunk in stream.chunks:
            epoch = len(registered) + 1
            ends = self._copied(stream, epoch, chunk)
            if ends:
                self._advanced(chunk.size_bytes)
            else:
                ends = await self._copy(stream, epoch, chunk, founding)
            bases = [chunk.base_offset, *(end.next_offset for end in ends)]
            registered += [
                ChunkRegistration(number, base, (self._member,), Prefix(*end), (), written_ms(chunk, now_ms))
                for number, base, end in zip(count(epoch), bases, ends, strict=False)
            ]
            founding = self._founding_behind(stream, len(registered), ends[-1])
        registration = StreamRegistration(
            stream.topic.replicas,
            min_copies(stream.topic),
            len(registered),
            chunks=tuple(registered),
            log_start=stream.log_start,
        )
        registration.check()
        return registration

    def _copied(self, stream: SourceStream, epoch: int, chunk: SourceChunk) -> list[ChunkPrefix]:
        """Where the replicas of a chunk end that an earlier try has made, of all of it or of two parts; none: anew."""
        ends: list[ChunkPrefix] = []
        size_bytes, offset = 0, chunk.base_offset
        for number in (epoch, epoch + 1):
            replica = self._chunks.find(stream.stream, number)
            if replica is None or chunk.content is not None or not _is_whole(replica) or replica.base_offset != offset:
                return []
            ends.append(replica.end)
            size_bytes, offset = size_bytes + replica.end.length_bytes, replica.end.next_offset
            if (size_bytes, offset) == (chunk.size_bytes, chunk.next_offset):
                return ends
        return []

    async def _copy(self, stream: SourceStream, epoch: int, chunk: SourceChunk, founding: bytes) -> list[ChunkPrefix]:
        """Make the replica of a chunk, or the two of a last one that is large; where they end."""
        is_cut = chunk is stream.chunks[-1] and chunk.size_bytes > END_BYTES
        ends: list[ChunkPrefix] = []
        part = await self._begin(stream, epoch, chunk.base_offset, founding)
        for piece in pieces_of(self._fs, stream, chunk):
            is_last_piece = part.size_bytes + len(piece.data) == chunk.size_bytes
            if (
                is_cut
                and not ends
                and part.size_bytes
                and (part.size_bytes >= chunk.size_bytes - END_BYTES or is_last_piece)
            ):
                ends.append(await part.seal())
                founding = self._founding_behind(stream, epoch, ends[0])
                part = await self._begin(stream, epoch + 1, piece.base_offset, founding)
            await part.add(piece)
        ends.append(await part.seal())
        return ends

    async def _begin(self, stream: SourceStream, epoch: int, base_offset: int, founding: bytes) -> "_ReplicaWriter":
        """A replica in the place of what an earlier try has left."""
        if self._chunks.find(stream.stream, epoch) is not None:
            await self._engine.wait(self._chunks.remove(stream.stream, epoch))
        return _ReplicaWriter(self._engine, (stream.stream, epoch), base_offset, founding, self._advanced)

    def _first_founding(self, stream: SourceStream) -> bytes:
        """The producers' state at the start of the first chunk, from the file beside it, if that says it."""
        if not stream.chunks or stream.chunks[0].content is not None:
            return stream.founding
        path, base_offset = stream.chunks[0].producers_path, stream.chunks[0].base_offset
        if not self._fs.exists(path):
            return stream.founding
        snapshots, _ = decode_snapshots(self._fs.read(path, 0, self._fs.size(path)))
        first = snapshots[0] if snapshots else None
        return encode_snapshot(first) if first is not None and first[:2] == (0, base_offset) else stream.founding

    def _founding_behind(self, stream: SourceStream, epoch: int, end: ChunkPrefix) -> bytes:
        """The producers' state behind a chunk, as the replica has it."""
        log = self._chunks.log(stream.stream, epoch)
        entries = [] if log is None else log.producers.entries()
        return encode_snapshot(ProducerSnapshot(0, end.next_offset, entries)) if entries else b""


class _ReplicaWriter:
    """Makes one replica, piece by piece."""

    def __init__(
        self,
        engine: StoreEngine,
        chunk: tuple[str, int],
        base_offset: int,
        founding: bytes,
        advanced: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._chunk, self._founding = chunk, founding
        self._advanced = advanced
        self._at = ChunkPrefix.empty(base_offset)
        self._pieces: list[AdoptedPiece] = []
        self._under_way: deque[Ticket[None]] = deque()
        self.size_bytes = 0
        """Of all pieces so far."""

    async def add(self, piece: AdoptedPiece) -> None:
        """Write a piece behind the others, soon. Raises StorageFailed."""
        self._pieces.append(piece)
        self.size_bytes += len(piece.data)
        if self.size_bytes - self._at.length_bytes >= APPEND_BYTES:
            await self._append()

    async def seal(self) -> ChunkPrefix:
        """The replica ends here; returns where. Raises StorageFailed, CorruptChunk."""
        await self._append()
        for ticket in self._under_way:
            await self._engine.wait(ticket)
        await self._engine.wait(self._engine.store.replicas.cut(*self._chunk, self._at))
        return self._at

    async def _append(self) -> None:
        batches, start = [], self._at
        for piece in self._pieces:
            batches.append((piece.data, piece.next_offset - self._at.next_offset))
            self._at = self._at.followed_by(piece.data, piece.next_offset)
        self._pieces.clear()
        self._under_way.append(self._engine.store.replicas.append(*self._chunk, start, batches, self._founding))
        self._engine.kick()
        self._advanced(self._at.length_bytes - start.length_bytes)
        while len(self._under_way) >= IN_FLIGHT:
            await self._engine.wait(self._under_way.popleft())


def _is_whole(replica: LocalReplica) -> bool:
    """Whether a replica of an earlier try is as its chunk was."""
    return replica.is_sealed and not replica.is_damaged and not replica.failure

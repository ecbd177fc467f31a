"""Makes replicas of one host of the chunks of a sidecar that was alone: the same batches at the same offsets.

The n-th chunk of a stream becomes its chunk of epoch n, sealed, with this host as its only member; a last one that is
large becomes two. The other copies are made by the cluster, as those of any chunk that lacks some.

Invariants:
* Replicas are made through the store, as those that hosts send each other: each batch is checked, and durable.
* It may be begun again after any end: what is sealed and as long as its chunk stays, everything else is made anew.
* Memory: a few pieces; each chunk's replica begins with the state of producers at the end of the one before.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from logstore.cluster.adoption_source import Piece, Source, SourceChunk, SourceStream, pieces_of, written_ms
from logstore.cluster.election import min_copies
from logstore.engine import StoreEngine
from logstore.errors import UnknownFormatVersion
from logstore.format.snapshot import ProducerSnapshot, decode_snapshots, encode_snapshot
from logstore.interfaces import FileSystem
from logstore.log.replica_chunk import ChunkPrefix, LocalReplica
from logstore.log.ticket import Ticket
from logstore.replica.registrations import ChunkRegistration, Member, Prefix, StreamRegistration

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
        await self._remove_others(source)
        found: dict[str, StreamRegistration] = {}
        for stream in source.streams:
            if stream.chunks or stream.log_start:
                found[stream.stream] = await self._build(stream, source.retention_ms)
        return found

    async def _remove_others(self, source: Source) -> None:
        """Remove replicas of an earlier try, of chunks that the source does not have any more."""
        wanted = {(stream.stream, epoch) for stream in source.streams for epoch in range(1, len(stream.chunks) + 1)}
        for stream, epoch in self._chunks.stored():
            if (stream, epoch) not in wanted:
                await self._engine.wait(self._chunks.remove(stream, epoch))

    async def _build(self, stream: SourceStream, now_ms: int) -> StreamRegistration:
        registered: list[ChunkRegistration] = []
        founding = self._first_founding(stream)
        for epoch, chunk in enumerate(stream.chunks, 1):
            replica = self._chunks.find(stream.stream, epoch)
            if replica is not None and (chunk.content is not None or not _is_copy(replica, chunk)):
                await self._engine.wait(self._chunks.remove(stream.stream, epoch))
                replica = None
            if replica is None:
                end = await self._copy(stream, epoch, chunk, founding)
            else:
                end = replica.end
                self._advanced(chunk.size_bytes)
            members = (self._member,)
            registered.append(
                ChunkRegistration(epoch, chunk.base_offset, members, Prefix(*end), (), written_ms(chunk, now_ms))
            )
            founding = self._founding_behind(stream, epoch, end)
        registration = StreamRegistration(
            stream.topic.replicas,
            min_copies(stream.topic),
            len(registered),
            chunks=tuple(registered),
            log_start=stream.log_start,
        )
        registration.check()
        return registration

    async def _copy(self, stream: SourceStream, epoch: int, chunk: SourceChunk, founding: bytes) -> ChunkPrefix:
        at = ChunkPrefix.empty(chunk.base_offset)
        under_way: deque[Ticket[None]] = deque()
        some: list[Piece] = []
        some_bytes = 0

        def append() -> None:
            nonlocal at, some_bytes
            batches, start = [], at
            for piece in some:
                batches.append((piece.data, piece.next_offset - at.next_offset))
                at = at.followed_by(piece.data, piece.next_offset)
            under_way.append(self._chunks.append(stream.stream, epoch, start, batches, founding))
            self._engine.kick()
            some.clear()
            self._advanced(some_bytes)
            some_bytes = 0

        for piece in pieces_of(self._fs, stream, chunk):
            some.append(piece)
            some_bytes += len(piece.data)
            if some_bytes >= APPEND_BYTES:
                append()
                while len(under_way) >= IN_FLIGHT:
                    await self._engine.wait(under_way.popleft())
        append()
        for ticket in under_way:
            await self._engine.wait(ticket)
        await self._engine.wait(self._chunks.cut(stream.stream, epoch, at))
        return at

    def _first_founding(self, stream: SourceStream) -> bytes:
        """The producers' state at the start of the first chunk, from the file beside it; empty if that does not say."""
        if not stream.chunks or stream.chunks[0].content is not None:
            return b""
        path, base_offset = stream.chunks[0].producers_path, stream.chunks[0].base_offset
        if not self._fs.exists(path):
            return b""
        try:
            snapshots, _ = decode_snapshots(self._fs.read(path, 0, self._fs.size(path)))
        except UnknownFormatVersion:
            return b""
        first = snapshots[0] if snapshots else None
        return encode_snapshot(first) if first is not None and first[:2] == (0, base_offset) else b""

    def _founding_behind(self, stream: SourceStream, epoch: int, end: ChunkPrefix) -> bytes:
        """The producers' state behind a chunk, as the replica has it."""
        log = self._chunks.log(stream.stream, epoch)
        entries = [] if log is None else log.producers.entries()
        return encode_snapshot(ProducerSnapshot(0, end.next_offset, entries)) if entries else b""


def _is_copy(replica: LocalReplica, chunk: SourceChunk) -> bool:
    """Whether a replica is that of a chunk, and whole."""
    is_whole = replica.is_sealed and not replica.is_damaged and not replica.failure
    same_start = replica.base_offset == chunk.base_offset
    return is_whole and same_start and replica.end[:2] == (chunk.size_bytes, chunk.next_offset)

"""Stores one sealed chunk of a replicated stream in the tier and reads it back. Blocks: runs on a thread of its own.

    walk through the chunk: put producers' state, batches, index -> read each back -> length and CRC-32C are the same

Invariants:
* The batches come from whoever has a copy, piece by piece, and are checked on their way. Together they have the length
  and the CRC-32C that the stream's registration says; otherwise nothing of the attempt counts.
* What is given out was read back, as `logstore.tier.upload` says.
* The keys of an attempt are its own. A failed attempt removes what it has stored, as far as the store lets it; the
  sweep (`logstore.cluster.tier.tiering`) removes the rest.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptBatch, CorruptChunk
from logstore.format.batch import iterate_batches
from logstore.format.control import known_type
from logstore.format.index import IndexBlock, IndexEntry, encode_block
from logstore.format.tiered_chunk import INDEX_SUFFIX, LOG_SUFFIX, PRODUCERS_SUFFIX, StoredObject, TieredChunk
from logstore.log.chunks import IndexBuilder
from logstore.tier.interface import ObjectStore, Turn, UploadTurns
from logstore.tier.upload import UploadRevoked, read_back, remove_attempt, stored_object


class Piece(NamedTuple):
    """Whole batches of a chunk, one after the other; `founding`: the producers' state, with the first ones."""

    data: bytes
    next_offset: int
    founding: bytes


class SealedChunk(NamedTuple):
    """A sealed chunk, as its registration says, and where it goes. `name`: for errors; `end` are the batches' bytes and
    CRC-32C; `new_attempt` gives a name that no other attempt has.
    """

    name: str
    base_offset: int
    next_offset: int
    end: StoredObject
    epoch: int
    written_ms: int
    place: str
    new_attempt: Callable[[], str]


Read = Callable[[int], Piece]
"""Gives the batches from an offset on, at least one. Blocks. Raises CairnError, OSError."""


def upload_sealed(objects: ObjectStore, turns: UploadTurns, chunk: SealedChunk, read: Read) -> TieredChunk:
    """Store a chunk and read it back. Raises CorruptChunk, TierUnavailable, TierRefused, and what `read` raises; then
    nothing of it counts.
    """
    return turns.run(lambda turn: _store(objects, chunk, read, turn))


def _store(objects: ObjectStore, chunk: SealedChunk, read: Read, turn: Turn) -> TieredChunk:
    first = read(chunk.base_offset)
    walk = _ChunkWalk(chunk, read, first, turn)
    nothing = StoredObject(0, 0)
    producers = stored_object(first.founding) if first.founding else None
    stored = TieredChunk(
        chunk.base_offset,
        chunk.next_offset,
        0,
        chunk.written_ms,
        chunk.place,
        chunk.new_attempt(),
        chunk.end,
        nothing,
        producers,
        chunk.epoch,
    )
    try:
        if producers is not None:
            objects.put(stored.key(PRODUCERS_SUFFIX), producers.size_bytes, [first.founding], turn.chain)
        objects.put(stored.key(LOG_SUFFIX), chunk.end.size_bytes, walk, turn.chain)
        index = walk.index()
        objects.put(stored.key(INDEX_SUFFIX), len(index), [index], turn.chain)
        found = replace(stored, max_timestamp=walk.max_timestamp, index=stored_object(index))
        read_back(objects, found)
    except BaseException:
        remove_attempt(objects, stored)
        raise
    return found


class _ChunkWalk:
    """The batches of a chunk, in pieces, each checked; behind the last one, the index is known."""

    def __init__(self, chunk: SealedChunk, read: Read, first: Piece, turn: Turn) -> None:
        self._chunk, self._read, self._first, self._turn = chunk, read, first, turn
        self._builder = IndexBuilder()
        self._entries: list[IndexEntry] = []

    @property
    def max_timestamp(self) -> int:
        """The newest time of a record."""
        return self._builder.max_timestamp

    def __iter__(self) -> Iterator[bytes]:
        """From the first batch on. Raises CorruptChunk, UploadRevoked."""
        self._builder, self._entries = IndexBuilder(), []
        chunk, piece, position, crc = self._chunk, self._first, 0, 0
        due = chunk.base_offset
        while True:
            if self._turn.is_revoked():
                raise UploadRevoked(f"{chunk.name}: planned again")
            due = self._note(piece, position, due)
            position, crc = position + len(piece.data), crc32c(piece.data, crc)
            is_last = due >= chunk.next_offset
            if is_last and (due, position, crc) != (chunk.next_offset, *chunk.end):
                raise self._damaged(due, f"{position} bytes with CRC {crc:08x} end at offset {due}")
            yield piece.data
            if is_last:
                return
            piece = self._read(due)

    def _note(self, piece: Piece, position: int, due: int) -> int:
        """Check the batches of a piece and bring them into the index; returns the offset behind them."""
        first = due
        try:
            for at, header in iterate_batches(piece.data):
                if header.base_offset != due:
                    raise CorruptBatch(f"base offset {header.base_offset} stands where {due} is due")
                batch = memoryview(piece.data)[at : at + header.size_bytes]
                kind = known_type(batch) if header.is_control else 0
                self._builder.note(header, header.base_offset, position + at, self._entries, kind)
                due = header.next_offset
        except CorruptBatch as error:
            raise self._damaged(due, str(error)) from error
        if due == first:
            raise self._damaged(due, "its batches end there")
        return due

    def index(self) -> bytes:
        """The bytes of the whole index."""
        chunk = self._chunk
        block = IndexBlock(chunk.end.size_bytes, chunk.next_offset, self.max_timestamp, self._entries, chunk.written_ms)
        return encode_block(block) + encode_block(block._replace(entries=[]))

    def _damaged(self, offset: int, why: str) -> CorruptChunk:
        chunk = self._chunk
        return CorruptChunk(
            f"{chunk.name}: the chunk of epoch {chunk.epoch} from offset {chunk.base_offset} on is not as registered "
            f"({why}); {chunk.end.size_bytes} bytes with CRC {chunk.end.crc:08x} up to {chunk.next_offset} are due",
            first_offset=offset,
            last_offset=chunk.next_offset - 1,
        )

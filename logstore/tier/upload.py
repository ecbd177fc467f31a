"""Stores one sealed chunk in the tier and reads it back. Blocks: runs on a thread of its own.

    check every batch, put producers' snapshots, index, batches -> read each back -> length and CRC-32C are the same

Invariants:
* What is given out was read back: for each object the store gave as many bytes with the same checksum as were read from
  the local file, whose batches had all been checked on the way.
* The keys of an attempt are its own. A failed attempt removes what it has stored, as far as the store lets it; the
  sweep (`logstore.tier.tiering`) removes the rest.
* Only derived files may differ from those on the disk: an index that is not whole is built anew from the batches.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.errors import CairnError, TierUnavailable
from logstore.format.control import known_type
from logstore.format.index import IndexBlock, IndexEntry, decode_columns, encode_block
from logstore.format.tiered_chunk import INDEX_SUFFIX, LOG_SUFFIX, PRODUCERS_SUFFIX, StoredObject, TieredChunk
from logstore.interfaces import ReadableFiles
from logstore.log.chunks import ChunkView, IndexBuilder
from logstore.log.reading import RunLimits, damaged, walk_batches
from logstore.tier.interface import ObjectStore, Turn, UploadTurns

PIECE_BYTES: Final = 1 << 20
_MANY: Final = 1 << 30


class UploadSource(NamedTuple):
    """A sealed chunk on the disk, and where it goes. `crc`: of its batches, if that is known already."""

    view: ChunkView
    producers_path: str
    written_ms: int
    place: str
    new_id: Callable[[], uuid.UUID]
    crc: int | None = None


class UploadRevoked(TierUnavailable):
    """Peace planned the chunk anew while it was stored."""


def upload(files: ReadableFiles, objects: ObjectStore, turns: UploadTurns, source: UploadSource) -> TieredChunk:
    """Store a chunk and read it back. Raises CorruptChunk (a local batch is damaged), TierUnavailable, TierRefused,
    OSError (a local file cannot be read); then nothing of it counts.
    """
    return turns.run(lambda turn: _store(files, objects, source, turn))


def _store(files: ReadableFiles, objects: ObjectStore, source: UploadSource, turn: Turn) -> TieredChunk:
    view = source.view
    index = _index(files, source)
    producers = _whole(files, source.producers_path)
    stored = TieredChunk(
        view.base_offset,
        view.next_offset,
        view.max_timestamp,
        source.written_ms,
        source.place,
        source.new_id().hex[:16],
        StoredObject(view.size_bytes, 0),
        stored_object(index),
        stored_object(producers) if producers else None,
        view.leader_epoch,
    )
    batches = CheckedBatches(files, view, turn)
    try:
        if producers:
            objects.put(stored.key(PRODUCERS_SUFFIX), len(producers), [producers], turn.chain)
        objects.put(stored.key(INDEX_SUFFIX), len(index), [index], turn.chain)
        objects.put(stored.key(LOG_SUFFIX), view.size_bytes, batches, turn.chain)
        if source.crc is not None and batches.crc != source.crc:
            raise TierUnavailable(f"{view.log_path}: its bytes have CRC {batches.crc:08x}, not {source.crc:08x}")
        found = replace(stored, log=StoredObject(view.size_bytes, batches.crc))
        read_back(objects, found)
    except BaseException:
        remove_attempt(objects, stored)
        raise
    return found


def remove_attempt(objects: ObjectStore, stored: TieredChunk) -> None:
    """Remove what a failed attempt has stored, as far as the store lets it; the sweep removes the rest."""
    for key in stored.all_keys():
        with suppress(CairnError):
            objects.delete(key)


def read_back(objects: ObjectStore, stored: TieredChunk) -> None:
    """Compare what the store gives back with what was stored. Raises TierUnavailable, ObjectMissing, TierRefused."""
    for suffix, expected in stored.objects().items():
        found = objects.checksum(stored.key(suffix))
        if found != expected:
            raise TierUnavailable(
                f"{stored.key(suffix)}: read back {found.size_bytes} bytes with CRC {found.crc:08x}, but "
                f"{expected.size_bytes} with {expected.crc:08x} were stored"
            )


class CheckedBatches:
    """The batches of a chunk, in pieces, each checked; `crc` is that of the pieces given so far."""

    def __init__(self, files: ReadableFiles, view: ChunkView, turn: Turn) -> None:
        self._files, self._view, self._turn = files, view, turn
        self.crc = 0

    def __iter__(self) -> Iterator[bytes]:
        """From the first batch on. Raises CorruptChunk, UploadRevoked, OSError."""
        self.crc, view, due = 0, self._view, self._view.base_offset
        runs = RunLimits(_MANY, _MANY, lambda header: True)
        for found in walk_batches(self._files, view, None, due, PIECE_BYTES, runs=runs):
            if self._turn.is_revoked():
                raise UploadRevoked(f"{view.log_path}: planned again")
            piece, due = bytes(found.buffer), found.next_offset
            self.crc = crc32c(piece, self.crc)
            yield piece
        if due != view.next_offset:
            raise damaged(view, due, view.next_offset - 1, f"its batches end at offset {due}")


def _index(files: ReadableFiles, source: UploadSource) -> bytes:
    """The bytes of a whole index: those of the file, or of one that is built from the batches."""
    view = source.view
    data = _whole(files, view.index_path)
    columns = decode_columns(data)
    if columns.end == len(data) and columns.durable_end == view.size_bytes and columns.is_sealed:
        return data
    builder, entries = IndexBuilder(), list[IndexEntry]()
    for found in walk_batches(files, view, None, view.base_offset, PIECE_BYTES):
        kind = known_type(found.buffer) if found.header.is_control else 0
        builder.note(found.header, found.header.base_offset, found.position, entries, kind)
    block = IndexBlock(view.size_bytes, view.next_offset, view.max_timestamp, entries, source.written_ms)
    return encode_block(block) + encode_block(block._replace(entries=[]))


def _whole(files: ReadableFiles, path: str) -> bytes:
    return bytes(files.read(path, 0, files.size(path))) if files.exists(path) else b""


def stored_object(data: bytes) -> StoredObject:
    """Length and CRC-32C of an object's bytes."""
    return StoredObject(len(data), crc32c(data))

"""Blocks of the shared journal: what many streams appended, acknowledged by one sync.

A block has a header, a table of its parts, and the parts' batches end to end. A part says where its batches belong: the
stream's directory, the chunk, the position in it. A part of a block of version 2 may hold changes of a ledger in place
of batches: the decision of an epoch, beside the epoch's groups.

Invariants:
* A block is valid as a whole or not at all: one CRC-32C covers all of it.
* A block carries the generation of its file and its own position, so that blocks that a reused file held before are
  never taken for blocks of this generation.
* A block carries the key of its data directory, which no client ever learns. So bytes of a record that look like a
  block are never taken for one, whatever generation and position a client guesses.
* The first block of a file's content has no batches and is synced before the next is written. So what a power cut
  makes of a file that is being used again is damage at position 0 at most, and nothing is lost with that block.
* A block is written only after the block before it in the file is synced. So an invalid block before a valid one of the
  same generation is damage to durable data, never a torn write.

Byte table in docs/format.md.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from logstore.errors import UnknownFormatVersion
from logstore.interfaces import Buffer

MAGIC = b"CJBK"
VERSION = 1
WITH_LEDGER = 2
"""The version of a block that has changes of a ledger among its parts. Who does not know it must not skip them."""
LEDGER_PREFIX = "ledger/"
KEY_BYTES = 8
HEAD = struct.Struct(f">4sHHqqII{KEY_BYTES}sI")
"""magic, version, parts, generation, position of the block in its file, bytes of the table, bytes of the batches, the
data directory's key, CRC-32C of all else
"""
PART = struct.Struct(">HIqqq")
"""bytes of the stream's directory, bytes of the batches, base offset of the chunk, position in it, base offset of the
first batch
"""
_CRC_AT = HEAD.size - 4
MAX_PARTS = 0xFFFF


class PartPlace(NamedTuple):
    """Where the batches of a part belong. `directory`: the stream's; `chunk_offset`: the chunk's base offset.

    Changes of a ledger have `ledger_place`.
    """

    directory: bytes
    chunk_offset: int
    position: int
    base_offset: int


def ledger_place(name: str) -> PartPlace:
    """The place of changes of a ledger."""
    return PartPlace(f"{LEDGER_PREFIX}{name}".encode(), 0, 0, 0)


class JournalPart(NamedTuple):
    """Batches of one stream, end to end, and their place."""

    place: PartPlace
    data: memoryview


class BlockScan(NamedTuple):
    """The valid blocks of a file: their parts in order, the generation (0: no valid block), the position after the last
    block, the positions at which durable blocks are damaged, and the ends of other generations that are noted here.
    """

    parts: list[JournalPart]
    generation: int
    end: int
    damaged: list[int]
    ends: dict[int, int]


def encode_head(
    generation: int,
    position: int,
    parts: Sequence[tuple[PartPlace, Sequence[Buffer]]],
    *,
    key: bytes,
    version: int = VERSION,
) -> bytes:
    """Header and table of a block; the parts' buffers follow it in the file, in order. `key`: the data directory's.
    `version`: WITH_LEDGER if there are changes of a ledger among them.
    """
    table = bytearray()
    data_bytes = 0
    for place, buffers in parts:
        length = sum(map(len, buffers))
        table += PART.pack(len(place.directory), length, place.chunk_offset, place.position, place.base_offset)
        table += place.directory
        data_bytes += length
    head = HEAD.pack(MAGIC, version, len(parts), generation, position, len(table), data_bytes, key, 0)[:_CRC_AT]
    crc = crc32c(table, crc32c(head))
    for _, buffers in parts:
        for buffer in buffers:
            crc = crc32c(buffer, crc)
    return head + crc.to_bytes(4, "big") + table


def encode_opening(generation: int, ends: Sequence[tuple[int, int]], *, key: bytes) -> bytes:
    """The first block of a file: generations and ends of other files, as parts without a directory and batches."""
    return encode_head(generation, 0, [(PartPlace(b"", other, end, 0), ()) for other, end in ends], key=key)


def scan_blocks(buffer: Buffer, key: bytes | None) -> BlockScan:
    """The valid blocks of a journal file, given its bytes and the data directory's key. A block with another key is no
    block. None: any key, for a viewer; what a client made look like a block counts then.

    Raises UnknownFormatVersion for an intact block of a newer version.
    """
    view = memoryview(buffer)
    parts: list[JournalPart] = []
    damaged: list[int] = []
    generation = position = 0
    while True:
        found = _block_at(view, position, generation, key)
        if found is None:
            following = _block_after(buffer, view, position, generation, key)
            if following is None:
                notes = [part.place for part in parts if not part.place.directory]
                ends = {place.chunk_offset: place.position for place in notes}
                held = [part for part in parts if part.place.directory]
                return BlockScan(held, generation, position, damaged, ends)
            damaged.append(position)
            position, found = following
        generation, block_parts, position = found
        parts += block_parts


def begins_with_another_key(buffer: Buffer, key: bytes) -> bool:
    """Whether a file begins with a valid block of another key: another data directory's. No client's bytes ever stand
    at a file's start, so that none of them can make this true.
    """
    view = memoryview(buffer)
    return _block_at(view, 0, 0, None) is not None and _block_at(view, 0, 0, key) is None


_Block = tuple[int, list[JournalPart], int]
"""Generation, parts, and the position after the block."""


def _block_after(
    buffer: Buffer, view: memoryview, position: int, generation: int, key: bytes | None
) -> tuple[int, _Block] | None:
    """The first valid block behind a position, and where it is; before the first block of a file is known, that of the
    newest generation, since a reused file still holds older ones.
    """
    whole = bytes(buffer) if not isinstance(buffer, bytes) else buffer
    best: tuple[int, _Block] | None = None
    at = whole.find(MAGIC, position + 1)
    while at >= 0:
        found = _block_at(view, at, generation, key)
        if found is not None:
            if generation:
                return at, found
            if best is None or found[0] > best[1][0]:
                best = at, found
            at = found[2] - 1
        at = whole.find(MAGIC, at + 1)
    return best


def _block_at(view: memoryview, position: int, generation: int, key: bytes | None) -> _Block | None:
    """The block at a position, if it is valid, of this generation (0: of any) and with this key (None: with any)."""
    if position + HEAD.size > len(view):
        return None
    magic, version, count, found, at, table_bytes, data_bytes, found_key, crc = HEAD.unpack_from(view, position)
    table_at = position + HEAD.size
    data_at = table_at + table_bytes
    end = data_at + data_bytes
    if magic != MAGIC or at != position or end > len(view) or found < 1 or (generation and found != generation):
        return None
    if key is not None and found_key != key:
        return None
    if crc32c(view[table_at:end], crc32c(view[position : position + _CRC_AT])) != crc:
        return None
    if version not in (VERSION, WITH_LEDGER):
        raise UnknownFormatVersion(f"journal block version {version} is newer than {WITH_LEDGER}; upgrade Cairn")
    parts = _decode_parts(view[table_at:data_at], view[data_at:end], count)
    return None if parts is None else (found, parts, end)


def _decode_parts(table: memoryview, data: memoryview, count: int) -> list[JournalPart] | None:
    parts: list[JournalPart] = []
    at = taken = 0
    for _ in range(count):
        if at + PART.size > len(table):
            return None
        directory_bytes, length, chunk_offset, position, base_offset = PART.unpack_from(table, at)
        at += PART.size
        directory = bytes(table[at : at + directory_bytes])
        at += directory_bytes
        parts.append(
            JournalPart(PartPlace(directory, chunk_offset, position, base_offset), data[taken : taken + length])
        )
        taken += length
    return parts if at == len(table) and taken == len(data) else None

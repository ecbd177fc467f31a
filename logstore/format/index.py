"""The timestamp index beside a chunk: positions of offsets, timestamps and control batches, and the durable length.

Invariants:
* A block is written only after the data it describes is synced, so a valid block proves that every byte of the chunk
  before `durable_end` was on disk.
* Blocks follow each other end to end; each has a CRC-32C over itself. Reading stops at the first block that is not
  whole, intact and a continuation of the previous one: bytes after it are ignored.
* Entries are sparse and rise in offset and position. Every control batch has an entry, and so has every damaged place
  (as a control batch of an unknown type), so that a scan for control batches finds the damage.
* The plain batch after a control batch has an entry, so a control batch ends where the next entry starts.

Source: CEC paper, section IX (per-stream index from timestamp to position); byte table in docs/format.md.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from crc32c import crc32c

from logstore.errors import UnknownFormatVersion
from logstore.interfaces import Buffer

MAGIC = b"CIDX"
VERSION = 2
BLOCK = struct.Struct(">4sHHIqqqqI")
"""magic, version, reserved, entry count, durable end, next offset, maximum timestamp, time written, CRC-32C of all
else
"""
_BLOCK_1 = struct.Struct(">4sHHIqqqI")
"""Version 1 lacks the time written."""
_VERSION_AT = len(MAGIC)
ENTRY = struct.Struct(">qqqII")
"""base offset, running maximum timestamp before it, position, CRC field of the batch there, flags"""
CONTROL_FLAG = 1
TYPE_SHIFT = 16
"""The upper half of the flags is the type of the control record; 0: unknown."""
NO_TIMESTAMP = -1
UNKNOWN_TIME = -1
_CRC_BYTES = 4
_ENTRY_WORDS = ENTRY.size // 8
_INVERTED = bytes([1]) + bytes(255)


class IndexEntry(NamedTuple):
    """One batch: base offset, maximum timestamp (ms) of all batches before it in the chunk, position, CRC, flags."""

    base_offset: int
    max_timestamp_before: int
    position: int
    batch_crc: int
    flags: int

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch."""
        return bool(self.flags & CONTROL_FLAG)

    @property
    def control_type(self) -> int:
        """The type of its control record; 0: unknown, or none."""
        return self.flags >> TYPE_SHIFT


class IndexBlock(NamedTuple):
    """Entries, and the chunk's state when they were written: all bytes before `durable_end` were synced.

    `written_ms`: the retention clock at the last append before `durable_end`; -1: unknown.
    """

    durable_end: int
    next_offset: int
    max_timestamp: int
    entries: Sequence[IndexEntry]
    written_ms: int = UNKNOWN_TIME


def encode_block(block: IndexBlock) -> bytes:
    """The bytes of one block."""
    ends = (block.durable_end, block.next_offset, block.max_timestamp, block.written_ms)
    head = BLOCK.pack(MAGIC, VERSION, 0, len(block.entries), *ends, 0)[:-_CRC_BYTES]
    body = b"".join([ENTRY.pack(*entry) for entry in block.entries])
    return head + crc32c(body, crc32c(head)).to_bytes(_CRC_BYTES, "big") + body


def decode_blocks(buffer: Buffer) -> tuple[list[IndexBlock], int]:
    """The valid blocks at the start of `buffer`, and the position after the last of them.

    Raises UnknownFormatVersion for an intact block of a newer version.
    """
    blocks: list[IndexBlock] = []
    position = 0
    for (durable_end, next_offset, max_timestamp, *written), body, end in _intact(memoryview(buffer)):
        position = end
        entries = list(map(IndexEntry._make, ENTRY.iter_unpack(body)))
        blocks.append(IndexBlock(durable_end, next_offset, max_timestamp, entries, *written))
    return blocks, position


def decode_seal(end: Buffer) -> IndexBlock | None:
    """The seal of a chunk's index, decoded from its last `BLOCK.size` bytes; None if unsealed.

    The seal is a block without entries; `end` holds all bytes of a shorter index.
    """
    for layout in (BLOCK, _BLOCK_1):
        blocks, _ = decode_blocks(memoryview(end)[max(0, len(end) - layout.size) :])
        if blocks:
            return blocks[0]
    return None


class IndexColumns(NamedTuple):
    """A whole index file as columns: enough for a search, without an object for each entry."""

    offsets: array[int]
    max_before: array[int]
    positions: array[int]
    control_offsets: array[int]
    control_positions: array[int]
    control_types: array[int]
    end: int
    """Position in the file after the last valid block."""
    durable_end: int
    is_sealed: bool
    """Whether the last block has no entries, which seals the chunk."""


def decode_columns(buffer: Buffer) -> IndexColumns:
    """Decode the same blocks as `decode_blocks`, many times faster, because a seek into a cold chunk waits for this.

    Raises UnknownFormatVersion for an intact block of a newer version.
    """
    end = durable_end = 0
    is_sealed = False
    gathered = bytearray()
    for ends, body, behind in _intact(memoryview(buffer)):
        gathered += body
        end, durable_end, is_sealed = behind, ends[0], not body
    entries = bytes(gathered)
    words = array("q", entries)
    if sys.byteorder == "little":
        words.byteswap()
    # One byte for each entry: 1 for a control batch, else 0; `plain` is the inverse.
    control = entries[ENTRY.size - 1 :: ENTRY.size]
    plain = control.translate(_INVERTED)
    offsets, max_before, positions, flags = (words[column::_ENTRY_WORDS] for column in range(_ENTRY_WORDS))
    return IndexColumns(
        _chosen(offsets, plain),
        _chosen(max_before, plain),
        _chosen(positions, plain),
        _chosen(offsets, control),
        _chosen(positions, control),
        array("H", [(word >> TYPE_SHIFT) & 0xFFFF for word in compress(flags, control)]),
        end,
        durable_end,
        is_sealed,
    )


def _chosen(column: array[int], chosen: bytes) -> array[int]:
    return column if all(chosen) else array("q", compress(column, chosen))


def _intact(view: memoryview) -> Iterator[tuple[Sequence[int], memoryview, int]]:
    """The numbers of each block from the durable end on, its entries' bytes, and the position after them, up to the
    first invalid block. An index has a block for each write of its chunk, so what is done for each is little.
    """
    position = last_durable = last_offset = 0
    size = len(view)
    while position + _BLOCK_1.size <= size:
        version = view[position + _VERSION_AT] << 8 | view[position + _VERSION_AT + 1]
        layout = _BLOCK_1 if version == 1 else BLOCK
        body_at = position + layout.size
        if body_at > size:
            return
        magic, _, _, count, *ends, crc = layout.unpack_from(view, position)
        end = body_at + count * ENTRY.size
        if magic != MAGIC or end > size:
            return
        body = view[body_at:end]
        if crc32c(body, crc32c(view[position : body_at - _CRC_BYTES])) != crc:
            return
        if version not in (1, VERSION):
            raise UnknownFormatVersion(f"index block version {version} is newer than {VERSION}; upgrade Cairn")
        durable_end, next_offset = ends[0], ends[1]
        if durable_end < last_durable or next_offset < last_offset:
            return
        yield ends, body, end
        position, last_durable, last_offset = end, durable_end, next_offset

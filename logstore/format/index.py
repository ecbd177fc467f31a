"""The timestamp index beside a chunk: where offsets, timestamps and control batches stand, and what was durable.

Invariants:
* A block is written only after the data it describes is synced, so a valid block proves that every byte of the chunk in
  front of `durable_end` was on disk.
* Blocks stand end to end; each has a CRC-32C over itself. Reading stops at the first that is not whole, intact and a
  continuation of the one before: what is behind it is worth nothing.
* Entries are sparse and rise in offset and position; control batches are all there.

Source: CEC paper, section IX (per-stream index from timestamp to position); byte table in docs/format.md.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from logstore.errors import UnknownFormatVersion
from logstore.interfaces import Buffer

MAGIC = b"CIDX"
VERSION = 1
BLOCK = struct.Struct(">4sHHIqqqI")
"""magic, version, reserved, entry count, durable end, next offset, maximum timestamp, CRC-32C of all else"""
ENTRY = struct.Struct(">qqqII")
"""base offset, running maximum timestamp before it, position, CRC field of the batch there, flags"""
CONTROL_FLAG = 1
NO_TIMESTAMP = -1
_CRC_AT = BLOCK.size - 4


class IndexEntry(NamedTuple):
    """One batch: its base offset, the maximum timestamp (ms) of all before it in the chunk, where it stands, its CRC."""

    base_offset: int
    max_timestamp_before: int
    position: int
    batch_crc: int
    flags: int

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch."""
        return bool(self.flags & CONTROL_FLAG)


class IndexBlock(NamedTuple):
    """Entries, and the chunk's state when they were written: all bytes before `durable_end` are synced."""

    durable_end: int
    next_offset: int
    max_timestamp: int
    entries: Sequence[IndexEntry]


def encode_block(block: IndexBlock) -> bytes:
    """The bytes of one block."""
    head = BLOCK.pack(
        MAGIC, VERSION, 0, len(block.entries), block.durable_end, block.next_offset, block.max_timestamp, 0
    )
    body = b"".join([ENTRY.pack(*entry) for entry in block.entries])
    return head[:_CRC_AT] + crc32c(body, crc32c(head[:_CRC_AT])).to_bytes(4, "big") + body


def decode_blocks(buffer: Buffer) -> tuple[list[IndexBlock], int]:
    """The blocks at the start of `buffer` that hold, and the position behind the last of them.

    Raises UnknownFormatVersion for an intact block of a newer version.
    """
    view = memoryview(buffer)
    blocks: list[IndexBlock] = []
    position = 0
    while position + BLOCK.size <= len(view):
        magic, version, _, count, durable_end, next_offset, max_timestamp, crc = BLOCK.unpack_from(view, position)
        body_at = position + BLOCK.size
        end = body_at + count * ENTRY.size
        if magic != MAGIC or end > len(view):
            break
        if crc32c(view[body_at:end], crc32c(view[position : position + _CRC_AT])) != crc:
            break
        if version != VERSION:
            raise UnknownFormatVersion(f"index block version {version} is newer than {VERSION}; upgrade Cairn")
        if blocks and (durable_end < blocks[-1].durable_end or next_offset < blocks[-1].next_offset):
            break
        entries = [IndexEntry(*fields) for fields in ENTRY.iter_unpack(view[body_at:end])]
        blocks.append(IndexBlock(durable_end, next_offset, max_timestamp, entries))
        position = end
    return blocks, position

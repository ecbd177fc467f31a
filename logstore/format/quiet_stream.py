"""Entries of the table of quiet streams: what a start must know of a stream without looking at its files.

Invariants:
* An entry is either QUIET, with every chunk of the stream as it is on disk, or ACTIVE, with an offset that the stream
  had reached and nothing else: the stream's files say the rest.
* An entry is decoded whole or not at all; the ledger that holds it has its checksum.

Byte table in docs/format.md.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from logstore.errors import CorruptFile, UnknownFormatVersion

VERSION = 1
ACTIVE, QUIET = 0, 1
HEAD = struct.Struct(">BBq")
"""version, kind, next offset"""
STATE = struct.Struct(">qqII")
"""position of the newest producer snapshot in the last chunk, time of that chunk's first append, chunk count, bytes of
producers
"""
CHUNK = struct.Struct(">qqqqqqq")
"""base offset, next offset, bytes, maximum timestamp, time written, bytes of index, bytes of producer snapshots"""


class QuietChunk(NamedTuple):
    """One chunk; offsets, sizes in bytes, times in ms (`written_ms`: retention clock, -1 unknown)."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp: int
    written_ms: int
    index_bytes: int
    producers_bytes: int


class QuietStream(NamedTuple):
    """A stream at rest. `opened_ms`: of its last chunk (retention clock, -1 unknown); `producers`: a block of
    `logstore.format.snapshot`, empty if there are none.
    """

    chunks: Sequence[QuietChunk]
    snapshot_at: int
    opened_ms: int
    producers: bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.chunks[-1].next_offset


class ActiveStream(NamedTuple):
    """A stream whose files say what it holds. It had durable records up to `next_offset`."""

    next_offset: int


def encode_active(next_offset: int) -> bytes:
    """The entry of a stream that may change."""
    return HEAD.pack(VERSION, ACTIVE, next_offset)


def encode_quiet(stream: QuietStream) -> bytes:
    """The entry of a stream at rest; it has one chunk at least."""
    parts = [HEAD.pack(VERSION, QUIET, stream.next_offset)]
    parts.append(STATE.pack(stream.snapshot_at, stream.opened_ms, len(stream.chunks), len(stream.producers)))
    parts.extend(CHUNK.pack(*chunk) for chunk in stream.chunks)
    parts.append(stream.producers)
    return b"".join(parts)


def decode_entry(entry: bytes, name: str) -> QuietStream | ActiveStream:
    """The entry of the stream called `name`. Raises CorruptFile, and UnknownFormatVersion for a newer version's."""
    if len(entry) < HEAD.size:
        raise CorruptFile(f"the table of quiet streams has {len(entry)} bytes for {name}")
    version, kind, next_offset = HEAD.unpack_from(entry)
    if version != VERSION:
        raise UnknownFormatVersion(
            f"the table of quiet streams has version {version} for {name}, this Cairn knows {VERSION}; upgrade Cairn"
        )
    if kind == ACTIVE and len(entry) == HEAD.size:
        return ActiveStream(next_offset)
    if kind == QUIET and len(entry) >= HEAD.size + STATE.size:
        snapshot_at, opened_ms, count, producers_bytes = STATE.unpack_from(entry, HEAD.size)
        at = HEAD.size + STATE.size
        end = at + count * CHUNK.size
        if count and end + producers_bytes == len(entry):
            chunks = [QuietChunk._make(fields) for fields in CHUNK.iter_unpack(entry[at:end])]
            return QuietStream(chunks, snapshot_at, opened_ms, entry[end:])
    raise CorruptFile(f"the entry of {name} in the table of quiet streams is damaged")

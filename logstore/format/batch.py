"""RecordBatch v2, Kafka's unit of transfer and storage: checked, stored, indexed and sent unchanged.

Invariants:
* This module does not decode records; a batch is a 61-byte header and opaque bytes.
* `check_batch` is the only gate: a batch that passes has a valid length, magic 2, a matching CRC-32C and counts that
  agree.
* The base offset and the leader epoch are before the CRC's range, so they can be patched without changing the CRC. Only
  `stamp_append_time` changes bytes inside the range, and updates the CRC.

Source: Kafka's documentation, "Record Batch"; KIP-98.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptBatch, UnsupportedBatchFormat
from logstore.interfaces import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_OFFSET = 8
"""Position of the batch length, which counts the bytes after itself."""
LENGTH_OVERHEAD = 12
"""Bytes of base offset and length field, which the batch length does not count."""
MAGIC_OFFSET = 16
CRC_OFFSET = 17
CRC_START = 21
"""First byte that the CRC covers (the attributes)."""

LEADER_EPOCH = 0
"""The leader epoch of every batch on disk but in replicas of chunks, whose batches have epochs up to their chunk's."""
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
HIGHEST_COMPRESSION = 4
"""none, gzip, snappy, lz4, zstd"""

_MAX_TIMESTAMP_OFFSET = 35
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_EPOCH = struct.Struct(">i")
_NO_TIME = -1
_EMPTY_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD


class BatchHeader(NamedTuple):
    """The fields of the 61 bytes before a batch's records, in order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def next_offset(self) -> int:
        """The offset after the last record's."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        """Whether the batch holds control records, which clients skip."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a Kafka transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def has_log_append_time(self) -> bool:
        """Whether the batch's timestamps were set by the broker."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, with its length and magic checked but not its CRC.

    Raises CorruptBatch (too few bytes, invalid length, unknown magic), UnsupportedBatchFormat for magic 0 and 1.
    """
    if len(buffer) - position < HEADER_BYTES:
        if len(buffer) - position > MAGIC_OFFSET and buffer[position + MAGIC_OFFSET] in (0, 1):
            raise UnsupportedBatchFormat(_OLD_FORMAT.format(buffer[position + MAGIC_OFFSET]))
        raise CorruptBatch(
            f"{len(buffer) - position} bytes at {position} are fewer than a batch header's {HEADER_BYTES}"
        )
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != 2:
        if header.magic in (0, 1):
            raise UnsupportedBatchFormat(_OLD_FORMAT.format(header.magic))
        raise CorruptBatch(f"magic {header.magic} at {position} is not 2")
    if header.batch_length < _EMPTY_LENGTH:
        raise CorruptBatch(f"batch length {header.batch_length} at {position} is less than a header's")
    return header


_OLD_FORMAT = "message format {} is older than RecordBatch v2; use a client of Kafka 0.11 or newer"


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`, which must be whole and intact.

    Raises CorruptBatch (short, CRC-32C mismatch, counts that contradict each other) or UnsupportedBatchFormat.
    """
    header = parse_header(buffer, position)
    end = position + header.batch_length + LENGTH_OVERHEAD
    if end > len(buffer):
        raise CorruptBatch(f"batch at {position} claims {header.size_bytes} bytes, {len(buffer) - position} are here")
    found = crc32c(memoryview(buffer)[position + CRC_START : end])
    if found != header.crc:
        raise CorruptBatch(f"batch at {position}: CRC-32C is {found:#010x}, its header says {header.crc:#010x}")
    if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatch(
            f"batch at {position}: {header.record_count} records do not fit "
            f"last offset delta {header.last_offset_delta}"
        )
    return header


_RUN = struct.Struct(">qiibIhi30xi")
"""The fields of a header that `intact_run` looks at."""


def intact_run(
    buffer: memoryview,
    at: int,
    end: int,
    base_offset: int,
    end_offset: int,
    most: int,
    leader_epoch: int = LEADER_EPOCH,
) -> tuple[int, int, int]:
    """How far whole and intact batches without control records follow each other from `at`: their end, at most `end`,
    the offset after them, at most `end_offset`, and their number, at most `most`. The first of them has `base_offset`,
    each following one the offset after the one before; none has a leader epoch above `leader_epoch`.

    The checks are those of `check_batch`, in one loop. What ends the run is left to the caller: nothing is raised.
    """
    number = 0
    while number < most and at + HEADER_BYTES <= end:
        base, length, epoch, magic, crc, attributes, last_delta, records = _RUN.unpack_from(buffer, at)
        after = at + length + LENGTH_OVERHEAD
        next_offset = base + last_delta + 1
        if base != base_offset or magic != 2 or attributes & CONTROL_BIT or after > end:
            break
        if epoch != leader_epoch and not 0 <= epoch < leader_epoch:
            break
        if length < _EMPTY_LENGTH or next_offset > end_offset or last_delta < 0 or not 0 <= records <= last_delta + 1:
            break
        if crc32c(buffer[at + CRC_START : after]) != crc:
            break
        at, base_offset = after, next_offset
        number += 1
    return at, base_offset, number


def iterate_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and checked headers of batches end to end.

    Raises CorruptBatch at the first batch that is not whole and intact, and at trailing bytes.
    """
    position, size = 0, len(buffer)
    while position < size:
        header = check_batch(buffer, position)
        yield position, header
        position += header.batch_length + LENGTH_OVERHEAD


def patch_base(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into the header at `position`; the CRC does not cover them."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + LENGTH_OVERHEAD, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Set LogAppendTime in the batch at the start of `buffer`, whose header is `header`: each record's time is
    `now_ms`. Returns the new header.
    """
    _ATTRIBUTES.pack_into(buffer, CRC_START, header.attributes | TIMESTAMP_TYPE_BIT)
    _OFFSET.pack_into(buffer, _MAX_TIMESTAMP_OFFSET, now_ms)
    _CRC.pack_into(buffer, CRC_OFFSET, crc32c(memoryview(buffer)[CRC_START : header.size_bytes]))
    return parse_header(buffer)


def empty_batch(header: BatchHeader) -> bytes:
    """A batch without records over the same offsets; a fetch sends it in place of a control batch.

    Kafka itself keeps such batches after compaction, so every client advances past them.
    """
    return _empty(header, header.last_offset_delta, header.base_timestamp, header.max_timestamp)


def empty_batches(first: BatchHeader, next_offset: int) -> bytes:
    """A batch without records and times over the offsets from a batch's first up to, not including, `next_offset`."""
    return _empty(first, next_offset - first.base_offset - 1, _NO_TIME, _NO_TIME)


def is_empty(header: BatchHeader) -> bool:
    """Whether a batch is one that `empty_batches` made."""
    return header.record_count == 0 and not header.is_control and header.producer_id < 0


def _empty(header: BatchHeader, last_offset_delta: int, base_timestamp: int, max_timestamp: int) -> bytes:
    ends = (last_offset_delta, base_timestamp, max_timestamp)
    whole = bytearray(
        HEADER.pack(header.base_offset, _EMPTY_LENGTH, header.partition_leader_epoch, 2, 0, 0, *ends, -1, -1, -1, 0)
    )
    _CRC.pack_into(whole, CRC_OFFSET, crc32c(memoryview(whole)[CRC_START:]))
    return bytes(whole)


def seal_batch(batch: bytearray) -> bytearray:
    """Write length and CRC-32C into a batch whose other header fields and records are complete, and return it."""
    _LENGTH.pack_into(batch, LENGTH_OFFSET, len(batch) - LENGTH_OVERHEAD)
    _CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_START:]))
    return batch

"""Producer snapshots beside a chunk: the last batches of idempotent producers, as of a position in the chunk.

Invariants:
* Blocks follow each other end to end, each with a CRC-32C; the last valid block counts. A block describes synced data
  only.
* A producer's last five batches are kept: as many as a client may have in flight, so every duplicate is recognised.

Source: KIP-98 (producer id, epoch, sequence); Kafka keeps the same in `.snapshot` files. Byte table in docs/format.md.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from logstore.errors import UnknownFormatVersion
from logstore.interfaces import Buffer

MAGIC = b"CPRD"
VERSION = 1
BLOCK = struct.Struct(">4sHHIqqII")
"""magic, version, reserved, producer count, position, next offset, body bytes, CRC-32C of all else"""
PRODUCER = struct.Struct(">qhHq")
"""producer id, epoch, batch count, wall time of the last append in ms"""
BATCH = struct.Struct(">iiq")
"""first sequence, last sequence, base offset"""
_CRC_AT = BLOCK.size - 4


class ProducerBatch(NamedTuple):
    """One remembered batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class ProducerEntry(NamedTuple):
    """One producer: its epoch, the time of its last append (ms), its last batches, oldest first."""

    producer_id: int
    epoch: int
    last_append_ms: int
    batches: tuple[ProducerBatch, ...]


class ProducerSnapshot(NamedTuple):
    """All producers of a stream as of `position` in the chunk, where `next_offset` is the next offset."""

    position: int
    next_offset: int
    producers: Sequence[ProducerEntry]


def encode_snapshot(snapshot: ProducerSnapshot) -> bytes:
    """The bytes of one block."""
    parts: list[bytes] = []
    for entry in snapshot.producers:
        parts.append(PRODUCER.pack(entry.producer_id, entry.epoch, len(entry.batches), entry.last_append_ms))
        parts.extend(BATCH.pack(*batch) for batch in entry.batches)
    body = b"".join(parts)
    head = BLOCK.pack(MAGIC, VERSION, 0, len(snapshot.producers), snapshot.position, snapshot.next_offset, len(body), 0)
    return head[:_CRC_AT] + crc32c(body, crc32c(head[:_CRC_AT])).to_bytes(4, "big") + body


def decode_snapshots(buffer: Buffer) -> tuple[list[ProducerSnapshot], int]:
    """The valid blocks at the start of `buffer`, and the position after the last of them.

    Raises UnknownFormatVersion for an intact block of a newer version.
    """
    view = memoryview(buffer)
    snapshots: list[ProducerSnapshot] = []
    position = 0
    while position + BLOCK.size <= len(view):
        magic, version, _, count, at, next_offset, length, crc = BLOCK.unpack_from(view, position)
        body_at = position + BLOCK.size
        end = body_at + length
        if magic != MAGIC or end > len(view):
            break
        if crc32c(view[body_at:end], crc32c(view[position : position + _CRC_AT])) != crc:
            break
        if version != VERSION:
            raise UnknownFormatVersion(f"producer snapshot version {version} is newer than {VERSION}; upgrade Cairn")
        producers = _decode_producers(view[body_at:end], count)
        if producers is None:
            break
        snapshots.append(ProducerSnapshot(at, next_offset, producers))
        position = end
    return snapshots, position


def _decode_producers(body: memoryview, count: int) -> list[ProducerEntry] | None:
    producers: list[ProducerEntry] = []
    at = 0
    for _ in range(count):
        if at + PRODUCER.size > len(body):
            return None
        producer_id, epoch, batch_count, last_ms = PRODUCER.unpack_from(body, at)
        at += PRODUCER.size
        end = at + batch_count * BATCH.size
        if end > len(body):
            return None
        batches = tuple(ProducerBatch(*fields) for fields in BATCH.iter_unpack(body[at:end]))
        producers.append(ProducerEntry(producer_id, epoch, last_ms, batches))
        at = end
    return producers if at == len(body) else None

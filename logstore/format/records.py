"""Records of a batch as Python objects: the slow path, for control records, small clients and tests.

Invariants: `decode_batch` reads back what `encode_batch` writes; invalid bytes raise CorruptBatch and no other error.
The vectorised path for data is `spe_adapter.codec`.

Source: Kafka's documentation, "Record"; varints are zigzag-encoded (protobuf).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from logstore.errors import CorruptBatch
from logstore.format.batch import CONTROL_BIT, HEADER, HEADER_BYTES, BatchHeader, check_batch, seal_batch
from logstore.interfaces import Buffer

_MAX_VARINT_BYTES = 10


class Record(NamedTuple):
    """One record: offset, timestamp in ms, key and value (None: null), headers."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def write_varint(target: bytearray, value: int) -> None:
    """Append a zigzag varint."""
    encoded = (value << 1) ^ (value >> 63)
    while encoded > 0x7F:
        target.append((encoded & 0x7F) | 0x80)
        encoded >>= 7
    target.append(encoded)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """A zigzag varint and the position after it. Raises CorruptBatch if the varint is too long or cut short."""
    if position < len(buffer) and (byte := buffer[position]) < 0x80:  # most are small
        return (byte >> 1) ^ -(byte & 1), position + 1
    encoded = shift = 0
    for index in range(position, min(position + _MAX_VARINT_BYTES, len(buffer))):
        byte = buffer[index]
        encoded |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (encoded >> 1) ^ -(encoded & 1), index + 1
        shift += 7
    raise CorruptBatch(f"varint at {position} does not end")


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    control: bool = False,
) -> bytearray:
    """One uncompressed batch of `records`; their offsets count from `base_offset` (`Record.offset` is ignored)."""
    if not records:
        raise CorruptBatch("a batch has at least one record")
    base_timestamp = records[0].timestamp
    batch = bytearray(
        HEADER.pack(
            base_offset,
            0,
            0,
            2,
            0,
            attributes | (CONTROL_BIT if control else 0),
            len(records) - 1,
            base_timestamp,
            max(record.timestamp for record in records),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    for delta, record in enumerate(records):
        body = _encode_body(record, record.timestamp - base_timestamp, delta)
        write_varint(batch, len(body))
        batch += body
    return seal_batch(batch)


def _encode_body(record: Record, timestamp_delta: int, offset_delta: int) -> bytearray:
    body = bytearray(b"\x00")
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    return body


def _write_bytes(target: bytearray, value: bytes | None) -> None:
    if value is None:
        write_varint(target, -1)
    else:
        write_varint(target, len(value))
        target += value


def decode_batch(buffer: Buffer, position: int = 0) -> list[Record]:
    """The records of the uncompressed batch at `position`.

    Raises CorruptBatch if the batch is damaged or compressed, or a record in it is malformed.
    """
    header = check_batch(buffer, position)
    if header.compression:
        raise CorruptBatch(f"batch at {position} is compressed (codec {header.compression}); decompress it first")
    whole = memoryview(buffer)[position : position + header.size_bytes]
    records: list[Record] = []
    at = HEADER_BYTES
    for _ in range(header.record_count):
        length, at = read_varint(whole, at)
        if length < 0 or at + length > len(whole):
            raise CorruptBatch(f"record length {length} at {at} exceeds its batch")
        records.append(_decode_body(whole[at : at + length], header.base_offset, header.base_timestamp))
        at += length
    if at != len(whole):
        raise CorruptBatch(f"{len(whole) - at} bytes behind the last record")
    return records


def iterate_times(records: memoryview, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Offset and timestamp (ms) of each record of a batch. Decodes no other field, and no record before it is
    requested, so a search that stops early is cheap. `records`: the decompressed bytes after the header, or a prefix of
    them.

    Raises CorruptBatch at a malformed record, or where the bytes end before the records do.
    """
    if header.has_log_append_time:  # the records' own times do not count
        yield from ((header.base_offset + delta, header.max_timestamp) for delta in range(header.record_count))
        return
    at = 0
    for _ in range(header.record_count):
        length, at = read_varint(records, at)
        if length < 1:
            raise CorruptBatch(f"record length {length} at {at} cannot be")
        end = at + length
        timestamp_delta, at = read_varint(records, at + 1)
        offset_delta, _ = read_varint(records, at)
        yield header.base_offset + offset_delta, header.base_timestamp + timestamp_delta
        at = end


def first_since(
    records: memoryview, header: BatchHeader, timestamp_ms: int, from_offset: int
) -> tuple[int, int] | None:
    """The first pair of `iterate_times` with this timestamp or a later one, and this offset or a later one; None if
    there is none. A look-up passes many records, so of those before it no more than length and time are decoded, and
    the usual sizes of varints without a call for each.

    Raises CorruptBatch if one of these is malformed, or if the bytes end before the records do.
    """
    if header.has_log_append_time:
        offset = max(header.base_offset, from_offset)
        is_there = header.max_timestamp >= timestamp_ms and offset < header.base_offset + header.record_count
        return (offset, header.max_timestamp) if is_there else None
    wanted_delta = timestamp_ms - header.base_timestamp
    size, at = len(records), 0
    for _ in range(header.record_count):
        if at + 1 < size and (records[at] < 0x80 or records[at + 1] < 0x80):
            byte = records[at]
            encoded = byte if byte < 0x80 else byte & 0x7F | records[at + 1] << 7
            length, at = (encoded >> 1) ^ -(encoded & 1), at + (1 if byte < 0x80 else 2)
        else:
            length, at = read_varint(records, at)
        if length < 1:
            raise CorruptBatch(f"record length {length} at {at} cannot be")
        end = at + length
        at += 1  # the attributes
        if at + 1 < size and ((byte := records[at]) < 0x80 or records[at + 1] < 0x80):
            encoded = byte if byte < 0x80 else byte & 0x7F | records[at + 1] << 7
            delta, at = (encoded >> 1) ^ -(encoded & 1), at + (1 if byte < 0x80 else 2)
        else:
            delta, at = read_varint(records, at)
        if at >= size:
            raise CorruptBatch(f"the records end at {size}, inside of one")
        if delta >= wanted_delta:
            offset_delta, _ = read_varint(records, at)
            if header.base_offset + offset_delta >= from_offset:
                return header.base_offset + offset_delta, header.base_timestamp + delta
        at = end
    return None


def _decode_body(body: memoryview, base_offset: int, base_timestamp: int) -> Record:
    timestamp_delta, at = read_varint(body, 1)
    offset_delta, at = read_varint(body, at)
    key, at = _read_bytes(body, at)
    value, at = _read_bytes(body, at)
    count, at = read_varint(body, at)
    if not 0 <= count <= len(body) - at:
        raise CorruptBatch(f"{count} headers do not fit {len(body) - at} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_bytes(body, at)
        content, at = _read_bytes(body, at)
        try:
            headers.append(((name or b"").decode(), content))
        except UnicodeDecodeError as error:
            raise CorruptBatch(f"header name {name!r} is not UTF-8") from error
    if at != len(body):
        raise CorruptBatch(f"{len(body) - at} bytes behind a record's end")
    return Record(base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, tuple(headers))


def _read_bytes(body: memoryview, position: int) -> tuple[bytes | None, int]:
    length, at = read_varint(body, position)
    if length == -1:
        return None, at
    if length < 0 or at + length > len(body):
        raise CorruptBatch(f"field length {length} at {position} exceeds its record")
    return bytes(body[at : at + length]), at + length

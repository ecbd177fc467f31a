"""Control records: Cairn's own entries between records, in control batches that every Kafka client skips.

Invariants:
* Key: int16 version 0, int16 type; exactly 4 bytes. Cairn's types start at 1000, far from Kafka's own (0 abort, 1
  commit, …).
* Value: int16 version 0, then the length of a JSON object, the object, and opaque bytes. Every field is checked: an
  unknown version raises UnknownFormatVersion, an unknown type gives None (another program's record), any other error
  raises CorruptBatch.
* One control record per control batch, uncompressed.
* BEGIN and END belong to the log. Footprints, tombstones and marks belong to a query: the log stores them and reads
  only their type.

Source: KIP-98 (control batches); CEC paper, section II.B (footprints and markers in the output stream); docs/format.md.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from logstore.errors import CorruptBatch, UnknownFormatVersion
from logstore.format.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    check_batch,
    parse_header,
    seal_batch,
)
from logstore.format.records import read_varint, write_varint
from logstore.interfaces import Buffer

BEGIN_TYPE = 1000
END_TYPE = 1001
FOOTPRINTS_TYPE = 1002
TOMBSTONES_TYPE = 1003
MARK_TYPE = 1004
FIRST_TYPE = 1000
STATE_TYPES = frozenset((FOOTPRINTS_TYPE, TOMBSTONES_TYPE, MARK_TYPE))
"""Types of control records that a query may stage among its batches."""
PEEK_BYTES = HEADER_BYTES + 27
"""The first bytes of a control batch that include its key, however long its varints: length 5, attributes 1, timestamp
delta 10, offset delta 5, length of the key 1 and the key 4, one spare.
"""
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class Begin(NamedTuple):
    """Opens an append group: its query, epoch and attempts, and the bytes and batches between BEGIN and END.

    `incarnation` counts the query's incarnations from 1; its stored key is `run`.
    """

    query: str
    epoch: int
    incarnation: int
    attempts: tuple[str, ...]
    byte_count: int
    batch_count: int


class End(NamedTuple):
    """Closes an append group: the epoch marker. `positions` is opaque to the log."""

    query: str
    epoch: int
    incarnation: int
    positions: bytes


class ControlRecord(NamedTuple):
    """Any control record of Cairn: its type, its JSON fields, and the opaque bytes after them (a view, not a copy)."""

    kind: int
    fields: dict[str, Any]
    payload: memoryview


# ---- any record


def encode_control_record(kind: int, fields: Mapping[str, Any], payload: Buffer, timestamp_ms: int) -> bytearray:
    """A control batch with one record of type `kind`; `payload` is copied once."""
    head = json.dumps(fields, separators=(",", ":")).encode()
    value_bytes = _VALUE.size + len(head) + len(payload)
    # After the length: attributes, two deltas of 0, the key's length and the key; after the value: no headers.
    front = bytearray(b"\0\0\0")
    write_varint(front, _KEY.size)
    front += _KEY.pack(_VERSION, kind)
    write_varint(front, value_bytes)
    front += _VALUE.pack(_VERSION, len(head)) + head
    batch = bytearray(
        HEADER.pack(0, 0, 0, 2, 0, CONTROL_BIT, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1)  # one record, no producer
    )
    write_varint(batch, len(front) + len(payload) + 1)
    batch += front
    batch += payload
    batch += b"\0"
    return seal_batch(batch)


def decode_control_record(buffer: Buffer, position: int = 0) -> ControlRecord:
    """The record of the control batch at `position`, of any type; its payload is a view into `buffer`.

    Raises CorruptBatch (also for a key of another version, which Cairn did not write) or UnknownFormatVersion.
    """
    header = check_batch(buffer, position)
    kind = control_type(buffer, position)
    if kind is None:
        raise CorruptBatch(f"the control record at {position} has a key of another version")
    value = _value(memoryview(buffer)[position : position + header.size_bytes], header, position)
    if len(value) < _VALUE.size:
        raise CorruptBatch(f"control record of {len(value)} bytes is too short")
    version, length = _VALUE.unpack_from(value)
    if version != _VERSION:
        raise UnknownFormatVersion(f"control record version {version} is newer than {_VERSION}; upgrade Cairn")
    if not 0 <= length <= len(value) - _VALUE.size:
        raise CorruptBatch(f"control record claims {length} bytes of fields in {len(value)}")
    end = _VALUE.size + length
    return ControlRecord(kind, _fields(bytes(value[_VALUE.size : end])), value[end:])


def control_type(buffer: Buffer, position: int = 0) -> int | None:
    """The type number of the control batch at `position`, whose first PEEK_BYTES are enough; None if Cairn does not
    write its key version.

    The caller checks the checksum. Raises CorruptBatch if this is not a control batch of one uncompressed record.
    """
    header = parse_header(buffer, position)
    if not header.is_control or header.record_count != 1 or header.attributes & COMPRESSION_MASK:
        raise CorruptBatch(f"the batch at {position} is not a control batch of one uncompressed record")
    key_bytes, at = _skip_to_key(buffer, position)
    if key_bytes != _KEY.size or at + _KEY.size > len(buffer):
        raise CorruptBatch(f"the control record at {position} has a key of {key_bytes} bytes, not 4")
    version, kind = _KEY.unpack_from(buffer, at)
    return int(kind) if version == _VERSION else None


def known_type(batch: Buffer) -> int:
    """The type of a batch, for the index: 0 if it is not a control batch, or not one of Cairn's."""
    try:
        kind = control_type(batch)
    except CorruptBatch:
        return 0
    return max(kind or 0, 0)


def _skip_to_key(buffer: Buffer, position: int) -> tuple[int, int]:
    """The key's length, and the position of the key."""
    _, at = read_varint(buffer, position + HEADER_BYTES)
    _, at = read_varint(buffer, at + 1)  # after the attributes: timestamp delta
    _, at = read_varint(buffer, at)
    return read_varint(buffer, at)


def _value(batch: memoryview, header: BatchHeader, position: int) -> memoryview:
    """The value of a control batch's one record, which must fill the batch exactly."""
    length, start = read_varint(batch, HEADER_BYTES)
    key_bytes, at = _skip_to_key(batch, 0)
    value_bytes, at = read_varint(batch, at + key_bytes)
    end = at + max(value_bytes, 0)
    # One byte after the value: the number of headers, 0.
    if start + length != header.size_bytes or end + 1 != header.size_bytes or batch[end]:
        raise CorruptBatch(f"the control record at {position} does not fill its batch")
    return batch[at:end]


# ---- the log's own records


def encode_control(control: Begin | End, *, timestamp_ms: int) -> bytearray:
    """A control batch with this one record."""
    if isinstance(control, Begin):
        fields: dict[str, Any] = {"query": control.query, "epoch": control.epoch, "run": control.incarnation}
        fields |= {"attempts": list(control.attempts), "byte_count": control.byte_count}
        fields["batch_count"] = control.batch_count
        return encode_control_record(BEGIN_TYPE, fields, b"", timestamp_ms)
    fields = {"query": control.query, "epoch": control.epoch, "run": control.incarnation}
    return encode_control_record(END_TYPE, fields, control.positions, timestamp_ms)


def decode_control(buffer: Buffer, position: int = 0) -> Begin | End | None:
    """The BEGIN or END in the control batch at `position`, or None if the batch has another type.

    Raises CorruptBatch or UnknownFormatVersion.
    """
    if control_type(buffer, position) not in (BEGIN_TYPE, END_TYPE):
        check_batch(buffer, position)
        return None
    return log_record(decode_control_record(buffer, position))


def log_record(record: ControlRecord) -> Begin | End | None:
    """A control record as BEGIN or END, or None if it has another type. Raises CorruptBatch."""
    kind, fields, payload = record
    if kind == BEGIN_TYPE:
        attempts = fields.get("attempts", [])
        if not isinstance(attempts, list):
            raise CorruptBatch(f"control record field attempts is {attempts!r}, not a list")
        return Begin(
            _text(fields, "query"),
            _integer(fields, "epoch"),
            _integer(fields, "run"),
            tuple(map(str, attempts)),
            _integer(fields, "byte_count"),
            _integer(fields, "batch_count"),
        )
    if kind == END_TYPE:
        return End(_text(fields, "query"), _integer(fields, "epoch"), _integer(fields, "run"), bytes(payload))
    return None


def _fields(head: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise CorruptBatch(f"control record fields {head[:80]!r} are not JSON") from error
    if not isinstance(fields, dict):
        raise CorruptBatch("control record fields are not an object")
    return fields


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise CorruptBatch(f"control record field {name} is {value!r}, not text")
    return value


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CorruptBatch(f"control record field {name} is {value!r}, not a whole number")
    return value

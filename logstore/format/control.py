"""Control records: what Cairn writes between records for itself, in control batches that every Kafka client skips.

Invariants:
* Key: int16 version 0, int16 type; exactly 4 bytes. Cairn's types start at 1000, far from Kafka's own (0 abort, 1
  commit, …).
* Value: int16 version 0, then JSON (begin) or JSON and opaque bytes (end). Every field is checked; an unknown version
  is UnknownFormatVersion, an unknown type is None (somebody else's), anything else that does not add up is
  CorruptBatch.
* One control record per control batch.

Source: KIP-98 (control batches); CEC paper, section II.B (footprints and markers in the output stream); docs/format.md.
"""

import json
import struct
from typing import Any, NamedTuple

from logstore.errors import CorruptBatch, UnknownFormatVersion
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.interfaces import Buffer

BEGIN_TYPE = 1000
END_TYPE = 1001
FIRST_TYPE = 1000
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class Begin(NamedTuple):
    """Opens an append group: whose it is, and how much stands between it and its END."""

    query: str
    epoch: int
    run: int
    attempts: tuple[str, ...]
    byte_count: int
    batch_count: int


class End(NamedTuple):
    """Closes an append group: the epoch marker. `positions` is opaque to the log."""

    query: str
    epoch: int
    run: int
    positions: bytes


def encode_control(control: Begin | End, *, timestamp_ms: int) -> bytearray:
    """A control batch with that one record."""
    if isinstance(control, Begin):
        kind, tail = BEGIN_TYPE, b""
        fields: dict[str, Any] = {**control._asdict(), "attempts": list(control.attempts)}
    else:
        kind, tail = END_TYPE, control.positions
        fields = {"query": control.query, "epoch": control.epoch, "run": control.run}
    head = json.dumps(fields, separators=(",", ":")).encode()
    value = _VALUE.pack(_VERSION, len(head)) + head + tail
    return encode_batch([Record(0, timestamp_ms, _KEY.pack(_VERSION, kind), value)], control=True)


def control_type(buffer: Buffer, position: int = 0) -> int | None:
    """The type number of the control batch at `position`; None if its key is of a version that is not ours.

    Raises CorruptBatch.
    """
    key = _record(buffer, position).key
    if key is None or len(key) != _KEY.size:
        raise CorruptBatch(f"control record key {key!r} is not 4 bytes")
    version, kind = _KEY.unpack(key)
    return int(kind) if version == _VERSION else None


def decode_control(buffer: Buffer, position: int = 0) -> Begin | End | None:
    """The control record of the control batch at `position`, or None if its type is not one of these.

    Raises CorruptBatch or UnknownFormatVersion.
    """
    kind = control_type(buffer, position)
    if kind not in (BEGIN_TYPE, END_TYPE):
        return None
    value = _record(buffer, position).value or b""
    if len(value) < _VALUE.size:
        raise CorruptBatch(f"control record of {len(value)} bytes is too short")
    version, length = _VALUE.unpack_from(value)
    if version != _VERSION:
        raise UnknownFormatVersion(f"control record version {version} is newer than {_VERSION}; upgrade Cairn")
    if not 0 <= length <= len(value) - _VALUE.size:
        raise CorruptBatch(f"control record claims {length} bytes of fields in {len(value)}")
    fields = _fields(value[_VALUE.size : _VALUE.size + length])
    tail = value[_VALUE.size + length :]
    if kind == BEGIN_TYPE:
        attempts = tuple(str(attempt) for attempt in fields.get("attempts", ()))
        return Begin(
            _text(fields, "query"),
            _integer(fields, "epoch"),
            _integer(fields, "run"),
            attempts,
            _integer(fields, "byte_count"),
            _integer(fields, "batch_count"),
        )
    return End(_text(fields, "query"), _integer(fields, "epoch"), _integer(fields, "run"), tail)


def _record(buffer: Buffer, position: int) -> Record:
    records = decode_batch(buffer, position)
    if len(records) != 1:
        raise CorruptBatch(f"a control batch of {len(records)} records at {position}")
    return records[0]


def _fields(head: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(head)
    except ValueError as error:
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

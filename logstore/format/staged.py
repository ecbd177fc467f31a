"""Staging files: the output of one task attempt as frames end to end, each with its own checksums.

Invariants:
* A frame names its attempt and its position in the attempt, so a file can be read without knowing its name.
* A frame counts only if it is whole: magic, version, both CRC-32Cs and the lengths agree. Bytes after the last whole
  frame are torn and were never acknowledged.
* The data of a frame is record batches as the client sent them; the table gives their streams.

Frame (big-endian): magic "CSTG" · uint16 version · uint16 0 · uint32 bytes of table · uint32 bytes of data · uint32
CRC-32C of the data · uint32 CRC-32C of the 20 bytes before it and the table · table (JSON) · data.
"""

import json
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptFile, MalformedRequest, UnknownFormatVersion
from logstore.format.epoch_api import Part, get_parts, part_fields
from logstore.format.fields import get_int, get_name, parse_object
from logstore.interfaces import Buffer

MAGIC: Final = b"CSTG"
VERSION: Final = 1
_FIXED: Final = struct.Struct(">4sHHIII")
_CRC: Final = struct.Struct(">I")
HEADER_BYTES: Final = _FIXED.size + _CRC.size
# More than the JSON of any request (MAX_FIELDS_BYTES), from which a table is made.
MAX_TABLE_BYTES: Final = 16 * 1024 * 1024
_INT64_MAX: Final = 2**63 - 1


class AttemptKey(NamedTuple):
    """Identifies an attempt: one execution of one task of one epoch of one run of a query."""

    query: str
    run: str
    epoch: int
    task: int
    attempt: str


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header before a frame's data. `position` counts the attempt's frames from 0."""

    key: AttemptKey
    position: int
    staged_ms: int
    parts: tuple[Part, ...]
    header_bytes: int
    data_bytes: int
    data_crc: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole frame."""
        return self.header_bytes + self.data_bytes


def encode_frame_header(
    key: AttemptKey, *, position: int, staged_ms: int, parts: tuple[Part, ...], data: Buffer
) -> tuple[bytes, FrameHeader]:
    """The bytes before `data`, and the header that they encode."""
    fields = {**key._asdict(), "position": position, "staged_ms": staged_ms, "parts": [part_fields(p) for p in parts]}
    table = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    data_crc = crc32c(data)
    fixed = _FIXED.pack(MAGIC, VERSION, 0, len(table), len(data), data_crc)
    encoded = fixed + _CRC.pack(crc32c(table, crc32c(fixed))) + table
    return encoded, FrameHeader(key, position, staged_ms, parts, len(encoded), len(data), data_crc)


def table_bytes(fixed: Buffer) -> int:
    """Length of the table, from the first HEADER_BYTES of a frame. Raises CorruptFile."""
    if len(fixed) < HEADER_BYTES:
        raise CorruptFile(f"{len(fixed)} bytes are fewer than a staged frame's header")
    magic, _, reserved, length, _, _ = _FIXED.unpack_from(fixed)
    if magic != MAGIC or reserved or length > MAX_TABLE_BYTES:
        raise CorruptFile("not a staged frame")
    return int(length)


def decode_frame_header(buffer: Buffer) -> FrameHeader:
    """The header of the frame at the start of `buffer`; `buffer` need not include the data.

    Raises CorruptFile if bytes are missing or do not agree, UnknownFormatVersion for a newer layout.
    """
    length = table_bytes(buffer)
    view = memoryview(buffer)
    end = HEADER_BYTES + length
    if end > len(view):
        raise CorruptFile(f"a table of {length} bytes is cut short")
    (expected,) = _CRC.unpack_from(view, _FIXED.size)
    if crc32c(view[HEADER_BYTES:end], crc32c(view[: _FIXED.size])) != expected:
        raise CorruptFile("the header of a staged frame does not match its checksum")
    _, version, _, _, data_bytes, data_crc = _FIXED.unpack_from(view)
    # Checked only now, because the version in a torn header is meaningless.
    if version != VERSION:
        raise UnknownFormatVersion(f"staged frame of version {version}; this is version {VERSION}, upgrade Cairn")
    try:
        fields = parse_object(view[HEADER_BYTES:end])
        header = FrameHeader(
            key=AttemptKey(
                query=get_name(fields, "query"),
                run=get_name(fields, "run"),
                epoch=get_int(fields, "epoch", 0, _INT64_MAX),
                task=get_int(fields, "task", 0, _INT64_MAX),
                attempt=get_name(fields, "attempt"),
            ),
            position=get_int(fields, "position", 0, _INT64_MAX),
            staged_ms=get_int(fields, "staged_ms", 0, _INT64_MAX),
            parts=get_parts(fields),
            header_bytes=end,
            data_bytes=data_bytes,
            data_crc=data_crc,
        )
    except MalformedRequest as error:
        raise CorruptFile(f"the table of a staged frame: {error}") from None
    if sum(part.length_bytes for part in header.parts) != data_bytes:
        raise CorruptFile("the parts of a staged frame do not add up to its data")
    return header

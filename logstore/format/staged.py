"""Staging files: the output of one task attempt as segments end to end, each with its own checksums.

Invariants:
* A segment names its attempt and its position in the attempt, so a file can be read without knowing its name.
* A segment counts only if it is whole: magic, version, both CRC-32Cs and the lengths agree. Bytes after the last whole
  segment are torn and were never acknowledged.
* The data of a segment is record batches as the client sent them; the table gives their streams.

The table keeps the key `run` of its first version for the incarnation.

Segment (big-endian): magic "CSTG" · uint16 version · uint16 0 · uint32 bytes of table · uint32 bytes of data · uint32
CRC-32C of the data · uint32 CRC-32C of the 20 bytes before it and the table · table (JSON) · data.
"""

import json
import struct
from dataclasses import dataclass, replace
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
    """Identifies an attempt: one execution of one task of one epoch, by one incarnation of a query."""

    query: str
    incarnation: str
    epoch: int
    task: int
    attempt: str


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header before a segment's data. `position` counts the attempt's segments from 0."""

    key: AttemptKey
    position: int
    staged_ms: int
    parts: tuple[Part, ...]
    header_bytes: int
    data_bytes: int
    data_crc: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole segment."""
        return self.header_bytes + self.data_bytes


def encode_segment_header(
    key: AttemptKey, *, position: int, staged_ms: int, parts: tuple[Part, ...], data: Buffer
) -> tuple[bytes, SegmentHeader]:
    """The bytes before `data`, and the header that they encode."""
    header = SegmentHeader(key, position, staged_ms, parts, 0, len(data), crc32c(data))
    encoded = encode_known_header(header)
    return encoded, replace(header, header_bytes=len(encoded))


def encode_known_header(header: SegmentHeader) -> bytes:
    """The bytes of a header; as many as it was read from, if this version wrote those."""
    key = header.key
    fields: dict[str, object] = {"query": key.query, "run": key.incarnation, "epoch": key.epoch, "task": key.task}
    fields |= {"attempt": key.attempt, "position": header.position, "staged_ms": header.staged_ms}
    fields["parts"] = [part_fields(part) for part in header.parts]
    table = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    fixed = _FIXED.pack(MAGIC, VERSION, 0, len(table), header.data_bytes, header.data_crc)
    return fixed + _CRC.pack(crc32c(table, crc32c(fixed))) + table


def table_bytes(fixed: Buffer) -> int:
    """Length of the table, from the first HEADER_BYTES of a segment. Raises CorruptFile."""
    if len(fixed) < HEADER_BYTES:
        raise CorruptFile(f"{len(fixed)} bytes are fewer than a staged segment's header")
    magic, _, reserved, length, _, _ = _FIXED.unpack_from(fixed)
    if magic != MAGIC or reserved or length > MAX_TABLE_BYTES:
        raise CorruptFile("not a staged segment")
    return int(length)


def segment_bytes(fixed: Buffer) -> int:
    """Length of a whole segment, from its first HEADER_BYTES. Raises CorruptFile."""
    length = table_bytes(fixed)
    return HEADER_BYTES + length + int(_FIXED.unpack_from(fixed)[4])


def decode_segment_header(buffer: Buffer) -> SegmentHeader:
    """The header of the segment at the start of `buffer`; `buffer` need not include the data.

    Raises CorruptFile if bytes are missing or do not agree, UnknownFormatVersion for a newer layout.
    """
    length = table_bytes(buffer)
    view = memoryview(buffer)
    end = HEADER_BYTES + length
    if end > len(view):
        raise CorruptFile(f"a table of {length} bytes is cut short")
    (expected,) = _CRC.unpack_from(view, _FIXED.size)
    if crc32c(view[HEADER_BYTES:end], crc32c(view[: _FIXED.size])) != expected:
        raise CorruptFile("the header of a staged segment does not match its checksum")
    _, version, _, _, data_bytes, data_crc = _FIXED.unpack_from(view)
    # Checked only now, because the version in a torn header is meaningless.
    if version != VERSION:
        raise UnknownFormatVersion(f"staged segment of version {version}; this is version {VERSION}, upgrade Cairn")
    try:
        fields = parse_object(view[HEADER_BYTES:end])
        header = SegmentHeader(
            key=AttemptKey(
                query=get_name(fields, "query"),
                incarnation=get_name(fields, "run"),
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
        raise CorruptFile(f"the table of a staged segment: {error}") from None
    if sum(part.length_bytes for part in header.parts) != data_bytes:
        raise CorruptFile("the parts of a staged segment do not add up to its data")
    return header

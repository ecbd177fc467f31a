"""The file of a ledger: frames of changes to a small map; the first frame holds the whole map.

Invariants:
* Frames follow each other end to end, each with a CRC-32C over its header and body.
* A frame records how much of the file was synced when the frame was written (`synced_end`). So a damaged frame before
  the `synced_end` of a later, intact frame is damage to durable data, never a torn write; only the last write of a file
  can be torn.
* The first frame is a snapshot; a file without an intact snapshot was never in use.

Source: docs/decisions (ledgers); byte table in docs/format.md.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptFile, UnknownFormatVersion
from logstore.interfaces import Buffer

MAGIC = b"CJNL"
VERSION = 1
FRAME = struct.Struct(">4sHHIqI")
"""magic, version, kind, body bytes, synced end, CRC-32C of all else"""
CHANGE = struct.Struct(">Hi")
"""key bytes, value bytes (-1: the key is deleted)"""
KIND_SNAPSHOT = 1
KIND_CHANGES = 2
MAX_ENTRY_BYTES = 0xFFFF
_CRC_AT = FRAME.size - 4


class LedgerFrame(NamedTuple):
    """Changes to the map (None: deleted); `kind` tells whether the changes are the whole map."""

    kind: int
    synced_end: int
    changes: Mapping[str, bytes | None]


class LedgerScan(NamedTuple):
    """The content of a file: its intact frames, and the position after the last of them."""

    frames: list[LedgerFrame]
    end: int


def encode_frame(frame: LedgerFrame) -> bytes:
    """The bytes of one frame. Raises CorruptFile for a key that is too long."""
    body = encode_changes(frame.changes)
    head = FRAME.pack(MAGIC, VERSION, frame.kind, len(body), frame.synced_end, 0)
    return head[:_CRC_AT] + crc32c(body, crc32c(head[:_CRC_AT])).to_bytes(4, "big") + body


def encode_changes(changes: Mapping[str, bytes | None]) -> bytes:
    """Changes as they stand in a frame. Raises CorruptFile for a key that is too long."""
    parts: list[bytes] = []
    for key, value in changes.items():
        name = key.encode()
        if len(name) > MAX_ENTRY_BYTES:
            raise CorruptFile(f"ledger key of {len(name)} bytes exceeds {MAX_ENTRY_BYTES}")
        parts.append(CHANGE.pack(len(name), -1 if value is None else len(value)))
        parts.append(name)
        if value is not None:
            parts.append(value)
    return b"".join(parts)


def scan_frames(buffer: Buffer, name: str) -> LedgerScan:
    """The intact frames from the start of `buffer`; bytes after them are the torn end of the last write.

    Raises CorruptFile (naming `name` and the position) if the `synced_end` of a later, intact frame shows that the
    damaged bytes were durable, and UnknownFormatVersion for an intact frame of a newer version.
    """
    view = memoryview(buffer)
    frames: list[LedgerFrame] = []
    position = 0
    while (found := _frame_at(view, position)) is not None:
        frame, position = found
        frames.append(frame)
    _refuse_damage(view, position, name)
    return LedgerScan(frames, position)


def _refuse_damage(view: memoryview, position: int, name: str) -> None:
    whole = bytes(view[position:])
    at = whole.find(MAGIC, 1)
    while at >= 0:
        found = _frame_at(view, position + at)
        if found is not None and found[0].synced_end > position:
            raise CorruptFile(
                f"{name}: durable data is damaged at byte {position} (a frame at {position + at} vouches for it); "
                "restore the file from a copy"
            )
        at = whole.find(MAGIC, at + 1)


def _frame_at(view: memoryview, position: int) -> tuple[LedgerFrame, int] | None:
    if position + FRAME.size > len(view):
        return None
    magic, version, kind, length, synced_end, crc = FRAME.unpack_from(view, position)
    body_at = position + FRAME.size
    end = body_at + length
    if magic != MAGIC or end > len(view):
        return None
    if crc32c(view[body_at:end], crc32c(view[position : position + _CRC_AT])) != crc:
        return None
    if version != VERSION:
        raise UnknownFormatVersion(f"ledger frame version {version} is newer than {VERSION}; upgrade Cairn")
    changes = decode_changes(bytes(view[body_at:end]))
    return None if changes is None else (LedgerFrame(kind, synced_end, changes), end)


def decode_changes(body: bytes) -> dict[str, bytes | None] | None:
    """The inverse of `encode_changes`; None if these are not whole changes."""
    changes: dict[str, bytes | None] = {}
    at = 0
    while at < len(body):
        if at + CHANGE.size > len(body):
            return None
        key_length, value_length = CHANGE.unpack_from(body, at)
        at += CHANGE.size
        end = at + key_length + max(0, value_length)
        if end > len(body):
            return None
        key = body[at : at + key_length].decode("utf-8", "surrogateescape")
        changes[key] = None if value_length < 0 else body[at + key_length : end]
        at = end
    return changes

"""A segment: one version of a partition's state, as a table in a file that processes map, behind a header.

The header has two slots, written in turn; the valid one with the higher sequence number counts. A slot is whole if
its checksum says so, so that a crash while one is written leaves the other.

Invariants:
* The header says "applying" before the table changes and "clean" after. A table under "clean" is the version its tag
  names; one under "applying" is somewhere between its tag and its target: only the same changes again make it whole.
* A header is believed only for the query, partition, layout and boot it was written for: memory on a disk does not
  survive a power cut in one piece.
"""

import json
import os
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from spe_adapter.codec.kernels import Bytes
from spe_adapter.state.errors import StateDamaged, StateTooLarge
from spe_adapter.state.files import StateEnvironment, map_file
from spe_adapter.state.layout import Layout
from spe_adapter.state.table import Table

HEADER_BYTES: Final = 64 * 1024
SLOT_BYTES: Final = HEADER_BYTES // 2
FORMAT_VERSION: Final = 1
_MAGIC: Final = b"cairnseg"
_SLOT: Final = struct.Struct("<8sIIQ")
"""Magic, CRC-32C of what follows, its length, sequence number (which the checksum covers too)."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

CLEAN: Final = "clean"
APPLYING: Final = "applying"


class Tag(NamedTuple):
    """A version: the epoch at whose end it stood, and the attempt that made it."""

    epoch: int
    attempt: str


class Owner(NamedTuple):
    """Whose state it is, and how it lies in memory; what differs in any of it is foreign."""

    query: str
    partition: int
    fingerprint: str
    boot: str


class Header(NamedTuple):
    """What a segment says of itself. `target` is the version it is being changed to; `note` is its owner's."""

    owner: Owner
    state: str
    tag: Tag | None
    target: Tag | None
    capacity: int
    arena_bytes: int
    note: bytes


def boot_id() -> str:
    """What differs after each start of the machine; empty where there is no such thing."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def encode_header(header: Header, sequence: int) -> bytes:
    """One slot. Raises StateTooLarge if the note does not fit."""
    described = header._asdict() | {"version": FORMAT_VERSION, "note": header.note.hex()}
    body = struct.pack("<Q", sequence) + json.dumps(described).encode()
    if len(body) + _SLOT.size > SLOT_BYTES:
        raise StateTooLarge(f"a note of {len(header.note)} bytes does not fit a segment's header")
    return _SLOT.pack(_MAGIC, crc32c(body), len(body) - 8, sequence) + body[8:]


def decode_header(slot: bytes) -> tuple[int, Header] | None:
    """A slot's sequence number and header, None if it is not whole or not of this version."""
    magic, checksum, length, sequence = _SLOT.unpack_from(slot)
    if magic != _MAGIC or length > SLOT_BYTES - _SLOT.size:
        return None
    body = slot[_SLOT.size : _SLOT.size + length]
    if crc32c(struct.pack("<Q", sequence) + body) != checksum:
        return None
    try:
        described: dict[str, Any] = json.loads(body)
        if described.pop("version") != FORMAT_VERSION:
            return None
        return sequence, Header(
            Owner(*described["owner"]),
            described["state"],
            _tag(described["tag"]),
            _tag(described["target"]),
            described["capacity"],
            described["arena_bytes"],
            bytes.fromhex(described["note"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _tag(fields: Any) -> Tag | None:
    return None if fields is None else Tag(*fields)


class Segment:
    """A mapped segment: its header, and its table while a header describes one. Whoever uses it holds its lock."""

    def __init__(self, block: Bytes, environment: StateEnvironment) -> None:
        self._block = block
        self._environment = environment
        self._slot = 1
        self._sequence = 0
        self._read()

    def _read(self) -> Header | None:
        found = None
        for slot in range(2):
            decoded = decode_header(self._block[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES].tobytes())
            if decoded is not None and (found is None or decoded[0] > self._sequence):
                self._sequence, found = decoded
                self._slot = slot
        return found

    def header(self) -> Header | None:
        """The header as it is now, None if there is no whole one."""
        self._slot, self._sequence = 1, 0
        return self._read()

    def write(self, header: Header) -> None:
        """Replace the header."""
        data = encode_header(header, self._sequence + 1)
        self._environment.step("header " + header.state)
        self._slot = 1 - self._slot
        self._sequence += 1
        at = self._slot * SLOT_BYTES
        # The checksum is what makes a slot whole: it is overwritten first and comes back last.
        view = self._block.data
        view[at : at + _SLOT.size] = bytes(_SLOT.size)
        view[at + _SLOT.size : at + len(data)] = data[_SLOT.size :]
        self._environment.step("header half written")
        view[at : at + _SLOT.size] = data[: _SLOT.size]

    def table_block(self) -> Bytes:
        """The memory behind the header."""
        return self._block[HEADER_BYTES:]

    def table(self, schema: pa.Schema, header: Header) -> Table:
        """The table that the header describes. Raises StateDamaged."""
        layout = Layout(schema, header.capacity, header.arena_bytes)
        if HEADER_BYTES + layout.size_bytes > len(self._block):
            raise StateDamaged(f"a table of {layout.size_bytes} bytes in a segment of {len(self._block)}")
        return Table(schema, layout, self.table_block(), None, is_torn=header.state != CLEAN)


def map_segment(descriptor: int, environment: StateEnvironment) -> Segment | None:
    """The segment in an open file, None if it is too short to be one."""
    size_bytes = os.fstat(descriptor).st_size
    return None if size_bytes < HEADER_BYTES else Segment(map_file(descriptor, size_bytes), environment)


def peek(path: Path) -> Header | None:
    """A segment's header, read without locks or maps: for people who want to look."""
    try:
        data = path.read_bytes() if path.stat().st_size < HEADER_BYTES else _head(path)
    except OSError:
        return None
    slots = (data[:SLOT_BYTES], data[SLOT_BYTES:HEADER_BYTES])
    decoded = [decode_header(slot) for slot in slots if len(slot) >= _SLOT.size]
    return max((pair for pair in decoded if pair is not None), key=lambda pair: pair[0], default=(0, None))[1]


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEADER_BYTES)

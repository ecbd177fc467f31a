"""A segment: one version of a partition's state, as a table in a file that processes map, behind a header and a page
table.

The file: the header, the page table of the table's pages (`pages.page_table`), the table, and behind the segment's end
the copies of frozen pages, as long as there are any. The table is one page set, from its first byte up to its index.

The header has two slots, written in turn; the valid one with the higher sequence number counts. A slot is whole if
its checksum says so, so that a crash while one is written leaves the other.

Invariants:
* The header says "applying" before the table changes and "clean" after. A table under "clean" is the version its tag
  names; one under "applying" is somewhere between its tag and its target: only the same changes again make it whole.
* The page table is complete before the header is first written.
* A header is believed only for the query, partition, layout and boot it was written for: memory on a disk does not
  survive a power cut in one piece.
"""

import json
import os
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from logstore.errors import CairnError
from spe_adapter.codec.kernels import Bytes
from spe_adapter.pages.page_memory import PageMemory
from spe_adapter.pages.page_table import ASIDE_AT, DATA_AT, HEAD_WORDS, PageTable, table_bytes
from spe_adapter.pages.resident import let_go, resident_bytes, write_out
from spe_adapter.state.errors import StateDamaged, StateTooLarge
from spe_adapter.state.files import StateEnvironment
from spe_adapter.state.layout import Layout
from spe_adapter.state.paged import begin_page_table
from spe_adapter.state.table import Table

HEADER_BYTES: Final = 64 * 1024
SLOT_BYTES: Final = HEADER_BYTES // 2
FORMAT_VERSION: Final = 2
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


class StateOwner(NamedTuple):
    """Whose state it is, and how it lies in memory; what differs in any of it is foreign."""

    query: str
    partition: int
    fingerprint: str
    boot: str


class Header(NamedTuple):
    """What a segment says of itself. `target` is the version it is being changed to; `note` is its owner's."""

    owner: StateOwner
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
            StateOwner(*described["owner"]),
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


def table_at(size_bytes: int, page_bytes: int) -> int:
    """Where a table of so many bytes begins in its segment: behind the header and the page table."""
    return HEADER_BYTES + table_bytes(-(-size_bytes // page_bytes))


class Segment:
    """A mapped segment: its header, and its table while a header describes one. Its user holds its lock.

    `table_at` is where the table begins, and is read from the page table if it is not given.
    """

    def __init__(self, block: Bytes, environment: StateEnvironment, table_at: int | None = None) -> None:
        self._block = block
        self._environment = environment
        self._table_at = table_at
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
        """The memory of the table. Raises StateDamaged."""
        at = int(self.page_table().head[DATA_AT]) if self._table_at is None else self._table_at
        if not HEADER_BYTES <= at <= len(self._block):
            raise StateDamaged(f"a table at byte {at} of a segment of {len(self._block)} bytes")
        return self._block[at:]

    def page_table(self) -> PageTable:
        """The page table. Raises StateDamaged."""
        try:
            return PageTable(self._block[HEADER_BYTES:])
        except CairnError as error:
            raise StateDamaged(f"a segment without a page table: {error}") from error

    def begin_pages(self, table: Table, page_bytes: int) -> None:
        """Make the page table of a table that was built in this segment: what can differ from zero has changed."""
        if self._table_at is None:
            raise StateDamaged("the segment has a page table already")
        room = self._block[HEADER_BYTES : self._table_at]
        places = self._table_at, len(self._block)
        begin_page_table(room, page_bytes, table.tracked_bytes, places, table.content())

    def resident_bytes(self) -> int:
        """The bytes of the segment that are in memory."""
        return resident_bytes(self._block)

    def write_out(self, descriptor: int, limit_bytes: int) -> int:
        """Drop pages from memory until at most `limit_bytes` of the segment are there, those first that did not change
        for longest, and the index last; how many bytes were dropped.
        """
        pages = self.page_table()
        start = int(pages.head[DATA_AT])
        # The index lies behind the pages, and each epoch uses all of it.
        behind = max(-(-(len(self._block) - start) // pages.page_bytes) - pages.pages, 0)
        order = np.concatenate(
            (np.argsort(pages.stamp, kind="stable"), pages.pages + np.arange(behind, dtype=np.int64))
        )
        return write_out(self._block, descriptor, start, pages.page_bytes, order, limit_bytes)

    def let_go(self) -> None:
        """Take the segment's pages out of this process's map: another process may drop them."""
        let_go(self._block)

    def table(self, schema: pa.Schema, header: Header, writer: int | None = None) -> Table:
        """The table that the header describes; to be changed only with `writer`, a descriptor of the segment's file
        under an exclusive lock. Raises StateDamaged.
        """
        layout = Layout(schema, header.capacity, header.arena_bytes)
        block, pages = self.table_block(), self.page_table()
        if layout.size_bytes > len(block) or layout.tracked_bytes != pages.length_bytes:
            raise StateDamaged(
                f"a table of {layout.size_bytes} bytes, {layout.tracked_bytes} of them on pages, in {len(block)} bytes "
                f"with {pages.length_bytes} on pages"
            )
        memory = None if writer is None else PageMemory(block, pages, writer, self._environment.step)
        return Table(schema, layout, block, None, is_torn=header.state != CLEAN, pages=memory)


def segment_bytes(descriptor: int) -> int | None:
    """The length of the segment in an open file, without copies of frozen pages behind it; None if there is none."""
    head = os.pread(descriptor, HEAD_WORDS * 8, HEADER_BYTES)
    if len(head) < HEAD_WORDS * 8:
        return None
    size_bytes = struct.unpack_from("<q", head, 8 * ASIDE_AT)[0]
    return size_bytes if HEADER_BYTES < size_bytes <= os.fstat(descriptor).st_size else None


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

"""The bytes of a chunk: a file with some pages of a checkpoint (docs/format.md).

    header (64 bytes) | page numbers, CRC | run of pages, CRC | run of pages, CRC | …

A run has its form and its length in front: most runs are compressed (`packing`).

Invariants:
* A chunk is written front to back from pages that are read as they are written: memory is bounded by one run.
* A reader needs memory for one run, which has at most MAX_PAGE_BYTES.
* Every byte is covered by a CRC-32C, and the header names the checkpoint and the thread: a file that was swapped, torn
  or changed is an error that names the file, never other content.
"""

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from spe_adapter.checkpoint.errors import CheckpointDamaged, CheckpointVersionUnknown
from spe_adapter.checkpoint.names import CheckpointName
from spe_adapter.checkpoint.packing import packed, unpacked
from spe_adapter.checkpoint.snapshot import PageSnapshot
from spe_adapter.codec.kernels import Bytes, Int64s

VERSION: Final = 2
MAX_CHUNK_BYTES: Final = 64 << 20
"""Pages of a chunk: HDFS's default block is twice as long, Peace's paper has 64 MB."""
RUN_BYTES: Final = 1 << 20
"""Pages under one CRC, unless a page alone is longer."""
MIN_PAGE_BYTES: Final = 512
MAX_PAGE_BYTES: Final = 16 << 20
MAX_PAGES: Final = MAX_CHUNK_BYTES // MIN_PAGE_BYTES
_MAGIC: Final = b"cairnpgs"
_HEADER: Final = struct.Struct(">8sIIIIQQ16s4x")
"""Magic, version, page size, pages in a run, thread, pages, sequence number, digest of the unit; CRC behind it."""
_RUN: Final = struct.Struct(">II")
"""Form of a run, bytes of its content."""
_CRC: Final = struct.Struct(">I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size


class ChunkHeader(NamedTuple):
    """The header of a chunk."""

    page_bytes: int
    run_pages: int
    thread: int
    pages: int
    seq: int
    unit_digest: bytes


def run_pages_of(page_bytes: int) -> int:
    """Pages under one CRC."""
    return max(1, RUN_BYTES // page_bytes)


def max_chunk_bytes(pages: int, page_bytes: int) -> int:
    """The most bytes that a chunk file with so many pages has: what it has if no run becomes smaller."""
    return min_chunk_bytes(pages, page_bytes) + pages * page_bytes


def min_chunk_bytes(pages: int, page_bytes: int) -> int:
    """Bytes of a chunk file with so many pages without the content of its runs."""
    runs = -(-pages // run_pages_of(page_bytes))
    return HEADER_BYTES + pages * 8 + _CRC.size + runs * (_RUN.size + _CRC.size)


def unit_digest(unit: str) -> bytes:
    """16 bytes that tell units apart."""
    return blake2b(unit.encode(), digest_size=16).digest()


def encode_chunk(name: CheckpointName, thread: int, ids: Int64s, pages: PageSnapshot) -> Iterator[bytes]:
    """The bytes of a chunk in pieces, each of at most one run; pages are read when their piece is asked for.

    Raises what `PageSnapshot.read` raises.
    """
    page_bytes, run_pages = pages.page_bytes, run_pages_of(pages.page_bytes)
    fixed = _HEADER.pack(_MAGIC, VERSION, page_bytes, run_pages, thread, len(ids), name.seq, unit_digest(name.unit))
    numbers = ids.astype(">i8").tobytes()
    yield fixed + _CRC.pack(crc32c(fixed)) + numbers + _CRC.pack(crc32c(numbers))
    for first in range(0, len(ids), run_pages):
        form, content = packed(np.ascontiguousarray(pages.read(ids[first : first + run_pages])).reshape(-1))
        head = _RUN.pack(form, len(content))
        yield b"".join((head, content, _CRC.pack(crc32c(content, crc32c(head)))))


def decode_header(data: bytes, file: str) -> ChunkHeader:
    """The header of a chunk. `file` is named in errors. Raises CheckpointDamaged, CheckpointVersionUnknown."""
    if len(data) < HEADER_BYTES:
        raise CheckpointDamaged(f"{file}: {len(data)} bytes, shorter than the header of a chunk ({HEADER_BYTES})")
    if data[:8] != _MAGIC:
        raise CheckpointDamaged(f"{file}: begins with {data[:8]!r}: not a chunk of a checkpoint")
    (version,) = struct.unpack_from(">I", data, 8)
    if version != VERSION:
        raise CheckpointVersionUnknown(f"{file}: format version {version}; this release reads version {VERSION}")
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(data[: _HEADER.size]):
        raise CheckpointDamaged(f"{file}: the header's CRC differs")
    _, _, page_bytes, run_pages, thread, pages, seq, digest = _HEADER.unpack_from(data)
    if (
        not MIN_PAGE_BYTES <= page_bytes <= MAX_PAGE_BYTES
        or not 1 <= pages <= MAX_PAGES
        or pages * page_bytes > 2 * MAX_CHUNK_BYTES
        or run_pages != run_pages_of(page_bytes)
    ):
        raise CheckpointDamaged(f"{file}: {pages} pages of {page_bytes} bytes in runs of {run_pages}: out of range")
    return ChunkHeader(page_bytes, run_pages, thread, pages, seq, digest)


class ChunkReader:
    """Takes the bytes of a chunk front to back, in pieces of any size, and gives runs of pages once they are checked.

    `feed` raises CheckpointDamaged, and at the end `close` does if bytes are missing. Runs that are stored as they are
    are views of the bytes that were fed, as far as they lie in one piece.
    """

    def __init__(self, file: str, name: CheckpointName, thread: int) -> None:
        self._file = file
        self._name = name
        self._thread = thread
        self._begun = bytearray()
        """The begin of an element (header, page numbers, the head of a run, a run) whose rest has not come yet."""
        self._header: ChunkHeader | None = None
        self._ids: Int64s | None = None
        self._done = 0
        self._head = b""
        """Form and length of the run that follows; empty in front of them."""
        self.crc32c = 0
        """Of all bytes so far."""
        self.size_bytes = 0

    def feed(self, data: bytes) -> Iterator[tuple[Int64s, Bytes]]:
        """The runs that end in `data`: page numbers, and their content as rows of a page each."""
        self.crc32c = crc32c(data, self.crc32c)
        self.size_bytes += len(data)
        view = memoryview(data)
        while needed := self._needed():
            missing = needed - len(self._begun)
            if len(view) < missing:
                break
            if self._begun:
                self._begun += view[:missing]
                element, self._begun = memoryview(bytes(self._begun)), bytearray()
            else:
                element = view[:missing]
            view = view[missing:]
            yield from self._taken(element)
        self._begun += view

    def close(self) -> None:
        """The end of the file. Raises CheckpointDamaged unless all pages came and nothing behind them."""
        if self._needed():
            raise CheckpointDamaged(f"{self._file}: ends after {self.size_bytes} bytes, before its last page")
        if self._begun:
            raise CheckpointDamaged(f"{self._file}: {len(self._begun)} bytes after the last page")

    def _needed(self) -> int:
        """Bytes of the next element, 0 behind the last one."""
        if self._header is None:
            return HEADER_BYTES
        if self._ids is None:
            return self._header.pages * 8 + _CRC.size
        run_bytes = self._run_bytes(self._header)
        if not self._head:
            return _RUN.size if run_bytes else 0
        _, length = _RUN.unpack(self._head)
        if not 1 <= length <= run_bytes:
            raise CheckpointDamaged(f"{self._file}: a run of {run_bytes} bytes is stored in {length}")
        return int(length) + _CRC.size

    def _run_bytes(self, header: ChunkHeader) -> int:
        """Bytes of the next run's pages, 0 behind the last one."""
        return min(header.run_pages, header.pages - self._done) * header.page_bytes

    def _taken(self, element: memoryview) -> Iterator[tuple[Int64s, Bytes]]:
        """Check an element; the run if it is one."""
        if self._header is None:
            self._header = self._checked_header(decode_header(bytes(element), self._file))
            return
        if self._ids is not None and not self._head:
            self._head = bytes(element)
            return
        body = element[: -_CRC.size]
        (checksum,) = _CRC.unpack_from(element, len(body))
        if self._ids is None:
            self._ids = self._numbers(body, checksum)
            return
        numbers = self._ids[self._done : self._done + self._header.run_pages]
        where = f"{self._file}: pages {numbers[0]} to {numbers[-1]}"
        if crc32c(body, crc32c(self._head)) != checksum:
            raise CheckpointDamaged(f"{where}: the CRC differs")
        form, _ = _RUN.unpack(self._head)
        content = unpacked(form, body, self._run_bytes(self._header), where)
        self._done, self._head = self._done + len(numbers), b""
        yield numbers, content.reshape(len(numbers), self._header.page_bytes)

    def _checked_header(self, header: ChunkHeader) -> ChunkHeader:
        if (header.seq, header.unit_digest) != (self._name.seq, unit_digest(self._name.unit)):
            raise CheckpointDamaged(f"{self._file}: belongs to another checkpoint (number {header.seq})")
        if header.thread != self._thread:
            raise CheckpointDamaged(f"{self._file}: is file {header.thread} of its checkpoint, not {self._thread}")
        return header

    def _numbers(self, data: memoryview, checksum: int) -> Int64s:
        if crc32c(data) != checksum:
            raise CheckpointDamaged(f"{self._file}: the CRC of the page numbers differs")
        ids = np.frombuffer(data, ">i8").astype(np.int64)
        if (np.diff(ids) <= 0).any():
            raise CheckpointDamaged(f"{self._file}: the page numbers are not ascending")
        return ids

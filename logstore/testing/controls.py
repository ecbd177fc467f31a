"""Reads all control batches of a chunk at once, with the code of a scan: for tests.

Invariants: those of `logstore.log.scanning`.
"""

from logstore.format.batch import iterate_batches
from logstore.interfaces import ReadableFiles
from logstore.log.chunks import ChunkView, IndexCache
from logstore.log.scanning import ScanRange, scan_chunk

_PIECE_BYTES = 1 << 20


def scan_all(fs: ReadableFiles, cache: IndexCache, view: ChunkView, from_offset: int) -> list[tuple[int, bytes]]:
    """Base offsets and bytes of a chunk's control batches at or after `from_offset`, in order. Raises CorruptChunk."""
    found: list[tuple[int, bytes]] = []
    before = view.next_offset
    while before > max(from_offset, view.base_offset):
        wanted = ScanRange(from_offset, before, ())
        piece = scan_chunk(fs, cache, view, wanted, _PIECE_BYTES, at_least_one=True)
        data = b"".join(piece.buffers)
        found += [(header.base_offset, data[at : at + header.size_bytes]) for at, header in iterate_batches(data)]
        before = piece.next_before
    return found[::-1]

"""All control batches of a chunk, read as a scan reads them but at once: for tests.

Invariants: as `logstore.log.scanning`.
"""

from logstore.format.batch import iterate_batches
from logstore.interfaces import FileSystem
from logstore.log.chunks import ChunkView, IndexCache
from logstore.log.scanning import ScanRange, scan_chunk

_PIECE_BYTES = 1 << 20


def scan_all(fs: FileSystem, cache: IndexCache, view: ChunkView, from_offset: int) -> list[tuple[int, bytes]]:
    """Base offsets and bytes of all control batches of a chunk at or behind `from_offset`, in order. CorruptChunk."""
    found: list[tuple[int, bytes]] = []
    before = view.next_offset
    while before > max(from_offset, view.base_offset):
        wanted = ScanRange(from_offset, before, ())
        piece = scan_chunk(fs, cache, view, wanted, _PIECE_BYTES, at_least_one=True)
        data = b"".join(piece.buffers)
        found += [(header.base_offset, data[at : at + header.size_bytes]) for at, header in iterate_batches(data)]
        before = piece.next_before
    return found[::-1]

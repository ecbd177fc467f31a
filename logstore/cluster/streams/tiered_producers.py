"""Who has written to a chunk that lies in the tier, from its batches as a whole: the index is not needed for that.

Invariants:
* All bytes of the batches are as registered before the table is given to anybody: their sum is the chunk's.
* One piece and one batch are in memory, of at most MAX_BATCH_BYTES: a length that is damaged costs no more.

No I/O of its own: `files` reads the objects, on a reader's thread.
"""

from typing import Final, TypeVar

from crc32c import crc32c

from logstore.errors import CorruptBatch, CorruptChunk, UnsupportedBatchFormat
from logstore.format.batch import HEADER_BYTES, parse_header
from logstore.format.snapshot import decode_snapshots
from logstore.format.tiered_chunk import LOG_SUFFIX, TieredChunk
from logstore.interfaces import Buffer, ReadableFiles
from logstore.log.producers import ProducerTable

PIECE_BYTES: Final = 1 << 20
MAX_BATCH_BYTES: Final = 32 << 20
"""Twice what a stream of a cluster takes."""
T = TypeVar("T")


def founded_on(founding: bytes, table: ProducerTable[T]) -> None:
    """Begin a table with the snapshots of producers that a chunk is founded on; nothing: there were none."""
    snapshots, _ = decode_snapshots(founding)
    table.load(snapshots[-1].producers if snapshots else ())


def replay_stored(files: ReadableFiles, chunk: TieredChunk, table: ProducerTable[T], now_ms: int) -> None:
    """Add all batches of a chunk to a table that has what the chunk is founded on. Blocks.

    Raises CorruptChunk, and what the store raises.
    """
    path, position, checksum, kept = chunk.key(LOG_SUFFIX), 0, 0, b""
    while position < chunk.log.size_bytes:
        piece = bytes(files.read(path, position, PIECE_BYTES))
        if not piece:
            break
        position, checksum = position + len(piece), crc32c(piece, checksum)
        kept += piece
        try:
            kept = kept[_replay_whole(kept, table, now_ms) :]
        except (CorruptBatch, UnsupportedBatchFormat) as error:
            raise _damaged(chunk, path, str(error)) from error
    if kept or (position, checksum) != (chunk.log.size_bytes, chunk.log.crc):
        raise _damaged(chunk, path, f"its {position} bytes are not those that were stored")


def _replay_whole(data: Buffer, table: ProducerTable[T], now_ms: int) -> int:
    """Add the batches that are whole; the position behind them. Raises CorruptBatch, UnsupportedBatchFormat."""
    at = 0
    while len(data) - at >= HEADER_BYTES:
        header = parse_header(data, at)
        if header.size_bytes > MAX_BATCH_BYTES:
            raise CorruptBatch(f"a batch of {header.size_bytes} bytes, at most {MAX_BATCH_BYTES} are taken")
        if at + header.size_bytes > len(data):
            break
        if header.producer_id >= 0:
            table.synced(header, header.base_offset, now_ms)
        at += header.size_bytes
    return at


def _damaged(chunk: TieredChunk, path: str, why: str) -> CorruptChunk:
    return CorruptChunk(
        f"{path}: the object in the tier is damaged ({why}); restore it",
        first_offset=chunk.base_offset,
        last_offset=chunk.next_offset - 1,
    )

"""Reads staged output back for publication: pieces of whole, checked batches.

Invariant: a batch leaves the staging area only if its own CRC-32C still matches.
"""

from collections import deque
from collections.abc import Iterable

from logstore.epochs.staging import PIECE_BYTES, Extent, Ready
from logstore.errors import CorruptBatch, CorruptFile, StorageFailed, UnsupportedBatchFormat
from logstore.format.batch import HEADER_BYTES, check_batch, parse_header
from logstore.log.background import BackgroundJobs
from logstore.log.coroutines import start
from logstore.log.jobs import Read
from logstore.log.ticket import Ticket


class StagedReader:
    """Reads extents back as pieces of whole, checked batches, off the event loop, one piece at a time."""

    def __init__(self, extents: Iterable[Extent], ready: Ready) -> None:
        self._extents = deque(extents)
        self._background = BackgroundJobs(ready)
        self._is_reading = False

    def next_piece(self) -> Ticket[bytearray | None]:
        """The next batches, at most PIECE_BYTES of them or one batch; None at the end.

        The ticket fails with CorruptFile if a staged batch is damaged, with StorageFailed if a read fails.
        """
        if self._is_reading:
            raise AssertionError("one piece at a time")
        return start(self._next_piece())

    async def _next_piece(self) -> bytearray | None:
        piece_bytes = PIECE_BYTES
        while self._extents:
            extents = self._take_extents(piece_bytes)
            found = await self._read(extents, piece_bytes)
            try:
                piece = self._cut(extents, found, piece_bytes)
                if piece:
                    return piece
                # Not even one batch fitted: its header gives the size to read.
                piece_bytes = parse_header(found[0]).size_bytes
            except (CorruptBatch, CorruptFile, UnsupportedBatchFormat) as error:
                raise CorruptFile(f"staged data in {extents[0].path} is damaged: {error}") from error
        return None

    def _take_extents(self, piece_bytes: int) -> list[Extent]:
        """Take extents for one piece from the front; `_cut` puts back what the piece does not hold of an extent."""
        taken: list[Extent] = []
        left = piece_bytes
        while self._extents and left > 0 and (not taken or self._extents[0].length <= left):
            extent = self._extents.popleft()
            taken.append(extent)
            left -= min(left, extent.length)
        return taken

    async def _read(self, extents: list[Extent], piece_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        self._is_reading = True
        reading = self._background.run([Read(e.path, e.position, min(e.length, piece_bytes), found) for e in extents])
        await reading.settled()
        self._is_reading = False
        if reading.error is not None:
            raise StorageFailed(f"reading staged data failed ({reading.error}); the epoch stays committed")
        return found

    def _cut(self, extents: list[Extent], found: list[bytes], piece_bytes: int) -> bytearray:
        """The whole batches of the data read; the rest of an extent goes back to the front."""
        piece = bytearray()
        for extent, data in zip(extents, found, strict=True):
            whole = _whole_batches(extent, min(extent.length, piece_bytes), data)
            piece += memoryview(data)[:whole]
            if whole < extent.length:
                self._extents.appendleft(Extent(extent.path, extent.position + whole, extent.length - whole, 0))
        return piece


def _whole_batches(extent: Extent, asked_bytes: int, data: bytes) -> int:
    """Total length of the whole batches at the start of `data`, each checked.

    Raises CorruptBatch, UnsupportedBatchFormat or CorruptFile.
    """
    if len(data) != asked_bytes:
        raise CorruptFile(f"{asked_bytes} bytes at {extent.position} are not there in full")
    position = 0
    while len(data) - position >= HEADER_BYTES:
        size_bytes = parse_header(data, position).size_bytes
        if position + size_bytes > extent.length:
            raise CorruptFile(f"a batch of {size_bytes} bytes at {extent.position + position} leaves its part")
        if position + size_bytes > len(data):
            return position
        check_batch(data, position)
        position += size_bytes
    if len(data) == extent.length and position != len(data):
        raise CorruptFile(f"{len(data) - position} bytes before {extent.position + len(data)} are no batch")
    return position

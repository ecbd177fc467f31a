"""Reads staged output back for publication: whole, checked batches.

Invariant: a batch leaves the staging area only if its own CRC-32C still matches.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from logstore.epochs.staging import READ_BYTES, Extent, Ready
from logstore.errors import CorruptBatch, CorruptFile, StorageFailed, UnsupportedBatchFormat
from logstore.format.batch import HEADER_BYTES, check_batch, parse_header
from logstore.log.background import BackgroundJobs
from logstore.log.coroutines import start
from logstore.log.jobs import Read
from logstore.log.ticket import Ticket


class StagedReader:
    """Reads extents back as whole, checked batches, off the event loop, one read at a time."""

    def __init__(self, extents: Iterable[Extent], ready: Ready) -> None:
        self._extents = deque(extents)
        self._background = BackgroundJobs(ready)
        self._is_reading = False

    def next_batches(self) -> Ticket[bytearray | None]:
        """The next batches, at most READ_BYTES of them or one batch; None at the end.

        The ticket fails with CorruptFile if a staged batch is damaged, with StorageFailed if a read fails.
        """
        if self._is_reading:
            raise AssertionError("one read at a time")
        return start(self._next_batches())

    async def _next_batches(self) -> bytearray | None:
        limit_bytes = READ_BYTES
        while self._extents:
            extents = self._take_extents(limit_bytes)
            found = await self._read(extents, limit_bytes)
            try:
                batches = self._cut(extents, found, limit_bytes)
                if batches:
                    return batches
                # Not even one batch fitted: its header gives the size to read.
                limit_bytes = parse_header(found[0]).size_bytes
            except (CorruptBatch, CorruptFile, UnsupportedBatchFormat) as error:
                raise _damaged(extents[0], error) from error
        return None

    def _take_extents(self, limit_bytes: int) -> list[Extent]:
        """Take extents for one read from the front; `_cut` puts back the rest of an extent that was not read."""
        taken: list[Extent] = []
        left = limit_bytes
        while self._extents and left > 0 and (not taken or self._extents[0].length <= left):
            extent = self._extents.popleft()
            taken.append(extent)
            left -= min(left, extent.length)
        return taken

    async def _read(self, extents: list[Extent], limit_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        self._is_reading = True
        reading = self._background.run([Read(e.path, e.position, min(e.length, limit_bytes), found) for e in extents])
        await reading.settled()
        self._is_reading = False
        if reading.error is not None:
            raise _unreadable(reading.error)
        return found

    def _cut(self, extents: list[Extent], found: list[bytes], limit_bytes: int) -> bytearray:
        """The whole batches of the data read; the rest of an extent goes back to the front."""
        batches = bytearray()
        for extent, data in zip(extents, found, strict=True):
            whole = _whole_batches(extent, min(extent.length, limit_bytes), data)
            batches += memoryview(data)[:whole]
            if whole < extent.length:
                self._extents.appendleft(Extent(extent.path, extent.position + whole, extent.length - whole, 0))
        return batches


async def read_whole(sources: Sequence[Sequence[Extent]], ready: Ready) -> list[bytearray]:
    """The batches of several groups, each checked, read in one job: one turn of a thread for all of them.

    Raises CorruptFile if a staged batch is damaged, StorageFailed if a read fails.
    """
    extents = [extent for source in sources for extent in source]
    found: list[bytes] = []
    reading = BackgroundJobs(ready).run([Read(e.path, e.position, e.length, found) for e in extents])
    await reading.settled()
    if reading.error is not None:
        raise _unreadable(reading.error)
    data = iter(found)
    groups = []
    for source in sources:
        batches = bytearray()
        for extent in source:
            batches += _checked(extent, next(data))
        groups.append(batches)
    return groups


def _checked(extent: Extent, data: bytes) -> bytes:
    try:
        _whole_batches(extent, extent.length, data)
    except (CorruptBatch, CorruptFile, UnsupportedBatchFormat) as error:
        raise _damaged(extent, error) from error
    return data


def _damaged(extent: Extent, error: Exception) -> CorruptFile:
    return CorruptFile(f"staged data in {extent.path} is damaged: {error}")


def _unreadable(error: Exception) -> StorageFailed:
    return StorageFailed(f"reading staged data failed ({error}); the epoch stays committed")


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

"""The piece of a chunk that a check has in memory, moved through the chunk from its first byte to its last.

Invariants: memory is bounded by one window, whatever the size of a batch; moved forwards, no byte is read twice; the
disk is told of what comes next before the bytes at hand are checked, so that it reads meanwhile.
"""

from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from logstore.verify.journal import ReplayedChunk

WINDOW_BYTES: Final = 1 << 20
"""Read at once: enough that a call for it costs little, and so little that it is still in a processor's cache when it
is checked.
"""
AHEAD_BYTES: Final = 4 << 20
"""The disk is told of at least so many bytes in front of their check, at most of twice as many."""


def window_buffer() -> memoryview:
    """The memory of a window. Chunks that are checked one after the other share it: new memory costs a page fault for
    each 4 KB.
    """
    return memoryview(bytearray(WINDOW_BYTES))


class ChunkWindow:
    """A window of a chunk, in `buffer`. `note_read` is told the bytes of each read."""

    def __init__(self, chunk: ReplayedChunk, buffer: memoryview, note_read: Callable[[int], None]) -> None:
        self._chunk = chunk
        self._note_read = note_read
        self._buffer = buffer
        self._start = self._end = self._announced_end = 0

    def bytes_at(self, position: int, wanted_bytes: int) -> memoryview:
        """What is at hand from `position` on: at least `wanted_bytes` bytes, if the window and the chunk have as many.

        Valid until the next call. Raises OSError.
        """
        if not self._start <= position <= self._end - wanted_bytes:
            self._move(position)
        return self._buffer[position - self._start : self._end - self._start]

    def _move(self, position: int) -> None:
        buffer, kept_bytes = self._buffer, 0
        if self._start <= position <= self._end:
            kept_bytes = self._end - position
            buffer[:kept_bytes] = buffer[position - self._start : self._end - self._start]
        self._start, self._end = position, position + kept_bytes
        free = buffer[kept_bytes : self._chunk.size_bytes - position]
        self._announce(self._end + len(free))
        count = self._chunk.read_into(self._end, free)
        self._end += count
        self._note_read(count)

    def _announce(self, position: int) -> None:
        """Tell the disk, once for each byte, of what is read behind this position."""
        begin = max(position, self._announced_end)
        end = min(position + 2 * AHEAD_BYTES, self._chunk.size_bytes)
        if begin < end and begin < position + AHEAD_BYTES:
            self._chunk.will_read(begin, end - begin)
            self._announced_end = end

    def checksum(self, position: int, length: int) -> int | None:
        """The CRC-32C of bytes of any length; None if the chunk ends before them. Raises OSError."""
        crc, end = 0, position + length
        while position < end:
            data = self.bytes_at(position, 1)[: end - position]
            if not data:
                return None
            crc = crc32c(data, crc)
            position += len(data)
        return crc

"""Batches of one size after another in a tail, as loads leave them."""

from __future__ import annotations

from logstore.log.tail import StreamTail, Tail, TailEntry


class PushedTail(Tail):
    """A tail with the batches of one stream."""

    def __init__(self, bound_bytes: int) -> None:
        super().__init__(bound_bytes)
        self._stream, self._offset = StreamTail(), 0

    def push_all(self, size: int, total_bytes: int) -> None:
        """Push batches of one size, and let go of those that do not fit."""
        for _ in range(total_bytes // size):
            self.push(self._stream, TailEntry(self._offset, self._offset + 1, memoryview(bytes(size)), False))
            self.evict()
            self._offset += 1

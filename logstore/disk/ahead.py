"""Reads ahead for readers that read on: who catches up finds the next piece read by the time it asks.

Invariants:
* A piece is read only where a reader was served up to its place, and only once: a read of the same place waits for it.
* A piece that is in memory is read on the event loop, one in a turn; any other one, and each beside writes, by a task
  that waits for the disk, and lets a write go first.
* AT_ONCE pieces are wanted or under way at most; what is kept is bounded by TOTAL_BYTES (`ReadAhead`).
* A piece that cannot be read is not kept: the reader that asks for it gets the error.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from logstore.disk.reads_beside import ReadsBeside
from logstore.errors import CairnError
from logstore.log.read_ahead import ReadAhead, ReadPosition
from logstore.log.reading import NotQuick, ReadResult
from logstore.log.stream import Stream

AT_ONCE: Final = 4
AHEAD_BYTES: Final = 1 << 20
"""Size of a read for a sequential reader, even if it asks for less: few large reads, with the next one under way. Two
MiB were slower: they do not fit into the cache of a processor, from which they are checked and sent.
"""
TOTAL_BYTES: Final = 8 << 20


class AheadReads:
    """What is read ahead of one store's streams, and what is to be."""

    def __init__(
        self,
        beside: ReadsBeside,
        nursery: trio.Nursery,
        read_quickly: Callable[[Stream, ReadPosition, int], ReadResult],
        read: Callable[[Stream, ReadPosition, int], Awaitable[ReadResult]],
    ) -> None:
        """`read_quickly` reads, up to so many bytes, what is in memory, or raises NotQuick; `read` waits for the disk.
        Both raise CairnError and OSError.
        """
        self._beside = beside
        self._nursery = nursery
        self._read_quickly = read_quickly
        self._read = read
        self._wanted: dict[ReadPosition, Stream] = {}
        self._under_way: dict[ReadPosition, trio.Event] = {}
        """Those that are wanted, too."""
        self._work = trio.Event()
        self.pieces = ReadAhead(TOTAL_BYTES)
        """What is read, and where readers are."""

    @property
    def may_give(self) -> bool:
        """Whether `give` may find something: not beside writes, where a read waits for its share."""
        is_there = bool(self._wanted) or not self.pieces.is_empty
        return is_there and not self._beside.is_beside_writes

    def give(self, stream: Stream, place: ReadPosition, max_bytes: int) -> ReadResult | None:
        """Batches at a place, up to `max_bytes`, at least one, that were read ahead or are about to be; the next ones
        are then read ahead. None: there are none, or they must not be given without a wait.
        """
        if not self.may_give:
            return None
        if place in self._wanted:
            self._read_wanted(place)
        result = self.pieces.take(place, max_bytes)
        if result is not None:
            self.read_on(stream, place, result.next_offset)
        return result

    async def wait(self, place: ReadPosition) -> None:
        """If a piece at the place is under way, wait until it is read."""
        under_way = self._under_way.get(place)
        if under_way is not None:
            await under_way.wait()

    def read_on(self, stream: Stream, place: ReadPosition, next_offset: int, *, is_sequential: bool = True) -> None:
        """A reader was served from a place up to an offset; if it is one that reads on, have the next piece read."""
        self.pieces.note(place, next_offset)
        following = place._replace(offset=next_offset)
        if not is_sequential or self.pieces.holds(following) or following in self._under_way:
            return
        if len(self._under_way) < AT_ONCE and next_offset < stream.high_watermark:
            if stream.read_tail(next_offset, 1) is None:
                self._under_way[following] = trio.Event()
                self._wanted[following] = stream
                self._work.set()

    async def run(self) -> None:
        """Read what is wanted, one piece in a turn of the event loop; runs until cancelled."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            while self._wanted:
                self.read_next()
                await trio.lowlevel.checkpoint()

    def read_next(self) -> None:
        """Read one of the pieces that are wanted, if there are any."""
        if self._wanted:
            self._read_wanted(next(iter(self._wanted)))

    def _read_wanted(self, place: ReadPosition) -> None:
        stream = self._wanted.pop(place)
        try:
            if self._beside.is_beside_writes:
                raise NotQuick(stream.name)
            found = self._read_quickly(stream, place, AHEAD_BYTES)
        except (NotQuick, CairnError, OSError):
            self._nursery.start_soon(self._fill, stream, place)
            return
        except BaseException:  # want of memory, or a defect: nobody may wait for this piece
            self._under_way.pop(place).set()
            raise
        self.pieces.put(place, found)
        self._under_way.pop(place).set()

    async def _fill(self, stream: Stream, place: ReadPosition) -> None:
        try:
            await self._beside.wait_ahead()
            self.pieces.put(place, await self._read(stream, place, AHEAD_BYTES))
        except (CairnError, OSError):
            pass  # the reader that asks for this place gets the same error
        finally:
            self._under_way.pop(place).set()

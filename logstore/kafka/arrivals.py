"""Memory for frames that are on their way in: counted when their bytes arrive, and taken from the slowest when it is
short.

A frame that is announced holds nothing. Invariants:
* What the frames of one budget hold together stays below its limit, but for one frame: the oldest may always go on, so
  that some frame always gets whole; but none goes beyond the limit while a whole one waits to be worked on.
* When a byte more does not fit, frames whose latest PIECE_BYTES took SLOW_PIECE_S or longer are given up, the slowest
  first, until an eighth of the limit is free beside it. Who sends faster never waits for who sends slower.
* A frame that waits here is not slow: its client cannot send.
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

PIECE_BYTES = 64 * 1024
SLOW_PIECE_S = 0.1
"""A frame may be given up, if memory is short, when it comes slower than a piece in this time: 640 KiB/s."""
FREED_SHARE = 8


@dataclass(slots=True, eq=False)
class Arrival:
    """One frame on its way in. `give_up` ends its connection."""

    give_up: Callable[[], None]
    since_s: float
    """When its latest piece began."""
    held_bytes: int = 0
    piece_bytes: int = 0
    is_waiting: bool = False
    """It waits for us, and so cannot be slow."""
    is_whole: bool = False

    def advance(self, received: int) -> None:
        """Note that `received` bytes of it have come."""
        self.piece_bytes += received
        if self.piece_bytes >= PIECE_BYTES:
            self.piece_bytes = 0
            self.since_s = trio.current_time()


class ArrivalBudget:
    """What the frames of all connections may hold until they are whole."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._arrivals: dict[Arrival, None] = {}
        self._freed: trio.Event | None = None
        self._whole = 0
        self.used_bytes = 0
        self.given_up = 0
        """Frames that gave way so far."""

    def begin(self, give_up: Callable[[], None]) -> Arrival:
        """A frame begins to come."""
        arrival = Arrival(give_up, trio.current_time())
        self._arrivals[arrival] = None
        return arrival

    def end(self, arrival: Arrival) -> None:
        """A frame is whole and counted elsewhere, or will not come."""
        if arrival in self._arrivals:
            del self._arrivals[arrival]
            self._whole -= arrival.is_whole
            self._give(arrival, arrival.held_bytes)

    def hold_whole(self, arrival: Arrival) -> None:
        """A frame is whole, and held until there is room to work on it."""
        arrival.is_waiting = arrival.is_whole = True
        self._whole += 1

    def take_nowait(self, arrival: Arrival, size: int) -> bool:
        """Count bytes that are about to be received, if there is room."""
        if self.used_bytes + size > self._limit_bytes or arrival not in self._arrivals:
            return False
        arrival.held_bytes += size
        self.used_bytes += size
        return True

    async def take(self, arrival: Arrival, size: int) -> None:
        """Count bytes that are about to be received, when there is room. Raises trio.Cancelled in who is given up."""
        while self.used_bytes + size > self._limit_bytes and not self._is_first(arrival):
            self._give_up_slow(size)
            if arrival not in self._arrivals:
                await trio.lowlevel.checkpoint()  # it is cancelled
            elif self.used_bytes + size > self._limit_bytes:
                await self._wait(arrival)
        if arrival in self._arrivals:
            arrival.held_bytes += size
            self.used_bytes += size

    def give_back(self, arrival: Arrival, size: int) -> None:
        """What was taken and has not come."""
        if arrival in self._arrivals:
            self._give(arrival, size)

    def _give(self, arrival: Arrival, size: int) -> None:
        arrival.held_bytes -= size
        self.used_bytes -= size
        if self._freed is not None and size:
            self._freed.set()
            self._freed = None

    def _is_first(self, arrival: Arrival) -> bool:
        return not self._whole and next(iter(self._arrivals), None) is arrival

    def _give_up_slow(self, size: int) -> None:
        """Make room for `size` bytes, and some for whoever comes next."""
        goal_bytes = self._limit_bytes - self._limit_bytes // FREED_SHARE - size
        latest_s = trio.current_time() - SLOW_PIECE_S
        slow = [arrival for arrival in self._arrivals if not arrival.is_waiting and arrival.since_s <= latest_s]
        for arrival in sorted(slow, key=lambda arrival: arrival.since_s):
            if self.used_bytes <= goal_bytes:
                break
            self.end(arrival)
            self.given_up += 1
            arrival.give_up()

    async def _wait(self, arrival: Arrival) -> None:
        """Until something is freed, or another may have become slow."""
        arrival.is_waiting = True
        if self._freed is None:
            self._freed = trio.Event()
        with trio.move_on_after(SLOW_PIECE_S):
            await self._freed.wait()
        arrival.is_waiting = False
        arrival.since_s = trio.current_time()

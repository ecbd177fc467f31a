"""Memory for frames that are on their way in: counted when their bytes arrive, and taken from the slowest when it is
short.

A frame that is announced holds nothing. Invariants:
* What the frames of one budget hold together stays below its limit, but for one frame: the oldest may always go on, so
  that some frame always gets whole; but none goes beyond the limit while a whole one waits to be worked on.
* When a byte more does not fit, frames whose latest PIECE_BYTES took SLOW_PIECE_S or longer are given up, the slowest
  first, until an eighth of the limit is free beside it. Who sends faster never waits for who sends slower.
* A frame that waits here is not slow: its client cannot send.
* However many wait, what is freed wakes a few of them, in the order in which they came, and one looks for slow frames,
  again after SLOW_PIECE_S if it has found too few.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import trio

PIECE_BYTES = 64 * 1024
SLOW_PIECE_S = 0.1
"""A frame may be given up, if memory is short, when it comes slower than a piece in this time: 640 KiB/s."""
FREED_SHARE = 8
WOKEN = 16
"""Of those who wait, so many from the first on may take what is freed, each who fits."""


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
        self._queue: dict[Arrival, tuple[int, trio.Event]] = {}
        self._look_again_s = -math.inf
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
            self.used_bytes -= arrival.held_bytes
            self._wake()  # another may be the oldest now

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
        try:
            while self.used_bytes + size > self._limit_bytes and not self._is_first(arrival):
                if arrival in self._arrivals:
                    await self._wait(arrival, size)
                else:
                    await trio.lowlevel.checkpoint()  # it is cancelled
        finally:
            if self._queue.pop(arrival, None) is not None:
                self._wake()  # another is the first of those who wait
        if arrival in self._arrivals:
            arrival.held_bytes += size
            self.used_bytes += size

    def give_back(self, arrival: Arrival, size: int) -> None:
        """What was taken and has not come."""
        if arrival in self._arrivals and size:
            arrival.held_bytes -= size
            self.used_bytes -= size
            self._wake()

    def _wake(self) -> None:
        """Have those look again who may go on: the oldest, who waits the longest, and those who fit."""
        free_bytes = self._limit_bytes - self.used_bytes
        for number, (size, turn) in enumerate(islice(self._queue.values(), WOKEN)):
            if size <= free_bytes:
                free_bytes -= size
                turn.set()
            elif not number:
                turn.set()  # it looks for slow frames
        oldest = next(iter(self._arrivals), None)
        if oldest is not None and oldest in self._queue:
            self._queue[oldest][1].set()

    def _is_first(self, arrival: Arrival) -> bool:
        return not self._whole and next(iter(self._arrivals), None) is arrival

    def _give_up_slow(self, size: int) -> None:
        """Make room for `size` bytes, and some for whoever comes next."""
        now_s = trio.current_time()
        if now_s < self._look_again_s:
            return
        goal_bytes = self._limit_bytes - self._limit_bytes // FREED_SHARE - size
        slow = [other for other in self._arrivals if not other.is_waiting and other.since_s <= now_s - SLOW_PIECE_S]
        for arrival in sorted(slow, key=lambda arrival: arrival.since_s):
            if self.used_bytes <= goal_bytes:
                return
            self.end(arrival)
            self.given_up += 1
            arrival.give_up()
        self._look_again_s = now_s + SLOW_PIECE_S

    async def _wait(self, arrival: Arrival, size: int) -> None:
        """Until its turn may have come; the first of those who wait also looks for slow frames now and then."""
        turn = trio.Event()
        self._queue[arrival] = size, turn  # who was there keeps its place
        is_next = next(iter(self._queue)) is arrival
        if is_next:
            self._give_up_slow(size)
        arrival.is_waiting = True
        with trio.move_on_after(SLOW_PIECE_S if is_next else math.inf):
            await turn.wait()
        arrival.is_waiting = False
        arrival.since_s = trio.current_time()

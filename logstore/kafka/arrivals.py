"""Memory for incoming frames: counted when their bytes arrive; when it is short, the slowest frames are given up.

A frame of which only the length has arrived holds no memory. Invariants:
* The frames of one budget together stay within its limit, with one exception: the oldest frame may always continue, so
  that some frame always completes; but no frame exceeds the limit while a complete frame waits to be handled.
* When more bytes do not fit, frames whose latest PIECE_BYTES took SLOW_PIECE_S or longer are given up, the slowest
  first, until the bytes fit and an eighth of the limit is free. A faster client never waits for a slower one.
* A frame that waits for memory does not count as slow: its client cannot send.
* However many frames wait, freed memory wakes a few of them, first come, first served; the first of them looks for slow
  frames, and looks again after SLOW_PIECE_S if it has found too few.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import trio

PIECE_BYTES = 64 * 1024
SLOW_PIECE_S = 0.1
"""When memory is short, a frame that arrives slower than PIECE_BYTES in this time (640 KiB/s) may be given up."""
FREED_SHARE = 8
WOKEN = 16
"""Only the first WOKEN waiting frames may take freed memory; each of them that fits is woken."""


@dataclass(slots=True, eq=False)
class Arrival:
    """One incoming frame. `give_up` ends its connection."""

    give_up: Callable[[], None]
    since_s: float
    """When its latest piece of PIECE_BYTES began."""
    held_bytes: int = 0
    piece_bytes: int = 0
    is_waiting: bool = False
    """The frame waits for the sidecar, and so does not count as slow."""
    is_whole: bool = False

    def advance(self, received: int) -> None:
        """Note that `received` bytes of the frame have arrived."""
        self.piece_bytes += received
        if self.piece_bytes >= PIECE_BYTES:
            self.piece_bytes = 0
            self.since_s = trio.current_time()


class ArrivalBudget:
    """Memory that the frames of all connections may hold until they are complete."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._arrivals: dict[Arrival, None] = {}
        self._queue: dict[Arrival, tuple[int, trio.Event]] = {}
        self._look_again_s = -math.inf
        self._whole = 0
        self.used_bytes = 0
        self.given_up = 0
        """Number of frames given up so far."""

    def begin(self, give_up: Callable[[], None]) -> Arrival:
        """A frame begins to arrive."""
        arrival = Arrival(give_up, trio.current_time())
        self._arrivals[arrival] = None
        return arrival

    def end(self, arrival: Arrival) -> None:
        """A frame is complete and counted elsewhere, or will not be completed."""
        if arrival in self._arrivals:
            del self._arrivals[arrival]
            self._whole -= arrival.is_whole
            self.used_bytes -= arrival.held_bytes
            self._wake()  # another may be the oldest now

    def hold_whole(self, arrival: Arrival) -> None:
        """A frame is complete, and held until there is room to handle it."""
        arrival.is_waiting = arrival.is_whole = True
        self._whole += 1

    def take_nowait(self, arrival: Arrival, size: int) -> bool:
        """Count bytes before they are received; False if there is no room for them."""
        if self.used_bytes + size > self._limit_bytes or arrival not in self._arrivals:
            return False
        arrival.held_bytes += size
        self.used_bytes += size
        return True

    async def take(self, arrival: Arrival, size: int) -> None:
        """Wait for room for bytes to receive, and count them. Raises trio.Cancelled if the frame is given up."""
        try:
            while self.used_bytes + size > self._limit_bytes and not self._is_first(arrival):
                if arrival in self._arrivals:
                    await self._wait(arrival, size)
                else:
                    await trio.lowlevel.checkpoint()  # given up: the task is cancelled here
        finally:
            if self._queue.pop(arrival, None) is not None:
                self._wake()  # another frame is now the first in the queue
        if arrival in self._arrivals:
            arrival.held_bytes += size
            self.used_bytes += size

    def give_back(self, arrival: Arrival, size: int) -> None:
        """Give back bytes that were taken but have not arrived."""
        if arrival in self._arrivals and size:
            arrival.held_bytes -= size
            self.used_bytes -= size
            self._wake()

    def _wake(self) -> None:
        """Wake the waiting frames that may continue: the oldest frame, the first in the queue, and those that fit."""
        free_bytes = self._limit_bytes - self.used_bytes
        for number, (size, turn) in enumerate(islice(self._queue.values(), WOKEN)):
            if size <= free_bytes:
                free_bytes -= size
                turn.set()
            elif not number:
                turn.set()  # the first in the queue looks for slow frames
        oldest = next(iter(self._arrivals), None)
        if oldest is not None and oldest in self._queue:
            self._queue[oldest][1].set()

    def _is_first(self, arrival: Arrival) -> bool:
        return not self._whole and next(iter(self._arrivals), None) is arrival

    def _give_up_slow(self, size: int) -> None:
        """Make room for `size` bytes, and some reserve for the next frames."""
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
        """Wait until the frame may continue; the first in the queue also looks for slow frames every SLOW_PIECE_S."""
        turn = trio.Event()
        self._queue[arrival] = size, turn  # a frame that is already in the queue keeps its position
        is_next = next(iter(self._queue)) is arrival
        if is_next:
            self._give_up_slow(size)
        arrival.is_waiting = True
        with trio.move_on_after(SLOW_PIECE_S if is_next else math.inf):
            await turn.wait()
        arrival.is_waiting = False
        arrival.since_s = trio.current_time()

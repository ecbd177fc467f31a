"""From what a client sends to whole frames, with bounded memory and deadlines.

Invariants:
* A connection holds up to SMALL_BYTES of frames that are not served yet without asking; whatever a longer frame holds
  is counted when it comes (`logstore.kafka.arrivals`). Its memory is mapped as a whole and used as bytes come.
* A frame of a request that carries no data is at most CONTROL_FRAME_BYTES long, any other at most `max_frame_bytes`;
  longer ones are refused by their heads.
* The first frame must be whole within `handshake_s`, others at `SLOWEST_BYTES_PER_S` or better, and something must
  come of them every PIECE_PATIENCE_S; between frames a client may be silent for `idle_s`.
"""

import math
import mmap
import struct
from collections.abc import Callable
from typing import NamedTuple

import trio

from logstore.errors import CairnError
from logstore.format.epoch_api import DECIDE, STAGE
from logstore.kafka import codec, produce
from logstore.kafka.arrivals import Arrival, ArrivalBudget
from logstore.kafka.budgets import RequestBudget
from logstore.kafka.link import Link

SMALL_BYTES = 32 * 1024
"""More than a Java producer's default batch with its frame."""
RECEIVE_BYTES = 256 * 1024
"""Received at a time of a longer frame."""
CONTROL_FRAME_BYTES = 1 << 20
"""Of a request without data: room for a thousand topics with long names, and little enough to be walked."""
DECIDE_FRAME_BYTES = 4 << 20
"""A decision names every task of an epoch and what the source is to remember: 20,000 tasks and 1 MiB of positions."""
ORDINARY_FRAME_BYTES = CONTROL_FRAME_BYTES + 64 * 1024
"""A frame with a batch of the default `max-message-bytes` is shorter. Longer ones have a budget of their own, and so do
not stand in the way of these."""
FRAME_PATIENCE_S = 30.0
PIECE_PATIENCE_S = 30.0
SLOWEST_BYTES_PER_S = 64 * 1024
"""A frame may take FRAME_PATIENCE_S, and a second more for each of these bytes."""
DEADLINE_SLACK_S = 1.0
"""A deadline is moved only if it would move by more."""
_LENGTH = struct.Struct(">i")
_KEY = struct.Struct(">h")


class ClosedError(CairnError):
    """This connection ends; the message says why."""


class Arrivals(NamedTuple):
    """What all connections of a server share on the way in: the budgets of ordinary frames, of long frames, of whole
    requests, and of those that wait for their groups; and SMALL_BYTES where what is received lands first, to be copied
    out before anybody else runs, so that idle connections hold no buffer.
    """

    ordinary: ArrivalBudget
    long: ArrivalBudget
    requests: RequestBudget
    waiting: RequestBudget
    scratch: memoryview


class Deadlines(NamedTuple):
    """How long a client may take. Seconds."""

    handshake_s: float
    idle_s: float


class FrameReader:
    """The frames of one connection. `scope` surrounds all calls; its deadline is moved here, and it is cancelled when
    the client is too slow.
    """

    def __init__(
        self,
        link: Link,
        max_frame_bytes: int,
        deadlines: Deadlines,
        arrivals: Arrivals,
        scope: trio.CancelScope,
        give_up: Callable[[], None],
    ) -> None:
        self._link = link
        self._max_frame_bytes = max_frame_bytes
        self._deadlines = deadlines
        self._arrivals = arrivals
        self._scope = scope
        self._give_up = give_up
        self._rest = memoryview(b"")
        self._long: memoryview | None = None
        self._is_greeted = False
        self._frame_deadline_s = math.inf
        self._handshake_deadline_s = trio.current_time() + deadlines.handshake_s
        self.is_ended = False
        """The client has ended the connection."""

    def next_nowait(self) -> memoryview | None:
        """The next frame that is whole, without its length; a buffer of its own. Raises ClosedError."""
        if self._long is not None:
            found, self._long = self._long, None
            return found
        size = self._size()
        if size is None or len(self._rest) < _LENGTH.size + size:
            return None
        end = _LENGTH.size + size
        if end == len(self._rest):  # the usual case: one frame, which needs no copy
            found, self._rest = self._rest[_LENGTH.size :], memoryview(b"")
        else:
            found, self._rest = memoryview(bytearray(self._rest[_LENGTH.size : end])), self._rest[end:]
        self._is_greeted = True
        self._frame_deadline_s = math.inf
        return found

    def pause(self) -> None:
        """The client cannot be late while it waits for us."""
        self._scope.deadline = math.inf

    async def receive(self) -> bool:
        """Receive more, until the deadline; False at the client's end. Raises ClosedError."""
        size = self._size()
        if size is not None and _LENGTH.size + size > SMALL_BYTES and len(self._rest) > _LENGTH.size + _KEY.size:
            await self._receive_long(size)
            return True
        self._set_deadline(size)
        scratch = self._arrivals.scratch
        received = await self._link.receive(scratch[: SMALL_BYTES - len(self._rest)])
        self._rest = memoryview(bytearray(self._rest) + scratch[:received])
        self.is_ended = received == 0
        return not self.is_ended

    def _size(self) -> int | None:
        """The size of the frame that begins in `rest`, if its length is there. Raises ClosedError if it cannot be."""
        if len(self._rest) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._rest)
        if not codec.FIXED_HEADER_BYTES <= size <= self._max_frame_bytes:
            raise ClosedError(f"a frame of {size} bytes; allowed are {self._max_frame_bytes} (max-frame-bytes)")
        if size > CONTROL_FRAME_BYTES and len(self._rest) >= _LENGTH.size + _KEY.size:
            (key,) = _KEY.unpack_from(self._rest, _LENGTH.size)
            if size > _limit_of(key):
                raise ClosedError(f"a frame of {size} bytes; allowed are {_limit_of(key)} for request {key}")
        return int(size)

    def _set_deadline(self, size: int | None) -> None:
        """The time until which something must come."""
        now_s = trio.current_time()
        if not len(self._rest):
            deadline_s = now_s + self._deadlines.idle_s
        else:
            if self._frame_deadline_s == math.inf:
                self._frame_deadline_s = now_s + FRAME_PATIENCE_S + (size or RECEIVE_BYTES) / SLOWEST_BYTES_PER_S
            deadline_s = min(self._frame_deadline_s, now_s + PIECE_PATIENCE_S)
        if not self._is_greeted:
            deadline_s = min(deadline_s, self._handshake_deadline_s)
        # One scope for the whole connection, moved rarely: a scope for each call would cost more than the call.
        if not 0 <= deadline_s - self._scope.deadline < DEADLINE_SLACK_S:
            self._scope.deadline = deadline_s

    async def _receive_long(self, size: int) -> None:
        """Receive a frame that does not fit into the small buffer, into place."""
        budget = self._arrivals.ordinary if size <= ORDINARY_FRAME_BYTES else self._arrivals.long
        arrival = budget.begin(self._give_up)
        try:
            # Anonymous memory takes no page before it is written to, as an array from the heap may.
            whole = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            first = self._rest[_LENGTH.size :]
            await self._take(budget, arrival, len(first))
            whole[: len(first)] = first
            at = len(first)
            while at < size:
                self._set_deadline(size)
                at += await self._receive_piece(budget, arrival, whole[at : at + RECEIVE_BYTES])
            self._rest = memoryview(b"")
            self._is_greeted = True
            self._frame_deadline_s = math.inf
            budget.hold_whole(arrival)
            if not self._arrivals.requests.has_room:
                self.pause()
                await self._arrivals.requests.wait_room()
            self._long = whole
        finally:
            budget.end(arrival)

    async def _receive_piece(self, budget: ArrivalBudget, arrival: Arrival, target: memoryview) -> int:
        await self._link.wait_data()
        await self._take(budget, arrival, len(target))
        received = self._link.receive_nowait(target)
        budget.give_back(arrival, len(target) - (received or 0))
        if received == 0:
            self.is_ended = True
            raise ClosedError("the connection ended inside a frame")
        arrival.advance(received or 0)
        return received or 0

    async def _take(self, budget: ArrivalBudget, arrival: Arrival, size: int) -> None:
        waited_from_s = trio.current_time()
        deadline_s = self._scope.deadline
        if not budget.take_nowait(arrival, size):
            self.pause()
            await budget.take(arrival, size)
            waited_s = trio.current_time() - waited_from_s
            self._frame_deadline_s += waited_s
            self._handshake_deadline_s += waited_s
            self._scope.deadline = deadline_s + waited_s


def _limit_of(key: int) -> float:
    """How long a frame with a request of that key may be."""
    if key in (produce.KEY, STAGE):
        return math.inf
    return DECIDE_FRAME_BYTES if key == DECIDE else CONTROL_FRAME_BYTES

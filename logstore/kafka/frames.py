"""Receives complete frames from a client, with bounded memory and deadlines.

Invariants:
* A connection holds up to SMALL_BYTES of unserved frames that no budget counts; the bytes of a longer frame are counted
  when they arrive (`logstore.kafka.arrivals`). Its memory is mapped as a whole, and pages are used as bytes arrive.
* A frame of a request that carries no data is at most CONTROL_FRAME_BYTES long, the commit of an epoch at most
  EPOCH_COMMIT_FRAME_BYTES, and any frame at most `max_frame_bytes`; longer frames are refused as soon as length and API
  key are known.
* TLS's handshake, a login and the first frame must be complete within `handshake_s`; later frames within
  FRAME_PATIENCE_S plus the time they take at SLOWEST_BYTES_PER_S, with some bytes every PIECE_PATIENCE_S; between
  frames a client may be silent for `idle_s`.
* Until a client that must log in is admitted, its frames are as short as `limit_until_admitted` says.
"""

import math
import mmap
import struct
from collections.abc import Callable
from typing import NamedTuple

import trio

from logstore.base.connected_socket import ConnectedSocket, HandshakeFailed
from logstore.base.readiness import Readiness
from logstore.errors import CairnError
from logstore.format.epoch_api import EPOCH_COMMIT, STAGE
from logstore.kafka import codec, produce
from logstore.kafka.arrivals import Arrival, ArrivalBudget
from logstore.kafka.budgets import RequestBudget

SMALL_BYTES = 32 * 1024
"""More than a Java producer's default batch with its frame."""
RECEIVE_BYTES = 256 * 1024
"""Most bytes of a longer frame that one call receives."""
CONTROL_FRAME_BYTES = 1 << 20
"""Limit for a request without data: room for a thousand topics with long names, and short enough to be walked."""
EPOCH_COMMIT_FRAME_BYTES = 4 << 20
"""The commit names every task of an epoch and the source's positions: room for 20,000 tasks and 1 MiB of positions."""
ORDINARY_FRAME_BYTES = CONTROL_FRAME_BYTES + 64 * 1024
"""A frame with a batch of the default `max-message-bytes` is shorter. Longer frames have a budget of their own, so that
they do not hold up ordinary frames."""
FRAME_PATIENCE_S = 30.0
PIECE_PATIENCE_S = 30.0
SLOWEST_BYTES_PER_S = 64 * 1024
"""A frame may take FRAME_PATIENCE_S, and a second more for every SLOWEST_BYTES_PER_S bytes."""
DEADLINE_SLACK_S = 1.0
"""A deadline that would move later by less than this is not moved."""
_LENGTH = struct.Struct(">i")
_KEY = struct.Struct(">h")


class ClosedError(CairnError):
    """The connection must end; the message gives the reason."""


class Arrivals(NamedTuple):
    """The receive budgets shared by all connections: of ordinary frames, of long frames, of complete requests, and of
    requests that wait for their groups. `scratch` is a buffer of SMALL_BYTES for received bytes, which are copied out
    before another task runs, so that idle connections hold no buffer. `readiness` waits for connections without TLS.
    """

    ordinary: ArrivalBudget
    long: ArrivalBudget
    requests: RequestBudget
    waiting: RequestBudget
    scratch: memoryview
    readiness: Readiness


class Deadlines(NamedTuple):
    """How long a client may take, in seconds."""

    handshake_s: float
    idle_s: float


class FrameReader:
    """The frames of one connection. `scope` surrounds all calls; the reader moves its deadline, so that it is cancelled
    when the client is too slow.
    """

    def __init__(
        self,
        client: ConnectedSocket,
        max_frame_bytes: int,
        deadlines: Deadlines,
        arrivals: Arrivals,
        scope: trio.CancelScope,
        give_up: Callable[[], None],
    ) -> None:
        self._client = client
        self._max_frame_bytes = max_frame_bytes
        self._deadlines = deadlines
        self._arrivals = arrivals
        self._scope = scope
        self._give_up = give_up
        self._rest = memoryview(b"")
        self._rest_bytes = 0
        """Of the buffer that `_rest` lies in, with frames that are taken already: a frame must not keep more alive."""
        self._long: memoryview | None = None
        self._is_greeted = False
        self._login_frame_bytes = max_frame_bytes
        self._frame_deadline_s = math.inf
        self._handshake_deadline_s = trio.current_time() + deadlines.handshake_s
        self._is_admitted = True
        self.is_ended = False
        """Whether the client has ended the connection."""

    def limit_until_admitted(self, max_frame_bytes: int) -> None:
        """Before anything is read: until `admit`, frames are at most this long, and `handshake_s` goes on."""
        self._is_admitted = False
        self._login_frame_bytes = max_frame_bytes

    def admit(self) -> None:
        """The client has logged in: the usual limits hold."""
        self._is_admitted = self._is_greeted = True

    async def shake_hands(self) -> None:
        """What comes before the first frame, within `handshake_s`. Raises ClosedError, OSError."""
        self._scope.deadline = self._handshake_deadline_s
        try:
            await self._client.handshake()
        except HandshakeFailed as error:
            raise ClosedError(str(error)) from error

    def next_nowait(self) -> memoryview | None:
        """The next complete frame, without its length, in a buffer of its own; None: not yet. Raises ClosedError."""
        if self._long is not None:
            found, self._long = self._long, None
            return found
        if not self._rest:
            return None
        size = self._size()
        if size is None or len(self._rest) < _LENGTH.size + size:
            return None
        end = _LENGTH.size + size
        if end == len(self._rest) == self._rest_bytes:  # the usual case: one frame, which needs no copy
            found, self._rest = self._rest[_LENGTH.size :], memoryview(b"")
        else:
            found, self._rest = memoryview(bytearray(self._rest[_LENGTH.size : end])), self._rest[end:]
        self._is_greeted = self._is_admitted
        self._frame_deadline_s = math.inf
        return found

    @property
    def coming(self) -> int | None:
        """The API key of the long frame that `receive` would now receive into memory of its own; None: there is none.
        Raises ClosedError.
        """
        return int(_KEY.unpack_from(self._rest, _LENGTH.size)[0]) if self._is_long(self._size()) else None

    def _is_long(self, size: int | None) -> bool:
        """Whether a frame of this size, of which `_rest` has the length and the key, gets memory of its own."""
        return size is not None and _LENGTH.size + size > SMALL_BYTES and len(self._rest) > _LENGTH.size + _KEY.size

    @property
    def has_more(self) -> bool:
        """Whether more has arrived than the frames taken so far: the client sends requests without waiting."""
        return bool(len(self._rest))

    def pause(self) -> None:
        """Suspend the deadline: the client waits for the sidecar."""
        self._scope.deadline = math.inf

    async def receive(self) -> bool:
        """Receive more bytes, until the deadline; False when the client has closed its side. Raises ClosedError."""
        size = self._size()
        if size is not None and self._is_long(size):
            await self._receive_long(size)
            return True
        self._set_deadline(size, trio.current_time())
        scratch = self._arrivals.scratch
        received = await self._client.receive(scratch[: SMALL_BYTES - len(self._rest)])
        self._take_in(scratch[:received])
        self.is_ended = received == 0
        return not self.is_ended

    def await_more(self, now_s: float) -> bool:
        """Before a wait for more bytes, which `receive_more` then receives: set the deadline. False: what comes needs
        memory of its own, and `receive` itself. `now_s`: `trio.current_time()`. Raises ClosedError.
        """
        size = None
        if self._rest and self._is_long(size := self._size()):
            return False
        self._set_deadline(size, now_s)
        return True

    def receive_more(self) -> bool:
        """Receive what has arrived since the last call, without a wait; returns whether anything had. Not for frames
        that get memory of their own. Raises ClosedError, OSError.
        """
        if self._rest and self._is_long(self._size()):
            return False
        scratch = self._arrivals.scratch
        received = self._client.receive_nowait(scratch[: SMALL_BYTES - len(self._rest)])
        if not received:  # `receive` finds the end again
            return False
        self._take_in(scratch[:received])
        return True

    def _take_in(self, arrived: memoryview) -> None:
        self._rest = memoryview(bytearray(self._rest) + arrived) if self._rest else memoryview(bytearray(arrived))
        self._rest_bytes = len(self._rest)

    def _size(self) -> int | None:
        """The size of the frame that begins in `_rest`; None: not known yet. Raises ClosedError if it is too large."""
        if len(self._rest) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._rest)
        if not self._is_admitted and size > self._login_frame_bytes:
            raise ClosedError(f"a frame of {size} bytes before a login; allowed are {self._login_frame_bytes}")
        if not codec.FIXED_HEADER_BYTES <= size <= self._max_frame_bytes:
            raise ClosedError(f"a frame of {size} bytes; allowed are {self._max_frame_bytes} (max-frame-bytes)")
        if size > CONTROL_FRAME_BYTES and len(self._rest) >= _LENGTH.size + _KEY.size:
            (key,) = _KEY.unpack_from(self._rest, _LENGTH.size)
            if size > _limit_of(key):
                raise ClosedError(f"a frame of {size} bytes; allowed are {_limit_of(key)} for request {key}")
        return int(size)

    def _set_deadline(self, size: int | None, now_s: float) -> None:
        """Set the time by which the next bytes must arrive."""
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
        """Receive a frame that is longer than SMALL_BYTES into memory of its own."""
        budget = self._arrivals.ordinary if size <= ORDINARY_FRAME_BYTES else self._arrivals.long
        arrival = budget.begin(self._give_up)
        try:
            # Anonymous memory uses no page before it is written to; an array from the heap may.
            whole = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            first = self._rest[_LENGTH.size :]
            await self._take(budget, arrival, len(first))
            whole[: len(first)] = first
            at = len(first)
            while at < size:
                self._set_deadline(size, trio.current_time())
                at += await self._receive_piece(budget, arrival, whole[at : at + RECEIVE_BYTES])
            self._rest = memoryview(b"")
            self._is_greeted = self._is_admitted
            self._frame_deadline_s = math.inf
            budget.hold_whole(arrival)
            if not self._arrivals.requests.has_room:
                self.pause()
                await self._arrivals.requests.wait_room()
            self._long = whole
        finally:
            budget.end(arrival)

    async def _receive_piece(self, budget: ArrivalBudget, arrival: Arrival, target: memoryview) -> int:
        await self._client.wait_data()
        await self._take(budget, arrival, len(target))
        received = self._client.receive_nowait(target)
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
    """How long a frame of a request with this key may be, in bytes."""
    if key in (produce.KEY, STAGE):
        return math.inf
    return EPOCH_COMMIT_FRAME_BYTES if key == EPOCH_COMMIT else CONTROL_FRAME_BYTES

"""What happens together on a host: messages that arrive together, appends of one client, jobs that settle together.

What a burst causes gathers, and goes when it ends: messages to another host in one piece, answers to a client in one
piece. It goes at once: a task that had to be woken for it would cost a turn of the event loop at each hop of a
request.

Invariants:
* A burst begins and ends within one turn of the event loop, and nothing in it waits.
* What is gathered outside a burst goes with the next `flush`, or in the next turn: `run` sees to that, unless the
  caller does (`is_flush_coming`).
* What callbacks gather goes before the burst ends. A callback that is gathered twice is called once.
"""

from collections.abc import Callable

import trio

Callback = Callable[[], None]


class Bursts:
    """See the module. `run` must run."""

    def __init__(self) -> None:
        self._depth = 0
        self.number = 0
        """Of the last burst that has begun."""
        self._gathered: dict[Callback, None] = {}
        self.is_flush_coming = False
        """Set while a caller gathers what goes with a `flush` of its own, before it waits: nobody need be woken."""
        self._more = trio.lowlevel.ParkingLot()

    @property
    def is_open(self) -> bool:
        """Whether a burst has begun and not ended."""
        return self._depth > 0

    def gather(self, callback: Callback) -> None:
        """Call back at the end of the burst, or soon."""
        if not self._depth and not self._gathered and not self.is_flush_coming:
            self._more.unpark()
        self._gathered[callback] = None

    def begin(self) -> None:
        """A burst begins, or one within another, which is a part of it."""
        self.number += not self._depth
        self._depth += 1

    def end(self) -> None:
        """It ends."""
        try:
            while self._depth == 1 and self._gathered:
                callback = next(iter(self._gathered))
                del self._gathered[callback]
                callback()
        finally:
            self._depth -= 1

    def flush(self) -> None:
        """What was gathered goes now."""
        if self._gathered:
            self.begin()
            self.end()

    async def run(self) -> None:
        """See to what is gathered outside bursts, until cancelled."""
        while True:
            self.flush()
            await self._more.park()

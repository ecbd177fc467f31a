"""Waits for data on many sockets with one task, which serves what has come without waking a task for each socket.

A task that waits by itself costs a system call to arm its socket, and a resumption through all of its frames. Here the
sockets stay armed, one task finds all that have data, and calls what each waiting task has left to be called. A task is
woken when its call says that it is needed.

Invariants:
* Calls are made on the event loop's thread, within a step of the task of `run`: they must not wait, and no other task
  runs between the calls of a round.
* A socket is served once in a round at most, and a round serves AT_ONCE sockets at most: other tasks have their turn
  between two rounds.
* What a call raises reaches the task that waits for its socket, and no other.
* A socket whose data nobody waits for is disarmed by the first event, so that it keeps nobody busy.
"""

import select
from collections.abc import Callable
from typing import Final

import trio

AT_ONCE: Final = 256
"""Sockets that a round serves; those that are left come first in the next round."""
LOOKS: Final = 4
"""So often a round asks which sockets have data, as long as it finds others, which are served with the first ones."""


class WatchedSocket:
    """A socket, and the task that waits for its data. `Readiness.watch` makes it."""

    __slots__ = ("_arrived", "_descriptor", "_error", "_is_armed", "_readiness", "_task", "round")

    def __init__(self, readiness: "Readiness", descriptor: int) -> None:
        self._readiness = readiness
        self._descriptor = descriptor
        self._is_armed = False
        self._task: trio.lowlevel.Task | None = None
        self._arrived: Callable[[float], bool] | None = None
        self._error: Exception | None = None
        self.round = 0
        """The last round in which it was served."""

    async def wait(self, arrived: Callable[[float], bool]) -> None:
        """Have `arrived` called each time that the socket has data, or its end, until it returns False; it gets the
        time, as of `trio.current_time`. Raises what `arrived` raises, and OSError if the system has no room for one
        more socket that is watched. Always yields to other tasks.
        """
        if not self._is_armed:
            self._readiness.arm(self._descriptor, self)  # may be refused: then there is nothing to disarm
            self._is_armed = True
        self._arrived, self._task = arrived, trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            error, self._error = self._error, None  # the exception refers to this frame: leave no reference cycle
            raise error

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = self._arrived = None
        return trio.lowlevel.Abort.SUCCEEDED

    def serve(self, now_s: float) -> None:
        """The socket has data."""
        arrived, task = self._arrived, self._task
        if arrived is None or task is None:
            self.close()
            return
        error: Exception | None = None
        try:
            if arrived(now_s):
                return
        except Exception as raised:  # noqa: BLE001 handed to the waiting task, which raises it
            error = raised
        if self._task is task:  # not cancelled by its own call
            self._error = error
            self._task = self._arrived = None
            trio.lowlevel.reschedule(task)

    def close(self) -> None:
        """Watch the socket no more, until the next `wait`. To be called before the socket is closed."""
        if self._is_armed:
            self._is_armed = False
            self._readiness.disarm(self._descriptor)


class Readiness:
    """The sockets of many tasks. `after_round` is called when all that a round has found is served."""

    def __init__(self, after_round: Callable[[], None]) -> None:
        self._after_round = after_round
        self._epoll = select.epoll()
        self._watched: dict[int, WatchedSocket] = {}
        self.rounds = 0
        """So many began."""

    def watch(self, descriptor: int) -> WatchedSocket:
        """A socket whose data one task will wait for. It must be closed before its descriptor is."""
        return WatchedSocket(self, descriptor)

    def arm(self, descriptor: int, watched: WatchedSocket) -> None:
        """Look for data of the socket from now on."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._watched[descriptor] = watched

    def disarm(self, descriptor: int) -> None:
        """Look for data of the socket no more."""
        self._epoll.unregister(descriptor)
        del self._watched[descriptor]

    async def run(self) -> None:
        """Serve what comes, until cancelled. Nobody is served before it is called."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self._serve_round()

    def _serve_round(self) -> None:
        self.rounds += 1
        left, now_s = AT_ONCE, trio.current_time()
        for _ in range(LOOKS):
            before = left
            for descriptor, _ in self._epoll.poll(0, left):
                watched = self._watched[descriptor]
                if watched.round != self.rounds:
                    watched.round = self.rounds
                    left -= 1
                    watched.serve(now_s)
            if left == before or not left:
                break
        self._after_round()

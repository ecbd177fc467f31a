"""A clock of virtual time that jumps as trio's `MockClock(autojump_threshold=0)` does; a run takes a sixth less.

MockClock has the event loop wait for I/O, look at all its tasks, and go round once more for each jump. This clock jumps
while the loop asks it how long to wait.

Invariants:
* Tasks run in the same order, at the same times, as with MockClock: time passes only while no task can run, none waits
  for all others to be blocked, and neither a file, a socket nor another thread has anything for the loop.
* Time does not pass while nothing has a deadline.
"""

from __future__ import annotations

import select
from math import inf
from typing import Any, Final

import trio

LONG_S: Final = 999_999_999.0
"""Real, as MockClock has it: what waits for all others to be blocked has its turn first."""


class VirtualClock(trio.abc.Clock):
    """Virtual time of one run, in seconds from zero."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._runner: Any = None
        self._poll = select.poll()

    def start_clock(self) -> None:
        """See Clock."""
        self._runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        self._poll.register(self._runner.io_manager._epoll, select.POLLIN)

    def current_time(self) -> float:
        """See Clock."""
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See Clock. The loop asks in each turn before which no task can run, with the next deadline of all tasks."""
        pause_s = deadline - self._now_s
        if pause_s <= 0:
            return 0
        if self._runner.waiting_for_idle:
            return LONG_S
        if deadline != inf and not self._is_something_there():
            self._now_s += pause_s
        return 0

    def jump(self, seconds: float) -> None:
        """Let time pass, also while tasks run. Raises ValueError if `seconds` are negative."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now_s += seconds

    def _is_something_there(self) -> bool:
        """Whether the loop would hear of something now; it still does."""
        queue, manager = self._runner.entry_queue, self._runner.io_manager
        if queue.queue or queue.idempotent_queue:
            return True
        if len(manager._registered) <= 1:  # the loop's own socket, on which threads wake it
            return False
        return bool(self._poll.poll(0))

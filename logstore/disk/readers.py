"""Threads that run reads for tasks.

Invariants:
* A task that waits for a read is woken exactly once, with the read's result or its exception. A cancelled task waits
  for its read all the same, because the read uses files that may be closed afterwards.
* One eventfd notifies the event loop, however many reads have finished; as with the writer threads, a hop costs a part
  of one through a general thread pool.
* At most `threads` reads run at a time; the others wait, first come, first served.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import trio

T = TypeVar("T")


class _Read:
    """One read: the work, the task that waits for it, and what came of it."""

    __slots__ = ("error", "result", "task", "work")

    def __init__(self, work: Callable[[], Any], task: trio.lowlevel.Task) -> None:
        self.work = work
        self.task = task
        self.result: Any = None
        self.error: BaseException | None = None


def _stay(_: object) -> trio.lowlevel.Abort:
    """A read that is queued or runs is waited for."""
    return trio.lowlevel.Abort.FAILED


class ReaderThreads:
    """A fixed number of threads, and the tasks that wait for them."""

    def __init__(self, threads: int) -> None:
        self._reads: SimpleQueue[_Read | None] = SimpleQueue()
        self._finished: deque[_Read] = deque()
        self._waiting = 0
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads = [
            threading.Thread(target=self._work, name=f"cairn-reader-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the next free thread; returns its result or raises its exception. `work` must not touch data
        that other tasks change.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        read = _Read(work, trio.lowlevel.current_task())
        self._waiting += 1
        self._reads.put(read)
        await trio.lowlevel.wait_task_rescheduled(_stay)
        if read.error is not None:
            error, read.error = read.error, None  # the exception refers to this frame: leave no reference cycle
            raise error
        return cast(T, read.result)

    async def run_wake_ups(self) -> None:
        """Wake the tasks whose reads have finished; runs until cancelled, and then until no task waits."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._eventfd)
                self._wake()
        finally:
            with trio.CancelScope(shield=True):
                while self._waiting:
                    await trio.lowlevel.wait_readable(self._eventfd)
                    self._wake()

    def _wake(self) -> None:
        os.eventfd_read(self._eventfd)
        while self._finished:
            self._waiting -= 1
            trio.lowlevel.reschedule(self._finished.popleft().task)

    def _work(self) -> None:
        while (read := self._reads.get()) is not None:
            try:
                read.result = read.work()
            except BaseException as error:  # noqa: BLE001  raised in the task that waits
                read.error = error
            self._finished.append(read)
            del read  # its result may be large, and the next read may be long in coming
            os.eventfd_write(self._eventfd, 1)

    def stop(self) -> None:
        """End all threads once their reads are done; the eventfd is closed."""
        for _ in self._threads:
            self._reads.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self._eventfd)

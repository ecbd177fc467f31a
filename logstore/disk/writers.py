"""Threads that run disk jobs.

Invariants:
* `collect` returns every submitted job exactly once; one eventfd notifies the event loop, however many jobs have
  finished.
* A job goes to the thread that became idle last: with little work it is always the same thread. Eight threads that take
  turns cost almost three times as much processor time for a job, since each wakes on another processor.
* `wait_briefly` ends after WAIT_MS, whatever the disk does.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

from logstore.interfaces import FileSystem
from logstore.log.jobs import DiskJob, Operation

WAIT_MS = 1
"""The longest wait of the event loop for a job: no client notices it, and most syncs of a good disk are shorter."""


class Finished(NamedTuple):
    """A job that has ended, the operation that failed with its error, and how long the job took on its thread."""

    job: DiskJob
    failure: tuple[Operation, OSError] | None
    took_s: float


class WriterThreads:
    """A fixed number of threads that run jobs on one file system, at most as many jobs at a time."""

    def __init__(self, fs: FileSystem, threads: int) -> None:
        self._fs = fs
        self._finished: deque[Finished] = deque()
        self._crashed: BaseException | None = None
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.eventfd, select.POLLIN)
        self._queues: list[SimpleQueue[Sequence[DiskJob] | None]] = [SimpleQueue() for _ in range(threads)]
        self._idle = list(self._queues)
        self._threads = [
            threading.Thread(target=self._work, args=(queue,), name=f"cairn-writer-{number}", daemon=True)
            for number, queue in enumerate(self._queues)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, jobs: Sequence[DiskJob]) -> None:
        """Run jobs, one after the other on one thread. There must be a free thread: `JobQueue` gives out no more jobs
        than there are threads.
        """
        self._idle.pop().put(jobs)

    def wait_briefly(self) -> bool:
        """Block until a job has finished, but no longer than WAIT_MS. Returns whether `collect` has something."""
        return bool(self._poll.poll(WAIT_MS))

    def collect(self) -> list[Finished]:
        """The jobs finished since the last call.

        Raises the exception of a job that was not an OSError: a defect of the program, not of the disk.
        """
        with suppress(BlockingIOError):  # they were collected after the eventfd had become readable
            os.eventfd_read(self.eventfd)
        if self._crashed is not None:
            raise self._crashed
        finished: list[Finished] = []
        while self._finished:
            finished.append(self._finished.popleft())
        return finished

    def _work(self, queue: "SimpleQueue[Sequence[DiskJob] | None]") -> None:
        while (jobs := queue.get()) is not None:
            try:
                finished = [self._run(job) for job in jobs]
                self._idle.append(queue)  # first: once the jobs are collected, the next may come
                self._finished.extend(finished)
                del finished
            except BaseException as error:  # noqa: BLE001 handed to the loop's thread, which raises it
                self._crashed = error
            del jobs  # their batches may be large, and the next job may be long in coming
            os.eventfd_write(self.eventfd, 1)

    def _run(self, job: DiskJob) -> Finished:
        begun_s = time.perf_counter()
        failure = job.run(self._fs)
        return Finished(job, failure, time.perf_counter() - begun_s)

    def stop(self) -> None:
        """End all threads once their jobs are done; the eventfd is closed."""
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self.eventfd)

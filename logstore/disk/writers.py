"""Threads that run disk jobs.

Invariants: `collect` returns every submitted job exactly once; one eventfd notifies the event loop, however many jobs
have finished. A thread hop here costs about a quarter of a hop through a general thread pool.
"""

import os
import threading
from collections import deque
from queue import SimpleQueue

from logstore.interfaces import FileSystem
from logstore.log.jobs import DiskJob, Operation

Finished = tuple[DiskJob, tuple[Operation, OSError] | None]


class WriterThreads:
    """A fixed number of threads that run jobs on one file system."""

    def __init__(self, fs: FileSystem, threads: int) -> None:
        self._fs = fs
        self._jobs: SimpleQueue[DiskJob | None] = SimpleQueue()
        self._finished: deque[Finished] = deque()
        self._crashed: BaseException | None = None
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads = [
            threading.Thread(target=self._work, name=f"cairn-writer-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: DiskJob) -> None:
        """Run a job on the next free thread."""
        self._jobs.put(job)

    def collect(self) -> list[Finished]:
        """The jobs finished since the last call; call it when the eventfd is readable.

        Raises the exception of a job that was not an OSError: a defect of the program, not of the disk.
        """
        os.eventfd_read(self.eventfd)
        if self._crashed is not None:
            raise self._crashed
        finished: list[Finished] = []
        while self._finished:
            finished.append(self._finished.popleft())
        return finished

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._finished.append((job, job.run(self._fs)))
            except BaseException as error:  # noqa: BLE001 handed to the loop's thread, which raises it
                self._crashed = error
            os.eventfd_write(self.eventfd, 1)

    def stop(self) -> None:
        """End all threads once their jobs are done; the eventfd is closed."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self.eventfd)

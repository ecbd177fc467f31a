"""Runs disk jobs on one thread, one operation at a time, in an order that real threads could produce.

Invariants: each job's operations run in order; the random generator chooses the job of the next step, so a seed repeats
a run; a job is finished right after its last operation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from logstore.interfaces import FileSystem
from logstore.log.jobs import DiskJob, JobQueue, Operation


@dataclass(slots=True)
class _Running:
    job: DiskJob
    next_operation: int = 0
    failure: tuple[Operation, OSError] | None = None

    @property
    def over(self) -> bool:
        return self.failure is not None or self.next_operation >= len(self.job.operations)


class JobDriver:
    """Steps through the jobs of a queue on a file system. Without `random` the oldest job runs first.

    `rewrite`, if given, may change each job's operations: tests plant bugs with it and check that they are found.
    """

    def __init__(
        self,
        queue: JobQueue,
        fs: FileSystem,
        random: Random | None = None,
        rewrite: Callable[[Sequence[Operation]], Sequence[Operation]] | None = None,
    ) -> None:
        self._rewrite = rewrite
        self._queue = queue
        self._fs = fs
        self._random = random
        self._running: list[_Running] = []

    def step(self) -> bool:
        """Start waiting jobs, run one operation of one job, finish the job after its last. False: no work."""
        while (job := self._queue.next_job()) is not None:
            if self._rewrite is not None:
                job.operations = self._rewrite(job.operations)
            self._running.append(_Running(job))
        if not self._running:
            return False
        running = self._running[0] if self._random is None else self._random.choice(self._running)
        if not running.over:
            operation = running.job.operations[running.next_operation]
            running.next_operation += 1
            try:
                operation.run(self._fs)
            except OSError as error:
                if operation.optional:
                    running.job.skipped.append((operation, error))
                else:
                    running.failure = (operation, error)
        if running.over:
            self._running.remove(running)
            self._queue.finished(running.job, running.failure)
        return True

    def run(self, steps: int | None = None) -> int:
        """Step until there is no work, or `steps` times. Returns the number of steps."""
        taken = 0
        while (steps is None or taken < steps) and self.step():
            taken += 1
        return taken


def run_jobs(queue: JobQueue, fs: FileSystem, random: Random | None = None) -> None:
    """Run all disk work, and the work that follows from it, on this thread."""
    JobDriver(queue, fs, random).run()

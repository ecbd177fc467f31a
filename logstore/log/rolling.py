"""Seals last chunks without an append: by age, and when all their records are trimmed.

Invariants:
* One stream at a time, in the order in which they were added: when the chunks of thousands of idle streams come of age
  at the same moment, appends to other streams wait for one of these jobs, not for all of them.
* A stream waits at most once. What could not be done is asked for again by the next check of retention.
"""

from collections.abc import Callable

from logstore.log.jobs import DiskJob, JobSource, Operation
from logstore.log.stream_state import RollingStream


class ChunkRoller:
    """The streams whose last chunk is to be sealed."""

    def __init__(self, notify: Callable[[JobSource], None]) -> None:
        self._notify = notify
        self._waiting: dict[RollingStream, None] = {}
        self._in_flight = False

    def add(self, stream: RollingStream) -> None:
        """Seal the stream's last chunk soon."""
        self._waiting.setdefault(stream)
        self._notify(self)

    def take_job(self) -> DiskJob | None:
        """The job of the next stream that has one, or None."""
        while self._waiting and not self._in_flight:
            stream = next(iter(self._waiting))
            del self._waiting[stream]
            job = stream.roll_job()
            if job is not None:
                self._in_flight = True
                return self._watched(job)
        return None

    def _watched(self, job: DiskJob) -> DiskJob:
        """The same job; when it ends, the next may begin."""

        def done() -> None:
            self._ended()
            job.done()

        def failed(operation: Operation, error: OSError) -> None:
            self._ended()
            job.failed(operation, error)

        return DiskJob(job.operations, done, failed, job.skipped)

    def _ended(self) -> None:
        self._in_flight = False
        if self._waiting:
            self._notify(self)

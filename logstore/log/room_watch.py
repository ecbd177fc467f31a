"""Whether the disk refuses what is written, as the ends of jobs tell; a full disk is reported once, and so is its end.

Invariant: a full disk has room again when as many bytes were written as it had refused: a small write may fit into an
allocated block.
"""

from logstore.base.events import Report
from logstore.events import DISK_FULL, DISK_FULL_OVER
from logstore.log.jobs import DiskJob, WriteFile
from logstore.log.space import SpaceGuard, is_full


class RoomWatch:
    """See the module. `space` hears of a full disk."""

    def __init__(self, space: SpaceGuard, report: Report) -> None:
        self._space = space
        self._report = report
        self._refused_bytes = 0
        self.error: str | None = None
        """Of the last job if the disk refused it; None once a job has succeeded again."""

    def ended(self, job: DiskJob, failure: OSError | None) -> None:
        """A job has ended."""
        if failure is None and self.error is None and not self._refused_bytes and not job.skipped:
            return  # the usual case
        written = sum(len(part) for step in job.operations if isinstance(step, WriteFile) for part in step.buffers)
        errors = [error for error in (failure, *(error for _, error in job.skipped)) if error is not None]
        if failure is not None:
            self.error = failure.strerror or str(failure)
        full = next((error for error in errors if is_full(error)), None)
        if full is not None:
            if not self._refused_bytes:
                self._report(DISK_FULL, error=full.strerror)
            self._space.refused()
            self._refused_bytes = max(1, written)
        elif self._refused_bytes and failure is None:
            self._refused_bytes = max(0, self._refused_bytes - written)
            if not self._refused_bytes:
                self._report(DISK_FULL_OVER)
        if self.error is not None and failure is None and written and not self._refused_bytes:
            self.error = None

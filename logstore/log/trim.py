"""Removing files that nothing needs any more, without holding up writes.

Invariants: whoever asks has made durable that the files are not needed, so a removal may fail, be lost in a crash or be
done twice; what is left over is removed when the stream is opened next.
"""

from collections import deque
from collections.abc import Callable, Sequence

from logstore.log.jobs import Job, JobSource, Operation, Remove, SyncDirectory

FILES_PER_JOB = 64
"""A long trim gives way to other work in between."""


class Remover:
    """Removes files of one directory, oldest first."""

    def __init__(self, directory: str, notify: Callable[[JobSource], None]) -> None:
        self._directory = directory
        self._notify = notify
        self._paths: deque[str] = deque()
        self._in_flight = False

    def remove(self, paths: Sequence[str]) -> None:
        """Remove these files some time soon."""
        self._paths.extend(paths)
        self._notify(self)

    def take_job(self) -> Job | None:
        """The next removals, or None."""
        if self._in_flight or not self._paths:
            return None
        operations: list[Operation] = []
        while self._paths and len(operations) < FILES_PER_JOB:
            operations.append(Remove(self._paths.popleft(), optional=True))
        operations.append(SyncDirectory(self._directory, optional=True))
        self._in_flight = True
        return Job(operations, self._done, lambda *_: self._done())

    def _done(self) -> None:
        self._in_flight = False
        if self._paths:
            self._notify(self)

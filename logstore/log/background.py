"""Disk work other than stream writes: directories to create, trees and files to remove, staged data to read back.

Invariants:
* The jobs of one `BackgroundJobs` run one after the other, in the order of the calls; each settles its own ticket.
* Before a caller removes a file, a durable record shows that the file is not needed. So a removal may fail, be lost in
  a crash or be done twice; the next opening of the stream removes files that are left over.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from logstore.errors import StorageFailed
from logstore.log.jobs import DiskJob, JobSource, Operation, RemoveFile, SyncDirectory
from logstore.log.ticket import Ticket

FILES_PER_JOB: Final = 64
"""A long removal lets other work run in between."""


class BackgroundJobs:
    """A queue of operations to run."""

    def __init__(self, notify: Callable[[JobSource], None]) -> None:
        self._notify = notify
        self._waiting: deque[tuple[Sequence[Operation], Ticket[None]]] = deque()
        self._in_flight = False

    def run(self, operations: Sequence[Operation]) -> Ticket[None]:
        """Run operations in order; the ticket fails with StorageFailed at the first operation that fails."""
        ticket: Ticket[None] = Ticket()
        self._waiting.append((operations, ticket))
        self._notify(self)
        return ticket

    def take_job(self) -> DiskJob | None:
        """The next job, or None."""
        if self._in_flight or not self._waiting:
            return None
        self._in_flight = True
        operations, ticket = self._waiting.popleft()

        def done() -> None:
            self._next()
            ticket.succeed(None)

        def failed(operation: Operation, error: OSError) -> None:
            self._next()
            ticket.fail(StorageFailed(f"{type(operation).__name__}: {error.strerror or error}"))

        return DiskJob(operations, done, failed)

    def _next(self) -> None:
        self._in_flight = False
        if self._waiting:
            self._notify(self)


class FileRemover:
    """Removes files of one directory, oldest first, without blocking writes."""

    def __init__(self, directory: str, notify: Callable[[JobSource], None]) -> None:
        self._directory = directory
        self._notify = notify
        self._paths: deque[str] = deque()
        self._in_flight = False

    def remove(self, paths: Sequence[str]) -> None:
        """Remove these files in the background."""
        self._paths.extend(paths)
        self._notify(self)

    def take_job(self) -> DiskJob | None:
        """The next removals, or None."""
        if self._in_flight or not self._paths:
            return None
        operations: list[Operation] = []
        while self._paths and len(operations) < FILES_PER_JOB:
            operations.append(RemoveFile(self._paths.popleft(), optional=True))
        operations.append(SyncDirectory(self._directory, optional=True))
        self._in_flight = True
        return DiskJob(operations, self._done, lambda *_: self._done())

    def _done(self) -> None:
        self._in_flight = False
        if self._paths:
            self._notify(self)

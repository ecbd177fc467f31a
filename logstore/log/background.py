"""Disk work other than stream writes: directories to create, trees and files to remove, staged data to read back.

Invariants:
* The jobs of one `BackgroundJobs` run one after the other, in the order of the calls; each settles its own ticket.
* Before a caller removes a file, a durable record shows that the file is not needed. So a removal may fail, be lost in
  a crash or be done twice; the next opening of the stream removes files that are left over.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from logstore.errors import StorageFailed
from logstore.interfaces import FileSystem
from logstore.log.jobs import DiskJob, JobSource, Operation, RemoveFile, SyncDirectory, WorkOnFile
from logstore.log.ticket import Ticket

DIRECTORIES_PER_JOB: Final = 256
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
            reason = StorageFailed(f"{type(operation).__name__}: {error.strerror or error}")
            reason.__cause__ = error
            ticket.fail(reason)

        return DiskJob(operations, done, failed)

    def _next(self) -> None:
        self._in_flight = False
        if self._waiting:
            self._notify(self)


class DirectoryMaker:
    """Makes directories; those that are asked for while others are made share a sync of their parent."""

    def __init__(self, notify: Callable[[JobSource], None]) -> None:
        self._notify = notify
        self._waiting: list[tuple[str, Ticket[None]]] = []
        self._in_flight = False

    def make(self, path: str) -> Ticket[None]:
        """Settles once the directory is there and its name is durable; fails with StorageFailed."""
        ticket: Ticket[None] = Ticket()
        self._waiting.append((path, ticket))
        self._notify(self)
        return ticket

    def take_job(self) -> DiskJob | None:
        """The next directories, or None."""
        if self._in_flight or not self._waiting:
            return None
        self._in_flight = True
        batch, self._waiting = self._waiting[:DIRECTORIES_PER_JOB], self._waiting[DIRECTORIES_PER_JOB:]
        refused: dict[str, OSError] = {}

        def work(fs: FileSystem) -> None:
            for path, _ in batch:
                try:
                    fs.make_directory(path)
                except OSError as error:
                    refused[path] = error  # of one topic, which may be gone; the others' are made
            for parent in {path.rpartition("/")[0]: None for path, _ in batch if path not in refused}:
                try:
                    fs.sync_directory(parent)
                except OSError as error:
                    refused.update({path: error for path, _ in batch if path.rpartition("/")[0] == parent})

        return DiskJob([WorkOnFile("", work)], lambda: self._made(batch, refused), lambda *_: None)

    def _made(self, batch: Sequence[tuple[str, Ticket[None]]], refused: Mapping[str, OSError]) -> None:
        self._in_flight = False
        if self._waiting:
            self._notify(self)
        for path, ticket in batch:
            error = refused.get(path)
            if error is None:
                ticket.succeed(None)
            else:
                ticket.fail(StorageFailed(f"{path}: {error.strerror or error}"))


class FileRemover:
    """Removes files of one directory, oldest first, without blocking writes."""

    def __init__(self, directory: str, notify: Callable[[JobSource], None]) -> None:
        self._directory = directory
        self._notify = notify
        self._paths: list[str] = []
        self._in_flight = False

    @property
    def is_idle(self) -> bool:
        """Whether no removal waits or is in flight."""
        return not self._paths and not self._in_flight

    def remove(self, paths: Sequence[str]) -> None:
        """Remove these files in the background."""
        self._paths.extend(paths)
        self._notify(self)

    def take_job(self) -> DiskJob | None:
        """The next removals, or None."""
        if self._in_flight or not self._paths:
            return None
        operations: list[Operation] = [RemoveFile(path, optional=True) for path in self._paths[:FILES_PER_JOB]]
        del self._paths[:FILES_PER_JOB]
        operations.append(SyncDirectory(self._directory, optional=True))
        self._in_flight = True
        return DiskJob(operations, self._done, lambda *_: self._done())

    def _done(self) -> None:
        self._in_flight = False
        if self._paths:
            self._notify(self)

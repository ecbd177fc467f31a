"""Disk work as data: state machines ask for jobs, and an executor (threads, or a simulated disk) runs them.

Invariants:
* A job's operations run in order, on one thread; the first operation that fails ends the job, unless it is `optional`.
* A job ends exactly once, with `DiskJob.done` or `DiskJob.failed`, on the event loop's thread.
* Every source has at most one job in flight, so two writes to the same file never wait for each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from logstore.interfaces import Buffer, FileSystem


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write buffers at a position. `optional`: the data is derived, so a failure costs only a rebuild."""

    path: str
    position: int
    buffers: Sequence[Buffer]
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.write(self.path, self.position, self.buffers)


@dataclass(frozen=True, slots=True)
class Create:
    """Make an empty file."""

    path: str
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.create(self.path)


@dataclass(frozen=True, slots=True)
class Sync:
    """Make a file's data durable."""

    path: str
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.sync(self.path)


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """Make a directory's names durable."""

    path: str
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.sync_directory(self.path)


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut a file."""

    path: str
    size_bytes: int
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.truncate(self.path, self.size_bytes)


@dataclass(frozen=True, slots=True)
class Rename:
    """Rename a file."""

    source: str
    target: str
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.rename(self.source, self.target)


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove a file."""

    path: str
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.remove(self.path)


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make a directory."""

    path: str
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.make_directory(self.path)


@dataclass(frozen=True, slots=True)
class RemoveDirectory:
    """Remove an empty directory."""

    path: str
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        fs.remove_directory(self.path)


@dataclass(frozen=True, slots=True)
class Read:
    """Read up to `length` bytes and append them to `into` (fewer bytes only at the end of the file)."""

    path: str
    position: int
    length: int
    into: list[bytes]
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        self.into.append(fs.read(self.path, self.position, self.length))


@dataclass(frozen=True, slots=True)
class WorkOnFile:
    """Any bounded work that reads files and writes `path`. `work` raises no other errors than OSError."""

    path: str
    work: Callable[[FileSystem], None]
    optional: bool = False

    def run(self, fs: FileSystem) -> None:
        """Run the operation on `fs`. Raises OSError."""
        self.work(fs)


Operation = (
    WorkOnFile
    | WriteFile
    | Create
    | Sync
    | SyncDirectory
    | Truncate
    | Rename
    | RemoveFile
    | MakeDirectory
    | RemoveDirectory
    | Read
)


@dataclass(slots=True)
class DiskJob:
    """Operations to run in order, and the callbacks for the outcome.

    `failed` gets the operation that failed and its error; the operations after it did not run. `is_short`: the job is
    small, and others wait for it.
    """

    operations: Sequence[Operation]
    done: Callable[[], None]
    failed: Callable[[Operation, OSError], None]
    skipped: list[tuple[Operation, OSError]] = field(default_factory=list)
    is_short: bool = False

    @property
    def is_light(self) -> bool:
        """Whether the job is one write that nobody waits to be synced: the kernel takes the bytes, and that is all."""
        return len(self.operations) == 1 and isinstance(self.operations[0], WriteFile)

    @property
    def is_synced(self) -> bool:
        """Whether the job makes data durable, which somebody waits for."""
        operations = self.operations
        is_last = bool(operations) and isinstance(operations[-1], Sync)  # of nearly all: it is asked of each job
        return is_last or any(isinstance(operation, Sync) for operation in operations)

    def run(self, fs: FileSystem) -> tuple[Operation, OSError] | None:
        """Run the operations on `fs` (any thread). Returns the failure to report, or None.

        Failures of optional operations are kept in `skipped`; the operations after them still run.
        """
        for operation in self.operations:
            try:
                operation.run(fs)
            except OSError as error:
                if not operation.optional:
                    return operation, error
                self.skipped.append((operation, error))
        return None


class JobSource(Protocol):
    """An object that may have disk work: a stream, a ledger, a staged attempt."""

    def take_job(self) -> DiskJob | None:
        """The next job, or None if there is none now or one is in flight."""


class JobQueue:
    """The sources that have work, first come first served, with at most `io_window` jobs in flight in total.

    The executor calls `next_job` until it returns None, runs the jobs on any thread, and calls `finished` for each.
    """

    def __init__(self, io_window: int) -> None:
        self._io_window = io_window
        self._ready: dict[JobSource, None] = {}
        self.in_flight = 0

    def ready(self, source: JobSource) -> None:
        """Note that `source` may have work."""
        self._ready.setdefault(source)

    def next_job(self) -> DiskJob | None:
        """The next job to run, or None if there is no work or the window is full."""
        while self._ready and self.in_flight < self._io_window:
            source = next(iter(self._ready))
            del self._ready[source]
            job = source.take_job()
            if job is not None:
                self.in_flight += 1
                return job
        return None

    def finished(self, job: DiskJob, failure: "tuple[Operation, OSError] | None") -> None:
        """Finish a job with the outcome that `DiskJob.run` returned."""
        self.in_flight -= 1
        if failure is None:
            job.done()
        else:
            job.failed(*failure)

    @property
    def may_start(self) -> bool:
        """Whether `next_job` may have a job."""
        return bool(self._ready) and self.in_flight < self._io_window

    @property
    def idle(self) -> bool:
        """Whether no job is in flight and no source is ready."""
        return self.in_flight == 0 and not self._ready

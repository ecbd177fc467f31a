"""A small durable map: topics, commit records of epochs, committed offsets.

Invariants:
* A `put` is atomic; its ticket settles once the change is synced. Puts made while a write is in flight share the next
  write.
* `get` sees a put at once. If the disk refuses, all puts that are not synced are undone and their tickets fail. The
  next put starts a new file with the whole map, because nothing may be written after bytes whose state is unknown.
* One file is current at a time, `NAME.GENERATION`; a new one is written beside it, synced and renamed before the old
  one is removed. Bounded: a file is rewritten when it has grown to twice the live bytes of its first frame.

A ledger does not interpret its keys and values.
"""

from collections.abc import Callable, Iterator, Mapping

from logstore.errors import CorruptFile, StorageFailed
from logstore.format.ledger_frame import KIND_CHANGES, KIND_SNAPSHOT, LedgerFrame, encode_frame, scan_frames
from logstore.interfaces import FileSystem
from logstore.log.jobs import (
    Create,
    DiskJob,
    JobSource,
    Operation,
    RemoveFile,
    Rename,
    Sync,
    SyncDirectory,
    WorkOnFile,
    WriteFile,
)
from logstore.log.ticket import Ticket

DIRECTORY = "ledger"
LedgerChanges = Mapping[str, bytes | None]
"""Keys and their new values; None: the key is deleted."""
_DIGITS = 20
ROLL_BYTES = 1 << 20
"""A smaller file is not worth rewriting."""


class Ledger:
    """A durable map from text to bytes, kept in memory and in an append-only file."""

    def __init__(self, name: str, notify: Callable[[JobSource], None]) -> None:
        self.name = name
        self._notify = notify
        self._durable: dict[str, bytes] = {}
        self._visible: dict[str, bytes] = {}
        self._pending: list[tuple[LedgerChanges, Ticket[None]]] = []
        self._generation = 0
        self._size_bytes = 0
        self._roll_at_bytes = ROLL_BYTES
        self._must_roll = True
        self._in_flight = False

    @classmethod
    def open(cls, fs: FileSystem, name: str, notify: Callable[[JobSource], None]) -> "Ledger":
        """Recover the ledger from its newest file.

        Raises CorruptFile if durable data is damaged, UnknownFormatVersion if a newer version wrote it.
        """
        ledger = cls(name, notify)
        generations = _generations(fs, name)
        if generations:
            path = _path(name, generations[-1])
            data, end = ledger._load(fs, generations[-1])
            if end < len(data):
                fs.truncate(path, end)
            # Write the data again: pages whose sync failed in the last life read correctly, but no sync writes them.
            fs.write(path, 0, [data[:end]])
            fs.sync(path)
            ledger._must_roll = False
            ledger._roll_at_bytes = max(ROLL_BYTES, 2 * sum(len(k) + len(v) for k, v in ledger._durable.items()))
        ledger._sweep(fs, generations)
        return ledger

    @classmethod
    def look(cls, fs: FileSystem, name: str) -> "Ledger":
        """What `open` would recover, to be read only: nothing on the disk is changed. Raises what `open` raises."""

        def refuse(_: JobSource) -> None:
            raise AssertionError(f"ledger {name} was opened to be read only")

        ledger = cls(name, refuse)
        generations = _generations(fs, name)
        if generations:
            ledger._load(fs, generations[-1])
        return ledger

    def _load(self, fs: FileSystem, generation: int) -> tuple[bytes, int]:
        """Take what a file has; returns its bytes, and how many of them are whole frames."""
        path = _path(self.name, generation)
        data = fs.read(path, 0, fs.size(path))
        scan = scan_frames(data, path)
        if not scan.frames or scan.frames[0].kind != KIND_SNAPSHOT:
            # The file gets its name only after its snapshot is synced: an unreadable snapshot was damaged later.
            raise CorruptFile(f"{path}: its snapshot is damaged; restore the file from a copy")
        for frame in scan.frames:
            _apply(self._durable, frame.changes)
        self._visible = dict(self._durable)
        self._generation, self._size_bytes = generation, scan.end
        return data, scan.end

    def _sweep(self, fs: FileSystem, generations: list[int]) -> None:
        """Make the current file's name durable, then remove files that earlier lives left.

        A kill may have come between the rename of the current file and the sync of the directory: without the first
        sync, a power cut could keep the removals and lose the name.
        """
        fs.sync_directory(DIRECTORY)
        for generation in generations:
            if generation != self._generation:
                fs.remove(_path(self.name, generation))
        for name in fs.list_directory(DIRECTORY):
            if name.startswith(f"{self.name}.") and name.endswith(".new"):
                fs.remove(f"{DIRECTORY}/{name}")
        fs.sync_directory(DIRECTORY)

    def get(self, key: str) -> bytes | None:
        """The value of `key`, including puts that are not synced yet."""
        return self._visible.get(key)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """All pairs whose key starts with `prefix`, unordered; a copy, so the ledger may change meanwhile."""
        return iter([pair for pair in self._visible.items() if pair[0].startswith(prefix)])

    def put(self, changes: LedgerChanges) -> Ticket[None]:
        """Set keys (None deletes), all or nothing. The ticket fails with StorageFailed if the disk refuses."""
        ticket: Ticket[None] = Ticket()
        _apply(self._visible, changes)
        self._pending.append((changes, ticket))
        self._notify(self)
        return ticket

    def put_now(self, fs: FileSystem, changes: LedgerChanges) -> None:
        """Make changes durable at a start, when no job runs yet. Blocks. Raises OSError."""
        self.put(changes)
        job = self.take_job()
        if job is None:
            raise AssertionError("at a start no write is in flight")
        failure = job.run(fs)
        if failure is not None:
            raise failure[1]
        job.done()

    def take_job(self) -> DiskJob | None:
        """The next write, or None."""
        if self._in_flight or not self._pending:
            return None
        self._in_flight = True
        batch, self._pending = self._pending, []
        if self._must_roll or self._size_bytes > self._roll_at_bytes:
            return self._roll_job(batch)
        merged: dict[str, bytes | None] = {}
        for changes, _ in batch:
            merged.update(changes)
        frame = encode_frame(LedgerFrame(KIND_CHANGES, self._size_bytes, merged))
        path = _path(self.name, self._generation)
        operations: list[Operation] = [WriteFile(path, self._size_bytes, [frame]), Sync(path)]
        generation, size_bytes = self._generation, self._size_bytes + len(frame)
        return DiskJob(operations, lambda: self._written(batch, generation, size_bytes), self._failer(batch))

    def _roll_job(self, batch: list[tuple[LedgerChanges, Ticket[None]]]) -> DiskJob:
        generation = self._generation + 1
        # Encoded by the job, on its thread: a million entries take seconds.
        entries, sizes = dict(self._visible), list[int]()

        def write(fs: FileSystem) -> None:
            frame = encode_frame(LedgerFrame(KIND_SNAPSHOT, 0, entries))
            sizes.append(len(frame))
            fs.write(new, 0, [frame])

        path, new = _path(self.name, generation), f"{_path(self.name, generation)}.new"
        operations: list[Operation] = [
            Create(new),
            WorkOnFile(new, write),
            Sync(new),
            Rename(new, path),
            SyncDirectory(DIRECTORY),
            RemoveFile(_path(self.name, self._generation), optional=True),
        ]
        return DiskJob(operations, lambda: self._written(batch, generation, sizes[-1]), self._failer(batch))

    def _written(self, batch: list[tuple[LedgerChanges, Ticket[None]]], generation: int, size_bytes: int) -> None:
        self._in_flight = False
        self._must_roll = False
        if generation != self._generation:
            self._roll_at_bytes = max(ROLL_BYTES, 2 * size_bytes)
        self._generation, self._size_bytes = generation, size_bytes
        for changes, _ in batch:
            _apply(self._durable, changes)
        if self._pending:
            self._notify(self)
        for _, ticket in batch:
            ticket.succeed(None)

    def _failer(self, batch: list[tuple[LedgerChanges, Ticket[None]]]) -> Callable[[Operation, OSError], None]:
        def failed(operation: Operation, error: OSError) -> None:
            self._in_flight = False
            self._must_roll = True
            # The new name may exist (the rename was done, the directory sync failed): never write this name again.
            self._generation += 1 if isinstance(operation, SyncDirectory) else 0
            behind, self._pending = self._pending, []
            self._visible = dict(self._durable)
            for _, ticket in batch + behind:
                ticket.fail(StorageFailed(f"ledger {self.name}: {error.strerror or error}"))

        return failed


def _apply(state: dict[str, bytes], changes: LedgerChanges) -> None:
    for key, value in changes.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


def _path(name: str, generation: int) -> str:
    return f"{DIRECTORY}/{name}.{generation:0{_DIGITS}d}"


def _generations(fs: FileSystem, name: str) -> list[int]:
    prefix = f"{name}."
    tails = [entry[len(prefix) :] for entry in fs.list_directory(DIRECTORY) if entry.startswith(prefix)]
    return sorted(int(tail) for tail in tails if len(tail) == _DIGITS and tail.isdigit())

"""A query's directory of shared state on this host: who uses it, what is in it, and its end.

`<root>/<query>/lock` is touched and locked in shared mode by every process while it uses the directory. The process
that gets the exclusive lock may remove the directory. After locking, a process checks that the file is still in place.
Below it are one directory per partition, with a segment (`base`) and deltas.

Invariants:
* Nothing is used in a root that belongs to another user, or that others can write to.
* Names of queries and attempts become file names: what is special is escaped, what is too long is hashed.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from spe_adapter.state.errors import StateBusy, StateDirectoryRefused
from spe_adapter.state.files import StateEnvironment, is_in_place, lock, open_file
from spe_adapter.state.segment import APPLYING, Tag, peek, segment_bytes

LOCK_NAME: Final = "lock"
BASE_NAME: Final = "base"
DELTA_SUFFIX: Final = ".delta"
PARTITION_PREFIX: Final = "p"
_MAX_NAME_BYTES: Final = 200
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - what is made in it is for one user, and checked
_TRIES: Final = 100
_BLOCK_BYTES: Final = 512
"""The unit of st_blocks."""
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def default_root() -> Path:
    """Where shared state lies unless told otherwise: one directory per user, in memory or, where there is no shared
    memory, among temporary files.
    """
    return (_MEMORY if os.access(_MEMORY, os.W_OK) else Path(gettempdir())) / f"cairn-{os.getuid()}"


class StateFile(NamedTuple):
    """A file of shared state: whose, which version, and the memory it takes."""

    query: str
    partition: int
    version: str
    bytes: int


class QueryDirectory:
    """The directory of one query."""

    def __init__(self, root: Path, query: str, environment: StateEnvironment, lock_limit_s: float) -> None:
        self.query = query
        self.path = root / _escaped(query)
        self._root = root
        self._environment = environment
        self._lock_limit_s = lock_limit_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """Use the directory, which is made if need be. Raises StateDirectoryRefused or StateBusy."""
        descriptor = self._enter()
        try:
            yield
        finally:
            os.close(descriptor)

    def partition(self, partition: int) -> Path:
        """The directory of a partition, which is made if need be."""
        path = self.path / f"{PARTITION_PREFIX}{partition}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def base(self, partition: int) -> Path:
        """Where the base of a partition is, if there is one."""
        return self.path / f"{PARTITION_PREFIX}{partition}" / BASE_NAME

    def size_bytes(self) -> int:
        """The memory that all files take."""
        return sum(size_bytes for _, size_bytes in _sizes_of(self.path))

    def copies_bytes(self) -> int:
        """The memory of copies of frozen pages: they go with the checkpoint that is being written."""
        copies = 0
        for path in self.path.glob(f"{PARTITION_PREFIX}*/{BASE_NAME}"):
            descriptor = open_file(path)
            if descriptor is None:
                continue
            try:
                size_bytes = segment_bytes(descriptor)
                if size_bytes is not None:
                    copies += os.fstat(descriptor).st_size - size_bytes
            finally:
                os.close(descriptor)
        return copies

    def remove(self) -> bool:
        """Remove the directory and all in it; False if another process still uses it."""
        path = self.path / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        try:
            if not lock(descriptor, self._environment, self._lock_limit_s, exclusive=True):
                return False
            if is_in_place(path, descriptor):
                self._empty()
            return True
        finally:
            os.close(descriptor)

    def _empty(self) -> None:
        # The lock is removed last: while it exists, other processes wait for this one.
        for directory in self.path.glob(f"{PARTITION_PREFIX}*"):
            for path in directory.iterdir():
                path.unlink(missing_ok=True)
            directory.rmdir()
        (self.path / LOCK_NAME).unlink()
        with suppress(OSError):  # another process created it again
            self.path.rmdir()

    def _enter(self) -> int:
        for _ in range(_TRIES):
            self._make_root()
            path = self.path / LOCK_NAME
            try:
                self.path.mkdir(mode=0o700, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except (FileNotFoundError, FileExistsError):  # mkdir says the latter if the directory goes meanwhile
                continue
            if not lock(descriptor, self._environment, self._lock_limit_s, exclusive=False):
                os.close(descriptor)
                raise StateBusy(f"{path} is locked: another process has been removing this query's state for long")
            if is_in_place(path, descriptor):
                os.utime(descriptor)
                return descriptor
            os.close(descriptor)
        raise StateBusy(f"{self.path} is removed again and again while it is opened")

    def _make_root(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self._root.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
            raise StateDirectoryRefused(
                f"{self._root} belongs to another user, or others can write to it; remove it, or name another "
                "directory with the option 'stateDirectory'"
            )


def delta_name(tag: Tag) -> str:
    """The file name of an attempt's delta; they sort by epoch."""
    return f"{tag.epoch:020d}-{_escaped(tag.attempt)}{DELTA_SUFFIX}"


def epoch_of_delta(name: str) -> int | None:
    """The epoch in such a file name, None if it is none."""
    digits = name.partition("-")[0]
    return int(digits) if name.endswith(DELTA_SUFFIX) and digits.isdigit() else None


def usage(root: Path | None = None) -> list[StateFile]:
    """What queries hold in a root (default: this user's), by query, partition and version."""
    root = default_root() if root is None else Path(root)
    if not root.is_dir():
        return []
    return sorted(used for path in root.iterdir() if not path.name.startswith(".") for used in _files_of(path))


def _files_of(directory: Path) -> Iterator[StateFile]:
    query = unquote(directory.name)
    for name, size_bytes in _sizes_of(directory):
        path = Path(name)
        digits = path.parent.name.removeprefix(PARTITION_PREFIX)
        yield StateFile(query, int(digits) if digits.isdigit() else -1, _version_of(path), size_bytes)


def _sizes_of(directory: Path) -> Iterator[tuple[str, int]]:
    """All files of a query, with the memory each takes; those that go meanwhile are left out."""
    for partition in _entries(directory):
        if not partition.name.startswith(PARTITION_PREFIX):
            continue
        for entry in _entries(partition):
            with suppress(FileNotFoundError):
                yield entry.path, entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES


def _entries(directory: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _version_of(path: Path) -> str:
    if path.name != BASE_NAME:
        return path.name
    header = peek(path)
    if header is None or header.tag is None:
        return "empty" if header is not None else "damaged"
    version = f"{header.tag.epoch} of attempt {header.tag.attempt}"
    return f"{version}, changing" if header.state == APPLYING else version


def _escaped(name: str) -> str:
    escaped = quote(name, safe="")
    if len(escaped) > _MAX_NAME_BYTES:
        return sha256(name.encode()).hexdigest()
    return "%2E" + escaped[1:] if escaped.startswith(".") else escaped

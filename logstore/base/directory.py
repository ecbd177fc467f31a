"""A data directory: made durably, and locked for one process.

Invariants: the lock is the operating system's (`flock`), so it ends with its process, also after kill −9; the lock file
holds the process id of its owner.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from logstore.base.errors import DirectoryInUse

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
LOCK_FILE: Final = "lock"
_OWNER_BYTES: Final = 32


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents; the names of all of them are durable. Raises OSError."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
    for directory in missing:
        sync_directory(directory.parent)


@contextmanager
def locked_directory(path: Path, program: str) -> Iterator[None]:
    """Lock a data directory for this process; makes the directory if it is missing.

    `program` is the noun for its owner in messages, such as "sidecar". Raises DirectoryInUse if another process holds
    the lock, OSError if the directory cannot be made or written.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, not a directory; choose another --data-dir", str(path))
    make_directory(path)
    descriptor = os.open(path / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(descriptor, _OWNER_BYTES, 0).decode(errors="replace").strip() or "unknown"
            raise DirectoryInUse(
                f"{path} is in use by another {program} (process {owner}); stop it or choose another --data-dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def watched_directory(path: Path) -> Iterator[bool]:
    """Keep other processes from locking a data directory while it is read; whether that was possible.

    False: a process holds it, and may change it. Several may watch a directory at once. Nothing is made or written:
    a directory without a lock file, such as a copy, is nobody's. Raises OSError.
    """
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)

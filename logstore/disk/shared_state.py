"""Removal of the directories that streaming queries leave in shared memory and that no process uses any more.

Below one root, each query has a directory with a file `lock`. A process that uses the directory holds a shared lock
(flock) on that file and touches the file now and then. The sidecar tries an exclusive lock on files that were not
touched for long: if it gets the lock, no process uses the directory, and the sidecar removes it. docs/operations.md has
the rule for both sides.

Invariants:
* No file outside the root is touched: every step is relative to an open directory and follows no symbolic link.
* A root that belongs to another user is refused; a query directory that does is skipped.
* A directory is renamed under the exclusive lock before its contents are removed: a process that arrives at that moment
  finds that the file it has locked is no longer the one in place, and creates the directory again.
* A removal that was interrupted is finished by the next sweep.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import NamedTuple

from logstore.base.clock import Clock

LOCK_NAME = "lock"
GONE_PREFIX = ".reclaimed."
"""Prefix of directories that are being removed; no query's directory name starts with it."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_MODE = 0o600
MAX_COUNTED_FILES = 20_000
"""Files that `usage` looks at: a tenth of a second."""


class Reclaimed(NamedTuple):
    """A query's directory that was removed, and the bytes it had used."""

    query: str
    freed_bytes: int


class Kept(NamedTuple):
    """A directory that should have been removed but could not be; `name` is empty for the root itself."""

    name: str
    why: str


class SharedState:
    """The queries' directories below one root. Methods block."""

    def __init__(self, root: str, idle_ms: int, clock: Clock) -> None:
        self.root = root
        self._idle_ms = idle_ms
        self._clock = clock
        self._removals = 0

    def sweep(self) -> list[Reclaimed | Kept]:
        """Remove directories unused and untouched for `idle_ms`; returns the removed ones and the failures."""
        try:
            root = os.open(self.root, _DIRECTORY)
        except FileNotFoundError:
            return []
        except OSError as error:
            return [Kept("", f"{self.root}: {error.strerror}")]
        try:
            if os.fstat(root).st_uid != os.geteuid():
                return [Kept("", f"{self.root} belongs to another user")]
            found = [self._look(root, name) for name in sorted(os.listdir(root))]
            return [outcome for outcome in found if outcome is not None]
        finally:
            os.close(root)

    def usage(self) -> dict[str, int]:
        """Bytes in use by query, of at most MAX_COUNTED_FILES files; empty if the root is missing or another user's."""
        try:
            root = os.open(self.root, _DIRECTORY)
        except OSError:
            return {}
        found: dict[str, int] = {}
        left = MAX_COUNTED_FILES
        try:
            if os.fstat(root).st_uid != os.geteuid():
                return {}
            for name in sorted(os.listdir(root)):
                if name.startswith(GONE_PREFIX) or left <= 0:
                    continue
                with suppress(OSError), _directory(root, name) as query:
                    if query is not None:
                        sizes = list(islice(_sizes(query), left))
                        found[name] = sum(sizes)
                        left -= len(sizes)
        finally:
            os.close(root)
        return found

    def _look(self, root: int, name: str) -> Reclaimed | Kept | None:
        try:
            if name.startswith(GONE_PREFIX):
                _remove_tree(root, name)
                return None
            with _directory(root, name) as query:
                return None if query is None else self._reclaim(root, name, query)
        except FileNotFoundError:
            return None  # another sidecar of this user removed it first
        except OSError as error:
            return Kept(name, f"{error.strerror or error}")

    def _reclaim(self, root: int, name: str, query: int) -> Reclaimed | None:
        """Remove a query's directory if no process uses it."""
        if self._is_fresh(os.fstat(query)) and not _exists(query, LOCK_NAME):
            return None  # being created at this moment
        lock = os.open(LOCK_NAME, _LOCK, _LOCK_MODE, dir_fd=query)
        try:
            if self._is_fresh(os.fstat(lock)):
                return None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            # Between check and lock a process may have used and touched the file; or another sidecar removed it.
            if self._is_fresh(os.fstat(lock)) or not _in_place(root, name, lock):
                return None
            self._removals += 1
            gone = f"{GONE_PREFIX}{os.getpid()}.{self._removals}"
            os.rename(name, gone, src_dir_fd=root, dst_dir_fd=root)
            return Reclaimed(name, _remove_tree(root, gone))
        finally:
            os.close(lock)

    def _is_fresh(self, status: os.stat_result) -> bool:
        return status.st_mtime_ns // 1_000_000 + self._idle_ms > self._clock.wall_ms()


@contextmanager
def _directory(root: int, name: str) -> Iterator[int | None]:
    """A descriptor of a directory of this user in the root; None for anything else."""
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=root)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            yield None
            return
        raise
    try:
        yield descriptor if os.fstat(descriptor).st_uid == os.geteuid() else None
    finally:
        os.close(descriptor)


def _sizes(query: int) -> Iterator[int]:
    """Bytes in use by each file below an open directory; a file that goes meanwhile is passed over."""
    for _, _, files, descriptor in os.fwalk(".", follow_symlinks=False, dir_fd=query):
        for name in files:
            with suppress(OSError):
                yield os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512


def _exists(directory: int, name: str) -> bool:
    return name in os.listdir(directory)


def _in_place(root: int, name: str, lock: int) -> bool:
    """Whether the open lock file is the one below this name."""
    found = os.stat(f"{name}/{LOCK_NAME}", dir_fd=root, follow_symlinks=False)
    held = os.fstat(lock)
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


def _remove_tree(root: int, name: str) -> int:
    """Remove a directory and its contents; returns the bytes it had used. A missing file is no error."""
    freed_bytes = 0
    for _, directories, files, descriptor in os.fwalk(name, topdown=False, follow_symlinks=False, dir_fd=root):
        for inner in (*files, *directories):
            freed_bytes += _remove(descriptor, inner)
    try:
        os.rmdir(name, dir_fd=root)
    except FileNotFoundError:
        return freed_bytes
    return freed_bytes


def _remove(directory: int, name: str) -> int:
    """Remove a file, a link or an empty directory; returns the bytes it had used."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            os.rmdir(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if status.st_nlink == 1 else 0

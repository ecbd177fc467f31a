"""What streaming queries leave in shared memory: directories of queries that nobody uses any more, and their removal.

Below one root, each query has a directory with a file `lock`. Whoever uses the directory holds a shared lock (flock) on
that file and touches it now and then. The sidecar takes an exclusive lock on those that were not touched for long: if
it gets it, nobody uses the directory, and it goes. docs/operations.md has the rule for both sides.

Invariants:
* Nothing outside the root is touched: every step is relative to an open directory and follows no symbolic link.
* A root that belongs to another user is refused, and so is every query directory that does.
* A directory is renamed before its contents go, under the exclusive lock: whoever comes at that moment finds that the
  file it has locked is no longer the one in place, and makes the directory anew.
* A removal that was interrupted is finished by the next sweep.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from logstore.interfaces import Clock

LOCK_NAME = "lock"
GONE_PREFIX = ".reclaimed."
"""Names that begin so are directories on their way out; no query's does."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_MODE = 0o600


class Reclaimed(NamedTuple):
    """A query's directory that went, and the bytes it had taken."""

    query: str
    freed_bytes: int


class Kept(NamedTuple):
    """Something that should have gone and could not; `name` is empty for the root itself."""

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
        """Remove what nobody uses and nobody has touched for `idle_ms`; what went, and what could not."""
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

    def _look(self, root: int, name: str) -> Reclaimed | Kept | None:
        try:
            if name.startswith(GONE_PREFIX):
                _remove_tree(root, name)
                return None
            with _directory(root, name) as query:
                return None if query is None else self._reclaim(root, name, query)
        except FileNotFoundError:
            return None  # another sidecar of this user was faster
        except OSError as error:
            return Kept(name, f"{error.strerror or error}")

    def _reclaim(self, root: int, name: str, query: int) -> Reclaimed | None:
        """Remove a query's directory, if nobody uses it."""
        if self._is_fresh(os.fstat(query)) and not _exists(query, LOCK_NAME):
            return None  # being made at this moment
        lock = os.open(LOCK_NAME, _LOCK, _LOCK_MODE, dir_fd=query)
        try:
            if self._is_fresh(os.fstat(lock)):
                return None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            # Between the look and the lock somebody may have come, touched it and gone; or another sidecar removed it.
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
    """A directory of this user in the root; None for anything else."""
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


def _exists(directory: int, name: str) -> bool:
    return name in os.listdir(directory)


def _in_place(root: int, name: str, lock: int) -> bool:
    """Whether the lock file that is open is the one below that name."""
    found = os.stat(f"{name}/{LOCK_NAME}", dir_fd=root, follow_symlinks=False)
    held = os.fstat(lock)
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


def _remove_tree(root: int, name: str) -> int:
    """Remove a directory and all below it; the bytes it had taken. What is gone already is no error."""
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
    """Remove a file, a link or an empty directory; the bytes it had taken."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            os.rmdir(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if status.st_nlink == 1 else 0

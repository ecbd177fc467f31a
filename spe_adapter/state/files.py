"""The files of shared state: reserved before they are mapped, replaced at once, locked with a limit to waiting.

Invariants:
* Memory that is mapped is backed: a file is at minimum as long as its map, and the map's blocks were reserved first. A
  full file system is an error of ours that names the directory and the bytes, never a signal.
* A file under its final name is complete. What is being written has a name of its own and is locked by its writer, so
  that a dead writer's leavings are told from a living one's.
* Locks are flock's: they go with the process that held them.
"""

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from logstore.base.clock import Clock
from logstore.base.system import SystemClock
from logstore.interfaces import Buffer
from spe_adapter.codec.kernels import Bytes
from spe_adapter.pages.page_memory import Step, no_step
from spe_adapter.state.errors import StateTooLarge

TEMPORARY: Final = ".tmp"
_PAUSE_S: Final = 0.002
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class StateEnvironment(NamedTuple):
    """What this room needs of the machine. `step` is told of everything before it is done that another process, or
    the next one after a crash, could see; a test raises in it.
    """

    clock: Clock = SystemClock()
    pause: Callable[[float], None] = time.sleep
    step: Step = no_step


class FileKey(NamedTuple):
    """Which file it is, whatever its name."""

    device: int
    inode: int


def key_of(status: os.stat_result) -> FileKey:
    """The identity of a file."""
    return FileKey(status.st_dev, status.st_ino)


def is_in_place(path: Path, descriptor: int) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return key_of(path.stat(follow_symlinks=False)) == key_of(os.fstat(descriptor))
    except FileNotFoundError:
        return False


def age_of(path: Path) -> tuple[int, str]:
    """What sorts files by their age, the oldest first; one that is gone comes first."""
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:
        return 0, path.name


def open_file(path: Path) -> int | None:
    """A descriptor for reading and writing, None if there is no such file."""
    try:
        return os.open(path, _OPEN)
    except FileNotFoundError:
        return None


def lock(descriptor: int, environment: StateEnvironment, limit_s: float, *, exclusive: bool) -> bool:
    """Lock a file, or give up after `limit_s` seconds."""
    kind = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
    deadline_s = environment.clock.monotonic_s() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            if environment.clock.monotonic_s() >= deadline_s:
                return False
            environment.pause(_PAUSE_S)
        else:
            return True


def unlock_and_close(descriptor: int) -> None:
    """Unlock a file and close it. Its map keeps a descriptor of the same opening, which would keep the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def map_file(descriptor: int, size_bytes: int) -> Bytes:
    """A file's first bytes as shared memory; they stay mapped as long as anything refers to the array."""
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return np.frombuffer(mmap.mmap(descriptor, size_bytes, flags=flags), np.uint8)


def map_start(descriptor: int, size_bytes: int) -> Bytes:
    """`map_file` for a process that reads little of the file: pages come when they are read."""
    return np.frombuffer(mmap.mmap(descriptor, size_bytes), np.uint8)


class Draft:
    """A file that is being written under a name of its own, until `publish` gives it its final one."""

    def __init__(self, path: Path, environment: StateEnvironment) -> None:
        self._path = path
        self._environment = environment
        number = 0
        while True:
            draft = path.with_name(f"{path.name}.{os.getpid()}.{number}{TEMPORARY}")
            try:
                descriptor = os.open(draft, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                number += 1
                continue
            # Another process may have removed the file between the two calls.
            if lock(descriptor, environment, 0, exclusive=True) and is_in_place(draft, descriptor):
                break
            os.close(descriptor)
        self._draft = draft
        self.descriptor = descriptor

    def reserve(self, size_bytes: int, *, mapped: Callable[[int, int], Bytes] = map_file) -> Bytes:
        """`size_bytes` zeroed bytes of shared memory, really allocated. Raises StateTooLarge."""
        self._environment.step("reserve")
        try:
            os.posix_fallocate(self.descriptor, 0, size_bytes)
            return mapped(self.descriptor, size_bytes)
        except OSError as error:
            raise no_room(error, self._path.parent, size_bytes) from error

    def write(self, parts: list[Buffer]) -> int:
        """Write bytes one behind the other; how many. Raises StateTooLarge."""
        written = 0
        try:
            for part in parts:
                self._environment.step("write")
                left = memoryview(part).cast("B")
                while left:
                    count = os.write(self.descriptor, left)
                    left = left[count:]
                    written += count
        except OSError as error:
            raise no_room(error, self._path.parent, sum(len(memoryview(part).cast("B")) for part in parts)) from error
        return written

    def publish(self) -> None:
        """Take the place of whatever has the final name."""
        self._environment.step("publish")
        os.rename(self._draft, self._path)
        self._environment.step("published")

    def discard(self) -> None:
        """Give up: nothing remains."""
        with suppress(FileNotFoundError):
            self._draft.unlink()
        self.close()

    def close(self) -> None:
        """Let go of the file and its lock."""
        if self.descriptor >= 0:
            unlock_and_close(self.descriptor)
            self.descriptor = -1


@contextmanager
def drafting(path: Path, environment: StateEnvironment) -> Iterator[Draft]:
    """A draft that is discarded if anything goes wrong, and closed in any case."""
    draft = Draft(path, environment)
    try:
        yield draft
    except Exception:
        draft.discard()
        raise
    finally:
        draft.close()


def tidy(directory: Path, environment: StateEnvironment) -> None:
    """Remove what dead writers left."""
    for path in directory.glob(f"*{TEMPORARY}"):
        descriptor = open_file(path)
        if descriptor is None:
            continue
        try:
            if lock(descriptor, environment, 0, exclusive=True):
                with suppress(FileNotFoundError):
                    path.unlink()
        finally:
            os.close(descriptor)


def no_room(error: OSError, directory: Path, wanted_bytes: int) -> Exception:
    """What to raise for an error of reserving or writing: ours, if the file system is full."""
    if error.errno not in _NO_ROOM:
        return error
    status = os.statvfs(directory)
    return StateTooLarge(
        f"{directory} has no room for {wanted_bytes} bytes of state ({status.f_bavail * status.f_frsize} are free); "
        "give it more (in a container --shm-size), or name a directory on a disk with the option 'stateDirectory'"
    )

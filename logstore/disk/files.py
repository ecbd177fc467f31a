"""Files below one data directory on the operating system.

Invariants:
* Paths never leave the data directory.
* A write writes all bytes or raises OSError. Descriptors for writing are cached (bounded) and never closed while in
  use.
* No call is retried: the caller decides what to do with an error of the kernel.
"""

import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from logstore.base.directory import DIRECTORY_MODE, FILE_MODE
from logstore.disk.meter import DiskMeter
from logstore.interfaces import Buffer, DiskSpace

MAX_DESCRIPTORS = 256
"""Descriptors cached for writing: one for each busy chunk, below common limits of open files."""
MAX_VECTORS = 512
"""Buffers in one system call; the kernel's own limit is 1024."""


class _Handle:
    __slots__ = ("descriptor", "doomed", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0
        self.doomed = False


class OsFiles:
    """`FileSystem` on a directory of the operating system. Safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self.meter = DiskMeter()
        self.tells_what_is_cached = True
        """Whether the file system reads from memory alone if asked to. Overlays, as in containers, do not."""

    def _path(self, path: str) -> str:
        if path.startswith("/") or (".." in path and ".." in path.split("/")):
            raise OSError(errno.EINVAL, f"path {path!r} leaves the data directory")
        return f"{self._root}/{path}" if path else str(self._root)

    def _use(self, path: str) -> _Handle:
        """The handle of a file; the caller must `_leave` it."""
        with self._lock:
            handle = self._handles.get(path)
            if handle is None:
                handle = _Handle(os.open(self._path(path), os.O_RDWR | os.O_CLOEXEC))
                self._handles[path] = handle
                while len(self._handles) > MAX_DESCRIPTORS:
                    self._doom(self._handles.popitem(last=False)[1])
            else:
                self._handles.move_to_end(path)
            handle.users += 1
            return handle

    def _leave(self, handle: _Handle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.doomed and not handle.users:
                os.close(handle.descriptor)

    @staticmethod
    def _doom(handle: _Handle) -> None:
        handle.doomed = True
        if not handle.users:
            os.close(handle.descriptor)

    def _forget(self, path: str) -> None:
        with self._lock:
            handle = self._handles.pop(path, None)
            if handle is not None:
                self._doom(handle)

    def create(self, path: str) -> None:
        """See FileSystem."""
        self._forget(path)
        os.close(os.open(self._path(path), os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, FILE_MODE))

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """See FileSystem."""
        handle = self._use(path)
        try:
            filled = [buffer for buffer in buffers if len(buffer)]  # for empty buffers, the kernel writes nothing
            for start in range(0, len(filled), MAX_VECTORS):
                position = _write_all(handle.descriptor, position, filled[start : start + MAX_VECTORS])
        finally:
            self._leave(handle)
        self.meter.note_write(sum(map(len, filled)))

    def sync(self, path: str) -> None:
        """See FileSystem."""
        handle = self._use(path)
        try:
            begun_s = time.perf_counter()
            os.fdatasync(handle.descriptor)
            self.meter.note_sync(time.perf_counter() - begun_s)
        finally:
            self._leave(handle)

    def sync_directory(self, path: str) -> None:
        """See FileSystem."""
        descriptor = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            begun_s = time.perf_counter()
            os.fsync(descriptor)
            self.meter.note_directory_sync(time.perf_counter() - begun_s)
        finally:
            os.close(descriptor)

    def truncate(self, path: str, size_bytes: int) -> None:
        """See FileSystem."""
        handle = self._use(path)
        try:
            os.ftruncate(handle.descriptor, size_bytes)
        finally:
            self._leave(handle)

    def rename(self, source: str, target: str) -> None:
        """See FileSystem."""
        self._forget(source)
        self._forget(target)
        os.rename(self._path(source), self._path(target))

    def remove(self, path: str) -> None:
        """See FileSystem."""
        self._forget(path)
        with suppress(FileNotFoundError):
            os.unlink(self._path(path))

    def make_directory(self, path: str) -> None:
        """See FileSystem."""
        try:
            os.mkdir(self._path(path), DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(self._path(path)):
                raise

    def remove_directory(self, path: str) -> None:
        """See FileSystem."""
        with suppress(FileNotFoundError):
            os.rmdir(self._path(path))

    def list_directory(self, path: str) -> list[str]:
        """See FileSystem."""
        try:
            return sorted(os.listdir(self._path(path)))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """See FileSystem."""
        return os.path.lexists(self._path(path))

    def size(self, path: str) -> int:
        """See FileSystem."""
        return os.stat(self._path(path)).st_size

    def space(self) -> DiskSpace:
        """See FileSystem. Blocks that are reserved for root count as used, also for root."""
        found = os.statvfs(self._root)
        return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """See FileSystem."""
        descriptor = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, length, position)
            while len(data) < length:
                more = os.pread(descriptor, length - len(data), position + len(data))
                if not more:
                    break
                data += more
            self.meter.note_read(len(data))
            if drop_cache:
                os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_DONTNEED)
            return data
        finally:
            os.close(descriptor)

    def read_into(self, path: str, position: int, buffer: memoryview) -> int:
        """See FileSystem."""
        descriptor = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(buffer):
                count = os.preadv(descriptor, [buffer[done:]], position + done)
                if not count:
                    break
                done += count
            self.meter.note_read(done)
            return done
        finally:
            os.close(descriptor)

    def will_read(self, path: str, position: int, length: int) -> None:
        """See FileSystem."""
        with suppress(OSError):  # not every file system takes advice
            descriptor = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                # The kernel looks at each page, which takes a quarter of the time to copy it: not if all are there.
                if not self._is_cached(descriptor, position + length - 1):
                    os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def _is_cached(self, descriptor: int, position: int) -> bool:
        """Whether the byte is in memory; the bytes in front of it mostly are then, since files are read in sequence."""
        try:
            return self.tells_what_is_cached and os.preadv(descriptor, [bytearray(1)], position, os.RWF_NOWAIT) == 1
        except OSError as error:  # mostly EAGAIN
            self.tells_what_is_cached = error.errno != errno.EOPNOTSUPP
            return False

    def read_cached(self, path: str, position: int, length: int) -> Buffer | None:
        """See FileSystem."""
        if not self.tells_what_is_cached:
            return None
        try:
            descriptor = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # What is read in sequence is in memory up to some place: the last byte saves a copy of a part in vain.
            if not length or os.preadv(descriptor, [bytearray(1)], position + length - 1, os.RWF_NOWAIT) != 1:
                return None
            data = bytearray(length)
            if os.preadv(descriptor, [data], position, os.RWF_NOWAIT) != length:
                return None
        except OSError as error:  # mostly EAGAIN
            self.tells_what_is_cached = error.errno != errno.EOPNOTSUPP
            return None
        finally:
            os.close(descriptor)
        self.meter.note_read(length)
        return memoryview(data).toreadonly()

    def close(self) -> None:
        """Close all descriptors that are not in use."""
        with self._lock:
            while self._handles:
                self._doom(self._handles.popitem()[1])


def _write_all(descriptor: int, position: int, buffers: list[Buffer]) -> int:
    """Write all buffers; the kernel may take fewer bytes than asked. Returns the position after them."""
    while buffers:
        written = os.pwritev(descriptor, buffers, position)
        if written == 0:
            raise OSError(errno.EIO, "the kernel wrote nothing")
        position += written
        while buffers and written >= len(buffers[0]):
            written -= len(buffers.pop(0))
        if written:
            buffers[0] = memoryview(buffers[0])[written:]
    return position

"""Both file systems keep one contract, and the check of the contract finds an implementation that breaks it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore.disk.files import OsFiles
from logstore.interfaces import Buffer, FileSystem
from logstore.testing.filesystem import Make, check_filesystem
from logstore.testing.simdisk import SimDisk


@contextmanager
def on_disk() -> Iterator[FileSystem]:
    """The operating system's files, in a directory of their own."""
    with tempfile.TemporaryDirectory() as directory:
        files = OsFiles(Path(directory))
        yield files
        files.close()


@contextmanager
def simulated() -> Iterator[FileSystem]:
    """A simulated disk."""
    yield SimDisk()


@pytest.mark.parametrize("make", [on_disk, simulated])
@pytest.mark.parametrize("seed", range(5))
def test_the_contract_is_kept(make: Make, seed: int) -> None:
    """By the files of the operating system and by the simulated disk."""
    check_filesystem(make, seed=seed)


class _Appends(SimDisk):
    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        super().write(path, min(position, self.size(path)), buffers)


class _KeepsOldBytes(SimDisk):
    def create(self, path: str) -> None:
        if not self.exists(path):
            super().create(path)


class _ReadsPastHoles(SimDisk):
    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        return super().read(path, position, length, drop_cache=drop_cache).rstrip(b"\0")


class _RefusesSecondRemoval(SimDisk):
    def remove(self, path: str) -> None:
        self.size(path)
        super().remove(path)


class _RenamesByCopy(SimDisk):
    def rename(self, source: str, target: str) -> None:
        data = self.read(source, 0, self.size(source))
        self.create(target)
        self.write(target, 0, [data])


class _GivesParts(SimDisk):
    def read_cached(self, path: str, position: int, length: int) -> Buffer | None:
        return self.read(path, position, length) if self.exists(path) else None


class _FillsWithZeros(SimDisk):
    def read_into(self, path: str, position: int, buffer: memoryview) -> int:
        buffer[:] = self.read(path, position, len(buffer)).ljust(len(buffer), b"\0")
        return len(buffer)


class _RefusesAdvice(SimDisk):
    def will_read(self, path: str, position: int, length: int) -> None:
        self.size(path)


BROKEN = (
    _Appends,
    _KeepsOldBytes,
    _ReadsPastHoles,
    _RefusesSecondRemoval,
    _RenamesByCopy,
    _GivesParts,
    _FillsWithZeros,
    _RefusesAdvice,
)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_system_is_found(broken: type[SimDisk]) -> None:
    """Each of eight planted defects makes the check fail."""

    @contextmanager
    def make() -> Iterator[FileSystem]:
        yield broken()

    with pytest.raises((AssertionError, OSError)):
        check_filesystem(make)

"""The object store in a directory, which tests use, keeps the contract that HDFS is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from logstore.disk.files import OsFiles
from logstore.format.tiered_chunk import StoredObject
from logstore.testing import check_object_store
from logstore.testing.directory_objects import DirectoryObjects
from logstore.tier.interface import ObjectStore


def opener(
    directory: Path, kind: Callable[[OsFiles], ObjectStore]
) -> Callable[[], AbstractContextManager[ObjectStore]]:
    """Opens a store of a kind in a directory."""

    @contextmanager
    def opened() -> Iterator[ObjectStore]:
        files = OsFiles(directory)
        yield kind(files)
        files.close()

    return opened


def test_a_directory_keeps_the_contract(tmp_path: Path) -> None:
    """Atomic puts, ranges, lists, removals, checksums, as the interface promises them."""
    for seed in range(5):
        check_object_store(opener(tmp_path, DirectoryObjects), seed=seed)


class InPlace(DirectoryObjects):
    """Writes an object under its own name."""

    def put(self, key: str, size_bytes: int, pieces: Iterable[bytes], chain: Sequence[str] = ()) -> None:
        """See ObjectStore."""
        path = self._path(key)
        self._make(path.rpartition("/")[0])
        self._fs.create(path)
        written = 0
        for piece in pieces:
            self._fs.write(path, written, [piece])
            written += len(piece)


class Short(DirectoryObjects):
    """Gives a byte less than was asked for."""

    def get(self, key: str, position: int, length: int) -> bytes:
        """See ObjectStore."""
        return super().get(key, position, max(0, length - 1))


class Kept(DirectoryObjects):
    """Removes nothing."""

    def delete(self, key: str) -> None:
        """See ObjectStore."""


class Sure(DirectoryObjects):
    """Says that every object is as it should be."""

    def checksum(self, key: str) -> StoredObject:
        """See ObjectStore."""
        return StoredObject(super().checksum(key).size_bytes, 0)


class Flat(DirectoryObjects):
    """Lists one directory alone."""

    def list_keys(self, prefix: str) -> Iterator:  # type: ignore[type-arg]
        """See ObjectStore."""
        return (at for at in super().list_keys(prefix) if "/" not in at.key[len(prefix) :])


@pytest.mark.parametrize("kind", [InPlace, Short, Kept, Sure, Flat])
def test_the_contract_finds_a_store_that_breaks_it(tmp_path: Path, kind: type[DirectoryObjects]) -> None:
    """Stores that show parts, read short, keep what was removed, make up checksums, list too little."""
    with pytest.raises(AssertionError):
        check_object_store(opener(tmp_path, kind))

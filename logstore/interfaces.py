"""The log store's interfaces to the operating system, as protocols.

This module imports no other module of Cairn. `log` depends on these protocols alone; `disk` implements them on the
operating system, `testing` on a simulated disk that loses unsynced data. Random ids and time (`logstore.base.clock`)
are passed in as well.

Invariants every `FileSystem` must keep (docs/format.md, "Disk assumptions"):
* Paths are relative to the data directory, with `/` between parts; a path never leaves it.
* `write` writes all bytes or raises OSError; after an error any prefix or scattered subset of them may be on disk.
* Data is durable only after `sync` of the file; a name is durable only after `sync_directory` of its directory.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class DiskSpace(NamedTuple):
    """The room on the disk below a data directory. `free_bytes`: what this process may still use."""

    free_bytes: int
    total_bytes: int


class ReadableFiles(Protocol):
    """What reads of chunks and indexes need of the files. Methods block, and may raise OSError."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory with this path exists."""

    def size(self, path: str) -> int:
        """Size of a file in bytes."""

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> Buffer:
        """Up to `length` bytes from `position`; fewer only at the end of the file.

        `drop_cache`: these pages will not be read again soon (catch-up reads must not evict the tail from the cache).
        """


class FileSystem(ReadableFiles, Protocol):
    """The files below one data directory. Methods block; any of them may raise OSError."""

    def create(self, path: str) -> None:
        """Create an empty file; truncates an existing file."""

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers, in order, from byte `position` on; the file must exist."""

    def sync(self, path: str) -> None:
        """fdatasync. An error is final: the caller must not trust a later sync of this file."""

    def sync_directory(self, path: str) -> None:
        """fsync a directory ("" is the data directory), which makes its names durable."""

    def truncate(self, path: str, size_bytes: int) -> None:
        """Truncate the file to `size_bytes`."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file within the data directory, replacing the target, atomically."""

    def remove(self, path: str) -> None:
        """Remove a file; a missing file is no error."""

    def make_directory(self, path: str) -> None:
        """Create a directory; an existing directory is no error."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; a missing directory is no error."""

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if the directory does not exist."""

    def space(self) -> DiskSpace:
        """The room on the disk, as it is now. A quota of the user may allow less."""

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """See ReadableFiles."""

    def read_into(self, path: str, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from `position` on; how many bytes were read, fewer than it has only at the end of the file."""

    def will_read(self, path: str, position: int, length: int) -> None:
        """These bytes will be read soon: they may be fetched from the disk meanwhile. Advice only: it never raises
        OSError.
        """

    def read_cached(self, path: str, position: int, length: int) -> Buffer | None:
        """What `read` gives, if that needs no wait for the disk: `length` bytes that are in memory already.

        None where a byte is not in memory, the file has fewer bytes, or anything else is in the way; `read` then says
        what. It never raises OSError.
        """

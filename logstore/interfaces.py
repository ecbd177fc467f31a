"""What the rooms of the log store need from the world outside, as protocols.

This is a leaf: it imports nothing of ours. `log` is written against these protocols alone; `disk` implements them on
the operating system, `testing` on a simulated disk that forgets what was not synced. Time and randomness come in the
same way.

Invariants every `FileSystem` must keep (docs/format.md, "Disk assumptions"):
* Paths are relative to the data directory, with `/` between parts; a path never leaves it.
* `write` writes all bytes or raises OSError; after an error any prefix or scattered subset of them may be on disk.
* Data is durable only after `sync` of the file; a name is durable only after `sync_directory` of its directory.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
Report = Callable[[str, Mapping[str, object]], None]
"""Tells the operator of an event: its name, and its fields."""


class Clock(Protocol):
    """Time, as an argument."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump, so no safety rests on it."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""


class FileSystem(Protocol):
    """The files below one data directory. Methods block; all raise OSError."""

    def create(self, path: str) -> None:
        """Make an empty file, cutting an existing one to nothing."""

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers, one behind the other, from byte `position` on; the file must exist."""

    def sync(self, path: str) -> None:
        """fdatasync. An error is final: the caller must not sync this file again and believe it."""

    def sync_directory(self, path: str) -> None:
        """fsync a directory ("" is the data directory), which makes its names durable."""

    def truncate(self, path: str, size_bytes: int) -> None:
        """Cut the file to `size_bytes`."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file within the data directory, replacing the target, atomically."""

    def remove(self, path: str) -> None:
        """Remove a file; it is no error if there is none."""

    def make_directory(self, path: str) -> None:
        """Make a directory; it is no error if it exists."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; it is no error if there is none."""

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted; a directory that does not exist is empty."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name exists."""

    def size(self, path: str) -> int:
        """Size of a file in bytes."""

    def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file.

        `drop_cache` says that these pages will not be read again soon (catch-up reads must not push out the tail).
        """

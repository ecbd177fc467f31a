"""A directory as the place for checkpoints: on this host, or on a file system that several hosts mount.

Invariants:
* A file is synced before it gets its name; all names of a checkpoint are synced before its manifest gets one.
* A manifest gets its name by a hard link, which fails if there is one.
* `step` is told of everything before it is done that a crash could leave half done.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from logstore.base.directory import DIRECTORY_MODE, FILE_MODE, make_directory, sync_directory
from spe_adapter.checkpoint.errors import (
    CheckpointDamaged,
    CheckpointTaken,
    CheckpointUrlRefused,
    SinkFailed,
    SinkFull,
)
from spe_adapter.checkpoint.names import CLAIM, MANIFEST, CheckpointName, parse_name
from spe_adapter.checkpoint.sinks import MAX_MANIFEST_BYTES, READ_BYTES, FileContent, check_manifest_bytes

_TEMPORARY: Final = ".tmp"
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def _no_step(what: str) -> None:
    """Ignore the step."""


class DirectorySink:
    """Checkpoints below a directory, which is made if need be. Raises CheckpointUrlRefused if the path is relative."""

    def __init__(self, root: Path, step: Callable[[str], None] = _no_step) -> None:
        if not root.is_absolute():
            raise CheckpointUrlRefused(f"{root}: a directory of checkpoints needs an absolute path, file:///DIRECTORY")
        self._root = root
        self._step = step

    @property
    def url(self) -> str:
        """Where it is."""
        return self._root.as_uri()

    def claim(self, name: CheckpointName) -> None:
        """Make the directory of a checkpoint for this writer alone."""
        directory = self._directory(name)
        self._step(f"claim {name}")
        try:
            make_directory(self._root)
            directory.mkdir(mode=DIRECTORY_MODE)
            self._step(f"claimed {name}")
            os.close(os.open(directory / CLAIM, _DRAFT | os.O_EXCL, FILE_MODE))
            sync_directory(self._root)
        except FileExistsError as error:
            raise CheckpointTaken(f"{directory}: another writer has this number") from error
        except OSError as error:
            raise _failed(error, directory) from error

    def write(self, name: CheckpointName, file: str, content: FileContent) -> tuple[str, ...]:
        """Write and sync a file."""
        path = self._directory(name) / file
        draft = path.with_name(file + _TEMPORARY)
        self._step(f"write {name}/{file}")
        try:
            with os.fdopen(os.open(draft, _DRAFT, FILE_MODE), "wb", buffering=0) as target:
                wanted_bytes = 0
                for piece in content.pieces():
                    self._step(f"piece of {name}/{file}")
                    _write_all(target.fileno(), piece)
                    wanted_bytes += len(piece)
                self._step(f"sync {name}/{file}")
                os.fdatasync(target.fileno())
                written = os.fstat(target.fileno()).st_size
            if written != wanted_bytes:
                raise SinkFailed(f"{path}: {written} bytes were written, not {wanted_bytes}")
            self._step(f"rename {name}/{file}")
            draft.rename(path)
        except OSError as error:
            raise _failed(error, path) from error
        return ()

    def seal(self, name: CheckpointName, manifest: bytes) -> None:
        """Write the manifest."""
        directory = self._directory(name)
        path = directory / MANIFEST
        draft = path.with_name(f"{MANIFEST}.{os.getpid()}{_TEMPORARY}")
        self._step(f"seal {name}")
        try:
            sync_directory(directory)
            with os.fdopen(os.open(draft, _DRAFT, FILE_MODE), "wb", buffering=0) as target:
                _write_all(target.fileno(), manifest)
                os.fsync(target.fileno())
            self._step(f"link {name}")
            os.link(draft, path)
            self._step(f"sealed {name}")
            draft.unlink()
            sync_directory(directory)
        except FileExistsError as error:
            with suppress(OSError):
                draft.unlink()
            raise CheckpointTaken(f"{path}: another writer completed this checkpoint") from error
        except OSError as error:
            raise _failed(error, path) from error

    def manifest(self, name: CheckpointName) -> bytes | None:
        """The manifest, None if the checkpoint is not complete."""
        path = self._directory(name) / MANIFEST
        try:
            with _opened(path) as source:
                check_manifest_bytes(path, os.fstat(source.fileno()).st_size)
                return source.read(MAX_MANIFEST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failed(error, path) from error

    def read(self, name: CheckpointName, file: str) -> Iterator[bytes]:
        """The bytes of a file."""
        path = self._directory(name) / file
        try:
            with _opened(path) as source:
                while data := source.read(READ_BYTES):
                    yield data
        except FileNotFoundError as error:
            raise CheckpointDamaged(f"{path}: there is no such file") from error
        except OSError as error:
            raise _failed(error, path) from error

    def is_there(self) -> bool:
        """Whether the directory is there. Raises SinkFailed if that cannot be told."""
        try:
            return stat.S_ISDIR(self._root.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _failed(error, self._root) from error

    def names(self) -> list[CheckpointName]:
        """All checkpoints here."""
        try:
            found = [parse_name(entry) for entry in os.listdir(self._root)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed(error, self._root) from error
        return [name for name in found if name is not None]

    def files(self, name: CheckpointName) -> Mapping[str, int]:
        """The files of a checkpoint with their bytes."""
        directory = self._directory(name)
        found: dict[str, int] = {}
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found[entry.name] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _failed(error, directory) from error
        return found

    def remove(self, name: CheckpointName) -> None:
        """Remove a checkpoint."""
        directory = self._directory(name)
        self._step(f"remove {name}")
        try:
            with suppress(FileNotFoundError):
                (directory / MANIFEST).unlink()
                sync_directory(directory)
            self._step(f"remove files of {name}")
            with suppress(FileNotFoundError):
                shutil.rmtree(directory)
        except OSError as error:
            raise _failed(error, directory) from error

    def close(self) -> None:
        """Nothing is open."""

    def _directory(self, name: CheckpointName) -> Path:
        return self._root / str(name)


def _opened(path: Path) -> BinaryIO:
    """A file to read. Raises CheckpointDamaged for what is no file, such as a pipe that would never end."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CheckpointDamaged(f"{path}: is a link or a socket, not a file") from error
        raise
    source = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        source.close()
        raise CheckpointDamaged(f"{path}: is not a file")
    return source


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(descriptor, left) :]


def _failed(error: OSError, path: Path) -> SinkFailed:
    what = f"{path}: {error.strerror or error}"
    if error.errno in _NO_ROOM:
        return SinkFull(f"{what}; free some space, or name another sink")
    return SinkFailed(what)

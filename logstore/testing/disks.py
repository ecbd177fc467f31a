"""A disk of its own for a host of a test cluster: a small file system, which a test fills.

    disk = Disk(cluster["a"].data_dir)
    if disk.mount():  # before the cluster starts
        disk.fill()

Needs the right to mount: ext4 in a file beside the directory, or else a tmpfs. Nothing is left mounted after `unmount`.
"""

import errno
import os
import subprocess
from pathlib import Path
from typing import Final

DISK_MB: Final = 768
PIECE_BYTES: Final = 64 << 20


class Disk:
    """See the module. `data_dir`: the directory that becomes a file system."""

    def __init__(self, data_dir: Path, size_mb: int = DISK_MB) -> None:
        self.path = data_dir
        self._size_mb = size_mb
        self._image = data_dir.with_suffix(".ext4")
        self.kind = ""
        """Of file system; empty: not mounted."""

    def mount(self) -> bool:
        """Whether it could be."""
        self.path.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            return False
        with self._image.open("wb") as file:
            file.truncate(self._size_mb << 20)
        for kind, commands in {
            "ext4": (
                ["mkfs.ext4", "-q", "-m", "0", str(self._image)],
                ["mount", "-o", "loop", str(self._image), str(self.path)],
            ),
            "tmpfs": (["mount", "-t", "tmpfs", "-o", f"size={self._size_mb}m", "tmpfs", str(self.path)],),
        }.items():
            if all(_succeeds(command) for command in commands):
                self.kind = kind
                return True
        return False

    def unmount(self) -> None:
        """Give it back."""
        if self.kind:
            _succeeds(["umount", "--lazy", str(self.path)])

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def fill(self) -> int:
        """Leave nothing free; the bytes that were. A host may make room then, and the disk may be filled again."""
        with self._filler.open("ab", buffering=0) as file:
            before = size = os.fstat(file.fileno()).st_size
            piece = PIECE_BYTES
            while piece:
                try:
                    os.posix_fallocate(file.fileno(), size, piece)
                    size += piece
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2
        return size - before

    def empty(self) -> None:
        """Free it again."""
        self._filler.unlink(missing_ok=True)


def _succeeds(command: list[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603  no shell
        return done.returncode == 0
    except FileNotFoundError:
        return False

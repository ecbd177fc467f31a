"""Writes bytes of a file over themselves, so that the next sync writes them to the disk.

If a sync failed in the last life, the kernel may hold pages that it treats as clean but that never reached the disk:
they read correctly, and no sync writes them. Invariant: the bytes of the file do not change.
"""

from logstore.interfaces import FileSystem

PIECE_BYTES = 1 << 20


def rewrite(fs: FileSystem, path: str, start: int, end: int) -> None:
    """Write the bytes from `start` to `end` over themselves; the caller syncs. Raises OSError."""
    while start < end:
        data = fs.read(path, start, min(PIECE_BYTES, end - start))
        fs.write(path, start, [data])
        start += len(data)

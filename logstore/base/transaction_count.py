"""A file beside a database that says how many transactions it has stored: a database with fewer was set back.

Invariant: the number has a checksum; a file that is missing or damaged says nothing, and nothing else depends on it.
"""

import os
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from logstore.base.directory import FILE_MODE


def write_count(path: Path, transactions: int) -> None:
    """Write the number of stored transactions. If that fails, the next start cannot compare the number."""
    text = f"{transactions:020d}"
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.pwrite(descriptor, f"{text} {crc32(text.encode()):08x}\n".encode(), 0)
        finally:
            os.close(descriptor)


def read_count(path: Path) -> int | None:
    """The number of transactions that are stored at least; None if the file is missing or unreadable."""
    try:
        text, _, crc = path.read_bytes().decode("ascii").strip().partition(" ")
        return int(text) if int(crc, 16) == crc32(text.encode()) else None
    except (OSError, ValueError):
        return None

"""What the operating system says of this process and of the disk.

Invariant: a figure that cannot be read is 0, and stops nothing.
"""

import os
import resource
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessFigures(NamedTuple):
    """This process, as Prometheus' client libraries report it."""

    cpu_s: float = 0.0
    resident_bytes: int = 0
    virtual_bytes: int = 0
    open_files: int = 0
    max_files: int = 0
    threads: int = 0
    started_s: float = 0.0


class DiskFigures(NamedTuple):
    """The file system of the data directory."""

    free_bytes: int = 0
    """What this process may still use."""
    total_bytes: int = 0


def process_figures() -> ProcessFigures:
    """This process now."""
    try:
        # The name, in parentheses, may hold anything; the numbers follow the last parenthesis.
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        boot_s = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()
            if line.startswith("btime ")
        )
        open_files = len(os.listdir("/proc/self/fd"))
    except (OSError, StopIteration, ValueError):
        return ProcessFigures()
    return ProcessFigures(
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        virtual_bytes=int(fields[20]),
        open_files=open_files,
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        threads=int(fields[17]),
        started_s=boot_s + int(fields[19]) / _TICKS,
    )


def disk_figures(directory: Path) -> DiskFigures:
    """The file system of a directory now. Blocks."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return DiskFigures()
    return DiskFigures(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

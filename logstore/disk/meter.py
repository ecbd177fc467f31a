"""What the disk was asked to do, and how long syncs took.

Invariants: threads may note at the same time; what is noted is never lost; a note takes less than a microsecond.
"""

import threading

from logstore.base.histogram import Histogram

SYNC_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10,
)  # fmt: skip
"""From a disk whose cache is safe from power cuts to one that is about to fail."""


class DiskMeter:
    """Counts of one file system since the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.syncs = Histogram(SYNC_BOUNDS_S)
        """Syncs of files."""
        self.directory_syncs = Histogram(SYNC_BOUNDS_S)
        self.writes = 0
        self.written_bytes = 0
        self.read_bytes = 0

    def note_sync(self, duration_s: float) -> None:
        """A file was synced."""
        with self._lock:
            self.syncs.add(duration_s)

    def note_directory_sync(self, duration_s: float) -> None:
        """A directory was synced."""
        with self._lock:
            self.directory_syncs.add(duration_s)

    def note_write(self, size_bytes: int) -> None:
        """Bytes were written."""
        with self._lock:
            self.writes += 1
            self.written_bytes += size_bytes

    def note_read(self, size_bytes: int) -> None:
        """Bytes were read."""
        with self._lock:
            self.read_bytes += size_bytes

"""The share of the event loop that catch-up reads get while streams are written.

A reader that catches up at full speed keeps the event loop and a processor busy. Beside writes, catch-up reads are
spaced: most batches that arrive then find the event loop and a processor free.

Invariants:
* Unless a synced write is under way, or one began or ended in the last BESIDE_S seconds, no read is held up, and no
  read is paid for: what was read meanwhile delays nobody when the next write begins. A write counts for as long as it
  takes: reads at full speed would come just when the disk is slowest.
* Beside writes a read begins only when all earlier reads beside writes are paid for: a MiB costs a millisecond. A small
  read hardly delays the next one.
* No clock, no I/O: the caller says what time it is, and waits.
"""

from typing import Final

BYTES_PER_S: Final = 1 << 30
"""What readers get together beside writes. A MiB from memory takes the event loop about a third of its millisecond."""
BESIDE_S: Final = 0.1
"""A write counts for so much longer than it takes: a producer that sends ten requests a second has its share at each of
them.
"""


class ReadShare:
    """When the next catch-up read may begin; times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._written_s = float("-inf")
        self._writing = 0
        self._free_s = float("-inf")

    def begin_write(self, now_s: float) -> None:
        """A write that is synced begins; `end_write` is to be told of its end."""
        self._written_s = now_s
        self._writing += 1

    def end_write(self, now_s: float) -> None:
        """A write that is synced has ended, or has failed."""
        self._written_s = now_s
        self._writing -= 1

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return self._writing > 0

    def is_beside_writes(self, now_s: float) -> bool:
        """Whether streams are being written: a write is under way, or was less than BESIDE_S ago."""
        return self._writing > 0 or now_s - self._written_s <= BESIDE_S

    def wait_s(self, now_s: float) -> float:
        """For how long the next read has to wait; 0: it may begin."""
        return max(0.0, self._free_s - now_s) if self.is_beside_writes(now_s) else 0.0

    def begin_read(self, most_bytes: int, now_s: float) -> int:
        """A read begins that is to give so many bytes at most: reads that begin before it has ended pay for that.
        Returns how many bytes are paid for, which `end_read` is to be told: none if nothing is written now.
        """
        if not self.is_beside_writes(now_s):
            return 0
        self._free_s = max(self._free_s, now_s) + most_bytes / BYTES_PER_S
        return most_bytes

    def end_read(self, paid_bytes: int, size_bytes: int) -> None:
        """A read that has paid for so many bytes has given so many; one batch may be more than it was to give."""
        if paid_bytes:
            self._free_s += (size_bytes - paid_bytes) / BYTES_PER_S

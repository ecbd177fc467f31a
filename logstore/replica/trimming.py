"""What an owner is asked to trim, and the swaps that do so.

Invariants:
* The log start never lies behind what is acknowledged, and a swap drops at most `MAX_DROPPED` chunks: what is left is
  done by the next swap, and each registration between is valid.
* The open chunk is never dropped. The last sealed one stays, where that is asked for, until something of the open chunk
  is acknowledged: then all members have what the log founds a chunk on.
"""

from logstore.replica.registrations import Prefix, StreamRegistration


class Trimming:
    """The trim that an owner is asked for. `is_wanted`: something may be left to do."""

    def __init__(self) -> None:
        self.is_wanted = False
        self._log_start = 0
        self._keeps_last = True

    def want(self, log_start: int, *, keeps_last: bool) -> None:
        """Trim up to an offset; the furthest one that was asked for counts."""
        self._log_start = max(self._log_start, log_start)
        self._keeps_last = keeps_last
        self.is_wanted = True

    def next_step(
        self, registration: StreamRegistration, high_watermark: int, acked: Prefix
    ) -> StreamRegistration | None:
        """The registration to swap in; None if nothing is left to do. `acked`: of the open chunk."""
        if not self.is_wanted:
            return None
        keeps_last = self._keeps_last and acked.length_bytes == 0
        wanted = registration.trimmed(self._limited(high_watermark), keeps_last=keeps_last)
        if wanted == registration:
            self.is_wanted, self._log_start = False, 0
            return None
        return wanted

    def _limited(self, high_watermark: int) -> int:
        return min(self._log_start, high_watermark)

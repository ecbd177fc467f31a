"""What an owner is asked to trim, and to note of the tier, and the swaps that do so.

Invariants:
* The log start never lies behind what is acknowledged, and a swap drops at most `MAX_DROPPED` chunks: what is left is
  done by the next swap, and each registration between is valid.
* The open chunk is never dropped. The last sealed one stays, where that is asked for, until something of the open chunk
  is acknowledged: then all members have what the log founds a chunk on.
* A chunk loses its members in a swap of its own, computed from an acknowledged registration that says where the chunk
  lies in the tier. What is asked of a chunk that is not listed any more is forgotten.
"""

from logstore.replica.registrations import Prefix, StreamRegistration, TieredCopy


class TierNotes:
    """What an owner is asked to note of chunks in the tier."""

    def __init__(self) -> None:
        self._stored: dict[int, TieredCopy] = {}
        self._drop_before = 0

    @property
    def is_wanted(self) -> bool:
        """Whether something may be left to do."""
        return bool(self._stored or self._drop_before)

    def note(self, epoch: int, copy: TieredCopy) -> None:
        """A sealed chunk was stored and read back."""
        self._stored[epoch] = copy

    def drop_members(self, before_offset: int) -> None:
        """Let hosts give up their copies of chunks that end at or before an offset, where the tier has them."""
        self._drop_before = max(self._drop_before, before_offset)

    def next_step(self, registration: StreamRegistration) -> StreamRegistration | None:
        """The registration to swap in; None if nothing is left to do."""
        while self._stored:
            epoch, copy = next(iter(self._stored.items()))
            wanted = registration.with_tiered(epoch, copy)
            if wanted != registration:
                return wanted
            del self._stored[epoch]
        wanted = registration.without_members(self._drop_before)
        if wanted != registration:
            return wanted
        self._drop_before = 0
        return None


class Trimming:
    """The trim that an owner is asked for, and its notes of the tier."""

    def __init__(self) -> None:
        self.tier = TierNotes()
        self._is_wanted = False
        self._log_start = 0
        self._keeps_last = True

    @property
    def is_wanted(self) -> bool:
        """Whether something may be left to do."""
        return self._is_wanted or self.tier.is_wanted

    def want(self, log_start: int, *, keeps_last: bool) -> None:
        """Trim up to an offset; the furthest one that was asked for counts."""
        self._log_start = max(self._log_start, log_start)
        self._keeps_last = keeps_last
        self._is_wanted = True

    def next_step(
        self, registration: StreamRegistration, high_watermark: int, acked: Prefix
    ) -> StreamRegistration | None:
        """The registration to swap in; None if nothing is left to do. `acked`: of the open chunk."""
        wanted = self._next_trim(registration, high_watermark, acked)
        return self.tier.next_step(registration) if wanted is None else wanted

    def _next_trim(
        self, registration: StreamRegistration, high_watermark: int, acked: Prefix
    ) -> StreamRegistration | None:
        if not self._is_wanted:
            return None
        keeps_last = self._keeps_last and acked.length_bytes == 0
        wanted = registration.trimmed(self._limited(high_watermark), keeps_last=keeps_last)
        if wanted == registration:
            self._is_wanted, self._log_start = False, 0
            return None
        return wanted

    def _limited(self, high_watermark: int) -> int:
        return min(self._log_start, high_watermark)

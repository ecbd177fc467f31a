"""For how long the reads of one request may wait for other hosts.

Invariant: no clock: who waits says when a wait begins and ends. Time in which several reads of the request wait counts
once.
"""


class ReadPatience:
    """Seconds that are left, for all reads of the request together; what comes later is there for a later request."""

    __slots__ = ("_counted_s", "_waiting", "left_s")

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s
        """As of the last begin or end of a wait, or the last call of `left_at`."""
        self._waiting = 0
        self._counted_s = 0.0

    def left_at(self, now_s: float) -> float:
        """The seconds that are left now, without those that reads which wait have waited."""
        if self._waiting:
            self.left_s = max(0.0, self.left_s - (now_s - self._counted_s))
        self._counted_s = now_s
        return self.left_s

    def begin(self, now_s: float) -> None:
        """A read begins to wait."""
        self.left_at(now_s)
        self._waiting += 1

    def end(self, now_s: float) -> None:
        """A read has waited."""
        self.left_at(now_s)
        self._waiting -= 1

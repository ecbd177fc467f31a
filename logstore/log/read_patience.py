"""For how long the reads of one request may wait for other hosts.

Invariant: no clock: who waits takes what it has waited from what is left.
"""


class ReadPatience:
    """Seconds that are left, for all reads of the request together; what comes later is there for a later request."""

    __slots__ = ("left_s",)

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def took(self, waited_s: float) -> None:
        """A read has waited."""
        self.left_s = max(0.0, self.left_s - waited_s)

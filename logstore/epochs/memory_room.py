"""Room in memory for what is read back for a while: whoever has none waits for it, first come, first served.

Invariant: what has entered and not left has `limit_bytes` together, or is one larger piece.
"""

from collections import deque

from logstore.log.ticket import Ticket


class MemoryRoom:
    """See the module."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[int, Ticket[None]]] = deque()
        self.used_bytes = 0

    def enter(self, size_bytes: int) -> Ticket[None]:
        """Settles when there is room for so many bytes; `leave` gives it back. Never fails."""
        entered: Ticket[None] = Ticket()
        self._waiting.append((size_bytes, entered))
        self._let_in()
        return entered

    def leave(self, size_bytes: int) -> None:
        """So many bytes are in memory no more."""
        self.used_bytes -= size_bytes
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            size_bytes, entered = self._waiting[0]
            if self.used_bytes and self.used_bytes + size_bytes > self._limit_bytes:
                return
            self._waiting.popleft()
            self.used_bytes += size_bytes
            entered.succeed(None)

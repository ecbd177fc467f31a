"""Deadlines by key; the caller provides the time.

Invariants: a key has at most one deadline; moving a deadline later is cheap (every heartbeat does), because the heap
keeps the old entry and corrects it when the entry reaches the top. So `next_deadline` may be early, never late.
"""

import heapq
from typing import Generic, TypeVar

K = TypeVar("K")

_SLACK_ENTRIES = 64  # below this many stale heap entries, cleaning up costs more than it saves


class KeyedTimers(Generic[K]):
    """A set of keyed deadlines in seconds on the caller's monotonic clock."""

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: K, deadline_s: float) -> None:
        """Set or move the deadline of a key."""
        known = self._deadlines.get(key)
        self._deadlines[key] = deadline_s
        if known is None or deadline_s < known:
            if len(self._heap) > 2 * len(self._deadlines) + _SLACK_ENTRIES:
                self._rebuild()
            self._push(key, deadline_s)

    def cancel(self, key: K) -> None:
        """Forget a key's deadline, if it has one."""
        self._deadlines.pop(key, None)

    def next_deadline(self) -> float | None:
        """When to call `due` next, or None if nothing is pending."""
        while self._heap:
            deadline_s, _, key = self._heap[0]
            real = self._deadlines.get(key)
            if real == deadline_s:
                return deadline_s
            heapq.heappop(self._heap)
            if real is not None and real > deadline_s:
                self._push(key, real)
        return None

    def due(self, now_s: float) -> K | None:
        """Remove and return one key whose deadline has passed (earliest first), or None."""
        deadline_s = self.next_deadline()
        if deadline_s is None or deadline_s > now_s:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._deadlines[key]
        return key

    def _push(self, key: K, deadline_s: float) -> None:
        self._order += 1
        heapq.heappush(self._heap, (deadline_s, self._order, key))

    def _rebuild(self) -> None:
        self._heap = []
        for key, deadline_s in self._deadlines.items():
            self._push(key, deadline_s)

"""Whether a stream has been without enough members for so long that its producers should hear of it.

A stream is short when its open chunk lacks members that `min_copies` wants, and the next chunk cannot have so many
either. A batch that it takes then is acknowledged nowhere before a host returns.

Invariants: what is short for less than `after_ms` is never told, so a failover without errors stays so. It is told
once, and its end is told once if its beginning was.
"""

from __future__ import annotations

from collections.abc import Collection

from logstore.replica.effects import Effect, EnoughMembers, TooFewMembers
from logstore.replica.registrations import Member


class Shortage:
    """Of one stream; see the module."""

    def __init__(self, stream: str, after_ms: int) -> None:
        self._stream = stream
        self._after_ms = after_ms
        self._since_ms: int | None = None
        """Since when the stream is short; None: it is not."""
        self._is_told = False

    @property
    def wake_ms(self) -> int | None:
        """When it has to be told; None: there is nothing to tell."""
        return None if self._since_ms is None or self._is_told else self._since_ms + self._after_ms

    def look(self, epoch: int, needed: int, now_ms: int, *, is_short: bool) -> list[Effect]:
        """Whether the stream is short now, of how many members; returns what is to be told."""
        if not is_short:
            was_told, self._since_ms, self._is_told = self._is_told, None, False
            return [EnoughMembers(self._stream)] if was_told else []
        if self._since_ms is None:
            self._since_ms = now_ms
        if self._is_told or now_ms - self._since_ms < self._after_ms:
            return []
        self._is_told = True
        return [TooFewMembers(self._stream, epoch, needed)]


def lacks_members(
    members: Collection[Member],
    live: Collection[Member],
    needed: int,
    *,
    has_late: bool,
) -> bool:
    """Whether an open chunk with these members lacks some: it has fewer than `needed`, one does not live, or batches
    wait for one that has failed. `live`: empty where it is not known who lives.
    """
    return has_late or len(members) < needed or any(bool(live) and member not in live for member in members)

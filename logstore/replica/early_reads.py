"""When a stream may be read whose new owner cannot take appends yet: it has too few members, or copies are under way.

One fenced member is enough for this: what is acknowledged is on every member, and the owner before can acknowledge
nothing more. So all of that lies in front of the end at which the last chunk was sealed.

Invariants: said once in a takeover, not before it has waited for as long as a stream waits that has too few members: a
takeover that goes well says `Ready` at once. It is said again when all may be shown that could not be before: fewer
members are needed, say, than were. Producers hear at the same time of how many members are needed, and again if that is
another number.

Source: Apache Kafka, where the leader serves readers while fewer replicas than `min.insync.replicas` are in sync.
"""

from __future__ import annotations

from logstore.replica.effects import Effect, Readable, TooFewMembers
from logstore.replica.registrations import StreamRegistration


class EarlyReads:
    """Of one takeover; see the module."""

    def __init__(self, stream: str, after_ms: int) -> None:
        self._stream = stream
        self._after_ms = after_ms
        self._since_ms = 0
        self._is_safe = False
        """Whether it was said that all may be shown."""
        self._told_needed: int | None = None
        """How many members were needed when it was said last; None: it was not said."""

    def begin(self, now_ms: int) -> None:
        """No chunk is open, and the end of the last one is registered."""
        self._since_ms = now_ms

    def look(
        self, registration: StreamRegistration, end: int, needed: int, now_ms: int, *, is_safe: bool
    ) -> list[Effect]:
        """What is to be said while the next chunk cannot be opened. `is_safe`: the last one has members enough."""
        is_news = self._told_needed is None or (is_safe and not self._is_safe)
        if not (is_news or self._told_needed != needed) or now_ms - self._since_ms < self._after_ms:
            return []
        self._told_needed, self._is_safe = needed, is_safe or self._is_safe
        readable = [Readable(self._stream, registration.epoch, end, is_safe)] if is_news else []
        return [*readable, TooFewMembers(self._stream, registration.epoch, needed)]

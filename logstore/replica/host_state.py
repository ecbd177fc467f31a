"""What the owners of all streams on one host share: which hosts confirm, and how many copies are ordered at a time.

Invariants:
* `HostProgress` counts only confirmations of more than was durable before: a host whose process lives, and whose disk
  hangs, makes no progress.
* `CopyTokens` gives at most `limit` tokens at a time; streams that wait get them first come, first served. A copy that
  its stream waits for needs no token.
* No clock: who calls says what time it is, in milliseconds of the owners' time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

COPIES_AT_ONCE: Final = 8
"""Chunks that the owners of one host have copied at a time: enough to keep several targets at work, and few enough that
orders which are repeated while targets make them wait cost nothing.
"""


class HostProgress:
    """When each host has last made something durable that was sent to it."""

    def __init__(self) -> None:
        self._confirmed_ms: dict[str, int] = {}

    def note(self, host: str, now_ms: int) -> None:
        """A host has confirmed more than before, of any stream."""
        self._confirmed_ms[host] = now_ms

    def silent_ms(self, host: str, since_ms: int, now_ms: int) -> int:
        """For how long a host that was to confirm something since a time has confirmed nothing at all."""
        return now_ms - max(since_ms, self._confirmed_ms.get(host, since_ms))


class CopyTokens:
    """See the module. `wake` is told of a stream that waited and has a token now: its owner is to have a tick."""

    def __init__(self, limit: int = COPIES_AT_ONCE, wake: Callable[[str], None] = lambda stream: None) -> None:
        self._limit = limit
        self._wake = wake
        self._held: dict[str, None] = {}
        self._waiting: dict[str, None] = {}

    @property
    def counts(self) -> tuple[int, int]:
        """How many streams have a chunk copied, and how many wait for that."""
        return len(self._held), len(self._waiting)

    def take(self, stream: str) -> bool:
        """Take a token, which the stream may have already. If there is none, the stream waits for one."""
        if stream in self._held:
            return True
        if len(self._held) >= self._limit or (self._waiting and stream not in self._waiting):
            self._waiting.setdefault(stream)
            return False
        self._waiting.pop(stream, None)
        self._held[stream] = None
        return True

    def give_back(self, stream: str) -> None:
        """The stream has no copy under way, and does not wait for one: the next gets its token."""
        self._waiting.pop(stream, None)
        self._held.pop(stream, None)
        while self._waiting and len(self._held) < self._limit:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._held[following] = None
            self._wake(following)


@dataclass(frozen=True, slots=True)
class HostState:
    """See the module."""

    progress: HostProgress = field(default_factory=HostProgress)
    copies: CopyTokens = field(default_factory=CopyTokens)

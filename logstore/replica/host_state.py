"""What the owners of all streams on one host share: which hosts confirm, and who may do what is not urgent.

Invariants:
* `HostProgress` counts only confirmations of more than was durable before: a host whose process lives, and whose disk
  hangs, makes no progress.
* `Tokens` has at most `limit` tokens out at a time; streams that wait get them first come, first served. Copies have
  theirs by need (`copy_tokens`).
* No clock: who calls says what time it is, in milliseconds of the owners' time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from logstore.replica.copy_tokens import CopyTokens

GROWTHS_AT_ONCE: Final = 1
"""A host that comes is to be a member of all streams' next chunks: one chunk rolled after the other holds nobody up."""


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


class Tokens:
    """See the module. `wake` is told of a stream that waited and has a token now: its owner is to have a tick."""

    def __init__(self, limit: int, wake: Callable[[str], None] = lambda stream: None) -> None:
        self._limit = limit
        self._wake = wake
        self._held: dict[str, None] = {}
        self._waiting: dict[str, None] = {}

    @property
    def counts(self) -> tuple[int, int]:
        """How many streams have a token, and how many wait for one."""
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
        """The stream does not need a token, and does not wait for one: the next gets it."""
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
    """For chunks that are copied."""
    growths: Tokens = field(default_factory=lambda: Tokens(GROWTHS_AT_ONCE))
    """For streams that go on with more members, because a host has come."""

    @classmethod
    def waking(cls, wake: Callable[[str], None]) -> "HostState":
        """The state of a host that is told of streams that have waited."""
        return cls(copies=CopyTokens(wake=wake), growths=Tokens(GROWTHS_AT_ONCE, wake))

    def leave(self, stream: str) -> None:
        """The stream is not owned here any more."""
        self.copies.give_back(stream)
        self.growths.give_back(stream)

"""What the owners of all streams on one host share: which hosts confirm, and who may do what is not urgent.

Invariants:
* `HostProgress` counts only confirmations of more than was durable before: a host whose process lives, and whose disk
  hangs, makes no progress. It keeps two numbers for each host of how slow that is (`LongestLately`).
* Copies wait for goes (`copy_tokens`), changes of members because a host has come for their turn (`growths`).
* No clock: who calls says what time it is, in milliseconds of the owners' time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from logstore.base.longest_lately import LongestLately
from logstore.replica.copy_tokens import CopyTokens
from logstore.replica.growths import Growths

LATELY_MS: Final = 30_000
"""What a host was seen to take counts for that long, and twice as long at most."""


class HostTimes:
    """The longest time that each host has taken lately for something."""

    def __init__(self) -> None:
        self._longest: dict[str, LongestLately] = {}

    def note(self, host: str, took_ms: int, now_ms: int) -> None:
        """A host has taken so long."""
        self._longest.setdefault(host, LongestLately(LATELY_MS)).note(took_ms, now_ms)

    def of(self, host: str, now_ms: int) -> int:
        """The longest time lately; 0: it was always quick."""
        longest = self._longest.get(host)
        return 0 if longest is None else int(longest.at(now_ms))


class HostProgress:
    """When each host has last made something durable that was sent to it, and how long it takes (`patience`).

    `silences`: for how long hosts that had something to confirm confirmed nothing at all, until they did; `waits`: for
    how long batches waited for them.
    """

    def __init__(self) -> None:
        self._confirmed_ms: dict[str, int] = {}
        self.silences, self.waits = HostTimes(), HostTimes()

    def note(self, host: str, now_ms: int) -> None:
        """A host has confirmed more than before, of any stream."""
        self._confirmed_ms[host] = now_ms

    def silent_ms(self, host: str, since_ms: int, now_ms: int) -> int:
        """For how long a host that was to confirm something since a time has confirmed nothing at all."""
        return now_ms - max(since_ms, self._confirmed_ms.get(host, since_ms))


@dataclass(frozen=True, slots=True)
class HostState:
    """See the module."""

    progress: HostProgress = field(default_factory=HostProgress)
    copies: CopyTokens = field(default_factory=CopyTokens)
    """For chunks that are copied."""
    growths: Growths = field(default_factory=Growths)
    """For streams that go on with more members, because a host has come."""

    @classmethod
    def waking(cls, wake: Callable[[str], None], is_busy: Callable[[], bool]) -> "HostState":
        """The state of a host that is told of streams that have waited; `is_busy`: whether it takes appends now."""
        return cls(copies=CopyTokens(wake=wake), growths=Growths(wake, is_busy))

    def leave(self, stream: str) -> None:
        """The stream is not owned here any more."""
        self.copies.give_back(stream)
        self.growths.leave(stream)

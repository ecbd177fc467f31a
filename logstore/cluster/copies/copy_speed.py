"""From which hosts copies to this one may be faster than the least rate, by slots of the coordinator of checkpoints.

| what this host knows | copies |
|---|---|
| nobody has ever asked for slots here | as fast as appends let them |
| a coordinator gives slots | from hosts with a slot, or that it does not plan, the same; else at the least rate |
| no coordinator has ever led that gives slots | as fast as appends let them |
| the one that led last gives no answer | at the least rate, for AWAY_S; then as fast as appends let them |

Invariants: a slot ends SHARE of its time after it was asked for; at the coordinator, which counts from when it answers,
it has not ended by then, however slow the answer was and though clocks differ. No clock, no I/O.

Source: SGuard, section 5 (a coordinator calls back when a chunk may be moved); decision 0093.
"""

from collections.abc import Collection
from typing import Final

from logstore.base.copy_slots import MAX_SOURCES, SlotAnswer

AWAY_S: Final = 10.0
"""As for the plan of copies (`copy_requests`): another coordinator leads by then, if any can."""
FORGOTTEN_S: Final = 5.0
"""Nobody was asked for so long: whether a coordinator is away is not known any more."""
WANTED_S: Final = 1.0
"""A piece that was wanted so long ago says that its source's copies are still under way."""
SHARE: Final = 0.9
"""The rest is for clocks of different speed."""


class CopySpeed:
    """See the module."""

    def __init__(self) -> None:
        self._is_limited = False
        self._ends_s: dict[str, float] = {}
        self._unplanned: frozenset[str] = frozenset()
        self._wanted_s: dict[str, float] = {}
        self._unanswered_s = self._unanswered_last_s = float("-inf")
        """Since when nobody answers, and when that was found last."""
        self._away = -1
        """The revision of the leader that has not answered for AWAY_S."""

    # ---- what pieces ask

    def want(self, source: str, now_s: float) -> None:
        """A piece from this host is wanted."""
        self._wanted_s[source] = now_s

    def may_be_fast(self, source: str, now_s: float) -> bool:
        """Whether copies from this host may be faster than the least rate."""
        return not self._is_limited or source in self._unplanned or self._ends_s.get(source, 0.0) > now_s

    # ---- what is asked for

    def wanted(self, now_s: float) -> list[str]:
        """The hosts from which copies come, MAX_SOURCES at most."""
        self._wanted_s = {source: at_s for source, at_s in self._wanted_s.items() if now_s - at_s < WANTED_S}
        return list(self._wanted_s)[:MAX_SOURCES]

    def held(self, now_s: float) -> list[str]:
        """The hosts from which copies have a slot."""
        return [source for source, end_s in self._ends_s.items() if end_s > now_s][:MAX_SOURCES]

    def counts(self, now_s: float) -> tuple[int, int]:
        """From how many hosts copies have a slot, and from how many they are at the least rate for want of one."""
        waiting = sum(not self.may_be_fast(source, now_s) for source in self.wanted(now_s))
        return len(self.held(now_s)), waiting

    def next_end_s(self, now_s: float) -> float | None:
        """When the next slot ends; None: there is none."""
        return min((end_s for end_s in self._ends_s.values() if end_s > now_s), default=None)

    # ---- what is answered

    def begin(self) -> None:
        """A coordinator will be asked: it may give slots."""
        self._is_limited = True

    def answered(self, answer: SlotAnswer, wanted: Collection[str], asked_s: float) -> None:
        """A coordinator answers what was asked for at a time."""
        self._is_limited, self._away, self._unanswered_last_s = True, -1, float("-inf")
        self._unplanned = frozenset(answer.unplanned)
        self._ends_s = {
            source: asked_s + SHARE * left_ms / 1000 for source, left_ms in answer.slots.items() if source in wanted
        }

    def nobody_gives(self) -> None:
        """Nobody has ever given slots."""
        self._is_limited = False

    def unanswered(self, leader: int, now_s: float) -> None:
        """Whoever gives slots has not answered; slots that it gave last. `leader`: the revision of its entry."""
        if now_s - self._unanswered_last_s > FORGOTTEN_S:
            self._unanswered_s = now_s
        self._unanswered_last_s = now_s
        if now_s - self._unanswered_s >= AWAY_S:
            self._away = leader
        self._is_limited = leader != self._away

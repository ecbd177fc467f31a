"""Members that have failed, and are not chosen for chunks for a while.

Invariant: a member that fails again and again is not chosen for twice as long each time, up to MAX_SUSPECT_PAUSES; one
that has not failed for long begins anew. What fails before its last pause was over, because it has confirmed something
meanwhile, has failed once: a chunk that nobody stands in for may be late many times in a moment. A member that was
slow, and has confirmed something since, is slow and not broken: a host that is drained does not stand in for it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from logstore.replica.registrations import Member

MAX_SUSPECT_PAUSES: Final = 120
"""A member that fails again and again is tried once in so many times `suspect_ms`: ten minutes."""
FORGET_AFTER_PAUSES: Final = 4
"""A member that has not failed for so many times its last pause begins anew."""


@dataclass(slots=True)
class Suspects:
    """Members that failed, until when they are not chosen: twice as long as the last time, if that was not long ago.

    So a host whose disk is broken does not cost a chunk every few seconds.
    """

    until_ms: dict[Member, int] = field(default_factory=dict)
    _pauses: dict[Member, tuple[int, int]] = field(default_factory=dict)
    """How long a member was not chosen last, and since when."""
    _again: set[Member] = field(default_factory=set)
    """Members that have failed again, the last time that they failed."""
    _silent: set[Member] = field(default_factory=set)
    """Members that were too slow, and have confirmed nothing since."""

    def add(self, member: Member, suspect_ms: int, now_ms: int, *, is_slow: bool = False) -> None:
        """A member has failed, that was no suspect. `is_slow`: it may be alive and well, and was too slow."""
        is_broken = not is_slow or member in self._silent
        (self._silent.add if is_slow else self._silent.discard)(member)
        pause_ms, since_ms = self._pauses.get(member, (0, 0))
        if now_ms < since_ms + pause_ms:
            self.until_ms[member] = since_ms + pause_ms
            return
        is_repeated = pause_ms and now_ms - since_ms < FORGET_AFTER_PAUSES * pause_ms
        pause_ms = min(2 * pause_ms, MAX_SUSPECT_PAUSES * suspect_ms) if is_repeated else suspect_ms
        self._pauses[member] = (pause_ms, now_ms)
        (self._again.add if is_repeated and is_broken else self._again.discard)(member)
        self.until_ms[member] = now_ms + pause_ms

    def add_all(
        self, members: Iterable[Member], gone: Collection[Member], suspect_ms: int, now_ms: int, *, is_slow: bool
    ) -> None:
        """Members have failed, those of them that are gone because they are: that is not broken."""
        for member in members:
            if member in gone:
                self.until_ms[member] = now_ms + suspect_ms
            else:
                self.add(member, suspect_ms, now_ms, is_slow=is_slow)

    def confirmed(self, member: Member) -> None:
        """A member of the open chunk has confirmed something: it may be chosen at once."""
        self.until_ms.pop(member, None)
        self._silent.discard(member)

    def answered(self, member: Member) -> None:
        """A member has confirmed what it was too slow for: it is none that is broken, and has its pause still."""
        self._silent.discard(member)
        self._again.discard(member)

    def is_suspect(self, member: Member, now_ms: int) -> bool:
        """Whether a member has failed lately."""
        if self.until_ms.get(member, now_ms) <= now_ms:
            self.until_ms.pop(member, None)
            return False
        return True

    def able(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """The members without suspects that have failed again and again: for a moment nobody stands in for them."""
        if not self.until_ms:
            return members
        return tuple(member for member in members if member not in self.until_ms or member not in self._again)

    def wake_ms(self, members: tuple[Member, ...]) -> int | None:
        """When one of these that has failed may be chosen again; None if none of them has failed."""
        if not self.until_ms:
            return None
        return min((self.until_ms[member] for member in members if member in self.until_ms), default=None)

"""The deadlines of groups: a rebalance waits for joins, then for syncs; what is kept is waited for; each member has a
session.

Invariant: a group has one deadline of each kind at most, and so has a member.
"""

from enum import Enum
from typing import NamedTuple

from logstore.kafka.groups.members import NO_MEMBER, GroupMember
from logstore.kafka.groups.timers import KeyedTimers


class DeadlineKind(Enum):
    """What ends at a deadline."""

    JOIN = "join"
    SYNC = "sync"
    KEPT = "kept"
    """Of a group: its generation is to be kept by then. Of a member: its new id is."""
    MEMBER = "member"


class GroupDeadline(NamedTuple):
    """A deadline; `member_id` is empty if it is a group's."""

    kind: DeadlineKind
    group_id: str
    member_id: str = NO_MEMBER


class GroupDeadlines:
    """All deadlines; times are monotonic seconds."""

    def __init__(self) -> None:
        self._timers: KeyedTimers[GroupDeadline] = KeyedTimers()

    def __len__(self) -> int:
        return len(self._timers)

    def next_s(self) -> float | None:
        """The next deadline (may be early, never late); None: there is none."""
        return self._timers.next_deadline()

    def due(self, now_s: float) -> GroupDeadline | None:
        """Remove and return a deadline that has passed, or None."""
        return self._timers.due(now_s)

    def set(self, kind: DeadlineKind, group_id: str, at_s: float, member_id: str = NO_MEMBER) -> None:
        """Set or move a deadline of a group, or of a member."""
        self._timers.set(GroupDeadline(kind, group_id, member_id), at_s)

    def cancel(self, kind: DeadlineKind, group_id: str, member_id: str = NO_MEMBER) -> None:
        """A group, or a member, has no such deadline now."""
        self._timers.cancel(GroupDeadline(kind, group_id, member_id))

    def expect(self, group_id: str, member_id: str, at_s: float) -> None:
        """A member, or a client that was given a member id, is to be heard by then."""
        self._timers.set(GroupDeadline(DeadlineKind.MEMBER, group_id, member_id), at_s)

    def heard(self, group_id: str, member: GroupMember, now_s: float) -> None:
        """A member was heard: its session begins anew."""
        self.expect(group_id, member.member_id, now_s + member.session_timeout_ms / 1000)

    def forget(self, group_id: str, member_id: str) -> None:
        """The member is gone, or has another id."""
        self._timers.cancel(GroupDeadline(DeadlineKind.MEMBER, group_id, member_id))

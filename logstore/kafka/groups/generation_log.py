"""Where generations of groups are kept, as an interface: in a ledger (`generations`), or, by a host alone, nowhere."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from logstore.kafka.groups.group import ConsumerGroup
from logstore.kafka.groups.members import GroupMember
from logstore.log.ticket import Ticket


class KeepResult(NamedTuple):
    """What has become of a generation that was to be kept. `at_s`: when that was known, in monotonic seconds."""

    at_s: float
    is_durable: bool


class GenerationLog(Protocol):
    """Where generations are kept, so that their members outlive the coordinator."""

    def groups(self) -> Iterable[ConsumerGroup | None]:
        """The groups of a former coordinator, each with its newest generation; None: one that cannot be read, or a step
        towards the next one. Asked once, and each group is read when it is asked for.
        """

    def keep(self, group: ConsumerGroup, now_s: float) -> Ticket[KeepResult]:
        """Keep a group as it is now. The ticket settles when the generation is durable, or may not be; never fails."""

    def keep_member(self, group: ConsumerGroup, member: GroupMember, now_s: float) -> Ticket[KeepResult]:
        """Keep a static member that has another id now, in a generation that is kept. The ticket as of `keep`."""

    def forget(self, group_id: str) -> None:
        """The group has no members any more."""


class NothingKept:
    """No generation is kept: members join again after a restart."""

    def groups(self) -> Iterable[ConsumerGroup | None]:
        """See GenerationLog."""
        return ()

    def keep(self, group: ConsumerGroup, now_s: float) -> Ticket[KeepResult]:
        """See GenerationLog."""
        return Ticket.succeeded(KeepResult(now_s, is_durable=True))

    def keep_member(self, group: ConsumerGroup, member: GroupMember, now_s: float) -> Ticket[KeepResult]:
        """See GenerationLog."""
        return self.keep(group, now_s)

    def forget(self, group_id: str) -> None:
        """See GenerationLog."""

"""Which disk a host has, and whether it is the one that the metadata store knows.

A disk has a label: a random id, given when it is formatted and never again, the host it was formatted for, the number
of its starts, and a random name of the last one. The metadata store has the label of the last start, in a register of
the disk. At a start the host reads the register, judges the disk, writes the label of the new start to the disk,
durably, and then swaps it into the register; it is a member only after that. A label whose swap is refused, while the
register does not hold it, is judged anew: somebody else starts a copy of the same disk.

So a disk can be told apart that
* is empty: it has no label, gets a new id, and is a new member, without the chunks of the old one;
* belongs to another host: its label says so;
* is an old copy (a snapshot, a clone) from before the disk's last start: its number of starts is below the register's.

A copy made since the last start has the same number and is not told apart by it: it looks like the disk. What it lacks
of the open chunk is seen by the owner (it asks for what it had already confirmed), or by a takeover if another member
knows more to be acknowledged; docs/replication.md says what is not promised.

Source: RELIABILITY of the house, "a wiped disk loses its identity"; Apache BookKeeper's cookies, which hold no count.
"""

from dataclasses import dataclass, replace
from enum import Enum

from logstore.replica.registrations import Member, OwnerId


@dataclass(frozen=True, slots=True)
class DiskLabel:
    """What is written on a disk, and in the register of its id. A disk that was formatted has not started yet."""

    disk: str
    host: str
    starts: int = 0
    start: str = ""

    @property
    def member(self) -> Member:
        """The host as the owner of this disk."""
        return Member(self.host, self.disk)

    @property
    def owner_id(self) -> OwnerId:
        """The host in the life that began with the last start."""
        return OwnerId(self.host, self.start)

    def next_start(self, start: str) -> "DiskLabel":
        """The label to write, first on the disk and then in the register. `start`: a random name, never used before."""
        return replace(self, starts=self.starts + 1, start=start)


class DiskVerdict(Enum):
    """What a host's disk is."""

    EMPTY = "the disk has no label: format it, as a new disk"
    KNOWN = "the disk is the one that the metadata store knows"
    FOREIGN = "the disk belongs to another host: put it back there, or format it"
    OLD_COPY = "the disk is a copy from before its last start: format it"


def judge_disk(host: str, label: DiskLabel | None, registered: DiskLabel | None) -> DiskVerdict:
    """What the disk of a host is, by its label and by the register of its id (None: it never started).

    A label that is one start ahead of the register is that of a start which ended between its two writes.
    """
    if label is None:
        return DiskVerdict.EMPTY
    if label.host != host or (registered is not None and registered.host != host):
        return DiskVerdict.FOREIGN
    if registered is not None and label.starts < registered.starts:
        return DiskVerdict.OLD_COPY
    return DiskVerdict.KNOWN

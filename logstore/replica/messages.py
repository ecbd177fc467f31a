"""The messages between the owner of a stream, the replicas of its chunks, and readers.

Invariants:
* A message to a replica names the disk that it is for, and a replica answers with the disk it has: a host whose disk
  was wiped or changed takes no part in what was arranged with the old one.
* Every message may be lost, repeated, late or out of order. A chunk is named by stream and epoch, and a place in it
  by a prefix (bytes, offset and checksum), so that each message carries all that it takes to judge it.
* Only appends and fences depend on time, and both carry an epoch. Everything else is about sealed chunks, whose content
  never changes.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from logstore.replica.registrations import Member, Prefix


class BatchEntry(NamedTuple):
    """A batch: its bytes, which replication does not look into, and the number of its records."""

    data: bytes
    record_count: int


def end_after(at: Prefix, entries: tuple[BatchEntry, ...]) -> Prefix:
    """The prefix behind entries that begin at a prefix."""
    for entry in entries:
        at = at.followed_by(entry.data, entry.record_count)
    return at


# ---- to a replica


@dataclass(frozen=True, slots=True)
class Append:
    """Entries of an open chunk, from the owner, along a chain.

    `at`: what the replica must have in front of them. `acked_bytes`: this much of the chunk is acknowledged.
    `forward`: the members that get the message next, one from the other. Without entries it carries `acked_bytes`
    alone.
    """

    stream: str
    disk: str
    epoch: int
    base_offset: int
    owner: str
    at: Prefix
    entries: tuple[BatchEntry, ...]
    acked_bytes: int
    forward: tuple[Member, ...] = ()
    founding: bytes = b""
    """What the log keeps beside a chunk, as of its start; only with the first entries. Replication does not look into
    it: the log puts the producers' last sequences there.
    """


@dataclass(frozen=True, slots=True)
class Fence:
    """Take no more appends of epochs below `fence_epoch`, and say how much of the chunk there is."""

    stream: str
    disk: str
    epoch: int
    base_offset: int
    fence_epoch: int


@dataclass(frozen=True, slots=True)
class CopyChunk:
    """Get what is missing of a sealed chunk from `source`.

    `revision`: of the registration when the copy began, which names the replica for it; a repeated order has the same.

    Without a source the replica answers whether it has the chunk already. `is_urgent`: the stream takes no appends
    until the copy is made.
    """

    stream: str
    disk: str
    epoch: int
    base_offset: int
    end: Prefix
    source: Member | None
    revision: int
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Send entries from an offset on, about `max_bytes` of them.

    `for_copy`: another replica asks, for a chunk that it knows to be sealed. Otherwise a reader asks, who may see only
    what is acknowledged. `is_urgent`: see `CopyChunk`.
    """

    stream: str
    disk: str
    epoch: int
    offset: int
    max_bytes: int
    for_copy: bool
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class LookAtRegistration:
    """The stream's registration has changed. A hint: the replica asks the metadata store, and believes only that."""

    stream: str
    revision: int


def unknown_entries(end: Prefix, message: Append) -> tuple[BatchEntry, ...] | None:
    """The entries of an append that a replica with this much of the chunk does not have yet; None if they contradict
    what it has.
    """
    at = message.at
    for number, entry in enumerate(message.entries):
        if at.length_bytes >= end.length_bytes:
            return message.entries[number:] if at == end else None
        at = at.followed_by(*entry)
    return () if at.length_bytes < end.length_bytes or at == end else None


# ---- from a replica


class Reason(Enum):
    """Why a replica does not do what a message asks."""

    FENCED = "a newer owner has fenced the epoch"
    WRONG_DISK = "the host has another disk now"
    DISK_FAILED = "a write or a sync failed"
    DIVERGED = "the bytes in front of these differ"
    SEALED = "the chunk is sealed"
    SHORT = "the copy is shorter than the chunk"
    DAMAGED = "the copy does not match its checksum"
    ABSENT = "there is no such chunk"
    DISK_FULL = "the disk has no room for entries"


@dataclass(frozen=True, slots=True)
class AppendDone:
    """The member has the chunk durably up to `durable`. `is_working`: it has more, and its disk has made other things
    durable since it was asked the last time.
    """

    stream: str
    epoch: int
    member: Member
    durable: Prefix
    is_working: bool = False


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The append does not follow what the member has: it needs the entries from `end` on."""

    stream: str
    epoch: int
    member: Member
    end: Prefix


@dataclass(frozen=True, slots=True)
class FenceDone:
    """The fence is durable, and the member will never have more of the chunk than `durable`, unless it is copied."""

    stream: str
    epoch: int
    member: Member
    fence_epoch: int
    durable: Prefix
    acked_bytes: int


@dataclass(frozen=True, slots=True)
class CopyDone:
    """The member has the sealed chunk durably, as a whole. `revision`: of the order that this answers."""

    stream: str
    epoch: int
    member: Member
    end: Prefix
    revision: int


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The member copies, or waits until it may go on; so much is durable. `revision`: of the order."""

    stream: str
    epoch: int
    member: Member
    copied_bytes: int
    revision: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The member does not do it. `fence_epoch`: the lowest epoch from which it takes appends."""

    stream: str
    epoch: int
    member: Member
    reason: Reason
    fence_epoch: int = 0


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """Entries from `at` on. `limit_offset`: where the asker may not read on yet."""

    stream: str
    epoch: int
    member: Member
    at: Prefix
    entries: tuple[BatchEntry, ...]
    limit_offset: int
    founding: bytes = b""
    """See `Append`."""


@dataclass(frozen=True, slots=True)
class StreamRates:
    """What streams of the sender's write, in bytes a second: where new chunks go depends on it, and no promise does."""

    rates: tuple[tuple[str, int], ...]


ToReplica = Append | Fence | CopyChunk | ReadEntries | LookAtRegistration
ToOwner = AppendDone | OutOfOrder | FenceDone | CopyDone | CopyProgress | Refused
Message = ToReplica | ToOwner | EntriesRead | StreamRates

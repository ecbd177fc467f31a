"""What the state machines of replication ask their host to do.

A method of a state machine takes one event and returns effects; the host carries them out and brings what follows from
them back as further events. Effects of one call may be carried out in any order, and crash states are those of any
order: whatever must be durable first is asked for first, and the rest follows in the call that reports it durable.
"""

from dataclasses import dataclass

from logstore.replica.messages import BatchEntry, Message
from logstore.replica.register import ReadRegistration, SwapRegistration
from logstore.replica.registrations import Prefix, StreamRegistration


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a host; itself included."""

    host: str
    message: Message


# ---- the disk of a replica


@dataclass(frozen=True, slots=True)
class WriteEntries:
    """Append entries to a chunk's file; the file is created for the first ones, with `founding` beside it. `is_copy`:
    they are a piece of a copy, on which nobody counts before the chunk is sealed.
    """

    stream: str
    epoch: int
    at: Prefix
    entries: tuple[BatchEntry, ...]
    founding: bytes = b""
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class CutChunk:
    """Cut a chunk's file to a length, check the checksum of the rest, and mark the chunk as sealed."""

    stream: str
    epoch: int
    end: Prefix


@dataclass(frozen=True, slots=True)
class RemoveChunk:
    """Remove a chunk's file."""

    stream: str
    epoch: int


@dataclass(frozen=True, slots=True)
class WriteFence:
    """Note the lowest epoch from which a stream's appends are taken."""

    stream: str
    fence_epoch: int


@dataclass(frozen=True, slots=True)
class RemoveFence:
    """Forget the fence of a stream whose topic was deleted: nobody appends to the stream ever again."""

    stream: str


DiskOperation = WriteEntries | CutChunk | RemoveChunk | WriteFence | RemoveFence


@dataclass(frozen=True, slots=True)
class StoreDurably:
    """Carry out an operation and sync it, then report `stored`, or `store_failed` if either failed.

    Operations on one chunk are carried out in the order in which they were asked for. A power cut before the report may
    leave the operation undone, done or half done; after the report it is done.
    """

    token: int
    operation: DiskOperation


@dataclass(frozen=True, slots=True)
class Load:
    """Read entries of a chunk from an offset on, none behind `limit_bytes`; report `loaded`, or `load_failed`. The
    chunk's founding state comes with entries from its start on. `for_copy`: what was appended as one entry and must
    stay whole, however a copy is interrupted, comes as one entry; and it may wait, unless it `is_urgent`.
    """

    token: int
    stream: str
    epoch: int
    offset: int
    limit_bytes: int
    max_bytes: int
    for_copy: bool = False
    is_urgent: bool = False


# ---- what the owner tells the log


@dataclass(frozen=True, slots=True)
class Ready:
    """The owner takes appends. Readers may see everything below `high_watermark`, which is also the next offset."""

    stream: str
    epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Readable:
    """The owner takes no appends yet, for want of members, and the stream may be read: everything that is acknowledged
    lies in front of `end`. Readers may see all of that if `is_settled`, otherwise of the last chunk what its members
    know to be acknowledged.
    """

    stream: str
    epoch: int
    end: int
    is_settled: bool


@dataclass(frozen=True, slots=True)
class Acked:
    """Every batch below the high watermark is acknowledged."""

    stream: str
    epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Registered:
    """The registration of the owned stream has changed: a chunk was rolled or copied, or the front of the stream was
    trimmed.
    """

    stream: str
    registration: StreamRegistration


@dataclass(frozen=True, slots=True)
class Deposed:
    """The stream has a newer owner. What was not acknowledged, from `unacked_offset` on, may be in the log or not."""

    stream: str
    newer_epoch: int
    unacked_offset: int


@dataclass(frozen=True, slots=True)
class StreamUnavailable:
    """No member of a chunk can be reached, so the stream waits for one; it never goes on without them."""

    stream: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class TooFewMembers:
    """The stream has been without the members that it needs for longer than a failover takes; batches wait."""

    stream: str
    epoch: int
    needed: int


@dataclass(frozen=True, slots=True)
class EnoughMembers:
    """The stream that had too few members has enough."""

    stream: str


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """For the event log: a member of the open chunk does not keep up, or has refused."""

    stream: str
    epoch: int
    host: str
    reason: str


Effect = (
    Send
    | StoreDurably
    | Load
    | ReadRegistration
    | SwapRegistration
    | Ready
    | Readable
    | Registered
    | Acked
    | Deposed
    | StreamUnavailable
    | TooFewMembers
    | EnoughMembers
    | MemberFailed
)

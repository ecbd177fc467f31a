"""The state of a live stream: pending appends, open groups, the write in flight; and the protocol of its store.

Invariants: plain data; all rules are in `stream`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from logstore.base.clock import Clock
from logstore.base.events import LogEvent
from logstore.format.batch import BatchHeader
from logstore.format.index import NO_TIMESTAMP, IndexEntry
from logstore.interfaces import Buffer
from logstore.log.chunks import Chunk, IndexCache
from logstore.log.jobs import JobSource, WriteFile
from logstore.log.producers import ProducerTable
from logstore.log.retention import RetentionClock
from logstore.log.tail import Tail, TailEntry
from logstore.log.ticket import Ticket


class AppendResult(NamedTuple):
    """Where an append is in the log. `duplicate`: the batch had been appended before. `append_ms`: the time assigned to
    its records; -1 if they keep their own or if the batch is a duplicate.
    """

    base_offset: int
    log_start_offset: int
    duplicate: bool
    append_ms: int = NO_TIMESTAMP


AppendTicket = Ticket[AppendResult]


class AppendGroup(Protocol):
    """Batches that become visible together: BEGIN, the epoch's batches, END (docs/format.md, append groups)."""

    byte_count: int

    def begin(self, now_ms: int) -> bytearray:
        """The BEGIN control batch."""

    def next_batches(self) -> Ticket[bytearray | None]:
        """The next batches, end to end, at most about 1 MiB or one larger batch; None when there are no more."""

    def end(self, now_ms: int) -> bytearray:
        """The END control batch."""


@dataclass(slots=True)
class RecoveredStream:
    """The state of a stream when it is opened (`logstore.log.recovery`)."""

    chunks: list[Chunk]
    producers: ProducerTable[AppendTicket]
    log_start_offset: int
    next_offset: int


class StreamName(Protocol):
    """Names a stream."""

    topic: str
    partition: int


class TrimmedStream(StreamName, Protocol):
    """A stream that retention wants to trim."""

    name: str
    log_start_offset: int
    chunks: list[Chunk]


class StreamHost(Protocol):
    """The services of a store that its streams share."""

    clock: Clock
    retention_clock: RetentionClock
    tail: Tail
    indexes: IndexCache

    def notify(self, source: JobSource) -> None:
        """Note that `source` may have disk work."""

    def save_log_start(self, stream: "StreamName", offset: int) -> Ticket[None]:
        """Make a stream's log start durable; the stream removes data before it only after that."""

    def trim_limit(self, stream: "TrimmedStream", wanted: int) -> int:
        """The offset up to which registered readers let retention trim a stream that it wants to trim to `wanted`."""

    def report(self, event: LogEvent, /, **fields: object) -> None:
        """Report an event to the operator."""


@dataclass(slots=True)
class PendingAppend:
    """A checked batch that waits to be written."""

    buffer: Buffer
    header: BatchHeader
    ticket: AppendTicket


@dataclass(slots=True, eq=False)
class OpenGroup:
    """A group that is being written: its batches, and the state of what is written so far."""

    group: AppendGroup
    ticket: AppendTicket
    base_offset: int = -1
    current: bytearray | None = None
    following: Ticket[bytearray | None] | None = None
    entries: list[IndexEntry] = field(default_factory=list)
    tail: deque[TailEntry] = field(default_factory=deque)
    tail_bytes: int = 0
    tail_cut: bool = False


@dataclass(slots=True)
class PlacedBatch:
    """One batch in a write: bytes, header, and its assigned offset."""

    buffer: memoryview
    header: BatchHeader
    base_offset: int
    kind: int
    """The type of its control record; 0 for any other batch."""

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.header.last_offset_delta + 1


@dataclass(slots=True)
class WriteInFlight:
    """The write in flight. `group_open`: the write ends inside a group, so none of it is visible yet."""

    chunk: Chunk
    is_new_chunk: bool
    batches: list[PlacedBatch]
    appends: list[PendingAppend]
    entries: list[IndexEntry]
    end_position: int
    next_offset: int
    group: OpenGroup | None = None
    group_open: bool = False
    index_write: WriteFile | None = None
    snapshot_write: WriteFile | None = None


class Pin:
    """Prevents a stream from being trimmed at or after an offset."""

    __slots__ = ("_released", "offset")

    def __init__(self, offset: int, released: Callable[["Pin"], None]) -> None:
        self.offset = offset
        self._released = released

    def release(self) -> None:
        """Release the pin."""
        self._released(self)

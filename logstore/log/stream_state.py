"""The state of a live stream: pending appends, open groups, the write in flight; and the protocol of its store.

Invariants: plain data; all rules are in `stream`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from logstore.base.clock import Clock
from logstore.base.events import LogEvent
from logstore.errors import NotEnoughReplicasAfterAppend
from logstore.format.batch import LEADER_EPOCH, BatchHeader
from logstore.format.index import NO_TIMESTAMP, IndexEntry
from logstore.format.journal_block import PartPlace
from logstore.interfaces import Buffer
from logstore.log.backlog import ChunkEnd
from logstore.log.chunks import Chunk, IndexCache
from logstore.log.jobs import DiskJob, JobSource, WriteFile
from logstore.log.journal import Journal
from logstore.log.producers import ProducerTable
from logstore.log.retention import AgedChunk, RetentionClock
from logstore.log.space import SpaceGuard
from logstore.log.tail import Tail, TailEntry
from logstore.log.ticket import Ticket

GROUP_TAIL_BYTES = 4 << 20
"""Bytes of an open group that are kept for the tail."""


class AppendResult(NamedTuple):
    """Where an append is in the log. `duplicate`: the batch had been appended before. `append_ms`: the time assigned to
    its records; -1 if they keep their own or if the batch is a duplicate.
    """

    base_offset: int
    log_start_offset: int
    duplicate: bool
    append_ms: int = NO_TIMESTAMP


AppendTicket = Ticket[AppendResult]


class AnsweredEarly(NotEnoughReplicasAfterAppend):
    """What a ticket settles with whose batch stays in its stream; `ticket` is the one that the batch has now."""

    def __init__(self, message: str, ticket: AppendTicket) -> None:
        super().__init__(message)
        self.ticket = ticket


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
    snapshot_at: int = 0
    """Position of the newest producer snapshot in the last chunk."""
    leader_epoch: int = LEADER_EPOCH
    """Above that of all other streams: a replica of a chunk, whose batches have their offsets, and leader epochs up to
    this one.
    """


class SoleLeader:
    """What a stream says of its leaders where one host has it for good."""

    is_leader: Final = True
    is_readable: Final = True
    leader_epoch: int
    high_watermark: int
    opened_at: int
    """The high watermark of the start."""
    chunks: list[Chunk]

    def check_end(self) -> None:
        """What is acknowledged is in front of the high watermark."""

    @property
    def appended_records(self) -> int:
        """Records that became visible since the start."""
        return self.high_watermark - self.opened_at

    @property
    def chunk_count(self) -> int:
        """The number of chunks."""
        return len(self.chunks)

    @property
    def newest_epoch(self) -> int:
        """The newest leader epoch."""
        return self.leader_epoch


class StreamName(Protocol):
    """Names a stream."""

    topic: str
    partition: int


class TrimmedStream(StreamName, Protocol):
    """A stream that retention wants to trim."""

    name: str
    log_start_offset: int

    @property
    def kept_chunks(self) -> Sequence[AgedChunk]:
        """All its chunks, in order."""


class RollingStream(Protocol):
    """A stream whose last chunk can be sealed without an append."""

    def roll_job(self) -> DiskJob | None:
        """The job that seals the last chunk and opens one behind it; None if there is nothing to do now."""


class StreamKeeper(Protocol):
    """Decides when a stream's files may change (`logstore.log.quiet`)."""

    def may_change(self, stream: Any, /) -> bool:
        """Whether the stream may be written to now. If not, it is notified once it may, or its appends are refused."""

    def wake(self, stream: Any, /) -> Ticket[None]:
        """Settles once the stream's files may change. Fails with StorageFailed."""


class StreamHost(Protocol):
    """The services of a store that its streams share."""

    clock: Clock
    retention_clock: RetentionClock
    tail: Tail
    indexes: IndexCache
    journal: Journal
    space: SpaceGuard

    @property
    def quiet(self) -> StreamKeeper:
        """Who decides when files may change."""

    def notify(self, source: JobSource) -> None:
        """Note that `source` may have disk work."""

    def save_log_start(self, stream: "StreamName", offset: int) -> Ticket[None]:
        """Make a stream's log start durable; the stream removes data before it only after that."""

    def trim_limit(self, stream: "TrimmedStream", wanted: int) -> int:
        """The offset up to which registered readers let retention trim a stream that it wants to trim to `wanted`."""

    def roll_soon(self, stream: "RollingStream") -> None:
        """Note that a stream's last chunk is to be sealed, also when nothing is appended."""

    def report(self, event: LogEvent, /, **fields: object) -> None:
        """Report an event to the operator."""


@dataclass(slots=True)
class PendingAppend:
    """A checked batch that waits to be written."""

    buffer: Buffer
    header: BatchHeader
    ticket: AppendTicket


class PlacedGroup:
    """An append group of a replica: its batches have their offsets (`AppendGroup`)."""

    def __init__(self, batches: Sequence[Buffer]) -> None:
        self.byte_count = sum(map(len, batches))
        self.ticket: AppendTicket = Ticket()
        self._batches = batches
        self._between: bytearray | None = bytearray(b"".join(batches[1:-1]))

    def begin(self, now_ms: int) -> bytearray:
        """The BEGIN control batch."""
        return bytearray(self._batches[0])

    def next_batches(self) -> Ticket[bytearray | None]:
        """All batches between BEGIN and END at once: they were one message."""
        between, self._between = self._between, None
        return Ticket.succeeded(between or None)

    def end(self, now_ms: int) -> bytearray:
        """The END control batch."""
        return bytearray(self._batches[-1])


@dataclass(slots=True, eq=False)
class OpenGroup:
    """A group that is being written: its batches, and the state of what is written so far."""

    group: AppendGroup
    ticket: AppendTicket
    wake: Callable[[], None]
    """Called when batches that were asked for are there."""
    base_offset: int = -1
    is_whole: bool = False
    """All batches of a small group are in `pieces`; it goes into one write."""
    pieces: list[bytearray] = field(default_factory=list)
    current: bytearray | None = None
    following: Ticket[bytearray | None] | None = None
    entries: list[IndexEntry] = field(default_factory=list)
    tail: deque[TailEntry] = field(default_factory=deque)
    tail_bytes: int = 0
    tail_cut: bool = False

    def ask(self) -> Ticket[bytearray | None]:
        """Ask for the next batches."""
        ticket = self.group.next_batches()
        if not ticket.done:
            ticket.add_callback(lambda _: self.wake())
        return ticket

    def gather(self) -> bool:
        """Whether all batches are in `pieces`; asks for what is missing. Raises the error of `next_batches`."""
        while not self.is_whole:
            if self.following is None:
                self.following = self.ask()
            if not self.following.done:
                return False
            piece, self.following = self.following.result(), None
            self.is_whole = piece is None
            if piece is not None:
                self.pieces.append(piece)
        return True

    def advance(self) -> bool:
        """Whether the current and the following batches are both known; asks for the missing ones. Raises the error of
        `next_batches`.
        """
        if self.following is None:
            self.following = self.ask()
        if not self.following.done:
            return False
        if self.current is None and self.following.result() is not None:
            self.current = self.following.result()
            self.following = self.ask()
        return self.following.done

    def keep_for_tail(self, batches: "Sequence[PlacedBatch]", max_bytes: int = GROUP_TAIL_BYTES) -> None:
        """Keep written batches until the group is visible: the newest, of `max_bytes` or one larger batch."""
        for batch in batches:
            self.tail.append(batch.tail_entry())
            self.tail_bytes += len(batch.buffer)
        while self.tail_bytes > max_bytes and len(self.tail) > 1:
            self.tail_bytes -= len(self.tail.popleft().buffer)
            self.tail_cut = True


def next_appends(pending: deque[PendingAppend | OpenGroup], max_bytes: int) -> tuple[list[PendingAppend], int]:
    """Take the appends of the next write from what is pending: at least one, up to `max_bytes`, none behind a group.
    Returns them and their bytes.
    """
    appends: list[PendingAppend] = []
    size = 0
    while pending and size < max_bytes:
        item = pending[0]
        if isinstance(item, OpenGroup) or (appends and size + len(item.buffer) > max_bytes):
            break
        pending.popleft()
        appends.append(item)
        size += item.header.size_bytes
    return appends, size


@dataclass(slots=True)
class PlacedBatch:
    """One batch in a write: bytes, header, and its assigned offset."""

    buffer: memoryview
    header: BatchHeader
    base_offset: int
    kind: int
    """The type of its control record; 0 for any other batch."""
    _entry: TailEntry | None = None

    def tail_entry(self) -> TailEntry:
        """The batch as readers get it from memory."""
        if self._entry is None:
            next_offset = self.base_offset + self.header.last_offset_delta + 1
            self._entry = TailEntry(self.base_offset, next_offset, self.buffer, self.header.is_control, self.kind)
        return self._entry


@dataclass(slots=True)
class WriteInFlight:
    """The write in flight. `group_open`: the write ends inside a group, so none of it is visible yet."""

    chunk: Chunk
    is_new_chunk: bool
    batches: list[PlacedBatch]
    appends: list[PendingAppend]
    entries: list[IndexEntry]
    end: ChunkEnd
    place: PartPlace | None = None
    """Of a write to the journal: where its batches belong."""
    group: OpenGroup | None = None
    group_open: bool = False
    index_write: WriteFile | None = None
    snapshot_write: WriteFile | None = None
    backlog_write: "BacklogWrite | None" = None
    """What a direct write does to the backlog."""
    size_bytes: int = 0
    """Of the batches."""

    def buffers(self) -> list[memoryview]:
        """The batches, in order."""
        return [batch.buffer for batch in self.batches]


@dataclass(slots=True)
class BacklogWrite:
    """What of a backlog a job writes to the chunk: everything up to `end`; `is_synced`: and syncs it.

    `batches` and `entries` count what it takes from the backlog.
    """

    end: ChunkEnd
    batches: int
    entries: int
    is_synced: bool
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


class Pins:
    """The pins of one stream."""

    def __init__(self) -> None:
        self._pins: dict[Pin, None] = {}
        self.unpinned: Ticket[None] = Ticket()
        """Settles when the next pin is released; then there is a new ticket."""

    def add(self, offset: int) -> Pin:
        """A new pin."""
        pin = Pin(offset, self._release)
        self._pins[pin] = None
        return pin

    def lowest(self, default_offset: int) -> int:
        """The lowest pinned offset: records at or after it must not be trimmed now. Without pins, the default."""
        return min([pin.offset for pin in self._pins], default=default_offset)

    def _release(self, pin: Pin) -> None:
        self._pins.pop(pin, None)
        unpinned, self.unpinned = self.unpinned, Ticket()
        unpinned.succeed(None)

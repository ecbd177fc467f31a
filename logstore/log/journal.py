"""The shared journal: small appends of all streams, acknowledged by one write and one sync.

Streams offer their pending batches. One block at a time takes the parts of all streams that have offered batches, and
all of them are acknowledged when the block is synced. The chunks get the same batches later, in larger writes
(`logstore.log.backlog`). The parts of a bundle, an epoch's decision and its groups, are in the same block, or in none.
When a file is full, the next block goes to another file, and the chunks of all streams in the full file are written and
synced. A file that no stream needs is used again from its start.

Invariants:
* A part names a chunk that already holds at least one synced batch, and continues this chunk without a gap. So a
  part never lies at a place that another chunk of the same name could get.
* One block is in flight at a time. A failed write or sync is final for the file: no more blocks go there, and every
  stream with a part in the failed block opens a new chunk before it appends again, so that recovery cannot put that
  part over newer data (a chunk is valid only up to the base offset of the next).
* A file is used again only when every stream with a part in it has synced its chunk behind that part.
* Bounded: MAX_FILES files of about `file_bytes` each; `max_unwritten_bytes` of batches that no chunk file has.
  Beyond a bound, `has_room` is false, and streams write to their chunks directly.

Sources: Apache BookKeeper's journal, which shares one sync among all ledgers; CEC paper, section IX (asynchronous
writes: here those of chunks, behind the journal); docs/format.md.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from logstore.base.events import Report
from logstore.events import JOURNAL_FAILED
from logstore.format.journal_block import MAX_PARTS, VERSION, WITH_LEDGER, PartPlace, encode_head, encode_opening
from logstore.interfaces import Buffer
from logstore.log.coroutines import all_settled, start
from logstore.log.jobs import (
    Create,
    DiskJob,
    JobSource,
    Operation,
    RemoveFile,
    Sync,
    SyncDirectory,
    WriteFile,
)
from logstore.log.ticket import Ticket

DIRECTORY: Final = "journal"
SUFFIX: Final = ".journal"
MAX_FILES: Final = 3
"""One is written, one has its streams synced, and one is spare, so that appends do not wait for these syncs."""
DEFAULT_FILE_BYTES: Final = 32 << 20
"""Replaying two full files takes a restart about half a second; smaller ones mean more syncs of chunks."""
DISK_SHARE: Final = 64
"""A file takes at most this part of a disk."""
MAX_BLOCK_BYTES: Final = 1 << 20
"""A block with this much takes no more parts. A bundle is at most as large, so a block may have twice as much."""
MAX_BUNDLE_PARTS: Final = MAX_PARTS // 4
"""Of one bundle; and a block with so many parts of bundles takes no further bundle."""
SHORT_BLOCK_BYTES: Final = 256 << 10
"""A block up to this size takes hardly longer than an empty one."""
PREALLOCATED_BYTES: Final = 1 << 20
"""A file grows in such steps, written with zeros: a sync of written blocks needs no change of the file's metadata."""
SYNCS_IN_FLIGHT: Final = 2
"""Streams whose backlogs are synced at the same time; more would take the disk from the appends."""
_ZEROS: Final = bytes(PREALLOCATED_BYTES)


class JournalFlight(Protocol):
    """A stream's part of a block."""

    place: PartPlace | None

    def buffers(self) -> Sequence[Buffer]:
        """The batches, in order."""


class Holder(Protocol):
    """What the journal asks of an owner of parts, who needs a part's file until the part is durable elsewhere."""

    def journaled(self, flight: Any, generation: int) -> None:
        """The part is durable in the journal's file of a generation."""

    def journal_failed(self, flight: Any, operation: Operation, error: OSError) -> None:
        """The part was not written, as far as anybody knows."""

    def sync_backlog(self) -> Ticket[None]:
        """Make durable elsewhere what only the journal has: of a stream, in its chunk."""


class JournaledStream(JobSource, Holder, Protocol):
    """What the journal asks of a stream."""

    def take_part(self) -> Any:
        """The stream's next write as a part of a block (a JournalFlight); None if it has none for the journal now."""

    def write_backlog(self) -> Ticket[None]:
        """Write what the chunk's file lacks, unsynced."""


class Bundle(Protocol):
    """Parts that go into one block together."""

    def take_parts(self) -> "Sequence[tuple[Holder, Any]]":
        """All parts (of a JournalFlight each), changes of a ledger last; empty if not all can be in a block now."""

    def refused(self) -> None:
        """The journal takes no parts now."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Bounds of the journal, in bytes. `file_bytes` 0: no journal. `max_part_bytes`: a stream with more pending than
    that writes to its chunk; five requests of 16 KB are less.
    """

    file_bytes: int = DEFAULT_FILE_BYTES
    max_part_bytes: int = 128 << 10
    max_unwritten_bytes: int = 12 << 20
    stream_unwritten_bytes: int = 256 << 10


@dataclass(slots=True, eq=False)
class JournalFile:
    """One file. `holders`: the streams, and the decisions of epochs, that need it for a recovery."""

    path: str
    generation: int
    size_bytes: int = 0
    allocated_bytes: int = 0
    is_new: bool = True
    is_broken: bool = False
    holders: dict[Holder, None] = field(default_factory=dict)


class Journal:
    """The journal of one store. Does no I/O itself: its jobs do."""

    def __init__(self, limits: JournalLimits, key: bytes, notify: Callable[[JobSource], None], report: Report) -> None:
        self.limits = limits
        self.key = key
        self._notify = notify
        self._report = report
        self._files: dict[int, JournalFile] = {}
        self._active: JournalFile | None = None
        self._generation = 0
        self._serial = 0
        self._offered: dict[JournaledStream, None] = {}
        self._bundles: deque[Bundle] = deque()
        self._in_flight = False
        self._is_resting = False
        self._due: dict[Holder, None] = {}
        self._syncs = 0
        self._unwritten: dict[JournaledStream, None] = {}
        self._unwritten_before: list[JournaledStream] = []
        self._removals: deque[str] = deque()
        self._closing: Ticket[None] | None = None
        self.unwritten_bytes = 0
        self.blocks = 0
        self.parts = 0

    # ---- what streams ask

    @property
    def has_room(self) -> bool:
        """Whether the journal takes parts now; if not, streams write to their chunks."""
        if not self.limits.file_bytes or self._is_resting or self._closing is not None:
            return False
        if self.unwritten_bytes >= 2 * self.limits.max_unwritten_bytes:
            return False
        return self._has_open_file or len(self._files) < MAX_FILES or self._free_file() is not None

    def offer(self, stream: JournaledStream) -> None:
        """A stream has a part for the next block."""
        if not self._offered:  # otherwise the journal is notified already, or will be when its job ends
            self._notify(self)
        self._offered[stream] = None

    def offer_together(self, bundle: Bundle) -> None:
        """Parts for one block; the bundle is told what became of them."""
        self._bundles.append(bundle)
        self._notify(self)

    def note_unwritten(self, stream: JournaledStream, change_bytes: int, total_bytes: int) -> None:
        """A stream's unwritten bytes have changed, to `total_bytes`; too many of all streams are written out, oldest
        first.
        """
        self.unwritten_bytes += change_bytes
        if not total_bytes:
            self._unwritten.pop(stream, None)
        else:
            self._unwritten.setdefault(stream)
        excess = self.unwritten_bytes - self.limits.max_unwritten_bytes
        if excess > 0 and change_bytes > 0:
            oldest = next(iter(self._unwritten))
            del self._unwritten[oldest]
            self._unwritten[oldest] = None
            oldest.write_backlog()

    def sync_soon(self, stream: Holder) -> None:
        """Sync a stream's backlog, a few streams at a time."""
        self._due[stream] = None
        self._start_syncs()

    def release(self, stream: Holder, generations: Sequence[int]) -> None:
        """A stream, or a decision, does not need these files any more."""
        for generation in generations:
            file = self._files.get(generation)
            if file is not None:
                file.holders.pop(stream, None)
                if file.is_broken and not file.holders:
                    self._remove(file)

    def tick(self) -> None:
        """Write out what has waited since the last tick, try again what failed. Runs every few seconds."""
        self._is_resting = False
        before, self._unwritten_before = self._unwritten_before, list(self._unwritten)
        for stream in before:
            if stream in self._unwritten:
                stream.write_backlog()
        for file in self._files.values():
            if file is not self._active:
                self._due.update(file.holders)
        self._start_syncs()

    def sources(self) -> list[tuple[str, int]]:
        """Paths and lengths of all files with blocks that may be needed."""
        return [(file.path, file.size_bytes) for file in self._files.values() if file.holders]

    # ---- writing

    def take_job(self) -> DiskJob | None:
        """The next block, or the removal of files; None if there is none or one is in flight."""
        if self._in_flight:
            return None
        while self._bundles and not self.has_room:
            self._bundles.popleft().refused()
        if self._removals or self._closing is not None:
            return self._removal_job()
        if not self._offered and not self._bundles:
            return None
        file = self._file_for_block()
        if file is None:
            offered, self._offered = self._offered, {}
            for stream in offered:
                self._notify(stream)
            return None
        flights = self._take_bundles()
        parts: list[tuple[PartPlace, Sequence[Buffer]]] = [(flight.place, flight.buffers()) for _, flight in flights]
        size, version = _size_of(parts), WITH_LEDGER if parts else VERSION
        while self._offered and size < MAX_BLOCK_BYTES and len(parts) < MAX_PARTS:
            stream = next(iter(self._offered))
            del self._offered[stream]
            flight = stream.take_part()
            if flight is not None:
                buffers = flight.buffers()
                flights.append((stream, flight))
                parts.append((flight.place, buffers))
                size += sum(map(len, buffers))
        return self._block_job(file, flights, parts, version) if parts else None

    def _take_bundles(self) -> list[tuple[Holder, Any]]:
        """The parts of bundles for a block, so many that streams have room beside them."""
        flights: list[tuple[Holder, Any]] = []
        size = 0
        while self._bundles and size < MAX_BLOCK_BYTES and len(flights) < MAX_BUNDLE_PARTS:
            taken = self._bundles.popleft().take_parts()
            flights += taken
            size += sum(len(buffer) for _, flight in taken for buffer in flight.buffers())
        return flights

    def _block_job(
        self,
        file: JournalFile,
        flights: list[tuple[Holder, Any]],
        parts: list[tuple[PartPlace, Sequence[Buffer]]],
        version: int,
    ) -> DiskJob:
        opening = b"" if file.size_bytes else self._opening_block(file)
        start_bytes = file.size_bytes + len(opening)
        buffers: list[Buffer] = [encode_head(file.generation, start_bytes, parts, key=self.key, version=version)]
        for _, batches in parts:
            buffers += batches
        end = start_bytes + sum(map(len, buffers))
        operations: list[Operation] = []
        if file.is_new:
            operations += [Create(file.path), SyncDirectory(DIRECTORY)]
        allocated = file.allocated_bytes
        while allocated < end and allocated < self.limits.file_bytes:
            step = min(PREALLOCATED_BYTES, self.limits.file_bytes - allocated)
            operations.append(WriteFile(file.path, allocated, [memoryview(_ZEROS)[:step]]))
            allocated += step
        if opening:
            operations += [WriteFile(file.path, 0, [opening]), Sync(file.path)]
        operations += [WriteFile(file.path, start_bytes, buffers), Sync(file.path)]
        self._in_flight = True
        return DiskJob(
            operations,
            partial(self._written, file, flights, end, allocated),
            partial(self._failed, file, flights),
            is_short=len(operations) == 2 and end - file.size_bytes <= SHORT_BLOCK_BYTES,
        )

    def _opening_block(self, file: JournalFile) -> bytes:
        """The block that a file begins with, synced before anything of the content that was here before is overwritten:
        so a block behind it that is not intact was not being overwritten. It notes where other files end.
        """
        others = [other for other in self._files.values() if other is not file and other.size_bytes]
        return encode_opening(file.generation, [(other.generation, other.size_bytes) for other in others], key=self.key)

    def _written(self, file: JournalFile, flights: list[tuple[Holder, Any]], end: int, allocated: int) -> None:
        self._in_flight = False
        file.is_new = False
        file.size_bytes, file.allocated_bytes = end, allocated
        self.blocks += 1
        self.parts += len(flights)
        for stream, flight in flights:
            file.holders[stream] = None
            stream.journaled(flight, file.generation)
        self._go_on()

    def _failed(
        self, file: JournalFile, flights: list[tuple[Holder, Any]], operation: Operation, error: OSError
    ) -> None:
        self._in_flight = False
        self._is_resting = True
        file.is_broken = True
        self._active = None
        self._report(JOURNAL_FAILED, path=file.path, error=str(error), operation=type(operation).__name__)
        for stream, flight in flights:
            stream.journal_failed(flight, operation, error)
        self._due.update(file.holders)
        self._start_syncs()
        if not file.holders:
            self._remove(file)
        self._go_on()

    def _go_on(self) -> None:
        if self._offered or self._bundles or self._removals or self._closing is not None:
            self._notify(self)

    # ---- files

    @property
    def _has_open_file(self) -> bool:
        return self._active is not None and self._active.size_bytes < self.limits.file_bytes

    def _free_file(self) -> JournalFile | None:
        """A file that may be used again: an intact one is newer, so a start knows of a first block that a power cut
        tore that nothing behind it is needed.
        """
        newest = max(
            (file.generation for file in self._files.values() if file.size_bytes and not file.is_broken), default=0
        )
        for file in self._files.values():
            if file is not self._active and not file.holders and not file.is_broken and file.generation < newest:
                return file
        return None

    def _file_for_block(self) -> JournalFile | None:
        """The file for the next block; None if all are full and held."""
        if not self.has_room:
            return None
        if self._has_open_file:
            return self._active
        full, file = self._active, self._free_file()
        if file is None:
            self._serial += 1
            file = JournalFile(f"{DIRECTORY}/{self._serial}{SUFFIX}", 0)
        else:
            del self._files[file.generation]
        self._generation += 1
        file.generation, file.size_bytes = self._generation, 0
        self._files[file.generation] = self._active = file
        if full is not None:
            self._due.update(full.holders)
            self._start_syncs()
        return file

    def _remove(self, file: JournalFile) -> None:
        del self._files[file.generation]
        if not file.is_new or file.allocated_bytes or file.is_broken:
            self._removals.append(file.path)
            self._notify(self)

    def _removal_job(self) -> DiskJob | None:
        closing = self._closing
        if closing is not None:
            kept = [file for file in self._files.values() if file.holders]
            if not kept:
                self._removals.extend(file.path for file in self._files.values())
                self._files.clear()
        if not self._removals:
            if closing is not None and not closing.done:
                closing.succeed(None)
            return None
        operations: list[Operation] = [RemoveFile(path, optional=True) for path in self._removals]
        operations.append(SyncDirectory(DIRECTORY, optional=True))
        self._removals.clear()
        self._in_flight = True

        def over(*_: object) -> None:
            self._in_flight = False
            self._notify(self)

        return DiskJob(operations, over, over)

    def fit(self, disk_bytes: int) -> None:
        """Keep the files small on a small disk, of `disk_bytes` in all."""
        self.limits = replace(self.limits, file_bytes=min(self.limits.file_bytes, disk_bytes // DISK_SHARE))

    def give_up_spare(self) -> None:
        """The disk has little room: remove the files that no stream needs now."""
        for file in list(self._files.values()):
            if file is not self._active and not file.holders:
                self._remove(file)

    def start_behind(self, serial: int, generation: int) -> None:
        """Start with file names and generations that no earlier life has used."""
        self._serial, self._generation = max(self._serial, serial), max(self._generation, generation)

    # ---- syncs of backlogs

    def _start_syncs(self) -> None:
        while self._due and self._syncs < SYNCS_IN_FLIGHT:
            stream = next(iter(self._due))
            del self._due[stream]
            synced = stream.sync_backlog()
            if not synced.done:
                self._syncs += 1
                synced.add_callback(self._synced)

    def _synced(self, _: Ticket[None]) -> None:
        self._syncs -= 1
        self._start_syncs()

    def settle(self) -> Ticket[None]:
        """Have all that only the journal has made durable elsewhere; settles when that is done, or has failed."""
        holders = dict.fromkeys(holder for file in self._files.values() for holder in file.holders)
        return start(all_settled([holder.sync_backlog() for holder in holders]))

    def close(self) -> Ticket[None]:
        """Remove the files that no stream needs, all of them after a clean end of the streams."""
        if self._closing is None:
            self._closing = Ticket()
            self._notify(self)
        return self._closing


def _size_of(parts: Sequence[tuple[PartPlace, Sequence[Buffer]]]) -> int:
    return sum(len(buffer) for _, buffers in parts for buffer in buffers)

"""Brings a stream's backlog into its chunk: written when there is much of it, synced when the journal needs its file.

Invariants:
* One job of it is in flight at a time, never beside a direct write of the stream; the journal may take further parts
  meanwhile.
* A sync that failed is not tried again: what the chunk has behind its synced end is read back from the journal and goes
  to a new chunk (*salvage*). Until it is read, the stream appends nothing.
* While no job is in flight, nothing here keeps the stream in memory: a deleted topic's streams go at once.
"""

import weakref
from functools import partial
from typing import Protocol

from logstore.errors import StorageFailed
from logstore.events import BACKLOG_NOT_WRITTEN, CHUNK_NOT_SYNCED
from logstore.format.batch import iterate_batches
from logstore.format.control import known_type
from logstore.interfaces import FileSystem
from logstore.log.chunk_writer import ChunkWriter
from logstore.log.jobs import DiskJob, Operation, Sync, WorkOnFile
from logstore.log.journal import JournaledStream
from logstore.log.journal_replay import read_stream
from logstore.log.stream_state import BacklogWrite, StreamHost
from logstore.log.tail import TailEntry
from logstore.log.ticket import Ticket


class BacklogOwner(JournaledStream, Protocol):
    """The stream whose backlog it is."""

    name: str
    directory: str

    def refuse_appends(self, error: OSError) -> None:
        """Fail all pending appends."""


class BacklogWriter:
    """Settles the backlog of one stream."""

    __slots__ = (
        "_host",
        "_in_flight_for",
        "_is_abandoned",
        "_is_over",
        "_noted_bytes",
        "_owner",
        "_synced",
        "_write_to",
        "_writer",
        "_written",
        "must_salvage",
    )

    def __init__(self, stream: BacklogOwner, writer: ChunkWriter, host: StreamHost) -> None:
        self._owner = weakref.ref(stream)
        self._in_flight_for: BacklogOwner | None = None
        self._writer = writer
        self._host = host
        self._written: Ticket[None] | None = None
        self._write_to = 0
        self._synced: Ticket[None] | None = None
        self._noted_bytes = 0
        self._is_abandoned = self._is_over = False
        self.must_salvage = False

    @property
    def _stream(self) -> BacklogOwner:
        stream = self._owner()
        if stream is None:
            raise AssertionError("a stream calls its backlog's writer, or waits for a job of it")
        return stream

    @property
    def in_flight(self) -> bool:
        """Whether a job is in flight."""
        return self._in_flight_for is not None

    def _job_ended(self) -> BacklogOwner:
        """The job in flight has ended; its stream."""
        stream, self._in_flight_for = self._stream, None
        return stream

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for something to be written."""
        return self._written is not None or self._synced is not None

    @property
    def is_busy(self) -> bool:
        """Whether a job is in flight, or must come before anything is appended."""
        return self.in_flight or self.must_salvage

    def write_backlog(self) -> Ticket[None]:
        """Write what the chunk's file lacks now. The ticket fails with StorageFailed if the disk refuses."""
        backlog = self._writer.backlog
        if not backlog.unwritten:
            return Ticket.succeeded(None)
        if self._is_over:
            return self._refusal()
        self._write_to = backlog.acked.next_offset
        if self._written is None:
            self._written = Ticket()
            self._host.notify(self._stream)
        return self._written

    def sync_backlog(self) -> Ticket[None]:
        """Write and sync what is acknowledged now. The ticket fails with StorageFailed if the disk refuses."""
        if not self._writer.backlog.is_unsynced:
            return Ticket.succeeded(None)
        if self._is_over:
            return self._refusal()
        if self._synced is None:
            self._synced = Ticket()
            self._host.notify(self._stream)
        return self._synced

    def _refusal(self) -> Ticket[None]:
        return Ticket.failed(StorageFailed(f"{self._stream.name} is closed or deleted"))

    def take_job(self) -> DiskJob | None:
        """The next job; None if nothing is wanted, or one is in flight."""
        if self.in_flight:
            return None
        if self.must_salvage:
            return self._salvage_job()
        backlog = self._writer.backlog
        is_synced = self._synced is not None
        if self._writer.is_moving or not (is_synced or self._written is not None):
            return None
        if not (backlog.unwritten or (is_synced and backlog.is_unsynced)):
            self.note()
            return None
        write, operations = self._writer.backlog_operations(is_synced=is_synced)
        self._in_flight_for = self._stream
        skipped: list[tuple[Operation, OSError]] = []
        return DiskJob(operations, partial(self._landed, write, skipped), self._failed, skipped)

    def _landed(self, write: BacklogWrite, skipped: list[tuple[Operation, OSError]]) -> None:
        stream = self._job_ended()
        self._writer.backlog_landed(write, [operation for operation, _ in skipped])
        self._host.notify(stream)
        self.note()

    def _failed(self, operation: Operation, error: OSError) -> None:
        stream = self._job_ended()
        self._host.report(BACKLOG_NOT_WRITTEN, stream=stream.name, error=str(error))
        if isinstance(operation, Sync):
            self.note_failed_sync(operation)
        self.fail(error)
        self._host.notify(stream)

    def fail(self, error: OSError) -> None:
        """Tell those who wait for a write that the disk refuses."""
        waiting = [ticket for ticket in (self._written, self._synced) if ticket is not None]
        self._written = self._synced = None
        for ticket in waiting:
            ticket.fail(StorageFailed(f"{self._stream.name}: {error.strerror or error}"))

    def note(self) -> None:
        """The backlog has changed: tell the journal, settle what waited, ask for a write if there is much."""
        if self._is_abandoned:
            return
        backlog, journal = self._writer.backlog, self._host.journal
        unwritten = backlog.unwritten_bytes
        if unwritten != self._noted_bytes:
            change, self._noted_bytes = unwritten - self._noted_bytes, unwritten
            journal.note_unwritten(self._stream, change, unwritten)
        if backlog.holds:
            released = backlog.released(backlog.synced.next_offset)
            if released:
                journal.release(self._stream, released)
        done: list[Ticket[None]] = []
        if self._written is not None and self._is_written:
            done.append(self._written)
            self._written = None
        if self._synced is not None and not backlog.is_unsynced:
            done.append(self._synced)
            self._synced = None
        for ticket in done:
            ticket.succeed(None)
        if unwritten >= journal.limits.stream_unwritten_bytes:
            self.write_backlog()

    @property
    def _is_written(self) -> bool:
        unwritten = self._writer.backlog.unwritten
        return not unwritten or unwritten[0].base_offset >= self._write_to

    # ---- salvage

    def note_failed_sync(self, operation: Operation) -> None:
        """If the failed operation was the sync of the last chunk, what it lacks must come from the journal."""
        chunks, backlog = self._writer.chunks, self._writer.backlog
        if not isinstance(operation, Sync) or not chunks or operation.path != chunks[-1].log_path:
            return
        self._writer.must_roll = True
        if backlog.is_unsynced and not self._writer.is_moving:
            end = backlog.synced
            self._host.report(
                CHUNK_NOT_SYNCED, stream=self._stream.name, first=end.next_offset, last=backlog.acked.next_offset - 1
            )
            self.must_salvage = True
            self._host.notify(self._stream)

    def _salvage_job(self) -> DiskJob:
        backlog, chunk = self._writer.backlog, self._writer.chunks[-1]
        journal = self._host.journal
        sources, key = journal.sources(), journal.key
        found: list[bytes | None] = []
        directory, base = self._stream.directory, chunk.base_offset
        start, end = backlog.synced.position, backlog.acked.position

        def read(fs: FileSystem) -> None:
            found.append(read_stream(fs, sources, key, directory, base, start, end))

        self._in_flight_for = self._stream
        return DiskJob([WorkOnFile(chunk.log_path, read)], lambda: self._salvaged(found), self._not_salvaged)

    def _salvaged(self, found: list[bytes | None]) -> None:
        data = found[0]
        if data is None:
            self._not_salvaged(None, OSError("the journal does not hold what the chunk could not keep"))
            return
        stream = self._job_ended()
        self.must_salvage = False
        view = memoryview(bytearray(data))
        batches = [
            TailEntry(
                header.base_offset,
                header.base_offset + header.last_offset_delta + 1,
                view[at : at + header.size_bytes],
                header.is_control,
                known_type(view[at : at + header.size_bytes]) if header.is_control else 0,
            )
            for at, header in iterate_batches(view)
        ]
        self._writer.begin_move(batches)
        self.note()
        self._host.notify(stream)

    def _not_salvaged(self, operation: Operation | None, error: OSError) -> None:
        """The stream refuses what waits; the next append, or the journal's next tick, tries again."""
        stream = self._job_ended()
        self.fail(error)
        self._host.report(BACKLOG_NOT_WRITTEN, stream=stream.name, error=str(error))
        stream.refuse_appends(error)

    def abandon(self) -> None:
        """The topic is deleted: the journal need not keep anything of it."""
        journal = self._host.journal
        self._is_abandoned = True
        if self._noted_bytes:
            journal.note_unwritten(self._stream, -self._noted_bytes, 0)
            self._noted_bytes = 0
        journal.release(self._stream, list(self._writer.backlog.holds))
        self.close()

    def close(self) -> None:
        """Nothing is written any more."""
        self._is_over = True
        self.fail(OSError("the stream is closed or deleted"))

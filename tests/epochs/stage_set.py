"""A sidecar's store with epochs on a simulated disk, and a small Spark-like client, all on one thread.

Not a mock: every part is the real one; only threads, time and the disk are simulated.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

from logstore.epochs.epochs import Epochs
from logstore.epochs.journaled import decided_in_journal
from logstore.epochs.parts import of_host
from logstore.epochs.staging import Staging
from logstore.format.batch import iterate_batches
from logstore.format.control import decode_control
from logstore.format.epoch_api import (
    EpochCommitReply,
    EpochCommitRequest,
    Part,
    Rewind,
    StageReply,
    StageRequest,
    TaskOutput,
)
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.interfaces import FileSystem
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.testing.clock import ManualClock
from logstore.testing.controls import scan_all
from logstore.testing.driver import run_jobs
from logstore.testing.reports import RecordedReports

T = TypeVar("T")
Rows = Mapping[int, Sequence[str]]
"""Values by partition."""


class Sidecar:
    """One life of a sidecar over a file system."""

    def __init__(
        self,
        fs: FileSystem,
        clock: ManualClock,
        *,
        limit_bytes: int = 1 << 20,
        age_ms: int = 3600_000,
        io_window: int = 8,
    ) -> None:
        self.fs = fs
        self.clock = clock
        self.reports = report = RecordedReports()
        ids = Random(7)

        self.store = Store.open(
            fs,
            clock,
            StoreSettings(io_window=io_window),
            new_id=lambda: uuid.UUID(int=ids.getrandbits(128)),
            report=report,
            decided=decided_in_journal,
        )
        staging = Staging.open(fs, self.store.notify, report, limit_bytes=limit_bytes)
        self.staging = staging
        self.epochs = Epochs(of_host(self.store, staging, report), report, staged_age_ms=age_ms)

    def run(self) -> None:
        """Do all disk work there is."""
        run_jobs(self.store.queue, self.fs)

    def roll_forward(self) -> None:
        """What happens between recovery and serving."""
        for search in self.epochs.searches():
            stream = self.store.stream(search.target.topic, search.target.partition)
            self.epochs.found(search, self.controls(stream, search.from_offset))
        self.settle(self.epochs.roll_forward())
        self.run()

    def settle(self, ticket: Ticket[T]) -> T:
        """The result of a ticket once all disk work is done."""
        self.run()
        return ticket.result()

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic unless it is there."""
        if topic not in self.store.topics:
            self.settle(self.store.create_topic(topic, partitions, {}))

    def controls(self, stream: Stream, from_offset: int = 0) -> list[tuple[int, bytes]]:
        """Control batches of a stream; as the engine does, once the chunk's file has what only the journal had."""
        stream.write_backlog()
        self.run()
        found: list[tuple[int, bytes]] = []
        for view in stream.chunk_views(from_offset):
            found.extend(scan_all(self.fs, self.store.indexes, view, from_offset))
        return found

    def values(self, topic: str, partition: int) -> list[str]:
        """What a consumer of the stream reads, and a letter for each group's BEGIN and END."""
        stream = self.store.stream(topic, partition)
        seen: list[str] = []
        written = [self.fs.read(chunk.log_path, 0, chunk.size_bytes) for chunk in stream.chunks]
        unwritten = stream.read_unwritten(stream.written_offset, 1 << 30) or []
        for data in [*written, b"".join(entry.buffer for entry in unwritten)]:
            for position, header in iterate_batches(data):
                if header.base_offset >= stream.high_watermark:
                    break
                if header.is_control:
                    control = decode_control(data, position)
                    seen.append(f"<{type(control).__name__} {getattr(control, 'epoch', '?')}>")
                else:
                    seen += [(record.value or b"").decode() for record in decode_batch(data, position)]
        return seen

    def records(self, topic: str, partition: int) -> list[str]:
        """What a consumer of the stream reads."""
        return [value for value in self.values(topic, partition) if not value.startswith("<")]


def segment(
    rows: Rows,
    *,
    incarnation: str = "run-1",
    epoch: int,
    task: int = 0,
    attempt: str = "a0",
    position: int = 0,
    topic: str = "out",
) -> StageRequest:
    """One staged segment: one batch for each partition."""
    parts: list[Part] = []
    data = bytearray()
    for partition, values in rows.items():
        batch = encode_batch([Record(0, 1_700_000_000_000, None, value.encode()) for value in values])
        parts.append(Part(topic, partition, len(batch), 1, len(values)))
        data += batch
    return StageRequest("query-1", incarnation, epoch, task, attempt, position, tuple(parts), bytes(data))


def commit_request(
    *tasks: tuple[int, str, int], incarnation: str = "run-1", epoch: int, rewind: Rewind = "error", forget: bool = False
) -> EpochCommitRequest:
    """The driver's commit."""
    outputs = tuple(TaskOutput(*task) for task in tasks)
    return EpochCommitRequest("query-1", incarnation, epoch, rewind, outputs, f"positions of {epoch}", forget)


def stage(sidecar: Sidecar, request: StageRequest) -> StageReply:
    """Stage and wait."""
    return sidecar.settle(sidecar.epochs.stage(request, now_ms=sidecar.clock.wall_ms()))


def commit(sidecar: Sidecar, request: EpochCommitRequest) -> EpochCommitReply:
    """Commit and wait."""
    return sidecar.settle(sidecar.epochs.commit(request, now_ms=sidecar.clock.wall_ms()))

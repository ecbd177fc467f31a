"""Bugs that stores of this kind have had, put back one at a time: the enumerator finds each of them.

They are planted in three ways: a file system that forgets to do something, a rewrite of the disk jobs, or a changed
method. Where a bug shows only behind a fault of the disk, the fault is part of the story.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from logstore.errors import CairnError, CorruptBatch, StorageFailed
from logstore.format.batch import parse_header
from logstore.format.control import END_TYPE, STATE_TYPES
from logstore.interfaces import FileSystem
from logstore.log import chunk_writer, cleaning, recovery
from logstore.log.chunks import Chunk
from logstore.log.cleaning import ChunkCopy, LogCleaner
from logstore.log.jobs import Create, Operation, RemoveFile, Rename, Sync, SyncDirectory, WriteFile
from logstore.log.ledger import Ledger
from logstore.log.producers import ProducerTable
from logstore.log.store import Store
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.testing.crash import CrashPlan, Enumerator, Workload
from logstore.testing.faults import EIO, Fault, FileCall
from logstore.testing.history import History, PromiseBroken
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore
from tests.crash import workloads

pytestmark = pytest.mark.crash
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], Setup]
PLAN = CrashPlan(bounds=CrashBounds(states=64, file_states=32, torn_bytes=512))


class Forgetful:
    """A file system that leaves some calls out."""

    def __init__(self, fs: FileSystem, forgets: Callable[[str, str], bool]) -> None:
        self._fs = fs
        self._forgets = forgets

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs, name)

        def call(*arguments: Any, **named: Any) -> Any:
            path = arguments[0] if arguments else ""
            return None if self._forgets(name, path) else method(*arguments, **named)

        return call


def forgets(what: Callable[[str, str], bool]) -> Setup:
    """A setup over a forgetful file system."""
    return Setup(plant=lambda fs: Forgetful(fs, what), seed=1)


def rewrites(change: Callable[[Sequence[Operation]], Sequence[Operation]]) -> Setup:
    """A setup in which jobs are changed before they run."""
    return Setup(rewrite=change, seed=1)


def without(kind: type, ending: str = "") -> Setup:
    """Jobs without operations of one kind on some files."""
    return rewrites(lambda job: [one for one in job if not (isinstance(one, kind) and path_of(one).endswith(ending))])


def path_of(operation: Operation) -> str:
    """Which file an operation is about."""
    return operation.target if isinstance(operation, Rename) else operation.path


def no_directory_sync(_: Patch) -> Setup:
    """Names are never synced."""
    return forgets(lambda kind, path: kind == "sync_directory")


def no_chunk_name_sync(_: Patch) -> Setup:
    """The name of a new chunk is not synced before its first batch is acknowledged."""

    def change(job: Sequence[Operation]) -> Sequence[Operation]:
        is_roll = any(isinstance(one, Create) and one.path.endswith(".log") for one in job)
        return [one for one in job if not (is_roll and isinstance(one, SyncDirectory))]

    return rewrites(change)


def no_data_sync(_: Patch) -> Setup:
    """Acks without a sync of the chunk."""
    return without(Sync, ".log")


def sync_before_write(_: Patch) -> Setup:
    """The sync runs in front of the write that it should cover."""

    def change(job: Sequence[Operation]) -> Sequence[Operation]:
        order = list(job)
        for at in range(len(order) - 1):
            first, second = order[at], order[at + 1]
            if isinstance(first, WriteFile) and isinstance(second, Sync) and first.path == second.path:
                order[at], order[at + 1] = second, first
        return order

    return rewrites(change)


def ledger_without_sync(_: Patch) -> Setup:
    """A put is acknowledged before it is synced."""
    return rewrites(lambda job: [one for one in job if not (isinstance(one, Sync) and "ledger/" in one.path)])


def rename_before_sync(_: Patch) -> Setup:
    """A rewritten ledger gets its name before its content is synced."""

    def change(job: Sequence[Operation]) -> Sequence[Operation]:
        kept = [one for one in job if not (isinstance(one, Sync) and one.path.endswith(".new"))]
        return kept if any(isinstance(one, Rename) for one in job) else job

    return rewrites(change)


def old_ledger_removed_early(_: Patch) -> Setup:
    """The old ledger file goes before the new one has its name for good."""

    def change(job: Sequence[Operation]) -> Sequence[Operation]:
        gone = [one for one in job if isinstance(one, RemoveFile) and "ledger/" in one.path]
        return [*gone, *(one for one in job if one not in gone and not (gone and isinstance(one, SyncDirectory)))]

    return rewrites(change)


def index_before_data(_: Patch) -> Setup:
    """Index entries are written, and durable, in front of the data that they vouch for."""

    def change(job: Sequence[Operation]) -> Sequence[Operation]:
        early: list[Operation] = []
        for one in job:
            if isinstance(one, WriteFile) and one.path.endswith(".index"):
                early += [one, Sync(one.path, optional=True)]
        made = [one for one in job if isinstance(one, RemoveFile | Create)]
        rest = [one for one in job if one not in early and one not in made]
        return [*made, *early, *rest]

    return rewrites(change)


def watermark_inside_a_group(patch: Patch) -> Setup:
    """The high watermark moves with every write of a group, not with its END."""
    original = Stream._finish_flight

    def finish(self: Stream, flight: Any, operations: list[Operation]) -> Any:
        job = original(self, flight, operations)
        flight.group_open = False
        return job

    patch.setattr(Stream, "_finish_flight", finish)
    return Setup(seed=1)


def half_groups_survive(patch: Patch) -> Setup:
    """Recovery does not cut a group without its END."""

    def note(self: Any, header: Any, position: int, batch: memoryview) -> None:
        self.builder.note(header, header.base_offset, position, self.entries)

    patch.setattr(recovery._TailWalk, "_note", note)
    return Setup(seed=1)


def recovery_does_not_sync(patch: Patch) -> Setup:
    """What a killed process left in the page cache is served without a sync."""
    original = Store.open.__func__  # type: ignore[attr-defined]

    def opened(cls: type[Store], fs: Any, *arguments: Any, **named: Any) -> Store:
        return original(cls, Forgetful(fs, lambda kind, path: kind == "sync"), *arguments, **named)

    patch.setattr(Store, "open", classmethod(opened))
    return Setup(seed=1)


def recovery_does_not_sync_chunks(patch: Patch) -> Setup:
    """The same for the batches alone: ledgers and snapshots of producers are synced."""
    original = Store.open.__func__  # type: ignore[attr-defined]

    def opened(cls: type[Store], fs: Any, *arguments: Any, **named: Any) -> Store:
        forgetful = Forgetful(fs, lambda kind, path: kind == "sync" and path.endswith(".log"))
        return original(cls, forgetful, *arguments, **named)

    patch.setattr(Store, "open", classmethod(opened))
    return Setup(seed=1)


def torn_end_stays(patch: Patch) -> Setup:
    """Recovery leaves the torn end of a chunk in place and appends behind it."""
    original = recovery._open_chunk

    def open_chunk(fs: Any, named: Any, following: int | None, report: Any, journaled: Any) -> Any:
        keeping: Any = Forgetful(fs, lambda kind, _: kind == "truncate")
        chunk = original(keeping, named, following, report, journaled)
        if following is None:
            chunk.size_bytes = fs.size(chunk.log_path)
        return chunk

    patch.setattr(recovery, "_open_chunk", open_chunk)
    return Setup(seed=1)


def no_checksum_at_recovery(patch: Patch) -> Setup:
    """Recovery believes headers without checking the bytes behind them."""
    patch.setattr(recovery, "check_batch", lambda window, at: _whole(parse_header(window, at), len(window) - at))
    return Setup(seed=1)


def _whole(header: Any, available: int) -> Any:
    if header.size_bytes > available:
        raise CorruptBatch("short")
    return header


def trim_not_recorded(patch: Patch) -> Setup:
    """A trim is acknowledged before the new log start is durable."""
    patch.setattr(Store, "save_log_start", lambda self, trimmed, offset: Ticket.succeeded(None))
    return Setup(seed=1)


def producer_ids_not_reserved(patch: Patch) -> Setup:
    """Producer ids are given out before their block is durable."""

    def allocate(self: Store) -> Any:
        first = int(self.catalogue.get("producer-ids") or 0)
        self.catalogue._visible["producer-ids"] = str(first + 1).encode()
        return Ticket.succeeded(first)

    patch.setattr(Store, "allocate_producer_id", allocate)
    return Setup(seed=1)


def topic_before_its_directory(_: Patch) -> Setup:
    """A topic is in the catalogue before its directories are durable."""
    return rewrites(lambda job: [one for one in job if not (isinstance(one, SyncDirectory) and one.path == "streams")])


def ledger_half_applied(patch: Patch) -> Setup:
    """A put of several keys is written as several frames."""
    original = Ledger.put

    def put(self: Ledger, changes: Any) -> Any:
        tickets = [original(self, {key: value}) for key, value in changes.items()]
        return tickets[-1]

    job = Ledger.take_job

    def take_job(self: Ledger) -> Any:
        if self._in_flight or not self._pending:
            return None
        behind = self._pending[1:]
        del self._pending[1:]
        made = job(self)
        self._pending = behind
        return made

    patch.setattr(Ledger, "put", put)
    patch.setattr(Ledger, "take_job", take_job)
    return Setup(seed=1)


def window_smaller_than_a_batch(patch: Patch) -> Setup:
    """Recovery takes a batch that is larger than its read window for a torn one."""
    patch.setattr(
        recovery._TailWalk,
        "_window",
        lambda self, position: memoryview(self.fs.read(self.chunk.log_path, position, recovery.WINDOW_BYTES)),
    )
    return Setup(seed=1)


def sweep_before_sync(patch: Patch) -> Setup:
    """Recovery removes trimmed chunks while the name of the one that stays may still be lost."""
    original = recovery._sweep
    patch.setattr(
        recovery,
        "_sweep",
        lambda fs, directory, start: original(
            Forgetful(fs, lambda kind, _: kind == "sync_directory"),
            directory,
            start,
        ),
    )
    return Setup(seed=1)


def write_larger_than_recovery_believes(patch: Patch) -> Setup:
    """A group's piece takes BEGIN and END along, whatever its size."""
    patch.setattr(chunk_writer, "fits_one_write", lambda parts, part: True)
    return Setup(seed=1)


def sealed_without_a_synced_name(_: Patch) -> Setup:
    """The chunk behind a last chunk that is sealed by age has no durable name when the sealed one is removed."""

    def change(job: Sequence[Operation]) -> Sequence[Operation]:
        made = {one.path for one in job if isinstance(one, Create) and one.path.endswith(".log")}
        is_seal = made and not any(isinstance(one, WriteFile) and one.path in made for one in job)
        is_removal = any(isinstance(one, RemoveFile) and one.path.endswith(".log") for one in job) and not made
        return [one for one in job if not ((is_seal or is_removal) and isinstance(one, SyncDirectory))]

    return rewrites(change)


def removed_before_it_is_recorded(patch: Patch) -> Setup:
    """A trim removes the chunks' files, then records the new log start."""
    original = Stream._trim

    async def trim(self: Stream, offset: int, why: str) -> int:
        self.log_start_offset = max(self.log_start_offset, offset)
        self.drop_chunks(self.log_start_offset)
        return await original(self, offset, why)

    patch.setattr(Stream, "_trim", trim)
    return Setup(seed=1)


PLANTED: Sequence[tuple[Plant, Workload]] = (
    (no_directory_sync, workloads.appends),
    (no_chunk_name_sync, workloads.appends),
    (no_data_sync, workloads.appends),
    (sync_before_write, workloads.appends),
    (ledger_without_sync, workloads.ledgers),
    (rename_before_sync, workloads.ledgers),
    (old_ledger_removed_early, workloads.ledgers),
    (index_before_data, workloads.appends),
    (watermark_inside_a_group, workloads.groups),
    (half_groups_survive, workloads.groups),
    (recovery_does_not_sync, workloads.restarts),
    (recovery_does_not_sync_chunks, workloads.restarts),
    (torn_end_stays, workloads.appends),
    (no_checksum_at_recovery, workloads.appends),
    (trim_not_recorded, workloads.trims),
    (producer_ids_not_reserved, workloads.ledgers),
    (topic_before_its_directory, workloads.topics),
    (ledger_half_applied, workloads.ledgers),
    (window_smaller_than_a_batch, workloads.large_batch),
    (sweep_before_sync, workloads.trim_all),
    (write_larger_than_recovery_believes, workloads.large_group),
    (sealed_without_a_synced_name, workloads.expires),
    (removed_before_it_is_recorded, workloads.trim_chunk),
)


@pytest.mark.parametrize(("plant", "workload"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_the_enumerator_finds_it(plant: Plant, workload: Workload, monkeypatch: Patch) -> None:
    """With the bug in place some crash state breaks a promise."""
    setup = plant(monkeypatch)
    with pytest.raises(PromiseBroken) as caught:
        Enumerator(workload, setup, PLAN).run()
    # Found for what it does, not because the plant itself is broken.
    assert isinstance(caught.value.__cause__, PromiseBroken | CairnError | OSError | None), caught.value
    print(plant.__name__, "→", caught.value)


# ---- bugs that show only behind a fault


def fail_sync(ending: str, nth: int) -> Callable[[FileCall], Fault | None]:
    """The `nth` sync of such a file fails, and its data is not on disk."""
    seen = 0

    def fault(call: FileCall) -> Fault | None:
        nonlocal seen
        if call.kind == "sync" and ending in call.path:
            seen += 1
            if seen == nth:
                return EIO
        return None

    return fault


def appends_with_failing_sync(setup: Setup) -> None:
    """Appends of which one sync fails; then all that a power cut may leave."""
    disk = SimDisk(unit_bytes=64)
    disk.fault_for = fail_sync(".log", 2)
    history = History()
    world = SimulatedStore(disk, history, setup)
    world.create_topic("t", 1)
    world.run()
    for sequence in range(5):
        try:
            world.append("t", producer=(9, 0, sequence))
        except CairnError:
            world.append("t")
        world.run()
        for state in [disk.kill_state(), *disk.crash_states(CrashBounds(states=64))]:
            try:
                SimulatedStore(state, history.fork(), setup).check()
            except (CairnError, OSError) as error:
                raise PromiseBroken(repr(error)) from error


def retried_sync(patch: Patch) -> None:
    """A failed sync is tried again, and its second answer believed (fsyncgate)."""
    original = Sync.run

    def run(self: Sync, fs: FileSystem) -> None:
        try:
            original(self, fs)
        except OSError:
            original(self, fs)

    patch.setattr(Sync, "run", run)


def chunk_used_again(patch: Patch) -> None:
    """After a failed sync the same chunk is written on, over pages that the kernel takes for clean."""

    def failed(self: Stream, operation: Operation, error: OSError) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.chunk.size_bytes, flight.chunk.next_offset, _ = self._writer.backlog.acked = flight.end
            self.high_watermark = flight.end.next_offset
            for append in flight.appends:
                append.ticket.fail(StorageFailed(str(error)))

    patch.setattr(Stream, "_failed", failed)


def sequences_count_before_the_sync(patch: Patch) -> None:
    """A producer's sequence counts although its batch failed: the retry is answered as a duplicate of nothing."""
    patch.setattr(ProducerTable, "fail_pending", lambda self: None)


def test_setup_without_a_bug_survives_the_failing_sync() -> None:
    """The story itself breaks nothing, so what breaks below is the bug."""
    appends_with_failing_sync(Setup(seed=1))


@pytest.mark.parametrize("plant", [retried_sync, chunk_used_again], ids=lambda plant: plant.__name__)
def test_found_behind_a_failing_sync(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """With the bug in place a failed sync costs an acknowledged record."""
    plant(monkeypatch)
    with pytest.raises(PromiseBroken):
        appends_with_failing_sync(Setup(seed=1))


def test_found_by_a_producer_that_retries(monkeypatch: Patch) -> None:
    """The retry of a batch whose sync failed must be written, not taken for a duplicate."""

    def retry() -> bool:
        disk = SimDisk(unit_bytes=64)
        world = SimulatedStore(disk, History(), Setup())
        world.create_topic("t", 1)
        world.run()
        disk.fault_for = fail_sync(".log", 1)
        first = world.append("t", producer=(9, 0, 0))
        world.run()
        assert first.error is not None
        second = world.append("t", producer=(9, 0, 0))
        world.run()
        return second.done and second.error is None

    assert retry()
    sequences_count_before_the_sync(monkeypatch)
    assert not retry()


# ---- cleaning

CLEANING_PLAN = CrashPlan(
    bounds=CrashBounds(states=12, file_states=8, torn_bytes=8), second_share=20, recovery_share=200, unit_bytes=512
)


def exchanges(change: Callable[[list[Operation]], list[Operation]]) -> Setup:
    """A setup in which the job that gives a cleaned chunk its name is changed."""

    def rewrite(job: Sequence[Operation]) -> Sequence[Operation]:
        is_exchange = any(isinstance(one, Rename) and one.source.endswith(".cleaned") for one in job)
        return change(list(job)) if is_exchange else job

    return rewrites(rewrite)


def renamed_before_sync(_: Patch) -> Setup:
    """The cleaned content gets the chunk's name before it is durable."""
    return exchanges(lambda job: [one for one in job if not isinstance(one, Sync)])


def old_index_stays(_: Patch) -> Setup:
    """The old index stays beside the new content; a recovery notices most of them, by the length of the content."""
    setup = exchanges(lambda job: [one for one in job if not (isinstance(one, RemoveFile) and ".index" in one.path)])
    return replace(setup, seed=13)


def index_before_the_name(_: Patch) -> Setup:
    """The new content's index is written before its name is durable."""
    return rewrites(
        lambda job: [] if [type(one) for one in job] == [SyncDirectory] and "streams/t" in path_of(job[0]) else job
    )


def newest_chunks_first(patch: Patch) -> Setup:
    """Newer records of state go before older ones."""
    original = LogCleaner._clean_chunk

    async def backwards(
        self: LogCleaner, stream: Stream, chunk: Chunk, queries: frozenset[str], may_go: Callable[[], bool]
    ) -> bool:
        others = [one for one in stream.chunks[:-1] if one.state_bytes and not one.cleaned_for]
        return await original(self, stream, others[-1] if others else chunk, queries, may_go)

    patch.setattr(LogCleaner, "_clean_chunk", backwards)
    return Setup(seed=1)


def ends_go_too(patch: Patch) -> Setup:
    """BEGIN and END go with the records of state."""
    patch.setattr(cleaning, "STATE_TYPES", frozenset((*STATE_TYPES, END_TYPE)))
    patch.setattr(ChunkCopy, "_query", property(lambda _: "group", lambda *_: None), raising=False)
    return Setup(seed=1)


def offsets_move(patch: Patch) -> Setup:
    """What is removed leaves no empty batch behind."""
    patch.setattr(ChunkCopy, "_end_run", lambda self, out: setattr(self, "_run", None))
    return Setup(seed=1)


@pytest.mark.parametrize(
    "plant",
    [
        *(renamed_before_sync, old_index_stays, index_before_the_name, newest_chunks_first, ends_go_too),
        offsets_move,
    ],
    ids=lambda plant: plant.__name__,
)
def test_found_in_cleaning(plant: Plant, monkeypatch: Patch) -> None:
    """Each of them loses records, or shows older ones in the place of newer ones."""
    setup = plant(monkeypatch)
    with pytest.raises((PromiseBroken, CairnError)):
        Enumerator(workloads.cleans, setup, CLEANING_PLAN).run()

"""Defects that journals of this kind have had, put back one at a time: each is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from logstore.base.events import Report
from logstore.errors import CairnError
from logstore.format import journal_block
from logstore.format.batch import iterate_batches, patch_base
from logstore.format.journal_block import JournalPart
from logstore.interfaces import FileSystem
from logstore.log import journal, journal_replay, recovery, store
from logstore.log.backlog import Backlog
from logstore.log.chunk_writer import ChunkWriter
from logstore.log.chunks import Chunk
from logstore.log.jobs import Operation, Sync, WriteFile
from logstore.log.journal import Journal, JournalFile
from logstore.log.stream import Stream
from logstore.log.topics import TopicConfig
from logstore.testing.crash import CrashPlan, Enumerator, Workload
from logstore.testing.faults import FALSE_ALARM, Fault, FileCall
from logstore.testing.history import History, PromiseBroken
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore, journaled

pytestmark = pytest.mark.crash
Patch = pytest.MonkeyPatch
PLAN = CrashPlan(bounds=CrashBounds(states=16, file_states=16, torn_bytes=32))
DEEP = CrashPlan(bounds=CrashBounds(states=256, file_states=256, torn_bytes=1), kill_share=1000, first_point=36)
"""Of a tear: nearly all subsets of a block's units."""
WIDE = CrashPlan(
    bounds=CrashBounds(states=4, file_states=4, torn_bytes=1),
    second_share=100,
    recovery_share=1000,
    kill_share=1000,
    first_point=70,
)
"""Of a story with many points, where what a power cut keeps matters less than when it comes."""


def rewrites(change: Callable[[list[Operation]], Sequence[Operation]]) -> Setup:
    """A journaled setup in which jobs are changed before they run."""
    return journaled(Setup(rewrite=lambda job: change(list(job)), seed=1))


def roomy() -> Setup:
    """A journaled setup with large chunks: a roll would sync what the journal holds."""
    setup = journaled(Setup(seed=1))
    return replace(setup, settings=replace(setup.settings, topic_defaults=TopicConfig(segment_bytes=4096)))


def acknowledged_before_the_sync(_: Patch) -> Setup:
    """A block is acknowledged when it is written, not when it is synced."""
    return rewrites(
        lambda job: [step for step in job if not (isinstance(step, Sync) and step.path.endswith(journal.SUFFIX))]
    )


def name_not_synced(_: Patch) -> Setup:
    """The name of a journal's file is not durable when its first block is acknowledged."""
    return rewrites(lambda job: [step for step in job if getattr(step, "path", "") != journal.DIRECTORY])


def cut_too_early(patch: Patch) -> Setup:
    """A full file is used again although chunks are not synced behind its parts."""

    def free_file(self: Journal) -> JournalFile | None:
        return next((file for file in self._files.values() if file is not self._active), None)

    patch.setattr(Journal, "_free_file", free_file)
    patch.setattr(journal, "SYNCS_IN_FLIGHT", 1)
    return roomy()


def released_when_written(patch: Patch) -> Setup:
    """A stream gives up the journal's file when its chunk is written, not when it is synced."""
    original = Backlog.released

    def released(self: Backlog, next_offset: int) -> list[int]:
        end = self.unwritten[0].base_offset if self.unwritten else self.acked.next_offset
        return original(self, end)

    patch.setattr(Backlog, "released", released)
    patch.setattr(journal, "SYNCS_IN_FLIGHT", 1)
    return roomy()


def backlog_without_sync(_: Patch) -> Setup:
    """A backlog is written to the chunk and not synced."""

    def change(job: list[Operation]) -> Sequence[Operation]:
        is_backlog = len(job) > 1 and isinstance(job[0], WriteFile) and job[0].path.endswith(".log")
        return [step for step in job if not (is_backlog and isinstance(step, Sync) and step.path.endswith(".log"))]

    return rewrites(change)


def torn_block_taken(patch: Patch) -> Setup:
    """A block is believed without its checksum."""
    patch.setattr(journal_block, "crc32c", lambda _data, _crc=0: 0)
    return journaled(Setup(seed=1))


def not_replayed(patch: Patch) -> Setup:
    """A start believes that the chunks have everything."""
    patch.setattr(recovery, "_replay", lambda *_: 0)
    return journaled(Setup(seed=1))


def only_the_newest_file_replayed(patch: Patch) -> Setup:
    """A start replays the newest file and forgets the one before it."""
    original = journal_replay.read_journal

    def read(fs: FileSystem, key: bytes, report: Any) -> Any:
        content = original(fs, key, report)
        newest = fs.list_directory(journal.DIRECTORY)[-1:]
        scans = [journal_block.scan_blocks(fs.read(f"{journal.DIRECTORY}/{name}", 0, 1 << 20), key) for name in newest]
        parts: dict[str, list[Any]] = {}
        for scan in scans:
            for part in scan.parts:
                parts.setdefault(part.place.directory.decode(), []).append(part)
        return content._replace(parts=parts)

    patch.setattr(store, "read_journal", read)
    return journaled(Setup(seed=1))


def backlog_left_out_of_a_direct_write(patch: Patch) -> Setup:
    """A large append goes to the chunk in front of the small ones that the journal acknowledged before it."""
    original = ChunkWriter.finish

    def finish(self: ChunkWriter, flight: Any, operations: list[Operation]) -> None:
        kept, self.backlog.unwritten = self.backlog.unwritten, []
        original(self, flight, operations)
        self.backlog.unwritten = kept
        if flight.backlog_write is not None:
            flight.backlog_write.batches = len(kept)

    patch.setattr(ChunkWriter, "finish", finish)
    return roomy()


def removed_before_chunks_are_synced(patch: Patch) -> Setup:
    """A start removes the journal before the chunks that it was replayed into are synced."""
    original = journal_replay.read_journal

    def read(fs: FileSystem, key: bytes, report: Any) -> Any:
        content = original(fs, key, report)
        for path in content.paths:
            fs.remove(path)
        fs.sync_directory(journal.DIRECTORY)
        return content._replace(paths=[])

    patch.setattr(store, "read_journal", read)
    return journaled(Setup(seed=1))


def parts_behind(chunk: Chunk, journaled: Sequence[JournalPart]) -> list[JournalPart]:
    """What the journal holds of a chunk behind its proven end."""
    of_chunk = [part for part in journaled if part.place.chunk_offset == chunk.base_offset]
    return [part for part in of_chunk if part.place.position + len(part.data) > chunk.size_bytes]


def replayed_behind_what_is_there(patch: Patch) -> Setup:
    """A start puts what the journal holds behind the end of the file, which may have some of it."""

    def replay(fs: FileSystem, chunk: Chunk, journaled: Sequence[JournalPart], _: Report) -> int:
        end = fs.size(chunk.log_path)
        for part in parts_behind(chunk, journaled):
            fs.write(chunk.log_path, end, [part.data])
            end += len(part.data)
        return end

    patch.setattr(recovery, "_replay", replay)
    return journaled(Setup(seed=1))


def replayed_twice(patch: Patch) -> Setup:
    """A start appends the journal's last part again if the file has it already: as new batches, at new offsets."""
    original = recovery._replay

    def replay(fs: FileSystem, chunk: Chunk, journaled: Sequence[JournalPart], report: Report) -> int:
        found = fs.size(chunk.log_path)
        end = original(fs, chunk, journaled, report)
        parts = parts_behind(chunk, journaled)
        if not parts or parts[-1].place.position + len(parts[-1].data) > found:
            return end
        again = bytearray(parts[-1].data)
        batches = list(iterate_batches(again))
        moved = batches[-1][1].next_offset - batches[0][1].base_offset
        for position, header in batches:
            patch_base(again, position, header.base_offset + moved, header.partition_leader_epoch)
        fs.write(chunk.log_path, end, [again])
        return end + len(again)

    patch.setattr(recovery, "_replay", replay)
    return journaled(Setup(seed=1))


def few(world: SimulatedStore) -> None:
    """Some small appends, two in one block, a large one behind them, and a clean restart."""
    world.create_topic("t", 1)
    world.run()
    for _ in range(3):
        world.append("t")
        world.append("t", value_bytes=10)
        world.run()
    world.append("t", value_bytes=500)
    world.run()
    world.append("t")
    world.run()
    world.restart(clean=True)


def busy(world: SimulatedStore) -> None:
    """Four streams fill a file of the journal with each block, faster than their chunks are synced."""
    world.create_topic("t", 4)
    world.run()
    for partition in range(4):
        world.append("t", partition)
    world.run()
    for _ in range(4):
        tickets = [world.append("t", partition, value_bytes=80) for partition in range(4)]
        while not all(ticket.done for ticket in tickets):
            world.run(1)
        for stream in world.store.streams():
            stream.write_backlog()


def mixed(world: SimulatedStore) -> None:
    """A small append in the journal, and a large one behind it."""
    world.create_topic("t", 1)
    world.run()
    for value_bytes in (40, 40, 500, 40):
        world.append("t", value_bytes=value_bytes)
        world.run()


PLANTS = (
    (acknowledged_before_the_sync, few, PLAN),
    (name_not_synced, few, PLAN),
    (cut_too_early, busy, WIDE),
    (released_when_written, busy, WIDE),
    (backlog_without_sync, few, PLAN),
    (torn_block_taken, few, DEEP),
    (not_replayed, few, PLAN),
    (only_the_newest_file_replayed, busy, WIDE),
    (backlog_left_out_of_a_direct_write, mixed, PLAN),
    (removed_before_chunks_are_synced, few, PLAN),
    (replayed_behind_what_is_there, few, PLAN),
    (replayed_twice, few, PLAN),
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("plant", "story", "plan"), PLANTS, ids=[plant.__name__ for plant, *_ in PLANTS])
def test_the_enumerator_finds_it(
    plant: Callable[[Patch], Setup], story: Workload, plan: CrashPlan, monkeypatch: Patch
) -> None:
    """With the bug in place, some crash of the story breaks a promise."""
    setup = plant(monkeypatch)
    with pytest.raises(PromiseBroken):
        Enumerator(story, setup, plan).run()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("story", [few, busy, mixed])
def test_without_a_bug_it_finds_nothing(story: Workload) -> None:
    """The same stories hold, so it is the bugs that break them."""
    Enumerator(story, roomy(), WIDE).run()


# ---- behind a failing call


def append_behind_a_failed_block(setup: Setup) -> None:
    """A block whose sync fails, though it is on the disk; then the same place in the log is given to other records."""
    failed: list[str] = []

    def fault(call: FileCall) -> Fault | None:
        if call.kind == "sync" and call.path.endswith(journal.SUFFIX) and not failed:
            failed.append(call.path)
            return FALSE_ALARM
        return None

    disk = SimDisk(unit_bytes=64)
    history = History()
    world = SimulatedStore(disk, history, setup)
    world.create_topic("t", 2)
    world.run()
    for partition in (0, 1):
        world.append("t", partition)
        world.run()
    world.append("t", 1)  # which keeps the journal's file
    world.run()
    disk.fault_for = fault
    refused = world.append("t")
    while refused.error is None:
        world.run(1)
    accepted = world.append("t")
    while not accepted.done:
        world.run(1)
        look(disk, history, setup)
    world.run()
    look(disk, history, setup)


def look(disk: SimDisk, history: History, setup: Setup) -> None:
    """Open what a kill and some power cuts may leave now."""
    for state in [disk.kill_state(), *disk.crash_states(CrashBounds(states=32))]:
        try:
            SimulatedStore(state, history.fork(), setup).check()
        except (CairnError, OSError) as error:
            raise PromiseBroken(repr(error)) from error


def test_a_failed_block_harms_nothing() -> None:
    """What failed may be found, but never in place of what was acknowledged after it."""
    append_behind_a_failed_block(journaled())


def test_replayed_over_newer_data_is_found(monkeypatch: Patch) -> None:
    """Without a new chunk behind a failed block, a start puts the failed part over acknowledged records."""
    original = Stream.journal_failed

    def journal_failed(self: Stream, flight: Any, operation: Operation, error: OSError) -> None:
        original(self, flight, operation, error)
        self._writer.must_roll = False

    monkeypatch.setattr(Stream, "journal_failed", journal_failed)
    with pytest.raises(PromiseBroken):
        append_behind_a_failed_block(journaled())


def sync_that_fails(setup: Setup) -> None:
    """The sync of a chunk fails while acknowledged batches are durable in the journal only."""
    failed: list[str] = []
    disk = SimDisk(unit_bytes=64)
    history = History()
    world = SimulatedStore(disk, history, setup)
    world.create_topic("t", 1)
    world.run()
    for _ in range(3):
        world.append("t")
        world.run()

    def fault(call: FileCall) -> Fault | None:
        if call.kind == "sync" and call.path.endswith(".log") and not failed:
            failed.append(call.path)
            return Fault(5)
        return None

    stream = world.store.stream("t", 0)
    stream.write_backlog()
    world.run()
    disk.fault_for = fault
    stream.sync_backlog()
    world.run()
    assert failed
    world.append("t")
    world.run()
    world.check()
    for _ in range(30):  # so that the journal's first file is used again
        world.append("t")
        world.run()
    look(disk, history, setup)


def test_a_failed_sync_of_a_backlog_loses_nothing() -> None:
    """What the chunk could not keep is read back from the journal, into a new chunk."""
    sync_that_fails(journaled())


def test_a_sync_believed_after_it_failed_is_found(monkeypatch: Patch) -> None:
    """Without the salvage, the second sync of a chunk whose first failed is believed, and records are lost."""
    monkeypatch.setattr("logstore.log.backlog_writer.BacklogWriter.note_failed_sync", lambda self, operation: None)
    with pytest.raises(PromiseBroken):
        sync_that_fails(journaled())

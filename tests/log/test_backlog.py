"""What the journal has of a stream and its chunk has not: failing syncs, crashes, deletion and the end of a life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.errors import CorruptFile, StorageFailed
from logstore.log.journal import SUFFIX
from logstore.log.topics import TopicConfig
from logstore.testing.faults import EIO, ENOSPC, Fault, FileCall
from logstore.testing.history import History, content_of
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore, journaled
from tests.crash.tiny import make_tiny

STEPS = 2000
"""More steps than any of these stories takes, unless it goes round in circles."""


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred bytes take all code paths."""
    make_tiny(monkeypatch)


def story(seed: int | None = None, appends: int = 3, segment_bytes: int = 512) -> SimulatedStore:
    """A store whose stream has a chunk and, behind it, batches in the journal only."""
    setup = journaled(Setup(seed=seed))
    config = TopicConfig(segment_bytes=segment_bytes)
    setup = replace(setup, settings=replace(setup.settings, topic_defaults=config))
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), setup)
    world.create_topic("t", 1)
    world.run()
    for _ in range(appends):
        world.append("t")
        world.run()
    return world


def fail(world: SimulatedStore, which: Callable[[FileCall], bool], fault: Fault = EIO, times: int = 1) -> list[str]:
    """Let the next `times` calls of a kind fail. Returns the paths of those that did."""
    failed: list[str] = []

    def fault_for(call: FileCall) -> Fault | None:
        if len(failed) < times and which(call):
            failed.append(call.path)
            return fault
        return None

    world.disk.fault_for = fault_for
    return failed


def is_log_sync(call: FileCall) -> bool:
    """The sync of a chunk."""
    return call.kind == "sync" and call.path.endswith(".log")


def is_new_chunk(call: FileCall) -> bool:
    """The file of a new chunk is made."""
    return call.kind == "create" and call.path.endswith((".log", ".cleaned"))


def is_journal_read(call: FileCall) -> bool:
    """The journal is read back."""
    return call.kind == "read" and call.path.endswith(SUFFIX)


def settle(world: SimulatedStore) -> None:
    """Run all disk work, which must have an end."""
    for _ in range(STEPS):
        if not world.driver.step():
            world.run(0)
            return
    raise AssertionError(f"there is still work after {STEPS} steps")


def open_all(world: SimulatedStore) -> None:
    """Open what a kill and some power cuts may leave now, and check it."""
    bounds = CrashBounds(states=32, file_states=32, torn_bytes=32)
    for state in [world.disk.kill_state(), *world.disk.crash_states(bounds)]:
        SimulatedStore(state, world.history.fork(), world.setup).check()


@pytest.mark.parametrize("seed", range(12))
def test_a_part_that_lands_beside_a_failed_sync_is_kept(seed: int) -> None:
    """The sync of a chunk fails while the journal takes another part: all of it is read back, in order."""
    world = story(seed)
    failed = fail(world, is_log_sync)
    world.store.stream("t", 0).sync_backlog()
    for _ in range(6):
        world.append("t")
        world.run(2)
    settle(world)
    assert failed
    world.check()
    open_all(world)


def test_a_crash_at_any_point_of_a_salvage_loses_nothing() -> None:
    """While acknowledged batches move to a new chunk, every moment has them in the journal or synced in that chunk."""
    world = story(appends=4)
    failed = fail(world, is_log_sync)
    world.store.stream("t", 0).sync_backlog()
    world.append("t")
    steps = 0
    while world.driver.step():
        steps += 1
        world.run(0)
        open_all(world)
    assert failed
    assert steps > 10
    assert len(world.store.stream("t", 0).chunks) == 2
    world.check()


def test_a_large_group_behind_a_salvage_takes_nothing_with_it() -> None:
    """The first write into the chunk of a salvage belongs to an append group of several writes, which then fails."""
    world = story()
    fail(world, is_log_sync)
    world.store.stream("t", 0).sync_backlog()
    while not world.store.stream("t", 0)._writer.is_moving:
        assert world.driver.step()
    world.append_group("t", 0, 0, batches=12, value_bytes=300)
    while len(world.store.stream("t", 0).chunks) == 1:
        assert world.driver.step()
        world.check()
    failed = fail(world, lambda call: call.kind == "write" and call.path.endswith(".log") and call.size_bytes > 300)
    settle(world)
    assert failed
    world.check()
    world.append("t")
    settle(world)
    world.check()
    open_all(world)


def test_a_producer_is_known_behind_a_salvage() -> None:
    """The last five batches of an idempotent producer are known after a salvage and a restart."""
    world = story(segment_bytes=4096)
    batches = []
    known = world.history.stream("t", 0)
    for sequence in range(5):
        batch, newest = world.make_batch(known, 1, 30, (9, 0, sequence))
        known.send(content_of(batch), 1, newest)
        batches.append(bytearray(batch))
        world.send("t", 0, batch)
        world.run()
        if sequence == 2:
            world.store.stream("t", 0).sync_backlog()
            world.run()
    failed = fail(world, is_log_sync)
    world.store.stream("t", 0).sync_backlog()
    settle(world)
    assert failed
    world.restart(clean=False)
    for batch in batches:
        ticket = world.send("t", 0, bytearray(batch))
        world.run()
        assert ticket.result().duplicate  # type: ignore[attr-defined]


def test_an_unreadable_journal_refuses_and_rests() -> None:
    """The journal cannot be read for a salvage: appends are refused, one attempt each; then the disk works again."""
    world = story()
    fail(world, is_log_sync)
    waits = world.store.stream("t", 0).sync_backlog()
    while not world.store.stream("t", 0)._backlog_writer.must_salvage:
        assert world.driver.step()
    attempts = fail(world, is_journal_read, times=STEPS)
    settle(world)
    assert len(attempts) == 1
    assert isinstance(waits.error, StorageFailed)
    refused = world.append("t")
    settle(world)
    assert isinstance(refused.error, StorageFailed)
    assert len(attempts) == 2
    world.disk.fault_for = None
    accepted = world.append("t")
    settle(world)
    accepted.result()
    world.check()
    open_all(world)


def test_a_salvage_onto_a_full_disk_refuses_and_rests() -> None:
    """No new chunk can be made for what a chunk could not keep: one attempt for each append; then there is room."""
    world = story()
    fail(world, is_log_sync)
    stream = world.store.stream("t", 0)
    stream.sync_backlog()
    while not stream._writer.is_moving:
        assert world.driver.step()
    attempts = fail(world, is_new_chunk, ENOSPC, times=STEPS)
    waits = stream.sync_backlog()
    refused = world.append("t")
    settle(world)
    assert isinstance(waits.error, StorageFailed)
    assert isinstance(refused.error, StorageFailed)
    assert len(attempts) <= 2
    world.check()
    world.disk.fault_for = None
    stream.sync_backlog()
    settle(world)
    assert len(stream.chunks) == 2
    world.check()
    open_all(world)


@pytest.mark.parametrize("which", [is_journal_read, is_new_chunk], ids=["unreadable journal", "no new chunk"])
def test_a_store_closes_with_a_stream_that_cannot_be_salvaged(which: Callable[[FileCall], bool]) -> None:
    """The shutdown ends, the journal stays, and the next start has everything."""
    world = story(appends=4)
    fail(world, is_log_sync)
    stream = world.store.stream("t", 0)
    stream.sync_backlog()
    while not stream._backlog_writer.must_salvage:
        assert world.driver.step()
    fail(world, which, times=STEPS)
    closed = world.store.close()
    settle(world)
    assert closed.done
    world.disk.fault_for = None
    open_all(world)


def test_a_failed_sync_at_the_end_is_not_repeated() -> None:
    """The last sync of a chunk fails at a shutdown: no later one is believed; what the chunk lacks stays in the journal
    or goes to a new chunk.
    """
    world = story(appends=4)
    failed = fail(world, is_log_sync)
    chunk = world.store.stream("t", 0).chunks[-1]
    closed = world.store.close()
    settle(world)
    assert failed == [chunk.log_path]
    assert closed.done
    assert world.store.stream("t", 0).chunks[-1] is not chunk or world.store.stream("t", 0).has_unwritten
    open_all(world)


@pytest.mark.parametrize("steps", range(6))
def test_a_stop_ends_beside_a_deletion(steps: int) -> None:
    """A topic whose deletion is under way, with appends pending, when the store is closed keeps the stop waiting no
    longer than the deletion.
    """
    world = story()
    world.create_topic("u", 2)
    world.run()
    for partition in range(2):
        world.append("u", partition)
    world.delete_topic("u")
    world.run(steps)
    closed = world.store.close()
    settle(world)
    assert closed.done


@pytest.mark.parametrize("steps", [1, 3, 5, 7])
def test_a_topic_deleted_with_a_part_in_flight_leaves_the_journal_free(steps: int) -> None:
    """Whenever a topic is deleted, nothing holds the journal's files for it, and other streams' syncs go on."""
    world = story(seed=steps)
    world.create_topic("u", 4)
    world.run()
    for _ in range(2):
        for partition in range(4):
            world.append("u", partition)
        world.run()
    journal = world.store.journal
    for stream in world.store.streams():
        journal._due[stream] = None
    for partition in range(4):
        world.append("u", partition)
    world.delete_topic("u")
    world.run(3 * steps)
    journal._start_syncs()
    settle(world)
    for _ in range(12):
        world.append("t")
        world.run()
    holders = {stream.topic for file in journal._files.values() for stream in file.holders}  # type: ignore[attr-defined]
    assert holders <= {"t"}
    assert journal._syncs == 0
    own = world.store.stream("t", 0)._writer.backlog.unwritten_bytes
    assert journal.unwritten_bytes == own
    world.check()
    SimulatedStore(world.disk.kill_state(), world.history.fork(), world.setup).check()


def test_a_stream_whose_chunks_are_gone_does_not_start_again_at_0() -> None:
    """The journal continues a chunk that is not there: the store names it, and does not open."""
    world = story()
    disk = world.disk.kill_state()
    stream = world.store.stream("t", 0)
    disk.remove(stream.chunks[0].log_path)
    disk.sync_directory(stream.directory)
    with pytest.raises(CorruptFile, match="the journal continues one"):
        SimulatedStore(disk, world.history.fork(), world.setup)

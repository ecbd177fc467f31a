"""Two failures, one behind the other: a call that fails, then another one, or the power, before all is well again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.events import JOURNAL_DAMAGED
from logstore.log.journal import DIRECTORY as JOURNAL
from logstore.log.journal import SUFFIX
from logstore.log.topics import TopicConfig
from logstore.testing.faults import EIO, FALSE_ALARM, Fault, FileCall
from logstore.testing.history import History, content_of
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore, journaled
from logstore.verify.directory import verify

pytestmark = pytest.mark.crash

BOUNDS = CrashBounds(states=64, file_states=8, torn_bytes=1)


def store(setup: Setup) -> SimulatedStore:
    """A store with one stream, whose chunk holds one batch."""
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), setup)
    world.create_topic("t", 1)
    world.run()
    append(world)
    return world


def roomy() -> Setup:
    """Small appends go to the journal, and chunks are large."""
    setup = journaled(Setup(seed=1))
    return replace(setup, settings=replace(setup.settings, topic_defaults=TopicConfig(segment_bytes=4096)))


def append(world: SimulatedStore, value_bytes: int = 40) -> None:
    """Append a batch, and run to the end."""
    world.append("t", value_bytes=value_bytes)
    world.run()


def once(kind: str, suffix: str, fault: Fault = EIO) -> Callable[[FileCall], Fault | None]:
    """The next call of this kind, of a path that ends so, fails."""
    is_due = True

    def rule(call: FileCall) -> Fault | None:
        nonlocal is_due
        if not is_due or call.kind != kind or not call.path.endswith(suffix):
            return None
        is_due = False
        return fault

    return rule


def check_after_any_power_cut(world: SimulatedStore) -> list[SimulatedStore]:
    """A kill now, and whatever a power cut may keep, lose nothing; the stores that start then."""
    states = [world.disk.kill_state(), *world.disk.crash_states(BOUNDS)]
    stores = [SimulatedStore(state, world.history.fork(), world.setup) for state in states]
    for one in stores:
        one.check()
    return stores


def test_a_chunk_whose_successor_has_a_name_does_not_move_its_backlog() -> None:
    """A roll fails behind the seal, then a sync of the sealed chunk would fail: what is acknowledged later stays."""
    world = store(roomy())
    append(world)
    append(world)
    stream = world.store.stream("t", 0)
    world.disk.fault_for = once("create", ".producers")
    world.store.roll_soon(stream)
    world.run()
    world.disk.fault_for = once("sync", f"{0:020d}.log")
    stream.sync_backlog()
    world.run()
    append(world)
    append(world)
    assert stream.high_watermark == 5
    check_after_any_power_cut(world)


def test_an_empty_chunk_is_known_until_another_has_its_name() -> None:
    """All records are trimmed, the sync of the next append fails: where the log ends, and what the idempotent producer
    sent last, is known at every moment.
    """
    world = store(Setup(seed=1))
    known = world.history.stream("t", 0)
    batch, newest = world.make_batch(known, 1, 30, (7, 0, 0))
    known.send(content_of(batch), 1, newest)
    world.send("t", 0, bytearray(batch))
    world.run()
    world.trim("t", 0, 2)
    world.run()
    world.disk.fault_for = once("sync", ".log")
    refused = world.append("t")
    world.run()
    assert refused.error is not None

    def before(call: FileCall) -> None:
        for after in check_after_any_power_cut(world) if call.changes_disk else ():
            again = after.send("t", 0, bytearray(batch))
            after.run()
            assert again.result().duplicate  # type: ignore[attr-defined]

    world.disk.before_call = before
    append(world)
    world.disk.before_call = None
    check_after_any_power_cut(world)


def test_a_failed_block_does_not_come_back_over_later_appends() -> None:
    """A block whose sync failed is removed, the process is killed before that is durable: the power may bring it back,
    but then it lies behind nothing that was acknowledged since.
    """
    world = store(roomy())
    failing = once("sync", SUFFIX, FALSE_ALARM), once("sync_directory", JOURNAL)
    append(world)  # the journal's file has a durable name

    def rule(call: FileCall) -> Fault | None:
        if call.kind == "sync_directory":
            return failing[1](call)
        return failing[0](call)

    world.disk.fault_for = rule
    refused = world.append("t")
    world.run()
    world.store.stream("t", 0).sync_backlog()
    world.run()
    assert refused.error is not None
    assert world.disk.list_directory(JOURNAL) == []
    killed = SimulatedStore(world.disk.kill_state(), world.history, world.setup)
    append(killed, 500)  # more than the journal takes
    check_after_any_power_cut(killed)


def test_a_kill_in_a_roll_and_a_trim_do_not_forget_producers() -> None:
    """Killed while the next chunk was begun; the sealed one is trimmed in the next life, killed again: the last batch
    of the idempotent producer is known still.
    """
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), Setup(seed=1))
    world.create_topic("t", 1)
    world.run()
    known = world.history.stream("t", 0)
    batch, newest = world.make_batch(known, 1, 30, (7, 0, 0))
    known.send(content_of(batch), 1, newest)
    world.send("t", 0, bytearray(batch))
    world.run()
    killed: list[SimDisk] = []
    world.disk.before_call = lambda call: killed.append(world.disk.kill_state()) if call.changes_disk else None
    world.store.roll_soon(world.store.stream("t", 0))
    world.run()
    assert len(killed) > 5
    for disk in killed:
        after = SimulatedStore(disk, world.history.fork(), world.setup)
        append(after)
        after.trim("t", 0, 1)
        append(after)
        after.restart(clean=False)
        again = after.send("t", 0, bytearray(batch))
        after.run()
        assert again.result().duplicate  # type: ignore[attr-defined]


def test_a_deletion_that_failed_does_not_take_later_records_with_it() -> None:
    """The disk refuses the sync of a deletion, and the topic goes on: a kill behind that leaves it whole."""
    world = store(Setup(seed=1))
    world.disk.fault_for = once("sync", f"ledger/catalogue.{1:020d}")
    deletion = world.store.delete_topic("t")
    world.run()
    assert deletion.error is not None
    append(world)
    assert world.store.stream("t", 0).high_watermark == 2
    check_after_any_power_cut(world)


def test_a_large_backlog_that_cannot_move_waits() -> None:
    """As much as a stream may keep in memory cannot be synced, nor brought to another chunk: it is tried now and then,
    not without a pause; once the disk works, the stream goes on.
    """
    world = store(roomy())
    stream = world.store.stream("t", 0)
    append(world)
    while stream.has_unwritten:  # until as much is there as is written out; it is not synced then
        append(world)
    append(world)
    sync = once("sync", ".log")
    world.disk.fault_for = lambda call: EIO if call.kind == "create" and call.path.endswith(".cleaned") else sync(call)
    for _ in range(4):
        stream.sync_backlog()
        world.append("t")
        world.run(1000)
        assert not world.driver.step()
    world.disk.fault_for = None
    world.store.save_readers()
    world.run()
    append(world)
    check_after_any_power_cut(world)


@pytest.mark.parametrize("kind", ["create", "read"], ids=["the next chunk", "the journal"])
def test_a_stop_ends_though_a_chunk_can_neither_be_synced_nor_left(kind: str) -> None:
    """The sync at a stop fails, and then every call that would bring its records elsewhere: the stop ends, and the next
    start has them from the journal.
    """
    world = store(roomy())
    append(world)
    sync = once("sync", ".log")

    def rule(call: FileCall) -> Fault | None:
        is_way_out = call.kind == kind and call.path.endswith((".cleaned", SUFFIX))
        return EIO if is_way_out else sync(call)

    world.disk.fault_for = rule
    stopped = world.store.close()
    world.run(1000)
    assert stopped.done
    assert not world.driver.step()
    check_after_any_power_cut(world)


def test_a_torn_first_block_behind_a_failed_file_is_not_damage() -> None:
    """The journal goes to a new file and that one's first block fails; then the file before it, which no stream needs
    any more, must not be begun again: nothing newer would say that what a torn first block left of it is old.
    """
    world = store(roomy())
    journal = world.store.journal
    while not (files := journal.sources()) or files[0][1] < journal.limits.file_bytes:
        append(world)
    world.disk.fault_for = once("sync", SUFFIX)
    append(world)
    world.store.save_readers()
    append(world)  # to a new chunk; the next one to the journal
    ticket = world.append("t")
    while not ticket.done:
        for state in world.disk.crash_states(replace(BOUNDS, file_states=32, torn_bytes=8)):
            assert not verify(state).damages
            started = SimulatedStore(state, world.history.fork(), world.setup)
            started.check()
            assert not started.reports.of(JOURNAL_DAMAGED)
        world.run(1)

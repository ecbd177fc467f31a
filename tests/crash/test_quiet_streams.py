"""The table of quiet streams: what it says is true after any crash, and what others have changed is noticed.

Bugs of such tables are planted here one at a time, and the enumerator finds each of them. In crash states the check of
an entry against its files must find nothing: a difference that it reports is a broken promise there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from logstore.errors import CairnError, CorruptFile
from logstore.events import OFFSETS_LOST, QUIET_STREAM_DIFFERS, QUIET_TABLE_DAMAGED
from logstore.format.quiet_stream import encode_active
from logstore.log.jobs import Operation, Sync
from logstore.log.quiet import QuietStreams, key_of
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.testing.crash import CrashPlan, Enumerator, Workload
from logstore.testing.history import History, PromiseBroken
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore
from tests.crash import workloads
from tests.crash.test_planted_bugs import forgets

pytestmark = pytest.mark.crash
Patch = pytest.MonkeyPatch
PLAN = CrashPlan(bounds=CrashBounds(states=12, file_states=8, torn_bytes=16), second_share=8, recovery_share=100)


def taken_out_after_the_first_write(patch: Patch) -> Setup:
    """A stream may be written to before its entry is durably gone."""

    def may_change(self: QuietStreams, stream: Stream) -> bool:
        if not stream.is_awake:
            self._ledger.put({key_of(stream.directory): encode_active(stream.high_watermark)})
            self.opened_awake(stream)
        return True

    patch.setattr(QuietStreams, "may_change", may_change)
    return Setup(seed=1)


def put_back_while_a_write_is_in_flight(patch: Patch) -> Setup:
    """A stream comes to rest whatever is pending or under way."""
    patch.setattr(Stream, "can_rest", property(lambda self: bool(self.chunks)))
    return Setup(seed=1)


def trim_not_taken_out(patch: Patch) -> Setup:
    """A trim removes chunks that the table still names."""
    patch.setattr(QuietStreams, "wake", lambda self, stream: Ticket.succeeded(None))

    def may_change(self: QuietStreams, stream: Stream) -> bool:
        if not stream.is_awake:
            self._ledger.put({key_of(stream.directory): encode_active(stream.high_watermark)})
            self.opened_awake(stream)
        return True

    patch.setattr(QuietStreams, "may_change", may_change)
    return Setup(seed=1)


def table_not_synced(_: Patch) -> Setup:
    """A stream is taken out of the table without a sync."""

    def change(job: Sequence[Operation]) -> Sequence[Operation]:
        return [one for one in job if not (isinstance(one, Sync) and one.path.startswith("ledger/quiet."))]

    return Setup(rewrite=change, seed=1)


def directory_not_synced(_: Patch) -> Setup:
    """The name of a partition's directory, which comes with its first chunk, is not synced."""
    return forgets(lambda kind, path: kind == "sync_directory" and path.count("/") == 1)


def awake_while_in_the_table(patch: Patch) -> Setup:
    """A stream is taken for awake although its entry has just been put."""
    original = QuietStreams._rest

    async def rest(self: QuietStreams, streams: Sequence[Stream], sealed: Ticket[None]) -> None:
        await original(self, streams, sealed)
        for stream in streams:
            self.opened_awake(stream)

    patch.setattr(QuietStreams, "_rest", rest)
    return Setup(seed=1)


PLANTED: Sequence[tuple[Callable[[Patch], Setup], Workload]] = (
    (taken_out_after_the_first_write, workloads.quiets),
    (put_back_while_a_write_is_in_flight, workloads.quiets),
    (trim_not_taken_out, workloads.quiet_trims),
    (table_not_synced, workloads.quiets),
    (directory_not_synced, workloads.quiets),
    (awake_while_in_the_table, workloads.quiets),
)


@pytest.mark.parametrize(("plant", "workload"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_the_enumerator_finds_it(plant: Callable[[Patch], Setup], workload: Workload, monkeypatch: Patch) -> None:
    """With the bug in place some crash state breaks a promise."""
    setup = plant(monkeypatch)
    with pytest.raises(PromiseBroken) as caught:
        Enumerator(workload, setup, PLAN).run()
    assert isinstance(caught.value.__cause__, PromiseBroken | CairnError | OSError | None), caught.value


# ---- what others do to a data directory


def quiet_world() -> SimulatedStore:
    """Two streams of several chunks at rest, after a kill."""
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), Setup())
    world.create_topic("t", 2)
    world.run()
    for _ in range(3):
        world.append("t", 0, value_bytes=200, producer=None)
        world.append("t", 1)
        world.run()
    world.rest()
    world.run()
    return world


def reopened(world: SimulatedStore, disk: SimDisk) -> SimulatedStore:
    """The next life, checked."""
    after = SimulatedStore(disk, world.history.fork(), Setup())
    after.check()
    return after


def restore_table(source: SimDisk, target: SimDisk) -> None:
    """Put the table of one disk in the place of another's."""
    for name in [name for name in target.list_directory("ledger") if name.startswith("quiet.")]:
        target.remove(f"ledger/{name}")
    (name,) = [name for name in source.list_directory("ledger") if name.startswith("quiet.")]
    path = f"ledger/{name}"
    target.create(path)
    target.write(path, 0, [source.read(path, 0, source.size(path))])
    target.sync(path)
    target.sync_directory("ledger")


@pytest.mark.parametrize("rolls", [False, True], ids=["the same chunk", "a new chunk"])
def test_an_older_table_is_noticed(rolls: bool) -> None:
    """A table from a backup names a shorter stream: that is reported, the files count, and nothing is hidden."""
    world = quiet_world()
    older = world.disk.kill_state()
    world.append("t", 0, value_bytes=480 if rolls else 20)
    world.append("t", 1)
    world.run()
    disk = world.disk.kill_state()
    restore_table(older, disk)
    after = reopened(world, disk)
    assert [found["directory"] for found in after.reports.of(QUIET_STREAM_DIFFERS)] == [
        stream.directory for stream in after.store.streams()
    ]


def test_a_table_that_is_believed_blindly_loses_records(monkeypatch: Patch) -> None:
    """The check of entries is what notices it: without it, records that were acknowledged are not there."""
    world = quiet_world()
    older = world.disk.kill_state()
    world.append("t", 0)
    world.run()
    disk = world.disk.kill_state()
    restore_table(older, disk)
    monkeypatch.setattr(QuietStreams, "is_true", lambda *_: True)
    with pytest.raises(PromiseBroken):
        reopened(world, disk)


def test_older_files_are_noticed() -> None:
    """A stream's files from a backup: the offsets that they lack are reported as lost."""
    world = quiet_world()
    disk = world.disk.kill_state()
    chunk = world.store.stream("t", 1).chunks[-1]
    disk.truncate(chunk.log_path, chunk.size_bytes // 3)
    after = SimulatedStore(disk, world.history.fork(), Setup())
    assert after.reports.of(QUIET_STREAM_DIFFERS)
    stream = after.store.stream("t", 1)
    (lost,) = after.reports.of(OFFSETS_LOST)
    assert (lost["first"], lost["last"]) == (stream.high_watermark, 2)
    assert after.store.stream("t", 0).high_watermark == 3


def test_a_stream_that_is_gone_is_an_error() -> None:
    """The directory of a stream that had records is missing: the start is refused, with its name."""
    world = quiet_world()
    disk = world.disk.kill_state()
    directory = world.store.stream("t", 1).directory
    for name in disk.list_directory(directory):
        disk.remove(f"{directory}/{name}")
    disk.remove_directory(directory)
    with pytest.raises(CorruptFile, match="had reached offset 3"):
        SimulatedStore(disk, world.history.fork(), Setup())


def test_a_damaged_table_costs_only_time() -> None:
    """It is reported and dropped, every stream is recovered from its files, and the next table is believed again."""
    world = quiet_world()
    disk = world.disk.kill_state()
    (path,) = [f"ledger/{name}" for name in disk.list_directory("ledger") if name.startswith("quiet.")]
    disk.flip_bit(path, 400)
    after = reopened(world, disk)
    assert after.reports.of(QUIET_TABLE_DAMAGED)
    after.rest()
    after.run()
    again = reopened(world, after.disk.kill_state())
    assert not again.reports.of(QUIET_TABLE_DAMAGED)
    assert not any(stream.is_awake for stream in again.store.streams())


def test_a_kill_opens_quiet_streams_without_their_files() -> None:
    """A start reads no file of a stream that is in the table; the first append reads its index."""
    world = quiet_world()
    disk = world.disk.kill_state()
    after = SimulatedStore(disk, world.history.fork(), Setup())
    assert {call.kind for call in disk.log if call.path.startswith("streams/t.")} == {"list_directory", "size"}
    after.append("t", 0)
    after.run()
    after.check()


def test_a_disk_that_refuses_the_table_refuses_the_append() -> None:
    """An append to a quiet stream fails with a clear error while the table cannot be written, and works afterwards."""
    world = quiet_world()
    world.disk.capacity_bytes = 0
    refused = world.append("t", 0)
    world.run()
    assert isinstance(refused.error, CairnError)
    assert "ledger quiet" in str(refused.error)
    world.disk.capacity_bytes = None
    accepted = world.append("t", 0)
    world.run()
    accepted.result()
    world.check()
    reopened(world, world.disk.kill_state())


def test_idempotent_producers_are_known_to_a_quiet_stream() -> None:
    """A duplicate sent to a stream that was opened from the table gets its first answer; a gap is refused."""
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), Setup())
    world.create_topic("t", 1)
    world.run()
    known = world.history.stream("t", 0)
    batch, _ = world.make_batch(known, 1, 40, (7, 0, 0))
    stream = world.store.stream("t", 0)
    first = stream.append(bytearray(batch), now_ms=world.clock.wall_ms())
    world.run()
    world.rest()
    world.run()
    world.restart(clean=False)
    stream = world.store.stream("t", 0)
    assert not stream.is_awake
    again = stream.append(bytearray(batch), now_ms=world.clock.wall_ms())
    world.run()
    assert again.result().duplicate
    assert again.result().base_offset == first.result().base_offset
    assert not stream.is_awake  # a duplicate changes no file
    gap, _ = world.make_batch(known, 1, 40, (7, 0, 5))
    with pytest.raises(CairnError):
        stream.append(gap, now_ms=world.clock.wall_ms())


def test_streams_that_wake_together_share_a_sync() -> None:
    """However many quiet streams get their first record at once, the table is synced once or twice for all of them."""
    world = SimulatedStore(SimDisk(), History(), Setup())
    world.create_topic("t", 40)
    world.run()
    for partition in range(40):
        world.append("t", partition)
    world.run()
    world.rest()
    world.run()
    before = len(world.disk.log)
    for partition in range(40):
        world.append("t", partition)
    world.run()
    syncs = [call for call in world.disk.log[before:] if call.kind == "sync" and "ledger/quiet." in call.path]
    assert 1 <= len(syncs) <= 2
    world.check()


def test_an_index_whose_seal_was_lost_is_rebuilt() -> None:
    """The seal of a quiet stream is not synced: a power cut may take it, reads and appends work all the same."""
    world = quiet_world()
    for _ in range(3):
        for state in world.disk.crash_states(CrashBounds(states=64)):
            after = reopened(world, state)
            ticket = after.append("t", 1, value_bytes=60)
            after.run()
            ticket.result()
            after.check()
        world.append("t", 1)
        world.run()
        world.rest()
        world.run()

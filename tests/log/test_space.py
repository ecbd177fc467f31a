"""Room on the disk: appends end before it is full, what makes room again goes on working, and appends come back."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.epochs.staging import Staging
from logstore.errors import StorageFailed
from logstore.events import CHUNK_CLEANED, CLEANING_FAILED, DISK_LOW, DISK_LOW_OVER
from logstore.interfaces import DiskSpace
from logstore.log.space import MAX_DEFAULT_RESERVE_BYTES, MAX_SPARE_BYTES, SPARE_FILE, SpaceGuard
from logstore.log.store import StoreSettings
from logstore.log.stream import Stream
from logstore.log.topics import TopicConfig
from logstore.testing.faults import ENOSPC, Fault, FileCall
from logstore.testing.history import History
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import Setup, SimulatedStore

RESERVE_BYTES = 16_000
TOPIC = "t"
HOUR_MS = 3600 * 1000


def world_of(capacity_bytes: int = 60_000, **config: Any) -> SimulatedStore:
    """A store with one stream on a small disk; chunks of some 4000 bytes."""
    defaults = TopicConfig(segment_bytes=4096, **config)
    settings = StoreSettings(topic_defaults=defaults, disk_reserve_bytes=RESERVE_BYTES)
    disk = SimDisk()
    disk.capacity_bytes = capacity_bytes
    world = SimulatedStore(disk, History(), Setup(settings=settings))
    world.create_topic(TOPIC, 1)
    world.run()
    look(world)
    return world


def look(world: SimulatedStore) -> None:
    """A look at the disk, and the work that follows from it."""
    world.store.space.look()
    world.run()


def free_bytes(world: SimulatedStore) -> int:
    """The room on the disk."""
    return world.disk.space().free_bytes


def append(world: SimulatedStore, value_bytes: int = 900) -> bool:
    """Append one batch; whether it was taken. What is taken must be acknowledged."""
    try:
        ticket = world.append(TOPIC, value_bytes=value_bytes)
    except StorageFailed as error:
        if "disk-reserve-bytes" not in str(error):
            raise
        return False
    world.run()
    ticket.result()
    return True


def fill(world: SimulatedStore) -> int:
    """Append until the disk has no room for more; returns how many batches were taken."""
    taken = 0
    while append(world):
        taken += 1
        assert taken < 1000
    return taken


def occupy(world: SimulatedStore, left_bytes: int) -> None:
    """Another program takes all room but `left_bytes`."""
    world.disk.create("stranger")
    world.disk.write("stranger", 0, [bytes(free_bytes(world) - left_bytes)])


def test_appends_end_at_the_reserve_and_go_on_after_a_trim() -> None:
    """The reserve stays free, but for what indexes, snapshots and the journal take between two looks (much, beside a
    reserve as small as this); a refused batch is not in the log; a trim brings appends back, and each change is told
    once.
    """
    world = world_of()
    taken = fill(world)
    assert taken > 10
    assert free_bytes(world) >= RESERVE_BYTES * 13 // 16
    for _ in range(5):
        assert not append(world)
        look(world)
    assert [fields["needed_bytes"] for fields in world.reports.of(DISK_LOW)] == [RESERVE_BYTES]
    assert world.store.stream(TOPIC, 0).high_watermark == taken
    world.check()
    world.trim(TOPIC, 0, taken - 4)
    world.run()
    look(world)
    assert append(world)
    assert len(world.reports.of(DISK_LOW)) == len(world.reports.of(DISK_LOW_OVER)) == 1
    world.check()
    world.restart(clean=False)
    world.check()


def test_a_shortage_is_dated() -> None:
    """The time at which it began is known as long as it lasts, and of each one anew."""
    clock = iter([1000, 2000])
    space = SpaceGuard(100, lambda _: None, RecordedReports(), lambda: next(clock))
    space.note(DiskSpace(500, 1000))
    assert space.low_since_ms is None
    for began_ms in (1000, 2000):
        for free_bytes in (90, 50, 120):
            space.note(DiskSpace(free_bytes, 1000))
            assert space.low_since_ms == began_ms
        space.note(DiskSpace(125, 1000))
        assert space.low_since_ms is None


def test_a_small_trim_does_not_end_the_shortage() -> None:
    """Room for one more batch is not enough: a quarter of the reserve has to be free beyond it."""
    world = world_of(60_040)
    taken = fill(world)
    world.trim(TOPIC, 0, 1 + taken // 10)
    world.run()
    look(world)
    assert free_bytes(world) < RESERVE_BYTES * 5 // 4
    assert not append(world)
    assert world.reports.of(DISK_LOW_OVER) == []


def test_a_burst_between_two_looks_keeps_the_reserve() -> None:
    """Batches that come together, before the disk can tell what they took, are counted one by one."""
    world = world_of()
    taken = 0
    with pytest.raises(StorageFailed):
        for _ in range(1000):
            world.append(TOPIC, value_bytes=900)
            taken += 1
    world.run()
    assert taken > 10
    assert free_bytes(world) >= RESERVE_BYTES - 2000, "index, snapshot and ledger take a little beside"


def test_what_others_write_is_noticed_at_the_next_look() -> None:
    """A stranger fills the disk up to the reserve: appends are refused before the disk refuses them."""
    world = world_of()
    assert append(world)
    occupy(world, RESERVE_BYTES - 1)
    look(world)
    assert not append(world)
    world.disk.remove("stranger")
    look(world)
    assert append(world)


def test_retention_is_applied_when_a_shortage_begins() -> None:
    """What has expired goes at once, not at the next check of retention; so do appends come back."""
    world = world_of(retention_ms=HOUR_MS)
    for _ in range(12):
        append(world)
    world.clock.advance(2 * HOUR_MS)
    occupy(world, RESERVE_BYTES - 1)
    look(world)
    look(world)
    assert world.store.stream(TOPIC, 0).log_start_offset == 12
    assert append(world)
    assert len(world.reports.of(DISK_LOW_OVER)) == 1


def test_a_disk_that_refuses_makes_retention_go_at_once() -> None:
    """A disk that says it has room and refuses (a quota) is met by the same."""
    world = world_of(retention_ms=HOUR_MS)
    for _ in range(12):
        append(world)
    world.clock.advance(2 * HOUR_MS)
    world.store.space.refused()
    world.run()
    assert world.store.stream(TOPIC, 0).log_start_offset == 12


def test_offsets_topics_and_trims_go_on_in_a_shortage() -> None:
    """Only appends are refused: offsets are committed, topics made and deleted, ids given out, records deleted."""
    world = world_of()
    fill(world)
    world.put()
    world.allocate()
    world.create_topic("other", 2)
    world.run()
    assert world.history.puts_acked == 1
    assert "other" in world.store.topics
    world.delete_topic("other")
    world.run()
    assert "other" not in world.store.topics
    assert not append(world)
    world.restart(clean=False)
    world.check()
    assert not append(world), "a restart knows of the shortage before it takes anything"


def test_staging_ends_while_its_commit_has_room() -> None:
    """Staged bytes keep their room in the streams: after the last segment that was taken, every epoch is committed, and
    the reserve is hardly touched.
    """
    world = world_of(capacity_bytes=60_000)
    staged = 0
    with pytest.raises(StorageFailed, match="plus the bytes that are staged"):
        for epoch in range(1000):
            world.stage(TOPIC, epoch, "run", partitions=1, value_bytes=1000)
            staged += 1
    assert staged > 10
    assert world.store.space.is_low
    assert free_bytes(world) >= RESERVE_BYTES + world.staging.used_bytes - RESERVE_BYTES // 4
    for epoch in range(staged):
        assert world.commit(epoch, "run") == "committed"
        assert free_bytes(world) > RESERVE_BYTES // 4
    world.check()
    assert world.staging.used_bytes == 0


def test_a_disk_that_others_have_filled_still_takes_trims() -> None:
    """The spare file goes when nothing is left: deleting records and topics works on a disk without a free byte."""
    world = world_of()
    look(world)
    assert world.disk.exists(SPARE_FILE)
    for _ in range(12):
        append(world)
    world.create_topic("other", 1)
    world.run()
    occupy(world, 0)
    look(world)
    look(world)
    assert not world.disk.exists(SPARE_FILE)
    world.trim(TOPIC, 0, 12)
    world.delete_topic("other")
    world.run()
    assert world.store.stream(TOPIC, 0).log_start_offset == 12
    assert "other" not in world.store.topics
    world.disk.remove("stranger")
    look(world)
    look(world)
    assert world.disk.exists(SPARE_FILE)
    assert append(world)
    world.check()


@pytest.mark.parametrize("kind", ["create", "write", "sync", "sync_directory", "space"])
def test_a_spare_file_that_could_not_be_written_is_written_later(kind: str) -> None:
    """A fault while it is written, or a kill, leaves a part of it: that is removed, and the file written again."""
    settings = StoreSettings(disk_reserve_bytes=RESERVE_BYTES)
    for is_killed in (False, True):
        world = SimulatedStore(SimDisk(), History(), Setup(settings=settings))
        world.disk.fault_for = lambda call: ENOSPC if call.kind == kind and call.path in ("", SPARE_FILE) else None
        look(world)
        world.disk.fault_for = None
        if is_killed:
            world.restart(clean=False)
        for _ in range(3):
            look(world)
        assert world.disk.size(SPARE_FILE) == RESERVE_BYTES // 8


def test_a_restart_on_a_full_disk() -> None:
    """A killed sidecar starts again on a disk that others have filled, reads, and trims."""
    world = world_of()
    look(world)
    for _ in range(12):
        append(world)
    occupy(world, 0)
    world.restart(clean=False)
    world.check()
    assert not append(world)
    world.trim(TOPIC, 0, 12)
    world.run()
    assert world.store.stream(TOPIC, 0).log_start_offset == 12
    world.check()


def test_no_reserve_no_refusal() -> None:
    """With disk-reserve-bytes 0 appends go on until the disk refuses them, and there is no spare file."""
    reports = RecordedReports()
    space = SpaceGuard(0, lambda _: None, reports, lambda: 0)
    space.note(DiskSpace(0, 1000))
    space.admit(500)
    assert not space.is_low
    assert reports.events == []


@pytest.mark.parametrize(
    ("total_bytes", "reserve_bytes"), [(100 << 20, 5 << 20), (20 << 30, 1 << 30), (1 << 50, MAX_DEFAULT_RESERVE_BYTES)]
)
def test_the_default_is_a_share_of_the_disk(total_bytes: int, reserve_bytes: int) -> None:
    """5 % of the file system, at most 1 GiB; the spare file is a part of it."""
    space = SpaceGuard(-1, lambda _: None, RecordedReports(), lambda: 0)
    space.note(DiskSpace(total_bytes, total_bytes))
    assert space.reserve_bytes == reserve_bytes
    assert space._spare_bytes <= min(MAX_SPARE_BYTES, reserve_bytes // 8)


def test_a_file_system_that_does_not_tell_refuses_nothing() -> None:
    """Where a look fails, appends go on: the disk itself refuses what does not fit."""
    space = SpaceGuard(-1, lambda _: None, RecordedReports(), lambda: 0)
    assert space.free_bytes is None
    space.admit(1 << 40)
    job = None
    space.look()
    job = space.take_job()
    assert job is not None
    job.failed(job.operations[-1], OSError(38, "not implemented"))
    space.admit(1 << 40)


def test_expired_staged_data_goes_when_a_shortage_begins() -> None:
    """Staged output of a query that is gone is dropped as soon as it is old and room is short."""
    world = world_of()
    world.stage(TOPIC, 0, "run", partitions=1)
    staging: Staging = world.staging
    assert staging.used_bytes
    world.clock.advance(25 * HOUR_MS)
    occupy(world, RESERVE_BYTES - 1)
    look(world)
    assert staging.used_bytes == 0


def test_a_limit_that_is_looked_at_after_the_append_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a batch is counted once it waits for its write, so it is refused and in the log: the story sees that."""
    original = Stream.append

    def append_first(self: Stream, records: bytearray, **more: Any) -> Any:
        space, self._host.space = self._host.space, SpaceGuard(0, lambda _: None, RecordedReports(), lambda: 0)
        ticket = original(self, records, **more)
        self._host.space = space
        space.admit(len(records))
        return ticket

    monkeypatch.setattr(Stream, "append", append_first)
    with pytest.raises(AssertionError):
        test_appends_end_at_the_reserve_and_go_on_after_a_trim()


def test_cleaning_goes_on_after_a_disk_without_room() -> None:
    """A copy that does not fit ends the round, not the stream's cleaning: the next round cleans the chunk."""
    world = SimulatedStore(SimDisk(), History(), Setup(seed=1))
    world.create_topic(TOPIC, 1)
    world.run()
    for epoch in range(4):
        world.append_group(TOPIC, 0, epoch, batches=1, states=2)
        world.run()
    world.own_state(TOPIC, 0, world.store.stream(TOPIC, 0).high_watermark)
    world.run()
    refused: list[str] = []

    def refuse(call: FileCall) -> Fault | None:
        if call.path.endswith(".cleaned") and call.kind == "write":
            refused.append(call.path)
            return ENOSPC
        return None

    world.disk.fault_for = refuse
    world.clean()
    assert refused
    assert world.reports.of(CLEANING_FAILED) == []
    assert world.reports.of(CHUNK_CLEANED) == []
    world.disk.fault_for = None
    world.clean()
    assert len(world.reports.of(CHUNK_CLEANED)) >= 3
    world.check()


def test_who_asks_for_room_is_told_before_anything_is_refused() -> None:
    """Replicas of a cluster ask before they take entries: a shortage begins with that, and is reported once."""
    reports = RecordedReports()
    space = SpaceGuard(100, lambda _: None, reports, lambda: 7)
    assert space.has_room(1 << 40), "nothing is known of the disk yet"
    space.note(DiskSpace(500, 1000))
    assert space.has_room(400)
    assert not space.has_room(401)
    assert space.low_since_ms == 7
    assert not space.has_room(1)
    assert reports.names() == [DISK_LOW.name]
    space.note(DiskSpace(200, 1000))
    assert space.has_room(100)

"""Last chunks are sealed by age, also when nothing is appended: so retention reaches every record and its bytes."""

from __future__ import annotations

from logstore.log.topics import TopicConfig
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, SimulatedStore
from tests.log.test_retention import DAY_MS, TOPIC, WEEK_MS, append, next_life, stream_of, tick, world_of

HOUR_MS = 3600 * 1000


def files(world: SimulatedStore) -> dict[str, int]:
    """The chunks of the one stream on the disk: their names, and their sizes in bytes."""
    disk = world.disk
    assert isinstance(disk, SimDisk)
    prefix = stream_of(world).directory + "/"
    found = {path.removeprefix(prefix): data for path, data in disk.files() if path.startswith(prefix)}
    return {name: len(data) for name, data in found.items() if name.endswith(".log") and data is not None}


def name(base_offset: int) -> str:
    """The file of the chunk that starts there."""
    return f"{base_offset:020d}.log"


def test_a_stream_that_nothing_is_appended_to_ends_up_empty() -> None:
    """Its records expire, and so do the bytes of the last chunk: what is left is an empty chunk at the end offset."""
    world = world_of()
    for _ in range(3):
        append(world)
    assert len(files(world)) == 3
    world.clock.advance(WEEK_MS + 1)
    assert tick(world) == 3
    assert files(world) == {name(3): 0}
    assert (stream_of(world).log_start_offset, stream_of(world).high_watermark) == (3, 3)
    for is_clean in (True, False):
        world = next_life(world, is_clean=is_clean)
        assert (stream_of(world).log_start_offset, stream_of(world).high_watermark) == (3, 3)
        assert tick(world) == 3
        assert files(world) == {name(3): 0}
    append(world)
    assert stream_of(world).high_watermark == 4
    assert files(world).keys() == {name(3)}


def test_the_check_of_retention_seals_an_old_last_chunk() -> None:
    """A chunk whose first append is older than segment.ms is sealed by the check, not by the next append; the chunk
    behind it takes what comes next, and retention takes the sealed one as any other.
    """
    world = world_of(segment_ms=DAY_MS, retention_ms=2 * DAY_MS)
    append(world, value_bytes=10)
    world.clock.advance(DAY_MS)
    tick(world)
    assert files(world).keys() == {name(0)}
    world.clock.advance(1)
    tick(world)
    assert files(world).keys() == {name(0), name(1)}
    append(world, value_bytes=10)
    assert files(world).keys() == {name(0), name(1)}
    world.clock.advance(DAY_MS)
    assert tick(world) == 1
    assert files(world).keys() == {name(1)}


def test_an_empty_last_chunk_is_not_sealed_again() -> None:
    """Checks of a stream without input write nothing more, however long it is idle."""
    world = world_of(segment_ms=DAY_MS, retention_ms=-1)
    append(world)
    world.clock.advance(2 * DAY_MS)
    tick(world)
    found = files(world)
    for _ in range(3):
        world.clock.advance(2 * DAY_MS)
        tick(world)
        assert files(world) == found


def test_a_slow_stream_keeps_records_for_twice_the_retention_at_most() -> None:
    """Input that never fills a chunk does not keep old records: the chunk is sealed when its first append is older than
    the retention, although segment.ms is longer.
    """
    world = world_of(retention_ms=DAY_MS)
    written: list[int] = []
    for hour in range(24 * 6):
        append(world, world.clock.wall_ms(), value_bytes=1)
        written.append(hour)
        world.clock.advance(HOUR_MS)
        oldest = written[tick(world)] if stream_of(world).log_start_offset < len(written) else hour
        assert hour + 1 - oldest <= 2 * 24 + 2
        assert stream_of(world).log_start_offset <= max(0, hour - 23), "a record goes before its time"
    assert stream_of(world).log_start_offset > 24 * 3


def test_age_of_a_chunk_is_known_again_after_a_restart() -> None:
    """The first index block of the last chunk says when the chunk was begun: a restart does not begin its age anew."""
    for is_clean in (True, False):
        world = world_of(segment_ms=4 * DAY_MS, retention_ms=-1)
        append(world, value_bytes=10)
        for _ in range(3):
            world.clock.advance(DAY_MS)
            tick(world)
            append(world, value_bytes=10)
        world = next_life(world, is_clean=is_clean, down_ms=30 * DAY_MS)
        tick(world)
        assert files(world).keys() == {name(0)}
        world.clock.advance(DAY_MS + 1)
        tick(world)
        assert files(world).keys() == {name(0), name(4)}


def test_deleted_records_free_their_bytes_at_once() -> None:
    """DeleteRecords up to the end removes the last chunk too, without an append or a check of retention."""
    world = world_of()
    append(world)
    append(world)
    ticket = stream_of(world).delete_records(-1)
    world.run()
    assert ticket.result() == 2
    assert files(world) == {name(2): 0}


def test_an_append_that_waits_opens_the_chunk_itself() -> None:
    """A seal that is due while a batch waits is done by that batch's write: one new chunk, not two."""
    world = world_of(segment_ms=DAY_MS)
    append(world)
    world.clock.advance(DAY_MS + 1)
    ticket = world.append(TOPIC)
    world.store.tick()
    world.run()
    assert ticket.error is None
    assert len(files(world)) == 2
    assert stream_of(world).high_watermark == 2


def test_many_streams_are_sealed_one_after_the_other() -> None:
    """When a thousand idle chunks come of age at the same moment, a batch that comes then does not wait for all."""
    world = world_of(segment_ms=DAY_MS)
    world.create_topic("idle", 100)
    world.run()
    for partition in range(100):
        world.append("idle", partition)
    world.run()
    world.clock.advance(DAY_MS + 1)
    world.store.tick()
    for _ in range(20):  # the retention clock is written before streams are looked at
        world.driver.step()
    ticket = world.append(TOPIC)
    steps = 0
    while not ticket.done:
        assert world.driver.step()
        steps += 1
    chunks = sum(len(world.store.stream("idle", partition).chunks) for partition in range(100))
    assert chunks < 110, f"{chunks - 100} chunks were sealed before the batch was, in {steps} steps"
    world.run()
    assert all(len(world.store.stream("idle", partition).chunks) == 2 for partition in range(100))


def test_a_clock_that_jumps_seals_nothing() -> None:
    """A chunk's age counts served time: a wall clock that goes ahead by years makes no chunk old."""
    world = world_of(segment_ms=DAY_MS)
    append(world)
    world.clock.jump(FIRST_TIMESTAMP + 4000 * DAY_MS)
    tick(world)
    assert files(world).keys() == {name(0)}


def test_kafka_s_default() -> None:
    """segment.ms is seven days, as in Kafka."""
    assert TopicConfig().segment_ms == WEEK_MS

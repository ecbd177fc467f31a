"""How long records stay: from their append, for as long as the retention says, whatever clocks and restarts do."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c

from logstore.errors import InvalidTimestamp
from logstore.events import DURABLE_DATA_DAMAGED, TRIMMED
from logstore.format.index import decode_blocks
from logstore.format.records import Record, encode_batch
from logstore.log.store import StoreSettings
from logstore.log.stream import Stream
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, Setup, World
from tests.support.compressed import compressed

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS
TOPIC = "t"


def world_of(**config: Any) -> World:
    """A store with one stream whose chunks hold one batch of 1000 bytes."""
    settings = StoreSettings(topic_defaults=TopicConfig(segment_bytes=1024, **config))
    world = World(SimDisk(), History(), Setup(settings=settings))
    world.create_topic(TOPIC, 1)
    world.run()
    return world


def stream_of(world: World) -> Stream:
    """The one stream."""
    return world.store.stream(TOPIC, 0)


def append(world: World, timestamp_ms: int = FIRST_TIMESTAMP, value_bytes: int = 900) -> None:
    """One record, durably."""
    ticket = stream_of(world).append(
        encode_batch([Record(0, timestamp_ms, None, bytes(value_bytes))]), now_ms=world.clock.wall_ms()
    )
    world.run()
    ticket.result()


def tick(world: World) -> int:
    """Apply retention; the log start then."""
    world.store.tick()
    world.run()
    return stream_of(world).log_start_offset


def next_life(world: World, *, is_clean: bool, down_ms: int = 0) -> World:
    """Another sidecar on the same disk, some time later; its monotonic clock starts anew."""
    if is_clean:
        world.store.close()
        world.run()
    clock = ManualClock(world.clock.wall_ms() + down_ms)
    return World(world.disk.kill_state(), world.history, world.setup, clock)


def test_old_records_stay_as_long_as_new_ones() -> None:
    """A back-fill of records older than the retention stays for the retention from its append, chunk by chunk; then it
    goes, and each trim is a line in the log.
    """
    world = world_of()
    for number in range(3):
        append(world, FIRST_TIMESTAMP - 400 * DAY_MS)
        assert tick(world) == 0
        world.clock.advance(DAY_MS * (number < 2))
    world.clock.advance(WEEK_MS - 2 * DAY_MS)
    assert tick(world) == 0
    world.clock.advance(1)
    assert tick(world) == 1
    (trimmed,) = world.reports.of(TRIMMED)
    freed_bytes = trimmed.pop("freed_bytes")
    assert trimmed == {"stream": "t-0", "first": 0, "last": 0, "why": "age"}
    assert isinstance(freed_bytes, int)
    assert freed_bytes > 900
    world.clock.advance(2 * DAY_MS)
    assert tick(world) == stream_of(world).high_watermark


def test_the_open_chunk_is_no_older_than_its_newest_record() -> None:
    """Records from the future stay until their own time is older than the retention."""
    world = world_of(timestamp_after_max_ms=DAY_MS)
    append(world, FIRST_TIMESTAMP + DAY_MS)
    world.clock.advance(WEEK_MS + 1)
    assert tick(world) == 0
    world.clock.advance(DAY_MS)
    assert tick(world) == 1


def test_a_jump_of_the_clock_deletes_nothing() -> None:
    """The wall clock may go ahead by years or back to 1970, in a life or between two: records stay their whole time."""
    world = world_of()
    append(world)
    append(world)
    for wall_ms in (FIRST_TIMESTAMP + 4000 * DAY_MS, 0, FIRST_TIMESTAMP + 1):
        world.clock.jump(wall_ms)
        assert tick(world) == 0
        for is_clean in (True, False):
            world = next_life(world, is_clean=is_clean, down_ms=4000 * DAY_MS)
            assert tick(world) == 0
    world.clock.advance(WEEK_MS + 1)
    assert tick(world) == 2


@pytest.mark.parametrize("is_clean", [True, False])
def test_age_survives_a_restart(is_clean: bool) -> None:
    """What a former life wrote is as old in the next as it was; time in which no sidecar ran does not count, so that an
    outage takes nothing from readers.
    """
    world = world_of()
    append(world)
    append(world)
    world.clock.advance(3 * DAY_MS)
    tick(world)
    for _ in range(2):
        world = next_life(world, is_clean=is_clean, down_ms=30 * DAY_MS)
        assert tick(world) == 0
    world.clock.advance(4 * DAY_MS)
    assert tick(world) == 0
    world.clock.advance(1)
    assert tick(world) == 2


def test_an_end_that_no_index_block_covers_is_as_old_as_the_start() -> None:
    """After a kill nobody knows when the last batches came: their age counts from the next start, never too early."""
    world = world_of()
    append(world, value_bytes=10)
    world.clock.advance(6 * DAY_MS)
    append(world, value_bytes=10)
    chunk = stream_of(world).chunks[-1]
    blocks, _ = decode_blocks(world.fs.read(chunk.index_path, 0, world.fs.size(chunk.index_path)))
    assert blocks[-1].next_offset == 1
    world = next_life(world, is_clean=False)
    world.clock.advance(WEEK_MS)
    assert tick(world) == 0
    world.clock.advance(1)
    assert tick(world) == 2


def test_chunks_of_an_older_version_are_kept_their_time() -> None:
    """Blocks of version 1 do not say when a chunk was written: no later than at the first start that looks."""
    world = world_of()
    for _ in range(3):
        append(world)
    world.store.close()
    world.run()
    for chunk in stream_of(world).chunks:
        data = world.fs.read(chunk.index_path, 0, world.fs.size(chunk.index_path))
        old = as_version_1(data)
        world.fs.truncate(chunk.index_path, 0)
        world.fs.write(chunk.index_path, 0, [old])
    world = next_life(world, is_clean=False)
    assert DURABLE_DATA_DAMAGED.name not in world.reports.names()
    assert [chunk.size_bytes > 900 for chunk in stream_of(world).chunks] == [True] * 3
    world.clock.advance(WEEK_MS)
    assert tick(world) == 0
    world.clock.advance(1)
    assert tick(world) == 3


def as_version_1(data: bytes) -> bytes:
    """The same index as an older Cairn would have written it."""
    old = bytearray()
    for block in decode_blocks(data)[0]:
        head = struct.pack(
            ">4sHHIqqq", b"CIDX", 1, 0, len(block.entries), block.durable_end, block.next_offset, block.max_timestamp
        )
        body = b"".join(struct.pack(">qqqII", *entry) for entry in block.entries)
        old += head + struct.pack(">I", crc32c(body, crc32c(head))) + body
    return bytes(old)


def test_size_is_looked_at_when_a_chunk_is_full() -> None:
    """A fast writer does not fill the disk until the next check: each new chunk takes the ones with it that are too
    many.
    """
    world = world_of(retention_bytes=2500)
    for number in range(6):
        append(world)
        assert stream_of(world).log_start_offset == max(0, number - 2)
    whys = {fields["why"] for fields in world.reports.of(TRIMMED)}
    assert whys == {"size"}


def test_records_too_far_behind_the_clock_are_refused() -> None:
    """With message.timestamp.before.max.ms a batch with one record that is older is refused, compressed or not; without
    it none is.
    """
    world, now_ms = world_of(timestamp_before_max_ms=DAY_MS), FIRST_TIMESTAMP
    times = [now_ms, now_ms - DAY_MS, now_ms + 5]
    good = encode_batch([Record(0, at_ms, None, b"v") for at_ms in times])
    bad = encode_batch([Record(0, at_ms, None, b"v") for at_ms in [*times, now_ms - DAY_MS - 1, now_ms]])
    stream = stream_of(world)
    for batch in (good, compressed(good, "zstd")):
        stream.append(batch, now_ms=now_ms)
    for batch in (bad, compressed(bad, "lz4"), compressed(bad, "snappy-xerial")):
        with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.before\.max\.ms"):
            stream.append(batch, now_ms=now_ms)
    huge = encode_batch([Record(0, now_ms, None, bytes(17 << 20)), Record(0, now_ms, None, b"")])
    with pytest.raises(InvalidTimestamp, match="smaller batches"):
        stream.append(compressed(huge, "zstd"), now_ms=now_ms)
    stream_of(world_of()).append(bad, now_ms=now_ms)

"""LogAppendTime: the log says when records came, whatever their producers say."""

from __future__ import annotations

import pytest

from logstore.errors import InvalidTimestamp
from logstore.format.batch import TIMESTAMP_TYPE_BIT, check_batch, seal_batch
from logstore.format.records import Record, encode_batch
from logstore.log.store import StoreSettings
from logstore.log.topics import LOG_APPEND_TIME, TopicConfig
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, ListGroup, Setup, SimulatedStore
from tests.support.compressed import compressed

DAY_MS = 24 * 3600 * 1000


def batch_of(*times_ms: int) -> bytearray:
    """A batch of records with those timestamps."""
    return encode_batch([Record(0, at_ms, None, b"value") for at_ms in times_ms])


def test_records_have_the_time_of_their_append() -> None:
    """Batches of clients, compressed ones too, and those of a group get the log's clock, with a checksum that holds;
    offsets by time are found by it, and control batches keep theirs.
    """
    config = TopicConfig(timestamp_type=LOG_APPEND_TIME, timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    setup = Setup(settings=StoreSettings(topic_defaults=config))
    world = SimulatedStore(SimDisk(), History(), setup)
    world.create_topic("t", 1)
    world.run()
    stream = world.store.stream("t", 0)
    old, ahead = FIRST_TIMESTAMP - 900 * DAY_MS, FIRST_TIMESTAMP + 900 * DAY_MS
    for batch in (batch_of(old, ahead), compressed(batch_of(ahead, old), "zstd")):
        world.clock.advance(1000)
        ticket = stream.append(batch, now_ms=world.clock.wall_ms())
        world.run()
        assert ticket.result().append_ms == world.clock.wall_ms()
    world.clock.advance(1000)
    stream.append_group(ListGroup("q", 0, [batch_of(old)]))
    world.run()
    found = world.read(stream)
    headers = [check_batch(batch.data) for batch in found]
    assert [(h.max_timestamp - FIRST_TIMESTAMP, h.has_log_append_time) for h in headers if not h.is_control] == [
        (1000, True),
        (2000, True),
        (3000, True),
    ]
    assert not any(header.has_log_append_time for header in headers if header.is_control)
    # Offset 4 is the group's BEGIN.
    assert [world.find(stream, FIRST_TIMESTAMP + ms) for ms in (0, 1000, 1001, 2001, 3001)] == [0, 0, 2, 5, None]
    again = SimulatedStore(world.disk.kill_state(), world.history, setup)
    assert [batch.data for batch in again.read(again.store.stream("t", 0))] == [batch.data for batch in found]


def test_clients_cannot_say_when_their_records_came() -> None:
    """A batch that carries LogAppendTime already is refused, whatever the topic's type is."""
    for config in (TopicConfig(), TopicConfig(timestamp_type=LOG_APPEND_TIME)):
        world = SimulatedStore(SimDisk(), History(), Setup(settings=StoreSettings(topic_defaults=config)))
        world.create_topic("t", 1)
        world.run()
        batch = batch_of(FIRST_TIMESTAMP)
        batch[22] |= TIMESTAMP_TYPE_BIT
        with pytest.raises(InvalidTimestamp):
            world.store.stream("t", 0).append(seal_batch(batch), now_ms=world.clock.wall_ms())

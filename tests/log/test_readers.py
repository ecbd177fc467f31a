"""Registered readers: what they have not acknowledged stays, up to a limit that the reader is told about."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.errors import ReaderReleased, TooManyReaders, UnknownReader
from logstore.events import READER_RELEASED
from logstore.format.records import Record, encode_batch
from logstore.log import readers as readers_module
from logstore.log.readers import HoldLimits, Readers, StreamId
from logstore.log.store import StoreSettings
from logstore.log.stream import Stream
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.faults import EIO
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, Setup, World

TOPIC = "t"
HOUR_MS = 3600 * 1000
RECORD_BYTES = 900


def world_of(max_bytes: int = 1 << 30, max_idle_ms: int = 24 * HOUR_MS, **config: Any) -> World:
    """A store with one stream whose chunks hold one batch each, and whose records may go after an hour."""
    topics = TopicConfig(**{"segment_bytes": 1024, "retention_ms": HOUR_MS} | config)
    settings = StoreSettings(topic_defaults=topics, hold_limits=HoldLimits(max_bytes, max_idle_ms))
    world = World(SimDisk(), History(), Setup(settings=settings))
    world.create_topic(TOPIC, 1)
    world.run()
    return world


def stream_of(world: World) -> Stream:
    """The one stream."""
    return world.store.stream(TOPIC, 0)


def key_of(world: World) -> StreamId:
    """The name under which readers know the stream."""
    return StreamId(world.store.topic(TOPIC).topic_id.hex, 0)


def append(world: World, count: int) -> None:
    """So many records, each in a chunk of its own, durably."""
    for _ in range(count):
        batch = encode_batch([Record(0, FIRST_TIMESTAMP, None, bytes(RECORD_BYTES))])
        ticket = stream_of(world).append(batch, now_ms=world.clock.wall_ms())
        world.run()
        ticket.result()


def register(world: World, name: str, offset: int, group: str = "") -> None:
    """Register a reader of the one stream, durably."""
    ticket = world.store.readers.register(name, {key_of(world): offset}, group)
    world.run()
    ticket.result()


def acknowledge(world: World, name: str, offset: int) -> None:
    """Acknowledge an offset of the one stream."""
    key = key_of(world)
    world.store.readers.acknowledge(name, {key: offset}, {key: stream_of(world).log_start_offset})


def after_an_hour(world: World) -> int:
    """An hour later, retention is applied; the log start then."""
    world.clock.advance(HOUR_MS + 1)
    world.store.tick()
    world.run()
    return stream_of(world).log_start_offset


def next_life(world: World) -> World:
    """Another sidecar on the disk of one that was killed."""
    return World(world.disk.kill_state(), world.history, world.setup, ManualClock(world.clock.wall_ms()))


def test_what_is_not_acknowledged_stays() -> None:
    """Without a reader all that is too old goes; with one, only what it acknowledged; with two, what both did."""
    world = world_of()
    append(world, 5)
    register(world, "a", 2)
    assert after_an_hour(world) == 2
    register(world, "b", 2)
    acknowledge(world, "a", 5)
    assert after_an_hour(world) == 2
    acknowledge(world, "b", 3)
    assert after_an_hour(world) == 3
    world.store.readers.remove("b")
    assert after_an_hour(world) == 5


def test_retention_still_counts() -> None:
    """An acknowledged record stays for as long as the retention says: other readers, not registered, rely on it."""
    world = world_of()
    append(world, 3)
    register(world, "a", 3)
    world.store.tick()
    world.run()
    assert stream_of(world).log_start_offset == 0


def test_a_mark_survives_a_kill_and_holds_from_the_first_moment() -> None:
    """A registration is durable when it is answered; an acknowledgement after the next save, and an older mark holds
    more, never less.
    """
    world = world_of()
    append(world, 5)
    register(world, "a", 1)
    acknowledge(world, "a", 4)
    killed = next_life(world)
    assert after_an_hour(killed) == 1
    acknowledge(killed, "a", 4)
    assert after_an_hour(killed) == 4
    again = next_life(killed)
    assert again.store.readers.describe("a").marks == {key_of(again): 4}
    assert after_an_hour(again) == 4


def test_an_acknowledgement_trims_only_once_it_is_durable() -> None:
    """The disk refuses the mark: nothing before it goes, so that a crash finds all that the durable mark needs."""
    world = world_of()
    append(world, 4)
    register(world, "a", 1)
    acknowledge(world, "a", 4)
    world.disk.fault_for = lambda call: EIO if call.path.startswith("ledger/readers.") else None
    assert after_an_hour(world) == 1
    world.disk.fault_for = None
    assert after_an_hour(world) == 4


def test_a_reader_that_holds_too_many_bytes_is_released_and_told() -> None:
    """The disk is free again; the reader's next acknowledgement names what is lost and from where to go on."""
    world = world_of(max_bytes=3 * 1024)
    append(world, 3)
    register(world, "a", 0)
    assert after_an_hour(world) == 0
    append(world, 3)
    assert after_an_hour(world) == 6
    (told,) = world.reports.of(READER_RELEASED)
    assert (told["reader"], told["mark"]) == ("a", 0)
    assert "bytes beyond the retention" in str(told["why"])
    with pytest.raises(ReaderReleased, match=r"reader 'a' acknowledged offset 2 .* before 6 are gone, since .* at 0"):
        acknowledge(world, "a", 2)
    assert world.store.readers.describe("a").released == {key_of(world): 0}
    append(world, 2)
    register(world, "a", 6)
    assert after_an_hour(world) == 6


def test_a_reader_that_is_away_for_too_long_is_released() -> None:
    """Time counts from its last acknowledgement, and only while a sidecar serves; the slower of two goes alone."""
    world = world_of(max_idle_ms=3 * HOUR_MS)
    append(world, 4)
    register(world, "gone", 1)
    register(world, "alive", 3)
    assert after_an_hour(world) == 1
    for _ in range(2):
        acknowledge(world, "alive", 3)
        after_an_hour(world)
    assert stream_of(world).log_start_offset == 3
    assert [fields["reader"] for fields in world.reports.of(READER_RELEASED)] == ["gone"]
    assert world.store.readers.describe("alive").released == {}


def test_a_released_reader_that_lost_nothing_goes_on() -> None:
    """It was slow to say how far it was: its position is not below the log start, so it holds records again."""
    world = world_of(max_idle_ms=HOUR_MS * 3 // 2)
    append(world, 2)
    register(world, "a", 0)
    assert after_an_hour(world) == 0
    assert after_an_hour(world) == 2
    append(world, 3)
    acknowledge(world, "a", 2)
    assert after_an_hour(world) == 2
    assert world.store.readers.describe("a").released == {}


def test_a_reader_may_go_back_to_what_is_there() -> None:
    """A registration sets the position anew, also to an earlier one; an acknowledgement never goes back."""
    world = world_of()
    append(world, 5)
    register(world, "a", 4)
    acknowledge(world, "a", 2)
    assert world.store.readers.describe("a").marks == {key_of(world): 4}
    register(world, "a", 1)
    assert after_an_hour(world) == 1


def test_a_new_topic_of_an_old_name_is_not_held() -> None:
    """A mark belongs to the topic that it was given for."""
    world = world_of()
    append(world, 2)
    register(world, "a", 0)
    world.store.delete_topic(TOPIC)
    world.run()
    world.create_topic(TOPIC, 1)
    world.run()
    append(world, 2)
    assert after_an_hour(world) == 2
    assert world.store.readers.describe("a").marks == {}


def test_a_reader_follows_a_group() -> None:
    """The marks of a reader with a group are what the group has committed."""
    world = world_of()
    append(world, 5)
    register(world, "g", 0, group="consumers")
    committed: dict[str, int] = {}
    world.store.readers.follow(lambda group, _: committed.get(group))
    assert after_an_hour(world) == 0
    committed["consumers"] = 3
    assert after_an_hour(world) == 3


def test_limits_and_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader beyond the limits, and a name that nobody registered, are refused by name; nothing changes."""
    monkeypatch.setattr(readers_module, "MAX_READERS", 2)
    monkeypatch.setattr(readers_module, "MAX_MARKS", 3)
    world = world_of()
    readers: Readers = world.store.readers
    streams = [StreamId("x", partition) for partition in range(4)]
    readers.register("a", dict.fromkeys(streams[:2], 0))
    readers.register("b", dict.fromkeys(streams[:1], 0))
    with pytest.raises(TooManyReaders, match="'c' with 0 streams"):
        readers.register("c", {})
    with pytest.raises(TooManyReaders, match="'b' with 2 streams"):
        readers.register("b", dict.fromkeys(streams[:2], 0))
    with pytest.raises(TooManyReaders, match="'b': 1 more"):
        readers.acknowledge("b", {streams[3]: 1}, {streams[3]: 0})
    for ask in (readers.describe, readers.remove):
        with pytest.raises(UnknownReader, match="'nobody'"):
            ask("nobody")
    with pytest.raises(UnknownReader, match="'nobody'"):
        readers.acknowledge("nobody", {}, {})
    assert readers.names() == ["a", "b"]
    assert len(readers.describe("b").marks) == 1

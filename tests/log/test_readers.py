"""Registered readers: what they have not acknowledged stays, up to a limit that the reader is told about."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.errors import OffsetOutOfRange, ReaderReleased, StorageFailed, TooManyReaders, UnknownReader
from logstore.events import READER_RELEASED, READER_REMOVED
from logstore.format.records import Record, encode_batch
from logstore.log import readers as readers_module
from logstore.log import store as store_module
from logstore.log.readers import HoldLimits, Readers, StreamId
from logstore.log.store import StoreSettings
from logstore.log.stream import Stream
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.faults import EIO
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, Setup, SimulatedStore

TOPIC = "t"
HOUR_MS = 3600 * 1000
RECORD_BYTES = 900


def world_of(max_bytes: int = 1 << 30, max_idle_ms: int = 24 * HOUR_MS, **config: Any) -> SimulatedStore:
    """A store with one stream whose chunks hold one batch each, and whose records may go after an hour."""
    topics = TopicConfig(**{"segment_bytes": 1024, "retention_ms": HOUR_MS} | config)
    settings = StoreSettings(topic_defaults=topics, hold_limits=HoldLimits(max_bytes, max_idle_ms))
    world = SimulatedStore(SimDisk(), History(), Setup(settings=settings))
    world.create_topic(TOPIC, 1)
    world.run()
    return world


def stream_of(world: SimulatedStore) -> Stream:
    """The one stream."""
    return world.store.stream(TOPIC, 0)


def key_of(world: SimulatedStore) -> StreamId:
    """The name under which readers know the stream."""
    return StreamId(world.store.topic(TOPIC).topic_id.hex, 0)


def append(world: SimulatedStore, count: int) -> None:
    """So many records, each in a chunk of its own, durably."""
    for _ in range(count):
        batch = encode_batch([Record(0, FIRST_TIMESTAMP, None, bytes(RECORD_BYTES))])
        ticket = stream_of(world).append(batch, now_ms=world.clock.wall_ms())
        world.run()
        ticket.result()


def register(world: SimulatedStore, name: str, offset: int, group: str = "") -> None:
    """Register a reader of the one stream, durably."""
    ticket = world.store.readers.register(name, {key_of(world): offset}, group)
    world.run()
    ticket.result()


def acknowledge(world: SimulatedStore, name: str, offset: int) -> None:
    """Acknowledge an offset of the one stream; it holds it already, so the answer is there at once."""
    world.store.readers.acknowledge(name, {key_of(world): offset}).result()


def commit(world: SimulatedStore, group: str, offset: int) -> None:
    """A group has committed an offset of the one stream, durably."""
    world.store.readers.note_commits(group, {key_of(world): offset})


def after_an_hour(world: SimulatedStore) -> int:
    """An hour later, retention is applied; the log start then."""
    world.clock.advance(HOUR_MS + 1)
    world.store.tick()
    world.run()
    return stream_of(world).log_start_offset


def next_life(world: SimulatedStore) -> SimulatedStore:
    """Another sidecar on the disk of one that was killed."""
    return SimulatedStore(world.disk.kill_state(), world.history, world.setup, ManualClock(world.clock.wall_ms()))


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
    world.run()
    assert after_an_hour(world) == 5


def test_retention_still_counts() -> None:
    """An acknowledged record stays for as long as the retention says: other readers, not registered, rely on it."""
    world = world_of()
    append(world, 3)
    register(world, "a", 3)
    world.store.tick()
    world.run()
    assert stream_of(world).log_start_offset == 0


def test_a_held_offset_survives_a_kill_and_holds_from_the_first_moment() -> None:
    """A registration is durable when it is answered; an acknowledgement after the next save, and an older
    held offset holds more, never less.
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
    assert again.store.readers.describe("a").held == {key_of(again): 4}
    assert after_an_hour(again) == 4


def test_an_acknowledgement_trims_only_once_it_is_durable() -> None:
    """The disk refuses the position: nothing before it goes, so that a crash finds all that the held offset needs."""
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
    assert (told["reader"], told["stream"], told["offset"], told["streams"]) == ("a", "t-0", 0, 1)
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


def test_a_reader_that_had_read_everything_is_not_late() -> None:
    """Nothing came for longer than a reader may be silent; what comes then stays for as long again."""
    world = world_of(max_idle_ms=3 * HOUR_MS)
    register(world, "a", 0)
    for _ in range(5):
        after_an_hour(world)
    append(world, 2)
    assert after_an_hour(world) == 0
    assert world.reports.of(READER_RELEASED) == []
    for _ in range(3):
        after_an_hour(world)
    assert stream_of(world).log_start_offset == 2


def test_a_released_reader_that_lost_nothing_goes_on() -> None:
    """It was slow to say how far it was: its position is not below the log start, so it holds records again."""
    world = world_of(max_idle_ms=HOUR_MS * 3 // 2)
    append(world, 2)
    register(world, "a", 0)
    assert after_an_hour(world) == 0
    assert after_an_hour(world) == 2
    append(world, 3)
    ticket = world.store.readers.acknowledge("a", {key_of(world): 2})
    assert not ticket.done
    world.run()
    ticket.result()
    assert next_life(world).store.readers.describe("a").released == {}
    assert after_an_hour(world) == 2
    assert world.store.readers.describe("a").released == {}


def test_a_reader_may_go_back_to_what_is_there() -> None:
    """A registration sets the position anew, also to an earlier one; an acknowledgement never goes back."""
    world = world_of()
    append(world, 5)
    register(world, "a", 4)
    acknowledge(world, "a", 2)
    assert world.store.readers.describe("a").held == {key_of(world): 4}
    register(world, "a", 1)
    assert after_an_hour(world) == 1


def test_a_new_topic_of_an_old_name_is_not_held() -> None:
    """A held offset belongs to the topic that it was given for."""
    world = world_of()
    append(world, 2)
    register(world, "a", 0)
    world.store.delete_topic(TOPIC)
    world.run()
    world.create_topic(TOPIC, 1)
    world.run()
    append(world, 2)
    assert after_an_hour(world) == 2
    assert world.store.readers.describe("a").held == {}


def test_a_reader_follows_a_group() -> None:
    """The held offsets of a reader with a group are what the group commits, and had committed before."""
    world = world_of()
    append(world, 5)
    world.store.readers.follow(lambda group, _: 1 if group == "consumers" else None)
    register(world, "g", 0, group="consumers")
    register(world, "other", 5, group="others")
    assert after_an_hour(world) == 1
    commit(world, "consumers", 3)
    assert after_an_hour(world) == 3
    again = next_life(world)
    again.store.readers.follow(lambda group, _: 4 if group == "consumers" else None)
    assert after_an_hour(again) == 4


def test_a_follower_goes_back_with_its_group() -> None:
    """A group that is set back is followed as far as records are there, and not beyond the end."""
    world = world_of()
    append(world, 6)
    register(world, "g", 1, group="c")
    assert after_an_hour(world) == 1
    commit(world, "c", 5)
    world.store.tick()
    world.run()
    commit(world, "c", 0)
    assert world.store.readers.describe("g").held == {key_of(world): stream_of(world).log_start_offset}
    append(world, 1)
    commit(world, "c", 10**15)
    assert world.store.readers.describe("g").held == {key_of(world): 7}
    commit(world, "c", 6)
    assert after_an_hour(world) == 6


def test_a_follower_that_goes_back_holds_at_once() -> None:
    """It need not be durable to hold: the group's commit is."""
    world = world_of()
    append(world, 5)
    register(world, "g", 4, group="c")
    commit(world, "c", 2)
    world.disk.fault_for = lambda call: EIO if call.path.startswith("ledger/readers.") else None
    assert after_an_hour(world) == 2


def test_a_released_follower_holds_again() -> None:
    """Its group was away for too long; once it commits what is there, its records stay."""
    world = world_of(max_bytes=3 * 1024)
    append(world, 6)
    register(world, "g", 0, group="c")
    assert after_an_hour(world) == 6
    commit(world, "c", 2)
    assert world.store.readers.describe("g").released == {key_of(world): 0}
    append(world, 2)
    commit(world, "c", 7)
    assert world.store.readers.describe("g").released == {}
    assert after_an_hour(world) == 7


def test_limits_and_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader beyond the limits, and a name that nobody registered, are refused by name; nothing changes."""
    monkeypatch.setattr(readers_module, "MAX_READERS", 2)
    monkeypatch.setattr(readers_module, "MAX_READER_STREAMS", 3)
    world = world_of()
    world.create_topic("x", 4)
    world.run()
    readers: Readers = world.store.readers
    streams = [StreamId(world.store.topic("x").topic_id.hex, partition) for partition in range(4)]
    readers.register("a", dict.fromkeys(streams[:2], 0))
    readers.register("b", dict.fromkeys(streams[:1], 0))
    world.run()
    with pytest.raises(TooManyReaders, match="'c' with 0 streams"):
        readers.register("c", {})
    with pytest.raises(TooManyReaders, match="'b' with 2 streams"):
        readers.register("b", dict.fromkeys(streams[:2], 0))
    with pytest.raises(TooManyReaders, match="'b' with 2 streams"):
        readers.register("b", {streams[1]: 0}, keep=True)
    with pytest.raises(TooManyReaders, match="'b' with 2 streams"):
        readers.acknowledge("b", {streams[3]: 0}).result()
    again = [readers.register(name, dict.fromkeys(streams[:count], 0)) for name, count in (("a", 2), ("b", 1))]
    world.run()
    assert [ticket.error for ticket in again] == [None, None]  # both count once, though both are written
    monkeypatch.setattr(readers_module, "MAX_READER_STREAMS", 10)
    monkeypatch.setattr(readers_module, "STREAMS_PER_READER", 2)
    readers.register("b", dict.fromkeys(streams[1:3], 0))
    world.run()
    with pytest.raises(TooManyReaders, match="'b' with 3 streams"):
        readers.acknowledge("b", {streams[3]: 0}).result()
    with pytest.raises(UnknownReader, match="'nobody'"):
        readers.describe("nobody")
    for ticket in (readers.remove("nobody"), readers.acknowledge("nobody", {})):
        with pytest.raises(UnknownReader, match="'nobody'"):
            ticket.result()
    assert readers.names() == ["a", "b"]
    assert readers.describe("b").held == dict.fromkeys(streams[1:3], 0)


def test_a_registration_that_retention_overtakes_is_refused() -> None:
    """A trim of the records is being written: they are gone, so the position is not answered as held."""
    world = world_of()
    append(world, 5)
    world.clock.advance(HOUR_MS + 1)
    world.store.tick()
    with pytest.raises(OffsetOutOfRange, match=r"outside \[5, 5\]"):
        world.store.readers.register("a", {key_of(world): 0})
    world.run()
    assert world.store.readers.names() == []


def test_a_registration_holds_before_it_is_durable() -> None:
    """Retention is applied while the registration is being written: its records stay."""
    world = world_of()
    append(world, 5)
    world.clock.advance(HOUR_MS + 1)
    ticket = world.store.readers.register("a", {key_of(world): 2})
    world.store.tick()
    world.run()
    ticket.result()
    assert stream_of(world).log_start_offset == 2


def test_records_deleted_during_a_registration_are_told() -> None:
    """A client deletes them while it is being written: the answer says so, and what is left is held."""
    world = world_of()
    append(world, 5)
    ticket = world.store.readers.register("a", {key_of(world): 1})
    stream_of(world).delete_records(3)
    world.run()
    with pytest.raises(OffsetOutOfRange, match="offset 1 of t-0"):
        ticket.result()
    assert after_an_hour(world) == 3


def test_a_live_reader_is_not_released_for_what_waits_to_be_written() -> None:
    """Chunks fill up between two saves: what the reader keeps is counted from what it acknowledged."""
    world = world_of(max_bytes=3 * 1024, retention_bytes=0, retention_ms=-1)
    append(world, 1)
    register(world, "a", 0)
    for end in range(2, 12):
        append(world, 1)
        acknowledge(world, "a", max(0, end - 3))
    assert world.reports.of(READER_RELEASED) == []
    assert stream_of(world).log_start_offset == 0
    world.store.save_readers()
    world.run()
    append(world, 1)
    assert stream_of(world).log_start_offset == 8


def test_records_that_a_client_deletes_do_not_end_the_hold() -> None:
    """DeleteRecords goes past the held offset; what is left stays."""
    world = world_of()
    append(world, 6)
    register(world, "a", 1)
    stream_of(world).delete_records(2)
    world.run()
    assert after_an_hour(world) == 2
    assert world.reports.of(READER_RELEASED) == []


def test_a_new_stream_is_answered_once_it_is_durable() -> None:
    """A partition that was added is acknowledged: the answer waits for the disk, and a kill loses nothing then."""
    world = world_of()
    register(world, "a", 0)
    world.store.add_partitions(TOPIC, 2)
    world.run()
    added = StreamId(key_of(world).topic_id, 1)
    with pytest.raises(OffsetOutOfRange):
        world.store.readers.acknowledge("a", {added: 1}).result()
    ticket = world.store.readers.acknowledge("a", {added: 0})
    assert not ticket.done
    world.run()
    ticket.result()
    assert next_life(world).store.readers.describe("a").held == {key_of(world): 0, added: 0}


def test_an_acknowledgement_above_the_end_is_refused() -> None:
    """It would let records go that nobody has written yet; the position stays."""
    world = world_of()
    append(world, 2)
    register(world, "a", 0)
    with pytest.raises(OffsetOutOfRange, match="offset 3 of t-0"):
        acknowledge(world, "a", 3)
    assert world.store.readers.describe("a").held == {key_of(world): 0}


def test_a_change_that_the_disk_refuses_changes_nothing() -> None:
    """A removal, a new registration, another position: the reader is as it was, and so it is after a kill."""
    world = world_of()
    append(world, 5)
    register(world, "a", 3)
    world.disk.fault_for = lambda call: EIO if call.path.startswith("ledger/readers.") else None
    readers = world.store.readers
    key = key_of(world)
    refused = [readers.remove("a"), readers.register("b", {key: 0}), readers.register("a", {key: 1})]
    world.run()
    for ticket in refused:
        with pytest.raises(StorageFailed):
            ticket.result()
    world.disk.fault_for = None
    for alive in (world, next_life(world)):
        assert alive.store.readers.names() == ["a"]
        assert alive.store.readers.describe("a").held == {key: 3}
    assert after_an_hour(world) == 3


def test_a_removal_holds_until_it_is_durable() -> None:
    """A crash may bring the reader back: its records are still there then."""
    world = world_of()
    append(world, 5)
    register(world, "a", 2)
    world.clock.advance(HOUR_MS + 1)
    world.disk.fault_for = lambda call: EIO if call.path.startswith("ledger/readers.") else None
    world.store.readers.remove("a")
    world.store.tick()
    world.run()
    assert stream_of(world).log_start_offset == 2


def test_the_clock_goes_on_from_the_newest_acknowledgement() -> None:
    """A kill loses the time since the clock was saved, but no reader has acknowledged in the future."""
    world = world_of()
    world.store.tick()
    world.run()
    world.clock.advance(200_000)
    register(world, "a", 0)
    killed = next_life(world)
    assert killed.store.readers.describe("a").idle_ms == 0
    killed.clock.advance(1_000)
    assert killed.store.readers.describe("a").idle_ms == 1_000


def test_a_release_is_one_line_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is released from many streams at once: the line names the first and their number. Many releases take
    several turns.
    """
    for module in (readers_module, store_module):
        monkeypatch.setattr(module, "RELEASED_AT_ONCE", 1)
    world = world_of(max_bytes=1024)
    world.store.add_partitions(TOPIC, 3)
    world.run()
    topic_id = key_of(world).topic_id
    for partition in range(3):
        for _ in range(3):
            batch = encode_batch([Record(0, FIRST_TIMESTAMP, None, bytes(RECORD_BYTES))])
            world.store.stream(TOPIC, partition).append(batch, now_ms=world.clock.wall_ms())
            world.run()
    for name in ("a", "b"):
        world.store.readers.register(name, {StreamId(topic_id, partition): 0 for partition in range(3)})
    world.run()
    assert after_an_hour(world) == 3
    told = [(fields["reader"], fields["stream"], fields["streams"]) for fields in world.reports.of(READER_RELEASED)]
    assert told == [("a", "t-0", 3), ("b", "t-0", 3)]
    assert len(next_life(world).store.readers.describe("a").released) == 3


def test_a_save_writes_some_readers_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those first that wait the longest; the end of a sidecar writes all."""
    monkeypatch.setattr(readers_module, "SAVED_AT_ONCE", 2)
    monkeypatch.setattr(Readers.save, "__defaults__", (2,))
    world = world_of()
    append(world, 2)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        register(world, name, 0)
    for name in names:
        acknowledge(world, name, 1)
    saved = []
    for _ in range(2):
        world.store.save_readers()
        world.run()
        state = next_life(world).store.readers
        saved.append([name for name in names if state.describe(name).held == {key_of(world): 1}])
    assert saved == [["a", "b"], ["a", "b", "c", "d"]]
    world.store.close()
    world.run()
    state = next_life(world).store.readers
    assert all(state.describe(name).held == {key_of(world): 1} for name in names)


def test_a_registration_leaves_nothing_of_the_one_before() -> None:
    """Other streams than before: the former ones are free once the new ones are durable, unless they are kept."""
    world = world_of()
    append(world, 3)
    world.create_topic("u", 1)
    world.run()
    other = StreamId(world.store.topic("u").topic_id.hex, 0)
    register(world, "a", 0)
    world.store.readers.register("a", {other: 0}, keep=True)
    world.run()
    assert world.store.readers.describe("a").held == {key_of(world): 0, other: 0}
    assert next_life(world).store.readers.describe("a").held == {key_of(world): 0, other: 0}
    assert after_an_hour(world) == 0
    world.store.readers.register("a", {other: 0})
    world.run()
    assert after_an_hour(world) == 3
    world.store.readers.remove("a")
    world.run()
    assert world.store.readers._by_stream == {}
    assert world.store.readers._streams == 0


def test_a_topic_that_is_deleted_while_a_reader_is_saved_stays_forgotten() -> None:
    """The write under way names the topic still; the next one does not, and neither does a later life."""
    world = world_of()
    append(world, 2)
    register(world, "a", 0)
    acknowledge(world, "a", 1)
    readers = world.store.readers
    readers.save()
    readers.forget_topic(key_of(world).topic_id)
    world.run()
    assert readers.describe("a").held == {}
    assert readers._by_stream == {}


def test_streams_that_are_gone_are_forgotten_at_a_start() -> None:
    """A kill came between the deletion of the topic and the next save of its readers."""
    world = world_of()
    append(world, 2)
    register(world, "a", 0)
    world.store.delete_topic(TOPIC)
    world.run()
    killed = next_life(world)
    assert killed.store.readers._by_stream == {}
    assert killed.store.readers.describe("a").held == {}
    killed.store.tick()
    killed.run()
    (entry,) = dict(next_life(killed).store.readers._ledger.items()).values()
    assert b'"positions":[]' in entry


def test_a_reader_that_holds_nothing_for_long_is_removed() -> None:
    """It has no streams, or was released from all, and says nothing; one that acknowledges stays."""
    world = world_of(max_idle_ms=3 * HOUR_MS)
    append(world, 2)
    register(world, "released", 0)
    world.store.readers.register("empty", {})
    world.store.readers.register("alive", {})
    world.run()
    for _ in range(8):
        world.store.readers.acknowledge("alive", {}).result()
        after_an_hour(world)
    assert world.store.readers.names() == ["alive"]
    assert {fields["reader"] for fields in world.reports.of(READER_REMOVED)} == {"released", "empty"}
    assert next_life(world).store.readers.names() == ["alive"]

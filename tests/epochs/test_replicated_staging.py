"""Staged output as records of a stream: what a next owner reads back, whatever the former one has left."""

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from logstore.epochs import replicated_staging
from logstore.epochs.replicated_staging import DROPPED, MORE, SEGMENT, ReplicatedStaging
from logstore.errors import CorruptFile, StagePosition, StorageFailed
from logstore.format.epoch_api import Part
from logstore.format.records import Record
from logstore.format.staged import AttemptKey
from logstore.log.coroutines import start
from logstore.log.ticket import Ticket

KEY: Final = AttemptKey("q", "run", 3, 0, "a")
OTHER: Final = AttemptKey("q", "run", 3, 1, "b")
NOW_MS: Final = 1_700_000_000_000
PIECE_BYTES: Final = 1000


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of few bytes have several pieces."""
    monkeypatch.setattr(replicated_staging, "PIECE_BYTES", PIECE_BYTES)


@dataclass
class Stream:
    """The records of a stream, in their order; appends are acknowledged when a test says so."""

    records: list[tuple[bytes, bytes]] = field(default_factory=list)
    waiting: list[Ticket[int]] = field(default_factory=list)
    acked: int = 0
    reads: int = 0
    is_crowded: bool = False

    def append(self, key: bytes, value: bytes) -> Ticket[int]:
        if self.is_crowded:
            return Ticket.failed(StorageFailed("no room; retry"))
        ticket: Ticket[int] = Ticket()
        self.records.append((key, value))
        self.waiting.append(ticket)
        return ticket

    def ack(self, count: int | None = None) -> None:
        taken = len(self.waiting) if count is None else count
        for ticket in self.waiting[:taken]:
            ticket.succeed(self.acked)
            self.acked += 1
        del self.waiting[:taken]

    def lose(self) -> None:
        for ticket in self.waiting:
            ticket.fail(StorageFailed("another host owns it"))
        self.waiting.clear()

    def read(self, offset: int, count: int) -> Ticket[list[bytes]]:
        self.reads += 1
        found = [value for key, value in self.records[offset:] if key in (SEGMENT, MORE)]
        return Ticket.succeeded(found[:count])

    def owned(self, first: int = 0, limit_bytes: int = 1 << 30) -> ReplicatedStaging:
        """The staging area of the next owner, who reads from an offset on."""
        staging = ReplicatedStaging(self.append, self.read, limit_bytes)
        for offset, (key, value) in enumerate(self.records):
            if offset >= first:
                staging.take(offset, Record(0, NOW_MS, key, value))
        return staging


def stage(staging: ReplicatedStaging, position: int, data: bytes, key: AttemptKey = KEY) -> Ticket[int]:
    """Stage a segment."""
    parts = (Part("out", 0, len(data), 1, 1),)
    return staging.stage(key, position, parts, data, now_ms=NOW_MS)


def data_of(staging: ReplicatedStaging, key: AttemptKey = KEY) -> list[bytes]:
    """The data of an attempt's segments, read back."""
    attempt = staging.get(key)
    assert attempt is not None
    return [start(staging.data(segment)).result() for segment in attempt.segments]


def test_a_segment_is_durable_with_its_last_piece() -> None:
    """Its ticket settles then, not before; the next owner has it, byte for byte."""
    stream, data = Stream(), Random(0).randbytes(2 * PIECE_BYTES + 100)
    staging = stream.owned()
    ticket = stage(staging, 0, data)
    assert [key for key, _ in stream.records] == [SEGMENT, MORE, MORE]
    stream.ack(2)
    attempt = staging.get(KEY)
    assert attempt is not None
    assert (ticket.done, attempt.durable_segments, staging.first_offset) == (False, 0, 0)
    stream.ack()
    assert (ticket.result(), attempt.durable_segments) == (1, 1)
    other = stream.owned()
    assert data_of(other) == data_of(staging) == [data]
    assert other.used_bytes == staging.used_bytes
    assert stage(other, 0, data).result() == 1


def test_a_segment_that_is_not_whole_is_passed_over() -> None:
    """The former owner has begun it; the client stages it again at the next owner, which takes all of it."""
    stream, data = Stream(), Random(1).randbytes(3 * PIECE_BYTES)
    lost = stage(stream.owned(), 0, data)
    del stream.records[2:]
    stream.lose()
    assert isinstance(lost.error, StorageFailed)
    stream.acked = 2
    staging = stream.owned()
    assert (staging.get(KEY), staging.used_bytes, staging.first_offset) == (None, 0, None)
    stage(staging, 0, data)
    stream.ack()
    assert data_of(stream.owned()) == [data]
    assert stream.owned().first_offset == 2


def test_damage_in_a_piece_is_found() -> None:
    """A segment whose data does not match its checksum does not count; one that is read back raises."""
    stream, data = Stream(), bytes(PIECE_BYTES + 10)
    staging = stream.owned()
    stage(staging, 0, data)
    stream.ack()
    key, value = stream.records[1]
    stream.records[1] = (key, b"\1" + value[1:])
    assert stream.owned().get(KEY) is None
    staging._cache.clear()
    with pytest.raises(CorruptFile, match="segment 0 of attempt 'a'"):
        data_of(staging)


def test_dropped_attempts_are_gone_for_the_next_owner() -> None:
    """Others stay; the same attempt may begin anew behind it."""
    stream = Stream()
    staging = stream.owned()
    for key in (KEY, OTHER):
        stage(staging, 0, b"1" * 100, key)
    stream.ack()
    size_bytes = staging.used_bytes
    assert 0 < staging.drop([KEY]) < size_bytes
    assert staging.drop([KEY]) == 0
    assert stream.records[-1][0] == DROPPED
    stream.ack()
    other = stream.owned()
    assert [attempt.key for attempt in other.all_attempts()] == [OTHER]
    assert (other.used_bytes, other.first_offset) == (staging.used_bytes, 1)
    stage(other, 0, b"2" * 50)
    stream.ack()
    assert data_of(stream.owned()) == [b"2" * 50]


def test_a_drop_that_the_stream_does_not_take_is_told_again() -> None:
    """A stream that is crowded for a moment keeps its owner. The name of the attempt is not used anew before the stream
    knows: the next owner would take the old segment for the new one.
    """
    stream, data = Stream(), [Random(number).randbytes(100) for number in range(2)]
    staging = stream.owned()
    stage(staging, 0, data[0])
    stream.ack()
    stream.is_crowded = True
    assert staging.drop([KEY]) > 0
    with pytest.raises(StorageFailed, match="attempt 'a' was dropped"):
        stage(staging, 0, data[1])
    assert staging.get(KEY) is None
    stream.is_crowded = False
    staging.tell_dropped()
    stream.ack()
    assert stream.owned().all_attempts() == []
    staging.tell_dropped()
    assert [key for key, _ in stream.records] == [SEGMENT, DROPPED], "once"
    stage(staging, 0, data[1])
    stream.ack()
    assert data_of(stream.owned()) == [data[1]]
    stream.is_crowded = True
    staging.drop([KEY])
    stream.is_crowded = False
    stage(staging, 0, data[0])
    stream.ack()
    assert [key for key, _ in stream.records][3:] == [DROPPED, SEGMENT]
    assert data_of(stream.owned()) == [data[0]]


def test_what_began_before_the_first_offset_does_not_count() -> None:
    """An attempt that was dropped, and of which only the later segments are read, is not there."""
    stream = Stream()
    staging = stream.owned()
    for position in range(3):
        stage(staging, position, b"%d" % position * 30)
    stream.ack()
    assert stream.owned(first=1).all_attempts() == []


def test_an_attempt_has_its_segments_in_order_and_unchanged() -> None:
    """A gap is refused, the same segment again is a duplicate, and other bytes in its place are an error."""
    stream = Stream()
    staging = stream.owned()
    first = stage(staging, 0, b"1" * 20)
    assert stage(staging, 0, b"1" * 20) is first
    with pytest.raises(StagePosition, match="other bytes"):
        stage(staging, 0, b"2" * 20)
    with pytest.raises(StagePosition, match="does not follow"):
        stage(staging, 2, b"1")
    assert len(stream.records) == 1


def staged_in_pieces(stream: Stream) -> tuple[ReplicatedStaging, list[bytes]]:
    """An attempt of two segments in five records, all acknowledged, and another attempt behind it."""
    staging, data = stream.owned(), [Random(number).randbytes(size) for number, size in enumerate((2200, 1300))]
    for position, each in enumerate(data):
        stage(staging, position, each)
    stage(staging, 0, b"other", OTHER)
    stream.ack()
    staging._cache.clear()
    return staging, data


def ack_all(stream: Stream) -> None:
    """All that waits is acknowledged, and what is appended because of that."""
    while stream.waiting:
        stream.ack()


def test_what_is_moved_need_not_stay_where_it_was() -> None:
    """The stream may be trimmed up to the second copy: the data is the same, for this owner and the next, wherever the
    next one begins to read; and the bytes count once.
    """
    stream = Stream()
    staging, data = staged_in_pieces(stream)
    used_bytes, count = staging.used_bytes, len(stream.records)
    assert staging.begun_before(count) == [KEY, OTHER]
    staging.move([KEY])
    ack_all(stream)
    attempt = staging.get(KEY)
    assert attempt is not None
    assert (attempt.first_offset, staging.used_bytes) == (count, used_bytes)
    assert [staging.begun_before(count), data_of(stream.owned())] == [[OTHER], data]
    staging.move([OTHER])
    ack_all(stream)
    assert (staging.first_offset, staging.begun_before(count + 5)) == (count, [KEY])
    stream.records[:count] = [(b"trimmed", b"")] * count
    for each in (staging, *(stream.owned(first) for first in (0, count // 2, count))):
        assert (data_of(each), data_of(each, OTHER)) == (data, [b"other"])
    (tail,) = stream.owned(count + 1).all_attempts()
    assert tail.key == OTHER, "a copy without its beginning counts no more than a first one"


def test_a_move_that_ends_half_way_moves_nothing() -> None:
    """The owner is lost behind the first of two segments: the next one has the first copies; and a move whose append
    fails is made again by the next call.
    """
    stream = Stream()
    staging, data = staged_in_pieces(stream)
    count = len(stream.records)
    staging.move([KEY])
    staging.move([KEY])
    assert len(stream.records) == count + 3, "one segment of one move is on its way"
    stream.ack()
    stream.lose()
    assert staging.first_offset == 0
    del stream.records[stream.acked :]
    assert data_of(stream.owned()) == data
    assert stream.owned().first_offset == 0
    staging.move([KEY])
    ack_all(stream)
    assert staging.begun_before(count) == [OTHER]


def test_no_copy_comes_behind_the_end_of_its_attempt() -> None:
    """An attempt is dropped while it is moved, and its name begins anew: the next owner has the new segments alone."""
    stream = Stream()
    staging, _ = staged_in_pieces(stream)
    staging.move([KEY])
    staging.drop([KEY])
    ack_all(stream)
    dropped = [key for key, _ in stream.records].index(DROPPED)
    assert dropped == len(stream.records) - 1
    stage(staging, 0, b"anew")
    ack_all(stream)
    assert data_of(stream.owned()) == data_of(staging) == [b"anew"]
    assert staging.first_offset == stream.owned().first_offset


def test_what_is_damaged_is_not_moved() -> None:
    """It holds the stream where it is; what is moved with it goes. However often it is tried, nothing of it is
    appended, and the damaged segment alone is read: copies of the other ones would fill the stream that it holds.
    """
    stream = Stream()
    staging, _ = staged_in_pieces(stream)
    key, value = stream.records[4]
    stream.records[4] = (key, value[:-1] + bytes([value[-1] ^ 1]))
    count = len(stream.records)
    staging.move([KEY, OTHER])
    ack_all(stream)
    assert staging.begun_before(count) == [KEY]
    assert len(stream.records) == count + 1, "the other attempt's only record"
    reads = stream.reads
    for _ in range(3):
        staging.move([KEY])
        ack_all(stream)
    assert (len(stream.records), stream.reads) == (count + 1, reads + 3)
    stream.records[4] = (key, value)
    staging.move([KEY])
    ack_all(stream)
    assert (staging.first_offset, staging.begun_before(count)) == (count, [])


class NotWalked(dict[Any, Any]):
    """A map of which entries are asked for, one by one."""

    def __iter__(self) -> Any:
        raise AssertionError("all entries are walked through")

    keys = values = items = __iter__


def test_the_attempts_of_a_query_cost_what_there_are_of_it() -> None:
    """Whatever others have staged, dropped and staged anew: a query is told of its own attempts, and nobody walks
    through all of them. Behind the last attempt of a query nothing is kept of it.
    """
    random, stream = Random(7), Stream()
    staging = stream.owned()
    keys = [AttemptKey(f"q{number % 7}", "run", number % 3, number, "a") for number in range(60)]
    for number in range(300):
        key = random.choice(keys)
        attempt = staging.get(key)
        if random.random() < 0.6:
            stage(staging, 0 if attempt is None else len(attempt.segments), b"%d" % number, key)
        else:
            staging.drop([key])
        stream.ack()
    for area in (staging, stream.owned()):
        found = area.all_attempts()
        assert 5 < len(found) < 60
        area._attempts = NotWalked(area._attempts)
        for query in (*(f"q{number}" for number in range(7)), "of nobody"):
            assert area.attempts(query) == [attempt for attempt in found if attempt.key.query == query]
        assert area.drop(attempt.key for attempt in found) > 0
        assert (area._by_query, area.used_bytes) == ({}, 0)


def test_the_area_is_bounded_and_so_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit nothing is taken; beyond the cache data is read from the stream."""
    monkeypatch.setattr(replicated_staging, "CACHE_BYTES", 1000)
    stream = Stream()
    staging = stream.owned(limit_bytes=5000)
    for position in range(4):
        stage(staging, position, b"%d" % position * 900)
    stream.ack()
    with pytest.raises(StorageFailed, match=r"staging\.limit_bytes = 5000"):
        stage(staging, 4, bytes(900))
    assert data_of(staging) == [b"%d" % position * 900 for position in range(4)]
    assert stream.reads == 3


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_of_owners(seed: int) -> None:
    """Segments, drops, acknowledgements and owners that end anywhere: what was acknowledged and not dropped is there,
    in order, and nothing that was never staged.
    """
    random, stream = Random(seed), Stream()
    staging = stream.owned()
    staged: dict[AttemptKey, list[bytes]] = {}
    acked: dict[AttemptKey, int] = {}

    def note(key: AttemptKey, ticket: Ticket[int]) -> None:
        if ticket.error is None:
            acked[key] = ticket.result()

    for number in range(120):
        key = random.choice((KEY, OTHER))
        action = random.random()
        if action < 0.5:
            position = len(staged.setdefault(key, []))
            data = random.randbytes(random.choice((10, PIECE_BYTES // 2, PIECE_BYTES + 5)))
            staged[key].append(data)
            stage(staging, position, data, key).add_callback(partial(note, key))
        elif action < 0.7:
            stream.ack(random.randint(0, len(stream.waiting)))
        elif action < 0.8:
            stream.ack()
            staging.drop([key])
            stream.ack()
            staged.pop(key, None)
            acked.pop(key, None)
        else:  # the owner ends; a part of what it had not heard of is in the stream
            kept = stream.acked + random.randint(0, len(stream.waiting))
            stream.lose()
            del stream.records[kept:]
            stream.acked = kept
            staging = stream.owned()
            for each in (KEY, OTHER):
                attempt = staging.get(each)
                found = data_of(staging, each) if attempt is not None else []
                assert found == staged.get(each, [])[: len(found)], number
                assert len(found) >= acked.get(each, 0), number
                staged[each], acked[each] = found, len(found)

"""What clients see of a replicated stream: tickets, offsets, duplicates, and the change of its owner."""

from typing import Any, cast

import pytest
import trio
import trio.testing

from logstore.cluster.streams import refusal_window
from logstore.cluster.streams.acknowledged_end import SELDOM_S
from logstore.cluster.streams.refusal_window import FIRST_S, ON_THE_WAY_S, RefusedFirsts
from logstore.cluster.streams.replicated_stream import CROWDED_S, MAX_BATCH_BYTES
from logstore.errors import (
    InvalidRecord,
    MessageTooLarge,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageFailed,
    UnknownTopicOrPartition,
)
from logstore.format.batch import parse_header
from logstore.format.records import Record, encode_batch
from logstore.format.snapshot import decode_snapshots
from logstore.log.topics import LOG_APPEND_TIME, TopicConfig
from logstore.testing.reports import RecordedReports
from tests.cluster.support import Front, MemoryOwner, Tasks

REQUEST_TIMEOUT_S = 30
"""How long clients wait for an answer, with defaults."""


async def led(max_in_flight: int = 100, config: TopicConfig | None = None) -> tuple[Front, MemoryOwner]:
    """A stream that this host leads."""
    owner = MemoryOwner(max_in_flight)
    front = Front(owner, config=config or TopicConfig())
    owner.own(front.stream)
    await front.tasks.run()
    return front, owner


async def test_a_batch_is_answered_and_seen_when_it_is_acknowledged() -> None:
    """Before that, neither its ticket nor a reader knows of it."""
    front, owner = await led()
    first, second = front.append(b"1", b"2"), front.append(b"3")
    woken: list[int] = []
    front.stream.add_waiter(lambda: woken.append(front.stream.high_watermark))
    assert (first.done, front.stream.high_watermark, front.stream.end_offset) == (False, 0, 3)
    owner.ack()
    assert first.result().base_offset == 0
    assert (second.done, front.stream.high_watermark, woken) == (False, 2, [2])
    owner.ack()
    assert second.result().base_offset == 2
    assert owner.values == [b"1", b"2", b"3"]


async def test_a_batch_has_its_offset_in_its_bytes() -> None:
    """Members store what the owner sends; nobody changes it later."""
    front, owner = await led()
    front.append(b"1", b"2")
    front.append(b"3")
    headers = [parse_header(entry.data) for entry in owner.window]
    assert [header.base_offset for header in headers] == [0, 2]
    assert {header.partition_leader_epoch for header in headers} == {front.stream.leader_epoch} == {1}


async def test_the_time_of_an_append_is_stamped_where_the_topic_asks_for_it() -> None:
    """As on a host alone: in the batch, and in the answer."""
    front, owner = await led(config=TopicConfig(timestamp_type=LOG_APPEND_TIME))
    ticket = front.append(b"1")
    owner.ack()
    assert ticket.result().append_ms == front.clock.wall_ms()
    assert parse_header(owner.chunks[-1].entries[0].data).has_log_append_time


async def test_a_host_that_does_not_lead_takes_nothing() -> None:
    """Neither before it owns the stream, nor before it knows the producers, nor after another host took over."""
    owner = MemoryOwner()
    front = Front(owner)
    with pytest.raises(NotLeader):
        front.append(b"1")
    owner.own(front.stream)
    with pytest.raises(NotLeader):
        front.append(b"1")
    await front.tasks.run()
    ticket = front.append(b"1")
    front.stream.deposed(7)
    assert isinstance(ticket.error, NotLeader)
    with pytest.raises(NotLeader):
        front.append(b"1")
    with pytest.raises(NotLeader):
        front.stream.check_offset(0)


async def test_what_the_owner_has_no_room_for_waits_and_follows_in_order() -> None:
    """While a chunk is rolled, clients wait; they hear nothing of it."""
    front, owner = await led(max_in_flight=1)
    tickets = [front.append(b"%d" % number) for number in range(4)]
    assert len(owner.window) == 1
    owner.takes = False
    owner.ack()
    assert [ticket.done for ticket in tickets] == [True, False, False, False]
    owner.takes = True
    front.stream.room()
    while owner.window:
        owner.ack()
    assert [ticket.result().base_offset for ticket in tickets] == [0, 1, 2, 3]
    assert owner.values == [b"0", b"1", b"2", b"3"]


async def test_a_batch_that_no_member_could_keep_is_refused() -> None:
    """Whatever the topic allows: it would wait for ever."""
    front, owner = await led(config=TopicConfig(max_message_bytes=100_000_000))
    with pytest.raises(MessageTooLarge):
        front.append(bytes(MAX_BATCH_BYTES))
    ticket = front.append(bytes(MAX_BATCH_BYTES - 1000))
    owner.ack()
    assert ticket.result().base_offset == 0


async def test_what_waits_is_bounded() -> None:
    """A client is told to send it again; a batch that was refused left nothing behind, so that it can."""
    front, owner = await led(max_in_flight=1)
    value = bytes(1_000_000)
    for sequence in range(9):
        front.append(value, producer_id=1, sequence=sequence)
    with pytest.raises(NotEnoughReplicas):
        front.append(value, producer_id=1, sequence=9)
    owner.ack()
    assert not front.append(value, producer_id=1, sequence=9).done


async def test_nothing_overtakes_a_batch_that_was_refused_for_want_of_room() -> None:
    """What a client without a producer id has sent behind it is refused as well, also when there is room again, for as
    long as it may not know of the refusal. Known producers, whose batches have numbers, go on meanwhile.
    """
    front, owner = await led(max_in_flight=1)
    large = bytes(1_000_000)
    front.append(b"known", producer_id=1, sequence=0)
    waiting = [front.append(large) for _ in range(8)]
    with pytest.raises(NotEnoughReplicas, match=r"8000\d{3} bytes already wait"):
        front.append(large)
    owner.ack()
    number = front.append(b"numbered", producer_id=1, sequence=1)
    for count in (1, 7, 1):
        for small in ({}, {"producer_id": 2, "sequence": 1}):
            with pytest.raises(NotEnoughReplicas, match="an earlier batch was refused just now"):
                front.append(b"small", **small)
        for _ in range(count):
            owner.ack()
    assert all(ticket.done for ticket in (*waiting, number))
    front.clock.advance(round(1000 * ON_THE_WAY_S) - 1)
    with pytest.raises(NotEnoughReplicas):
        front.append(b"small")
    front.clock.advance(1)
    front.append(large)
    front.append(b"small")
    owner.ack()
    owner.ack()
    assert owner.values == [b"known", *[large] * 8, b"numbered", large, b"small"]


async def test_nothing_overtakes_the_first_batch_of_a_producer_that_was_refused_at_the_end() -> None:
    """An unknown producer's first batch is refused when the window is about to end. The second one comes behind that:
    it waits for the first, for FIRST_S at most: so long the answer to the first may wait behind others of the client's
    connection. Another producer does not.
    """
    front, owner = await led(max_in_flight=1)
    for _ in range(9):
        front.append(bytes(1_000_000))
    with pytest.raises(NotEnoughReplicas):
        front.append(bytes(1_000_000))
    while owner.window:
        owner.ack()
    front.clock.advance(round(1000 * ON_THE_WAY_S) - 1)
    for producer_id in (3, 4):
        with pytest.raises(NotEnoughReplicas):
            front.append(b"0", producer_id=producer_id, sequence=0)
    front.clock.advance(1)
    for sequence in (1, 2, 1):
        with pytest.raises(NotEnoughReplicas):
            front.append(b"early", producer_id=3, sequence=sequence)
    for producer_id, sequence in ((3, 0), (3, 1), (5, 1)):
        front.append(b"%d" % producer_id, producer_id=producer_id, sequence=sequence)
        owner.ack()
    assert FIRST_S >= REQUEST_TIMEOUT_S
    front.clock.advance(round(1000 * FIRST_S) - 100)
    with pytest.raises(NotEnoughReplicas):
        front.append(b"early", producer_id=4, sequence=1)
    front.clock.advance(100)
    front.append(b"4", producer_id=4, sequence=1)
    owner.ack()
    assert owner.values[9:] == [b"3", b"3", b"5", b"4"]


async def test_refused_producers_are_forgotten_with_age() -> None:
    """Those who come no more: when another batch comes, and when the stream is looked after."""
    front, owner = await led(max_in_flight=1)
    window = front.stream._window

    def refuse(*producers: int) -> None:
        front.stream.short(2)
        for producer_id in producers:
            with pytest.raises(NotEnoughReplicas):
                front.append(b"x", producer_id=producer_id, sequence=0)
        front.stream.enough()

    refuse(1, 2)
    front.clock.advance(round(1000 * FIRST_S) // 2)
    refuse(3)
    assert window.first_refused == 3
    front.clock.advance(round(1000 * FIRST_S) // 2)
    refuse(4)
    assert window.first_refused == 2
    front.clock.advance(round(1000 * FIRST_S) // 2)
    front.append(b"x")
    assert window.first_refused == 1
    front.clock.advance(round(1000 * FIRST_S))
    front.stream.tidy()
    assert window.first_refused == 0
    assert len(owner.window) == 1


async def test_refused_producers_of_all_streams_of_a_host_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten, of whichever stream; what is known of the others holds."""
    monkeypatch.setattr(refusal_window, "MAX_OF_HOST", 5)
    of_host, owners = RefusedFirsts(), [MemoryOwner() for _ in range(3)]
    fronts = [Front(owner, refused=of_host) for owner in owners]
    for front, owner in zip(fronts, owners, strict=True):
        owner.own(front.stream)
        await front.tasks.run()
        front.stream.short(2)
        for producer_id in range(3):
            with pytest.raises(NotEnoughReplicas):
                front.append(b"x", producer_id=producer_id, sequence=0)
    assert [front.stream._window.first_refused for front in fronts] == [0, 2, 3]
    assert of_host.count == 5
    for front in fronts:
        front.clock.advance(round(1000 * FIRST_S))
        front.stream.tidy()
    assert of_host.count == 0


async def test_refusals_end_whatever_clients_send() -> None:
    """Batches that are refused because another one was do not prolong that."""
    front, owner = await led(max_in_flight=1)
    for _ in range(9):
        front.append(bytes(1_000_000))
    with pytest.raises(NotEnoughReplicas):
        front.append(bytes(1_000_000))
    while owner.window:
        owner.ack()
    for _ in range(round(1000 * ON_THE_WAY_S)):
        with pytest.raises(NotEnoughReplicas):
            front.append(b"small")
        front.clock.advance(1)
    assert not front.append(b"small").done
    front.stream.deposed(7)


async def test_a_batch_that_is_sent_twice_is_in_the_log_once() -> None:
    """While it is under way both get one answer; later the second is told where the first is."""
    front, owner = await led()
    first = front.append(b"1", producer_id=5, sequence=0)
    assert front.append(b"1", producer_id=5, sequence=0) is first
    owner.ack()
    again = front.append(b"1", producer_id=5, sequence=0).result()
    assert (again.base_offset, again.duplicate) == (0, True)
    with pytest.raises(OutOfOrderSequence):
        front.append(b"3", producer_id=5, sequence=2)
    assert owner.values == [b"1"]


async def test_a_bad_batch_is_refused_before_it_gets_an_offset() -> None:
    """The checks are those of a host alone."""
    front, owner = await led()
    with pytest.raises(InvalidRecord):
        front.stream.append(bytearray(2 * _plain()), now_ms=front.clock.wall_ms())
    assert owner.window == []


def _plain() -> bytes:
    return bytes(encode_batch([Record(0, 0, None, b"x")]))


async def test_a_chunk_begins_with_the_producers_as_of_its_start() -> None:
    """A batch that is not acknowledged when the chunk is rolled is not in them: it is sent again in the next chunk."""
    front, owner = await led()
    front.append(b"1", producer_id=5, sequence=0)
    front.append(b"2", producer_id=5, sequence=1)
    owner.ack()
    owner.roll()
    (snapshot,), _ = decode_snapshots(owner.chunks[-1].founding)
    assert snapshot.next_offset == 1
    assert [batch.first_sequence for entry in snapshot.producers for batch in entry.batches] == [0]
    owner.ack()
    assert front.stream.high_watermark == 2


async def test_deletion_fails_what_is_under_way() -> None:
    """Readers that wait are woken."""
    front, _ = await led()
    ticket = front.append(b"1")
    woken: list[bool] = []
    front.stream.add_waiter(lambda: woken.append(front.stream.deleted))
    front.stream.abandon()
    assert isinstance(ticket.error, UnknownTopicOrPartition)
    assert woken == [True]


async def test_offsets_are_checked() -> None:
    """Readers may ask from the log start up to the high watermark."""
    front, owner = await led()
    front.append(b"1")
    owner.ack()
    front.stream.check_offset(1)
    with pytest.raises(OffsetOutOfRange):
        front.stream.check_offset(2)
    assert isinstance(front.stream.delete_records(2).error, OffsetOutOfRange)


async def test_an_ownership_that_ends_while_producers_are_read_begins_nothing() -> None:
    """The table that was read belongs to an ownership that is over."""
    owner = MemoryOwner()
    front = Front(owner)
    owner.own(front.stream)
    front.stream.deposed(2)
    await front.tasks.run()
    assert not front.stream.is_leader
    assert isinstance(front.reports, RecordedReports)
    assert front.reports.names() == []


async def test_a_stream_with_too_few_members_answers_its_producers() -> None:
    """What waits is answered, and stays; what comes is refused at once. A batch with a producer id that is sent again
    is in the log once, also one that was sent again before the members were back.
    """
    front, owner = await led(max_in_flight=1)
    first, second = (front.append(b"%d" % number, producer_id=1, sequence=number) for number in range(2))
    front.stream.short(3)
    for ticket in (first, second):
        assert isinstance(ticket.error, NotEnoughReplicasAfterAppend)
    for number in range(3):
        with pytest.raises(NotEnoughReplicas, match=r"fewer hosts can hold it than min\.insync\.replicas, 3"):
            front.append(b"%d" % number, producer_id=1, sequence=number)
    front.stream.enough()
    pending = front.append(b"0", producer_id=1, sequence=0)
    assert not pending.done
    owner.ack()
    owner.ack()
    assert pending.result().base_offset == 0
    again = front.append(b"1", producer_id=1, sequence=1)
    assert again.result().duplicate
    front.append(b"2", producer_id=1, sequence=2)
    owner.ack()
    assert owner.values == [b"0", b"1", b"2"]


async def test_a_stream_of_the_cluster_s_own_says_that_it_lacks_members() -> None:
    """Its batches wait, and are not answered early; who appends them asks before. So it says where a takeover waits,
    and not while the metadata store is away: then another host may lead it.
    """
    front, owner = await led()
    front.stream.is_internal = True
    batches = [encode_batch([Record(0, 0, None, b"%d" % number)]) for number in range(2)]
    tickets, told = [front.stream.append_own(batches[0], now_ms=0)], []
    front.stream.short(2)
    tickets.append(front.stream.append_own(batches[1], now_ms=0))
    assert [ticket.done for ticket in tickets] == [False, False]
    for is_away in (False, True):
        front.is_store_away = is_away
        told.append(front.stream.lacks_members)
    front.is_store_away = False
    front.stream.enough()
    owner.ack(2)
    assert [*told, front.stream.lacks_members] == [True, False, False]
    assert [ticket.result().base_offset for ticket in tickets] == [0, 1]
    other = Front(owner)
    other.stream.is_internal = True
    owner.own_for_readers(other.stream)
    waiting = other.stream.lacks_members, other.stream.is_leader, other.stream.is_readable
    owner.own(other.stream)
    await other.tasks.run()
    leading = other.stream.lacks_members, other.stream.is_leader
    assert (waiting, leading) == ((True, False, False), (False, True))


async def test_nothing_overtakes_a_batch_that_was_refused_for_want_of_members() -> None:
    """When the members are back, what a client without a producer id had sent before it knew of the refusal is refused
    as well; known producers go on at once.
    """
    front, owner = await led()
    front.append(b"known", producer_id=1, sequence=0)
    owner.ack()
    front.stream.short(2)
    for _ in range(3):
        for batch in ({}, {"producer_id": 2, "sequence": 0}):
            with pytest.raises(NotEnoughReplicas, match="start another"):
                front.append(b"plain", **batch)
        front.clock.advance(round(1000 * ON_THE_WAY_S) - 1)
    front.stream.enough()
    with pytest.raises(NotEnoughReplicas, match="just now"):
        front.append(b"behind")
    front.append(b"numbered", producer_id=1, sequence=1)
    front.clock.advance(1)
    front.append(b"plain")
    with pytest.raises(NotEnoughReplicas, match="just now"):
        front.append(b"second", producer_id=2, sequence=1)
    front.append(b"first", producer_id=2, sequence=0)
    owner.ack(3)
    assert owner.values == [b"known", b"numbered", b"plain", b"first"]


async def test_a_host_that_may_lead_no_more_does_not_keep_its_producers() -> None:
    """Without the metadata store it cannot know whether another host leads: clients that wait look elsewhere."""
    front, _ = await led()
    front.is_store_away = True
    first = front.append(b"a")
    front.stream.short(2)
    assert not first.done
    assert not front.append(b"a").done
    front.is_store_away = False
    with pytest.raises(NotEnoughReplicas, match="start another"):
        front.append(b"a")


async def test_full_disks_are_told_where_they_are_why_members_are_too_few() -> None:
    """The way out is room, not another host."""
    front, _ = await led()
    front.append(b"waits")
    front.stream.crowded()
    front.stream.short(3)
    with pytest.raises(NotEnoughReplicas, match="start another"):
        front.append(b"refused")
    front.clock.advance(round(1000 * CROWDED_S) + 1)
    with pytest.raises(StorageFailed, match="has no space"):
        front.append(b"refused")


async def test_a_new_ownership_has_members() -> None:
    """What an earlier one was short of is no reason to refuse; what it had answered already is answered once."""
    front, owner = await led()
    lost = front.append(b"lost")
    front.stream.short(2)
    front.stream.deposed(7)
    assert isinstance(lost.error, NotEnoughReplicasAfterAppend)
    owner.own(front.stream)
    await front.tasks.run()
    front.append(b"kept")
    owner.ack()
    assert owner.values == [b"kept"]


async def test_a_stream_that_waits_for_members_is_read() -> None:
    """Up to what a member knows to be acknowledged; an offset behind that, up to the end of the log, is that of a
    reader who has seen more, and waits. What is written is refused, and has its place when there are members.
    """
    front, owner = await led()
    front.append(b"0", producer_id=1, sequence=0)
    owner.ack()
    front.append(b"1", producer_id=1, sequence=1)
    second = Front(owner)
    owner.own_for_readers(second.stream, kept=1)
    stream = second.stream
    assert (stream.is_leader, stream.is_readable, stream.high_watermark, stream.leader_epoch) == (False, True, 0, 2)
    await second.tasks.run_a_while()
    assert (stream.high_watermark, stream.log_end) == (1, 2)
    for offset in range(3):
        stream.check_offset(offset)
    with pytest.raises(OffsetOutOfRange):
        stream.check_offset(3)
    with pytest.raises(NotLeader):
        stream.check_leader()
    with pytest.raises(NotEnoughReplicas, match=r"fewer hosts can hold it than min\.insync\.replicas, 2"):
        second.append(b"1", producer_id=1, sequence=1)
    owner.own(stream)
    assert not stream.is_readable
    await second.tasks.run()
    assert (stream.is_leader, stream.high_watermark) == (True, 2)
    with pytest.raises(NotEnoughReplicas, match="just now"):
        second.append(b"behind")
    second.clock.advance(round(1000 * ON_THE_WAY_S) + 1)
    second.append(b"2")
    owner.ack()
    assert owner.values == [b"0", b"1", b"2"]


async def test_what_a_stream_refuses_that_waits_for_members_is_not_overtaken() -> None:
    """A producer whom the stream does not know hears late that its first batch was refused: what it has sent behind it
    waits for that one, as where a leader has too few members.
    """
    _, owner = await led()
    second = Front(owner)
    owner.own_for_readers(second.stream)
    with pytest.raises(NotEnoughReplicas, match="fewer hosts"):
        second.append(b"0", producer_id=9, sequence=0)
    owner.own(second.stream)
    await second.tasks.run()
    second.clock.advance(round(1000 * ON_THE_WAY_S) + 1)
    with pytest.raises(NotEnoughReplicas, match="just now"):
        second.append(b"1", producer_id=9, sequence=1)
    for sequence in range(2):
        second.append(b"%d" % sequence, producer_id=9, sequence=sequence)
        owner.ack()
    assert owner.values == [b"0", b"1"]


async def test_a_host_that_may_own_no_more_serves_readers_and_sends_producers_away() -> None:
    """Without the metadata store nobody is told to try again at it."""
    front, owner = await led()
    front.append(b"0")
    owner.ack()
    second = Front(owner)
    owner.own_for_readers(second.stream)
    assert second.stream.high_watermark == 1
    second.is_store_away = True
    second.stream.check_offset(1)
    owner.is_taking_over = False
    with pytest.raises(NotLeader):
        second.append(b"1")
    second.stream.deposed(3)
    with pytest.raises(NotLeader):
        second.stream.check_offset(1)


async def test_the_clusters_own_streams_wait_for_members() -> None:
    """A coordinator begins when it can keep what it is told."""
    _, owner = await led()
    second = Front(owner)
    second.stream.is_internal = True
    owner.own_for_readers(second.stream)
    assert not second.stream.is_readable


async def test_a_member_that_comes_back_shows_more_of_what_was_hidden(autojump_clock: Any) -> None:
    """The host that is left had started anew, and had heard of nothing. Readers see more when somebody is there who
    has, and all when the members are enough after all.
    """
    front, owner = await led()
    for value in (b"0", b"1"):
        front.append(value)
        owner.ack()
    front.append(b"2")
    async with trio.open_nursery() as nursery:
        second = Front(owner, tasks=cast(Tasks, nursery.start_soon))
        owner.own_for_readers(second.stream, kept=1)
        owner.known_acked = 0
        await trio.sleep(10)
        assert second.stream.high_watermark == 0
        owner.known_acked = 2
        await trio.sleep(SELDOM_S)
        assert second.stream.high_watermark == 2
        second.stream.readable(owner.epoch, 3, is_settled=True)
        second.stream.short(2)
        assert second.stream.high_watermark == 3
        second.stream.check_end()
        with trio.fail_after(SELDOM_S):
            await trio.testing.wait_all_tasks_blocked()

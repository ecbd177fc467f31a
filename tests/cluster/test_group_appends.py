"""Groups at the owner of a stream: each is appended once, whoever sends it, how often, and whatever is trimmed."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from logstore.cluster.epochs import group_appends
from logstore.cluster.epochs.group_appends import BRIEF_WAIT_S, MAX_WAITING, WAIT_S, GroupAppends
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import ClusterTopics
from logstore.epochs import stream_ends
from logstore.epochs.group_order import GroupOrder
from logstore.epochs.ledger_entries import Target
from logstore.errors import (
    CairnError,
    ChunkUnreachable,
    CorruptChunk,
    MalformedRequest,
    NotLeader,
    TierRefused,
    TierUnavailable,
    TryAgain,
    UnknownTopicOrPartition,
)
from logstore.format.batch import iterate_batches
from logstore.format.control import END_TYPE, known_type
from logstore.format.records import Record, encode_batch
from logstore.log.scanning import TakeEnd
from logstore.replica.messages import BatchEntry
from logstore.replica.registrations import ChunkRegistration
from tests.cluster.support import PLACE, Front, MemoryOwner
from tests.support.limits import PATIENCE_S
from tests.support.virtual_time import run_virtual

TOPIC_ID = str(uuid.UUID(PLACE.topic_id))


def spawn(work: Callable[[], Awaitable[None]]) -> None:
    """Run a task beside the test."""
    trio.lowlevel.spawn_system_task(work)


class Host:
    """A host with one stream, and how its owner appends groups. Another one takes over with the same owner."""

    def __init__(self, owner: MemoryOwner) -> None:
        self.front, self.owner = Front(owner), owner
        topic = SimpleNamespace(partitions=[self.front.stream])
        known = SimpleNamespace(
            topic_by_id=lambda topic_id: topic if str(topic_id) == TOPIC_ID else None,
            streams=lambda: [self.front.stream],
        )
        self.searches: list[tuple[int, int]] = []
        self.may_search = trio.Event()
        self.may_search.set()
        self.is_owed = False
        self.asked: list[int] = []
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.damaged: set[int] = set()
        self.forgotten: set[int] = set()
        """Epochs of chunks."""
        self.failure: CairnError | None = None
        """What reads of damaged chunks raise; None: CorruptChunk."""
        self.read: list[int] = []
        self.appends = GroupAppends(cast(ClusterTopics, known), self, self, self.front.clock, spawn, self)
        self.outcomes: list[CairnError | None] = []

    async def lead(self, kept: int = 0) -> None:
        """It owns the stream from now on."""
        self.owner.own(self.front.stream, kept=kept)
        await self.front.tasks.run()

    async def find_ends(
        self, stream: ReplicatedStream, from_offset: int, before_offset: int, /, *, take: TakeEnd
    ) -> None:
        self.searches.append((from_offset, before_offset))
        await self.may_search.wait()
        for entry in self._entries(from_offset, before_offset):
            for at, header in iterate_batches(entry.data):
                batch = bytes(memoryview(entry.data)[at : at + header.size_bytes])
                is_there = max(from_offset, stream.log_start_offset) <= header.base_offset < before_offset
                if is_there and header.is_control and known_type(batch) == END_TYPE:
                    take(header.base_offset, batch)

    def is_late(self, stream: ReplicatedStream, before_offset: int, /) -> bool:
        return False

    def _entries(self, from_offset: int, before_offset: int) -> Iterator[BatchEntry]:
        """The newest chunk first. Raises CorruptChunk at one that is damaged."""
        for chunk in reversed(self.owner.chunks):
            end = chunk.registration.end
            is_searched = chunk.registration.base_offset < before_offset and (end is None or end[1] > from_offset)
            if is_searched and end is not None and chunk.registration.epoch in self.damaged:
                first = max(from_offset, chunk.registration.base_offset)
                raise self.failure or CorruptChunk("damaged", first_offset=first, last_offset=end.next_offset - 1)
            yield from chunk.entries

    async def may_pass(
        self, stream: ReplicatedStream, chunk: ChunkRegistration, error: Exception, order: GroupOrder, /
    ) -> bool:
        await trio.lowlevel.checkpoint()
        return chunk.epoch in self.forgotten

    def was_read(self, stream: ReplicatedStream, chunk: ChunkRegistration, /) -> None:
        self.read.append(chunk.epoch)

    async def is_under_way(self, order: GroupOrder, /) -> bool:
        self.asked.append(order.epoch)
        await self.may_answer.wait()
        return self.is_owed

    async def send(self, epoch: int, start: int, query: str = "q") -> None:
        """A group comes; its outcome is noted."""
        try:
            await self.appends.append(order(epoch, start, query))
            self.outcomes.append(None)
        except CairnError as error:
            self.outcomes.append(error)

    @property
    def groups(self) -> int:
        """How many groups the log has, or may have."""
        entries = [entry for chunk in self.owner.chunks for entry in chunk.entries] + self.owner.window
        return sum(len(list(iterate_batches(entry.data))) > 1 for entry in entries)


def order(epoch: int, start: int, query: str = "q", partition: int = 0) -> GroupOrder:
    """An epoch of one record, decided when the stream ended at an offset."""
    batch = bytes(encode_batch([Record(0, epoch, None, b"%d" % epoch)]))
    return GroupOrder(Target("orders", TOPIC_ID, partition, start), query, epoch, 1, "", ("0:a",), batch, 1)


async def settle() -> None:
    """Let everything go on as far as it can."""
    await trio.testing.wait_all_tasks_blocked()


async def test_a_group_that_comes_twice_is_there_once() -> None:
    """While it is under way, the second waits for the first; behind its acknowledgement, it is known."""
    host = Host(MemoryOwner())
    await host.lead()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.send, 1, 0)
        nursery.start_soon(host.send, 1, 0)
        await settle()
        assert (host.groups, host.outcomes) == (1, [])
        host.owner.ack()
    assert host.outcomes == [None, None]
    await host.send(1, 0)
    assert (host.groups, host.searches) == (1, [])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.send, 2, 3)
        await settle()
        host.owner.ack()
    await host.send(1, 0)  # of a home that was replaced
    assert (host.groups, host.outcomes) == (2, [None] * 5)


def test_a_stream_that_waits_for_its_members_holds_up_no_other_groups() -> None:
    """Whoever sends a group has an answer soon, and may ask for other streams; the group is appended once all the same.

    A host calls for a few groups of one owner at a time: groups that wait for an hour would be all of them.
    """

    async def test() -> None:
        host = Host(MemoryOwner())
        await host.lead()
        with trio.fail_after(3 * WAIT_S):
            await host.send(1, 0)
            await host.send(1, 0)
        assert [type(outcome) for outcome in host.outcomes] == [TryAgain, TryAgain]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.send, 1, 0)
            await settle()
            host.owner.ack()
        assert (host.groups, host.outcomes[2:]) == (1, [None])

    run_virtual(test, clock=trio.testing.MockClock(autojump_threshold=0.01))


def unset_events() -> int:
    """How many events there are in this process for which somebody may wait, or might have."""
    gc.collect()
    return sum(type(found) is trio.Event and not found.is_set() for found in gc.get_objects())


@pytest.mark.parametrize("is_told", [False, True])
def test_a_group_that_is_sent_again_and_again_leaves_nothing_behind(*, is_told: bool) -> None:
    """A stream may lack members for days, and each of its groups comes again every few seconds meanwhile."""

    async def test() -> None:
        host = Host(MemoryOwner())
        await host.lead()
        if is_told:
            host.front.stream.short(2)
        await host.send(1, 0)
        before = unset_events()
        for _ in range(50):
            await host.send(1, 0)
        assert unset_events() - before < 10

    run_virtual(test)


@pytest.mark.parametrize("is_told", [False, True])
def test_groups_that_wait_leave_room_for_those_of_other_streams(*, is_told: bool) -> None:
    """However many there are: a host has 256 calls under way, and most of them are answered soon; at once if it is
    known that members are wanting, and where a group comes again. All are appended once.
    """

    async def test() -> None:
        host = Host(MemoryOwner(1_000))
        await host.lead()
        if is_told:
            host.front.stream.short(2)
        for again_s in (0.0 if is_told else BRIEF_WAIT_S, 0.0):
            host.outcomes.clear()
            async with trio.open_nursery() as nursery:
                for number in range(300):
                    nursery.start_soon(host.send, 1, 0, f"q{number}")
                await trio.sleep(again_s + 0.1)
                assert len(host.outcomes) == 300 - MAX_WAITING
                assert host.groups == 300
                await trio.sleep(WAIT_S)
                assert {type(outcome) for outcome in host.outcomes} == {TryAgain}
                assert len(host.outcomes) == 300
        host.owner.ack(300)
        host.outcomes.clear()
        for number in range(300):
            await host.send(1, 0, f"q{number}")
        assert (host.groups, set(host.outcomes)) == (300, {None})

    run_virtual(test)


@pytest.mark.parametrize("kept", [0, 1])
async def test_the_next_owner_knows_what_the_former_one_has_left(kept: int) -> None:
    """A group that was under way is in the log, or not: it comes again, and is there once. One search is enough."""
    owner = MemoryOwner()
    first, second = Host(owner), Host(owner)
    await first.lead()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.send, 1, 0)
        await settle()
        await second.lead(kept)
        first.front.stream.deposed(2)
    assert isinstance(first.outcomes[0], NotLeader)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.send, 1, 0)
        await settle()
        assert len(owner.window) == 1 - kept
        owner.ack(len(owner.window))
    await second.send(1, 0)
    assert (second.groups, second.outcomes) == (1, [None, None])
    assert second.searches == ([(0, 3)] if kept else []), "from the decision to the beginning of the ownership"


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_more_queries_than_are_noted(monkeypatch: pytest.MonkeyPatch, *, is_taken_over: bool) -> None:
    """A group that comes again is there once, even if so many others came since that its END is not noted."""
    monkeypatch.setattr(stream_ends, "MAX_QUERIES", 3)
    owner = MemoryOwner()
    host = Host(owner)
    await host.lead()
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(host.send, 1, 0, f"q{number}")
            await settle()
            owner.ack()
    if is_taken_over:
        host = Host(owner)
        await host.lead()
    for number in range(8):
        with trio.fail_after(PATIENCE_S):
            await host.send(1, 0, f"q{number}")
    assert (host.groups, set(host.outcomes)) == (8, {None})


async def test_what_is_forgotten_during_a_search_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other groups come while the stream is searched: an END that was noted at first is looked for as well."""
    monkeypatch.setattr(stream_ends, "MAX_QUERIES", 3)
    owner = MemoryOwner()
    host = Host(owner)
    await host.lead()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(host.send, 1, 0, f"q{number}")
            await settle()
            owner.ack()
        host.may_search = trio.Event()
        nursery.start_soon(host.send, 1, 0, "q0")  # not noted, but q1 and what lies behind
        await settle()
        for number in range(4, 8):
            nursery.start_soon(host.send, 1, 3 * number, f"q{number}")
            await settle()
            owner.ack()
        host.may_search.set()
    for number in range(8):
        await host.send(1, 0, f"q{number}")
    assert (host.groups, set(host.outcomes)) == (8, {None})


async def test_a_name_that_begins_again_is_another_query() -> None:
    """An END in front of the decision is of a query that was forgotten."""
    owner = MemoryOwner()
    first, second = Host(owner), Host(owner)
    await first.lead()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.send, 9, 0)
        await settle()
        owner.ack()
        await settle()
        nursery.start_soon(first.send, 0, 3)
        await settle()
        assert len(owner.window) == 1
        owner.ack()
    await second.lead()
    await second.send(0, 3)
    assert second.groups == 2


async def test_what_was_trimmed_behind_the_decision_is_not_there_twice() -> None:
    """Another owner cannot tell a group that was trimmed from one that never came, and the home of epochs can: an epoch
    that is over was there.
    """
    owner = MemoryOwner()
    first, second = Host(owner), Host(owner)
    await first.lead()
    first.front.append(b"record")
    owner.ack()
    async with trio.open_nursery() as nursery:
        first.front.stream.log_start_offset = 1
        nursery.start_soon(first.send, 1, 0)
        await settle()
        assert first.groups == 1
        owner.ack()
    await second.lead()
    second.front.stream.log_start_offset = 4
    await second.send(1, 0)
    assert (second.groups, second.outcomes) == (1, [None])
    assert (first.asked, second.asked) == ([], [1])


async def test_a_group_that_never_came_is_appended_though_the_stream_begins_behind_its_decision() -> None:
    """The epoch is under way: nothing was trimmed since it was decided, so it was decided with an old offset. It comes
    twice while the home of epochs is asked, and is there once.
    """
    owner = MemoryOwner()
    first, second = Host(owner), Host(owner)
    await first.lead()
    for value in (b"1", b"2"):
        first.front.append(value)
        owner.ack()
    await second.lead()
    second.front.stream.log_start_offset = 2
    second.is_owed, second.may_answer = True, trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.send, 1, 1)
        nursery.start_soon(second.send, 1, 1)
        await settle()
        assert (second.groups, second.asked) == (0, [1, 1])
        second.may_answer.set()
        await settle()
        owner.ack()
    assert (second.groups, second.outcomes) == (1, [None, None])


async def test_a_search_that_an_ownership_does_not_outlast_says_nothing() -> None:
    """What it has found is of no use; the group is for the next owner."""
    owner = MemoryOwner()
    first, second = Host(owner), Host(owner)
    await first.lead()
    first.front.append(b"record")
    owner.ack()
    await second.lead()
    second.may_search = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.send, 1, 0)
        await settle()
        second.front.stream.deposed(3)
        second.may_search.set()
    assert isinstance(second.outcomes[0], NotLeader)
    assert second.groups == 0


async def test_streams_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown topic, partition or id is refused by name, and so is a stream of another host."""
    host = Host(MemoryOwner())
    with pytest.raises(NotLeader):
        await host.appends.append(order(1, 0))
    with pytest.raises(UnknownTopicOrPartition, match="no partition 1"):
        host.appends.stream(TOPIC_ID, 1)
    with pytest.raises(UnknownTopicOrPartition):
        host.appends.stream(TOPIC_ID.replace("1", "2"), 0)
    with pytest.raises(MalformedRequest, match="'orders' is not an id"):
        host.appends.stream("orders", 0)
    monkeypatch.setattr(group_appends, "MAX_FORGOTTEN", 0)
    await host.lead()
    host.appends._most_owned = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.send, 1, 0)
        await settle()
        host.owner.ack()
    await host.send(1, 0)
    assert host.groups == 1


@pytest.mark.parametrize(
    "failure", [None, ChunkUnreachable("its hosts are away"), TierUnavailable("away"), TierRefused("no right")]
)
async def test_a_chunk_that_is_forgotten_has_no_epoch(failure: CairnError | None) -> None:
    """What cannot be read is not known to have no END, so nothing is appended, be it lost or away; unless an operator
    lets the epoch go on without it: then chunks in front of it are searched still, and an epoch whose END was in it
    comes once more.
    """
    owner = MemoryOwner()
    host = Host(owner)
    await host.lead()
    for epoch in (1, 2, 3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.send, epoch, 0)
            await settle()
            owner.ack()
        owner.roll()
    first, lost, last = (chunk.registration.epoch for chunk in owner.chunks[:3])
    waits = Host(owner)
    waits.damaged, waits.failure = {first, lost}, failure
    await waits.lead()
    for epoch in (3, 1, 2):  # the last chunk has END of a later epoch of the query than those in front
        await waits.send(epoch, 0)
    assert (waits.groups, waits.outcomes, waits.read) == (3, [None] * 3, [last]), "what was read is known"
    await waits.send(1, 0, "other")
    assert (waits.groups, type(waits.outcomes[3])) == (3, CorruptChunk if failure is None else type(failure))
    again = Host(owner)
    again.damaged = again.forgotten = {lost, last}
    again.failure = failure
    await again.lead()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.send, 3, 0)
        await settle()
        owner.ack()
    assert (again.groups, again.outcomes, again.read) == (4, [None], [first])
    await again.send(3, 0)
    assert (again.groups, again.outcomes, again.read) == (4, [None] * 2, [first]), "what was appended is known"


async def test_a_chunk_that_is_back_is_searched_although_it_was_passed_over() -> None:
    """In the same ownership: the epoch of another query is found where it is, and is not appended again."""
    owner = MemoryOwner()
    host = Host(owner)
    await host.lead()
    for query in ("q", "other"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.send, 1, 0, query)
            await settle()
            owner.ack()
    owner.roll()
    lost = owner.chunks[0].registration.epoch
    after = Host(owner)
    after.damaged = after.forgotten = {lost}
    await after.lead()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after.send, 1, 0)
        await settle()
        owner.ack()
    assert after.groups == 3
    after.damaged = set()
    with trio.fail_after(PATIENCE_S):
        await after.send(1, 0, "other")
    assert (after.groups, after.outcomes, after.read) == (3, [None] * 2, [lost])

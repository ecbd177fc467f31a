"""Epochs over hosts, and records that are deleted while an epoch is under way: no epoch is lost, none comes twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar, cast

import pytest
import trio

from logstore.base.metadata.errors import MetadataError
from logstore.cluster.epochs import epoch_holds, epochs_home
from logstore.cluster.epochs.epoch_holds import EpochHolds
from logstore.cluster.epochs.group_appends import GroupAppends
from logstore.cluster.streams import own_topics
from logstore.cluster.streams.owner_calls import (
    APPEND_GROUP,
    EPOCHS_LIMIT,
    FIND_END,
    IS_UNDER_WAY,
    Handler,
    OwnerCalls,
    answered,
)
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import EPOCHS_TOPIC
from logstore.epochs.commit_in_progress import CommitInProgress
from logstore.epochs.epochs import Epochs
from logstore.epochs.group_order import GroupOrder, decode_order
from logstore.epochs.ledger_entries import CommitRecord
from logstore.epochs.query import Query
from logstore.epochs.replicated_staging import ReplicatedStaging
from logstore.errors import InvalidRecord, StagedMissing, TryAgain
from logstore.format.batch import iterate_batches
from logstore.format.control import End, decode_control
from logstore.format.epoch_api import (
    EPOCH_COMMIT,
    STAGE,
    EpochCommitReply,
    EpochCommitRequest,
    Part,
    StageRequest,
    TaskOutput,
)
from logstore.format.fields import decode_fields, encode_fields
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import Ticket
from logstore.replica import owner
from tests.cluster.epochs_world import TOPIC, EpochsWorld, epochs_world, groups_in
from tests.cluster.test_epochs import PARTITIONS, in_virtual_time, owners

T = TypeVar("T")
LIMIT_S = 120.0
"""Virtual."""


async def result(ticket: Ticket[T] | AppendTicket) -> object:
    """What a ticket settles with. Raises its error."""
    settled = trio.Event()
    ticket.add_callback(lambda _: settled.set())
    await settled.wait()
    return ticket.result()


async def led(world: EpochsWorld, partition: int) -> tuple[str, ReplicatedStream]:
    """The host that leads a partition, and the stream there."""
    while True:
        for name, host in world.hosts.items():
            topic = host.topics.topics.get(TOPIC)
            if topic is not None and topic.partitions[partition].is_leader:
                return name, topic.partitions[partition]
        await trio.sleep(0.01)


async def append(world: EpochsWorld, stream: ReplicatedStream, count: int) -> None:
    """Records of another client."""
    for _ in range(count):
        now_ms = world.clock.wall_ms()
        await result(stream.append(encode_batch([Record(0, now_ms, None, b"x")]), now_ms=now_ms))


async def ends_of(world: EpochsWorld, partition: int) -> list[tuple[int, int]]:
    """The offset of each END in a stream, and its epoch."""
    found = []
    for buffer in await world._batches(partition):
        for at, header in iterate_batches(buffer):
            control = decode_control(memoryview(buffer)[at : at + header.size_bytes]) if header.is_control else None
            if isinstance(control, End):
                found.append((header.base_offset, control.epoch))
    return found


async def epochs_of(world: EpochsWorld, partition: int) -> list[int]:
    """The epochs whose END is in a stream."""
    return [epoch for _, epoch in await ends_of(world, partition)]


async def away_from_home(world: EpochsWorld) -> tuple[str, int]:
    """The home of epochs, and a partition whose owner is another host."""
    home = await world.home()
    return home, next(number for number, owner in enumerate(await owners(world)) if owner != home)


async def an_owner_is_lost_behind_a_trim(world: EpochsWorld, *, has_come: bool) -> None:
    """A group is on its way; records behind its decision are deleted, and the owner is lost before the home knows that
    the owner has the group.
    """
    await world.epoch(0, PARTITIONS)
    _, partition = await away_from_home(world)
    owner, stream = await led(world, partition)
    arrived, append_group = trio.Event(), world.hosts[owner].handlers[APPEND_GROUP]

    async def silent(host: str, payload: memoryview) -> Sequence[Buffer]:
        if has_come:
            await append_group(host, payload)
        arrived.set()
        await trio.sleep_forever()
        raise AssertionError

    world.hosts[owner].handlers[APPEND_GROUP] = silent
    world.nursery.start_soon(world.epoch, 1, PARTITIONS)
    await arrived.wait()
    seen = await ends_of(world, partition)
    await append(world, stream, 3)
    deleted = stream.delete_records(stream.high_watermark)
    with trio.move_on_after(3):
        await result(deleted)
    await world.kill(owner)
    await world.epoch(2, PARTITIONS)
    found = await ends_of(world, partition)
    assert [epoch for _, epoch in found][-2:] == [1, 2], "an epoch is lost"
    assert set(seen) <= set(found), "an epoch is there twice"


def run(story: Callable[[EpochsWorld], Awaitable[None]]) -> None:
    """Five hosts, so that some may be lost. Raises AssertionError."""

    async def main() -> None:
        async with epochs_world(*"abcde", partitions=PARTITIONS) as world:
            await story(world)

    in_virtual_time(main, LIMIT_S)


@pytest.mark.parametrize("has_come", [False, True])
def test_an_owner_is_lost_behind_a_trim(*, has_come: bool) -> None:
    """The records stay until the epoch is over: so the next owner knows whether the group has come."""
    run(partial(an_owner_is_lost_behind_a_trim, has_come=has_come))


def test_trims_that_do_not_ask_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: an owner trims whatever epochs are under way."""

    async def hasty(self: EpochHolds, stream: ReplicatedStream, wanted: int) -> int:
        await trio.lowlevel.checkpoint()
        return wanted

    monkeypatch.setattr(EpochHolds, "trim_limit", hasty)
    with pytest.raises(AssertionError, match="an epoch is there twice"):
        run(partial(an_owner_is_lost_behind_a_trim, has_come=True))


async def an_old_end(world: EpochsWorld) -> None:
    """An epoch is decided with the offset at which a replaced owner says that the stream ends; since then the stream
    was written to and trimmed, and has got another owner.
    """
    await world.epoch(0, PARTITIONS)
    _, partition = await away_from_home(world)
    owner, stream = await led(world, partition)
    old_end = stream.high_watermark
    await append(world, stream, 3)
    await result(stream.delete_records(-1))
    await world.kill(owner)
    _, stream = await led(world, partition)
    assert old_end < stream.log_start_offset <= stream.led_from

    def late(find_end: Handler) -> Handler:
        async def answer(host: str, payload: memoryview) -> Sequence[Buffer]:
            found = await find_end(host, payload)
            is_old = decode_fields(payload)[0]["partition"] == partition
            return [encode_fields({"error": None, "end": old_end})] if is_old else found

        return answer

    for host in world.hosts.values():
        host.handlers[FIND_END] = late(host.handlers[FIND_END])
    await world.epoch(1, PARTITIONS)
    assert await epochs_of(world, partition) == [1], "an epoch is lost"
    await trio.sleep(5)  # the group comes again, late: it is over now
    assert await epochs_of(world, partition) == [1], "an epoch is there twice"
    _, stream = await led(world, partition)
    await result(stream.delete_records(-1))
    await world.epoch(2, PARTITIONS)
    assert await epochs_of(world, partition) == [2]


def test_an_epoch_that_was_decided_with_an_old_offset() -> None:
    """It looks like one that was trimmed; it is under way, so it never came, and is appended once."""
    run(an_old_end)


@pytest.mark.parametrize(("is_under_way", "why"), [(False, "an epoch is lost"), (True, "an epoch is there twice")])
def test_an_owner_that_does_not_ask_is_found(monkeypatch: pytest.MonkeyPatch, why: str, *, is_under_way: bool) -> None:
    """A planted bug: what looks trimmed counts as over, or as under way."""

    async def guess(self: EpochHolds, order: object) -> bool:
        await trio.lowlevel.checkpoint()
        return is_under_way

    async def late_and_trimmed(world: EpochsWorld) -> None:
        await world.epoch(0, PARTITIONS)
        _, partition = await away_from_home(world)
        _, stream = await led(world, partition)
        await result(stream.delete_records(-1))  # the epoch goes; then its group comes again, to another owner
        await world.kill((await led(world, partition))[0])
        await led(world, partition)
        await trio.sleep(5)
        assert await epochs_of(world, partition) == [], "an epoch is there twice"

    story = late_and_trimmed if is_under_way else an_old_end
    run(story)
    monkeypatch.setattr(EpochHolds, "is_under_way", guess)
    with pytest.raises(AssertionError, match=why):
        run(story)


class Refusals:
    """One stream's owner, whoever it is, refuses groups for good while `is_on`."""

    def __init__(self, world: EpochsWorld, partition: int) -> None:
        self.is_on = True
        self._partition = partition
        for host in world.hosts.values():
            host.handlers[APPEND_GROUP] = partial(self._serve, host.handlers[APPEND_GROUP])

    async def _serve(self, append_group: Handler, host: str, payload: memoryview) -> Sequence[Buffer]:
        if self.is_on and decode_order(payload).target.partition == self._partition:
            return await answered(self._refuse)
        return await append_group(host, payload)

    async def _refuse(self) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        raise InvalidRecord("refused for good")


async def a_part_is_refused(world: EpochsWorld) -> None:
    """A stream refuses its part of an epoch. Records of the others are deleted, the home of epochs and the owner of
    another stream are lost, and at last the stream takes its part.
    """
    await world.epoch(0, PARTITIONS)
    home, refusing = await away_from_home(world)
    refusals = Refusals(world, refusing)
    with pytest.raises(InvalidRecord):
        await world.epoch(1, PARTITIONS)
    _, refused = await led(world, refusing)
    held = refused.high_watermark
    await append(world, refused, 1)
    others = [number for number in range(PARTITIONS) if number != refusing]
    for number in others:
        _, stream = await led(world, number)
        await append(world, stream, 1)
        assert await result(stream.delete_records(-1)) == stream.high_watermark
    with pytest.raises(TryAgain, match=f"an epoch is under way behind offset {held}"):
        await result(refused.delete_records(-1))
    assert await result(refused.delete_records(held)) == held
    owner, _ = await led(world, others[0])  # what it has appended, only its stream says
    for lost in {home, owner}:
        await world.kill(lost)
    await world.home()
    await trio.sleep(15)  # the next home tries again and again
    for number in others:
        assert await epochs_of(world, number) == [], "an epoch is there twice"
    assert await epochs_of(world, refusing) == []
    refusals.is_on = False
    while await epochs_of(world, refusing) != [1]:  # noqa: ASYNC110  time is virtual
        await trio.sleep(1)
    await world.epoch(2, PARTITIONS)
    for number in range(PARTITIONS):
        assert await epochs_of(world, number) == ([1, 2] if number == refusing else [2])
        _, stream = await led(world, number)
        assert await result(stream.delete_records(-1)) == stream.high_watermark


def run_refusals() -> None:
    """Five hosts, and time for deletions that wait."""

    async def main() -> None:
        async with epochs_world(*"abcde", partitions=PARTITIONS) as world:
            await a_part_is_refused(world)

    in_virtual_time(main, 300.0)


def test_a_part_that_is_refused_holds_no_other_stream() -> None:
    """Streams that have the epoch are trimmed while one of them refuses its part for good; no later home of epochs
    takes what was trimmed for what never came. The stream that refuses keeps what lies behind the decision.
    """
    run_refusals()


def test_streams_that_are_let_go_before_the_ledger_says_so_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the next home of epochs gives them their groups once more."""

    async def hasty(self: Epochs, query: Query, commit: CommitInProgress, record: CommitRecord) -> None:
        commit.narrow(record, self._publisher.pins(record))

    monkeypatch.setattr(Epochs, "_narrow", hasty)
    with pytest.raises(AssertionError, match="an epoch is there twice"):
        run_refusals()


def test_a_home_that_is_cut_off_says_nothing_of_trims() -> None:
    """It was replaced, and does not know of what was decided since: the owner is told to ask again, and a client's
    deletion ends with that if it lasts.
    """

    async def story(world: EpochsWorld) -> None:
        await world.epoch(0, PARTITIONS)
        home, partition = await away_from_home(world)
        _, stream = await led(world, partition)
        world.cluster.metadata.cut_off(home)
        topic_id, _, _ = stream.stream.partition("/")
        asked = {"topic": TOPIC, "topic_id": topic_id, "partition": partition, "wanted": 1, "start": 0}
        asked |= {"query": "q", "epoch": 0, "run_number": 1}
        for kind in (EPOCHS_LIMIT, IS_UNDER_WAY):
            answer = await world.hosts[home].handlers[kind]("x", memoryview(encode_fields(asked)))
            error = decode_fields(b"".join(answer))[0]["error"]
            assert isinstance(error, dict)
            assert error["kind"] in {"TryAgain", "NotLeader"}

    run(story)


def test_a_deletion_ends_while_an_epoch_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is told why, and that it may ask again; nothing was deleted."""
    monkeypatch.setattr(epoch_holds, "PATIENCE_S", 2.0)

    async def story(world: EpochsWorld) -> None:
        await world.epoch(0, PARTITIONS)
        _, partition = await away_from_home(world)
        owner, stream = await led(world, partition)
        arrived = trio.Event()

        async def never(_: str, payload: memoryview) -> Sequence[Buffer]:
            arrived.set()
            await trio.sleep_forever()
            raise AssertionError

        world.hosts[owner].handlers[APPEND_GROUP] = never
        world.nursery.start_soon(world.epoch, 1, PARTITIONS)
        await arrived.wait()
        held, start = stream.high_watermark, stream.log_start_offset
        await append(world, stream, 3)
        with pytest.raises(TryAgain, match=f"an epoch is under way behind offset {held}"):
            await result(stream.delete_records(-1))
        assert stream.log_start_offset == start
        assert await result(stream.delete_records(held)) == held

    run(story)


def test_a_host_that_has_not_heard_of_epochs() -> None:
    """Whether there are any, the metadata store says: as long as there are none, nobody is asked."""

    async def story(world: EpochsWorld) -> None:
        name, stream = await led(world, 0)
        host = world.hosts[name]
        late = EpochHolds(cast(OwnerCalls, None), lambda: None, host.running.store, host.nursery.start_soon)
        assert await late.trim_limit(stream, 7) == 7
        await world.epoch(0, PARTITIONS)
        with pytest.raises(TryAgain, match="has not heard yet"):
            await late.trim_limit(stream, 7)
        world.cluster.metadata.cut_off(name)
        with pytest.raises(MetadataError):
            await late.trim_limit(stream, 7)

    run(story)


def small_topic_of_epochs(monkeypatch: pytest.MonkeyPatch, most: int = 32) -> None:
    """Chunks of a few records, and few of them."""
    monkeypatch.setattr(own_topics, "INTERNAL_CHUNK_BYTES", 1024)
    monkeypatch.setattr(epochs_home, "TIDY_BYTES", 4096)
    monkeypatch.setattr(owner, "MAX_CHUNKS", most)
    monkeypatch.setattr(epochs_home, "STAGED_CHUNKS", most * 5 // 8)
    monkeypatch.setattr(epochs_home, "KEPT_CHUNKS", most * 3 // 8)


async def stage_for_left(world: EpochsWorld) -> EpochCommitRequest:
    """A record that query `left` stages; the request to commit it."""
    batch = encode_batch([Record(0, world.clock.wall_ms(), None, b"left")])
    part = Part(TOPIC, 0, len(batch), 1, 1)
    await world.ask(StageRequest("left", "run", 5, 0, "a", 0, (part,), bytes(batch)), STAGE)
    return EpochCommitRequest("left", "run", 5, "error", (TaskOutput(0, "a", 1),), "", False)


def test_what_is_staged_and_left_does_not_fill_the_topic_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query stages a record and commits nothing; behind it others fill more chunks than a stream may have. Its record
    is dropped, the topic is trimmed, and the others go on.
    """
    small_topic_of_epochs(monkeypatch)

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world:
            commit = await stage_for_left(world)
            for number in range(60):
                await world.epoch(number, PARTITIONS)
                await trio.sleep(2.0)
            stream = world.hosts[await world.home()].topics.topics[EPOCHS_TOPIC].partitions[0]
            assert 0 < stream.chunk_count < 32
            assert stream.log_start_offset > 100
            with pytest.raises(StagedMissing):
                await world.ask(commit, EPOCH_COMMIT)
            await world.check(60, PARTITIONS)

    in_virtual_time(main, 300.0)


def refuse_left(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """No stream takes groups of query `left` before the event is set."""
    back, append_group = trio.Event(), GroupAppends.append

    async def append_later(self: GroupAppends, order: GroupOrder, caller: str) -> None:
        if order.query == "left" and not back.is_set():
            raise TryAgain("the stream has too few members")
        await append_group(self, order, caller)

    monkeypatch.setattr(GroupAppends, "append", append_later)
    return back


def test_an_epoch_that_waits_for_its_stream_moves_in_the_topic_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is committed, so what it needs stays; behind it others fill more chunks than a stream may have, and go on. A
    home behind them has what it needs too, and the stream gets it at last.
    """
    small_topic_of_epochs(monkeypatch, 16)
    back = refuse_left(monkeypatch)

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world:
            commit = await stage_for_left(world)
            world.nursery.start_soon(world.ask, commit, EPOCH_COMMIT)
            for number in range(24):
                await world.epoch(number, PARTITIONS)
                await trio.sleep(3.0)
            home = await world.home()
            stream = world.hosts[home].topics.topics[EPOCHS_TOPIC].partitions[0]
            assert 0 < stream.chunk_count < 16
            assert stream.log_start_offset > 50
            await world.kill(home)
            back.set()
            reply = await world.ask(commit, EPOCH_COMMIT)
            assert isinstance(reply, EpochCommitReply)
            assert reply.last_epoch == 5
            groups = [group for group in groups_in(await world._batches(0)) if group[1] == [b"left"]]
            assert groups == [(5, [b"left"])]

    in_virtual_time(main, 300.0)


def test_an_epoch_that_cannot_be_moved_leaves_room_in_the_topic_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is committed, so it stays; the others are told to wait before the topic takes nothing any more, and all go on
    when the stream is back.
    """
    small_topic_of_epochs(monkeypatch)
    monkeypatch.setattr(ReplicatedStaging, "move", lambda self, keys: None)
    back = refuse_left(monkeypatch)

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world, trio.open_nursery() as nursery:
            commit = await stage_for_left(world)
            nursery.start_soon(world.ask, commit, EPOCH_COMMIT)

            async def others() -> None:
                for number in range(40):
                    await world.epoch(number, PARTITIONS)
                    await trio.sleep(0.5)

            nursery.start_soon(others)
            while "stage: NotEnoughReplicas" not in world.outcomes:  # noqa: ASYNC110  in virtual time
                await trio.sleep(0.5)
            await trio.sleep(2.0)
            stream = world.hosts[await world.home()].topics.topics[EPOCHS_TOPIC].partitions[0]
            assert 20 <= stream.chunk_count < 32
            back.set()
        assert stream.chunk_count < 20, "what was behind the epoch is trimmed"

    in_virtual_time(main, 600.0)

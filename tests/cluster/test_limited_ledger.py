"""The ledger of groups while its stream lacks members, and what requests of groups are answered meanwhile."""

from __future__ import annotations

import uuid
from typing import Any

import trio
from kio.schema.errors import ErrorCode

from logstore.base.clock import Clock
from logstore.errors import StorageFailed
from logstore.format.topic_partition import TopicPartition
from logstore.kafka import codec
from logstore.kafka.groups.coordinator import GroupCoordinator
from logstore.kafka.groups.handlers import GroupHandlers, TopicIds
from logstore.kafka.groups.limited_ledger import LimitedLedger
from logstore.kafka.groups.offsets import OffsetStore
from logstore.kafka.groups.service import GroupService, OffsetSettings
from logstore.kafka.groups.settings import WRITE_LIMIT_S, GroupSettings
from logstore.kafka.wire import build
from logstore.testing.clock import ManualClock
from tests.cluster.test_coordination import wait
from tests.cluster.test_replicated_ledger import Owners
from tests.kafka.node import CALLER, over_the_wire
from tests.support.virtual_time import run_virtual

TOPIC_ID = uuid.UUID(int=7)


class TrioClock:
    """The time of the event loop."""

    def monotonic_s(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return int(trio.current_time() * 1000)


async def lead(owners: Owners, clock: Clock) -> LimitedLedger:
    """A host takes over, and has the ledger of groups."""
    front, ledger = await owners.lead()
    return LimitedLedger(ledger, lambda: front.stream.lacks_members, clock)


def groups(ledger: LimitedLedger) -> GroupHandlers:
    """All groups over a ledger, with one topic."""
    coordinator = GroupCoordinator(GroupSettings(), lambda: "m")
    look_up = {"t": (TOPIC_ID.hex, 9)}.get
    service = GroupService(coordinator, OffsetStore(ledger), look_up, OffsetSettings(), trio.current_time())
    return GroupHandlers(service, TrioClock(), wait, TopicIds(lambda _: None, lambda _: None))


async def commit(handlers: GroupHandlers, offset: int) -> ErrorCode:
    """Commit an offset without membership; returns the error code."""
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    values: dict[str, Any] = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": [part]}],
    }
    answer: Any = await handlers.offset_commit(over_the_wire(build(codec.request_type(8, 8), values)), CALLER)
    error: ErrorCode = answer.topics[0].partitions[0].error_code
    return error


def committed(handlers: GroupHandlers) -> int | None:
    """What the group has committed."""
    found = handlers.service.committed("g").of(TopicPartition("t", 0))
    return None if found is None else found.offset


async def test_nothing_is_put_while_members_are_known_to_be_missing() -> None:
    """Neither then nor later; the same entries are taken when there are members again. What waits stays."""
    owners, clock = Owners(), ManualClock()
    front, ledger = await owners.lead()
    front.stream.is_internal = True
    limited = LimitedLedger(ledger, lambda: front.stream.lacks_members, clock)
    waits = limited.put({"a": b"1"})
    front.stream.short(2)
    refused = limited.put({"b": b"2"})
    assert isinstance(refused.error, StorageFailed)
    assert "too few hosts" in str(refused.error)
    assert (waits.done, len(owners.owner.window), dict(limited.items())) == (False, 1, {"a": b"1"})
    front.stream.enough()
    owners.owner.ack()
    assert waits.done
    assert waits.error is None
    taken = limited.put({"b": b"2"})
    owners.owner.ack()
    assert taken.error is None
    assert dict((await owners.lead())[1].items()) == {"a": b"1", "b": b"2"}


async def test_what_waits_for_long_lets_no_more_wait() -> None:
    """Clients that were answered early send the same again and again: only what came within the limit is kept."""
    owners, clock = Owners(), ManualClock()
    limited = await lead(owners, clock)
    waiting = [limited.put({"a": b"1"})]
    clock.advance(int(WRITE_LIMIT_S * 1000) - 1)
    waiting.append(limited.put({"a": b"2"}))
    clock.advance(1)
    assert all(isinstance(limited.put({"a": b"3"}).error, StorageFailed) for _ in range(9))
    assert len(owners.owner.window) == 2
    owners.owner.ack()
    waiting.append(limited.put({"a": b"4"}))
    assert [each.done for each in waiting] == [True, False, False]
    owners.owner.ack(2)
    assert all(each.done and each.error is None for each in waiting)
    clock.advance(int(WRITE_LIMIT_S * 1000))
    assert not limited.put({"a": b"5"}).done


def test_a_request_waits_once_for_all_that_it_writes() -> None:
    """A deletion of many groups is answered in the time of one; they are deleted when the members are back."""

    async def story() -> None:
        owners = Owners()
        ledger = await lead(owners, TrioClock())
        for number in range(5):
            ledger.put({f"offset/g{number}/t/0": b'{"offset":1,"time":2,"topic":"ab"}'})
        owners.owner.ack(5)
        handlers = groups(ledger)
        handlers.service.recover_at_once(trio.current_time())
        began_s = trio.current_time()
        names = tuple(f"g{number}" for number in range(5))
        request = over_the_wire(build(codec.request_type(42, 2), {"groups_names": names}))
        answer: Any = await handlers.delete_groups(request, CALLER)
        assert trio.current_time() - began_s == WRITE_LIMIT_S
        assert {each.error_code for each in answer.results} == {ErrorCode.coordinator_not_available}
        owners.owner.ack(len(owners.owner.window))
        assert not dict(ledger.items())

    run_virtual(story)


def test_a_commit_that_waits_is_answered_in_time_and_applied_later() -> None:
    """As in Kafka: COORDINATOR_NOT_AVAILABLE after five seconds, and at once from then on. When the members are back,
    the first commit is there, and what the client sends again comes behind it.
    """

    async def story() -> None:
        owners = Owners()
        handlers = groups(await lead(owners, TrioClock()))
        began_s = trio.current_time()
        assert await commit(handlers, 5) is ErrorCode.coordinator_not_available
        assert trio.current_time() - began_s == WRITE_LIMIT_S
        assert await commit(handlers, 6) is ErrorCode.coordinator_not_available
        assert trio.current_time() - began_s == WRITE_LIMIT_S
        assert committed(handlers) is None
        owners.owner.ack(len(owners.owner.window))
        assert committed(handlers) == 5
        async with trio.open_nursery() as nursery:
            answers: list[ErrorCode] = []

            async def again() -> None:
                answers.append(await commit(handlers, 6))

            nursery.start_soon(again)
            await trio.sleep(1)
            owners.owner.ack()
        assert (answers, committed(handlers)) == ([ErrorCode.none], 6)

    run_virtual(story)

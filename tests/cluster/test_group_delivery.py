"""How the home of epochs reaches the owners of streams: whom it asks, when again, and what it tells the operator."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Put, Transaction
from logstore.base.metadata.local_watch import ChangeSignal
from logstore.cluster.epochs.group_delivery import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    REPORT_AFTER,
    UNDER_WAY_PAUSE_S,
    GroupDelivery,
)
from logstore.cluster.members.view import ClusterView
from logstore.cluster.streams.owner_calls import KnownOwners, OwnerCalls
from logstore.cluster.streams.stored_topics import StoredTopics
from logstore.cluster.streams.topics import ClusterTopics
from logstore.epochs.group_order import GroupOrder
from logstore.epochs.ledger_entries import Target
from logstore.errors import CairnError, GroupTooLarge, HostUnreachable, NotLeader, TryAgain, UnknownTopicOrPartition
from logstore.format.epoch_api import error_fields
from logstore.format.fields import encode_fields
from logstore.interfaces import Buffer
from logstore.log.ticket import Ticket
from logstore.testing.metadata_contract import committed
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.support.virtual_time import run_virtual

T = TypeVar("T")
TOPIC_ID = uuid.UUID(int=7)
CLUSTER = "mine"
OWN = schema.encode(schema.StoredCluster(cluster_id=CLUSTER))


class World:
    """A topic of two partitions, whose owners and answers a test sets."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.view = ChangeSignal()
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.topics = SimpleNamespace(topics={"out": SimpleNamespace(topic_id=TOPIC_ID)}, is_deleted=self.is_deleted)
        self.stored: StoredTopics | None = None
        self.reports = RecordedReports()
        self.restore: Callable[[], Awaitable[object]] = self.changed

    def owner_of(self, stream: str, /) -> str | None:
        return self.owners.get(stream)

    async def is_deleted(self, name: str, topic_id: uuid.UUID) -> bool:
        assert self.stored is not None
        return await self.stored.deleted(name, topic_id)

    async def changed(self) -> None:
        await self.view.wait()

    async def call(self, host: str, kind: int, payload: Sequence[Buffer], /) -> memoryview:
        self.asked.append(host)
        await trio.lowlevel.checkpoint()
        if isinstance(self.error, HostUnreachable):
            raise self.error
        error = None if self.error is None else error_fields(self.error)  # type: ignore[arg-type]
        return memoryview(encode_fields({"error": error}))


def target(partition: int) -> Target:
    """A stream of the topic."""
    return Target("out", str(TOPIC_ID), partition, 0)


def order(partition: int = 0) -> GroupOrder:
    """A group."""
    return GroupOrder(target(partition), "q", 1, 1, "", ("0:a",), b"", 0)


async def result(ticket: Ticket[T]) -> T:
    """What a ticket settles with. Raises its error."""
    settled = trio.Event()
    ticket.add_callback(lambda _: settled.set())
    await settled.wait()
    return ticket.result()


def run(story: Callable[[World, GroupDelivery], Awaitable[None]]) -> None:
    """In virtual time."""

    async def main() -> None:
        world, metadata = World(), SimulatedMetadata(Random(0), MetadataFaults())
        owners = cast(KnownOwners, SimpleNamespace(owner_of=world.owner_of, view=world))
        async with trio.open_nursery() as nursery:
            await nursery.start(metadata.serve)
            topics, store = cast(ClusterTopics, world.topics), metadata.store("h1")
            world.stored = StoredTopics(store, ClusterView(store, world.reports), CLUSTER)
            world.restore = partial(committed, store, Transaction((), (Put(schema.CLUSTER_KEY, OWN),)))
            delivery = GroupDelivery(topics, OwnerCalls(owners, world), world.reports)
            await nursery.start(delivery.run)
            await story(world, delivery)
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_a_stream_without_an_owner_is_not_asked() -> None:
    """Its group need not be read. The operator is told after some tries, and again after as many."""

    async def story(world: World, delivery: GroupDelivery) -> None:
        ready = delivery.ready("q", [target(0), target(1)], 1)
        while world.reports.names().count("group_waits") < 2 * 2:  # noqa: ASYNC110  time is virtual
            await trio.sleep(0.1)
        assert (ready.done, world.asked) == (False, [])
        world.owners[f"{TOPIC_ID.hex}/1"] = "b"
        assert await result(ready) == [target(1)]

    run(story)


@pytest.mark.parametrize(("error", "pause_s"), [(TryAgain("waits"), UNDER_WAY_PAUSE_S), (NotLeader("no"), MAX_PAUSE_S)])
def test_a_group_that_waits_for_members_is_sent_seldom(error: CairnError, pause_s: float) -> None:
    """It is under way at the owner, who may answer at once: to send it each second would cost what it takes for hours.
    An owner that is none any more is asked for more often, and a change of the cluster ends any pause.
    """

    async def story(world: World, delivery: GroupDelivery) -> None:
        world.owners[f"{TOPIC_ID.hex}/0"] = "a"
        world.error = error
        assert not await result(delivery.append(order()))
        for tries, expected_s in ((1, FIRST_PAUSE_S), (4, 8 * FIRST_PAUSE_S), (20, pause_s)):
            began_s = trio.current_time()
            assert await result(delivery.ready("q", [target(0)], tries)) == [target(0)]
            assert trio.current_time() - began_s == pytest.approx(expected_s)
        ready = delivery.ready("q", [target(0)], 20)
        await trio.sleep(0.1)
        assert not ready.done
        world.view.notify()
        assert await result(ready) == [target(0)]
        world.error = None
        assert await result(delivery.append(order()))

    run(story)


def test_an_owner_that_cannot_do_it_now_is_asked_again() -> None:
    """Whether it is away or says so; what it never takes is an error. Tries are counted from the last answer on."""

    async def story(world: World, delivery: GroupDelivery) -> None:
        world.owners[f"{TOPIC_ID.hex}/0"] = "a"
        for error in (HostUnreachable("away"), NotLeader("not here")):
            world.error = error
            for _ in range(REPORT_AFTER - 1):
                assert not await result(delivery.append(order()))
            assert world.reports.names() == []
            world.error = None
            assert await result(delivery.append(order()))
        world.error = GroupTooLarge("too large")
        with pytest.raises(GroupTooLarge):
            await result(delivery.append(order()))
        world.error = NotLeader("not here")
        for _ in range(REPORT_AFTER):
            assert not await result(delivery.append(order()))
        assert world.reports.names() == ["group_waits"]

    run(story)


def test_a_topic_that_is_not_known_is_asked_for() -> None:
    """It may be deleted: the metadata store says so, and then the group has nowhere to go. A store that was emptied
    says nothing: the group is sent again later.
    """

    async def story(world: World, delivery: GroupDelivery) -> None:
        world.topics.topics.clear()
        assert await result(delivery.ready("q", [target(0)], 3)) == [target(0)]
        assert not await result(delivery.append(order()))
        await world.restore()
        with pytest.raises(UnknownTopicOrPartition, match="has been deleted"):
            await result(delivery.append(order()))

    run(story)

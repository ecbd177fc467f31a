"""Registered readers of a cluster: any host answers, the loss of their home loses none, and owners trim behind them.

Hosts are those of `epochs_world`, in virtual time; each has its part in the readers as a sidecar has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest
import trio

from logstore.cluster.engine import ClusterEngine
from logstore.cluster.epochs import reader_holds
from logstore.cluster.epochs.reader_holds import ReaderHolds
from logstore.cluster.epochs.readers_home import ReadersHome
from logstore.cluster.epochs.replicated_ledger import LedgerHome, LedgerServices, ReplicatedLedger
from logstore.cluster.streams.owner_calls import HOLDERS, TRIM_LIMIT, OwnerCalls, fields_of
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import GROUPS_TOPIC
from logstore.errors import OffsetOutOfRange, TryAgain, UnknownReader
from logstore.format.fields import encode_fields
from logstore.format.reader_api import (
    LOG_START,
    AcknowledgeRequest,
    DescribeReadersRequest,
    ReaderDescription,
    ReaderOffset,
    ReaderReply,
    ReaderRequest,
    RegisterReaderReply,
    RegisterReaderRequest,
    RemoveReaderRequest,
)
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, BrokerSettings
from logstore.kafka.reader_routing import ReaderRouting
from logstore.log.readers import HeldRecords, HoldLimits
from tests.cluster.epochs_world import TOPIC, EpochsWorld, MemoryCalls, epochs_world
from tests.support.virtual_time import run_virtual

LIMITS = HoldLimits(max_bytes=1000, max_idle_ms=3_600_000)
LIMIT_S = 120.0
"""Virtual."""


@dataclass
class ReadersHost:
    """A host's part in the readers."""

    home: ReadersHome
    holds: ReaderHolds
    routing: ReaderRouting


class ReadersWorld:
    """A cluster, and a client that asks any host."""

    def __init__(self, world: EpochsWorld) -> None:
        self.world = world
        self.hosts: dict[str, ReadersHost] = {}

    def join(self, name: str) -> None:
        """A host that runs takes part."""
        host, world = self.world.hosts[name], self.world
        running = host.running
        calls = MemoryCalls(world, name)
        calls.handlers = host.handlers
        services = LedgerServices(host.topics, host.reads, running.store, world.clock, world.cluster.reports)
        groups = LedgerHome(GROUPS_TOPIC, services, lambda stream: ReplicatedLedger(stream, world.clock))
        owners = OwnerCalls(running.host, calls)
        home = ReadersHome(host.topics, groups, LIMITS, world.clock.wall_ms, world.cluster.reports)
        holds = ReaderHolds(host.topics, owners, lambda: home.stream, running.store)
        engine = ClusterEngine(host.reads._engine, host.topics, host.reads)
        broker = Broker(engine, world.clock, BrokerSettings(auto_create_topics=False))
        routing = ReaderRouting(broker, host.topics, home, holds, owners)
        routing.serve(calls)
        home.answer_owners(calls)
        holds.answer_home(calls)

        async def serve(ledger: ReplicatedLedger) -> None:
            await home.serve(ledger, lambda group, stream: None)

        host.nursery.start_soon(groups.run, serve)
        self.hosts[name] = ReadersHost(home, holds, routing)

    async def ask(self, request: ReaderRequest, name: str) -> ReaderReply:
        """Ask one host, as its front does."""
        return await self.hosts[name].routing._ask(request)

    async def kill(self, name: str) -> None:
        """The host is gone."""
        del self.hosts[name]
        await self.world.kill(name)

    async def home(self) -> str:
        """The host that has the readers, once there is one."""
        while True:
            for name, host in self.hosts.items():
                if host.home.readers is not None:
                    return name
            await trio.sleep(0.01)

    async def owner(self, partition: int) -> tuple[str, ReplicatedStream]:
        """The host that leads a stream, and the stream there."""
        while True:
            for name in self.hosts:
                topic = self.world.hosts[name].topics.topics.get(TOPIC)
                if topic is not None and topic.partitions[partition].is_leader:
                    return name, topic.partitions[partition]
            await trio.sleep(0.01)

    async def write(self, partition: int, records: int) -> None:
        """Records, one in each batch, acknowledged."""
        _, stream = await self.owner(partition)
        acknowledged = trio.Event()
        for number in range(records):
            now_ms = self.world.clock.wall_ms()
            ticket = stream.append(encode_batch([Record(0, now_ms, None, b"%d" % number)]), now_ms=now_ms)
        ticket.add_callback(lambda _: acknowledged.set())
        await acknowledged.wait()


@asynccontextmanager
async def readers_world() -> AsyncIterator[ReadersWorld]:
    """Three hosts, and a topic of three partitions."""
    async with epochs_world("a", "b", "c", partitions=3) as world:
        made = ReadersWorld(world)
        for name in "abc":
            made.join(name)
        yield made


def run(test: Callable[[ReadersWorld], Awaitable[None]]) -> None:
    """Run a test in virtual time."""

    async def main() -> None:
        async with readers_world() as world:
            await test(world)

    run_virtual(main, limit_s=LIMIT_S)


def offsets(*values: int) -> tuple[ReaderOffset, ...]:
    """Positions in the topic's streams."""
    return tuple(ReaderOffset(TOPIC, partition, value) for partition, value in enumerate(values))


def described(reply: ReaderReply) -> ReaderDescription:
    """A description."""
    assert isinstance(reply, ReaderDescription)
    return reply


def test_any_host_answers_and_the_loss_of_the_home_loses_no_reader() -> None:
    """What was registered on one host is described, acknowledged and removed on others, also when the home is gone."""

    async def test(world: ReadersWorld) -> None:
        await world.write(0, 5)
        registered = await world.ask(RegisterReaderRequest("r", "", offsets(2, LOG_START, 0)), "a")
        assert registered == RegisterReaderReply(offsets(2, 0, 0))
        for name in "abc":
            assert described(await world.ask(DescribeReadersRequest("r", ""), name)).streams == offsets(2, 0, 0)
        await world.kill(await world.home())
        first, second = sorted(world.hosts)
        assert described(await world.ask(DescribeReadersRequest("r", ""), first)).streams == offsets(2, 0, 0)
        await world.ask(AcknowledgeRequest("r", (ReaderOffset(TOPIC, 0, 4),)), second)
        await trio.sleep(3)  # acknowledgements are made durable
        assert described(await world.ask(DescribeReadersRequest("", ""), first)).names == ("r",)
        assert described(await world.ask(DescribeReadersRequest("r", ""), second)).streams == offsets(4, 0, 0)
        await world.ask(RemoveReaderRequest("r"), first)
        with pytest.raises(UnknownReader):
            await world.ask(DescribeReadersRequest("r", ""), second)

    run(test)


def test_positions_are_checked_with_the_owners_of_streams() -> None:
    """A position that the owner does not have is refused, wherever the readers are."""

    async def test(world: ReadersWorld) -> None:
        await world.write(1, 3)
        with pytest.raises(OffsetOutOfRange):
            await world.ask(RegisterReaderRequest("r", "", (ReaderOffset(TOPIC, 1, 4),)), "a")
        await world.ask(RegisterReaderRequest("r", "", (ReaderOffset(TOPIC, 1, 3),)), "b")

    run(test)


def test_owners_trim_no_further_than_readers_hold() -> None:
    """Up to the lowest position; a reader that keeps too much is released, and loses its hold."""

    async def test(world: ReadersWorld) -> None:
        await world.write(0, 9)
        await world.ask(RegisterReaderRequest("r", "", (ReaderOffset(TOPIC, 0, 4),)), "c")
        name, stream = await world.owner(0)
        holds = world.hosts[name].holds
        small, large = HeldRecords(10, 0), HeldRecords(2000, 0)
        assert await holds.trim_limit(stream, 3, lambda _: small) == 3
        assert await holds.trim_limit(stream, 8, lambda _: HeldRecords(10, world.world.clock.wall_ms())) == 4
        assert await holds.trim_limit(stream, 8, lambda _: large) == 8
        released = described(await world.ask(DescribeReadersRequest("r", ""), "a"))
        assert (released.streams, released.released) == ((), (ReaderOffset(TOPIC, 0, 4),))

    run(test)


def test_an_owner_that_has_not_heard_of_the_topic_of_groups_trims_nothing() -> None:
    """Whether there is one, the metadata store says: as long as there is none, nobody is asked, and nobody registered;
    then a reader may hold what the owner would trim.
    """

    async def test(world: ReadersWorld) -> None:
        await world.write(0, 9)
        name, stream = await world.owner(0)
        host = world.world.hosts[name]
        late = ReaderHolds(host.topics, cast(OwnerCalls, None), lambda: None, host.running.store)
        nothing = HeldRecords(0, 0)
        assert await late.trim_limit(stream, 8, lambda _: nothing) == 8
        await world.ask(RegisterReaderRequest("r", "", (ReaderOffset(TOPIC, 0, 4),)), "c")
        with pytest.raises(TryAgain, match="has not heard yet of topic '__cairn_groups'"):
            await late.trim_limit(stream, 8, lambda _: nothing)
        assert await world.hosts[name].holds.trim_limit(stream, 8, lambda _: nothing) == 4

    run(test)


def test_a_home_that_was_replaced_lets_nobody_trim() -> None:
    """It does not know who has registered since; an owner that still asks it hears nothing, or that it is none."""

    async def test(world: ReadersWorld) -> None:
        await world.write(0, 9)
        await world.ask(RegisterReaderRequest("other", "", (ReaderOffset(TOPIC, 1, 0),)), "a")
        former, cluster = await world.home(), world.world.cluster
        replaced = world.hosts.pop(former)
        for name in world.hosts:
            cluster.network.cut(former, name)
        cluster.metadata.cut_off(former)
        await world.home()
        await world.ask(RegisterReaderRequest("r", "", (ReaderOffset(TOPIC, 0, 4),)), min(world.hosts))
        assert replaced.home.readers is not None, "it does not know"
        _, stream = await world.owner(0)
        topic_id, _, partition = stream.stream.partition("/")
        fields = {"topic_id": topic_id, "partition": int(partition), "log_start": 0, "wanted": 8, "held": []}
        handlers, asked = world.world.hosts[former].handlers, memoryview(encode_fields(fields))
        for kind in (HOLDERS, TRIM_LIMIT):
            with pytest.raises(TryAgain):
                fields_of(b"".join(await handlers[kind]("a", asked)))

    run(test)


async def registration_beside_a_trim(world: ReadersWorld, *, slow_answer_s: float, slow_store_s: float) -> None:
    """A stream is trimmed while somebody registers in front of that place. `slow_answer_s`: how long the home's answer
    about holders is on its way; `slow_store_s`: how long the trim is being registered.
    """
    await world.write(0, 9)
    await world.ask(RegisterReaderRequest("other", "", (ReaderOffset(TOPIC, 1, 0),)), "a")
    name, stream = await world.owner(0)
    holds, call = world.hosts[name].holds, world.hosts[name].holds._owners.call

    async def slow(stream: str, kind: int, payload: Sequence[Buffer]) -> memoryview:
        answer = await call(stream, kind, payload)
        await trio.sleep(slow_answer_s)
        return answer

    holds._owners.call = slow  # type: ignore[method-assign]
    asked, trimmed = trio.Event(), trio.Event()

    async def trim() -> None:
        asked.set()
        limit = await holds.trim_limit(stream, 8, lambda _: HeldRecords(0, 0))
        world.world.cluster.metadata.faults.max_delay_s = slow_store_s
        stream.trim(limit)
        trimmed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trim)
        await (trimmed if slow_store_s > 1 else asked).wait()
        with pytest.raises(OffsetOutOfRange):
            await world.ask(RegisterReaderRequest("r", "", (ReaderOffset(TOPIC, 0, 4),)), "b")
    world.world.cluster.metadata.faults.max_delay_s = 0.002
    await trio.sleep(slow_store_s + 1)
    assert stream.log_start_offset == 8


@pytest.mark.parametrize(("slow_answer_s", "slow_store_s"), [(0.5, 0.002), (0.0, 20.0)])
def test_a_registration_is_told_of_a_trim_under_way(slow_answer_s: float, slow_store_s: float) -> None:
    """Whose owner has asked before, and waits for the answer, or for the metadata store: the records count as gone."""

    async def test(world: ReadersWorld) -> None:
        await registration_beside_a_trim(world, slow_answer_s=slow_answer_s, slow_store_s=slow_store_s)

    run(test)


@pytest.mark.parametrize("bug", ["trims_that_ask", "trims_that_are_registered"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that tells the home nothing of the one or the other kind of trim."""
    if bug == "trims_that_ask":
        monkeypatch.setattr(reader_holds, "_wait_for_trims", no_wait)
        slow_answer_s, slow_store_s = 0.5, 0.002
    else:
        monkeypatch.setattr(ReplicatedStream, "start_asked", property(lambda stream: stream.log_start_offset))
        slow_answer_s, slow_store_s = 0.0, 20.0

    async def test(world: ReadersWorld) -> None:
        await registration_beside_a_trim(world, slow_answer_s=slow_answer_s, slow_store_s=slow_store_s)

    with pytest.RaisesGroup(pytest.RaisesExc(pytest.fail.Exception), flatten_subgroups=True, allow_unwrapped=True):
        run(test)


async def no_wait(trims: Sequence[trio.Event]) -> None:
    """Answer at once."""

"""A cluster of two hosts loses either: commits of groups, joins and epochs go on, whenever its own topics were made.

Hosts are those of `epochs_world`, in virtual time; each coordinates groups as a sidecar does, over the real ledger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import pytest
import trio
from kio.schema.errors import ErrorCode

from logstore.base.metadata import schema
from logstore.cluster.epochs.replicated_ledger import LedgerHome, LedgerServices, ReplicatedLedger
from logstore.cluster.members.departures import Departures
from logstore.cluster.members.view import stream_name
from logstore.cluster.streams.topics import EPOCHS_TOPIC, GROUPS_TOPIC
from logstore.errors import CairnError
from logstore.format.topic_partition import TopicPartition
from logstore.kafka.groups.generations import KeptGenerations
from logstore.kafka.groups.limited_ledger import LimitedLedger
from logstore.kafka.groups.offsets import CommittedOffset, OffsetStore
from logstore.log.ticket import Ticket
from tests.cluster.epochs_world import TOPIC, EpochsWorld, epochs_world
from tests.kafka.groups.driver import GROUP, SESSION_MS, Client, World
from tests.support.virtual_time import run_virtual

T = TypeVar("T")
LIMIT_S = 240.0
"""Virtual."""
SOON_S = 15.0
"""A takeover, with the lease of the lost host in it."""
PARTITIONS = 2
PLACE = TopicPartition(TOPIC, 0)
OWN = (GROUPS_TOPIC, EPOCHS_TOPIC)


@dataclass
class Groups:
    """The groups of a host that coordinates them."""

    offsets: OffsetStore
    driven: World
    ledger: ReplicatedLedger


async def settled(ticket: Ticket[T]) -> T:
    """The outcome of a ticket."""
    done = trio.Event()
    ticket.add_callback(lambda _: done.set())
    await done.wait()
    return ticket.result()


class TwoHosts:
    """The cluster, and its clients."""

    def __init__(self, world: EpochsWorld) -> None:
        self.world = world
        self.groups: dict[str, Groups] = {}
        self.epochs = self.commits = 0

    async def start(self, name: str) -> None:
        """A host starts, for the first time or again."""
        await self.world.start(name)
        self.coordinate(name)

    def coordinate(self, name: str) -> None:
        """A host that runs coordinates groups while it owns their topic."""
        host, world = self.world.hosts[name], self.world
        services = LedgerServices(host.topics, host.reads, host.running.store, world.clock, world.cluster.reports)
        home = LedgerHome(GROUPS_TOPIC, services, lambda stream: ReplicatedLedger(stream, world.clock))

        async def serve(ledger: ReplicatedLedger) -> None:
            limited = LimitedLedger(ledger, lambda: ledger.stream.lacks_members, world.clock)
            offsets, driven = OffsetStore(limited), World(KeptGenerations(limited, world.clock), self.commits * 1000)
            for _ in (*offsets.load(), *driven.coordinator.recover(lambda: driven.now_s)):
                pass
            self.groups[name] = Groups(offsets, driven, ledger)
            try:
                await trio.sleep_forever()
            finally:
                self.groups.pop(name, None)

        host.nursery.start_soon(home.run, serve)

    async def kill(self, name: str) -> None:
        """A host is gone, with what it had not synced."""
        await self.world.kill(name)

    async def with_groups(self, work: Callable[[Groups], Awaitable[T]]) -> T:
        """Ask the coordinator, again and again, also another one."""
        while True:
            for host in list(self.world.hosts.values()):
                host.topics.groups_topic()
            for groups in list(self.groups.values()):
                try:
                    with trio.move_on_after(1):
                        return await work(groups)
                except CairnError:
                    continue
            await trio.sleep(0.05)

    async def lose_in_turn(self, names: Iterable[str]) -> None:
        """Lose each of these hosts, when nothing lacks a copy, and go on without it; then it is back."""
        for name in names:
            await self.until_whole()
            await self.kill(name)
            await self.go_on()
            await self.start(name)

    async def go_on(self) -> None:
        """A commit of a group, a join of a new member, and an epoch: each is acknowledged, and nothing is lost."""
        with trio.fail_after(SOON_S):
            await self.with_groups(self._commit)
            await self.with_groups(self._join)
            await self.world.epoch(self.epochs, PARTITIONS)
        self.epochs += 1

    async def _commit(self, groups: Groups) -> None:
        known = groups.offsets.of_group(GROUP)
        assert not self.commits or known[PLACE].offset >= self.commits
        position = CommittedOffset(self.commits + 1, -1, "", self.world.clock.wall_ms(), "")
        await settled(groups.offsets.commit(GROUP, "consumer", {PLACE: position}))
        self.commits += 1

    async def _join(self, groups: Groups) -> None:
        """The sessions of former members have expired; a new one joins alone, and is told its assignment."""
        driven = groups.driven
        driven.advance(SESSION_MS / 1000 + 1)
        member = Client(driven, f"m{self.commits}").join()
        driven.advance(1)
        member.joined()
        member.sync({member.member_id: b"all"})
        found = await settled(member.syncing)
        if found.error is not ErrorCode.none:
            raise CairnError(found.error.name)
        assert found.assignment == b"all"

    async def until_whole(self) -> None:
        """Until each chunk has its copies on hosts that live, as many as there are hosts for: any may be lost again."""
        topics = next(iter(self.world.hosts.values())).topics
        for name in (*OWN, TOPIC):
            topic = topics.topic(name)
            copies = min(topic.replicas, len(self.world.hosts))
            for number in range(len(topic.partitions)):
                await self._until_whole(stream_name(topic.topic_id.hex, number), copies)

    async def _until_whole(self, stream: str, copies: int) -> None:
        with trio.fail_after(60):
            while True:
                running = await self.world.cluster.owner(stream)
                try:
                    chunks = running.host.registration(stream).chunks
                except CairnError:
                    chunks = ()
                held = [sum(member.host in self.world.hosts for member in chunk.members) for chunk in chunks]
                if held and min(held) >= copies:
                    return
                await trio.sleep(0.1)

    async def until_drained(self, name: str) -> None:
        """Drain a host, and wait until no chunk of any topic names it."""
        running = self.world.hosts[name].running
        await Departures(running.host.view, running.store).drain(name)
        with trio.fail_after(60):
            for topic in self.world.hosts[name].topics.topics.values():
                for stream in topic.partitions:
                    while await self._is_named(stream.stream, name):  # noqa: ASYNC110  time is virtual
                        await trio.sleep(0.1)

    async def _is_named(self, stream: str, name: str) -> bool:
        found = await self.world.hosts[name].running.host.read_registration(stream)
        return any(member.host == name for chunk in found.chunks for member in (*chunk.members, *chunk.candidates))

    def numbers(self, name: str) -> tuple[int, str]:
        """The copies of a topic, and how many of them it needs."""
        known: schema.StoredTopic = next(iter(self.world.hosts.values())).running.host.view.topics[name].topic
        return known.replicas, known.settings["min.insync.replicas"]


def run(test: Callable[[TwoHosts], Awaitable[None]], factor: int = 3) -> None:
    """Run a test in virtual time. `factor`: `default-replication-factor`."""

    async def main() -> None:
        async with epochs_world("a", "b", partitions=PARTITIONS, factor=factor) as world:
            hosts = TwoHosts(world)
            for name in "ab":
                hosts.coordinate(name)
            await test(hosts)

    run_virtual(main, limit_s=LIMIT_S)


@pytest.mark.parametrize("lives", ["both", "a", "b"])
def test_a_cluster_of_two_goes_on_when_either_host_is_lost(lives: str) -> None:
    """Its own topics were made while both lived, or while one did: either may be lost then, one after the other, and
    has all that was acknowledged when it is back. With a third host two of three are needed, and one of the three may
    be lost.
    """

    async def test(hosts: TwoHosts) -> None:
        if lives != "both":
            other = "b" if lives == "a" else "a"
            await hosts.kill(other)
            await hosts.go_on()
            await hosts.start(other)
        await hosts.go_on()
        assert {hosts.numbers(name) for name in OWN} == {(3, "1")}
        await hosts.lose_in_turn(("a", "b", "a"))
        await hosts.start("c")
        await hosts.world.cluster.until(lambda: {hosts.numbers(name) for name in OWN} == {(3, "2")})
        await hosts.lose_in_turn("abc")
        await hosts.world.check(hosts.epochs, PARTITIONS)

    run(test)


def test_of_a_cluster_of_three_one_host_acknowledges_nothing() -> None:
    """Its own topics were made while two of the hosts were away, which the cluster has all the same."""

    async def test(hosts: TwoHosts) -> None:
        await hosts.start("c")
        for lost in "ab":
            await hosts.kill(lost)
        view = hosts.world.hosts["c"].running.host.view
        await hosts.world.cluster.until(lambda: view.members.keys() == {"c"})
        with pytest.raises(trio.TooSlowError):
            await hosts.go_on()
        assert hosts.numbers(GROUPS_TOPIC) == (3, "2")
        await hosts.start("a")
        await hosts.go_on()

    run(test)


def test_a_host_of_a_cluster_with_two_copies_is_replaced() -> None:
    """With `default-replication-factor` 2 no copy is missing in a cluster of two hosts, a third host takes the place of
    one that is drained, and of the two that stay either may be lost.
    """

    async def test(hosts: TwoHosts) -> None:
        await hosts.go_on()
        assert {hosts.numbers(name) for name in OWN} == {(2, "1")}
        await hosts.until_whole()
        await hosts.start("c")
        await hosts.until_drained("a")
        await hosts.kill("a")
        assert {hosts.numbers(name) for name in OWN} == {(2, "1")}
        await hosts.lose_in_turn("bc")
        await hosts.world.check(hosts.epochs, PARTITIONS)

    run(test, factor=2)

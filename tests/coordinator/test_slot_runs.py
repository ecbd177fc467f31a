"""Copies of log chunks and checkpoints on the same hosts, in virtual time: neither takes what the other has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio

from logstore.base.copy_slots import SLOT_MS
from logstore.base.metadata import schema
from logstore.base.metadata.interface import Condition, Delete, Put, Transaction
from logstore.cluster.copies import slot_fields
from logstore.cluster.copies.copies import Copies
from logstore.cluster.copies.copy_speed import AWAY_S
from logstore.cluster.copies.slot_calls import NOBODY_S, SlotCounter, SlotRequests
from logstore.cluster.streams.owner_calls import ASK_SLOTS, fields_of
from logstore.errors import HostUnreachable
from logstore.interfaces import Buffer
from logstore.replica.copy_tokens import CopyTokens, CopyWish
from logstore.replica.messages import Message, ReadEntries
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from scheduler.coordinator.copy_slots import UNTOLD_MS
from scheduler.coordinator.service import CoordinatorSettings
from scheduler.coordinator.standby.running import ClusterSide
from scheduler.peace.online import Settings
from scheduler.topology import Server, Topology, both_ways
from tests.coordinator.standby_world import LEASE_S, HostLife, World
from tests.support.virtual_time import run_virtual

LOOK_S = 0.02
MEMBERS = "abc"
SETTINGS = CoordinatorSettings(Settings(gather_ms=5))


def narrow(disk: int | None = 1) -> Topology:
    """Three hosts that copy, and a fourth that only writes checkpoints, in two racks; the link between is narrow."""
    servers = [Server(name, "left" if name in "ab" else "right", 2, 2, disk) for name in "abcd"]
    return Topology(servers, both_ways("left", "right", 2), switches=["left", "right"])


class NoLinks:
    """Copies are not carried out here."""

    def send(self, host: str, message: Message) -> None:
        """See Links."""

    def is_reachable(self, host: str) -> bool:
        """See Links."""
        return True

    def is_stranger_to(self, host: str) -> bool:
        """See Links."""
        return False

    def deals(self, host: str) -> bool:
        """See Links."""
        return True


@dataclass
class Network:
    """Calls between the hosts: late, lost, or cut off."""

    random: Random
    desks: dict[str, SlotCounter] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    max_delay_s: float = 0.05
    lost: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    answered_s: dict[str, float] = field(default_factory=dict)
    """When each host was given an answer that counts last, or started."""


class HostCalls:
    """See Calls: those of one host."""

    def __init__(self, name: str, network: Network) -> None:
        self._name = name
        self._network = network

    async def call(self, host: str, kind: int, payload: Sequence[Buffer]) -> memoryview:
        """See Calls."""
        network = self._network
        assert kind == ASK_SLOTS
        network.asked[host] += 1
        await self._pass(host)
        answer = memoryview(b"".join(await network.desks[host].serve(self._name, memoryview(b"".join(payload)))))
        await self._pass(host)
        if slot_fields.read_answer(fields_of(answer)) is not None:
            network.answered_s[self._name] = trio.current_time()
        return answer

    async def _pass(self, host: str) -> None:
        network = self._network
        await trio.sleep(network.random.uniform(0, network.max_delay_s))
        if {host, self._name} & network.cut or network.random.random() < network.lost:
            await trio.sleep(network.random.uniform(0, 3))
            raise HostUnreachable("the network is cut here")
        if host not in network.desks:
            raise HostUnreachable("it is not there")


class CopyingHost(HostLife):
    """A host with a coordinator that copies chunks from some hosts."""

    def __init__(self, name: str, start: str, store: Any, world: SlotWorld) -> None:
        super().__init__(name, start, store, world)
        self.world = world
        self.copies = Copies(NoLinks())
        self.copy_tokens = CopyTokens()
        self.desk = SlotCounter(self, lambda: 0.0 if self._lease is None else self._lease.held_for_s)
        self.sources: set[str] = set()
        self.copying = trio.CancelScope()

    @property
    def live(self) -> Mapping[str, schema.StoredMember]:
        """The hosts that live, as every host knows at once."""
        return {
            name: schema.StoredMember(
                disk="d", start=life.start, node_id=1, link=self.world.links[name], rack="",
                addresses={},
            )
            for name, life in self.world.hosts.items()
        }  # fmt: skip

    @property
    def side(self) -> ClusterSide:
        """See HostLife."""
        return ClusterSide(self, self._store, slots=self.desk)

    async def run(self) -> None:
        """Until it is killed."""
        with self.copying:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(super().run)
                nursery.start_soon(self._copy)
                if self.world.asks:
                    nursery.start_soon(SlotRequests(self, self._store, HostCalls(self.name, self.world.network)).run)

    async def _copy(self) -> None:
        while True:
            for source in self.sources:
                self.copies.ask(source, ReadEntries("t/0", "d", ord(source), 0, 1 << 20, for_copy=True))
            await trio.sleep(0.1)

    def fast(self) -> list[str]:
        """The hosts from which it may copy fast at this moment."""
        now_s = trio.current_time()
        return [source for source in sorted(self.sources) if self.copies.flow.speed.may_be_fast(source, now_s)]


class SlotWorld(World):
    """Hosts that copy, and writers of checkpoints."""

    life: Callable[..., Any] = CopyingHost

    def __init__(self, service: SimulatedMetadata, nursery: trio.Nursery, seed: int) -> None:
        super().__init__(service, nursery)
        self.network = Network(Random(seed))
        self.settings = SETTINGS
        self.links = {name: f"10.0.0.{number}:9101" for number, name in enumerate(MEMBERS)}
        self.asks = True
        self.writing: dict[tuple[str, int, int], list[str]] = {}
        """Chunks that writers write now."""
        self.waits_s: list[float] = []
        """How long chunks waited for their go."""

    def start(self, *names: str) -> None:
        """Start hosts."""
        super().start(*names)
        for name in names:
            self.network.desks[name] = self.host(name).desk
            self.network.answered_s[name] = trio.current_time()

    def host(self, name: str) -> CopyingHost:
        """A host that runs."""
        life = self.hosts[name]
        assert isinstance(life, CopyingHost)
        return life

    def kill(self, name: str) -> None:
        """The process of a host ends at once."""
        self.host(name).copying.cancel()
        super().kill(name)
        del self.network.desks[name]

    def copy(self, *pairs: str) -> None:
        """Copies flow from now on: "ab" from a to b."""
        for pair in pairs:
            source, target = tuple(pair)
            if target in self.hosts:
                self.host(target).sources.add(source)

    async def checkpoints(self, writer: str, number: int, random: Random, most_s: float = 2.0) -> None:
        """One writer writes some chunks, one after another."""
        for each in range(number):
            name, since_s = f"{writer}{each}", trio.current_time()
            body = {"name": name, "writer": writer, "chunks": 1, "replicas": 2, "placement": ["anywhere", "anywhere"]}
            view = await self.ask("POST", "/v1/requests", body)
            while not view["go"]:
                await trio.sleep(0.05)
                view = await self.ask("GET", f"/v1/requests/{name}")
            self.waits_s.append(trio.current_time() - since_s)
            go = view["go"][0]
            self.writing[name, 0, go["attempt"]] = go["hosts"]
            await trio.sleep(random.uniform(0.1, most_s))
            del self.writing[name, 0, go["attempt"]]
            await self.ask("POST", f"/v1/requests/{name}/chunks/0/done", {"attempt": go["attempt"]})

    def used(self, topology: Topology) -> Counter[str]:
        """What chunks that are written, and copies that are fast, use now, as those see it who move the bytes."""
        used: Counter[str] = Counter()
        chains = [(hosts, False) for hosts in self.writing.values()]
        heard = [name for name, at_s in self.network.answered_s.items() if trio.current_time() - at_s < AWAY_S]
        chains += [([source, name], True) for name in heard if name in self.hosts for source in self.host(name).fast()]
        for hosts, is_copy in chains:
            if is_copy:
                used[f"disk {hosts[0]}"] += 1
            for source, target in pairwise(hosts):
                used.update((f"send {source}", f"receive {target}", f"disk {target}"))
                left, right = (topology.servers[topology.index[host]].rack for host in (source, target))
                if left != right:
                    used[f"link {left}>{right}"] += 1
        return used

    async def watch(self, topology: Topology) -> None:
        """Assert at every moment that nothing is used more than it carries."""
        most: dict[str, int] = {f"link {link.source}>{link.target}": link.capacity for link in topology.links}
        for server in topology.servers:
            disk = server.receive + server.send if server.disk is None else server.disk
            most |= {f"send {server.name}": server.send, f"receive {server.name}": server.receive}
            most[f"disk {server.name}"] = disk
        while True:
            over = {what: count for what, count in self.used(topology).items() if count > most[what]}
            assert not over, f"{over} at {trio.current_time():.3f}: {self.writing}"
            await trio.sleep(LOOK_S)


def in_a_slot_world(
    test: Callable[[SlotWorld], Awaitable[None]],
    topology: Topology,
    seed: int = 0,
    *,
    hosts: str = MEMBERS,
    asks: bool = True,
    faults: MetadataFaults | None = None,
) -> None:
    """Run a test in virtual time; at every moment nothing is used more than it carries."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            service = SimulatedMetadata(Random(seed), faults or MetadataFaults(max_delay_s=0.01))
            await nursery.start(service.serve)
            world = SlotWorld(service, nursery, seed)
            world.networks = dict.fromkeys(hosts, topology)
            world.asks = asks
            world.start(*hosts)
            await test(world)
            await trio.sleep(1)  # a host that has just begun reads the store, which would end with it
            nursery.cancel_scope.cancel()

    run_virtual(main, seed=seed)


async def slots_of(world: SlotWorld, pairs: Sequence[str], seconds: float) -> dict[str, float]:
    """For how long each pair of hosts had a slot within some seconds."""
    had: dict[str, float] = dict.fromkeys(pairs, 0.0)
    end_s = trio.current_time() + seconds
    while trio.current_time() < end_s:
        for pair in pairs:
            source, target = tuple(pair)
            had[source + target] += LOOK_S * (source in world.host(target).fast())
        await trio.sleep(LOOK_S)
    return had


@pytest.mark.parametrize("disk", [1, 2, None])
@pytest.mark.parametrize("seed", range(3))
def test_copies_and_checkpoints_share_hosts_and_neither_starves(disk: int | None, seed: int) -> None:
    """Four writers that always have a chunk to write, and three pairs of hosts that always have one to copy: nothing is
    given twice; each chunk and each slot has its turn within the bound of the queue.
    """
    topology, pairs = narrow(disk), ("ab", "bc", "ca")

    async def test(world: SlotWorld) -> None:
        await world.leader()
        world.copy(*pairs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.watch, topology)
            await trio.sleep(1)
            for number, writer in enumerate("abcd"):
                nursery.start_soon(world.checkpoints, writer, 60, Random(seed * 10 + number))
            had = await slots_of(world, pairs, 60)
            nursery.cancel_scope.cancel()
        longest_s = (UNTOLD_MS + SLOT_MS) / 1000 + 0.5 + 0.3  # of a slot with a go; of a chunk with its reports 2.3 s
        bound_s = 2 * (3 + 3 + 1) * longest_s  # there are three other writers, and three pairs
        assert max(world.waits_s) <= bound_s
        assert len(world.waits_s) >= 30
        assert all(seconds >= 60 / (bound_s + longest_s) for seconds in had.values()), had

    in_a_slot_world(test, topology, seed)


def test_without_checkpoints_copies_are_nearly_always_fast() -> None:
    """A slot that ends gives way to the next one of its pair at once."""

    async def test(world: SlotWorld) -> None:
        await world.leader()
        world.copy("ab")
        await trio.sleep(2)
        had = await slots_of(world, ["ab"], 20)
        assert had["ab"] >= 18

    in_a_slot_world(test, narrow())


QUICK = (0, 1, 7)


@pytest.mark.parametrize(
    "seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60) if seed not in QUICK)]
)
def test_nothing_is_given_twice_whatever_happens_to_coordinators(seed: int) -> None:
    """Coordinators are killed, cut off from the metadata store and from hosts, started again within their lease, and
    resign; calls are lost and late. As long as the hosts hear of a coordinator within AWAY_S, no disk and no link has
    more chunks and fast copies than tokens.
    """
    topology = narrow(1 + seed % 2)

    async def test(world: SlotWorld) -> None:
        random = Random(seed)
        world.network.lost = 0.05
        await world.leader()
        world.copy("ab", "bc", "ca", "ba")
        await trio.sleep(2)

        async def harm() -> None:
            while True:
                await trio.sleep(random.uniform(0, 5))
                name = random.choice(MEMBERS)
                match random.randrange(6):
                    case 0 | 1 if name in world.hosts and len(world.hosts) == 3:
                        world.kill(name)
                        await trio.sleep(random.choice((0.1, 0.6, LEASE_S + 1)))
                        world.start(name)
                        world.copy(*(pair for pair in ("ab", "bc", "ca", "ba") if pair[1] == name))
                    case 2:
                        world.service.cut_off(name)
                        await trio.sleep(random.uniform(0, 5))
                        world.service.heal(name)
                    case 3:
                        world.network.cut.add(name)
                        await trio.sleep(random.uniform(0, 4))
                        world.network.cut.discard(name)
                    case 4:
                        await world.hosts[name].standing.resign()
                        world.kill(name)
                        world.start(name)
                    case _:
                        pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.watch, topology)
            nursery.start_soon(harm)
            async with trio.open_nursery() as writers:
                for number, writer in enumerate("abcd"):
                    writers.start_soon(world.checkpoints, writer, 25, Random(seed * 10 + number), 1.0)
            nursery.cancel_scope.cancel()
        assert len(world.waits_s) == 100

    in_a_slot_world(test, topology, seed, faults=MetadataFaults(max_delay_s=0.05, lost_answers=0.02))


async def until_slot(world: SlotWorld, target: str) -> None:
    """Wait until copies to a host have a slot that has just begun."""
    speed = world.host(target).copies.flow.speed
    while (speed.next_end_s(trio.current_time()) or 0.0) < trio.current_time() + 1.0:  # noqa: ASYNC110 - time alone
        await trio.sleep(LOOK_S)


@pytest.mark.parametrize("harm", ["resign", "cut off", "again"])
def test_who_leads_next_gives_nothing_that_a_slot_holds(harm: str) -> None:
    """A leader with slots resigns; or is cut off from the metadata store, and gives slots as long as it may; or starts
    again within its lease: chunks that the next one lets begin use no disk that a copy is still fast on.
    """
    topology = narrow()

    async def test(world: SlotWorld) -> None:
        first = await world.leader()
        source, target = (name for name in MEMBERS if name != first)
        world.copy(source + target)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.watch, topology)
            for number, writer in enumerate("abcd"):
                nursery.start_soon(world.checkpoints, writer, 99, Random(number))
            for _ in range(4):
                await until_slot(world, target)
                leader = await world.leader()
                if harm == "cut off":
                    world.service.cut_off(leader)
                    await trio.sleep(LEASE_S + 3)
                    world.service.heal(leader)
                elif harm == "again":
                    world.kill(leader)
                    world.start(leader)
                    world.copy(source + target)
                else:
                    await world.hosts[leader].standing.resign()
                    assert await world.leader() != leader
                    world.kill(leader)
                    world.start(leader)
                    world.copy(source + target)
            nursery.cancel_scope.cancel()

    in_a_slot_world(test, topology)


@pytest.mark.parametrize("offset_s", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
def test_a_leader_that_is_cut_off_gives_slots_only_for_as_long_as_nobody_else_can_lead(offset_s: float) -> None:
    """Nothing is to be stored, so the leader does not notice; and a chunk waits for whoever leads next."""
    topology = narrow()

    async def test(world: SlotWorld) -> None:
        leader = await world.leader()
        source, target = (name for name in MEMBERS if name != leader)
        world.copy(source + target)
        await until_slot(world, target)
        await trio.sleep(offset_s)
        world.service.cut_off(leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.watch, topology)
            while await world.leader() == leader:  # noqa: ASYNC110 - many things may change it
                await trio.sleep(LOOK_S)
            for writer in "abcd":
                nursery.start_soon(world.checkpoints, writer, 9, Random(0))
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    in_a_slot_world(test, topology)


@pytest.mark.parametrize("is_last", [True, False])
def test_where_one_copy_is_left_a_slot_goes_before_checkpoints(is_last: bool) -> None:
    """With eight checkpoints that wait, a slot waits for the chunk under way alone, or for all of them."""

    async def test(world: SlotWorld) -> None:
        await world.leader()
        for number in range(9):
            body = {"name": f"r{number}", "writer": "d", "chunks": 1, "replicas": 1, "placement": ["same-rack:0"]}
            await world.ask("POST", "/v1/requests", body)
        if is_last:
            world.host("b").copy_tokens.follow_plan(is_planned=False)
            wish = CopyWish(1, "c", ("a",), live=1)
            assert world.host("b").copy_tokens.take("t/0", wish) is not None
            await trio.sleep(2)
        world.copy("ac")
        await trio.sleep(2)
        for number in range(9):
            assert world.host("c").fast() == (["a"] if is_last and number else [])
            assert (await world.ask("GET", f"/v1/requests/r{number}"))["go"] or is_last
            await world.ask("POST", f"/v1/requests/r{number}/chunks/0/done", {"attempt": 1})
            await trio.sleep(0.5)
            if is_last:
                assert world.host("c").fast() == ["a"]
                return
        assert world.host("c").fast() == ["a"]

    in_a_slot_world(test, narrow())


def test_hosts_that_are_not_in_the_network_copy_as_before() -> None:
    """Copies from and to them are as fast as appends let them, and hold nothing of the plan."""
    servers = [Server(name, "rack", 1, 1, 1, address=f"{name}.example:50010") for name in ("a", "x", "y")]

    async def test(world: SlotWorld) -> None:
        world.links["c"] = "y.example:9101"
        leader = await world.leader()
        world.copy("ab", "ba", "ac")
        await trio.sleep(2)
        assert world.host("b").fast() == ["a"]
        assert world.host("a").fast() == ["b"]
        status = await world.ask("GET", "/v1/status")
        assert [one["request"] for one in status["queue"]] == ["copies from a to y"]
        assert world.network.asked[leader] > 0
        assert "cairn_coordinator_copy_slots" in (await world.at(leader, "GET", "/metrics")).body.decode()

    in_a_slot_world(test, Topology(servers))


@pytest.mark.parametrize("had_slots", [True, False])
def test_a_leader_of_an_earlier_version_is_not_asked(had_slots: bool) -> None:
    """Where such a one leads, copies go as before: at once, or AWAY_S after the one that gave slots has gone."""

    async def test(world: SlotWorld) -> None:
        store = world.service.store("x")
        if had_slots:
            await world.leader()
            for name in "abc":
                world.kill(name)
            await trio.sleep(LEASE_S + 1)
        lease = await store.grant_lease(600)
        entry = schema.StoredLeader(host="old", start="s", url="http://old:1")
        await store.commit(
            Transaction(
                (Condition(schema.LEADER_KEY, 0),), (Put(schema.LEADER_KEY, schema.encode(entry), lease.lease_id),)
            )
        )
        world.start("a", "b")
        world.network.asked.clear()
        world.copy("ab")
        await trio.sleep(1)
        assert world.host("b").fast() == ([] if had_slots else ["a"])
        await trio.sleep(AWAY_S + 1)
        assert world.host("b").fast() == ["a"]
        assert not world.network.asked
        await store.commit(Transaction((), (Delete(schema.LEADER_KEY),)))
        await world.leader()
        await trio.sleep(NOBODY_S + 1)
        assert sum(world.network.asked.values()) > 0

    in_a_slot_world(test, narrow(), hosts="abc" if had_slots else "")


@pytest.mark.parametrize("harm", ["network", "store"])
def test_without_a_coordinator_copies_go_on(harm: str) -> None:
    """The leader is behind a partition, or can store nothing: the least rate for AWAY_S, then as before; with its next
    answer by slots again.
    """

    async def test(world: SlotWorld) -> None:
        leader = await world.leader()
        source, target = (name for name in MEMBERS if name != leader)
        world.copy(source + target)
        await until_slot(world, target)
        if harm == "network":
            world.network.cut.add(leader)
        else:
            world.service.stop()
        await trio.sleep(LEASE_S + SLOT_MS / 1000)  # as long as a slot lasts that was given while the lease did
        assert world.host(target).fast() == []
        await trio.sleep(AWAY_S - LEASE_S - SLOT_MS / 1000 - 0.1)
        assert world.host(target).fast() == []
        await trio.sleep(LEASE_S + SLOT_MS / 1000 + 1)
        assert world.host(target).fast() == [source]
        assert world.host(target).copies.flow.speed.held(trio.current_time()) == []
        world.network.cut.clear()
        world.service.start()
        await until_slot(world, target)

    in_a_slot_world(test, narrow())

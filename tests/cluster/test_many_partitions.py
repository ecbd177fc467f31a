"""Thousands of partitions: looks at all of them give way, what was found is kept, and what concerns many of them is
asked of the metadata store together.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from logstore.base.metadata import schema
from logstore.base.metadata.interface import MetadataStore, Put, Transaction
from logstore.cluster.claims import CLAIMS_AT_ONCE
from logstore.cluster.members import election
from logstore.cluster.members.placement import (
    KEPT_PLACES,
    LOOKS_AT_ONCE,
    MAX_SETTLING,
    SETTLE_S,
    Placement,
)
from logstore.cluster.members.places import NO_NODE, Placed
from logstore.cluster.members.view import KnownHead, stream_name
from logstore.cluster.streams.many_registrations import FEW, ManyRegistrations
from logstore.cluster.streams.registration_requests import RegistrationRequests
from logstore.cluster.walks import Walk
from logstore.log.topics import TopicConfig
from logstore.replica.copy_tokens import CopyTokens, CopyWish
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import ChunkRegistration, Member, OwnerId, Prefix, StreamHead, StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations, chunks_prefix, swap_transaction
from logstore.testing.metadata_contract import committed
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.cluster.memory import MemoryCluster, simulated
from tests.support.limits import PATIENCE_S

TOPIC_ID = uuid.UUID(int=7)
HOSTS = ("a", "b", "c")
PARTITIONS = 2 * LOOKS_AT_ONCE + 100
MANY = 120
"""Partitions of a topic in a cluster of three hosts."""


# ---- places


def member(number: int) -> schema.StoredMember:
    """A host, in its only life."""
    return schema.StoredMember(
        disk=f"disk-{number}", start="1", node_id=number, link="l:1", rack="", addresses={"P": f"h{number}:1"}
    )


class ManyStreams:
    """What a host knows of the streams of a topic, and how often it was asked for each."""

    def __init__(self, partitions: int) -> None:
        self.members: dict[str, schema.StoredMember] = {name: member(number) for number, name in enumerate(HOSTS, 1)}
        self.live: Mapping[str, schema.StoredMember] = dict(self.members)
        self.away: set[str] = set()
        self.owners_asked = 0
        self.hands_asked: list[str] = []
        self.revision = 0
        self.heads: dict[str, KnownHead] = {}
        for partition in range(partitions):
            self.open(partition, HOSTS[partition % len(HOSTS)])

    def open(self, partition: int, owner: str, epoch: int = 2, *, takes_appends: bool = True) -> None:
        """A stream's owner has opened a chunk, or has claimed the stream only."""
        self.revision += 1
        hosts = (owner, *(name for name in HOSTS if name != owner))
        chunk = ChunkRegistration(
            epoch if takes_appends else epoch - 1, 0, tuple(Member(name, self.members[name].disk) for name in hosts)
        )
        head = StreamHead(3, 2, epoch, OwnerId(owner, "1"), chunk, 1)
        self.heads[stream_name(TOPIC_ID.hex, partition)] = KnownHead(head, self.revision)

    def owner_of(self, stream: str) -> str | None:
        self.owners_asked += 1
        known = self.heads.get(stream)
        return None if known is None or election.is_owner_gone(known.head, self.live) else known.head.owner.host

    def head(self, stream: str) -> KnownHead | None:
        return self.heads.get(stream)

    def may_answer(self, host: str) -> bool:
        return host not in self.away

    def is_changing_hands(self, stream: str) -> bool:
        self.hands_asked.append(stream)
        known, owner = self.heads.get(stream), self.owner_of(stream)
        return known is not None and not (owner and self.may_answer(owner) and known.head.takes_appends)


@dataclass
class ManyPartitions:
    """Implements `ServedTopic`: streams that this host leads as soon as it owns them."""

    count: int
    name: str = "wide"
    topic_id: uuid.UUID = TOPIC_ID
    overrides: Mapping[str, str] = field(default_factory=dict)
    config: TopicConfig = field(default_factory=TopicConfig)
    internal: bool = False

    @property
    def partitions(self) -> list[Any]:
        return [Led()] * self.count


class Led:
    """A stream whose host takes appends."""

    is_readable = True


def placement_of(host: ManyStreams) -> Placement:
    """What host `c` tells clients."""
    return Placement(host, lambda: host.members, {}, lambda: None, 3)


async def test_places_are_worked_out_once_for_each_change() -> None:
    """In turns of LOOKS_AT_ONCE, with the answers of single looks; again only where a registration is another one, or
    for all when the hosts are others.
    """
    host = ManyStreams(PARTITIONS)
    placement, steps = placement_of(host), list[int]()

    async def step(count: int) -> None:
        steps.append(count)

    found = await placement.places(TOPIC_ID, PARTITIONS, step)
    assert found == [placement.placed(TOPIC_ID, partition) for partition in range(PARTITIONS)]
    assert found[:2] == [Placed(1, 2, (1, 2, 3), (1, 2, 3)), Placed(2, 2, (2, 1, 3), (2, 1, 3))]
    assert steps == [LOOKS_AT_ONCE, LOOKS_AT_ONCE, 100]
    host.owners_asked = 0
    assert await placement.places(TOPIC_ID, PARTITIONS) == found
    assert host.owners_asked == 0
    host.open(5, "b")
    assert (await placement.places(TOPIC_ID, PARTITIONS))[5] == Placed(2, 2, (2, 1, 3), (2, 1, 3))
    assert host.owners_asked == 1
    host.live = {name: found for name, found in host.live.items() if name != "b"}  # its address refuses connections
    assert {placed.leader for placed in await placement.places(TOPIC_ID, PARTITIONS)} == {1, 3, NO_NODE}
    assert host.owners_asked == 1 + PARTITIONS
    del host.members["b"]
    assert (await placement.places(TOPIC_ID, PARTITIONS))[0] == Placed(1, 2, (1, 3, 2), (1, 3), (2,))


async def test_few_places_are_kept() -> None:
    """However many topics there are; and those of a topic that is asked for again are right."""
    host = ManyStreams(1)
    placement = placement_of(host)
    for number in range(3):
        await placement.places(uuid.UUID(int=100 + number), KEPT_PLACES // 2)
    assert sum(len(kept.revisions) for kept in placement._kept.values()) == placement._kept_places <= KEPT_PLACES
    assert await placement.places(TOPIC_ID, 2) == [Placed(1, 2, (1, 2, 3), (1, 2, 3)), Placed(NO_NODE, 0, (), ())]


def test_who_asks_about_many_partitions_waits_for_those_that_move() -> None:
    """Of streams that have settled none is asked about. One that moves is waited for; when a host goes that owned a
    third, nobody waits.
    """

    async def main() -> None:
        host, topic = ManyStreams(PARTITIONS), ManyPartitions(PARTITIONS)
        placement = placement_of(host)

        async def settled_after_s() -> float:
            host.hands_asked.clear()
            begun_s = trio.current_time()
            await placement.settle([topic])
            return trio.current_time() - begun_s

        assert (await settled_after_s(), host.hands_asked) == (0, [])
        moving = PARTITIONS - 1
        host.open(moving, "a", 3, takes_appends=False)
        assert await settled_after_s() >= SETTLE_S
        assert set(host.hands_asked) == {stream_name(TOPIC_ID.hex, moving)}
        host.open(moving, "b", 3)
        assert await settled_after_s() == 0
        assert not placement._settling_s, "it is forgotten"
        host.away.add("b")
        assert await settled_after_s() == 0
        assert len(host.hands_asked) > MAX_SETTLING

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# ---- walks


async def test_a_walk_gives_way() -> None:
    """It looks at a few in each turn of the event loop; begun again meanwhile, it looks at all of them once more."""
    looked: list[int] = []
    walk = Walk(lambda: range(95), looked.append, at_once=10)
    walk.begin()
    assert looked == list(range(10)), "the first ones at once"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(walk.run)
        with trio.fail_after(PATIENCE_S):
            while len(looked) < 50:
                before = len(looked)
                await trio.lowlevel.checkpoint()
                assert len(looked) - before <= 10
            walk.begin()
            marked = len(looked)
            while len(looked) < 2 * 95:
                await trio.lowlevel.checkpoint()
            assert Counter(looked[marked:]).keys() == set(range(95))
            walk.begin()
            while len(looked) < 3 * 95:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert Counter(looked) == dict.fromkeys(range(95), 3), "and then it rests"
        nursery.cancel_scope.cancel()


class Turns(trio.abc.Instrument):
    """How many streams a host has made its own in each turn of the event loop."""

    def __init__(self, owners: Mapping[str, object]) -> None:
        self._owners = owners
        self._before = 0
        self.claims = Counter[int]()

    def before_io_wait(self, timeout: float) -> None:
        """See Instrument: a turn is over."""
        self.claims[len(self._owners) - self._before] += 1
        self._before = len(self._owners)


def test_many_streams_are_claimed_in_turns() -> None:
    """A host that claims a hundred streams serves other requests in between."""

    async def test(cluster: MemoryCluster) -> None:
        turns = Turns(cluster.hosts["a"].host.owners)
        trio.lowlevel.add_instrument(turns)
        streams = await cluster.create_topic(partitions=MANY, replicas=1)
        await cluster.until(lambda: len(list(owners_of(cluster, streams))) == MANY, "all have owners")
        trio.lowlevel.remove_instrument(turns)
        assert max(turns.claims) == CLAIMS_AT_ONCE

    simulated(test, "a")


# ---- registrations


FIRST = StreamRegistration(3, 2).claimed(OwnerId("a", "1")).opened((Member("a", "x"), Member("b", "y")), 0)


def with_sealed_chunks(count: int) -> StreamRegistration:
    """A registration of some sealed chunks and an open one."""
    members = (Member("a", "x"), Member("b", "y"))
    sealed = tuple(ChunkRegistration(n + 1, n * 10, members, Prefix(64 << 20, n * 10 + 10, n)) for n in range(count))
    return replace(StreamRegistration(3, 2), epoch=count, owner=OwnerId("a", "1"), chunks=sealed).opened(
        members, count * 10
    )


class Reads:
    """Many registrations as a host has them read, on a store of its own; all topics but `gone` are known."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.answers: dict[str, RegistrationRead | SwapAnswer] = {}
        self._taken = trio.Event()
        self.requests = RegistrationRequests(StoredRegistrations(store), self.take, RecordedReports())
        self.many = ManyRegistrations(store, self.requests, self.take, lambda stream: not stream.startswith("gone/"))

    def take(self, answer: RegistrationRead | SwapAnswer) -> None:
        """See ManyRegistrations."""
        self.answers[answer.stream] = answer
        self._taken.set()

    async def arrived(self, *streams: str) -> None:
        """Wait until these streams, and no others, have answers."""
        while self.answers.keys() != set(streams):
            self._taken = trio.Event()
            await self._taken.wait()

    async def ask(self, *streams: str) -> int:
        """Ask, and wait for all answers; returns how many requests of the store they took."""
        before = self.store.statistics.calls
        self.many.ask_all(streams)
        await self.arrived(*streams)
        return self.store.statistics.calls - before


async def plant(store: MetadataStore, stream: str, registration: StreamRegistration) -> None:
    """Store a registration."""
    await committed(store, swap_transaction(None, SwapRegistration(stream, 0, registration)))


def with_reads(test: Any) -> None:
    """Run a test on a simulated store, in virtual time."""

    async def main() -> None:
        metadata = SimulatedMetadata(Random(0), MetadataFaults(max_delay_s=0.002))
        async with trio.open_nursery() as nursery:
            await nursery.start(metadata.serve)
            reads = Reads(metadata.store("a"))
            nursery.start_soon(reads.requests.run)
            nursery.start_soon(reads.many.run)
            await test(reads, metadata.store("b"))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_many_registrations_are_read_together() -> None:
    """A start of a host with many replicas costs a few requests, and finds what reads of each stream would."""

    async def test(reads: Reads, other: MetadataStore) -> None:
        streams = [f"t{number % 3}/{number}" for number in range(300)]
        for number, stream in enumerate(streams):
            await plant(other, stream, with_sealed_chunks(number % 3) if number % 3 else FIRST)
        await plant(other, "others/0", FIRST)
        assert await reads.ask(*streams) == 2 + 2 + 1, "pages of heads, of chunks, and of heads that have changed"
        single = StoredRegistrations(other)
        for stream in (*streams[:4], streams[-1]):
            assert reads.answers[stream] == await single.read(ReadRegistration(stream))
            assert reads.requests.registrations.known(stream) == reads.answers[stream]

    with_reads(test)


def test_what_cannot_be_read_together_is_read_alone() -> None:
    """Streams without a registration, and of damaged chunks: their own reads say what is wrong with them."""

    async def test(reads: Reads, other: MetadataStore) -> None:
        streams = [f"t/{number}" for number in range(FEW + 2)]
        for stream in streams[2:]:
            await plant(other, stream, FIRST)
        await plant(other, streams[0], with_sealed_chunks(2))
        (page, *_) = (await other.page(chunks_prefix(streams[0]))).entries
        await committed(other, Transaction((), (Put(page.key, b"damaged"),)))
        reads.many.ask_all(streams)
        await reads.arrived(*streams[1:])
        assert reads.answers[streams[1]].registration is None
        assert streams[0] not in reads.answers
        await committed(other, Transaction((), (Put(page.key, page.value),)))
        await reads.arrived(*streams)

    with_reads(test)


def test_the_streams_of_a_topic_that_is_gone_are_found_together() -> None:
    """Two requests say of all that they are gone. If anything of the topic is registered, each is asked for."""

    async def test(reads: Reads, other: MetadataStore) -> None:
        streams = [f"gone/{number}" for number in range(FEW)]
        assert await reads.ask(*streams) == 2
        assert {answer.registration for answer in reads.answers.values()} == {None}
        reads.answers.clear()
        await plant(other, streams[0], FIRST)
        assert await reads.ask(*streams) > FEW
        assert reads.answers[streams[0]].registration == FIRST
        assert {reads.answers[stream].registration for stream in streams[1:]} == {None}

    with_reads(test)


# ---- a cluster


def calls_of(cluster: MemoryCluster) -> dict[str, int]:
    """Requests of each host to the metadata store so far."""
    return {name: running.store.statistics.calls for name, running in cluster.hosts.items()}


def owners_of(cluster: MemoryCluster, streams: list[str]) -> Iterator[str]:
    """The hosts that own streams and take appends."""
    for stream in streams:
        yield from (name for name, running in cluster.hosts.items() if running.host.owns(stream))


@pytest.mark.parametrize("count", [MANY, pytest.param(2_000, marks=pytest.mark.slow)])
def test_a_topic_of_many_partitions_lives_and_goes(count: int) -> None:
    """Created, every partition has an owner, each host a share; a host that is killed is replaced for all that it
    owned, and comes back with its copies; deleted, the topic leaves nothing on any disk, for a few requests of each
    host.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=count)
        await cluster.until(lambda: len(list(owners_of(cluster, streams))) == count, "all have owners")
        shares = Counter(owners_of(cluster, streams))
        assert min(shares.values()) >= count // 6
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(cluster.append, stream, b"0")
        begun_s = trio.current_time()
        await cluster.kill("c")
        await cluster.until(lambda: len(list(owners_of(cluster, streams))) == count, "the others own what c did")
        assert trio.current_time() - begun_s < 20
        c = await cluster.start("c")
        await cluster.at_rest()
        assert c.files.stored.chunks
        before = calls_of(cluster)
        await cluster.hosts["a"].host.topics.delete("t", streams[0].partition("/")[0])
        replicas = [running.host._replica for running in cluster.hosts.values()]
        await cluster.until(
            lambda: not any(replica.has_anything_of(stream) for replica in replicas for stream in streams),
            "every copy is removed",
        )
        used = {name: calls - before[name] for name, calls in calls_of(cluster).items()}
        assert max(used.values()) < MANY // 3, used
        assert not list(cluster.hosts["a"].host.owners)

    simulated(test, *HOSTS)


# ---- copies


def test_copies_to_each_host_are_counted_as_they_change() -> None:
    """Whatever wishes and goes come and go, the count is that of all of them, but for those of one stream."""
    random, tokens = Random(0), CopyTokens(limit=3)
    for number in range(500):
        stream = f"t/{random.randrange(12)}"
        wish = CopyWish(random.randrange(3), random.choice(HOSTS), ("x",) * random.randrange(2), 1)
        if random.random() < 0.6:
            tokens.take(stream, wish)
        else:
            tokens.give_back(stream)
        if number % 50 == 0:
            tokens.follow_plan(is_planned=number % 100 == 0)
        for without in ("", stream):
            wanted = Counter(go.target for each, go in tokens.held.items() if each != without)
            wanted.update(wish.target for each, wish in tokens.waiting.items() if each != without)
            assert tokens.targets(without) == wanted

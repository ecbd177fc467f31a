"""Owners are spread evenly over the hosts of a cluster, in virtual time: new topics, lost, drained and new hosts, and
hosts of the version before, which claimed streams by a hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
import trio

from logstore.base.metadata import schema
from logstore.cluster.members.departures import Departures
from logstore.cluster.members.view import stream_name, topic_id_of
from logstore.replica.appending import OwnerLimits
from tests.cluster.memory import LIMITS, MemoryCluster, simulated

SMALL_CHUNKS = OwnerLimits(min_chunk_ms=0, suspect_ms=1_500, repair_timeout_ms=1_000, chunk_bytes=4)
SETTLED_S = 60.0
"""Ten seconds without a change, ten until a look, and a stream in 0.1 s."""


def owned(cluster: MemoryCluster, streams: Iterable[str]) -> dict[str, str]:
    """Which host owns each stream, of those that are owned."""
    found = {}
    for stream in streams:
        for name, running in cluster.hosts.items():
            if running.host.owns(stream):
                assert stream not in found, "two hosts say that they own it"
                found[stream] = name
    return found


def counts(cluster: MemoryCluster, streams: Iterable[str]) -> Counter[str]:
    """How many of some streams each host owns."""
    found = Counter(dict.fromkeys(cluster.hosts, 0))
    found.update(owned(cluster, streams).values())
    return found


def spread(cluster: MemoryCluster, streams: Iterable[str]) -> int:
    """By how many streams the host that owns most of them is in front of the one that owns least."""
    found = counts(cluster, streams).values()
    return max(found) - min(found)


def is_open(cluster: MemoryCluster, stream: str) -> bool:
    """Whether all hosts know of the open chunk of a stream."""
    known = [running.host.head(stream) for running in cluster.hosts.values()]
    return all(each is not None and each.head.open_chunk is not None for each in known)


async def create(cluster: MemoryCluster, partitions: int, name: str = "t", replicas: int = 3) -> list[str]:
    """A new topic, whose streams all have owners."""
    streams = await cluster.create_topic(name, partitions, replicas)
    for stream in streams:
        await cluster.owner(stream)
    await cluster.until(lambda: all(is_open(cluster, stream) for stream in streams))
    return streams


async def append_all(cluster: MemoryCluster, streams: Iterable[str], data: bytes = b"0") -> None:
    """A batch for each stream, whoever owns it."""
    for stream in streams:
        await cluster.append(stream, data)


async def start_all(cluster: MemoryCluster, hosts: str, earlier: str) -> None:
    """Start hosts, some of which are of the version before, and wait until they know each other."""
    cluster.network.earlier.update(earlier)
    for name in hosts:
        await cluster.start(name)
    await cluster.until(lambda: all(len(each.view.members) == len(hosts) for each in cluster.hosts.values()))


def takeovers(cluster: MemoryCluster) -> int:
    """How often hosts have become owners so far."""
    return cluster.reports.names().count("stream_owned")


async def check_still(cluster: MemoryCluster) -> None:
    """Nothing moves any more."""
    before = takeovers(cluster)
    await trio.sleep(SETTLED_S)
    assert takeovers(cluster) == before


def test_a_hundred_partitions_on_three_hosts() -> None:
    """Each host leads a third, and is the first replica of what it leads, which Kafka's tools call preferred."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await create(cluster, 100)
        assert sorted(counts(cluster, streams).values()) == [33, 33, 34]
        for stream, name in owned(cluster, streams).items():
            known = cluster.hosts[name].host.head(stream)
            assert known is not None
            assert known.head.open_chunk is not None
            assert known.head.open_chunk.members[0].host == name
        assert takeovers(cluster) == 100, "each was claimed once"
        await check_still(cluster)

    simulated(test, "a", "b", "c")


@pytest.mark.parametrize("seed", range(4))
def test_topics_that_are_made_at_the_same_time(seed: int) -> None:
    """At different hosts, with whatever names: each of them and all together are spread evenly, whichever host hears of
    them when.
    """

    async def test(cluster: MemoryCluster) -> None:
        first = await create(cluster, 3, "first")
        assert counts(cluster, first) == {"a": 1, "b": 1, "c": 1}
        topics = {f"topic-{number}": f"{cluster.random.getrandbits(128):032x}" for number in range(9)}

        async def make(number: int, name: str) -> None:
            await trio.sleep(cluster.random.random() / 20)
            topic = schema.StoredTopic(topic_id=topics[name], partitions=1 + number % 4, replicas=3, settings={})
            await cluster.hosts["abc"[number % 3]].host.topics.create(name, topic)

        async with trio.open_nursery() as nursery:
            for number, name in enumerate(topics):
                nursery.start_soon(make, number, name)
        found = [[stream_name(of, each) for each in range(1 + number % 4)] for number, of in enumerate(topics.values())]
        everything = first + [stream for streams in found for stream in streams]
        for stream in everything:
            await cluster.owner(stream)
        assert all(spread(cluster, streams) <= 1 for streams in (*found, everything))

    simulated(test, "a", "b", "c", seed=seed)


def test_fewer_partitions_than_hosts() -> None:
    """Topics of two partitions on five hosts: those that have nothing of the one get something of the next."""

    async def test(cluster: MemoryCluster) -> None:
        everything: list[str] = []
        for number in range(5):
            streams = await create(cluster, 2, f"t{number}")
            assert sorted(counts(cluster, streams).values()) == [0, 0, 0, 1, 1]
            everything += streams
            assert spread(cluster, everything) <= 1
        assert set(counts(cluster, everything).values()) == {2}

    simulated(test, "a", "b", "c", "d", "e")


def test_a_topic_gets_more_partitions() -> None:
    """The new ones go to the hosts that have fewer, and no other moves."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await create(cluster, 4)
        before = owned(cluster, streams)
        topic_id = topic_id_of(streams[0])
        topics = cluster.hosts["a"].host.topics
        await topics.alter("t", topic_id, lambda topic: replace(topic, partitions=9))
        more = [stream_name(topic_id, number) for number in range(9)]
        for stream in more:
            await cluster.owner(stream)
        assert set(counts(cluster, more).values()) == {3}
        await check_still(cluster)
        assert owned(cluster, streams) == before

    simulated(test, "a", "b", "c")


def test_a_host_is_lost_and_comes_back() -> None:
    """What it owned is spread over the others, and nothing else moves; it gets its share again, and that is all."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await create(cluster, 30)
        await append_all(cluster, streams)
        before = owned(cluster, streams)
        await cluster.kill("b")
        await append_all(cluster, streams)
        assert counts(cluster, streams) == {"a": 15, "c": 15}
        await check_still(cluster)
        after = owned(cluster, streams)
        assert all(after[stream] == name for stream, name in before.items() if name != "b")
        moved = takeovers(cluster)
        await cluster.start("b")
        await trio.sleep(SETTLED_S)
        assert counts(cluster, streams) == {"a": 10, "b": 10, "c": 10}
        assert takeovers(cluster) - moved == 10
        await check_still(cluster)
        await append_all(cluster, streams)

    simulated(test, "a", "b", "c")


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_a_host_that_comes_back_moves_little_besides_what_it_lacks(lost: str) -> None:
    """Beside a topic of forty partitions lie five of one. The host lacks fifteen streams and gets as many; all but one
    are of the large topic, since fourteen are the host's share of it.
    """

    async def test(cluster: MemoryCluster) -> None:
        small = [stream for number in range(5) for stream in await create(cluster, 1, f"small-{number}")]
        streams = small + await create(cluster, 40)
        await append_all(cluster, streams)
        await cluster.kill(lost)
        await append_all(cluster, streams)
        await check_still(cluster)
        before, moved = owned(cluster, small), takeovers(cluster)
        await cluster.start(lost)
        await trio.sleep(SETTLED_S)
        assert set(counts(cluster, streams).values()) == {15}
        assert takeovers(cluster) - moved == 15
        after = owned(cluster, small)
        assert sum(after[stream] != name for stream, name in before.items()) == 1
        await check_still(cluster)

    simulated(test, "a", "b", "c")


def test_a_host_is_drained() -> None:
    """Its streams are spread over those that stay, and nothing else moves. A new topic gives it nothing; when it is to
    stay after all, it gets its share again.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await create(cluster, 24)
        await append_all(cluster, streams)
        assert set(counts(cluster, streams).values()) == {6}
        before = owned(cluster, streams)
        departures = Departures(cluster.hosts["b"].view, cluster.hosts["b"].store)
        await departures.drain("a")
        await trio.sleep(SETTLED_S)
        assert counts(cluster, streams) == {"a": 0, "b": 8, "c": 8, "d": 8}
        after = owned(cluster, streams)
        assert all(after[stream] == name for stream, name in before.items() if name != "a")
        more = await create(cluster, 3, "more")
        assert counts(cluster, more) == {"a": 0, "b": 1, "c": 1, "d": 1}
        await check_still(cluster)
        await departures.undrain("a")
        for number in range(20):  # chunks end, and a is chosen for the next ones
            await append_all(cluster, streams, b"%04d" % number)
            await trio.sleep(5)
        assert set(counts(cluster, streams).values()) == {6}

    simulated(test, "a", "b", "c", "d", limits=SMALL_CHUNKS)


def test_a_host_joins_later() -> None:
    """It gets its share of new topics at once, and of what there is as chunks end, but for what it is never chosen for
    a chunk of: one stream here.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await create(cluster, 24)
        await append_all(cluster, streams)
        assert set(counts(cluster, streams).values()) == {8}
        await cluster.start("d")
        more = await create(cluster, 4, "more")
        assert set(counts(cluster, more).values()) == {1}
        for number in range(20):  # chunks end, and d is chosen for some of the next ones
            await append_all(cluster, streams, b"%04d" % number)
            await trio.sleep(5)
        assert spread(cluster, streams) <= 2
        assert counts(cluster, streams)["d"] >= 5
        await check_still(cluster)

    simulated(test, "a", "b", "c", limits=SMALL_CHUNKS)


@pytest.mark.parametrize("earlier", ["a", "ab", "abc"])
@pytest.mark.parametrize("hosts", ["abc", "abcd"])
def test_hosts_of_two_versions(earlier: str, hosts: str) -> None:
    """Nobody takes a stream back and forth: new topics, and a host that is lost and comes back, end with everything
    where it stays. When the last host is updated, owners are evened out, in as few moves as that takes.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await create(cluster, 30)
        await append_all(cluster, streams)
        await trio.sleep(SETTLED_S)
        await check_still(cluster)
        for name in (hosts[-1], earlier[0]):
            await cluster.kill(name)
            await append_all(cluster, streams)
            await cluster.start(name)
            await append_all(cluster, streams, b"full")
            await trio.sleep(SETTLED_S)
            await check_still(cluster)
        for name in earlier:
            await cluster.stop(name)
            await append_all(cluster, streams)
            cluster.network.earlier.discard(name)
            await cluster.start(name)
            streams += await create(cluster, 7, f"beside-{name}")
            await append_all(cluster, streams, b"full")
            await trio.sleep(SETTLED_S)
            await check_still(cluster)
        if len(hosts) == 3:
            assert spread(cluster, streams[:30]) <= 1
            assert spread(cluster, streams) <= 1

    async def begin(cluster: MemoryCluster) -> None:
        await start_all(cluster, hosts, earlier)
        await test(cluster)

    simulated(begin, limits=replace(LIMITS, chunk_bytes=4))


def test_hosts_of_the_version_before_claim_by_the_hash() -> None:
    """The model that the tests above use: what one host is first for it takes, however many it has; so three hosts have
    30 streams in unequal parts, and a host that was away gets the same streams again.
    """

    async def test(cluster: MemoryCluster) -> None:
        await start_all(cluster, "abc", "abc")
        streams = await create(cluster, 30)
        await append_all(cluster, streams)
        await trio.sleep(SETTLED_S)
        before = owned(cluster, streams)
        assert spread(cluster, streams) > 1
        await cluster.kill("b")
        await append_all(cluster, streams)
        await cluster.start("b")
        await trio.sleep(SETTLED_S)
        assert owned(cluster, streams) == before
        await check_still(cluster)

    simulated(test)

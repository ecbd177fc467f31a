"""What a host counts of its streams that lack members and copies, in virtual time."""

from __future__ import annotations

import trio

from logstore.cluster.glance import GlanceTaker
from logstore.cluster.short_streams import ShortCounts, ShortStreams
from logstore.cluster.survey import Survey
from logstore.testing.clock import ManualClock
from tests.cluster.memory import WAIT_S, MemoryCluster, RunningHost, simulated

STREAMS = 6
FULL = 600


async def counted(cluster: MemoryCluster, running: RunningHost, is_so: ShortCounts) -> list[tuple[str, int]]:
    """Wait until a host counts this; returns the streams that it names, with their chunks."""
    short, last = ShortStreams(running.host), ShortCounts()

    async def is_counted() -> bool:
        nonlocal last
        last = await short.count()
        return last == is_so

    end_s = trio.current_time() + WAIT_S
    while not await is_counted():
        await cluster.wait(end_s, f"{is_so}, not {last}")
    return [(each.topic, each.chunks) for each in short.named()]


def glances_of(running: RunningHost) -> GlanceTaker:
    """What a host says of its cluster, from now on."""
    return GlanceTaker(running.host, Survey(running.host, running.store, lambda host: True, ManualClock()))


def test_streams_that_wait_for_members_lack_the_most() -> None:
    """Two of three hosts are killed: all streams and all chunks of the one that is left lack copies, those that it has
    just claimed and that take nothing among them, and a glance says so, with the hosts that are away; who saw none
    of them go knows those that open chunks name. With a second host none waits, and with the third none lacks any.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic("t", STREAMS, 3)
        for stream in streams:
            await cluster.append(stream, b"x" * FULL)
        await cluster.at_rest()
        left = cluster.hosts["a"]
        await counted(cluster, left, ShortCounts())
        glances = glances_of(left)
        assert await glances.look() == (3, 0, 0, "a")
        for name in "bc":
            await cluster.kill(name)
        await cluster.until(lambda: set(left.host.statistics.refusing) == set(streams))
        chunks = sum(len(left.host.owners[stream].registration.chunks) for stream in streams)
        waiting = sum(not left.host.owns(stream) for stream in streams)
        assert waiting > 0
        assert await glances.look() == (3, 2, STREAMS, "a")
        assert (await glances_of(left).look()).away > 0
        wanted = ShortCounts(STREAMS, chunks, under_min=STREAMS, at_min=0, waiting=waiting)
        assert len(await counted(cluster, left, wanted)) == STREAMS
        await cluster.start("b")
        await cluster.until(lambda: not left.host.statistics.refusing)
        short = ShortStreams(left.host)
        found = await short.count()
        assert (found.under_min, found.waiting) == (0, 0)
        assert found.streams == found.at_min > 0
        await cluster.start("c")
        for running in cluster.hosts.values():
            await counted(cluster, running, ShortCounts())
        assert await glances.look() == (3, 0, 0, "a")

    simulated(test, "a", "b", "c")


def test_a_takeover_without_any_member_is_counted() -> None:
    """The only host of a chunk is lost: who claims the stream waits for it, and counts it as lacking everything."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic("t", 1, 1)
        name, _ = await cluster.append(stream, b"0")
        await cluster.kill(name)
        await cluster.until(lambda: any(stream in each.host.owners for each in cluster.hosts.values()))
        running = next(each for each in cluster.hosts.values() if stream in each.host.owners)
        assert await counted(cluster, running, ShortCounts(1, 1, 1, 0, 1)) == [("t", 1)]
        await cluster.start(name)
        await cluster.owner(stream)
        for each in cluster.hosts.values():
            if each.host.owns(stream):
                await counted(cluster, each, ShortCounts(at_min=1))

    simulated(test, "a", "b", "c")

"""The first load over many streams at once: busy hosts are slow, and do not fail for that; silent ones do."""

from itertools import pairwise

import pytest
import trio

from logstore.base.running_time import RunningTime
from logstore.replica.effects import Effect, Send, StoreDurably
from logstore.replica.growths import STEP_MS, TOGETHER
from logstore.replica.host_state import HostProgress
from logstore.replica.known_replicas import StoredReplicas
from logstore.replica.messages import Append, AppendDone, BatchEntry
from logstore.replica.registrations import Member, Prefix
from logstore.replica.replica import Replica
from tests.cluster.memory import MemoryCluster, simulated


async def load_all(cluster: MemoryCluster, streams: list[str]) -> float:
    """A batch into each stream at the same moment; returns the seconds until all are acknowledged."""
    begun_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(cluster.append, stream, b"0")
    return trio.current_time() - begun_s


def slow_disks(cluster: MemoryCluster, write_s: float) -> None:
    """Each disk carries out one operation at a time."""
    for running in cluster.hosts.values():
        running.files.bytes_per_s, running.files.write_s = 100e6, write_s


@pytest.mark.parametrize(("count", "write_s", "may_fail"), [(30, 0.03, False), (8, 0.4, True)])
def test_the_first_load_over_many_streams(count: int, write_s: float, may_fail: bool) -> None:
    """Streams whose first batches take a second altogether cost that second, and no member. If they take longer than
    `busy_timeout_ms`, members fail.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=count)
        for stream in streams:
            await cluster.owner(stream)
        slow_disks(cluster, write_s)
        with trio.move_on_after(3.5):
            assert await load_all(cluster, streams) >= count * write_s
        assert ("member_failed" in cluster.reports.names()) == may_fail

    simulated(test, "a", "b", "c")


def test_a_disk_that_hangs_among_many_streams() -> None:
    """Its host confirms nothing of any stream, so it fails within `member_timeout_ms`, for all of them."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=30)
        for stream in streams:
            await cluster.append(stream, b"0")
        owners = {stream: (await cluster.owner(stream)).host.name for stream in streams}
        cluster.hosts["c"].files.write_s = 1000
        took_s = await load_all(cluster, [stream for stream, owner in owners.items() if owner != "c"])
        assert 0.3 < took_s < 0.8
        assert {fields["host"] for name, fields in cluster.reports.events if name == "member_failed"} == {"c"}

    simulated(test, "a", "b", "c")


def test_a_member_says_whether_its_disk_works() -> None:
    """Asked again for a batch that is not durable, it says so if anything else has become durable meanwhile."""
    me = Member("a", "disk")
    replica = Replica(me, StoredReplicas())

    def append(stream: str) -> list[Effect]:
        message = Append(stream, "disk", 1, 0, "b", Prefix.empty(0), (BatchEntry(b"x", 1),), 0)
        return replica.receive("b", message)

    def answer(stream: str) -> AppendDone:
        (effect,) = append(stream)
        assert isinstance(effect, Send)
        assert isinstance(effect.message, AppendDone)
        return effect.message

    (first,), (second,) = append("t/0"), append("t/1")
    assert isinstance(first, StoreDurably)
    assert isinstance(second, StoreDurably)
    assert not answer("t/0").is_working
    replica.stored(second.token)
    assert answer("t/0") == AppendDone("t/0", 1, me, Prefix.empty(0), is_working=True)
    assert not answer("t/0").is_working, "nothing since"
    replica.stored(first.token)
    assert not answer("t/0").is_working, "all of it is durable"


def test_progress_is_what_was_not_durable_before() -> None:
    """A host is silent from its last confirmation on, or from when it had something to confirm."""
    hosts = HostProgress()
    assert hosts.silent_ms("a", since_ms=100, now_ms=150) == 50
    hosts.note("a", 140)
    assert hosts.silent_ms("a", since_ms=100, now_ms=150) == 10
    assert hosts.silent_ms("a", since_ms=145, now_ms=150) == 5
    assert hosts.silent_ms("b", since_ms=100, now_ms=150) == 50


def test_running_time_passes_with_turns() -> None:
    """However long a turn of the event loop takes, it counts for so much at most; idle time counts in full."""
    time = RunningTime(100_000, 40)
    assert time.at(100_010) == 100_010
    assert time.at(105_000) == 100_040
    assert time.turn(105_000) == 100_040
    assert time.at(105_030) == 100_070
    assert time.turn(115_000, is_idle=True) == 110_040
    assert time.at(115_020) == 110_060
    assert time.at(115_010) == 110_060, "it never goes back"


def test_resends_to_a_busy_member_become_rare() -> None:
    """What is sent again and again to a host that is busy would keep it busy."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        await cluster.append(stream, b"0")
        await trio.sleep(1)
        before = cluster.network.sent["Append"]
        for running in cluster.hosts.values():
            running.files.write_s = 1.0
        assert await load_all(cluster, [stream]) >= 1.0
        assert cluster.network.sent["Append"] - before < 40

    simulated(test, "a", "b", "c")


def whole(cluster: MemoryCluster, streams: list[str]) -> int:
    """How many streams have three members of their open chunk, as a host that stayed sees it."""
    heads = [cluster.hosts["a"].view.heads[stream].head.open_chunk for stream in streams]
    return sum(chunk is not None and len(chunk.members) == 3 for chunk in heads)


async def without_a_host(cluster: MemoryCluster, count: int) -> list[str]:
    """Streams that have something, and have lost one of three hosts; its disk will be empty."""
    streams = await cluster.create_topic(partitions=count)
    for stream in streams:
        await cluster.append(stream, b"0")
    await cluster.kill("c")
    for stream in streams:
        await cluster.append(stream, b"1")
    await cluster.until(lambda: whole(cluster, streams) == 0)
    await cluster.at_rest()
    cluster.wipe("c")
    return streams


def test_a_host_that_comes_costs_many_streams_few_calls() -> None:
    """What owners ask and write to make it a member of all their streams is asked and written for eight streams at a
    time; the other members read of it later. Each stream by itself, it was 197 calls.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await without_a_host(cluster, 24)
        await cluster.start("c", node_id=2)
        before = sum(running.store.statistics.calls for running in cluster.hosts.values())
        began_s = trio.current_time()
        await cluster.until(lambda: whole(cluster, streams) == len(streams))
        assert trio.current_time() - began_s < 1, "nobody writes"
        calls = sum(running.store.statistics.calls for running in cluster.hosts.values()) - before
        assert calls <= len(streams)

    simulated(test, "a", "b", "c")


def test_other_members_of_empty_chunks_are_read_later() -> None:
    """Nobody has written since a host went: when it is back with its disk, the others swap registrations, and read
    nothing of each other's at once. They do in the next seconds.
    """

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic(partitions=24)
        for stream in streams:
            await cluster.append(stream, b"0")
        await cluster.kill("c")
        await cluster.until(lambda: whole(cluster, streams) == 0)
        await trio.sleep(10)
        hosts = [cluster.hosts[name] for name in "ab"]
        before = sum(running.store.statistics.calls for running in hosts)
        hints = cluster.network.sent["LookAtRegistration"]
        await cluster.start("c", node_id=2)
        await cluster.until(lambda: whole(cluster, streams) == len(streams))
        await trio.sleep(0.5)
        calls = sum(running.store.statistics.calls for running in hosts) - before
        assert calls <= 12
        assert cluster.network.sent["LookAtRegistration"] == hints
        await trio.sleep(5)
        for running in hosts:
            known = [running.host._shown.revision(stream) for stream in streams]
            assert known == [running.view.heads[stream].revision for stream in streams]

    simulated(test, "a", "b", "c")


def test_a_host_that_comes_is_a_member_in_turns_beside_producers() -> None:
    """Each owner's host changes ten streams in a second, those of one turn at once, and all of them in the end."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await without_a_host(cluster, 40)

        async def produce() -> None:
            while True:
                await cluster.append(streams[0], b"2")
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.sleep(1)
            await cluster.start("c", node_id=2)
            seen = [whole(cluster, streams)]
            while seen[-1] < len(streams):
                await trio.sleep(1)
                seen.append(whole(cluster, streams))
            nursery.cancel_scope.cancel()
        assert len(seen) > 2
        assert max(after - before for before, after in pairwise(seen)) <= 2 * (1000 // STEP_MS + TOGETHER)

    simulated(test, "a", "b", "c")

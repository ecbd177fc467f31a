"""Copies that came to lie in one rack lie apart again, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest
import trio

from logstore.cluster.live_hosts import STEADY_S
from logstore.cluster.short_streams import ShortStreams
from logstore.cluster.survey import Survey
from logstore.replica.growths import STEP_MS, TOGETHER
from logstore.replica.registrations import ChunkRegistration
from logstore.replica.repair import REST_MS
from logstore.testing.clock import ManualClock
from tests.cluster.memory import MemoryCluster, simulated
from tests.cluster.test_departures import SMALL_CHUNKS, registrations, said, until_empty

COPIES = 3
GRACE_S = 30.0
CHUNKS = 6


async def fill(cluster: MemoryCluster, racks: Iterable[str], *, has_racks: bool = True) -> str:
    """Start three hosts in each rack, and write a stream of CHUNKS sealed chunks."""
    cluster.grace_s = GRACE_S
    for rack in racks:
        for number in range(3):
            await cluster.start(f"{rack}{number}", rack=f"/{rack}" if has_racks else "")
    await trio.sleep(GRACE_S + 1)
    (stream,) = await cluster.create_topic(replicas=COPIES)
    for number in range(CHUNKS + 1):
        await cluster.append(stream, b"%020d" % number)
        await trio.sleep(0.2)
    await cluster.at_rest()
    return stream


async def lose(cluster: MemoryCluster, rack: str, away_s: float = 120) -> None:
    """A rack is away for a while, for longer than is waited for it, and comes back."""
    for number in range(3):
        await cluster.kill(f"{rack}{number}")
    await trio.sleep(away_s)
    for number in range(3):
        await cluster.start(f"{rack}{number}", rack=f"/{rack}")


async def sealed(cluster: MemoryCluster, stream: str) -> list[ChunkRegistration]:
    """The sealed chunks of a stream."""
    (found,) = await registrations(cluster, [stream])
    return [chunk for chunk in found.chunks if not chunk.is_open]


def racks_of(chunk: ChunkRegistration) -> str:
    """The racks of a chunk's members."""
    return "".join(sorted(member.host[0] for member in chunk.members))


async def racks_of_open(cluster: MemoryCluster, stream: str) -> str:
    """The racks of the members of a stream's open chunk."""
    (found,) = await registrations(cluster, [stream])
    assert found.open_chunk is not None
    return racks_of(found.open_chunk)


async def rests(cluster: MemoryCluster, stream: str) -> None:
    """Nothing is copied or registered for two minutes."""
    before, orders = await registrations(cluster, [stream]), cluster.network.sent.get("CopyChunk", 0)
    await trio.sleep(120)
    assert await registrations(cluster, [stream]) == before
    assert cluster.network.sent.get("CopyChunk", 0) == orders


async def until_apart(cluster: MemoryCluster, stream: str, wanted: set[str]) -> None:
    """Wait until the racks of each sealed chunk are among those wanted; no chunk ever has too few copies."""
    for _ in range(600):
        chunks = await sealed(cluster, stream)
        assert all(len(chunk.members) >= COPIES for chunk in chunks)
        if all(racks_of(chunk) in wanted and not chunk.candidates for chunk in chunks):
            return
        await trio.sleep(0.5)
    pytest.fail(f"{[racks_of(chunk) for chunk in chunks]}, not {wanted}\n{cluster.describe()}")


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_rack_that_is_back_gets_copies_again(is_planned: bool) -> None:
    """Of two racks one is lost: all copies are made in the other one. When it is back, and not at once, one copy of
    each chunk goes there. Nothing moves then, and the loss of the rack that had everything is no loss of a record in
    it. The open chunk ends for that, once, and the next lies apart too. Meanwhile hosts count the chunks that lie in
    one rack.
    """

    async def test(cluster: MemoryCluster) -> None:
        cluster.is_planned = is_planned
        stream = await fill(cluster, "ab")
        await lose(cluster, "b")
        await cluster.append(stream, b"1")
        await trio.sleep(STEADY_S - 5)
        assert {racks_of(chunk) for chunk in await sealed(cluster, stream)} == {"aaa"}
        assert await racks_of_open(cluster, stream) == "aaa"
        owner = await cluster.owner(stream)
        assert (await ShortStreams(owner.host).count()).crowded == CHUNKS + 1
        survey = Survey(owner.host, owner.store, lambda host: True, ManualClock())
        assert (await survey.hosts()).crowded == CHUNKS + 1
        await until_apart(cluster, stream, {"aab", "abb"})
        await rests(cluster, stream)
        owner = await cluster.owner(stream)
        assert (await ShortStreams(owner.host).count()).crowded == 0
        assert len(await sealed(cluster, stream)) == CHUNKS + 1
        for number in range(3):
            await cluster.kill(f"a{number}")
        (left,) = await registrations(cluster, [stream])
        assert all(any(member.host in cluster.hosts for member in chunk.members) for chunk in left.chunks)

    simulated(test, limits=SMALL_CHUNKS)


def test_each_of_three_racks_gets_a_copy() -> None:
    """With three racks one copy lies in each: two in one rack are too many, though two racks have some."""

    async def test(cluster: MemoryCluster) -> None:
        stream = await fill(cluster, "abc")
        assert {racks_of(chunk) for chunk in await sealed(cluster, stream)} == {"abc"}
        await lose(cluster, "c")
        assert {racks_of(chunk) for chunk in await sealed(cluster, stream)} <= {"aab", "abb"}
        await until_apart(cluster, stream, {"abc"})
        await rests(cluster, stream)

    simulated(test, limits=SMALL_CHUNKS)


def test_a_chunk_in_one_of_three_racks_ends_in_all() -> None:
    """Two moves bring its copies into all racks, each of them into another one."""

    async def test(cluster: MemoryCluster) -> None:
        stream = await fill(cluster, "a")
        for rack in "bc":
            for number in range(3):
                await cluster.start(f"{rack}{number}", rack=f"/{rack}")
        await until_apart(cluster, stream, {"abc"})
        await rests(cluster, stream)
        assert cluster.network.sent["CopyChunk"] <= 3 * 2 * CHUNKS  # an order, one with the revision, one again

    simulated(test, limits=SMALL_CHUNKS)


def test_without_racks_nothing_moves() -> None:
    """Hosts come back, and copies that were made meanwhile stay."""

    async def test(cluster: MemoryCluster) -> None:
        stream = await fill(cluster, "ab", has_racks=False)
        for name in ("b0", "b1", "b2"):
            await cluster.kill(name)
        await trio.sleep(120)
        for name in ("b0", "b1", "b2"):
            await cluster.start(name)
        assert {racks_of(chunk) for chunk in await sealed(cluster, stream)} == {"aaa"}
        await rests(cluster, stream)
        assert (await ShortStreams((await cluster.owner(stream)).host).count()).crowded == 0

    simulated(test, limits=SMALL_CHUNKS)


def test_hosts_that_come_and_go_move_nothing() -> None:
    """The rack is back, but one of its hosts goes again and again before the hosts have lived for a while. When it
    stays, copies move.
    """

    async def test(cluster: MemoryCluster) -> None:
        stream = await fill(cluster, "ab")
        await lose(cluster, "b")
        for _ in range(5):
            await trio.sleep(GRACE_S - 5)
            await cluster.kill("b2")
            await trio.sleep(GRACE_S / 2)
            await cluster.start("b2", rack="/b")
        assert {racks_of(chunk) for chunk in await sealed(cluster, stream)} == {"aaa"}
        assert (len(await sealed(cluster, stream)), await racks_of_open(cluster, stream)) == (CHUNKS, "aaa")
        await until_apart(cluster, stream, {"aab", "abb"})
        await rests(cluster, stream)

    simulated(test, limits=SMALL_CHUNKS)


def test_a_rack_that_comes_and_goes_ends_no_chunk_for_ten_minutes() -> None:
    """The open chunk ended because its rack was back; it is in one rack again behind another loss, and ends for that
    ten minutes later.
    """

    async def test(cluster: MemoryCluster) -> None:
        stream = await fill(cluster, "ab")
        await lose(cluster, "b")
        await until_open_apart(cluster, stream)
        apart_s = trio.current_time()
        await cluster.append(stream, b"%020d" % CHUNKS)
        await lose(cluster, "b", away_s=60)
        while trio.current_time() < apart_s + REST_MS / 1_000 - 1:
            assert await racks_of_open(cluster, stream) == "aaa"
            await trio.sleep(1)
        await until_open_apart(cluster, stream)
        assert trio.current_time() < apart_s + REST_MS / 1_000 + 10

    simulated(test, limits=SMALL_CHUNKS)


async def until_open_apart(cluster: MemoryCluster, stream: str) -> None:
    """Wait until the open chunk lies in both racks."""
    while await racks_of_open(cluster, stream) == "aaa":  # noqa: ASYNC110  virtual time
        await trio.sleep(0.5)


def test_open_chunks_end_in_turns_when_a_rack_is_back() -> None:
    """Beside producers each owner's host ends ten chunks in a second, those of one turn at once, and all in the end."""

    async def test(cluster: MemoryCluster) -> None:
        cluster.grace_s = GRACE_S
        for name in ("a0", "a1", "b0", "b1"):
            await cluster.start(name, rack=f"/{name[0]}")
        await trio.sleep(GRACE_S + 1)
        streams = await cluster.create_topic(partitions=40, replicas=2)
        for stream in streams:
            await cluster.append(stream, b"0")
        for name in ("b0", "b1"):
            await cluster.kill(name)
        await trio.sleep(120)
        owners = {stream: (await cluster.owner(stream)).host.name for stream in streams}

        async def produce(stream: str) -> None:
            while True:
                await cluster.append(stream, b"2")
                await trio.sleep(0.05)

        def apart() -> Counter[str]:
            heads = cluster.hosts["a0"].view.heads
            chunks = {stream: heads[stream].head.open_chunk for stream in streams}
            racks = {stream: {member.host[0] for member in chunk.members} for stream, chunk in chunks.items() if chunk}
            return Counter(owners[stream] for stream in streams if len(racks[stream]) == 2)

        async with trio.open_nursery() as nursery:
            for name in ("a0", "a1"):
                nursery.start_soon(produce, next(stream for stream in streams if owners[stream] == name))
            for name in ("b0", "b1"):
                await cluster.start(name, rack="/b")
            seen = [apart()]
            while seen[-1].total() < len(streams):
                await trio.sleep(0.5)
                seen.append(apart())
            nursery.cancel_scope.cancel()
        assert max(after[name] - before[name] for before, after in pairwise(seen) for name in after) <= (
            500 // STEP_MS + TOGETHER
        )

    simulated(test)


def test_a_host_leaves_while_copies_move() -> None:
    """A host of the rack that gets copies is drained meanwhile: it ends with none, each chunk in both racks; when it
    stays after all nothing moves.
    """

    async def test(cluster: MemoryCluster) -> None:
        stream = await fill(cluster, "ab")
        await lose(cluster, "b")
        while all(racks_of(chunk) == "aaa" for chunk in await sealed(cluster, stream)):  # noqa: ASYNC110  virtual time
            await trio.sleep(0.1)
        moved = next(chunk for chunk in await sealed(cluster, stream) if racks_of(chunk) != "aaa")
        leaving = next(member.host for member in moved.members if member.host[0] == "b")
        await said(cluster, "a0").drain(leaving)
        await until_empty(cluster, [stream], leaving)
        await until_apart(cluster, stream, {"aab", "abb"})
        await said(cluster, "a0").undrain(leaving)
        await rests(cluster, stream)

    simulated(test, limits=SMALL_CHUNKS)


def test_a_host_without_room_is_not_asked_all_the_time() -> None:
    """The disks of the rack that is back are full: a move is tried once in ten minutes, and the chunks keep their
    copies; when there is room they move.
    """

    async def test(cluster: MemoryCluster) -> None:
        stream = await fill(cluster, "ab")
        for number in range(3):
            cluster.disks[f"b{number}"].is_full = True
        await lose(cluster, "b")
        await trio.sleep(REST_MS / 1_000)
        chunks = await sealed(cluster, stream)
        assert {racks_of(chunk) for chunk in chunks} == {"aaa"}
        assert not any(chunk.candidates for chunk in chunks)
        before = cluster.network.sent["CopyChunk"]
        await trio.sleep(2 * REST_MS / 1_000)
        assert 0 < cluster.network.sent["CopyChunk"] - before <= 8
        for number in range(3):
            cluster.disks[f"b{number}"].is_full = False
        await trio.sleep(REST_MS / 1_000)
        await until_apart(cluster, stream, {"aab", "abb"})

    simulated(test, limits=SMALL_CHUNKS)

"""What becomes of a copy that the scrub of its host finds damaged: hosts in virtual time."""

from __future__ import annotations

import trio

from tests.cluster.memory import MemoryCluster, simulated
from tests.cluster.sealed_chunks import BATCHES, SMALL_CHUNKS, sealed_chunk


def test_a_copy_that_the_scrub_finds_damaged_is_replaced() -> None:
    """Its owner hears of it, drops it and has it copied; nobody has to read it. Its readers notice nothing."""

    async def test(cluster: MemoryCluster) -> None:
        stream, owner, chunk = await sealed_chunk(cluster)
        bad = next(member for member in chunk.members if member.host != owner.host.name)
        await trio.sleep(5)
        cluster.disks[bad.host].rot((stream, chunk.epoch), 0)
        cluster.hosts[bad.host].host.disk.found_damaged(stream, chunk.epoch)

        def is_whole() -> bool:
            held = cluster.disks[bad.host].chunks.get((stream, chunk.epoch))
            members = owner.host.registration(stream).chunks[0].members
            return held is not None and b"!" not in b"".join(each.data for each in held.entries) and bad in members

        await cluster.until(is_whole, "the copy was made anew")
        assert await cluster.read_all(bad.host, stream) == list(BATCHES)

    simulated(test, "a", "b", "c", limits=SMALL_CHUNKS)


def test_the_last_copy_is_kept_when_the_scrub_finds_it_damaged() -> None:
    """No other host that lives has the chunk: its records that are whole can still be read, and nothing is removed."""

    async def test(cluster: MemoryCluster) -> None:
        stream, owner, chunk = await sealed_chunk(cluster, replicas=1)
        (member,) = chunk.members
        cluster.hosts[member.host].host.disk.found_damaged(stream, chunk.epoch)
        cluster.hosts[member.host].host.disk.found_damaged(stream, chunk.epoch)  # the next walk
        await trio.sleep(120)
        assert owner.host.registration(stream).chunks[0].members == (member,)
        assert cluster.disks[member.host].chunks[stream, chunk.epoch].entries
        assert await cluster.read_all(member.host, stream) == list(BATCHES)

    simulated(test, "a", "b", "c", limits=SMALL_CHUNKS)


def test_all_copies_are_kept_when_each_of_them_is_damaged() -> None:
    """What one of them lacks another one has: all records can be read. Two copies were removed because the third one
    lived, and what was damaged in that was gone.
    """

    async def test(cluster: MemoryCluster) -> None:
        stream, owner, chunk = await sealed_chunk(cluster)
        await trio.sleep(5)
        for number, member in enumerate(chunk.members):
            cluster.disks[member.host].rot((stream, chunk.epoch), number)
            cluster.hosts[member.host].host.disk.found_damaged(stream, chunk.epoch)
        await trio.sleep(120)
        assert set(owner.host.registration(stream).chunks[0].members) == set(chunk.members)
        for name in cluster.hosts:
            assert await cluster.read_all(name, stream) == list(BATCHES)

    simulated(test, "a", "b", "c", limits=SMALL_CHUNKS)

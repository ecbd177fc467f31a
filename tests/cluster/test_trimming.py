"""Trims and full disks on real hosts in virtual time."""

import trio

from tests.cluster.memory import MemoryCluster, RunningHost, simulated


async def written(cluster: MemoryCluster, stream: str, chunks: int, batches: int = 3) -> RunningHost:
    """Full chunks of batches, and an open one that is empty."""
    owner = await cluster.owner(stream)
    for _ in range(chunks):
        for _ in range(batches):
            await cluster.append(stream, b"0")
        epoch = owner.host.registration(stream).epoch
        owner.host.roll(stream)
        while owner.host.registration(stream).epoch == epoch:  # noqa: ASYNC110  time is virtual
            await trio.sleep(0.01)
    return owner


def epochs(running: RunningHost, stream: str) -> list[int]:
    """The chunks on a host's disk."""
    return sorted(epoch for name, epoch in running.files.disk.chunks if name == stream)


def test_a_trim_reaches_every_host_and_stays_after_a_takeover() -> None:
    """Chunks go from all disks, from that of a host that was away when it is back; every later owner starts there."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        owner = await written(cluster, stream, chunks=4)
        away = next(host for host in "abcd" if host in cluster.hosts and host != owner.host.name)
        held = epochs(cluster.hosts[away], stream)
        await cluster.kill(away)
        await cluster.append(stream, b"1")
        owner.host.trim(stream, 7, keeps_last=True)
        await cluster.until(lambda: owner.observers[stream].log_start == 7)
        await trio.sleep(1)
        kept = [chunk.epoch for chunk in owner.host.registration(stream).chunks]
        assert owner.host.registration(stream).chunks[0].base_offset == 6
        assert all(set(epochs(running, stream)) <= set(kept) for running in cluster.hosts.values())
        back = await cluster.start(away)
        await trio.sleep(5)
        assert set(held) & set(epochs(back, stream)) <= set(kept)
        await cluster.kill(owner.host.name)
        name, offset = await cluster.append(stream, b"2")
        assert (name != owner.host.name, offset) == (True, 13)
        assert cluster.hosts[name].host.registration(stream).log_start == 7
        assert cluster.hosts[name].observers[stream].log_start == 7

    simulated(test, "a", "b", "c", "d")


def test_a_stream_that_is_trimmed_as_it_grows_stays_small() -> None:
    """What the metadata store and the disks have of it does not grow, however long it is written to."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        sizes: list[tuple[int, int]] = []
        for _ in range(30):
            owner = await written(cluster, stream, chunks=1)
            end = owner.host.next_offset(stream)
            owner.host.trim(stream, end - 5, keeps_last=True)
            await trio.sleep(0.5)
            entries = (await owner.store.page("chunks/")).entries
            sizes.append((len(entries), sum(len(epochs(each, stream)) for each in cluster.hosts.values())))
        assert max(sizes[5:]) <= (2, 9)
        assert owner.host.registration(stream).log_start == 85

    simulated(test, "a", "b", "c")


def test_a_member_whose_disk_is_full_leaves_the_chunk() -> None:
    """The others go on within a moment, and the copies of what it has stay; when it has room it is chosen again."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        await cluster.append(stream, b"0")
        owner = await cluster.owner(stream)
        chunk = owner.host.registration(stream).open_chunk
        assert chunk is not None
        full = next(member.host for member in chunk.members if member.host != owner.host.name)
        cluster.hosts[full].files.disk.is_full = True
        begin_s = trio.current_time()
        for _ in range(3):
            await cluster.append(stream, b"1")
        assert trio.current_time() - begin_s < 0.2
        assert owner.observers[stream].crowds == 1
        chunk = owner.host.registration(stream).open_chunk
        assert chunk is not None
        assert full not in {member.host for member in chunk.members}
        cluster.hosts[full].files.disk.is_full = False
        await trio.sleep(20)
        for name in cluster.hosts:
            assert await cluster.read_all(name, stream) == [b"0", b"1", b"1", b"1"]

    simulated(test, "a", "b", "c", "d")


def test_the_owner_s_own_disk_may_be_full() -> None:
    """It stays the owner, with chunks on the other hosts."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        cluster.hosts[name].files.disk.is_full = True
        for _ in range(3):
            assert (await cluster.append(stream, b"1"))[0] == name
        host = cluster.hosts[name].host
        chunk = host.registration(stream).open_chunk
        assert chunk is not None
        assert name not in {member.host for member in chunk.members}
        for _ in range(3):  # what is acknowledged is read at once, from the others
            _, offset = await cluster.append(stream, b"1")
            assert [entry.data for entry in (await host.read_entries(stream, chunk, offset, 1)).entries] == [b"1"]

    simulated(test, "a", "b", "c")

"""A cluster of real hosts in virtual time, on links and disks in memory and a simulated metadata store."""

import trio

from tests.cluster.memory import MemoryCluster, simulated


def test_a_topic_gets_owners_and_takes_appends() -> None:
    """A new topic's streams are owned, replicated, and read at every host."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, offset = await cluster.append(stream, b"one", 2)
        assert offset == 0
        assert await cluster.append(stream, b"two") == (name, 2)
        owner = cluster.hosts[name].host
        chunk = owner.registration(stream).open_chunk
        assert chunk is not None
        assert {member.host for member in chunk.members} == {"a", "b", "c"}
        assert owner.acked(stream).next_offset == owner.next_offset(stream) == 3
        await trio.sleep(0.1)  # all members are told what is acknowledged
        for host in "abc":
            assert await cluster.read_all(host, stream) == [b"one", b"two"]
            assert cluster.hosts[host].host.owner_of(stream) == name

    simulated(test, "a", "b", "c")


def test_the_owner_is_killed() -> None:
    """Another host takes over in less than a second, nothing acknowledged is lost, offsets go on."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        written = [b"%d" % number for number in range(20)]
        name = ""
        for data in written[:10]:
            name, _ = await cluster.append(stream, data)
        await cluster.kill(name)
        since_s = trio.current_time()
        other, offset = await cluster.append(stream, written[10])
        assert (other != name, offset) == (True, 10)
        assert trio.current_time() - since_s < 1
        for data in written[11:]:
            await cluster.append(stream, data)
        await trio.sleep(0.1)
        assert await cluster.read_all(other, stream) == written
        await cluster.start(name)
        await trio.sleep(5)
        assert await cluster.read_all(name, stream) == written
        registration = await cluster.hosts[other].host.read_registration(stream)
        assert all(len(chunk.members) == 3 for chunk in registration.chunks)

    simulated(test, "a", "b", "c")

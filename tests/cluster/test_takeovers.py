"""What a host says of a stream that changes hands."""

import pytest
import trio

from tests.cluster.memory import MemoryCluster, simulated


def test_a_killed_owner_is_no_leader_from_then_on() -> None:
    """Its lease holds still, and its address refuses connections: whoever asks hears of no leader, and that there will
    be another one; of this one when it takes appends, and not before.
    """

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        await trio.sleep(0.1)
        others = [cluster.hosts[other].host for other in "abc" if other != name]
        said: list[tuple[str | None, bool]] = [(name, False)]

        async def ask() -> None:
            while True:
                for other in others:
                    assert name in other.view.members, "its lease has ended"
                    said.append((other.owner_of(stream), other.is_changing_hands(stream)))
                await trio.sleep(0.0005)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await cluster.kill(name)
            await cluster.until(lambda: not any(other.is_changing_hands(stream) for other in others))
            nursery.cancel_scope.cancel()
        owner = others[0].owner_of(stream)
        assert owner != name
        first = said.index((None, True))
        assert set(said[:first]) == {(name, False)}
        assert set(said[first:]) == {(None, True), (owner, True), (owner, False)}

    simulated(test, "a", "b", "c")


def test_a_link_that_ends_is_seen_before_the_host_is_known_to_be_gone() -> None:
    """Out of reach, a leader may be about to change: those who ask may wait a moment."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        other = next(host for host in "abc" if host != name)
        await trio.sleep(0.1)
        cluster.network.cut(name, other)
        assert cluster.hosts[other].host.is_changing_hands(stream)
        assert cluster.hosts[other].host.owner_of(stream) == name
        cluster.network.heal()
        assert not cluster.hosts[other].host.is_changing_hands(stream)

    simulated(test, "a", "b", "c")


async def next_owner_after_s(cluster: MemoryCluster, way: str, name: str, stream: str) -> float:
    """For how long a stream acknowledges nothing when its owner is lost in some way."""
    begun_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.kill if way == "kill" else cluster.stop, name)
        await cluster.until(lambda: name not in cluster.hosts)
        await cluster.append(stream, b"1")
        return trio.current_time() - begun_s
    raise AssertionError("nothing in the block is cancelled")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["kill", "stop"])
def test_the_next_owner_takes_batches_at_once(way: str, seed: int) -> None:
    """Killed, or stopped as planned: what hosts wait for by themselves is a tenth of a second at most, until the next
    owner has acknowledged a batch; a client's own waits and what a machine is slow at come on top.
    """

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        await cluster.append(stream, b"0")
        for _ in range(3):
            name = (await cluster.owner(stream)).host.name
            assert await next_owner_after_s(cluster, way, name, stream) <= 0.1
            await cluster.start(name)
            await cluster.at_rest()

    simulated(test, "a", "b", "c", "d", seed=seed)

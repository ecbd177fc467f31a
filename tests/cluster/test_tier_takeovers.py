"""Chunks that no host has and the tier has: takeovers learn from them who has written, and hosts are removed. Hosts in
memory, in virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from logstore.cluster.members.departures import Departures
from logstore.errors import HostStays, OutOfOrderSequence
from logstore.format.records import Record, encode_batch
from logstore.log.stream_state import AppendResult
from tests.cluster.epochs_world import NOW_MS
from tests.cluster.tier_world import TierWorld, in_world
from tests.support.limits import PATIENCE_S

HOSTS = ("a", "b", "c")
PRODUCER = 7


async def produce(world: TierWorld, sequence: int) -> AppendResult:
    """An idempotent producer sends a batch to whoever leads. Raises what the ticket has."""
    _, stream = await world.wait_leader()
    value = b"%06d" % len(world.acked) + bytes(100)
    batch = encode_batch(
        [Record(0, NOW_MS, None, value)], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence
    )
    ticket, settled = stream.append(bytearray(batch), now_ms=NOW_MS), trio.Event()
    ticket.add_callback(lambda _: settled.set())
    with trio.fail_after(PATIENCE_S):
        await settled.wait()
    result = ticket.result()
    if not result.duplicate:
        world.acked.append(value)
    return result


async def leave_last_chunk_to_the_tier(
    world: TierWorld, write: Callable[[TierWorld], Awaitable[None]] | None = None, chunks: int = 1
) -> str:
    """The only host that has the last sealed chunk is lost, while it is drained: another one has the open chunk, which
    is empty, and the tier has the sealed one. `write` may append more than a producer's three batches before; `chunks`
    are sealed. Returns the host that was lost.
    """
    await world.create(replicas=1)
    for number in range(chunks):
        for sequence in range(3 * number, 3 * number + 3):
            await produce(world, sequence)
        life, stream = await world.wait_leader()
        if write is not None:
            await write(world)
        life.running.host.roll(stream.stream)
        await world.settle(is_swept=False)
    lost = life.running.host.name
    others = {name: running for name, running in world.cluster.hosts.items() if name != lost}
    for name in others:
        world.cluster.disks[name].is_full = True  # nobody takes a copy
    other = next(iter(others.values()))
    await Departures(other.view, other.store).drain(lost)
    await world.cluster.until(lambda: any(each.host.owns(stream.stream) for each in others.values()))
    await world.kill(lost)
    for name in others:
        world.cluster.disks[name].is_full = False
    last = (await world.chunks())[-2]
    assert {member.host for member in last.members} == {lost}
    assert last.tiered is not None
    return lost


async def lose_leader(world: TierWorld) -> None:
    """Whoever leads is killed, and starts again."""
    life, _ = await world.wait_leader()
    await world.lose(life.running.host.name)
    await world.bring_back()


def test_a_takeover_learns_from_the_tier_who_has_written() -> None:
    """All members of the last sealed chunk are lost, and the open one is empty: the next owner takes the producers'
    sequences from the tier. What was sent again is a duplicate, what comes next is taken, a gap is refused.
    """

    async def test(world: TierWorld) -> None:
        lost = await leave_last_chunk_to_the_tier(world)
        await lose_leader(world)
        with trio.fail_after(PATIENCE_S):
            assert (await produce(world, 2)).duplicate
        with pytest.raises(OutOfOrderSequence):
            await produce(world, 4)
        assert not (await produce(world, 3)).duplicate
        assert lost not in world.hosts
        await world.check_all()

    in_world(test, *HOSTS)


def test_without_the_tier_a_takeover_waits_for_a_member() -> None:
    """The tier is away, too: nobody leads the stream, for a batch that is in the log would be taken for a new one; when
    the tier is back, the stream goes on.
    """

    async def test(world: TierWorld) -> None:
        await leave_last_chunk_to_the_tier(world)
        world.is_away = True
        await lose_leader(world)
        await trio.sleep(60)
        assert world.leader() is None
        assert "producers_not_read" in world.cluster.reports.names()
        world.is_away = False
        with trio.fail_after(PATIENCE_S):
            assert (await produce(world, 2)).duplicate

    in_world(test, *HOSTS)


def test_a_host_whose_chunks_are_in_the_tier_is_removed() -> None:
    """No other host has its chunk, and the tier has it: the chunk forgets the host, also as the last sealed one, and is
    read from the tier; takeovers go on as before.
    """

    async def test(world: TierWorld) -> None:
        lost = await leave_last_chunk_to_the_tier(world)
        running = next(iter(world.cluster.hosts.values()))
        await world.cluster.until(lambda: lost not in running.view.members)
        departures = Departures(running.view, running.store)
        with trio.fail_after(PATIENCE_S):
            while await departures.remove(lost):  # noqa: ASYNC110  time is virtual
                await trio.sleep(0.5)
        last = (await world.chunks())[-2]
        assert last.is_tiered_alone
        await world.check_all()
        for _ in range(2):
            await lose_leader(world)
            assert (await produce(world, 2)).duplicate
            await world.check_all()
        assert (await world.chunks())[-2] == last
        assert not (await produce(world, 3)).duplicate
        await world.check_all()

    in_world(test, *HOSTS)


def test_a_host_with_a_chunk_that_is_stored_and_not_registered_is_not_removed() -> None:
    """Objects in the store are not in the tier before the registration names them: the copy may be the only one."""

    async def test(world: TierWorld) -> None:
        await world.create(replicas=1)
        await produce(world, 0)
        life, stream = await world.wait_leader()
        lost = life.running.host.name
        life.threads.delay_s = 30.0
        life.running.host.roll(stream.stream)
        while not world.keys():  # noqa: ASYNC110  time is virtual
            await trio.sleep(0.1)
        await world.kill(lost)
        running = next(iter(world.cluster.hosts.values()))
        await world.cluster.until(lambda: lost not in running.view.members)
        with pytest.raises(HostStays, match="of 2 chunks no other host that is alive has a copy"):
            await Departures(running.view, running.store).remove(lost)

    in_world(test, *HOSTS)

"""Objects that registrations name and the store has not, as after a restore of etcd without the tier's snapshot. Hosts
in memory, in virtual time.
"""

from __future__ import annotations

import pytest
import trio

from logstore.errors import CorruptChunk
from logstore.events import TIER_OBJECTS_MISSING
from tests.cluster import tier_world
from tests.cluster.tier_world import SWEEP_S, TierWorld, in_world

HOSTS = ("a", "b", "c")


def lose_objects(world: TierWorld, *base_offsets: int) -> None:
    """Retention removed these chunks after the backup; what was restored names them still."""
    for key in sorted(world.keys()):
        if any(f"/{base:020d}-" in key for base in base_offsets):
            world.objects.delete(key)


def test_objects_that_a_restore_lacks_are_named_and_given_up() -> None:
    """The owner says which chunks are missing, once it has listed the store; reads there fail with the same offsets,
    others go on; no host ends. When the records are deleted up to there, the log is whole again.
    """

    async def test(world: TierWorld) -> None:
        await world.create()
        for _ in range(5):
            await world.chunk()
        await world.settle(is_swept=False)
        for name in HOSTS:
            await world.lose(name)
        lose_objects(world, 0, 3)
        await world.bring_back()
        life, stream = await world.wait_leader()
        await trio.sleep(2 * SWEEP_S)
        said = world.cluster.reports.of(TIER_OBJECTS_MISSING)
        assert {(each["stream"], each["chunks"], each["first"], each["last"]) for each in said} == {
            ("orders-0", 2, 0, 5)
        }
        for offset in (0, 4):
            with pytest.raises(
                CorruptChunk, match="bring it back from a snapshot of the store, or give the records up"
            ):
                await life.reads.read(stream, offset, 4_000)
        assert (await life.reads.read(stream, 6, 4_000)).next_offset > 6
        stream.trim(6)
        await world.settle()
        count = len(world.cluster.reports.of(TIER_OBJECTS_MISSING))
        await trio.sleep(2 * SWEEP_S)
        assert len(world.cluster.reports.of(TIER_OBJECTS_MISSING)) == count
        await world.check_all()

    in_world(test, *HOSTS)


def test_copies_stay_whose_objects_are_missing() -> None:
    """A chunk whose copies are within the local retention is read from hosts, and stays there when its time is over."""

    async def test(world: TierWorld) -> None:
        await world.create(3, **{"local.retention.bytes": "1200"})
        for _ in range(4):
            await world.chunk()
        await trio.sleep(SWEEP_S)
        assert [chunk.is_tiered_alone for chunk in (await world.chunks())[:2]] == [True, False]
        lose_objects(world, 3)
        await trio.sleep(2 * SWEEP_S)
        for _ in range(4):
            await world.chunk()
        await trio.sleep(SWEEP_S)
        kept = [chunk.base_offset for chunk in await world.chunks() if chunk.members]
        assert kept[0] == 3
        life, stream = await world.wait_leader()
        assert (await life.reads.read(stream, 3, 4_000)).next_offset > 3

    in_world(test, *HOSTS)


def test_the_next_owner_keeps_the_last_copies_of_what_is_missing() -> None:
    """A takeover knows nothing of what the former owner has missed: the objects are looked for before copies go, at
    hosts that are all new as well. Copies of chunks that are there go, by the same owners.
    """

    async def test(world: TierWorld) -> None:
        await world.create(3, **{"local.retention.bytes": "-2"})
        for _ in range(6):
            await world.chunk()
        await trio.sleep(SWEEP_S)
        for name in HOSTS:
            await world.lose(name)
        lose_objects(world, 6)
        await world.bring_back()
        life, stream = await world.wait_leader()
        life.topics.alter_topic(tier_world.TOPIC, {"local.retention.bytes": "0"})
        await trio.sleep(3 * SWEEP_S)
        assert [chunk.base_offset for chunk in await world.chunks() if chunk.members] == [6, 9, 12, 15, 18]
        assert (await life.reads.read(stream, 6, 4_000)).next_offset > 6
        said = [(each["first"], each["last"]) for each in world.cluster.reports.of(TIER_OBJECTS_MISSING)]
        assert set(said) == {(6, 8)}

    in_world(test, *HOSTS)


def test_names_that_begin_with_a_line_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are not whole begin with `_`, and so may a topic: its objects are not missing, and its copies go."""
    monkeypatch.setattr(tier_world, "TOPIC", "_orders")

    async def test(world: TierWorld) -> None:
        await world.create(3, **{"local.retention.bytes": "1200"})
        for _ in range(4):
            await world.chunk()
        await trio.sleep(2 * SWEEP_S)
        assert not world.cluster.reports.of(TIER_OBJECTS_MISSING)
        for _ in range(4):
            await world.chunk()
        await trio.sleep(SWEEP_S)
        assert next(chunk.base_offset for chunk in await world.chunks() if chunk.members) > 9

    in_world(test, *HOSTS)


def test_an_owner_that_was_replaced_calls_nothing_missing() -> None:
    """Its successor has trimmed the log, and removed the objects: the registration says so, and nobody is alarmed."""

    async def test(world: TierWorld) -> None:
        await world.create()
        for _ in range(3):
            await world.chunk()
        await world.settle(is_swept=False)
        life, zombie = await world.wait_leader()
        world.isolate(life.running.host.name)
        await trio.sleep(10)
        _, stream = await world.wait_leader()
        stream.trim(6)
        await trio.sleep(3 * SWEEP_S)
        assert zombie.is_leader, "it does not know"
        assert not world.cluster.reports.of(TIER_OBJECTS_MISSING)
        world.heal(life.running.host.name)
        await world.append()
        await world.check_all()

    in_world(test, *HOSTS)

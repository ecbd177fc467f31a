"""Objects of a host alone that somebody else has removed: local copies are then all that is left of their records."""

from __future__ import annotations

from logstore.events import TIER_OBJECTS_MISSING
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import SimulatedStore
from tests.crash.tiers import TIERED, tiered

CHUNKS = 4


def stored() -> SimulatedStore:
    """A host that was started anew, with chunks in the tier and on its disk."""
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), tiered())
    world.create_topic("t", 1, {**TIERED, "local.retention.bytes": "-2"})
    world.run()
    for _ in range(CHUNKS + 1):
        world.append("t", value_bytes=300)
        world.run()
    world.tier_round()
    world.tier_round()
    assert len(world.store.stream("t", 0).tiered) == CHUNKS
    world.restart(clean=True)
    return world


def give_up_copies(world: SimulatedStore) -> None:
    """Local copies may go, and a few rounds follow."""
    world.store.alter_topic("t", {"local.retention.bytes": "0"})
    world.run()
    for _ in range(4):
        world.tier_round()


def test_local_copies_stay_whose_objects_are_missing() -> None:
    """From the start on: a chunk's objects are listed before its copy goes."""
    world = stored()
    lost = world.store.stream("t", 0).tiered.all()[1]
    for key in lost.all_keys():
        assert world.tier is not None
        world.tier.objects.delete(key)
    give_up_copies(world)
    assert world.store.stream("t", 0).chunks[0].base_offset == lost.base_offset
    assert [(each["first"], each["last"]) for each in world.reports.of(TIER_OBJECTS_MISSING)] == [(1, 1)]


def test_local_copies_go_whose_objects_are_there() -> None:
    """All but the last chunk's, once the store was listed."""
    world = stored()
    give_up_copies(world)
    assert len(world.store.stream("t", 0).chunks) == 1
    world.check()

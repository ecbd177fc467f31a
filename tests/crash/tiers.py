"""Stories of chunks that go to the tier and leave it, for the enumerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from logstore.testing.directory_objects import DirectoryObjects
from logstore.testing.world import Setup, SimulatedStore

TIERED: Mapping[str, str] = {"remote.storage.enable": "true", "local.retention.bytes": "0"}


def tiered(setup: Setup | None = None) -> Setup:
    """A setup with a tier on the same disk, whose objects are synced under a temporary name."""
    before = setup or Setup()
    return replace(before, settings=replace(before.settings, has_tier=True), tier=DirectoryObjects)


def stores(world: SimulatedStore) -> None:
    """Chunks are stored and leave the disk, others follow, idempotent producers and control batches go on."""
    world.create_topic("t", 1, TIERED)
    world.run()
    for sequence in range(3):
        world.append("t", value_bytes=300, producer=(7, 0, sequence))
        world.run()
    world.tier_round()
    world.append_group("t", 0, 0, batches=2)
    world.append("t", value_bytes=300, producer=(7, 0, 3))
    world.run()
    world.tier_round()
    world.tier_round()


def trims(world: SimulatedStore) -> None:
    """Records that are in the tier alone are deleted, then those that are in both."""
    world.create_topic("t", 1, TIERED)
    world.run()
    for _ in range(4):
        world.append("t", value_bytes=300)
        world.run()
    world.tier_round()
    world.tier_round()
    world.trim("t", 0, 2)
    world.run()
    world.tier_round()
    world.trim("t", 0, world.store.stream("t", 0).high_watermark)
    world.run()
    world.tier_round()
    world.append("t")
    world.run()


def deletes(world: SimulatedStore) -> None:
    """A topic with chunks in the tier is deleted, and its objects with it."""
    world.create_topic("t", 1, TIERED)
    world.run()
    for _ in range(3):
        world.append("t", value_bytes=300)
        world.run()
    world.tier_round()
    world.tier_round()
    world.delete_topic("t")
    world.run()
    world.tier_round()


STORIES = (stores, trims, deletes)

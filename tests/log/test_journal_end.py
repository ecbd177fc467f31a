"""A flipped bit in the last block of the newest file of the journal: what it costs, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.events import JOURNAL_DAMAGED
from logstore.log.journal import JournalLimits
from logstore.log.topics import TopicConfig
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import Setup, SimulatedStore

BITS = 24
"""Of each block, spread over its head, its table and its batches."""


def story() -> tuple[SimulatedStore, str, range]:
    """A store with six acknowledged batches; the journal's newest file, and the place of its last block there."""
    settings = replace(Setup().settings, journal=JournalLimits(file_bytes=100_000), topic_defaults=TopicConfig())
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), Setup(settings))
    world.create_topic("t", 1)
    world.run()
    places: list[tuple[str, int]] = []
    for _ in range(5):
        ticket = world.append("t")
        world.run()
        ticket.result()
        places = world.store.journal.sources()
    path, end = places[-1]
    world.append("t")
    world.run()
    (new_end,) = (size for other, size in world.store.journal.sources() if other == path)
    assert new_end > end, "the last append is a block of its own"
    return world, path, range(end, new_end)


def flip(world: SimulatedStore, path: str, place: range, number: int) -> None:
    """One bit of a block, at one of BITS places."""
    bit = number * (8 * len(place) - 1) // (BITS - 1)
    at = place.start + bit // 8
    (byte,) = world.disk.read(path, at, 1)
    world.disk.write(path, at, [bytes([byte ^ 1 << bit % 8])])


@pytest.mark.parametrize("number", range(BITS))
def test_a_flip_before_the_chunk_has_the_batches_looks_like_a_torn_write(number: int) -> None:
    """Nothing else has these bytes: the block ends the journal, as a write that was under way does. Only what is in
    that block goes; all in front of it is there.
    """
    world, path, place = story()
    flip(world, path, place, number)
    world.restart(clean=False)
    assert world.store.stream("t", 0).high_watermark == 5
    assert not world.reports.of(JOURNAL_DAMAGED)


@pytest.mark.parametrize("number", range(BITS))
def test_a_flip_once_the_chunk_has_the_batches_costs_nothing(number: int) -> None:
    """Two ticks later the chunk's file has what the block has, and a start finds it there."""
    world, path, place = story()
    for _ in range(2):
        world.store.journal.tick()
        world.run()
    flip(world, path, place, number)
    world.restart(clean=False)
    assert world.store.stream("t", 0).high_watermark == 6
    world.check()


@pytest.mark.parametrize("number", range(BITS))
def test_a_flip_behind_which_a_block_stands_is_damage(number: int) -> None:
    """A block behind proves that the one before was durable: it is reported, and the blocks behind it count."""
    world, path, place = story()
    world.append("t")
    world.run()
    flip(world, path, place, number)
    world.restart(clean=False)
    assert world.reports.of(JOURNAL_DAMAGED)

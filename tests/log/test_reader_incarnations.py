"""A reader of a query belongs to the newest incarnation that has registered it: older ones change nothing."""

from __future__ import annotations

import pytest

from logstore.errors import FencedIncarnation
from logstore.testing.world import SimulatedStore
from tests.log.test_readers import HOUR_MS, acknowledge, after_an_hour, append, key_of, register, world_of


def register_as(world: SimulatedStore, number: int, offset: int, *, keep: bool = False) -> None:
    """Register the reader `r` for an incarnation of its query, durably."""
    ticket = world.store.readers.register("r", {key_of(world): offset}, keep=keep, incarnation_number=number)
    world.run()
    ticket.result()


def test_an_older_incarnation_moves_nothing_and_keeps_nothing_alive() -> None:
    """Its acknowledgements and registrations are refused by name, also after a restart; the newer reader goes idle as
    if the older incarnation were silent.
    """
    world = world_of(max_idle_ms=3 * HOUR_MS)
    append(world, 4)
    register_as(world, 1, 0)
    register_as(world, 2, 1)
    for _ in range(2):
        for number in (0, 1):
            with pytest.raises(FencedIncarnation, match="belongs to incarnation 2"):
                world.store.readers.acknowledge("r", {key_of(world): 3}, number).result()
        for keep in (False, True):
            with pytest.raises(FencedIncarnation, match="this is incarnation 1"):
                register_as(world, 1, 3, keep=keep)
        found = world.store.readers.describe("r")
        assert (dict(found.held), found.incarnation_number) == ({key_of(world): 1}, 2)
        world.restart(clean=False)
    world.clock.advance(HOUR_MS)
    with pytest.raises(FencedIncarnation):
        world.store.readers.acknowledge("r", {key_of(world): 1}, 1).result()
    assert world.store.readers.describe("r").idle_ms >= HOUR_MS
    assert after_an_hour(world) == 1
    world.store.readers.acknowledge("r", {key_of(world): 3}, 2).result()
    world.store.save_readers()
    world.run()
    assert after_an_hour(world) == 3


def test_readers_without_an_incarnation_go_on_as_ever() -> None:
    """A registration without a number takes the number away; an acknowledgement with a number brings its own."""
    world = world_of()
    append(world, 3)
    register_as(world, 7, 0)
    register(world, "r", 0)
    acknowledge(world, "r", 1)
    assert world.store.readers.describe("r").incarnation_number == 0
    world.store.readers.acknowledge("r", {key_of(world): 2}, 3).result()
    with pytest.raises(FencedIncarnation, match="a reader without an incarnation"):
        acknowledge(world, "r", 2)
    world.store.save_readers()
    world.run()
    world.restart(clean=False)
    assert world.store.readers.describe("r").incarnation_number == 3

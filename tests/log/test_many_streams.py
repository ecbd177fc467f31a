"""Topics of very many partitions: they are made as a whole, in turns between which everybody else is served."""

import gc
import weakref
from pathlib import Path
from random import Random

import pytest

from logstore.base.collector import MANY, THAWED
from logstore.log.store import NEW_STREAMS_PER_TURN, Topic
from logstore.log.ticket import Ticket
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import Setup, SimulatedStore
from tests.kafka.node import NOW_MS, Node, running
from tests.kafka.test_admin_topics import DELETE, GROW, create, wanted

STREAMS = 40 * NEW_STREAMS_PER_TURN


def partitions(world: SimulatedStore, topic: str) -> int:
    """Those that clients see."""
    found = world.store.topics.get(topic)
    return 0 if found is None else len(found.partitions)


@pytest.mark.parametrize("grown", [False, True])
def test_others_are_served_while_many_streams_are_made(grown: bool) -> None:
    """Appends that come in meanwhile are acknowledged at once, and nobody sees some of the partitions only."""
    world = SimulatedStore(SimDisk(), History(), Setup())
    world.create_topic("t", 1)
    world.create_topic("many", 1)
    world.run()
    name, before = ("many", 1) if grown else ("others", 0)
    made: Ticket[Topic] = (
        world.store.add_partitions(name, STREAMS) if grown else world.store.create_topic(name, STREAMS, {})
    )
    acked = 0
    while not made.done:
        ticket = world.append("t", 0)
        while not (ticket.done or made.done):
            assert partitions(world, name) == before
            world.run(1)
        acked += ticket.done
    assert made.error is None
    assert partitions(world, name) == STREAMS
    assert acked >= 4


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_while_many_streams_are_made_leaves_all_or_none(seed: int) -> None:
    """The entry in the catalogue decides: behind it the next start makes all of them."""
    found = set()
    for steps in range(1, 16):
        disk = SimDisk()
        world = SimulatedStore(disk, History(), Setup())
        world.run()
        world.store.create_topic("t", 3 * NEW_STREAMS_PER_TURN, {})
        world.driver.run(steps)
        after = SimulatedStore(disk.crash(Random(seed)), History(), Setup())
        assert partitions(after, "t") in (0, 3 * NEW_STREAMS_PER_TURN)
        found.add(partitions(after, "t"))
    assert found == {0, 3 * NEW_STREAMS_PER_TURN}


async def test_many_streams_cost_no_full_collection(tmp_path: Path) -> None:
    """Python's collector does not search all streams while they are made; deleted ones are freed all the same."""
    full = 0

    def count(phase: str, details: dict[str, int]) -> None:
        nonlocal full
        full += phase == "start" and details["generation"] == 2

    async def delete(node: Node, name: str) -> None:
        await node.ask(DELETE, 5, topic_names=[name])

    async with running(tmp_path) as node:
        gc.collect()
        gc.callbacks.append(count)
        try:
            await create(node, wanted("many", 10 * MANY))
            await node.ask(
                GROW, 3, topics=[{"name": "many", "count": THAWED, "assignments": None}], validate_only=False
            )
        finally:
            gc.callbacks.remove(count)
        assert full == 0
        assert gc.get_freeze_count() > THAWED
        await node.append("many", [NOW_MS], 7)
        known = [weakref.ref(stream) for stream in node.store.topic("many").partitions]
        assert len(known) == THAWED
        gc.disable()
        try:
            await delete(node, "many")
        finally:
            gc.enable()
        assert sum(stream() is not None for stream in known) <= 1, "the one that was written to is quiet, or being"
        assert gc.get_freeze_count() == 0
        gc.collect()

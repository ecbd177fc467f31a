"""Damage of a replica in what was durable: a start names it, or finds all that was confirmed; it never finds less."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from logstore.errors import CairnError
from logstore.events import DURABLE_DATA_DAMAGED, JOURNAL_DAMAGED, REPLICA_FOUND_DAMAGED
from logstore.log.replica_chunk import ChunkPrefix
from logstore.log.replicas import StoredReplica
from logstore.log.store import Store
from logstore.testing.clock import ManualClock
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, Setup, journaled
from tests.cluster.batches import STREAM, TOPIC_ID
from tests.crash.replica_world import ReplicaHistory, ReplicaWorld

pytestmark = pytest.mark.crash

SMALL, LARGE, CUT = (STREAM, 1), (f"{TOPIC_ID}/1", 1), (STREAM, 2)
BYTES_APART = 5


def used(setup: Setup, *, is_noted: bool) -> ReplicaWorld:
    """Replicas with small and large writes, the last one cut. `is_noted`: nothing was written for some seconds."""
    world = ReplicaWorld(SimDisk(unit_bytes=64), ReplicaHistory(), setup)
    for key, count, size in ((SMALL, 2, 30), (SMALL, 1, 30), (LARGE, 3, 300), (SMALL, 2, 30), (LARGE, 1, 30)):
        world.write(key, count, value_bytes=size)
        world.run()
    world.write(CUT, 2)
    world.write(CUT, 2)
    world.run()
    world.cut(CUT, 3)
    world.run()
    world.write(SMALL)
    world.run()
    for _ in range(2 if is_noted else 0):
        world.tick()
        world.run()
    return world


def opened(world: ReplicaWorld, disk: SimDisk) -> tuple[Store, RecordedReports]:
    """The store at the next start."""
    reports = RecordedReports()
    clock = ManualClock(FIRST_TIMESTAMP)
    store = Store.open(disk, clock, world.setup.settings, new_id=lambda: uuid.UUID(int=5), report=reports)
    return store, reports


def verdicts(world: ReplicaWorld, found: dict[tuple[str, int], StoredReplica]) -> Iterator[str]:
    """What a start says of each chunk."""
    for key, chunk in world.history.chunks.items():
        (state,) = chunk.possible()
        assert state is not None
        end = ChunkPrefix(*chunk.sent[state.incarnation].ends[state.length])
        here = found.get(key)
        if here is None:
            yield "gone"
        elif here.is_damaged:
            yield "damaged"
        else:
            yield "whole" if (here.end, here.is_sealed) == (end, state.is_sealed) else f"{here} in place of {end}"


@pytest.mark.parametrize("setup", [journaled(), Setup()], ids=["journal", "direct"])
def test_a_flipped_bit_never_makes_a_replica_shorter(setup: Setup) -> None:
    """In a file of a replica, in the journal, in the ledger: once nothing was written for some seconds, the ledger
    knows what there was. A damaged ledger refuses the start.
    """
    world = used(setup, is_noted=True)
    disk = world.disk.kill_state()
    seen: Counter[str] = Counter()
    for path, content in list(disk.files()):
        if content is None or not path.startswith(("replicas/", "journal/", "ledger/replicas", "ledger/quiet")):
            continue
        for at in range(0, len(content), BYTES_APART):
            flipped = disk.kill_state()
            flipped.flip_bit(path, 8 * at + at % 8)
            try:
                store, _ = opened(world, flipped)
            except CairnError:
                assert path.startswith("ledger/replicas")
                seen["refused"] += 1
                continue
            if path.startswith("ledger/replicas"):
                continue  # its last frame looks like one that was being written
            for verdict in verdicts(world, store.replicas.stored()):
                assert verdict in ("whole", "damaged"), f"{path} byte {at}: {verdict}"
                seen[verdict] += 1
    assert seen["damaged"] > 10
    assert seen["refused"] > 10


def remove_tree(disk: SimDisk, directory: str) -> None:
    """Remove a replica's directory."""
    for name in disk.list_directory(directory):
        disk.remove(f"{directory}/{name}")
    disk.remove_directory(directory)


def remove_files(ending: str) -> Callable[[SimDisk, str], None]:
    """Removes files of a replica."""

    def damage(disk: SimDisk, directory: str) -> None:
        for name in disk.list_directory(directory):
            if name.endswith(ending):
                disk.remove(f"{directory}/{name}")

    return damage


def cut_log(disk: SimDisk, directory: str) -> None:
    """Take the last batches from a replica's file."""
    for name in disk.list_directory(directory):
        if name.endswith(".log"):
            disk.truncate(f"{directory}/{name}", disk.size(f"{directory}/{name}") // 2)


def empty_log(disk: SimDisk, directory: str) -> None:
    """Take all batches from a replica's file."""
    for name in disk.list_directory(directory):
        if name.endswith(".log"):
            disk.truncate(f"{directory}/{name}", 0)


DAMAGES = (remove_tree, remove_files(".log"), remove_files(".producers"), cut_log, empty_log)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__qualname__.partition(".")[0])
@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize("at", [LARGE, CUT], ids=["open", "sealed"])
def test_a_replica_that_lost_files_says_so_again_and_again(
    damage: Callable[[SimDisk, str], None], at: tuple[str, int], *, is_noted: bool
) -> None:
    """Also at the starts that follow, when nothing of the damage may show any more; it can be removed then."""
    world = used(Setup(), is_noted=is_noted)
    replica = world.store.replicas.find(*at)
    assert replica is not None
    disk = world.disk.kill_state()
    damage(disk, replica.name.directory)
    for _ in range(3):
        store, reports = opened(world, disk)
        found = store.replicas.stored()
        assert [one["directory"] for one in reports.of(REPLICA_FOUND_DAMAGED)] == [
            replica.name.directory for _ in range(found[at].is_damaged)
        ]
        if damage is DAMAGES[2] and at == CUT:
            assert not found[at].is_damaged  # the state of producers of a sealed chunk is looked at when it is read
        else:
            assert found[at].is_damaged
        assert not found[SMALL].is_damaged
        disk = disk.kill_state()
    world.fs = world.disk = disk
    store, _ = opened(world, disk)
    store.replicas.remove(*at)
    world.driver = type(world.driver)(store.queue, disk)
    world.run()
    store, _ = opened(world, disk.kill_state())
    assert at not in store.replicas.stored()


def test_replicas_whose_common_directory_is_gone_are_damaged() -> None:
    """The ledger knows of them: the host does not begin as one that never had any."""
    world = used(Setup(), is_noted=True)
    disk = world.disk.kill_state()
    for directory in disk.list_directory("replicas"):
        remove_tree(disk, f"replicas/{directory}")
    disk.remove_directory("replicas")
    store, _ = opened(world, disk)
    found = store.replicas.stored()
    assert set(found) == {SMALL, LARGE, CUT}
    assert all(replica.is_damaged for replica in found.values())


def test_a_lost_block_of_the_journal_damages_what_it_may_have_had() -> None:
    """Every open replica that was written to of late may lack something; sealed ones are known to be whole."""
    world = used(journaled(), is_noted=False)
    disk = world.disk.kill_state()
    path = max(path for path, content in disk.files() if content and path.startswith("journal/"))
    disk.flip_bit(path, 8 * 120)
    store, reports = opened(world, disk)
    assert reports.of(JOURNAL_DAMAGED)
    assert not reports.of(DURABLE_DATA_DAMAGED)
    found = store.replicas.stored()
    assert found[SMALL].is_damaged
    assert not found[CUT].is_damaged

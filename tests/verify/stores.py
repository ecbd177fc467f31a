"""Small data directories on a simulated disk, for checks of whole directories."""

from __future__ import annotations

from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import Setup, SimulatedStore


def stopped_store() -> SimulatedStore:
    """Two streams with plain records, an idempotent producer and append groups, over several chunks; cleanly closed."""
    world = SimulatedStore(SimDisk(), History(), Setup())
    world.create_topic("t", 2)
    world.run()
    world.append("t", records=2)
    world.append("t", producer=(5, 0, 0))
    world.append_group("t", 0, 0, batches=2)
    world.append("t", 1)
    world.run()
    for _ in range(3):
        world.append("t", value_bytes=150)
        world.run()
    world.put()
    world.run()
    world.restart(clean=True)
    assert len(world.store.stream("t", 0).chunks) >= 2
    return world


def flipped(disk: SimDisk, path: str, bit: int) -> SimDisk:
    """A copy of a disk with one bit of a file turned over."""
    copy = disk.kill_state()
    copy.flip_bit(path, bit)
    return copy


def contents(disk: SimDisk) -> dict[str, bytes | None]:
    """All names and bytes of a disk."""
    return dict(disk.files())

"""`cairn verify` knows what has left the disk, and what it says of a tier that lacks it."""

from __future__ import annotations

import pytest

from logstore.format.tiered_chunk import LOG_SUFFIX, TieredChunk
from logstore.log.ledger import Ledger
from logstore.log.tiered import NAME
from logstore.testing.history import History
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import SimulatedStore
from logstore.verify.directory import verify
from tests.crash.tiers import stores, tiered


@pytest.fixture
def world() -> SimulatedStore:
    """A store with chunks in the tier, which was stopped."""
    made = SimulatedStore(SimDisk(unit_bytes=64), History(), tiered())
    stores(made)
    made.store.close()
    made.run()
    return made


def test_a_store_with_a_tier_is_clean(world: SimulatedStore) -> None:
    """Nothing is said of a directory whose older chunks are in the tier."""
    assert [found.kind for found in verify(world.disk).damages] == []


def test_a_chunk_that_is_nowhere_is_found(world: SimulatedStore) -> None:
    """An entry of the ledger that is gone, with the local copy gone as well, is offsets that are missing."""
    stream = world.store.stream("t", 0)
    lost: TieredChunk = stream.tiered.all()[1]
    ledger = Ledger.open(world.disk, NAME, lambda _: None)
    key = next(key for key, _ in ledger.items() if key.endswith(f"/{lost.base_offset:020d}"))
    ledger.put_now(world.disk, {key: None})
    (found,) = verify(world.disk).damages
    assert (found.kind, found.first_offset) == ("offsets-missing", lost.base_offset)


def test_an_entry_that_says_nothing_is_found(world: SimulatedStore) -> None:
    """An entry of the ledger that no sidecar has written is named."""
    ledger = Ledger.open(world.disk, NAME, lambda _: None)
    key = next(key for key, _ in ledger.items() if key.startswith("chunk/"))
    ledger.put_now(world.disk, {key: b"{}"})
    kinds = {found.kind for found in verify(world.disk).damages}
    assert "ledger-entry-damaged" in kinds


def test_keys_are_those_of_the_format(world: SimulatedStore) -> None:
    """CLUSTER/TOPIC.ID/PARTITION/BASE-ATTEMPT/BASE.log, and the object is the chunk as it was."""
    stream = world.store.stream("t", 0)
    chunk = stream.tiered.all()[0]
    cluster, topic, partition, directory, name = chunk.key(LOG_SUFFIX).split("/")
    assert cluster == world.store.cluster_id
    assert topic == f"t.{world.store.topic('t').topic_id.hex}"
    assert (partition, directory, name) == ("0", f"{0:020d}-{chunk.attempt}", f"{0:020d}.log")

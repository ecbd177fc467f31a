"""Mistakes that a tier can make, put in one at a time: the enumerator finds each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from logstore.format.tiered_chunk import TieredChunk
from logstore.log.readers import StreamId
from logstore.log.ticket import Ticket
from logstore.log.tiered import TieredChunks, TierLedger
from logstore.testing.crash import CrashPlan, Enumerator, Workload
from logstore.testing.directory_objects import DirectoryObjects
from logstore.testing.history import PromiseBroken
from logstore.testing.simdisk import CrashBounds
from logstore.testing.world import Setup
from logstore.tier import upload
from logstore.tier.sweeps import Sweeps, Swept
from logstore.tier.tiering import Tiering
from tests.crash import tiers

pytestmark = [pytest.mark.crash, pytest.mark.slow]
Patch = pytest.MonkeyPatch
PLAN = CrashPlan(
    bounds=CrashBounds(states=4, file_states=4, torn_bytes=8), second_share=2, recovery_share=200, kill_share=8
)


class Damaging(DirectoryObjects):
    """A store that keeps other bytes than it was given, as memory or a network may."""

    def put(self, key: str, size_bytes: int, pieces: Iterable[bytes], chain: Sequence[str] = ()) -> None:
        """See ObjectStore."""
        data = bytearray(b"".join(pieces))
        data[len(data) // 2] ^= 1
        super().put(key, size_bytes, [bytes(data)], chain)


class Partial(DirectoryObjects):
    """A store that writes under the object's own name."""

    def put(self, key: str, size_bytes: int, pieces: Iterable[bytes], chain: Sequence[str] = ()) -> None:
        """See ObjectStore."""
        path, written = self._path(key), 0
        self._make(path.rpartition("/")[0])
        self._fs.create(path)
        for piece in pieces:
            for at in range(0, len(piece), 100):
                self._fs.write(path, written + at, [piece[at : at + 100]])
            written += len(piece)
        self._fs.sync(path)
        self._fs.sync_directory(path.rpartition("/")[0])


def nothing_is_read_back(patch: Patch) -> Setup:
    """What was stored is not read back, and the local copy goes: the store had other bytes."""
    patch.setattr(upload, "read_back", lambda objects, stored: None)
    return replace(tiers.tiered(), tier=Damaging)


def wrong_checksums_are_accepted(patch: Patch) -> Setup:
    """What is read back is compared by its length alone."""

    def read_back(objects: Any, stored: TieredChunk) -> None:
        for suffix, expected in stored.objects().items():
            if objects.checksum(stored.key(suffix)).size_bytes != expected.size_bytes:
                raise AssertionError(suffix)

    patch.setattr(upload, "read_back", read_back)
    return replace(tiers.tiered(), tier=Damaging)


def parts_are_visible(_: Patch) -> Setup:
    """An object has its name before it is whole."""
    return replace(tiers.tiered(), tier=Partial)


def the_local_copy_goes_before_the_entry(patch: Patch) -> Setup:
    """The entry of a chunk is on its way to the disk when the local copy goes."""
    add, pending = TierLedger.add, list[tuple[StreamId, TieredChunk]]()

    def later(ledger: TierLedger, stream: StreamId, chunk: TieredChunk) -> Ticket[None]:
        pending.append((stream, chunk))
        return Ticket.succeeded(None)

    def first(ledger: TierLedger, stream: StreamId, offset: int) -> Ticket[None]:
        ticket = Ticket.succeeded(None)
        while pending:
            add(ledger, *pending.pop(0))
        return ticket

    patch.setattr(TierLedger, "add", later)
    patch.setattr(TierLedger, "set_local_start", first)
    return tiers.tiered()


def the_local_start_is_not_noted(patch: Patch) -> Setup:
    """Local files go, and no entry says from which offset on they are there."""
    patch.setattr(TierLedger, "set_local_start", lambda ledger, stream, offset: Ticket.succeeded(None))
    return tiers.tiered()


def objects_go_before_their_entry(patch: Patch) -> Setup:
    """The objects of deleted records are removed first, and then the entry."""
    forget = Tiering._forget

    async def early(self: Tiering, stream_id: StreamId, chunks: Sequence[TieredChunk]) -> None:
        await self._sweeps.remove_chunks(chunks)
        await forget(self, stream_id, chunks)

    patch.setattr(Tiering, "_forget", early)
    return tiers.tiered()


def copies_go_that_are_not_in_the_tier(patch: Patch) -> Setup:
    """Local retention does not look whether the tier has a chunk."""
    patch.setattr(TieredChunks, "has", lambda self, chunk: True)
    return tiers.tiered()


def the_sweep_removes_what_is_named(patch: Patch) -> Setup:
    """The sweep knows what this life has stored, and not what earlier ones have."""
    start = Tiering.__init__

    def forgetful(self: Tiering, *arguments: Any) -> None:
        start(self, *arguments)
        self._known.clear()

    patch.setattr(Tiering, "__init__", forgetful)
    return tiers.tiered()


def nothing_is_swept(patch: Patch) -> Setup:
    """What a crash left in the store stays."""

    async def nothing(self: Sweeps, prefix: str, swept: Swept) -> bool:
        return False

    patch.setattr(Sweeps, "step", nothing)
    return tiers.tiered()


BUGS: Sequence[tuple[Callable[[Patch], Setup], Workload]] = (
    (nothing_is_read_back, tiers.stores),
    (wrong_checksums_are_accepted, tiers.stores),
    (parts_are_visible, tiers.stores),
    (the_local_copy_goes_before_the_entry, tiers.stores),
    (the_local_start_is_not_noted, tiers.stores),
    (objects_go_before_their_entry, tiers.trims),
    (copies_go_that_are_not_in_the_tier, tiers.stores),
    (the_sweep_removes_what_is_named, tiers.stores),
    (nothing_is_swept, tiers.deletes),
)


@pytest.mark.parametrize(("plant", "story"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_planted_bug_is_found(plant: Callable[[Patch], Setup], story: Workload, monkeypatch: Patch) -> None:
    """The enumerator finds a state or a moment in which a promise is broken."""
    with pytest.raises(PromiseBroken) as found:
        Enumerator(story, plant(monkeypatch), PLAN).run()
    print(str(found.value)[:300])

"""A check of a data directory with replicas: no crash is called damage, and what a start calls damage is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

import logstore.log.replica_chunk
from logstore.testing.crash import CrashPlan
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, journaled
from logstore.verify.directory import verify
from tests.crash.test_replica_damage import DAMAGES, LARGE, used
from tests.crash.test_replicas import WORKLOADS, Enumerator, Workload, cuts, removals
from tests.crash.tiny import make_tiny

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny(monkeypatch)
    monkeypatch.setattr(logstore.log.replica_chunk, "KNOWN_INTERVAL_BYTES", 300)


class CheckedStates(Enumerator):
    """Checks each state that a crash may leave, in place of opening it."""

    notes: set[str]
    states = 0

    def _open(self, disk: SimDisk, origin: str, *, again: bool) -> None:
        findings = verify(disk)
        assert not findings.damages, f"{origin}: {findings.damages[0]}"
        self.notes |= {finding.kind for finding in findings.found}
        self.states += 1

    def _crash_recovery(self, state: SimDisk, origin: str) -> None:
        self._open(state, origin, again=False)


EXPECTED: Mapping[Workload, set[str]] = {cuts: {"replica-cut"}, removals: {"replica-removed"}}


@pytest.mark.parametrize("setup", [journaled(), Setup()], ids=["journal", "direct"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.__name__)
def test_no_crash_is_called_damage(workload: Workload, setup: Setup) -> None:
    """Any subset of un-synced data and names, torn at any byte: notes at most."""
    plan = CrashPlan(bounds=CrashBounds(states=8, file_states=8, torn_bytes=8, name_changes=4), unit_bytes=64)
    checked = CheckedStates(workload, setup, plan)
    checked.notes = set()
    checked.run()
    assert checked.states > 50
    assert checked.notes >= EXPECTED.get(workload, set())


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__qualname__.partition(".")[0])
def test_lost_files_of_a_replica_are_damage(damage: Callable[[SimDisk, str], None]) -> None:
    """As a start says; without its producers' state a replica is damaged for a start only."""
    world = used(Setup(), is_noted=True)
    replica = world.store.replicas.find(*LARGE)
    assert replica is not None
    disk = world.disk.kill_state()
    assert not verify(disk).damages
    damage(disk, replica.name.directory)
    assert bool(verify(disk).damages) == (damage is not DAMAGES[2])


def test_a_replica_with_another_leader_epoch_than_it_may_have_is_damaged() -> None:
    """A leader epoch above the chunk's, in the header of the first batch, where no checksum covers it."""
    world = used(Setup(), is_noted=True)
    replica = world.store.replicas.find(*LARGE)
    assert replica is not None
    disk = world.disk.kill_state()
    path = next(path for path, _ in disk.files() if path.startswith(replica.name.directory) and path.endswith(".log"))
    disk.flip_bit(path, 8 * 15 + 3)
    assert verify(disk).damages

"""A check never calls damage what a kill or a power cut leaves, at any write or sync point."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from logstore.testing.crash import CrashPlan, Enumerator, Workload, digest
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, journaled
from logstore.verify.directory import verify
from tests.crash import workloads
from tests.crash.test_decisions import decided_in_blocks
from tests.crash.tiny import make_tiny
from tests.support.examples import is_long

pytestmark = pytest.mark.crash


class CheckedStates(Enumerator):
    """Checks each state that a crash may leave, in place of opening it."""

    def __init__(self, workload: Workload, plan: CrashPlan, setup: Setup) -> None:
        super().__init__(workload, setup, plan)
        self._checked: set[bytes] = set()
        self.notes: set[str] = set()

    @property
    def states(self) -> int:
        """How many different states were checked."""
        return len(self._checked)

    def _try(self, state: SimDisk, origin: str) -> None:
        key = digest(state)
        if key in self._checked:
            return
        self._checked.add(key)
        findings = verify(state)
        assert not findings.damages, f"{origin}: {findings.damages[0]}"
        self.notes |= {finding.kind for finding in findings.found}

    def _try_kill(self, origin: str) -> None:
        self._try(self._disk.kill_state(), f"killed {origin}")


EXPECTED: Mapping[Workload, set[str]] = {
    workloads.appends: {"torn-end", "index-incomplete", "unknown-topic"},
    workloads.trims: {"stale-file"},
    workloads.groups: {"group-torn"},
    workloads.ledgers: {"ledger-torn"},
    workloads.commits: {"staged-torn"},
    workloads.cleans: {"stale-file"},
}
"""Notes that a workload's crashes must bring about: otherwise it did not reach what it is for."""


STORIES = [
    *((f"{workload.__name__}-direct", workload, Setup(seed=1)) for workload in workloads.WORKLOADS),
    *((f"{workload.__name__}-journaled", workload, journaled(Setup(seed=1))) for workload in workloads.WORKLOADS),
    ("decisions", workloads.decisions, decided_in_blocks()),
]


@pytest.mark.parametrize(("workload", "setup"), [story[1:] for story in STORIES], ids=[name for name, *_ in STORIES])
def test_no_crash_is_called_damage(
    workload: Workload, setup: Setup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any subset of un-synced data and names, torn at any byte: notes at most."""
    make_tiny(monkeypatch)
    states, torn_bytes = (64, 4096) if is_long() else (6, 6)
    plan = CrashPlan(bounds=CrashBounds(states=states, file_states=states, torn_bytes=torn_bytes, name_changes=4))
    checked = CheckedStates(workload, plan, setup)
    checked.run()
    with capsys.disabled():
        print(f"\n  {workload.__name__}: {checked.states} states checked")
    assert checked.states > 50
    assert checked.notes >= EXPECTED.get(workload, set())

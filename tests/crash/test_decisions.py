"""Epochs that are decided and published by one block of the journal: under every crash, with every call failed, and with
the defects that such a path can have planted one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.epochs.epoch_block import BlockOutcome, EpochBlock
from logstore.errors import CairnError
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.testing.crash import CrashPlan, Enumerator
from logstore.testing.history import History
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore
from logstore.testing.world import journaled as with_journal
from tests.crash import workloads
from tests.crash.test_faults import FAULTS, count_calls, run_with_fault
from tests.support.examples import is_long

pytestmark = pytest.mark.crash
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], Setup]


def decided_in_blocks(setup: Setup | None = None) -> Setup:
    """A setup in which small epochs are decided in the journal, whose files are soon full."""
    found = with_journal(setup or Setup(seed=1))
    journal = replace(found.settings.journal, file_bytes=2500)
    topics = TopicConfig(segment_bytes=8192)
    return replace(found, settings=replace(found.settings, topic_defaults=topics, journal=journal))


# ---- without a defect


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("unit_bytes", [64, 512])
def test_no_crash_state_breaks_a_promise(unit_bytes: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a power cut keeps: an epoch is everywhere or nowhere, its decision with it, and no older incarnation
    adds one behind a newer.
    """
    plan = CrashPlan(
        bounds=CrashBounds(states=1024, file_states=256)
        if is_long()
        else CrashBounds(states=6, file_states=6, torn_bytes=8),
        second_share=20 if is_long() else 40,
        recovery_share=20 if is_long() else 200,
        kill_share=1 if is_long() else 4,
        unit_bytes=unit_bytes,
        point_share=1 if is_long() else 3,
        point_rest=0 if is_long() else (64, 512).index(unit_bytes),
    )
    report = Enumerator(workloads.decisions, decided_in_blocks(), plan).run()
    with capsys.disabled():
        print(f"\n  decisions, units of {unit_bytes} B: {report}")
    assert report.coverage.states > 100


def test_the_story_decides_in_blocks(monkeypatch: Patch) -> None:
    """Of its six epochs five are small: each is one block, and the workload above is about what it says."""
    outcomes: list[BlockOutcome] = []
    original = EpochBlock.offer

    def offer(self: EpochBlock) -> Ticket[BlockOutcome]:
        outcome = original(self)
        outcome.add_callback(lambda ticket: outcomes.append(ticket.result()))
        return outcome

    monkeypatch.setattr(EpochBlock, "offer", offer)
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), decided_in_blocks())
    workloads.decisions(world)
    assert outcomes == [BlockOutcome.DURABLE] * 5


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FAULTS)
def test_every_call_fails_in_turn(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One call fails, all others work: what was answered is there, and a restart finds all of an epoch or nothing."""
    setup = decided_in_blocks(Setup(seed=3))
    calls = count_calls(workloads.decisions, setup)
    numbers = range(0, calls, 1 if is_long() else 4)
    for number in numbers:
        try:
            run_with_fault(workloads.decisions, number, FAULTS[name], setup)
        except (AssertionError, CairnError, OSError) as error:
            raise AssertionError(f"call {number} of {calls} fails with {name}: {error!r}") from error
    with capsys.disabled():
        print(f"\n  decisions: {len(numbers)} of {calls} calls failed with {name}")

"""Epochs that are decided and published by one block of the journal: under every crash, with every call failed, and
with the defects that such a path can have, planted one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from logstore.epochs import journaled
from logstore.epochs.commit_in_progress import CommitInProgress
from logstore.epochs.epoch_block import BlockOutcome, EpochBlock
from logstore.epochs.epochs import Epochs
from logstore.epochs.ledger_entries import INCARNATIONS, MAX_INCARNATIONS, EpochState, encode_incarnations
from logstore.epochs.query import Query
from logstore.errors import CairnError
from logstore.format import journal_block
from logstore.log.jobs import Operation, Sync
from logstore.log.journal import SUFFIX
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.testing.crash import CrashPlan, Enumerator, Workload
from logstore.testing.faults import EIO, FALSE_ALARM, Fault, FileCall
from logstore.testing.history import History, PromiseBroken
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore
from logstore.testing.world import journaled as with_journal
from tests.crash import workloads
from tests.crash.test_faults import FAULTS, count_calls, run_with_fault
from tests.support.examples import is_long

pytestmark = pytest.mark.crash
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], Setup]
UNITS = (64, 512)


def decided_in_blocks(setup: Setup | None = None) -> Setup:
    """A setup in which small epochs are decided in the journal, whose files are soon full."""
    found = with_journal(setup or Setup(seed=1))
    journal = replace(found.settings.journal, file_bytes=2500)
    topics = TopicConfig(segment_bytes=8192)
    return replace(found, settings=replace(found.settings, topic_defaults=topics, journal=journal))


# ---- without a defect


def plan_for(unit_bytes: int) -> CrashPlan:
    """A choice in the short run, nearly everything in the long one."""
    if is_long():
        return CrashPlan(
            bounds=CrashBounds(states=256, file_states=128), second_share=20, recovery_share=40, unit_bytes=unit_bytes
        )
    return CrashPlan(
        bounds=CrashBounds(states=4, file_states=4, torn_bytes=4),
        second_share=60,
        recovery_share=400,
        kill_share=6,
        unit_bytes=unit_bytes,
        point_share=2 * len(UNITS),
        point_rest=UNITS.index(unit_bytes),
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("unit_bytes", UNITS)
def test_no_crash_state_breaks_a_promise(unit_bytes: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a power cut keeps: an epoch is everywhere or nowhere, its decision with it, and no older incarnation
    adds one behind a newer.
    """
    report = Enumerator(workloads.decisions, decided_in_blocks(), plan_for(unit_bytes)).run()
    with capsys.disabled():
        print(f"\n  decisions, units of {unit_bytes} B: {report}")
    assert report.coverage.states > 100


def test_the_story_decides_in_blocks(monkeypatch: Patch) -> None:
    """Of its six epochs the five small ones are a block each: so the workload above is about what it says."""
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
    numbers = range(0, calls, 1 if is_long() else 12)
    for number in numbers:
        try:
            run_with_fault(workloads.decisions, number, FAULTS[name], setup)
        except (AssertionError, CairnError, OSError) as error:
            raise AssertionError(f"call {number} of {calls} fails with {name}: {error!r}") from error
    with capsys.disabled():
        print(f"\n  decisions: {len(numbers)} of {calls} calls failed with {name}")


# ---- stories


def begun(setup: Setup) -> SimulatedStore:
    """Two streams with a record each, and a query that has committed an epoch in a block."""
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), setup)
    begin(world)
    return world


def begin(world: SimulatedStore) -> None:
    """The same, on a world that is there."""
    world.create_topic("t", 2)
    world.run()
    world.append("t", 0)
    world.append("t", 1)
    world.run()
    world.take_over("run-1")
    world.stage("t", 0, "run-1")
    world.commit(0, "run-1")


def two_epochs(world: SimulatedStore) -> None:
    """An epoch in the block behind that of the first."""
    begin(world)
    world.stage("t", 1, "run-1")
    world.commit(1, "run-1")


def a_large_one_behind(world: SimulatedStore) -> None:
    """An epoch that only the ledger decides, behind one of a block."""
    begin(world)
    world.stage("t", 1, "run-1", value_bytes=500)
    world.commit(1, "run-1")


def a_kill_behind_the_answer(world: SimulatedStore) -> None:
    """The sidecar ends as soon as an epoch is answered, and the next life commits another."""
    begin(world)
    world.stage("t", 1, "run-1")
    ticket = world.begin_commit(1, "run-1")
    while not ticket.done:
        world.run(1)
    world.restart(clean=False)
    world.stage("t", 2, "run-1")
    world.commit(2, "run-1")


def a_takeover(world: SimulatedStore) -> None:
    """A newer incarnation comes while a block is under way."""
    begin(world)
    world.stage("t", 1, "run-1")
    world.begin_commit(1, "run-1")
    world.take_over("run-2")
    world.run()


def look(world: SimulatedStore) -> None:
    """Open what a kill and some power cuts may leave now."""
    for state in [
        world.disk.kill_state(),
        *world.disk.crash_states(CrashBounds(states=4, file_states=4, torn_bytes=2)),
    ]:
        try:
            SimulatedStore(state, world.history.fork(), world.setup).check()
        except (CairnError, OSError) as error:
            raise PromiseBroken(repr(error)) from error


def fail_once(kinds: Mapping[str, Fault], *, how_often: int = 1) -> Callable[[FileCall], Fault | None]:
    """The first syncs of each kind of file fail: the keys are parts of paths."""
    left = dict.fromkeys(kinds, how_often)

    def fault(call: FileCall) -> Fault | None:
        for part, found in kinds.items():
            if call.kind == "sync" and part in call.path and left[part]:
                left[part] -= 1
                return found
        return None

    return fault


def a_ledger_that_fails(setup: Setup) -> None:
    """An epoch's block is durable, the ledger refuses for long, and appends fill the journal's files meanwhile."""
    world = begun(setup)
    world.disk.fault_for = fail_once({"ledger/epochs": EIO}, how_often=1000)
    world.stage("t", 1, "run-1")
    assert world.commit(1, "run-1") == "committed"
    for turn in range(16):
        world.append("t", turn % 2, value_bytes=300)
        world.run()
        world.store.save_readers()
        world.epochs.tick(now_ms=world.clock.wall_ms())
        world.run()
    world.check()
    look(world)


def a_failed_block(setup: Setup, fault: Fault, *, ledger: Fault | None = None) -> None:
    """A block fails, and perhaps the ledger behind it: the epoch is decided all the same; then a takeover, and the
    epoch from the newer incarnation, which comes too late.
    """
    world = begun(setup)
    world.stage("t", 1, "run-1")
    faults = {SUFFIX: fault} if ledger is None else {SUFFIX: fault, "ledger/epochs": ledger}
    world.disk.fault_for = fail_once(faults)
    ticket = world.begin_commit(1, "run-1")
    while not ticket.done:
        world.run(1)
        look(world)
    world.abort(1, "run-1")
    world.take_over("run-2")
    world.run()
    world.check()
    look(world)
    world.stage("t", 1, "run-2")
    assert world.commit(1, "run-2") == "duplicate"
    world.check()
    look(world)


def a_record_that_may_be_there(setup: Setup) -> None:
    """The record of a large epoch fails though it is on the disk; the epoch is made again, small, for one stream."""
    world = begun(setup)
    world.stage("t", 1, "run-1", value_bytes=500)
    world.disk.fault_for = fail_once({"ledger/epochs": FALSE_ALARM})
    assert world.commit(1, "run-1") is None
    world.disk.fault_for = None
    world.stage("t", 1, "run-1", attempt="a1", partitions=1)
    ticket = world.begin_commit(1, "run-1", attempt="a1")
    while not ticket.done:
        world.run(1)
        look(world)
    world.check()


def test_the_stories_hold() -> None:
    """Without a defect, so it is the defects below that break them."""
    for story in (two_epochs, a_large_one_behind, a_kill_behind_the_answer, a_takeover):
        Enumerator(story, decided_in_blocks(), PLAN).run()
    a_ledger_that_fails(decided_in_blocks())
    a_record_that_may_be_there(decided_in_blocks())


def test_a_decision_outlives_the_memory_of_its_incarnation() -> None:
    """The ledger refuses what the block has, then takes as many incarnations as it remembers: the epoch stays."""
    world = begun(decided_in_blocks())
    world.run()
    world.disk.fault_for = fail_once({"ledger/epochs": EIO})
    world.stage("t", 1, "run-1")
    assert world.commit(1, "run-1") == "committed"
    for number in range(MAX_INCARNATIONS):
        world.take_over(f"run-{2 + number}")
        world.run()
    look(world)


@pytest.mark.parametrize("ledger", [None, EIO, FALSE_ALARM], ids=["", "ledger EIO", "ledger false alarm"])
@pytest.mark.parametrize("block", [EIO, FALSE_ALARM], ids=["EIO", "false alarm"])
def test_a_block_that_failed_is_decided(block: Fault, ledger: Fault | None) -> None:
    """Whether it is on the disk or not: no abort and no newer incarnation undoes it, in this life or the next."""
    a_failed_block(decided_in_blocks(), block, ledger=ledger)


# ---- planted

PLAN = CrashPlan(
    bounds=CrashBounds(states=6, file_states=6, torn_bytes=4),
    second_share=100,
    recovery_share=1000,
    kill_share=10,
    first_point=30,
)
"""Of the stories below, which all begin with a founding of the directory and two direct writes."""


def replay_ignores_it(patch: Patch) -> Setup:
    """A start looks into the ledger only."""
    patch.setattr("logstore.testing.world.decided_in_journal", lambda *_: {})
    return decided_in_blocks()


def replayed_over_newer(patch: Patch) -> Setup:
    """A start takes every decision in the journal, also those that the ledger has gone beyond."""
    patch.setattr(journaled, "_counts", lambda *_: True)
    return decided_in_blocks()


def the_first_decision_counts(patch: Patch) -> Setup:
    """Of two decisions of a query that the ledger lacks, a start takes the older."""
    original = journaled.newer_decisions
    patch.setattr(journaled, "newer_decisions", lambda entries, found: original(entries, list(reversed(found))))
    patch.setattr(Epochs, "_settle", lambda self, query: query.finished)
    return decided_in_blocks()


def groups_without_the_decision(patch: Patch) -> Setup:
    """The decision is not in the block with the groups; the ledger gets it behind the answer."""
    original = EpochBlock.take_parts

    def take_parts(self: EpochBlock) -> Any:
        parts = original(self)
        if parts:
            stream, flight = parts[-2]
            patch_journaled(self, stream, flight)
        return parts[:-1]

    def patch_journaled(block: EpochBlock, stream: Any, flight: Any) -> None:
        flight.group.ticket.add_callback(lambda _: block.outcome.succeed(BlockOutcome.DURABLE))

    patch.setattr(EpochBlock, "take_parts", take_parts)
    return decided_in_blocks()


def torn_block_believed(patch: Patch) -> Setup:
    """A block counts without its checksum."""
    patch.setattr(journal_block, "crc32c", lambda _data, _crc=0: 0)
    return decided_in_blocks()


def answered_before_the_sync(_: Patch) -> Setup:
    """A block counts when it is written."""

    def change(job: Sequence[Operation]) -> Sequence[Operation]:
        return [step for step in job if not (isinstance(step, Sync) and step.path.endswith(SUFFIX))]

    return decided_in_blocks(Setup(rewrite=change, seed=1))


def in_the_ledger_behind_the_journal(patch: Patch) -> Setup:
    """A start removes the journal's files before the ledger has the decisions that it found in them."""
    patch.setattr("logstore.log.ledger.Ledger.put_now", lambda self, _fs, changes: self.put(changes))
    return decided_in_blocks()


def fence_beside_the_block(patch: Patch) -> Setup:
    """A newer incarnation is durable, and answered, while a block of the older is under way."""

    async def fence(self: Epochs, query: Query) -> None:
        await self._ledger.put({f"{INCARNATIONS}{query.name}": encode_incarnations(query.incarnations)})

    patch.setattr(Epochs, "_fence", fence)
    return decided_in_blocks(Setup(seed=2))  # an order of jobs in which the answer comes while the block is under way


PLANTED: Sequence[tuple[Plant, Workload]] = (
    (replay_ignores_it, two_epochs),
    (replayed_over_newer, a_large_one_behind),
    (the_first_decision_counts, two_epochs),
    (groups_without_the_decision, two_epochs),
    (torn_block_believed, two_epochs),
    (answered_before_the_sync, two_epochs),
    (in_the_ledger_behind_the_journal, a_kill_behind_the_answer),
    (fence_beside_the_block, a_takeover),
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("plant", "story"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_the_enumerator_finds_it(plant: Plant, story: Workload, monkeypatch: Patch) -> None:
    """With the defect in place, some crash of the story breaks a promise."""
    setup = plant(monkeypatch)
    with pytest.raises(PromiseBroken) as caught:
        Enumerator(story, setup, PLAN).run()
    assert isinstance(caught.value.__cause__, PromiseBroken | CairnError | OSError | None), caught.value
    print(plant.__name__, "→", caught.value)


def test_a_journal_cut_before_the_ledger_has_the_decision_is_found(monkeypatch: Patch) -> None:
    """If the decision does not hold the journal's file, the epoch is forgotten although it was answered."""
    original = Query.hold

    def hold(self: Query, block: EpochBlock | None) -> None:
        original(self, block)
        if block is not None:
            block.release()

    monkeypatch.setattr(Query, "hold", hold)
    with pytest.raises(PromiseBroken):
        a_ledger_that_fails(decided_in_blocks())


def lost_with_its_block(patch: Patch) -> None:
    """A block that failed counts as one that was never written: its record can be taken back."""
    original = Epochs._record

    async def record(self: Epochs, query: Query, commit: CommitInProgress) -> None:
        commit.is_owed = False
        await original(self, query, commit)

    patch.setattr(Epochs, "_record", record)


def published_without_a_record(patch: Patch) -> None:
    """Behind a failed block the groups are appended, and the ledger gets no decision."""
    original = Epochs._carry_out

    async def carry_out(self: Epochs, query: Query, commit: CommitInProgress) -> None:
        if await query.tried or not commit.is_owed:
            await original(self, query, commit)
        else:
            query.state = EpochState.PUBLISHING
            await self._publish(query, commit)

    patch.setattr(Epochs, "_carry_out", carry_out)


@pytest.mark.parametrize("plant", [lost_with_its_block, published_without_a_record], ids=lambda plant: plant.__name__)
def test_found_behind_a_failed_block(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """With the defect in place, an epoch comes back that was taken away, or is there in a part of its streams."""
    plant(monkeypatch)
    with pytest.raises((PromiseBroken, AssertionError)):
        for ledger in (None, EIO, FALSE_ALARM):
            for block in (FALSE_ALARM, EIO):
                a_failed_block(decided_in_blocks(), block, ledger=ledger)


def test_a_block_beside_a_record_that_may_be_there_is_found(monkeypatch: Patch) -> None:
    """With a record of another commit in the ledger, perhaps, a block would give the epoch to two executions."""
    monkeypatch.setattr(Query, "is_certain", property(lambda _: True))
    with pytest.raises(PromiseBroken):
        a_record_that_may_be_there(decided_in_blocks())

"""Runners with checkpoints: whatever dies, and whatever becomes of the checkpoints, output and state are exact."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings

from logstore.client.blocking import Client, parse_addresses
from logstore.errors import CairnError
from spe_adapter.cec.reconstruct import EventualCheckpoint
from spe_adapter.checkpoint.bases import StoredBase, stored_bases
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.continuous import core as core_module
from spe_adapter.continuous.checkpoints import covered_version
from spe_adapter.continuous.core import Core
from spe_adapter.continuous.loop import Recovered
from spe_adapter.continuous.paged_state import NO_CHECKPOINT, CheckpointStatus, CoveredVersion, bring_up
from spe_adapter.errors import StateTrimmed
from spe_adapter.state.table import Table
from tests.continuous.processes import RunnerProcess, Work, expected, produce
from tests.continuous.stories import Story, tell
from tests.continuous.test_kills import consumed
from tests.continuous.test_recovery import EXAMPLES, seeds, stories
from tests.continuous.test_registration import FLAGS, TRIMMED_AT_ONCE
from tests.continuous.world import Faults
from tests.support.sidecar import Sidecar

UNIT = Unit("story", 0)
_NONE = np.empty(0, np.int64)


class AtOnce:
    """Checkpoints that are written at the end of an epoch, by chance, without a thread; some are damaged afterwards.

    Only what a recovery can do without is damaged: the newest checkpoint, of whatever life, if the one before it is
    whole and of an epoch that the log has. A life that has damaged one writes none behind it, which could share the
    damaged file. `bad`: the sequence numbers of those that all lives have damaged or found without their epoch; None:
    none is damaged.
    """

    def __init__(self, core: Core, sink: DirectorySink, random: Random, bad: set[int] | None) -> None:
        self._sink = sink
        self._random = random
        self._bad = bad
        self._has_damaged = False
        self._new: list[CoveredVersion] = []
        self._manager = CheckpointManager(UNIT, core.freeze, ManagerTools(sink))
        self.loads = 0
        self.recoveries: list[int] = []

    def stored(self) -> Iterator[StoredBase]:
        """See UnitCheckpoints."""
        found = list(stored_bases(Finder(self._sink), UNIT))
        self.loads += bool(found)
        yield from found

    def complete(self) -> Sequence[CoveredVersion]:
        """See UnitCheckpoints."""
        new, self._new = self._new, []
        return new

    def unused(self, stored: StoredBase, why: str) -> None:
        """See UnitCheckpoints."""
        if self._bad is not None:
            self._bad.add(stored.manifest.seq)

    def wait_for_sink(self, lost: StateTrimmed) -> None:
        """See UnitCheckpoints: the sink is there."""
        raise lost

    def recovered(self, log_bytes: int, seconds: float, epoch: int) -> None:
        """See UnitCheckpoints."""
        assert log_bytes > 0
        assert seconds >= 0
        self.recoveries.append(epoch)

    def status(self) -> CheckpointStatus:
        """See UnitCheckpoints."""
        return CheckpointStatus()

    def ended(self, log_bytes: int, state_bytes: int) -> None:
        """See UnitCheckpoints."""
        assert log_bytes > 0
        assert state_bytes > 0
        if self._has_damaged:
            return
        if self._random.random() < 0.2:
            self.write()
        elif self._bad is not None and self._random.random() < 0.1:
            self._damage_newest(self._bad)

    def write(self) -> None:
        """Write a checkpoint of the epoch that ended last."""
        outcome = self._manager.checkpoint()
        assert not outcome.error
        if outcome.manifest is not None:
            self._new.append(covered_version(outcome.manifest))

    def _damage_newest(self, bad: set[int]) -> None:
        """The newest checkpoint loses a byte, if the one before it is there and serves."""
        found = list(stored_bases(Finder(self._sink), UNIT))
        if len(found) < 2:
            return
        name = found[0].manifest.name
        needed = {found[1].manifest.seq, *(part.seq for part in found[1].manifest.parts)}
        if needed & {*bad, name.seq} or "000" not in self._sink.files(name):
            return
        path = Path(self._sink.url.removeprefix("file://")) / str(name) / "000"
        path.write_bytes(path.read_bytes()[:-1])
        bad.add(name.seq)
        self._has_damaged = True


def check(story: Story, faults: Faults, seed: int, *, damage: bool) -> None:
    """The promise: as without checkpoints and without faults."""
    whole = tell(story)
    with tempfile.TemporaryDirectory() as directory:
        sink, random = DirectorySink(Path(directory)), Random(seed)
        bad: set[int] | None = set() if damage else None

        def checkpoints(core: Core) -> AtOnce:
            return AtOnce(core, sink, random, bad)

        broken = tell(story, faults, checkpoints=checkpoints)
    assert broken.results == whole.results
    assert broken.state == whole.state
    assert broken.recovered == whole.state


@settings(max_examples=max(EXAMPLES // 2, 5))
@given(stories(), seeds)
def test_a_runner_with_checkpoints_that_is_killed_goes_on_exactly(story: Story, seed: int) -> None:
    """kill -9 of the runner at any call of its port; upstream trims its streams behind the checkpoints."""
    random = Random(seed)
    calls = tell(story).counts.port_calls
    numbers = random.sample(range(1, 2 * calls), min(random.randint(1, 12), 2 * calls - 1))
    faults = Faults(kill_before=frozenset(numbers[::2]), kill_behind=frozenset(numbers[1::2]))
    check(story, faults, seed, damage=False)


LOST_EPOCH = Story(0, "running", "both", ("left", "right"), batches=2, keys=1, epoch_records=5, in_flight=2)
"""With seed 2 a checkpoint is of an epoch that a power cut takes, and the input that the log alone needs is trimmed."""


@settings(max_examples=max(EXAMPLES // 4, 5))
@given(stories(), seeds)
@example(LOST_EPOCH, 2)
def test_power_cuts_and_damaged_checkpoints(story: Story, seed: int) -> None:
    """Power fails at disk calls of the store, and the newest checkpoint is damaged now and then."""
    random = Random(seed)
    calls = tell(story).counts.disk_calls
    power = random.sample(range(1, 2 * calls), min(random.randint(1, 8), 2 * calls - 1))
    check(story, Faults(power=frozenset(power)), seed, damage=True)


@pytest.mark.parametrize("bug", ["forgets what has ended", "loses a window"])
def test_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stories above find a recovery that is wrong in one thing."""

    def wrong(table: Table, eventual: EventualCheckpoint) -> None:
        if bug == "forgets what has ended":
            eventual = replace(eventual, skips=eventual.skips._replace(keys=eventual.skips.keys[:0], numbers=_NONE))
        bring_up(table, eventual)
        if bug == "loses a window":
            table.remove(table.live_rows()[:1])

    monkeypatch.setattr(core_module, "bring_up", wrong)
    story = Story(3, "counting", "no checks", batches=40, keys=5)
    calls = tell(story).counts.port_calls
    for seed in range(20):
        kills = Random(seed).sample(range(1, calls), 8)
        try:
            check(story, Faults(kill_before=frozenset(kills)), seed, damage=False)
        except (AssertionError, CairnError):
            return
    raise AssertionError("nothing was found")


def test_a_checkpoint_saves_replay() -> None:
    """Windows that nobody checks would be replayed from where they were opened; behind checkpoints they are not."""
    story = Story(9, "counting", "no checks", batches=40, keys=5)
    calls = tell(story).counts.port_calls
    faults = Faults(kill_before=frozenset(range(calls // 2, calls, calls // 10)))

    def replayed(broken_counts: list[object]) -> int:
        return sum(event.replayed_records for event in broken_counts if isinstance(event, Recovered))

    plain = tell(story, faults)
    with tempfile.TemporaryDirectory() as directory:
        sink, random = DirectorySink(Path(directory)), Random(7)
        made: list[AtOnce] = []

        def checkpoints(core: Core) -> AtOnce:
            made.append(AtOnce(core, sink, random, None))
            return made[-1]

        covered = tell(story, faults, checkpoints=checkpoints)
    assert covered.results == plain.results
    loaded = [event.checkpoint_epoch for event in covered.counts.events if isinstance(event, Recovered)]
    assert max(loaded) > 0
    told = {epoch for each in made for epoch in each.recoveries}
    assert set(loaded) - {NO_CHECKPOINT} <= told, "the cost of each recovery is told"
    assert replayed(list(covered.counts.events)) < replayed(list(plain.counts.events))


def test_runner_processes_with_checkpoints_that_are_killed(tmp_path: Path) -> None:
    """Real runners write checkpoints on a thread and are killed; sources and target are trimmed at once, and no window
    is ever checked: what is left is exact, and a recovery replays what came after a checkpoint.
    """
    chance = Random(11)
    rows = [(b"key-%d" % (number * 7 % 31), number) for number in range(6_000)]
    (tmp_path / "sink").mkdir()
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("in", 1)
        client.create_topic("out-checkpointed", 1, TRIMMED_AT_ONCE)
        produce(sidecar.address, "in", rows)
        work = Work(
            sidecar.address, "checkpointed", len(rows), epoch_records=60, q_limit=10**9, u_limit=10**9,
            checkpoints=(tmp_path / "sink").as_uri(),
        )  # fmt: skip
        for _ in range(5):
            with RunnerProcess(work) as runner:
                for _ in range(chance.randint(2, 15)):
                    heard = runner.hear()
                    assert heard[0] in ("recovered", "epoch", "done"), heard
                    if heard[0] == "done":  # a runner may be quicker than who listens to it
                        break
        with RunnerProcess(work) as runner:
            assert list(runner.hear_until("done", 1_000))[-1] == ("done",)
        assert list((tmp_path / "sink").glob("checkpointed.0-*/MANIFEST"))
        found = consumed(sidecar.address, "out-checkpointed")
        assert found
        assert found == expected(rows)[-len(found) :]

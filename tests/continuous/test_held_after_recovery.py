"""What a runner holds after a recovery: enough for the checkpoint before the one that it was recovered from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from spe_adapter.cec.policy import NoChecks
from spe_adapter.checkpoint.bases import stored_bases
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.continuous.core import Core
from spe_adapter.continuous.fragment import EpochLimits, plan
from spe_adapter.continuous.loop import Recovered
from spe_adapter.continuous.paged_state import NO_CHECKPOINT
from tests.continuous.fragments import OPERATORS, batches, fragment
from tests.continuous.test_runner_checkpoints import UNIT, AtOnce
from tests.continuous.world import RunnerLife, World, start_runner, state_of

LIMITS = EpochLimits(epoch_records=20, epoch_ms=10**9)
OPERATOR = "counting"


class OnDemand(AtOnce):
    """Checkpoints that a test asks for."""

    is_wanted = False

    def ended(self, log_bytes: int, state_bytes: int) -> None:
        """See UnitCheckpoints."""
        if self.is_wanted:
            self.is_wanted = False
            self.write()


class Runner(NamedTuple):
    """A life of a runner, and its checkpoints."""

    life: RunnerLife
    checkpoints: OnDemand


class Story:
    """A world with input, and a sink; runners live one after the other."""

    def __init__(self, directory: Path) -> None:
        self.world = World(5)
        self.sink = DirectorySink(directory)
        self._plan = plan(fragment(OPERATORS[OPERATOR](Random(5)), ("in",)))
        self._lives = 0
        for topic in ("in", "out"):
            self.world.create(topic)
        self.world.produce("in", batches(Random(5), 60, 5))

    def start(self) -> Runner:
        """The next runner, recovered."""
        self._lives += 1
        made: list[OnDemand] = []

        def checkpoints(core: Core) -> OnDemand:
            made.append(OnDemand(core, self.sink, Random(1), set()))
            return made[0]

        world, name = self.world, f"run-{self._lives}"
        life = start_runner(world, self._plan, NoChecks, LIMITS, name, checkpoints=checkpoints)
        life.loop.recover()
        return Runner(life, made[0])

    def epochs(self, runner: Runner, count: int, *, checkpoint: bool = False) -> None:
        """Have a runner commit so many epochs; the last one with a checkpoint."""
        for number in range(count):
            runner.checkpoints.is_wanted = checkpoint and number == count - 1
            while runner.life.core.is_empty:
                assert runner.life.loop.step()
            runner.life.loop.finish()

    def trim(self, runner: Runner) -> None:
        """Upstream trims whatever it may."""
        for topic, offset in runner.life.loop.needed_offsets().items():
            self.world.life.settle(self.world.life.store.stream(topic, 0).delete_records(offset))

    def checkpoint_epochs(self) -> list[int]:
        """Of the complete checkpoints, newest first."""
        return [base.manifest.header.epoch for base in stored_bases(Finder(self.sink), UNIT)]

    def damage_newest(self) -> None:
        """The newest checkpoint loses a byte."""
        newest = next(iter(stored_bases(Finder(self.sink), UNIT)))
        path = Path(self.sink.url.removeprefix("file://")) / str(newest.manifest.name) / "000"
        path.write_bytes(path.read_bytes()[:-1])

    def loaded_epoch(self) -> int:
        """That of the checkpoint which the last recovery loaded."""
        found = [event for event in self.world.counts.events if isinstance(event, Recovered)]
        return found[-1].checkpoint_epoch


@pytest.fixture
def story() -> Iterator[Story]:
    """A story of its own."""
    with tempfile.TemporaryDirectory() as directory:
        yield Story(Path(directory))


def test_the_older_checkpoint_serves_when_the_newer_one_is_damaged_after_a_recovery(story: Story) -> None:
    """Sources and target are held from the older one's epoch, until the first checkpoint of the new life is complete;
    then from the epoch of the one that was loaded.
    """
    first = story.start()
    story.epochs(first, 5, checkpoint=True)
    story.epochs(first, 4, checkpoint=True)
    story.epochs(first, 2)
    newer, older = story.checkpoint_epochs()
    second = story.start()
    assert story.loaded_epoch() == newer
    needed = second.life.loop.needed
    assert needed.target_epoch == older
    assert needed.offsets < second.life.core.needed
    story.epochs(second, 3)
    assert second.life.loop.needed == needed
    story.trim(second)
    state = state_of(second.life.core)
    story.damage_newest()
    third = story.start()
    assert story.loaded_epoch() == older
    assert state_of(third.life.core) == state


def test_a_checkpoint_of_the_new_life_ends_the_hold(story: Story) -> None:
    """The one that was loaded is the older of two from then on: what only the one before it needs may be trimmed."""
    first = story.start()
    story.epochs(first, 5, checkpoint=True)
    story.epochs(first, 4, checkpoint=True)
    loaded, _ = story.checkpoint_epochs()
    second = story.start()
    before = second.life.loop.needed
    story.epochs(second, 3, checkpoint=True)
    story.epochs(second, 2)
    after = second.life.loop.needed
    assert after.offsets > before.offsets
    assert after.target_epoch == loaded
    story.trim(second)
    state = state_of(second.life.core)
    story.damage_newest()
    third = story.start()
    assert story.loaded_epoch() == loaded
    assert state_of(third.life.core) == state


def test_beside_a_single_checkpoint_the_log_alone_is_held(story: Story) -> None:
    """What the log alone needs stays after a recovery from the only checkpoint there is."""
    first = story.start()
    story.epochs(first, 5, checkpoint=True)
    story.epochs(first, 3)
    story.trim(first)
    held = first.life.loop.needed_offsets()
    second = story.start()
    assert story.loaded_epoch() == story.checkpoint_epochs()[0]
    assert second.life.loop.needed_offsets() == held
    story.epochs(second, 2)
    story.trim(second)
    state = state_of(second.life.core)
    story.damage_newest()
    third = story.start()
    assert story.loaded_epoch() == NO_CHECKPOINT
    assert state_of(third.life.core) == state

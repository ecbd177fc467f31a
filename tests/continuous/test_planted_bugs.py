"""Bugs put in on purpose, one at a time: each must be found by the same stories that the real runner survives."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from logstore.errors import CairnError
from spe_adapter.cec.reconstruct import EventualCheckpoint
from spe_adapter.codec.kernels import Int64s
from spe_adapter.continuous.core import Core, ReplayEpoch
from spe_adapter.state.store import WindowChanges
from spe_adapter.state.table import Table
from tests.continuous.stories import Story, tell
from tests.continuous.world import Faults

STORIES = 60


class NoSkipPoints(Core):
    """Replays rows of windows that closed."""

    def _covered(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        rows = self._table.find(keys, numbers)
        return np.where(rows >= 0, self._table.window_versions(np.maximum(rows, 0))[0], 0)


class SeesTwice(Core):
    """Replays rows that the footprints have seen."""

    def _covered(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        rows = self._table.find(keys, numbers)
        seen = super()._covered(keys, numbers)
        return np.where(rows >= 0, 0, seen)


class StartsTooLate(Core):
    """Replays from an epoch behind T."""

    def load(self, eventual: EventualCheckpoint, last_epoch: int, table: Table | None = None) -> list[ReplayEpoch]:
        """Without the first epoch."""
        epochs = super().load(eventual, last_epoch, table)
        if len(epochs) > 1:
            self._recovery_points.popleft()
        return epochs[1:]


class ForgetsTheWatermark(Core):
    """Starts with the watermark of a new query."""

    def load(self, eventual: EventualCheckpoint, last_epoch: int, table: Table | None = None) -> list[ReplayEpoch]:
        """With watermark 0."""
        epochs = super().load(eventual, last_epoch, table)
        self._watermark_ms = 0
        return epochs


class LeavesOutTransients(Core):
    """Does not write down windows that opened and closed within an epoch."""

    def _gone(self, changes: WindowChanges) -> list[pa.RecordBatch]:
        return [changes.closed]


class LeavesOutCloses(Core):
    """Does not write down windows that closed."""

    def _gone(self, changes: WindowChanges) -> list[pa.RecordBatch]:
        return [changes.transient]


class TrimsTooMuch(Core):
    """Tells upstream that nothing before the present epoch is needed."""

    def committed(self, epoch: int) -> None:
        """Forget all older epochs."""
        while len(self._recovery_points) > 1 and self._recovery_points[1].number <= epoch:
            self._recovery_points.popleft()


class MarksBeforeTheEpoch(Core):
    """Says of footprints that they are of the epoch before."""

    def _footprints(self, now_ms: int) -> list[bytes]:
        self._epoch -= 1
        made = super()._footprints(now_ms)
        self._epoch += 1
        return made


BUGS = {
    kind.__name__: kind
    for kind in (
        NoSkipPoints, SeesTwice, StartsTooLate, ForgetsTheWatermark, LeavesOutTransients, LeavesOutCloses, TrimsTooMuch,
        MarksBeforeTheEpoch,
    )
}  # fmt: skip


def a_story(seed: int) -> tuple[Story, Faults]:
    """A story that is killed several times."""
    random = Random(seed)
    story = Story(
        seed=seed,
        operator=random.choice(["counting", "tumbling", "sliding", "sessions", "running"]),
        policy=random.choice(["no checks", "q", "u"]),
        keys=random.choice([5, 40, 1000]),
        epoch_records=random.randint(10, 80),
    )
    return story, Faults(kill_before=frozenset(random.sample(range(10, 250), 5)))


def is_found(story: Story, faults: Faults, kind: type[Core]) -> bool:
    """Whether the story ends otherwise than it should."""
    whole = tell(story)
    try:
        broken = tell(story, faults, kind)
    except CairnError:
        return True
    return (broken.results, broken.state, broken.recovered) != (whole.results, whole.state, whole.state)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_found(name: str) -> None:
    """A bug of recovery shows as a wrong result, a wrong state or an error, within few stories."""
    for seed in range(STORIES):
        story, faults = a_story(seed)
        if is_found(story, faults, BUGS[name]):
            print(f"{name}: found by story {seed}")
            return
    pytest.fail(f"{name} was not found by {STORIES} stories")


def test_the_same_stories_hold_without_bugs() -> None:
    """What finds the bugs finds nothing in the real core."""
    for seed in range(8):
        story, faults = a_story(seed)
        assert not is_found(story, faults, Core), f"story {seed}"

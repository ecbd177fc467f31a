"""What the tests of recovery run: a fragment on some input, from an empty disk to the end of the input.

Invariant: everything follows from the story's values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from spe_adapter.continuous.core import Core
from spe_adapter.continuous.fragment import EpochLimits, plan
from spe_adapter.continuous.loop import UnitCheckpoints
from tests.continuous.fragments import OPERATORS, POLICIES, batches, fragment
from tests.continuous.world import Faults, Outcome, World, run_story


@dataclass(frozen=True)
class Story:
    """What is run on which input; everything follows from it."""

    seed: int
    operator: str
    policy: str
    sources: tuple[str, ...] = ("in",)
    filtered: bool = False
    batches: int = 20
    keys: int = 40
    epoch_records: int = 30
    in_flight: int = 1


def tell(
    story: Story,
    faults: Faults | None = None,
    kind: type[Core] = Core,
    checkpoints: Callable[[Core], UnitCheckpoints] | None = None,
) -> Outcome:
    """Run it. `kind` may be a core with a bug in it; `checkpoints` are those of a core."""
    random = Random(story.seed)
    world = World(story.seed, faults)
    described = fragment(OPERATORS[story.operator](random), story.sources, filtered=story.filtered)
    for topic in (*story.sources, "out"):
        world.create(topic)
    for topic in story.sources:
        world.produce(topic, batches(random, story.batches, story.keys))
    limits = EpochLimits(epoch_records=story.epoch_records, epoch_ms=10**9, in_flight=story.in_flight)
    return run_story(world, plan(described), POLICIES[story.policy], limits, kind, checkpoints)

"""The steps of an epoch, told to whoever wants to know: for tests that end processes at each of them, and for traces.

Invariant: without a probe nothing happens; with one, each step is told before anything of the next one has begun.
"""

from typing import Final, Literal, Protocol

Step = Literal[
    "task started",
    "task before stage",
    "task after stage",
    "task after delta",
    "driver before tasks",
    "driver before decide",
    "driver after decide",
]
STEPS: Final[tuple[Step, ...]] = (
    "driver before tasks",
    "task started",
    "task before stage",
    "task after stage",
    "task after delta",
    "driver before decide",
    "driver after decide",
)
"""In their order. Behind the last one Spark notes the batch as committed."""


class Probe(Protocol):
    """Told each step. It is pickled along with the tasks."""

    def __call__(self, step: Step, epoch: int, partition: int) -> None:
        """The step is reached; `partition` is -1 on the driver. What this raises, the step raises."""


def silent(step: Step, epoch: int, partition: int) -> None:
    """No probe."""

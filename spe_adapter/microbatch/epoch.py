"""One epoch of a stateful query: its number in the log, the driver's plan, each task's report, and its steps.

Invariants:
* A plan is all that a task needs beside what never changes in a query (`QueryDefinition`). The plan travels as JSON in
  a local property of the job, so that the streaming plan, with the pickled operator in it, is made once a run and not
  once an epoch.
* A report is one row of one string column. It says everything the driver has to know; tasks leave no other trace that
  counts.
* Without a probe the steps of an epoch are told to nobody; with one, each is told before anything of the next begins.

Source: CEC paper, section III (what the counters mean); docs/decisions/0010.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from spe_adapter.microbatch.options import StatefulOptions
from spe_adapter.operators.base import Operator

REPORT_COLUMN: Final = "report"
REPORT_SCHEMA: Final = f"{REPORT_COLUMN} string"
MOVED: Final = "moved"
"""How a partition's state was obtained in the first epoch of a new layout: from the streams of the one before."""
EPOCHS_PER_GENERATION: Final = 2**40
"""A query at 1,000 batches a second takes 17 years to get there."""


def log_epoch(generation: int, batch: int, *, closing: bool) -> int:
    """The epoch's number in the log: higher with each reset, batch, and closing epoch behind a batch."""
    return generation * EPOCHS_PER_GENERATION + 2 * batch + (1 if closing else 0)


def batch_of(epoch: int) -> int:
    """Spark's number of the batch that this epoch of the log is of."""
    return epoch % EPOCHS_PER_GENERATION // 2


def epoch_name(epoch: int) -> str:
    """An epoch as messages name it: by Spark's number first, which its reader knows."""
    what = "pause behind batch" if epoch % 2 else "batch"
    return f"{what} {batch_of(epoch)} (epoch {epoch} in the log)"


@dataclass(frozen=True, slots=True)
class QueryDefinition:
    """What stays the same in all epochs of a run.

    `fingerprint` names operator, state and key (`frames.check`); state with another one is not loaded.
    """

    operator: Operator
    key: tuple[str, ...]
    schema: pa.Schema
    fingerprint: str
    partitions: int
    options: StatefulOptions


@dataclass(frozen=True, slots=True)
class Parent:
    """A partition's state as of the last committed epoch: who wrote it, and its counters (see cec.control.Mark)."""

    attempt: str
    emitted: int = 0
    seen: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Rebase:
    """State is to be made anew from that of `partitions` streams, which a former layout left."""

    partitions: int


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One epoch. `parent_epoch` and `parents` (one per partition) are None and empty before the first.

    `late_ms`: rows of windows that end at or before it are dropped; `watermark_ms`: windows up to it are closed.
    `newest_ms` is the newest event time of each of the operator's inputs so far, over all partitions.
    """

    query: str
    run: str
    epoch: int
    layout: int
    late_ms: int
    watermark_ms: int
    parent_epoch: int | None
    parents: tuple[Parent, ...]
    newest_ms: tuple[int | None, ...]
    rebase: Rebase | None = None

    def to_json(self) -> str:
        """As the local property carries it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "EpochPlan":
        """The inverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        rebase = fields.pop("rebase")
        parents = tuple(Parent(**parent) for parent in fields.pop("parents"))
        newest_ms = tuple(fields.pop("newest_ms"))
        return cls(parents=parents, newest_ms=newest_ms, rebase=None if rebase is None else Rebase(**rebase), **fields)


def newest_of(first: tuple[int | None, ...], second: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The newer one for each input; None: it has had no row yet. Nothing at all counts as no row."""
    if not first or not second:
        return first or second
    return tuple(
        max((moment for moment in pair if moment is not None), default=None) for pair in zip(first, second, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where a task's time went: state opened, input waited for, rows processed, segments staged, delta published."""

    open: float
    input: float
    process: float
    stage: float
    publish: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a task did.

    `started_ms` is when it began, by the host's clock. `moved` are the rows that came through the shuffle, `combined`
    or not, `windows` those that its calls touched. `attempt` and `segments` name what it staged; `counters` are those
    of the state it leaves; `open_windows` is N, `extent` is q; `oldest_epoch` is that of the oldest footprint.
    `max_events_ms` has the newest event time of each input of the operator in this epoch. `how` says where the state
    came from: MOVED, or see `state.versions.OpenState`. `host` is where the task ran, and left state in memory.
    """

    partition: int
    epoch: int
    attempt: str
    segments: int
    counters: Parent
    records: int
    combined: bool
    moved: int
    windows: int
    late: int
    results: int
    footprints: int
    open_windows: int
    extent: int
    oldest_epoch: int
    max_events_ms: tuple[int | None, ...]
    how: str
    load_seconds: float
    state_bytes: int
    delta_bytes: int
    started_ms: int
    seconds: Seconds
    host: str = ""

    def to_json(self) -> str:
        """As a row carries it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The inverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        return cls(
            counters=Parent(**fields.pop("counters")),
            seconds=Seconds(**fields.pop("seconds")),
            max_events_ms=tuple(fields.pop("max_events_ms")),
            **fields,
        )


# ---- the steps of an epoch, for tests that end processes at each of them, and for traces

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

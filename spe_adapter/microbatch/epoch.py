"""One epoch of a stateful query: its number in the log, the driver's plan, each task's report, and its steps.

Invariants:
* A task needs a plan and the definition of the query (`QueryDefinition`), which never changes. The plan travels as JSON
  in a local property of the job, so that the streaming plan, with the pickled operator in it, is made once an
  incarnation and not once an epoch.
* A report is one row of one string column. It has all that the driver needs to know of a task.
* A probe is called at each step before the next step begins.

Source: CEC paper, section III (what the counters mean); docs/decisions/0010.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from spe_adapter.microbatch.options import StatefulOptions
from spe_adapter.operators.base import Operator
from spe_adapter.operators.formats import ResultColumns, check_format
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import output_schema

REPORT_COLUMN: Final = "report"
REPORT_SCHEMA: Final = f"{REPORT_COLUMN} string"
MOVED: Final = "moved"
"""How a partition's state was obtained in the first epoch of a new layout: from the streams of the one before."""
READER_PREFIX: Final = "stateful/"
"""Before the query's id, in the name of its registration as a reader of its output."""
INITIAL_BATCH: Final = -1
"""The number, in place of a batch's, of the epoch that takes the initial state."""
EPOCHS_PER_GENERATION: Final = 2**40
"""A query at 1,000 batches a second reaches it after 17 years."""


def log_epoch(generation: int, batch: int, *, closing: bool) -> int:
    """The epoch's number in the log: it grows with each reset, batch, and epoch without input after a batch."""
    return generation * EPOCHS_PER_GENERATION + 2 * batch + (1 if closing else 0)


def reader_name(query: str) -> str:
    """The name under which a query is registered as a reader of its output."""
    return READER_PREFIX + query


def batch_of(epoch: int) -> int:
    """Spark's number of the batch to which an epoch of the log belongs."""
    return epoch % EPOCHS_PER_GENERATION // 2


def epoch_name(epoch: int) -> str:
    """The name of an epoch in messages: Spark's number first, which the reader knows."""
    what = "pause behind batch" if epoch % 2 else "batch"
    return f"{what} {batch_of(epoch)} (epoch {epoch} in the log)"


@dataclass(frozen=True, slots=True)
class QueryDefinition:
    """The part of a query that is the same in all epochs of an incarnation.

    `fingerprint` names operator, state and key (`frames.check`); state with another fingerprint is not loaded.
    """

    operator: Operator
    key: tuple[str, ...]
    schema: pa.Schema
    fingerprint: str
    partitions: int
    options: StatefulOptions

    def result_columns(self) -> ResultColumns | None:
        """The format and columns of the results, None for JSON. Raises SchemaRefused for a format that cannot have
        them.
        """
        wanted, output = self.options.result_format, self.operator.output(self.schema)
        columns = output_schema(KeyCodec(self.operator.prepared(self.schema), self.key).fields, output)
        check_format(wanted, output, columns)
        return None if wanted == "json" else ResultColumns(wanted, columns)


@dataclass(frozen=True, slots=True)
class Parent:
    """A partition's state as of the last committed epoch: the attempt that wrote it, and its counters (see `Mark`)."""

    attempt: str
    emitted: int = 0
    seen: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Rebase:
    """The state is redistributed from the `partitions` streams of the former layout."""

    partitions: int


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The plan of one epoch. `parent_epoch` and `parents` (one per partition) are None and empty before the first.

    `late_watermark_ms`: rows of windows that end at or before it are dropped. `watermark_ms`: windows that end at or
    before it are closed.
    `max_events_ms` is the newest event time of each of the operator's inputs so far, over all partitions.
    `wall_ms` is the epoch's processing time; it never runs backwards. `batch` is Spark's number of the batch, or
    INITIAL_BATCH. `covered`: of each partition the counter `emitted` at the checkpoint that covers it, -1 without one;
    empty without checkpoints.
    """

    query: str
    incarnation: str
    epoch: int
    layout: int
    late_watermark_ms: int
    watermark_ms: int
    parent_epoch: int | None
    parents: tuple[Parent, ...]
    max_events_ms: tuple[int | None, ...]
    rebase: Rebase | None = None
    covered: tuple[int, ...] = ()
    wall_ms: int = 0
    batch: int = 0

    @property
    def name(self) -> str:
        """The epoch's name in messages."""
        if self.batch == INITIAL_BATCH:
            return f"initial state (epoch {self.epoch} in the log)"
        if batch_of(self.epoch) == self.batch:
            return epoch_name(self.epoch)
        return f"pause behind batch {self.batch} (epoch {self.epoch} in the log)"

    def to_json(self) -> str:
        """The JSON text for the local property."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "EpochPlan":
        """The inverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        rebase = fields.pop("rebase")
        parents = tuple(Parent(**parent) for parent in fields.pop("parents"))
        return cls(
            parents=parents,
            max_events_ms=tuple(fields.pop("max_events_ms")),
            rebase=None if rebase is None else Rebase(**rebase),
            covered=tuple(fields.pop("covered")),
            **fields,
        )


def newest_of(first: tuple[int | None, ...], second: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The newer event time of each input; None for an input without rows. An empty tuple stands for no rows at all."""
    if not first or not second:
        return first or second
    return tuple(
        max((moment for moment in pair if moment is not None), default=None) for pair in zip(first, second, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Seconds:
    """The time of a task: opening state, waiting for input, processing rows, staging segments, publishing the delta."""

    open: float
    input: float
    process: float
    stage: float
    publish: float


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The report of a task.

    `started_ms` is when the task began, by the host's clock. `moved` are the rows that came through the shuffle,
    `combined` or not, `windows` those that its calls touched. `attempt` and `segments` name the staged output;
    `counters` are those of the state that the task leaves; `open_windows` is N, `extent` is q; `oldest_epoch` is
    the epoch of the oldest footprint. `max_events_ms` has the newest event time of each input of the operator in
    this epoch. `next_wall_ms` is the processing time from which on a timer is due (None: none). `how` says where
    the state came from: MOVED, or see `state.versions.OpenState`. `host` is the host on which the task left state
    in memory. `checkpoint_epoch` and `checkpoint_bytes`: of the checkpoint that was loaded, -1 and 0 if none was.
    `checkpoint_error`: why this partition had no checkpoint when its host last tried, empty if it had. `log_bytes`: of
    the control batches that were read to open the state.
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
    checkpoint_epoch: int = -1
    checkpoint_bytes: int = 0
    log_bytes: int = 0
    next_wall_ms: int | None = None
    checkpoint_error: str = ""

    def to_json(self) -> str:
        """The JSON text for a row."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "TaskReport":
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
    "driver before commit",
    "driver after commit",
]
STEPS: Final[tuple[Step, ...]] = (
    "driver before tasks",
    "task started",
    "task before stage",
    "task after stage",
    "task after delta",
    "driver before commit",
    "driver after commit",
)
"""The steps in order. After the last one, Spark notes the batch as committed."""


class Probe(Protocol):
    """A function that is called at each step. It is pickled with the tasks."""

    def __call__(self, step: Step, epoch: int, partition: int) -> None:
        """Called at a step; `partition` is -1 on the driver. An error of the probe is an error of the step."""


def silent(step: Step, epoch: int, partition: int) -> None:
    """A probe that does nothing."""

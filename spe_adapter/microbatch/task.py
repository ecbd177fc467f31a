"""One task of an epoch: processes the rows of one state partition, stages its output, and reports to the driver.

Invariants:
* The task starts from the state that the last committed epoch's attempt left, and changes a private overlay of it only.
* A task stages its output under the name of its own attempt, and names its delta of the state by it. Both are used only
  if the driver's commit names this attempt.
* Every task of every epoch writes a mark, also without input, so that each stream shows the query's last epoch.
* A window whose key belongs to another partition is an error: its state would not be found again.

Source: CEC paper, section II.B; docs/decisions/0010.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np
import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition
from spe_adapter.cec.changes_since import DEFAULT_LIMIT_TUPLES
from spe_adapter.cec.control import Mark
from spe_adapter.cec.extent import Counters
from spe_adapter.checkpoint.datagram import EpochNote
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.codec.partitioner import partitions_of
from spe_adapter.epochs.client import StagedStream, TaskAttempt, connect
from spe_adapter.epochs.marks import OpenWindows, StatePartition, control_batches, epoch_mark
from spe_adapter.errors import NoTaskContext, SchemaRefused
from spe_adapter.host import Host, ThisHost, host_name
from spe_adapter.microbatch.checkpoints import LoggedRecovery, OfferedCheckpoints, entered, tell_service
from spe_adapter.microbatch.epoch import (
    INITIAL_BATCH,
    MOVED,
    REPORT_COLUMN,
    EpochPlan,
    Parent,
    Probe,
    QueryDefinition,
    Seconds,
    Step,
    TaskReport,
    newest_of,
)
from spe_adapter.microbatch.epoch_end import NOT_COVERED, EpochEnd, conclude
from spe_adapter.microbatch.shuffle import Received, received
from spe_adapter.microbatch.state_loader import LogLoader, moved_windows, state_directory
from spe_adapter.operators.chain import processor_of
from spe_adapter.operators.clock import CallTimes
from spe_adapter.operators.combining import NULL_PARTITION
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import Output, record_times
from spe_adapter.operators.processor import Processor
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.segment import Tag
from spe_adapter.state.storage import BaseCheckpoint
from spe_adapter.state.store import WindowChanges
from spe_adapter.state.versions import OpenState, StateDirectory
from spe_adapter.workers.collector import spare_loaded_code
from spe_adapter.workers.context import PLAN_PROPERTY, attempt_name, local_property, task_context


class Task:
    """The function of a `mapInArrow`, in an executor's Python worker. Pickled once for each incarnation."""

    def __init__(self, fixed: QueryDefinition, probe: Probe) -> None:
        self._fixed = fixed
        self._probe = probe

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of this task's partition, as `HandOver` made them, in the epoch of the job's plan.

        Raises NoTaskContext and the errors of an epoch.
        """
        spare_loaded_code()
        context, text = task_context(), local_property(PLAN_PROPERTY)
        if text is None:
            raise NoTaskContext(f"a stateful task outside an epoch: {PLAN_PROPERTY} is not set")
        host, plan = ThisHost(), EpochPlan.from_json(text)
        attempt = TaskAttempt(
            plan.query, plan.incarnation, plan.epoch, context.partitionId(), attempt_name(context, host)
        )
        report = run_task(self._fixed, plan, attempt, host, self._probe, received(batches))
        yield pa.RecordBatch.from_arrays([pa.array([report.to_json()])], names=[REPORT_COLUMN])


class NoDataTask:
    """A task of an epoch without input: its one row only makes Spark start the task."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See Task."""
        for _ in batches:
            continue
        return self._task(iter(()))


def run_task(
    fixed: QueryDefinition, plan: EpochPlan, attempt: TaskAttempt, host: Host, probe: Probe, batches: Iterator[Received]
) -> TaskReport:
    """One attempt at one partition of one epoch, over that partition's rows. Raises the errors of an epoch."""
    return _TaskExecution(fixed, plan, attempt, host, probe).report(batches)


class _TaskExecution:
    """One attempt at one partition of one epoch."""

    def __init__(self, fixed: QueryDefinition, plan: EpochPlan, attempt: TaskAttempt, host: Host, probe: Probe) -> None:
        self._fixed = fixed
        self._plan = plan
        self._attempt = attempt
        self._host = host
        self._probe = probe
        self._partition = attempt.task
        self._codec = KeyCodec(fixed.operator.prepared(fixed.schema), fixed.key)
        self._seconds = dict.fromkeys(Seconds.__slots__, 0.0)
        """Time spent so far, by phase."""
        self._results = 0
        self._started_ms = host.wall_ms()
        self._moved = 0
        self._combined = False
        self._loaded: Manifest | None = None
        """The checkpoint that the state was loaded from."""
        self._recovery = LoggedRecovery(0, 0.0)

    def report(self, batches: Iterator[Received]) -> TaskReport:
        """Run the epoch in this partition."""
        plan, options, sink = self._plan, self._fixed.options, self._fixed.options.sink
        self._at("task started")
        stream = TopicPartition(options.topic, self._partition)
        operator = self._fixed.operator
        schema = operator.state_schema(self._fixed.schema)
        directory = state_directory(options, plan.query)
        self._root = directory.root
        started_s = self._host.network.monotonic_s()
        with (
            connect(sink, self._host.network) as client,
            self._opened(directory, LogLoader(client, stream, plan.query, plan.parent_epoch), schema) as state,
        ):
            overlay = state.overlay()
            parent = plan.parents[self._partition] if plan.parents and plan.rebase is None else Parent("")
            if plan.rebase is not None:
                parent = self._move_in(client, overlay)
            self._seconds["open"] = self._host.network.monotonic_s() - started_s
            late = None if options.late_topic is None else TopicPartition(options.late_topic, self._partition)
            output = StagedStream(client, self._attempt, stream, sink.batch_bytes, sink.codec, late)
            return self._epoch(batches, overlay, parent, output, state)

    @contextmanager
    def _opened(self, directory: StateDirectory, loader: LogLoader, schema: pa.Schema) -> Iterator[OpenState]:
        """The state to start from, under its lock. Raises StateAway if it is in a sink that stays away."""
        wanted = self._wanted()
        settings = self._fixed.options.checkpoints
        offered = None
        if settings is not None:
            offered = OfferedCheckpoints(
                settings, Unit(self._plan.query, self._partition), None if wanted is None else wanted.epoch
            )

        def checkpoints() -> Iterable[BaseCheckpoint]:
            # Behind a checkpoint the steps are the only way: the log before them may be gone.
            loader.limit_tuples = DEFAULT_LIMIT_TUPLES
            return () if offered is None else offered()

        def opened() -> AbstractContextManager[OpenState]:
            return directory.open(self._partition, schema, self._fixed.fingerprint, wanted, loader, checkpoints)

        with ExitStack() as stack:
            state = entered(stack, opened, offered, self._host.network)
            if state.how == "checkpoint" and offered is not None:
                self._loaded = offered.read
            is_measure = state.how == "loaded" and not state.refused_checkpoints
            self._recovery = LoggedRecovery(loader.log_bytes, state.load_seconds if is_measure else 0.0)
            yield state

    def _wanted(self) -> Tag | None:
        """The version of the state to start from; None in a query's first epoch, and in the first epoch of a layout."""
        plan = self._plan
        if plan.parent_epoch is None or plan.rebase is not None:
            return None
        return Tag(plan.parent_epoch, plan.parents[self._partition].attempt)

    def _move_in(self, client: Client, overlay: Overlay) -> Parent:
        """Load this partition's windows from the streams of the former layout; the counters to continue from."""
        parents = self._plan.parents
        if len(parents) == self._fixed.partitions:
            parents = (parents[self._partition],)
        for batch in moved_windows(client, self._fixed, self._plan, self._partition):
            ids, _ = overlay.ensure(batch.column(0), batch.column(1).to_numpy(zero_copy_only=False))
            overlay.set_expires(ids, batch.column(2).to_numpy(zero_copy_only=False))
            for index, name in enumerate(overlay.schema.names):
                overlay.set_arrow(name, ids, batch.column(3 + index))
        # Counters must not decrease, and no row number may occur twice.
        return Parent(
            "",
            max(parent.emitted for parent in parents),
            max(parent.seen for parent in parents),
            max(parent.sequence for parent in parents),
        )

    # ---- the epoch

    def _epoch(
        self, batches: Iterator[Received], overlay: Overlay, parent: Parent, output: StagedStream, state: OpenState
    ) -> TaskReport:
        fixed, plan = self._fixed, self._plan
        processor = processor_of(
            fixed.operator, self._codec, fixed.schema, overlay, parent.sequence, parent.seen, plan.epoch
        )
        processor.batch = None if plan.batch == INITIAL_BATCH else plan.batch
        processor.clock = CallTimes(plan.watermark_ms, plan.wall_ms, plan.late_watermark_ms)
        processor.keeps_late = fixed.options.late_topic is not None
        self._process(batches, processor, output)
        with self._timed("process"):
            before = Counters(parent.emitted + self._results, processor.seen)
            covered = plan.covered[self._partition] if plan.covered else NOT_COVERED
            end = conclude(overlay, before, plan.epoch, fixed.options.extent_limit, covered)
            self._check_keys(end.changes)
            mark = self._mark(end, processor)
        self._at("task before stage")
        with self._timed("stage"):
            controls = list(control_batches(mark, end.changes, self._host.wall_ms()))
            segments = output.finish(controls)
        self._at("task after stage")
        with self._timed("publish"):
            tag = Tag(plan.epoch, self._attempt.attempt)
            delta_bytes = state.publish(tag, end.changes, mark)
        self._at("task after delta")
        state_bytes = state.base.size_bytes + overlay.size_bytes
        trouble = self._tell(sum(memoryview(batch).nbytes for batch in controls), state.base.size_bytes)
        return TaskReport(
            partition=self._partition,
            epoch=plan.epoch,
            attempt=self._attempt.attempt,
            segments=segments,
            counters=Parent(self._attempt.attempt, mark.emitted, mark.seen, mark.sequence),
            records=processor.seen - parent.seen,
            combined=self._combined,
            moved=self._moved,
            windows=processor.windows,
            late=processor.late,
            results=self._results,
            footprints=end.changes.footprints.num_rows,
            open_windows=end.open_windows,
            extent=end.extent,
            oldest_epoch=end.oldest,
            max_events_ms=tuple(processor.max_events_ms),
            how=state.how if plan.rebase is None else MOVED,
            load_seconds=state.load_seconds,
            state_bytes=state_bytes,
            delta_bytes=delta_bytes,
            started_ms=self._started_ms,
            seconds=Seconds(**self._seconds),
            host=host_name(),
            checkpoint_epoch=-1 if self._loaded is None else self._loaded.header.epoch,
            checkpoint_bytes=0 if self._loaded is None else self._loaded.all_bytes,
            checkpoint_error=trouble,
            log_bytes=self._recovery.log_bytes,
            next_wall_ms=processor.next_wall_ms,
        )

    def _tell(self, log_bytes: int, state_bytes: int) -> str:
        """Tell the host's I/O service what this epoch has added to the log, if the query has checkpoints; what troubles
        the service.
        """
        settings = self._fixed.options.checkpoints
        if settings is None:
            return ""
        unit = Unit(self._plan.query, self._partition)
        note = EpochNote(unit, self._plan.epoch, log_bytes, state_bytes, {})
        return tell_service(settings, self._root, note, self._recovery)

    def _process(self, batches: Iterator[Received], processor: Processor, output: StagedStream) -> None:
        """Process all rows, then close the windows that are due by the watermark."""
        while True:
            with self._timed("input"):
                taken = next(batches, None)
            if taken is None:
                break
            with self._timed("process"):
                self._moved += taken.rows.num_rows
                if self._plan.batch == INITIAL_BATCH:
                    processor.start(taken.rows, KeyCodec(taken.rows.schema, self._fixed.key))
                    continue
                self._combined = taken.combined
                take = processor.process_combined if taken.combined else processor.process
                self._stage(processor, take(taken.rows, late_watermark_ms=self._plan.late_watermark_ms), output)
                for late in processor.take_late():
                    keys, values, times_ms = processor.records(late)
                    output.add_late(keys, values, record_times(times_ms, len(values), self._host.wall_ms()))
        with self._timed("process"):
            self._stage(processor, processor.expire(self._plan.watermark_ms), output)

    def _stage(self, processor: Processor, results: Output | None, output: StagedStream) -> None:
        if results is None or not results.rows.num_rows:
            return
        keys, values, times_ms = processor.records(results, self._fixed.options.result_format)
        self._results += results.rows.num_rows
        output.add_results(keys, values, record_times(times_ms, len(values), self._host.wall_ms()))

    def _check_keys(self, changes: WindowChanges) -> None:
        keys, numbers = changes.footprints.column(0), changes.footprints.column(1).to_numpy()
        if not changes.opened.all():
            keys, numbers = keys.filter(pa.array(changes.opened)), numbers[changes.opened]
        keys = self._fixed.operator.routing_keys(keys, numbers)
        targets = partitions_of(keys, len(keys), self._fixed.partitions, NULL_PARTITION)
        wrong = np.flatnonzero(targets != self._partition)
        if len(wrong):
            raise SchemaRefused(
                f"operator {self._fixed.operator.name} opened a window of key {keys[int(wrong[0])].as_py()!r}, "
                f"not of its partition {self._partition}: steps before an operator must not change the key columns "
                f"({', '.join(self._fixed.key)}) as they are"
            )

    def _mark(self, end: EpochEnd, processor: Processor) -> Mark:
        fixed, plan, attempt = self._fixed, self._plan, self._attempt
        return epoch_mark(
            StatePartition(
                plan.query, attempt.attempt, self._partition, fixed.partitions, plan.layout, fixed.fingerprint
            ),
            plan.epoch,
            end.counters,
            OpenWindows(end.open_windows, end.oldest),
            processor,
            watermark_ms=plan.watermark_ms,
            max_events_ms=newest_of(plan.max_events_ms, tuple(processor.max_events_ms)),
            rebase=plan.rebase is not None,
        )

    # ---- small things

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started_s = self._host.network.monotonic_s()
        try:
            yield
        finally:
            self._seconds[phase] += self._host.network.monotonic_s() - started_s

    def _at(self, step: Step) -> None:
        self._probe(step, self._plan.epoch, self._partition)

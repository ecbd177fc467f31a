"""The driver of a stateful query: plans each epoch, runs its tasks on Spark, and commits the epoch.

Invariants:
* The log is authoritative. At its first epoch a driver fences older incarnations and reads the last END. From then on
  the driver's own commits are what the log has, as no other incarnation can commit. When the answer to a commit is
  lost, the driver reads the log again.
* A committed batch is skipped before any work, if it has the input that the log names. The same number with another
  input (a checkpoint that lost its newest batch) is refused. Batches have no gaps: each begins where the previous batch
  ended, by number and by offsets.
* A new query is refused in a topic of other queries, unless its options allow it.
* Watermarks are Spark's: rows are late by the watermark of the epoch before; windows close by the newest event time
  committed before the epoch, over all partitions. When input pauses, one epoch without input closes the due windows.
* If the operator follows the operator in the log, its first epoch writes the state again with the new columns.
* Only one epoch runs at a time: the driver holds a lock from the plan to the commit.
* The query is a registered reader of its output, so that retention keeps what a recovery of its state reads.

Source: Spark's MicroBatchExecution and WatermarkTracker; CEC paper, section II.B; docs/decisions/0010.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from logstore.client.blocking import Client, TopicPartition
from logstore.errors import CairnError, StaleEpoch
from logstore.format.epoch_api import TaskOutput
from spe_adapter.cec.control import EndPositions
from spe_adapter.epochs.client import abort, commit, connect, incarnation_number, take_over
from spe_adapter.epochs.scan import find_head
from spe_adapter.errors import CheckpointDiffers, StateInconsistent
from spe_adapter.host import Host
from spe_adapter.microbatch.checkpoint_watch import StandingCheckpoint, watch_of
from spe_adapter.microbatch.committed import CommittedEpoch, read_committed
from spe_adapter.microbatch.epoch import (
    INITIAL_BATCH,
    EpochPlan,
    Probe,
    QueryDefinition,
    Rebase,
    Step,
    TaskReport,
    log_epoch,
    newest_of,
)
from spe_adapter.microbatch.errors import BatchesMissing
from spe_adapter.microbatch.registration import OutputRegistration
from spe_adapter.microbatch.shuffle import CombineChoice
from spe_adapter.microbatch.successor import check_successor
from spe_adapter.microbatch.topics import refuse_taken, trim
from spe_adapter.operators.base import next_watermark
from spe_adapter.spark_checkpoint.planned import Planned, following_problem, rebuild_command, repeated_problem, way_out

Execute = Callable[[EpochPlan], Sequence[str]]
"""Runs the tasks of an epoch, and returns the reports of the tasks that succeeded."""
PlannedInput = Callable[[int], Planned]
"""The input that Spark's checkpoint plans for a batch."""

_log = logging.getLogger(__name__)

_DRIVER: Final = -1
_TRIMS_PER_RETENTION: Final = 8
_MIN_TRIM_S: Final = 1.0


class SparkQueryNames(NamedTuple):
    """What Spark's users call a query, and where its checkpoint is; None where they have not said so."""

    name: str | None = None
    checkpoint: str | None = None


class QueryDriver:
    """The epochs of one incarnation of a query. Thread-safe: Spark's callback and the no-data trigger call it."""

    def __init__(
        self,
        fixed: QueryDefinition,
        query: str,
        incarnation: str,
        host: Host,
        probe: Probe,
        initial: Execute | None = None,
        names: SparkQueryNames | None = None,
    ) -> None:
        """`initial` runs the tasks of the epoch that takes the initial state, before the first batch (None: no such
        epoch). `names` are noted with each epoch, for who looks at the log.
        """
        self._fixed = fixed
        self._names = names or SparkQueryNames()
        self._initial = initial
        self._query = query
        self._incarnation = incarnation
        self._host = host
        self._probe = probe
        self._lock = threading.Lock()
        self._choice = CombineChoice(fixed)
        columns = fixed.result_columns()
        self._results = None if columns is None else columns.to_fields()
        self._begun = False
        self._evolves = False
        """Whether the state in the log is still in the columns of an operator that this one follows."""
        self._committed: CommittedEpoch | None = None
        self.hosts: set[str] = set()
        """The hosts on which tasks of this incarnation have left state in memory."""
        self._busy_s = host.network.monotonic_s()
        self._trimmed_s = self._busy_s
        options = fixed.options
        self._registration = (
            None
            if options.allow_trimming
            else OutputRegistration(
                options.topic, query, fixed.partitions, options.state_history, host.network.monotonic_s
            )
        )
        self._watch = watch_of(fixed, query, host)

    @property
    def committed(self) -> CommittedEpoch | None:
        """The last committed epoch; None before the first, and before the log has been read."""
        return self._committed

    @property
    def combine(self) -> bool:
        """Whether the next epoch's rows should be combined before the shuffle."""
        return self._choice.combine

    def idle_s(self) -> float:
        """The time since the last epoch; 0 during an epoch."""
        return 0.0 if self._lock.locked() else self._host.network.monotonic_s() - self._busy_s

    def run_batch(self, batch: int, planned: PlannedInput, execute: Execute) -> None:
        """Run one of Spark's batches as an epoch, unless the batch is committed already.

        Raises StaleEpoch, BatchesMissing, CheckpointDiffers, TopicTaken, FencedIncarnation, StateTrimmed,
        OperatorChanged and the errors of tasks.
        """
        with self._lock:
            try:
                self._begin()
                repeated = self._is_done(batch)
                if self._committed is None and self._initial is not None:
                    self._epoch(INITIAL_BATCH, None, closing=False, execute=self._initial)
                plan = planned(batch)
                self._check_input(plan, repeated=repeated)
                if not repeated:
                    self._epoch(batch, plan, closing=False, execute=execute)
            finally:
                self._busy_s = self._host.network.monotonic_s()

    def close_due(self, execute: Execute) -> bool:
        """Run an epoch without input if the watermark has moved since the last epoch, or a timer by processing time is
        due; whether an epoch ran.

        The epoch is run even if no window is due: rows after the pause are late by the new watermark, as in Spark.
        """
        with self._lock:
            try:
                self._begin()
                last = self._committed
                is_due = last is not None and (
                    self._watermark_ms(last) > last.progress.watermark_ms or self._has_due_timer(last)
                )
                if last is None or not is_due:
                    if self._registration is not None:
                        self._registration.keep_alive(self._client)
                    return False
                self._epoch(last.progress.batch, last.progress.planned, closing=True, execute=execute)
                return True
            finally:
                self._busy_s = self._host.network.monotonic_s()

    # ---- the last epoch

    def _client(self) -> Client:
        return connect(self._fixed.options.sink, self._host.network)

    def _begin(self) -> None:
        if self._begun:
            return
        with self._client() as client:
            epoch = take_over(client, self._query, self._incarnation)
            if epoch is not None:
                self._committed = read_committed(client, self._fixed.options.topic, self._query, epoch)
                self._check_operator(client, self._committed)
            elif not self._fixed.options.allow_other_queries:
                refuse_taken(client, self._fixed.options.topic, self._query)
            if self._registration is not None:
                number = incarnation_number(client, self._query, self._incarnation)
                self._registration.begin(client, self._committed, number)
            if self._watch is not None and self._committed is not None:
                self._watch.note(client, self._committed.progress)
        self._begun = True

    def _check_operator(self, client: Client, last: CommittedEpoch) -> None:
        head = find_head(client, TopicPartition(self._fixed.options.topic, 0), self._query)
        found = head.mark.operator if head is not None and head.mark is not None else ""
        self._evolves = found != self._fixed.fingerprint
        if self._evolves:
            said = check_successor(client, self._fixed, self._query, last, found)
            _log.info("query %s: %s; the next epoch rewrites its state", self._query, said)

    def _is_done(self, batch: int) -> bool:
        """Whether the batch is the last committed one. Raises StaleEpoch or BatchesMissing for a batch out of order."""
        last = self._committed
        if last is None:
            if batch == 0:
                return False
            raise BatchesMissing(
                f"query {self._query}: Spark's checkpoint is at batch {batch}, but topic {self._fixed.options.topic!r} "
                "holds no state of the query; start with a new checkpoint, or with the topic of this checkpoint"
            )
        known = last.progress.batch
        if batch < known:
            raise StaleEpoch(
                f"query {self._query}: batch {batch} is older than the last committed batch, {known}: its checkpoint "
                f"was rewound. Rebuild the checkpoint from the log ({rebuild_command(self._query)}) and start the "
                "query again; or restore the newer checkpoint; or reset the state too: "
                f"spe_adapter.reset(topic={self._fixed.options.topic!r}, query={self._query!r}, "
                f"batch={batch - 1}, ...)"
            )
        if batch > known + 1:
            raise BatchesMissing(
                f"query {self._query}: Spark's checkpoint is at batch {batch}, the state in topic "
                f"{self._fixed.options.topic!r} at {known}. Rebuild the checkpoint from the log: "
                f"{rebuild_command(self._query)}; or remove the files newer than {known} from its directories "
                "'offsets' and 'commits'"
            )
        return batch == known

    def _check_input(self, planned: Planned, *, repeated: bool) -> None:
        """Raise CheckpointDiffers for a repeated batch with other input than in the log, and for a new batch that does
        not begin where the last one ended.
        """
        last = self._committed
        if last is None or self._fixed.options.sink.accept_changed_checkpoint:
            return
        noted = last.progress.planned
        where = f"topic {self._fixed.options.topic!r}"
        problem = repeated_problem(noted, planned) if repeated else following_problem(noted, planned)
        if problem is not None:
            raise CheckpointDiffers(f"query {self._query}: {problem} (the log is {where}); {way_out(self._query)}")

    # ---- one epoch

    def _epoch(self, batch: int, planned: Planned | None, *, closing: bool, execute: Execute) -> None:
        started_s = self._host.network.monotonic_s()
        plan = self._plan(batch, closing=closing)
        self._at("driver before tasks", plan)
        try:
            reports = self._reports(plan, execute(plan))
        except Exception:
            abort(self._fixed.options.sink, self._host.network, self._query, self._incarnation, plan.epoch)
            raise
        last = self._committed
        max_events_ms = plan.max_events_ms
        for report in reports:
            max_events_ms = newest_of(max_events_ms, report.max_events_ms)
        progress = EndPositions(
            generation=_generation(last, batch),
            batch=batch,
            closing=closing,
            late_watermark_ms=plan.late_watermark_ms,
            watermark_ms=plan.watermark_ms,
            max_event_ms=max((moment for moment in max_events_ms if moment is not None), default=None),
            partitions=self._fixed.partitions,
            layout=plan.layout,
            planned=planned,
            checkpoints=() if self._watch is None else self._watch.named(),
            wall_ms=plan.wall_ms if self._fixed.operator.has_wall_time else None,
            results=self._results,
            name=self._names.name,
            checkpoint=self._names.checkpoint,
        )
        self.hosts.update(report.host for report in reports)
        self._at("driver before commit", plan)
        outputs = [TaskOutput(report.partition, report.attempt, report.segments) for report in reports]
        with self._client() as client:
            # Without an answer it is unknown whether the epoch is committed; the next call then asks the log.
            self._begun = False
            commit(client, self._query, self._incarnation, plan.epoch, outputs, progress.to_json())
            self._at("driver after commit", plan)
            seconds = self._host.network.monotonic_s() - started_s
            parents = tuple(report.counters for report in reports)
            self._evolves = False
            oldest_epochs = tuple(report.oldest_epoch for report in reports)
            self._committed = CommittedEpoch(
                plan.epoch, progress, parents, oldest_epochs, max_events_ms, tuple(reports), seconds
            )
            self._begun = True
            self._choice.note(reports)
            covered = self._covering(client)
            if self._registration is not None:
                self._registration.note(client, self._committed, covered)
            self._trim(client, reports)

    def _plan(self, batch: int, *, closing: bool) -> EpochPlan:
        last = self._committed
        if last is None:
            return EpochPlan(
                query=self._query,
                incarnation=self._incarnation,
                epoch=log_epoch(_generation(None, batch), batch, closing=closing),
                layout=0,
                late_watermark_ms=0,
                watermark_ms=0,
                parent_epoch=None,
                parents=(),
                max_events_ms=(),
                wall_ms=self._wall_ms(None),
                batch=batch,
            )
        progress = last.progress
        moved = self._evolves or progress.partitions != self._fixed.partitions
        return EpochPlan(
            query=self._query,
            incarnation=self._incarnation,
            # More than one epoch without input can follow a batch: timers are due at any time.
            epoch=max(log_epoch(progress.generation, batch, closing=closing), last.epoch + 1),
            layout=progress.layout + 1 if moved else progress.layout,
            late_watermark_ms=progress.watermark_ms,
            watermark_ms=self._watermark_ms(last),
            parent_epoch=last.epoch,
            parents=last.parents,
            max_events_ms=last.max_events_ms,
            rebase=Rebase(progress.partitions) if moved else None,
            covered=() if self._watch is None or moved else self._watch.covered_emitted(),
            wall_ms=self._wall_ms(last),
            batch=batch,
        )

    def _wall_ms(self, last: CommittedEpoch | None) -> int:
        """The processing time of the next epoch: never before that of an earlier one."""
        before = None if last is None else last.progress.wall_ms
        return max(self._host.wall_ms(), before or 0)

    def _has_due_timer(self, last: CommittedEpoch) -> bool:
        """Whether a timer by processing time is due, or might be: the log does not say when the next one is."""
        if not self._fixed.operator.has_wall_time:
            return False
        if not last.reports:
            return True
        due = [report.next_wall_ms for report in last.reports if report.next_wall_ms is not None]
        return bool(due) and min(due) <= self._host.wall_ms()

    def _watermark_ms(self, last: CommittedEpoch) -> int:
        return next_watermark(self._fixed.operator, last.progress.watermark_ms, list(last.max_events_ms))

    def _reports(self, plan: EpochPlan, texts: Sequence[str]) -> list[TaskReport]:
        """One report of each partition, in order. Raises StateInconsistent."""
        reports = sorted((TaskReport.from_json(text) for text in texts), key=lambda report: report.partition)
        if [report.partition for report in reports] != list(range(self._fixed.partitions)):
            raise StateInconsistent(
                f"query {self._query}: epoch {plan.epoch} has reports of the partitions "
                f"{[report.partition for report in reports]} of {self._fixed.partitions}"
            )
        return reports

    def _covering(self, client: Client) -> tuple[StandingCheckpoint | None, ...]:
        """The checkpoints that cover the partitions after the last epoch; empty without checkpoints. An error does not
        fail the epoch, which is committed.
        """
        if self._watch is None or self._committed is None:
            return ()
        try:
            self._watch.note(client, self._committed.progress)
        except CairnError as error:
            _log.warning("query %s: checkpoints cannot be confirmed (%s)", self._query, error)
            return ()
        return self._watch.covering()

    def _trim(self, client: Client, reports: Sequence[TaskReport]) -> None:
        retention_ms = self._fixed.options.retention_ms
        if retention_ms is None:
            return
        now_s = self._host.network.monotonic_s()
        if now_s - self._trimmed_s < max(retention_ms / 1000 / _TRIMS_PER_RETENTION, _MIN_TRIM_S):
            return
        self._trimmed_s = now_s
        before_ms = self._host.wall_ms() - retention_ms
        for report in reports:
            stream = TopicPartition(self._fixed.options.topic, report.partition)
            trim(client, stream, self._query, report.oldest_epoch, before_ms)

    def _at(self, step: Step, plan: EpochPlan) -> None:
        self._probe(step, plan.epoch, _DRIVER)


def _generation(last: CommittedEpoch | None, batch: int) -> int:
    """The generation of an epoch. With an initial state it begins at 1, which leaves a number before batch 0."""
    if last is None:
        return 1 if batch == INITIAL_BATCH else 0
    return last.progress.generation

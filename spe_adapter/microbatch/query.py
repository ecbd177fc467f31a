"""`stateful(…)`: a data frame, a key and an operator become a query whose results and state are in one topic.

    query = (
        stateful(payments, key="customer", operator=Alarm())
        .option("kafka.bootstrap.servers", "127.0.0.1:9092")
        .start(topic="alarms", checkpointLocation="/checkpoints/alarms")
    )

Invariants:
* `start` refuses a wrong schema, key, operator, option or topic, and names the column or the option.
* The streaming plan, with shuffle and tasks, is created once; an epoch's plan reaches the tasks as a local property.
* A query object has the properties of Spark's query object, and fails if its no-data trigger fails.

Source: docs/decisions/0010.
"""

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from logstore.errors import InvalidConfig
from spe_adapter.datasource.options import OptionReader
from spe_adapter.epochs.client import connect
from spe_adapter.epochs.retention import KEEP_ALL, NEW_TOPIC
from spe_adapter.errors import SchemaRefused
from spe_adapter.host import ThisHost
from spe_adapter.microbatch.committed import EpochProgress, progress_of
from spe_adapter.microbatch.driver import QueryDriver, SparkQueryNames
from spe_adapter.microbatch.epoch import REPORT_SCHEMA, EpochPlan, Probe, QueryDefinition, silent
from spe_adapter.microbatch.errors import TasksFailed
from spe_adapter.microbatch.frames import arrow_schema, check, check_late, check_watermarks, joined
from spe_adapter.microbatch.host_memory import OnSpark, forget
from spe_adapter.microbatch.no_data_trigger import NoDataTrigger
from spe_adapter.microbatch.observed import observed
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.microbatch.shuffle import HANDED_SCHEMA, PARTITION, HandOver
from spe_adapter.microbatch.task import NoDataTask, Task
from spe_adapter.microbatch.topics import prepare_late_topic, prepare_topic
from spe_adapter.operators.base import Operator
from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.spark_checkpoint.running import RunningCheckpoint
from spe_adapter.workers.context import (
    CHECKPOINTS_PROPERTY,
    COMBINE_PROPERTY,
    PLAN_PROPERTY,
    QUERY_PROPERTY,
    RUN_ID_PROPERTY,
)

FIRST_CONTACT_S: Final = 30.0
"""How long `start` waits for a sidecar by default. The running query, which has found one before, waits longer."""
_LIMIT_OPTION: Final = "kafka.delivery.timeout.ms"
_TRACEBACK: Final = "Traceback (most recent call last):"
_MESSAGE_CHARACTERS: Final = 1000
_TRACE_CHARACTERS: Final = 800
"""Together well below what overflows the stack of Spark's search in the message (about 10,000)."""
_WORKER_ERROR: Final = re.compile(r"^(?:[\w]+\.)*(\w+): (.+)$", re.MULTILINE)


def stateful(
    frame: DataFrame, *, key: str | Sequence[str], operator: Operator, partitions: int | None = None
) -> "Stateful":
    """Define a stateful query over a streaming data frame; `Stateful.start` starts it.

    `key` names the key column or columns. `partitions` is the number of state partitions; each is a task of every epoch
    and a partition of the topic. The default is the number of the topic's partitions, or Spark's default parallelism if
    `start` creates the topic. Raises InvalidConfig.
    """
    return Stateful(frame, (key,) if isinstance(key, str) else tuple(key), operator, partitions)


def stateful_join(
    left: DataFrame,
    right: DataFrame,
    *,
    key: str | Sequence[str],
    operator: WindowJoin,
    partitions: int | None = None,
) -> "Stateful":
    """Define a join of two streaming data frames: a query over pairs of rows with equal keys, and times that match the
    operator.

    `key` names columns that both frames have, with the same types. The results have the key columns, `left` and
    `right`. Raises SchemaRefused if the types of the keys differ; `start` raises the other errors.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    return stateful(joined(left, right, names), key=names, operator=operator, partitions=partitions)


class Stateful:
    """A stateful query before its start; options are set as on Spark's DataStreamWriter."""

    def __init__(self, frame: DataFrame, key: tuple[str, ...], operator: Operator, partitions: int | None) -> None:
        if partitions is not None and partitions < 1:
            raise InvalidConfig(f"{partitions} partitions; use at least one")
        self._frame = frame
        self._key = key
        self._operator = operator
        self._partitions = partitions
        self._options: dict[str, str] = {}
        self._trigger: dict[str, Any] = {}
        self._name: str | None = None
        self._probe: Probe = silent
        self._initial: DataFrame | None = None

    def option(self, name: str, value: object) -> Self:
        """Set an option of the cairn sink, or of state (`microbatch.options.STATE_OPTIONS`)."""
        self._options[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: object) -> Self:
        """Set several options."""
        for name, value in options.items():
            self.option(name, value)
        return self

    def trigger(self, *, processingTime: str | None = None, availableNow: bool | None = None) -> Self:  # noqa: N803
        """Set when batches start, as with Spark's `trigger`; there is no continuous trigger."""
        given = {"processingTime": processingTime, "availableNow": availableNow}
        self._trigger = {name: value for name, value in given.items() if value is not None}
        return self

    def queryName(self, name: str) -> Self:  # noqa: N802 - Spark's name
        """Set the query's name in Spark."""
        self._name = name
        return self

    def initialState(self, frame: DataFrame | pa.Table) -> Self:  # noqa: N802 - Spark's name
        """Set an initial state for the operator, a StatefulOperator. The rows have the key columns and the columns that
        `handle_initial` reads. The query processes them once, in a separate epoch before its first batch.

        Raises InvalidConfig or SchemaRefused.
        """
        if isinstance(frame, pa.Table):
            frame = self._frame.sparkSession.createDataFrame(frame)
        if frame.isStreaming:
            raise InvalidConfig("the initial state is a streaming data frame; give a batch data frame")
        if not self._operator.keeps_entries:
            raise InvalidConfig(f"operator {self._operator.name} takes no initial state; a StatefulOperator does")
        fields, given = (KeyCodec(arrow_schema(one), self._key).fields for one in (self._frame, frame))
        for field, other in zip(fields, given, strict=True):
            if field.type != other.type:
                raise SchemaRefused(
                    f"key column {field.name!r} is {other.type} in the initial state and {field.type} in the input; "
                    "both must have the same type"
                )
        self._initial = frame
        return self

    def probe(self, probe: Probe) -> Self:
        """Call `probe` at the steps of every epoch, for tests and traces."""
        self._probe = probe
        return self

    def start(
        self,
        *,
        topic: str,
        checkpointLocation: str | None = None,  # noqa: N803 - Spark's name
        processingTime: str | None = None,  # noqa: N803
        availableNow: bool | None = None,  # noqa: N803
        **options: object,
    ) -> "StatefulQuery":
        """Start the query. It writes its results and its state to `topic`, and creates the topic if it is missing. The
        trigger and options can also be given here.

        Raises SchemaRefused, StateSchemaRefused, InvalidConfig, InvalidPartitions, Unavailable if no sidecar answers
        within 30 s (or kafka.delivery.timeout.ms, if given), and the sidecar's errors.
        """
        self.options(**options)
        if processingTime is not None or availableNow is not None:
            self.trigger(processingTime=processingTime, availableNow=availableNow)
        parsed = parse_stateful(self._options, topic)
        if not self._frame.isStreaming:
            raise InvalidConfig("the data frame is not streaming; stateful queries run on spark.readStream")
        schema = arrow_schema(self._frame)
        fingerprint = check(self._operator, schema, self._key)
        check_watermarks(self._frame, self._operator)
        if parsed.late_topic is not None:
            check_late(self._operator, schema)
        host = ThisHost()
        spark = self._frame.sparkSession
        sink = parsed.sink
        is_told = OptionReader(self._options).text(_LIMIT_OPTION) is not None
        limit_s = sink.limit_s if is_told else min(sink.limit_s, FIRST_CONTACT_S)
        with connect(sink, host.network, limit_s=limit_s) as client:
            default = spark.sparkContext.defaultParallelism
            settings = KEEP_ALL if parsed.allow_trimming else NEW_TOPIC
            partitions = prepare_topic(client, parsed.topic, self._partitions, default, settings)
            if parsed.late_topic is not None:
                prepare_late_topic(client, parsed.late_topic, partitions)
        fixed = QueryDefinition(self._operator, self._key, schema, fingerprint, partitions, parsed)
        fixed.result_columns()
        # As Spark takes it: programs give paths as well.
        checkpoint = self._default_checkpoint() if checkpointLocation is None else str(checkpointLocation)
        names = SparkQueryNames(self._name, checkpoint)
        started = _Starting(self._frame, fixed, self._probe, self._initial, names)
        writer = started.reports.writeStream.foreachBatch(started.on_batch).outputMode("append")
        if checkpointLocation is not None:
            writer = writer.option("checkpointLocation", checkpointLocation)
        if self._name is not None:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        query = writer.start()
        delay_s = parsed.closing_delay_ms / 1000
        at_end = bool(self._trigger.get("availableNow"))
        driver = started.driver(query.id, query.runId)
        trigger = NoDataTrigger(query, driver, started.execute_no_data, delay_s=delay_s, at_end=at_end)
        trigger.start()
        return StatefulQuery(query, driver, trigger, started)

    def _default_checkpoint(self) -> str | None:
        """Where Spark has the checkpoint of a query for which no place was given; None: in a temporary directory."""
        root = self._frame.sparkSession.conf.get(CHECKPOINTS_PROPERTY, None)
        return f"{root.rstrip('/')}/{self._name}" if root and self._name else None


class _Starting:
    """The callbacks for Spark, which may call before `start` has the query's ids. The first call makes the driver."""

    def __init__(
        self,
        frame: DataFrame,
        fixed: QueryDefinition,
        probe: Probe,
        initial: DataFrame | None,
        names: SparkQueryNames,
    ) -> None:
        self._names = names
        self.spark = frame.sparkSession
        self.fixed = fixed
        self._probe = probe
        self._task = Task(fixed, probe)
        self._lock = threading.Lock()
        self._driver: QueryDriver | None = None
        self._checkpoint: RunningCheckpoint | None = None
        self._incarnation = ""
        self.stopping = threading.Event()
        rows = self.spark.range(0, fixed.partitions, 1, fixed.partitions)
        self._no_data_rows = rows.mapInArrow(NoDataTask(self._task), REPORT_SCHEMA)
        """A row for each partition. The frame is made once, so that Spark does not plan it and pickle the operator at
        each pause.
        """
        self.failure: BaseException | None = None
        """The error of the last batch."""
        reports = self._reports(frame, fixed)
        self.reports = observed(reports) if fixed.options.observe else reports
        self._initial: DataFrame | None = None
        if initial is not None:
            self._initial = self._reports(initial, replace(fixed, schema=arrow_schema(initial)))

    def _reports(self, frame: DataFrame, handed_over: QueryDefinition) -> DataFrame:
        """The reports of tasks over a frame's rows, as the definition `handed_over` has them cut by partition."""
        handed = frame.mapInArrow(HandOver(handed_over), HANDED_SCHEMA)
        routed = handed.repartitionById(self.fixed.partitions, PARTITION)
        return routed.mapInArrow(self._task, REPORT_SCHEMA)

    def driver(self, query: str, incarnation: str) -> QueryDriver:
        """The driver of this incarnation of the query."""
        with self._lock:
            if self._driver is None:
                initial = None if self._initial is None else partial(self._collect, self._initial)
                self._driver = QueryDriver(
                    self.fixed, query, incarnation, ThisHost(), self._probe, initial, self._names
                )
                self._incarnation = incarnation
            return self._driver

    def on_batch(self, reports: DataFrame, batch: int) -> None:
        """Run one of Spark's batches."""
        context = self.spark.sparkContext
        query, run_id = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(RUN_ID_PROPERTY)
        driver = self.driver(str(query), str(run_id))
        self._choose(driver)
        try:
            if self._checkpoint is None:
                self._checkpoint = RunningCheckpoint(self.spark, str(query))
            driver.run_batch(batch, self._checkpoint.planned, partial(self._collect, reports))
        except Exception as error:
            self.failure = error
            raise
        self._choose(driver)

    def _choose(self, driver: QueryDriver) -> None:
        self.spark.sparkContext.setLocalProperty(COMBINE_PROPERTY, str(driver.combine).lower())

    def execute_no_data(self, plan: EpochPlan) -> list[str]:
        """Run the tasks of an epoch without input; they end with the query's other jobs when the query is stopped."""
        self.spark.sparkContext.setLocalProperty(RUN_ID_PROPERTY, self._incarnation)
        self.spark.sparkContext.setInterruptOnCancel(False)
        return self._collect(self._no_data_rows, plan)

    def _collect(self, reports: DataFrame, plan: EpochPlan) -> list[str]:
        context = self.spark.sparkContext
        context.setLocalProperty(PLAN_PROPERTY, plan.to_json())
        try:
            texts = [row[0] for row in reports.collect()]
        except Exception as error:
            said = "stopped" if self.stopping.is_set() else said_by_worker(str(error))
            if said is None:
                raise
            # Not chained: Spark's text repeats the worker's traceback several times. Spark searches the text of this
            # error with a regular expression that overflows its stack on long texts, and the error would be lost.
            raise TasksFailed(f"query {plan.query}, {plan.name}: {said}") from None
        finally:
            context.setLocalProperty(PLAN_PROPERTY, "")
        # If Spark knows that a plan is empty, it runs no task.
        return texts or self.execute_no_data(plan)


def said_by_worker(text: str) -> str | None:
    """The last error and the last stack frames of a Python worker's traceback; None if the text has no traceback."""
    _, found, trace = text.partition(_TRACEBACK)
    lines = list(_WORKER_ERROR.finditer(trace)) if found else []
    if not lines:
        return None
    kind, message = lines[-1].groups()
    if kind == OperatorFailed.__name__:
        # Its message names the line in the user's code; the frames around it are Cairn's.
        return f"{kind}: {message}"
    frames = "\n".join(line for line in trace[: lines[-1].start()].splitlines() if line.startswith("  File"))
    return f"{kind}: {message[:_MESSAGE_CHARACTERS]}\nraised at\n{frames[-_TRACE_CHARACTERS:]}"


def _condensed(query: str, reported: BaseException) -> BaseException:
    """The error of a Python worker (of a source, for example) from Spark's report; the report itself if it has none."""
    said = said_by_worker(str(reported))
    return reported if said is None else TasksFailed(f"query {query}: {said.splitlines()[0]}")


class StatefulQuery:
    """A started stateful query: Spark's StreamingQuery, and the progress of its state."""

    def __init__(self, query: StreamingQuery, driver: QueryDriver, trigger: NoDataTrigger, started: _Starting) -> None:
        self._query = query
        self._driver = driver
        self._no_data = trigger
        self._started = started
        self._failed_before_stop: BaseException | None = None

    @property
    def id(self) -> str:
        """The query's id, the same over restarts from its checkpoint."""
        return self._query.id

    @property
    def runId(self) -> str:  # noqa: N802 - Spark's name
        """Spark's id of this incarnation of the query, new with each start."""
        return self._query.runId

    @property
    def name(self) -> str | None:
        """The query's name."""
        return self._query.name

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether the query runs, or closes due windows at its end."""
        return self._query.isActive or not self._no_data.join(0)

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query."""
        return self._query.status

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        """Spark's progress of the last batch."""
        return self._query.lastProgress

    @property
    def recentProgress(self) -> Any:  # noqa: N802 - Spark's name
        """Spark's progress of recent batches."""
        return self._query.recentProgress

    @property
    def progress(self) -> EpochProgress | None:
        """The figures of the last committed epoch; None before the first."""
        last = self._driver.committed
        return None if last is None else progress_of(last)

    @property
    def partitions(self) -> int:
        """The number of state partitions."""
        return self._started.fixed.partitions

    def exception(self) -> BaseException | None:
        """The error that ended the query, or None. This is the first error, not Spark's report of it, which
        `awaitTermination` raises. Errors that `stop` causes in a batch do not count.
        """
        if self._started.stopping.is_set():
            return self._failed_before_stop
        if self._no_data.failure is not None:
            return self._no_data.failure
        reported = self._query.exception()
        return reported if reported is None else self._started.failure or _condensed(self.id, reported)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait until the query has ended and its due windows are closed. Returns and raises as Spark's method does."""
        if self._started.stopping.is_set():
            return None if timeout is None else True
        try:
            ended = self._query.awaitTermination(timeout) if timeout is not None else self._query.awaitTermination()
        except StreamingQueryException as reported:
            raise reported from self.exception()
        if ended is not False:
            over = self._no_data.join(timeout)
            ended = over if timeout is not None else None
        if self._no_data.failure is not None:
            raise self._no_data.failure
        return ended

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until all available input is processed and the windows that are due then are closed."""
        self._query.processAllAvailable()
        self._no_data.close_now()

    def stop(self, *, forget_state: bool = False) -> None:
        """Stop the query.

        The state stays in the memory of the hosts for a restart, until their sidecars remove state that was unused for
        long. `forget_state` removes the state now, on this host and on all hosts with tasks of this incarnation; the
        log has all of it. Raises StateNotForgotten, which names the hosts where the removal failed; the query is
        stopped nevertheless.
        """
        if not self._started.stopping.is_set():
            self._failed_before_stop = self.exception()
            self._started.stopping.set()
        self._no_data.stop()
        self._query.stop()
        self._no_data.join()
        if forget_state:
            root = self._started.fixed.options.state_root
            forget(self.id, root, self._driver.hosts, OnSpark(self._started.spark))

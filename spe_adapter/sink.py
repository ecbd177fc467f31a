"""The exactly-once sink: tasks stage, the driver decides, the sidecar publishes.

Invariants:
* Nothing a task writes is visible before the driver's commit names that very attempt; then all of the epoch is, in
  all streams, once, whatever is retried, speculated or run again.
* Query, run and epoch come from Spark's own local properties of the task, so that a re-run of an epoch names the same
  one; the driver, which is told none of them, takes them from the tasks' messages.
* Aborting never undoes a decision: the sidecar sees to that.

Source: docs/decisions; Spark's StreamingWrite contract (commit may come twice for one epoch).
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from logstore.client.blocking import Client
from logstore.errors import CairnError, StaleEpoch
from logstore.format.private import AbortRequest, DecideRequest, TaskOutput
from spe_adapter.errors import NoTaskContext, SchemaRefused
from spe_adapter.host import Host, ThisHost
from spe_adapter.options import SinkOptions
from spe_adapter.staging import Attempt, Staged, Stager

QUERY_PROPERTY: Final = "sql.streaming.queryId"
EPOCH_PROPERTY: Final = "streaming.sql.batchId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""A streaming query runs its jobs in a group named by its run id, new with each start of the query."""

# Whoever aborts has failed already and must not be kept: what is left behind, the sidecar reclaims by itself.
ABORT_LIMIT_S: Final = 5.0

_WAY_OUT: Final = (
    "bring back the checkpoint that belongs to it, start anew with an empty one, or set the option 'rewoundCheckpoint' "
    "to 'skip' to leave out the epochs that are committed"
)
_COLUMNS: Final = ("key", "value", "topic", "partition", "headers", "timestamp")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """What a task tells the driver: who it was, and how much it staged."""

    attempt: Attempt
    staged: Staged


# ---- the schema


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Refuse a data frame that cannot be written. Raises SchemaRefused, which names the column and the types
    allowed.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise SchemaRefused(f"column 'value' (string or binary) is missing; there are {', '.join(types) or 'none'}")
    _check(types, "value", (StringType, BinaryType), "string or binary")
    _check(types, "key", (StringType, BinaryType), "string or binary")
    _check(types, "partition", (IntegerType,), "int")
    if options.topic is None:
        if "topic" not in types:
            raise SchemaRefused("no topic: set the option 'topic', or add a column 'topic' (string)")
        _check(types, "topic", (StringType,), "string")
    if options.include_timestamp:
        if "timestamp" not in types:
            raise SchemaRefused("column 'timestamp' (timestamp) is missing, and the option 'includeTimestamp' is set")
        _check(types, "timestamp", (TimestampType,), "timestamp")
    headers = types.get("headers")
    if headers is not None and not _is_headers(headers):
        raise SchemaRefused(
            f"column 'headers' is {headers.simpleString()}; allowed: array<struct<key:string,value:binary>>"
        )


def _check(types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], words: str) -> None:
    found = types.get(name)
    if found is not None and not isinstance(found, allowed):
        raise SchemaRefused(f"column {name!r} is {found.simpleString()}; allowed: {words}")


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


# ---- what tasks do


def _stage_all(
    batches: Iterator[pa.RecordBatch], attempt: Attempt, options: SinkOptions, host: Host
) -> WriterCommitMessage:
    with Client(options.servers, host.network, limit_s=options.limit_s, client_id=options.client_id) as client:
        stager = Stager(client, attempt, options, host)
        for batch in batches:
            stager.add(batch.select([name for name in batch.schema.names if name in _COLUMNS]))
        return TaskCommit(attempt, stager.finish())


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise NoTaskContext("the cairn sink writes inside Spark tasks only")
    return context


def _attempt_name(context: TaskContext, host: Host) -> str:
    """Unique over all executions of a task, speculative ones included."""
    return f"{context.taskAttemptId()}-{host.new_token()}"


def _commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    return [message for message in messages if isinstance(message, TaskCommit)]


def _decide(commits: Sequence[TaskCommit], options: SinkOptions, host: Host, *, forget: bool) -> None:
    first = commits[0].attempt
    request = DecideRequest(
        query=first.query,
        run=first.run,
        epoch=first.epoch,
        rewind=options.rewind,
        tasks=tuple(TaskOutput(c.attempt.task, c.attempt.attempt, c.staged.pieces) for c in commits if c.staged.pieces),
        positions="",
        forget=forget,
    )
    with Client(options.servers, host.network, limit_s=options.limit_s, client_id=options.client_id) as client:
        try:
            reply = client.decide(request)
        except StaleEpoch as error:
            raise StaleEpoch(f"{error} (at {client.where}); {_WAY_OUT}") from error
    if reply.outcome == "skipped":
        _log.warning(
            "epoch %d of query %s was not written again: epoch %d is committed, and rewoundCheckpoint is skip",
            first.epoch, first.query, reply.last_epoch,
        )  # fmt: skip


def _abort(query: str, run: str, epoch: int, options: SinkOptions, host: Host) -> None:
    limit_s = min(options.limit_s, ABORT_LIMIT_S)
    with (
        contextlib.suppress(CairnError),
        Client(options.servers, host.network, limit_s=limit_s, client_id=options.client_id) as client,
    ):
        client.abort(AbortRequest(query, run, epoch))


# ---- streaming


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's sink. Spark makes a new one for each epoch's commit, so it holds options only."""

    def __init__(self, options: SinkOptions, host: Host | None = None) -> None:
        self._options = options
        self._host: Host = host or ThisHost()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows. Runs in a task; raises NoTaskContext if Spark does not say which epoch this is."""
        context = _task_context()
        query, run = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(RUN_PROPERTY)
        epoch = context.getLocalProperty(EPOCH_PROPERTY)
        if query is None or run is None or epoch is None:
            raise NoTaskContext(
                f"Spark did not tell the task its epoch: {QUERY_PROPERTY}={query}, {RUN_PROPERTY}={run}, "
                f"{EPOCH_PROPERTY}={epoch}"
            )
        name = _attempt_name(context, self._host)
        attempt = Attempt(query, run, int(epoch), context.partitionId(), name)
        return _stage_all(iterator, attempt, self._options, self._host)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the epoch visible, once. Raises StaleEpoch, FencedRun, StagedMissing, Unavailable.

        An epoch without tasks has no output and leaves no trace; the sidecar accepts gaps between epochs.
        """
        commits = _commits(messages)
        if not commits:
            return
        if any(commit.attempt.epoch != batchId for commit in commits):
            raise NoTaskContext(f"tasks of epoch {commits[0].attempt.epoch} in the commit of epoch {batchId}")
        _decide(commits, self._options, self._host, forget=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop what was staged, if any task got far enough to say who it was; the rest goes with the run."""
        commits = _commits(messages)
        if commits:
            first = commits[0].attempt
            _abort(first.query, first.run, batchId, self._options, self._host)


# ---- batch


class BatchWriter(DataSourceArrowWriter):
    """A batch query's sink: one epoch, all or nothing. The same writer, pickled, reaches tasks and commit."""

    def __init__(self, options: SinkOptions, host: Host | None = None) -> None:
        self._options = options
        self._host: Host = host or ThisHost()
        self._job = f"batch-{self._host.new_token()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        context = _task_context()
        attempt = Attempt(self._job, self._job, 0, context.partitionId(), _attempt_name(context, self._host))
        return _stage_all(iterator, attempt, self._options, self._host)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the job's output visible, once."""
        commits = _commits(messages)
        if commits:
            _decide(commits, self._options, self._host, forget=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        _abort(self._job, self._job, 0, self._options, self._host)

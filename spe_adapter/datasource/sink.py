"""The exactly-once sink: tasks stage, the driver commits, the sidecar publishes.

Invariants:
* The output of a task is invisible until the driver's commit names the attempt that wrote it. Then all output of the
  epoch becomes visible in all streams, once, whatever Spark retries, speculates or runs again.
* Query, incarnation (the run id) and epoch come from Spark's local properties of the task, so that a repeated epoch has
  the same name. Spark does not give them to the driver, which takes them from the tasks' messages.
* The driver notes the input of each epoch, from Spark's checkpoint, or else its output. The sink refuses the last
  epoch's number with other input (a checkpoint that lost its newest batch), an epoch that does not begin where the
  previous one ended, and a new query with the checkpoint or the name of a query that has written into the topic.

Source: docs/decisions; Spark's StreamingWrite contract (commit may come twice for one epoch).
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
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
from logstore.errors import StaleEpoch, UnknownFormatVersion
from spe_adapter.codec.digests import MODULUS
from spe_adapter.datasource.options import SinkOptions
from spe_adapter.datasource.rows import RowWriter, Staged
from spe_adapter.datasource.sink_notes import (
    SinkNote,
    WrittenOutput,
    following_epoch_problem,
    noted_epoch,
    refuse_lost_self,
    repeated_epoch_problem,
)
from spe_adapter.epochs.client import TaskAttempt, abort, commit, connect, describe
from spe_adapter.errors import CheckpointDiffers, NoTaskContext, SchemaRefused
from spe_adapter.host import Host, ThisHost
from spe_adapter.spark_checkpoint.files import local_checkpoint, planned_in
from spe_adapter.spark_checkpoint.planned import rebuild_command, way_out
from spe_adapter.workers.collector import spare_loaded_code
from spe_adapter.workers.context import (
    CHECKPOINTS_PROPERTY,
    EPOCH_PROPERTY,
    QUERY_PROPERTY,
    RUN_ID_PROPERTY,
    attempt_name,
    local_property,
    task_context,
)

_COLUMNS: Final = ("key", "value", "topic", "partition", "headers", "timestamp")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """A task's message to the driver: its attempt, what it staged, and the location of its query's checkpoint."""

    attempt: TaskAttempt
    staged: Staged
    checkpoint: str | None = None
    with_digest: bool = False


# ---- the schema


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Refuse a data frame that cannot be written. Raises SchemaRefused, with the column and the allowed types."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise SchemaRefused(f"column 'value' (string or binary) is missing; there are {', '.join(types) or 'none'}")
    _check_type(types, "value", (StringType, BinaryType), "string or binary")
    _check_type(types, "key", (StringType, BinaryType), "string or binary")
    _check_type(types, "partition", (IntegerType,), "int")
    if options.topic is None:
        if "topic" not in types:
            raise SchemaRefused("no topic: set the option 'topic', or add a column 'topic' (string)")
        _check_type(types, "topic", (StringType,), "string")
    if options.include_timestamp:
        if "timestamp" not in types:
            raise SchemaRefused("column 'timestamp' (timestamp) is missing, and the option 'includeTimestamp' is set")
        _check_type(types, "timestamp", (TimestampType,), "timestamp")
    headers = types.get("headers")
    if headers is not None and not _is_headers(headers):
        raise SchemaRefused(
            f"column 'headers' is {headers.simpleString()}; allowed: array<struct<key:string,value:binary>>"
        )


def _check_type(types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], words: str) -> None:
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
    batches: Iterator[pa.RecordBatch],
    attempt: TaskAttempt,
    options: SinkOptions,
    host: Host,
    *,
    with_digest: bool = False,
) -> Staged:
    with connect(options, host.network) as client:
        writer = RowWriter(client, attempt, options, host, with_digest=with_digest)
        for batch in batches:
            writer.add(batch.select([name for name in batch.schema.names if name in _COLUMNS]))
        return writer.finish()


def _commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    return [message for message in messages if isinstance(message, TaskCommit)]


def _checkpoint_location(options: SinkOptions) -> str | None:
    """The location of the query's checkpoint, from the option or from the session's setting and the query's name; None
    if Spark made a temporary checkpoint.
    """
    if options.checkpoint is not None:
        return options.checkpoint
    root = local_property(CHECKPOINTS_PROPERTY)
    return f"{root.rstrip('/')}/{options.query_name}" if root and options.query_name else None


def _note(commits: Sequence[TaskCommit], options: SinkOptions) -> SinkNote:
    """The note of an epoch: its input or its output, as far as they are known. The driver calls it."""
    first = commits[0]
    planned = written = None
    place = None if first.checkpoint is None else local_checkpoint(first.checkpoint, first.attempt.query)
    if place is not None:
        with contextlib.suppress(UnknownFormatVersion):
            planned = planned_in(place, first.attempt.epoch)
    if all(each.with_digest for each in commits):
        digest = sum(each.staged.digest for each in commits) % MODULUS
        written = WrittenOutput(sum(each.staged.records for each in commits), digest)
    return SinkNote(first.checkpoint, options.query_name, planned, written)


def _check_epoch(client: Client, commits: Sequence[TaskCommit], note: SinkNote, options: SinkOptions) -> None:
    """Refuse an epoch whose input contradicts the log. Raises CheckpointDiffers or TopicTaken."""
    query, epoch = commits[0].attempt.query, commits[0].attempt.epoch
    known = describe(client, query)
    # The topic in the options is checked even if the first epoch has no output: no later epoch is checked for a lost
    # checkpoint.
    always = () if options.topic is None else (options.topic,)
    topics = sorted({*always, *(topic for each in commits for topic in each.staged.topics)})
    problem = None
    if known.last_epoch is None:
        if not options.allow_other_queries:
            refuse_lost_self(client, topics, query, note)
    elif epoch == known.last_epoch:
        problem = repeated_epoch_problem(SinkNote.from_json(known.positions), note, epoch)
    elif epoch == known.last_epoch + 1:
        problem = following_epoch_problem(SinkNote.from_json(known.positions), note)
    elif epoch < known.last_epoch and options.rewind == "skip":
        noted = noted_epoch(client, topics, query, epoch)
        # An epoch without output, which leaves no note, may be skipped: nothing is lost with it.
        if noted is not None or any(each.staged.segments for each in commits):
            problem = repeated_epoch_problem(noted, note, epoch)
    if problem is not None and not options.accept_changed_checkpoint:
        raise CheckpointDiffers(f"query {query}: {problem} (at {client.where}); {way_out(query)}")


def _commit_epoch(
    commits: Sequence[TaskCommit], options: SinkOptions, host: Host, *, forget: bool, note: SinkNote | None = None
) -> None:
    query, incarnation, epoch = commits[0].attempt[:3]
    outputs = [each.attempt.output(each.staged.segments) for each in commits if each.staged.segments]
    positions = "" if note is None else note.to_json()
    with connect(options, host.network) as client:
        if note is not None:
            _check_epoch(client, commits, note, options)
        try:
            reply = commit(client, query, incarnation, epoch, outputs, positions, rewind=options.rewind, forget=forget)
        except StaleEpoch as error:
            raise StaleEpoch(f"{error} (at {client.where}); {_rewound_way_out(query)}") from error
    if reply.outcome == "skipped":
        _log.warning(
            "epoch %d of query %s was skipped: epoch %d is committed already, and rewoundCheckpoint is skip",
            epoch, query, reply.last_epoch,
        )  # fmt: skip


def _rewound_way_out(query: str) -> str:
    """The remedies for a checkpoint that is older than the log."""
    return (
        f"rebuild the checkpoint from the log ({rebuild_command(query)}) and start the query again; or restore the "
        "checkpoint that belongs to the query; or start with an empty checkpoint and a new topic. To skip the epochs "
        "that are committed already, set the option 'rewoundCheckpoint' to 'skip'"
    )


# ---- streaming


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query. Spark makes a new writer for each commit, so a writer holds options only."""

    def __init__(self, options: SinkOptions, host: Host | None = None) -> None:
        self._options = options
        self._host: Host = host or ThisHost()
        # This runs on the driver. If the driver can read the checkpoint, tasks need no digest of their output.
        self._readable = options.checkpoint is not None and local_checkpoint(options.checkpoint) is not None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task. Raises NoTaskContext if Spark does not name the epoch, and the sidecar's errors."""
        spare_loaded_code()
        context = task_context()
        query, incarnation, epoch = map(local_property, (QUERY_PROPERTY, RUN_ID_PROPERTY, EPOCH_PROPERTY))
        if query is None or incarnation is None or epoch is None:
            raise NoTaskContext(
                f"Spark did not tell the task its epoch: {QUERY_PROPERTY}={query}, {RUN_ID_PROPERTY}={incarnation}, "
                f"{EPOCH_PROPERTY}={epoch}"
            )
        attempt = TaskAttempt(query, incarnation, int(epoch), context.partitionId(), attempt_name(context, self._host))
        checkpoint = _checkpoint_location(self._options)
        with_digest = checkpoint is not None and not self._readable
        staged = _stage_all(iterator, attempt, self._options, self._host, with_digest=with_digest)
        return TaskCommit(attempt, staged, checkpoint, with_digest)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the epoch visible, once. Raises StaleEpoch, CheckpointDiffers, TopicTaken, FencedIncarnation,
        StagedMissing, Unavailable.

        An epoch without tasks is not committed; the sidecar accepts gaps between epochs.
        """
        commits = _commits(messages)
        if not commits:
            return
        if any(each.attempt.epoch != batchId for each in commits):
            raise NoTaskContext(f"tasks of epoch {commits[0].attempt.epoch} in the commit of epoch {batchId}")
        _commit_epoch(commits, self._options, self._host, forget=False, note=_note(commits, self._options))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop the staged output, if any task sent a message that names its incarnation; the rest goes with the
        incarnation.
        """
        commits = _commits(messages)
        if commits:
            first = commits[0].attempt
            abort(self._options, self._host.network, first.query, first.incarnation, batchId)


# ---- batch


class BatchWriter(DataSourceArrowWriter):
    """The sink of a batch query: one epoch, all or nothing. Spark pickles this writer for tasks and commit."""

    def __init__(self, options: SinkOptions, host: Host | None = None) -> None:
        self._options = options
        self._host: Host = host or ThisHost()
        self._job = f"batch-{self._host.new_token()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        spare_loaded_code()
        context = task_context()
        attempt = TaskAttempt(self._job, self._job, 0, context.partitionId(), attempt_name(context, self._host))
        return TaskCommit(attempt, _stage_all(iterator, attempt, self._options, self._host))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the output of the job visible, once. Raises the sidecar's errors."""
        commits = _commits(messages)
        if commits:
            _commit_epoch(commits, self._options, self._host, forget=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the staged output."""
        abort(self._options, self._host.network, self._job, self._job, 0)

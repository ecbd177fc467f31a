"""Spark's task context, and the local properties by which Spark and this package pass the epoch of a job to its tasks.

Invariant: each property is named here and nowhere else.
"""

from typing import Final

from pyspark import TaskContext

from spe_adapter.errors import NoTaskContext
from spe_adapter.host import Host

QUERY_PROPERTY: Final = "sql.streaming.queryId"
"""Spark's id of the streaming query, the same over restarts from one checkpoint."""
EPOCH_PROPERTY: Final = "streaming.sql.batchId"
"""Spark's number of the batch."""
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
"""A streaming query runs its jobs in a group named by its run id, new with each start of the query."""
CHECKPOINTS_PROPERTY: Final = "spark.sql.streaming.checkpointLocation"
"""The session's directory for the checkpoints of queries with a name."""
PLAN_PROPERTY: Final = "cairn.stateful.plan"
"""The plan of the epoch that a stateful query's job runs (`microbatch.epoch.EpochPlan`)."""
COMBINE_PROPERTY: Final = "cairn.stateful.combine"
"""Whether a stateful query combines rows before the shuffle: "true" or "false". The property belongs to the thread and
not to the plan, as Spark may run the stage before the shuffle before it asks for the epoch's tasks.
"""


def task_context() -> TaskContext:
    """The context of the calling task. Raises NoTaskContext outside a Spark task."""
    context = TaskContext.get()
    if context is None:
        raise NoTaskContext("a cairn task was called outside a Spark task")
    return context


def local_property(name: str) -> str | None:
    """A local property of the calling task; None outside a task, or if the property is not set."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name) or None


def attempt_name(context: TaskContext, host: Host) -> str:
    """A name that is unique among all executions of tasks, speculative ones included."""
    return f"{context.taskAttemptId()}-{host.new_token()}"

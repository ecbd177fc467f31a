"""A fragment as one Spark job of long tasks: one runner for each partition, placed and restarted by Spark.

Invariants:
* The Spark driver is not in the data path: tasks read, commit and recover by themselves. Spark chooses their executors,
  and restarts a failed task on any executor (up to `spark.task.maxFailures` times).
* A task that Spark wrongly takes for dead is fenced by its successor, so no result is written twice.
* Each partition occupies one task slot for as long as the query runs.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from logstore.client.errors import Unavailable
from spe_adapter.continuous.fragment import Fragment, plan
from spe_adapter.continuous.runner import Options, Runner, prepare
from spe_adapter.host import Host, ThisHost

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

Task = Callable[[int, Iterable[int]], Iterator[int]]


def on_spark(spark: "SparkSession", fragment: Fragment, options: Options, *, host: Host | None = None) -> "SparkQuery":
    """Start a fragment on Spark's executors, one task for each partition.

    Raises FragmentRefused, SchemaRefused and the client's errors before any task starts.
    """
    world: Host = host or ThisHost()
    plan(fragment)
    partitions = prepare(fragment, options, world)
    context = spark.sparkContext
    if partitions > context.defaultParallelism:
        _log.warning(
            "query %s has %d partitions, each of which needs a slot for good; Spark says that it has %d",
            fragment.query, partitions, context.defaultParallelism,
        )  # fmt: skip
    return SparkQuery(context, partitions, _task(fragment, options), f"{fragment.query} {world.new_token()}")


def _task(fragment: Fragment, options: Options) -> Task:
    """The function of a task; it works until the task is cancelled or fails."""

    def work(partition: int, _numbers: Iterable[int]) -> Iterator[int]:
        Runner(fragment, partition, options).run()
        return iter(())

    return work


class SparkQuery:
    """A fragment that runs on Spark. `failure` is the error that ended it; None while it runs and after `stop`."""

    def __init__(self, context: "SparkContext", partitions: int, task: Task, group: str) -> None:
        self._context = context
        self._group = group
        self._stopped = False
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(partitions, task), name=group, daemon=True)
        self._thread.start()

    def _run(self, partitions: int, task: Task) -> None:
        # A job group belongs to the thread that starts the job.
        self._context.setJobGroup(self._group, f"continuous query {self._group}")
        try:
            self._context.parallelize(range(partitions), partitions).mapPartitionsWithIndex(task).collect()
        except Exception as error:  # noqa: BLE001  await_termination raises it
            if not self._stopped:
                self.failure = error
                _log.error("query %s ended: %s", self._group, error)

    @property
    def is_active(self) -> bool:
        """Whether the job runs."""
        return self._thread.is_alive()

    @property
    def running_tasks(self) -> int:
        """The number of tasks that have a slot now."""
        tracker = self._context.statusTracker()
        running = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                found = tracker.getStageInfo(stage)
                running += found.numActiveTasks if found is not None else 0
        return running

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended; False if `timeout_s` seconds passed before. Raises the error that ended the
        job.
        """
        self._thread.join(timeout_s)
        if self.failure is not None:
            raise self.failure
        return not self._thread.is_alive()

    def stop(self, timeout_s: float = 60.0) -> None:
        """Cancel the tasks. Committed epochs stay; the next start of the query processes the others again.

        Raises Unavailable if Spark does not end the tasks within `timeout_s` seconds.
        """
        self._stopped = True
        self._context.cancelJobGroup(self._group)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise Unavailable(f"Spark did not end query {self._group} within {timeout_s:g} s")

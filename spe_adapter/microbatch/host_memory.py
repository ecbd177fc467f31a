"""Removes the state of a stopped query from the memory of the hosts on which its tasks ran.

Invariant: an error names every host on which state is left, with the reason. The log, which has the whole state, stays.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from spe_adapter.host import host_name
from spe_adapter.microbatch.errors import StateNotForgotten
from spe_adapter.state.versions import StateDirectory

Everywhere = Callable[[Callable[[], tuple[str, bool]]], Iterable[tuple[str, bool]]]
"""Runs a function on as many hosts as can be reached, and returns the results by host."""

SCHEMA: Final = "host string, gone boolean"
_TASKS_PER_SLOT: Final = 4
"""Tasks cannot choose their hosts in Spark; with several tasks per slot, hardly any host is left out."""
_NOT_REACHED: Final = "no Spark task ran there"
_IN_USE: Final = "a task still uses it"


class Forget:
    """Removes the state of one query from the host on which it is called. Pickled, and sent to executors."""

    def __init__(self, root: str | None, query: str) -> None:
        self._root = root
        self._query = query

    def __call__(self) -> tuple[str, bool]:
        """The host's name, and whether no state is left on it."""
        return host_name(), StateDirectory(self._root, self._query, 0).remove()


def forget(query: str, root: str | None, hosts: Iterable[str], everywhere: Everywhere) -> None:
    """Remove the state of a query that has stopped from these hosts and this one. Raises StateNotForgotten."""
    job = Forget(root, query)
    here, gone = job()
    left = {} if gone else {here: _IN_USE}
    others = sorted(set(hosts) - {here})
    if others:
        reached: dict[str, bool] = {}
        for host, gone in everywhere(job):
            reached[host] = reached.get(host, True) and gone
        for host in others:
            if not reached.get(host, False):
                left[host] = _IN_USE if host in reached else _NOT_REACHED
    if left:
        said = "; ".join(f"{host}: {why}" for host, why in left.items())
        raise StateNotForgotten(
            f"query {query} has stopped, but its state is still in memory ({said}). `cairn state memory` shows it; "
            "stop again with forget_state=True, or let the host's sidecar remove it when it has been unused for long"
        )


class OnSpark:
    """An `Everywhere` of a Spark session's executors."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, job: Callable[[], tuple[str, bool]]) -> Iterable[tuple[str, bool]]:
        """Run the function in many small tasks."""
        tasks = _TASKS_PER_SLOT * self._spark.sparkContext.defaultParallelism

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                continue
            host, gone = job()
            yield pa.RecordBatch.from_pydict({"host": [host], "gone": [gone]})

        rows = self._spark.range(0, tasks, 1, tasks).mapInArrow(run, SCHEMA).collect()
        return [(row[0], row[1]) for row in rows]

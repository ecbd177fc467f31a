"""The figures of an epoch in Spark's own progress: `observedMetrics["cairn"]` of `lastProgress` and of every
StreamingQueryListener.

Invariants:
* The figures come from the reports of the tasks that Spark counts, so a retried task counts once.
* They are of Spark's batches: an epoch without input, which Cairn runs between two of them, is in `query.progress`
  alone. A batch that Spark runs without tasks, and one that the log has already, has no figures.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from spe_adapter.microbatch.epoch import REPORT_COLUMN

OBSERVATION: Final = "cairn"
_SUMS: Final = {
    "records": "records",
    "moved": "moved",
    "late": "late",
    "results": "results",
    "footprints": "footprints",
    "windows": "open_windows",
    "state_bytes": "state_bytes",
    "delta_bytes": "delta_bytes",
}
"""Sums over the partitions: the figure's name, as in `EpochProgress`, and the field of a task's report."""
_LARGEST: Final = {
    "epoch": ("epoch", "bigint"),
    "extent": ("extent", "bigint"),
    "load_seconds": ("load_seconds", "double"),
}
"""The largest value of a partition: the figure's name, the field of a report, and its type."""


def observed(reports: DataFrame) -> DataFrame:
    """The reports of an epoch's tasks, whose figures Spark collects as they pass."""
    sums = [sf.sum(_field(field, "bigint")).alias(name) for name, field in _SUMS.items()]
    largest = [sf.max(_field(field, kind)).alias(name) for name, (field, kind) in _LARGEST.items()]
    return reports.observe(OBSERVATION, *sums, *largest)


def _field(name: str, kind: str) -> Column:
    return sf.get_json_object(REPORT_COLUMN, f"$.{name}").cast(kind)
